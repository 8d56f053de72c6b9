"""Signals that wait for a step to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def defer_signals() -> Iterator[list[signal.Signals]]:
    """Note SIGINT and SIGTERM instead of dying in the middle of a step; a second one gets through."""
    caught: list[signal.Signals] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number))
        signal.signal(number, previous[number])

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.getsignal(number)
            signal.signal(number, note)
    except ValueError:  # not the main thread: its owner handles signals
        pass
    try:
        yield caught
    finally:
        for each, handler in previous.items():
            if signal.getsignal(each) is note:
                signal.signal(each, handler)
