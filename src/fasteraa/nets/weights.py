"""Weights from a file into a network: tensors alone are read, nothing is executed, what does not fit is named."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.runtime.checkpoint import is_compressed, too_large
from fasteraa.runtime.documents import check_regular, cut, quoted

_NAMED = 4  # tensors that an error names
_OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of torch.save before version 1.6 begin
_PICKLES = 5  # one after the other, in such a file
_WRAPPERS = ("module.", "_orig_mod.")  # before every name of a network in DistributedDataParallel, of a compiled one
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors file, or from one that torch wrote (a state dict, or a checkpoint with one)."""
    try:
        check_regular(path)
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, OSError) else error
        raise ConfigError(f"there are no weights in {str(path)!r}: {why}") from error
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(_file_of_torch(path), map_location="cpu", weights_only=True)
    except ModuleNotFoundError as error:
        raise ConfigError("weights in .safetensors need the package safetensors: pip install safetensors") from error
    except pickle.UnpicklingError as error:  # torch's own words advise to execute it
        if _is_damaged(path):
            raise ConfigError(f"the weights {str(path)!r} could not be read: the file is damaged") from error
        raise ConfigError(
            f"the weights {str(path)!r} hold other objects than tensors, which are not executed: save "
            "network.state_dict() alone"
        ) from error
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ConfigError(f"the weights {str(path)!r} could not be read: {reason}") from error
    for name in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not content or not all(isinstance(each, Tensor) for each in content.values()):
        raise ConfigError(f"{str(path)!r} must hold a state dict: tensors by their names")
    if name := too_large(content, path.stat().st_size):
        raise ConfigError(f"of the weights {str(path)!r}, the tensor {cut(name)} is larger than the file")
    if broken := [name for name, each in content.items() if each.dtype in _FLOATS and not each.isfinite().all()]:
        raise ConfigError(
            f"of the weights {str(path)!r}, the tensor {quoted(broken[0])} holds values that are not finite"
        )
    tensors = {str(name): tensor for name, tensor in content.items()}
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _file_of_torch(path: Path) -> Path | io.BytesIO:
    """In the zip format, or in the old one. ValueError where it is neither."""
    if zipfile.is_zipfile(path):
        if is_compressed(path):  # a small file could become a large one
            raise ValueError("it is compressed, which torch.save never does")
        return path
    with path.open("rb") as file:
        if file.read(len(_OLD)) != _OLD:
            raise ValueError("it is no file of torch.save, or a damaged one")
        file.seek(0)
        return io.BytesIO(file.read())  # a file takes memory for all that is asked for, this for what is there


def _is_damaged(path: Path) -> bool:
    """Whether what should be pickles are none; they are taken apart, and nothing in them is executed."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                pickles = [io.BytesIO(archive.read(n)) for n in archive.namelist() if n.endswith("/data.pkl")]
        else:
            pickles = [io.BytesIO(path.read_bytes())] * _PICKLES
        for stream in pickles:
            for _ in pickletools.genops(stream):
                pass
    except Exception:  # whatever a parser raises on damaged bytes
        return True
    return False


def load_weights(network: nn.Module, tensors: dict[str, Tensor], head: Sequence[str], where: str) -> set[str]:
    """Put them into the network; `head` are prefixes of what may be missing or of another size.

    Returns the names that were not loaded. Anything else that does not fit is an error that names the tensors.
    """
    own = network.state_dict()

    def is_head(name: str) -> bool:
        return any(name == prefix or name.startswith(prefix + ".") for prefix in head)

    other = [name for name in tensors if name in own and tensors[name].shape != own[name].shape and not is_head(name)]
    unknown = [name for name in tensors if name not in own and not is_head(name)]
    missing = [name for name in own if name not in tensors and not is_head(name) and not _is_count(name)]
    for names, what in ((unknown, "are not known to it"), (missing, "are missing"), (other, "have another shape")):
        if names:
            shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
            raise ConfigError(f"{where} are weights of another network: these tensors {what}: {shown}")
    fitting = {name: t for name, t in tensors.items() if name in own and t.shape == own[name].shape}
    network.load_state_dict(fitting, strict=False)
    return set(tensors) - set(fitting)


def _is_count(name: str) -> bool:
    """Of batches that a norm layer has seen: files of other libraries have none, and nothing reads it."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def digest(path: str) -> str:
    """Of the file, so that a copy elsewhere is the same network."""
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise ConfigError(f"there are no weights in {path!r}: no such file") from error
    return _digest(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _digest(path: str, changed: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
