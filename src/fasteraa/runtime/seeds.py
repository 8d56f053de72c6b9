"""Randomness and arithmetic that repeat: initial weights from a seed, sums in a fixed order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
def deterministic(device: torch.device, on_gpu: bool = False) -> Iterator[None]:
    """On a CPU, sums in a fixed order: else the gradient of an indexed tensor of 32,768 values depends on the threads.

    On a GPU this would end in an error, because `grid_sample` has no backward with a fixed order there; `on_gpu` asks
    cuDNN alone, and the soft policy's kernels have a fixed order of their own. Other threads wait for their turn.
    """
    with _REPEATING:
        yield from _deterministic(device, on_gpu)


def _deterministic(device: torch.device, on_gpu: bool) -> Iterator[None]:
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
