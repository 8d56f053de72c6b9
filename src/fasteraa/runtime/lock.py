"""One process at a time in a folder. The system lets go of the lock when a process ends, whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fasteraa.errors import RunError

LOCK = ".lock"


@contextmanager
def exclusive(folder: Path, patience: float = 0) -> Iterator[None]:
    """Refuse a folder that another process works in; where there are no locks, nobody is kept out.

    `patience` (seconds) is for those whose forked workers share the lock, and end a moment after them.
    """
    lock = FileLock(folder / LOCK, timeout=patience)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(
            f"another process is at work in the folder {str(folder)!r}: wait for it, or choose another (--out)"
        ) from None
    except (OSError, NotImplementedError):  # who may not write here learns it from what is written first
        yield
        return
    try:
        yield
    finally:
        lock.release()
