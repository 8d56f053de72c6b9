"""Shake-Shake 26 2x{32,96,112}d (Gastaldi, 2017), shaken forwards and backwards, image by image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.nets.backbone import Backbone, conv, initialise


class _ShakeFunction(torch.autograd.Function):
    """Mixes by alpha forwards and by beta backwards: a deliberate mismatch, so no derivative of anything."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(beta)
        return torch.lerp(b, a, alpha)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (beta,), (grad,) = ctx.saved_tensors, grads
        return beta * grad, (1 - beta) * grad, None, None


class Shake(nn.Module):
    """Mix two branches: alpha, beta ~ U(0, 1) per image in training, one half each otherwise.

    Beta is drawn with alpha, from the device's own generator: no host sync, and a replayed forward shakes alike.
    With `noisy` off, training too mixes by halves; a critic needs that, since its score must be one function of x.
    """

    noisy = True

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if not (self.training and self.noisy):
            return (a + b) / 2
        alpha, beta = torch.rand(2, len(a), 1, 1, 1, dtype=a.dtype, device=a.device)
        mixed: Tensor = _ShakeFunction.apply(a, b, alpha, beta)
        return mixed


class Shortcut(nn.Module):
    """Two 1x1 convolutions, the second on the image shifted by a pixel, so that striding drops fewer pixels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.straight = conv(in_channels, out_channels // 2, 1)
        self.shifted = conv(in_channels, out_channels // 2, 1)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        h, s = F.relu(x), self.stride
        straight = self.straight(h[:, :, ::s, ::s])
        shifted = self.shifted(F.pad(h, (0, 1, 0, 1))[:, :, 1::s, 1::s])
        out: Tensor = self.norm(torch.cat((straight, shifted), dim=1))
        return out


class Block(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.branch1 = _branch(in_channels, out_channels, stride)
        self.branch2 = _branch(in_channels, out_channels, stride)
        self.shake = Shake()
        same = in_channels == out_channels
        self.skip = nn.Identity() if same else Shortcut(in_channels, out_channels, stride)

    @property
    def last_of_branch(self) -> tuple[nn.Module, ...]:
        return self.branch1[-1], self.branch2[-1]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.shake(self.branch1(x), self.branch2(x))
        return out


class ShakeShake(Backbone):
    """Shake-Shake depth 2 x base `width`, as the Torch7 source has it.

    Fast AutoAugment's copy has a bias in place of the norm layer after the first convolution.
    """

    def __init__(self, depth: int, width: int, num_classes: int) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(f"the depth of a shake-shake net must be 6n + 2 (8, 14, 20, 26, ...), got {depth}")
        if width < 2 or width % 2:
            raise ConfigError(f"the width of a shake-shake net must be even and at least 2, got {width}")
        per_stage = (depth - 2) // 6
        self.stem = nn.Sequential(conv(3, 16, 3), nn.BatchNorm2d(16))
        self.stages = nn.Sequential(
            _stage(16, width, per_stage, 1),
            _stage(width, 2 * width, per_stage, 2),
            _stage(2 * width, 4 * width, per_stage, 2),
        )
        self.num_features = 4 * width
        self.classifier = nn.Linear(self.num_features, num_classes)
        initialise(self)

    def feature_map(self, x: Tensor) -> Tensor:
        return F.relu(self.stages(self.stem(x)))


def _branch(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),
        conv(in_channels, out_channels, 3, stride),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        conv(out_channels, out_channels, 3),
        nn.BatchNorm2d(out_channels),
    )


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = Block(in_channels, out_channels, stride)
    return nn.Sequential(first, *(Block(out_channels, out_channels, 1) for _ in range(blocks - 1)))
