"""What a long loop runs under: its own seed, sums that repeat, signals that wait for a step to end, memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fasteraa.errors import RunError

DEVICE_SHARE = 0.5
# Generator and flags are those of the process: threads take turns, or one would put back what the other has set.
_DRAWING, _REPEATING = threading.RLock(), threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights from the seed, without disturbing the caller's generator."""
    with _DRAWING:
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(state)


@contextmanager
def repeatable(device: torch.device, on_gpu: bool = False) -> Iterator[None]:
    """On a CPU, sums in a fixed order: else the gradient of an indexed tensor of 32,768 values depends on the threads.

    On a GPU this would end in an error, because `grid_sample` has no backward with a fixed order there; `on_gpu` asks
    cuDNN alone, and the soft policy's kernels have a fixed order of their own. Other threads wait for their turn.
    """
    with _REPEATING:
        yield from _repeatable(device, on_gpu)


def _repeatable(device: torch.device, on_gpu: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn.deterministic
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    if device.type == "cpu":
        torch.set_deterministic_debug_mode("error")  # what use_deterministic_algorithms does, without its imports
        memory.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory
    elif on_gpu:
        torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filling
        torch.backends.cudnn.deterministic = cudnn


def home_of(images: Tensor, device: torch.device) -> torch.device:
    """Where uint8 images live: on the device while they need at most a part of its free memory, else in main memory."""
    if device.type != "cuda" or images.numel() <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
        return device
    return torch.device("cpu")


@contextmanager
def signals() -> Iterator[list[signal.Signals]]:
    """Note SIGINT and SIGTERM instead of dying in the middle of a step; a second one gets through."""
    caught: list[signal.Signals] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number))
        signal.signal(number, previous[number])

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.getsignal(number)
            signal.signal(number, note)
    except ValueError:  # not the main thread: its owner handles signals
        pass
    try:
        yield caught
    finally:
        for each, handler in previous.items():
            if signal.getsignal(each) is note:
                signal.signal(each, handler)


@contextmanager
def memory_advice(
    advice: str = "lower --batch-size, --size or the backbone, or add --resume to go on from the last checkpoint with "
    "the memory of another program freed",
) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        what = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "the machine"
        raise RunError(f"{what} ran out of memory: {advice}") from error
