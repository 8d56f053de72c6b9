"""Signals: those that wait for a step to end, and what is said when one ended the work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fasteraa.errors import Stopped

_NOTED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def defer_signals(all_of_them: bool = False) -> Iterator[list[signal.Signals]]:
    """Note SIGINT, SIGTERM and SIGHUP instead of dying in the middle of a step; a second one gets through.

    Not with `all_of_them`: torchrun passes on what a terminal has sent to everybody already.
    """
    caught: list[signal.Signals] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number))
        if not all_of_them:
            signal.signal(number, previous[number])

    try:
        for number in _NOTED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                previous[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: its owner handles signals
        pass
    try:
        yield caught
    finally:
        for each, handler in previous.items():
            if signal.getsignal(each) is note:
                signal.signal(each, handler)


@contextmanager
def explain_stop(words: str, unless: str | None = None) -> Iterator[None]:
    """Ctrl-C and what became of it end with these words, `unless` others that say this were found already."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        if unless is not None and isinstance(stopped, Stopped) and unless in str(stopped):
            raise
        number = stopped.signal if isinstance(stopped, Stopped) else next(iter(stopped.args), signal.SIGINT)
        raise Stopped(words, number) from None
