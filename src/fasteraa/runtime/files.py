"""Files that are whole or not there: everything the package writes goes through `replacing` or `append_line`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fasteraa.errors import FasterAAError, RunError, reason
from fasteraa.runtime.documents import check_regular


@contextmanager
def replacing(path: Path, error: type[FasterAAError] = RunError, partial: Path | None = None) -> Iterator[Path]:
    """A partial file to write to. It takes the place of `path` once it is whole and on disk; else `path` stays.

    A link stays one, and its target is replaced; a file keeps its permissions. What is there and no file is refused.
    Each process has a partial file of its own, unless one is named: what a kill leaves of that one is written over by
    the next try.
    """
    path = Path(path)
    with explain_os_error(path, error):
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        mode = _permissions(path, error)
        mine = f".{target.name[:100]}.{os.getpid()}-{threading.get_ident()}.partial{path.suffix}"
        partial = partial or target.with_name(mine)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            if mode is not None:
                partial.chmod(mode)
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _permissions(path: Path, error: type[FasterAAError]) -> int | None:
    """Of the file that is there, perhaps through links; None if there is none."""
    try:
        check_regular(path)
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
    except ValueError as cause:
        raise error(f"{str(path)!r} could not be written: {cause}") from cause


def write_atomic(path: Path, content: str | bytes, error: type[FasterAAError] = RunError) -> None:
    """All of it or nothing."""
    with replacing(path, error) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def append_line(path: Path, row: Any, error: type[FasterAAError] = RunError) -> None:
    """One more line of JSON; a reader may find one that a crash cut off."""
    with explain_os_error(path, error):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@contextmanager
def explain_os_error(path: Path, error: type[FasterAAError] = RunError) -> Iterator[None]:
    """A full disk or a folder that cannot be written becomes one sentence that names the file."""
    try:
        yield
    except OSError as cause:
        raise error(f"{str(path)!r} could not be written: {reason(cause)}") from cause


_SEAL = "sha256"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """With a digest of the rest, so that a value that changes in the file is noticed."""
    return {**content, _SEAL: _digest(content)}


def unsealed(content: Any, needed: bool = False) -> dict[str, Any]:
    """Without the digest; ValueError if it is wrong, or no object. Without `needed` there may be none."""
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")
    rest = {name: value for name, value in content.items() if name != _SEAL}
    if (needed or _SEAL in content) and content.get(_SEAL) != _digest(rest):
        raise ValueError("its content does not match its digest")
    return rest


def _digest(content: Mapping[str, Any]) -> str:
    """Of what will be read: numbers that are keys become text."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()


def as_file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:60]
