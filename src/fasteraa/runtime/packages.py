"""Other packages: whether torchvision fits torch, and a hub that does not talk.

A torchvision that does not fit would end a search after its last epoch, with a long traceback.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fasteraa.errors import ConfigError
from fasteraa.runtime.documents import cut

_LIBRARIES = ("_C*.so", "_C*.pyd", "_C*.dll")


def check_torchvision() -> None:
    """In milliseconds: its compiled part is loaded, which the import of it all, a matter of seconds, begins with."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        raise ConfigError("torchvision is not installed: see https://pytorch.org for the one that fits your torch")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    libraries = [file for folder in folders for pattern in _LIBRARIES for file in sorted(folder.glob(pattern))]
    if not libraries:
        raise _misfit("its compiled part, torchvision/_C, is missing")
    for library in libraries:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            built = int(torch.ops.torchvision._cuda_version())  # such as 13020, or -1
        except (OSError, RuntimeError, AttributeError, ImportError) as error:
            raise _misfit(error) from error
        mine = torch.version.cuda
        if built > 0 and mine is not None and str(built // 1000) != mine.split(".")[0]:
            raise _misfit(f"one is built for CUDA {mine}, the other for {built // 1000}")


def torchvision_trouble(error: BaseException) -> ConfigError | None:
    """An error of the import of torchvision in one sentence; None for any other."""
    return _misfit(error) if _is_of_torchvision(error) else None


def _is_of_torchvision(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").split(".")[0] == "torchvision":
            return True
        trace = trace.tb_next
    return isinstance(error, ImportError) and (error.name or "").split(".")[0] == "torchvision"


def _misfit(error: object) -> ConfigError:
    versions = " and ".join(f"{name} {_version(name)}" for name in ("torch", "torchvision"))
    cause = error.__cause__ if isinstance(error, BaseException) and error.__cause__ else error
    why = str(cause).strip().splitlines() or [type(cause).__name__]
    return ConfigError(
        f"{versions} do not fit each other ({cut(why[0], 150)}): install a pair that does, see "
        "https://github.com/pytorch/vision#installation"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Without the lines of huggingface_hub about each of its tries: what it raises in the end says it all."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
