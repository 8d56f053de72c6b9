"""The smallest kernel there is, to find out whether kernels can be compiled and run at all."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _double(numbers, COUNT: tl.constexpr):
    place = numbers + tl.arange(0, COUNT)
    tl.store(place, 2 * tl.load(place))


def probe(device: torch.device) -> bool:
    numbers = torch.arange(16, dtype=torch.float32, device=device)
    with torch.cuda.device(device):
        _double[(1,)](numbers, COUNT=16)
    return numbers.tolist() == [2.0 * n for n in range(16)]
