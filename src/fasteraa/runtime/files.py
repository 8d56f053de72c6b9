"""Files that are whole or not there: everything the package writes goes through `replacing`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fasteraa.errors import FasterAAError, RunError, reason


@contextmanager
def replacing(path: Path, error: type[FasterAAError] = RunError) -> Iterator[Path]:
    """A partial file to write to. It takes the place of `path` once it is whole and on disk; else `path` stays."""
    path = Path(path)
    mine = f".{path.name[:100]}.{os.getpid()}-{threading.get_ident()}.partial{path.suffix}"
    partial = path.with_name(mine)
    with explain_os_error(path, error):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: str | bytes, error: type[FasterAAError] = RunError) -> None:
    """All of it or nothing."""
    with replacing(path, error) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def explain_os_error(path: Path, error: type[FasterAAError] = RunError) -> Iterator[None]:
    """A full disk or a folder that cannot be written becomes one sentence that names the file."""
    try:
        yield
    except OSError as cause:
        raise error(f"{str(path)!r} could not be written: {reason(cause)}") from cause


def as_file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:60]
