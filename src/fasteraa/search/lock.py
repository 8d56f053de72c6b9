"""One process at a time in a folder. The system lets go of the lock when a process ends, whatever ended it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fasteraa.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process works in; where there are no locks, nobody is kept out."""
    path = folder / LOCK
    file = _locked(path)
    if file is None:
        yield
        return
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> IO[str] | None:
    """The file with our number in it. Whoever held it before may have removed it while we waited: then another."""
    while fcntl is not None:
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError:  # who may not write here is told so by what is written first
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return _signed(file)
        except BlockingIOError:
            raise _occupied(file, path.parent) from None
        except OSError:  # a file system without locks, or the file vanished between two questions
            file.close()
            return None
        file.close()
    return None


def _signed(file: IO[str]) -> IO[str]:
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _occupied(file: IO[str], folder: Path) -> RunError:
    with file:
        file.seek(0)
        number = file.read()
    who = f" ({number})" if number.isdecimal() else ""
    return RunError(
        f"another process{who} is at work in the folder {str(folder)!r}: wait for it, or choose another (--out)"
    )
