"""Training of wide networks on GPUs of NVIDIA's Hopper generation, in kernels of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from fasteraa.nets.wide_resnet import Block, WideResNet

WIDTH = 160  # channels are multiples of it
_TRIED = ("3.6.",)  # versions of Triton, whose language for them is not settled, that they were run with


def fused(network: nn.Module, shape: torch.Size, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """What to call instead of a network that trains in bfloat16 on images of this shape; None where it would not do."""
    if not isinstance(network, WideResNet) or network.num_features % (4 * WIDTH) or not _fits(shape):
        return None
    if any(block.dropout.p for block in network.modules() if isinstance(block, Block)) or not usable(device):
        return None
    from fasteraa.nets.hopper.network import Fused

    return Fused(network)


def _fits(shape: torch.Size) -> bool:
    """Whether a tile's 256 pixels are whole rows of an image, or whole images, in all three stages."""
    count, _, height, width = shape
    return width in (32, 64) and height in (32, 64) and count % 4 == 0


@lru_cache
def usable(device: torch.device) -> bool:
    """Whether the kernels compile for this GPU and calculate what plain torch does; that takes seconds, once."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        import triton

        if not triton.__version__.startswith(_TRIED):
            return False
        from fasteraa.nets.hopper.network import agrees

        return agrees(device)
    except Exception:  # of a Triton that has changed its experimental language, among others
        return False
