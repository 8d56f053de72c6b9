"""One process at a time in a folder. The system lets go of the lock when a process ends, whatever ended it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fasteraa.errors import RunError

try:
    from filelock import lock_descriptor, unlock_descriptor
except ImportError:  # a filelock before 3.30, where this is used without being installed
    import fcntl

    def lock_descriptor(fd: int, *, blocking: bool = True, poll_interval: float = 0.05) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def unlock_descriptor(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


LOCK = ".lock"
_PATIENCE_S = 3.0  # with forked workers of a process that was killed: they share its lock, and end a moment after it
_EVERY_S = 0.05  # between two tries


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process works in; where there are no locks, nobody is kept out.

    Of a descriptor, not `FileLock`: that one is closed in forked workers, which would work without it. Work that fails
    in a folder without a lock file leaves none.
    """
    file = folder / LOCK
    is_new = not os.path.exists(file)
    try:
        descriptor, locked = _locked(file)
    except OSError:  # who may not write here learns it from what is written first
        yield
        return
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                file.unlink()
        raise
    finally:
        if locked:
            unlock_descriptor(descriptor)  # workers may still have it open
        os.close(descriptor)


def _locked(file: Path) -> tuple[int, bool]:
    """The descriptor of the lock file, and whether it could be locked; not of a file that was removed meanwhile."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locked = _lock(descriptor, file.parent)
            if _is_open(file, descriptor):
                return descriptor, locked
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_open(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, folder: Path) -> bool:
    """False where there are no locks."""
    latest = time.monotonic() + _PATIENCE_S
    try:
        while not lock_descriptor(descriptor, blocking=False):
            if time.monotonic() > latest:
                raise RunError(
                    f"another process is at work in the folder {str(folder)!r}: wait for it, or choose another (--out)"
                )
            time.sleep(_EVERY_S)
    except OSError:
        return False
    return True
