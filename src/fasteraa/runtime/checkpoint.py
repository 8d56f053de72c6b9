"""Checkpoints: tensors and plain values in one file, and behind them a digest over all of it.

The file is one of torch's own, so that others can read it; the digest follows where readers of zip files do not look.
Nothing is used before the digest was found right, and nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fasteraa.errors import RunError, reason
from fasteraa.runtime.documents import check_regular, cut
from fasteraa.runtime.files import replacing

_MARK = b"\nfasteraa sha256 "
_TAIL = len(_MARK) + 64
_BLOCK = 1 << 20


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """All of it or nothing; made in memory first, so that a full disk is reported as one."""
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getbuffer()
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(content)
        file.write(_MARK + hashlib.sha256(content).hexdigest().encode())


def load_checkpoint(
    path: Path, device: Any, fields: Mapping[str, type | tuple[type, ...]], *, mmap: bool = False, sealed: bool = True
) -> dict[str, Any] | None:
    """What was saved, with the `fields` it must have; None if there is no file.

    `mmap` leaves tensors in the file until they are used. Files of version 0.1 are not `sealed` by a digest.
    """
    try:
        if not path.exists():
            return None
        check_regular(path)
        with path.open("rb") as file:
            damage = _damage(file, sealed)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise RunError(f"the checkpoint {str(path)!r} could not be read: {why}") from error
    if damage:
        raise _unusable(path, damage)
    state = _load(path, device, mmap)
    if not isinstance(state, dict):
        raise _unusable(path, f"it holds a {type(state).__name__}")
    for name, kind in fields.items():
        if name not in state:
            raise _unusable(path, f"{name!r} is missing")
        if not isinstance(state[name], kind) or (isinstance(state[name], bool) and kind is not bool):
            raise _unusable(path, f"{name!r} is a {type(state[name]).__name__}")
    if name := too_large(state, path.stat().st_size):
        raise _unusable(path, f"{name} is larger than the file")
    return state


def _unusable(path: Path, why: object) -> RunError:
    return RunError(f"the checkpoint {str(path)!r} is damaged ({cut(why)}): remove it to start again")


def misfit(path: Path, why: object) -> RunError:
    """For a checkpoint that is whole, and of another run."""
    return RunError(f"the checkpoint {str(path)!r} is of another run ({cut(why)}): remove it to start again")


def _damage(file: BinaryIO, sealed: bool) -> str:
    """What is wrong with the bytes; empty if nothing is."""
    size = file.seek(0, io.SEEK_END)
    if size < _TAIL:
        return "it is too short"
    file.seek(size - _TAIL)
    tail = file.read()
    if tail.startswith(_MARK):
        if _digest(file, size - _TAIL) != tail[len(_MARK) :]:
            return "its content does not match its digest"
    elif sealed:
        return "it has no digest at its end"
    file.seek(0)
    try:
        if is_compressed(file):  # a small file could become a large one
            return "it is compressed"
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        return str(error) or type(error).__name__
    return ""


def is_compressed(file: Path | BinaryIO) -> bool:
    """Of a zip file, whether anything in it is."""
    with zipfile.ZipFile(file) as archive:
        return any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())


def _digest(file: BinaryIO, count: int) -> bytes:
    sha = hashlib.sha256()
    file.seek(0)
    while count > 0 and (block := file.read(min(_BLOCK, count))):
        sha.update(block)
        count -= len(block)
    return sha.hexdigest().encode()


def _load(path: Path, device: Any, mmap: bool) -> Any:
    import torch

    try:
        if mmap and str(path).isprintable():  # torch maps by a name, and takes none that is not UTF-8
            return torch.load(path, map_location=device, weights_only=True, mmap=True)
        with path.open("rb") as file:
            return torch.load(file, map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch's own words are many, or a bare number
        lines = str(error).splitlines()
        raise _unusable(path, lines[0] if lines else type(error).__name__) from error


def too_large(state: Mapping[str, Any], size: int) -> str:
    """The first tensor that pretends to be larger than its file: one value can stand for any number of them."""
    from torch import Tensor

    left: list[tuple[str, Any]] = list(state.items())
    seen: set[int] = set()
    while left:
        name, value = left.pop()
        if isinstance(value, Tensor):
            if value.numel() * value.element_size() > size:
                return repr(name)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            inner = value.values() if isinstance(value, dict) else value
            left += [(name, each) for each in inner]
    return ""
