"""CUDA graphs: the kernels of a function captured once, then replayed with one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Generator

T = TypeVar("T")


def capture(
    function: Callable[[], T],
    device: torch.device,
    *,
    warm_ups: int = 1,
    generator: Generator | None = None,
    other_threads: bool = False,
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph of one call, and what that call returned: every replay writes there.

    It is called `warm_ups` times before, so that libraries choose their kernels and allocate what they keep. Random
    numbers come from `generator`, or from the device's own, which every graph knows. `other_threads`, such as a
    loader's, may use the device meanwhile; where ranks have joined each other, NCCL has some. Whoever wants the state
    of before must put it back.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(warm_ups):
                function()
        current.wait_stream(stream)
        gc.collect()  # what is left of the warm-up belongs to another stream
        if generator is not None:
            graph.register_generator_state(generator)
        mode = "thread_local" if other_threads or _has_ranks() else "global"
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            result = function()
        current.wait_stream(stream)
    return graph, result


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
