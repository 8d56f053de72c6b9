"""What every pool of processes needs: who may interrupt it, what its processes import, and when they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

_LOOK_S = 0.2  # between two looks for the parent


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def interrupt_on_terminate() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that workers end; whoever handles it already continues to do so."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number))


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Ctrl-C and a closed terminal wait until the end of it; processes begun in it never hear of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Processes begun in it do not run the caller's script again, which they need nothing of.

    Python would have them import it; one without `if __name__ == "__main__"` would begin again in each of them.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def end_with_parent() -> None:
    """End this process soon after the one that began it, which else would be waited for for ever.

    A forked process holds both ends of the pipe that `multiprocessing.parent_process()` listens to, so it looks. One
    whose parent was killed while this one was starting has another parent by now, so it is asked who began it.
    """
    parent = multiprocessing.parent_process()
    begun_by = os.getppid() if parent is None or parent.pid is None else parent.pid
    threading.Thread(target=_look_for, args=(begun_by,), daemon=True).start()


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
