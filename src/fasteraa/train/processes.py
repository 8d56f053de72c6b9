"""Processes that train side by side on the cores of a CPU."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

import torch

from fasteraa.errors import OutOfTime, RunError
from fasteraa.train import trainer
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.split import Split
from fasteraa.train.trainer import Until

_STOP = -math.inf  # the moment at which to end: at once, not after the epoch
_GRACE_S = 1.0  # for workers that are told so
Work = Callable[[TrainJob, Until], Outcome]
_BROKEN = (
    "a process that trained networks was ended from outside, perhaps for lack of memory: what was finished is kept; "
    "try fewer at once (--jobs)"
)


class Workers:
    """Started once (that takes seconds) with the images of `splits`; given jobs on these until the `with` is left."""

    def __init__(self, work: Work, splits: Sequence[Split], jobs: int, threads: int):
        self.splits = list(splits)
        context = torch.multiprocessing.get_context("spawn")
        # without a lock, which a process that was killed might hold for ever
        self._end = context.Value("d", math.inf, lock=False)
        given = (work, self.splits, threads, self._end)
        self._jobs = jobs
        self._pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=given)
        self._stack = ExitStack()

    def holds(self, job: TrainJob) -> bool:
        return any(each is job.split for each in self.splits)

    def __enter__(self) -> Workers:
        self._stack.enter_context(_interrupt_on_terminate())
        self._stack.enter_context(self._pool)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ready(self) -> None:
        """Wait until all of them have started, where what follows is to be timed."""
        with _holding_interrupts(), _without_main():
            begun = [self._pool.submit(time.sleep, 0.2) for _ in range(self._jobs)]
        try:
            for future in begun:
                future.result()
        except BaseException as error:
            self._stop()
            if isinstance(error, BrokenProcessPool):
                raise RunError(_BROKEN) from error
            raise

    def results(self, jobs: Sequence[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        """Jobs with their outcomes, as they finish; those for which time ran out are left out."""
        self._end.value = until
        with _holding_interrupts(), _without_main():  # what Ctrl-C means is decided here, not in the workers
            waiting = {self._pool.submit(_work, *self._light(job)): job for job in jobs}
        try:
            for future in as_completed(waiting):
                with suppress(OutOfTime):
                    yield waiting[future], future.result()
        except BaseException as error:
            self._stop()
            if isinstance(error, BrokenProcessPool):
                raise RunError(_BROKEN) from error
            raise

    def _stop(self) -> None:
        """At once: who is told to stop keeps what can be kept quickly, who takes longer is ended.

        Files are whole at any moment, so nothing but the last seconds of work is lost.
        """
        self._end.value = _STOP
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        latest = time.monotonic() + _GRACE_S
        for process in processes:
            process.join(max(0.0, latest - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()

    def _light(self, job: TrainJob) -> tuple[int, TrainJob]:
        """A job without its images, which the workers have."""
        number = next(number for number, each in enumerate(self.splits) if each is job.split)
        return number, replace(job, split=None)  # type: ignore[arg-type]


@contextmanager
def _interrupt_on_terminate() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that workers are told to end; whoever handles it already goes on doing so."""
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
def _holding_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end of it; processes begun in it never get one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes begun in it do not run the caller's script again, which they need nothing of.

    Python would have them import it; one without `if __name__ == "__main__"` would begin anew in each of them.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


# --- in a worker -----------------------------------------------------------------------------------------------------

_mine: tuple[Work, list[Split], Any] | None = None  # of this process: what to do, images, and the moment to end


def _begin(work: Work, splits: list[Split], threads: int, end: Any) -> None:
    global _mine
    _mine = work, splits, end
    setattr(trainer, "told_to_stop", lambda: end.value == _STOP)  # noqa: B010  (mypy minds an assignment)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(number: int, job: TrainJob) -> Outcome:
    assert _mine is not None
    work, splits, end = _mine
    return work(replace(job, split=splits[number]), lambda: float(end.value))
