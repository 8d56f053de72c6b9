"""Sets that are too large to be read before a run: what is held of them, and a word now and then while they are listed.

Listing needs names alone. Pixels of all images are read only by who asks for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from fasteraa.data.source import Listing

LARGE = 100_000  # images in files: to read more would take longer than a search
HELD = 10_000  # of them, where nobody says how many
_PER_CLASS = 4  # at least: two folds need two images each
_EVERY_S = 5.0
_CHUNK = 10_000
T = TypeVar("T")
Say = Callable[[str], None]


def subset_to_hold(listing: Listing, subset: int | None, most: int | None, fits: bool = True) -> int | None:
    """`subset`; where it is left out and images in files are too many or do not fit, `most` of them (None: all)."""
    if subset is not None or most is None or not listing.decodes or (fits and len(listing) <= LARGE):
        return subset
    held = max(most, _PER_CLASS * int((listing.counts() > 0).sum()))
    return held if held < len(listing) else subset


def tell_subset(name: str, what: str, count: int, of: int, seed: int) -> None:
    """Which images were chosen, and how to ask for others."""
    tell(
        f"{name} has {of:,} {what}: {count:,} of them are used and held in memory, drawn by class with seed {seed}; "
        f"--subset takes another number (--subset {of} takes all)"
    )


# --- a word now and then ---------------------------------------------------------------------------------------------


class _Listener:
    def __init__(self, say: Say):
        self.say, self.said = say, time.monotonic()

    def now_and_then(self, text: str) -> None:
        if time.monotonic() - self.said >= _EVERY_S:
            self.said = time.monotonic()
            self.say(text)


_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reporting(say: Say) -> Iterator[None]:
    """What reads in it reports how far it is, every few seconds."""
    token = _listener.set(_Listener(say))
    try:
        yield
    finally:
        _listener.reset(token)


def is_heard() -> bool:
    """Whether somebody listens to what is reported."""
    return _listener.get() is not None


def tell(text: str) -> None:
    """At once."""
    if (listener := _listener.get()) is not None:
        listener.say(text)


def tell_progress(done: int, total: int) -> None:
    """Of decoding."""
    if (listener := _listener.get()) is not None:
        listener.now_and_then(f"reading images: {done:,} of {total:,}")


def counted(items: Iterable[T], what: str, before: int = 0) -> Iterator[T]:
    """The items; while there come more, how many there were."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    for number, item in enumerate(items, before + 1):
        if number % _CHUNK == 0:
            listener.now_and_then(f"listing: {number:,} {what}")
        yield item
