"""Which device works, which memory holds the images, and what to do when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fasteraa.errors import ConfigError, RunError

DEVICE_SHARE = 0.5


def find_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}; choices: auto, cpu, cuda, cuda:0, ...") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; choices: auto, cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for, but torch sees no CUDA device; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def find_devices(name: str, several: str | None = None) -> list[torch.device]:
    """Where trainings run: on `several` that are named (0,1 are GPUs), for `auto` on all GPUs, else on one."""
    if several is not None:
        words = [word.strip() for word in several.split(",")]
        if name != "auto":
            raise ConfigError(f"--devices {several} and --device {name} name devices twice: give one of them")
        if not all(words):
            raise ConfigError(f"--devices takes names with commas between, such as 0,1; got {several!r}")
        devices = [find_device(f"cuda:{word}" if word.isdecimal() else word) for word in words]
        gpus = [device.index or 0 for device in devices if device.type == "cuda"]
        if len(set(gpus)) < len(gpus):
            raise ConfigError(f"--devices {several} names a GPU twice: name it once, --jobs says how many share it")
        return devices
    if name in ("auto", "cuda") and find_device(name).type == "cuda":
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [find_device(name)]


def first_device(name: str, several: str | None) -> str:
    """Where what one device does is done."""
    return name if several is None else str(find_devices(name, several)[0])


def gpu_count() -> int:
    """That torch sees."""
    return torch.cuda.device_count()


def device_name(name: str) -> str:
    """As people call it: the GPU's model, or CPU."""
    device = find_device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def image_device(images: Tensor, device: torch.device) -> torch.device:
    """Where uint8 images live: on the device while they need at most a part of its free memory, else in main memory."""
    if device.type != "cuda" or images.device == device:
        return device
    if images.numel() <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
        return device
    return torch.device("cpu")


@contextmanager
def explain_out_of_memory(
    advice: str = "lower --batch-size, --size or the critic, or add --resume to continue from the last checkpoint with "
    "the memory of another program freed",
) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        what = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "the machine"
        raise RunError(f"{what} ran out of memory: {advice}") from error
