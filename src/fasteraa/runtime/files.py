"""Files that are whole or not there: everything the package writes goes through `replacing`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
