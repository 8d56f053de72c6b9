"""Wide residual networks (Zagoruyko & Komodakis, 2016): the paper's critic (40-2) and test networks (40-2, 28-10)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.nets.backbone import Backbone, conv, initialise


class Block(nn.Module):
    """Norm, ReLU, convolution, twice; where the shape changes, the skip path starts after the first ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(out_channels, out_channels, 3)
        same = in_channels == out_channels and stride == 1
        self.skip = None if same else conv(in_channels, out_channels, 1, stride)

    @property
    def last_of_branch(self) -> nn.Conv2d:
        return self.conv2

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        skip = x if self.skip is None else self.skip(h)
        h = F.relu(self.norm2(self.conv1(h)))
        out: Tensor = skip + self.conv2(self.dropout(h))
        return out


class WideResNet(Backbone):
    """WRN-depth-width as published.

    Fast AutoAugment's copy differs where it does not mean to: biases on convolutions that a norm layer follows, the
    stride on a block's second convolution, and a norm momentum of 0.9 in the wrong direction (its running statistics
    are nearly those of the last batch).
    """

    def __init__(self, depth: int, width: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ConfigError(f"the depth of a wide resnet must be 6n + 4 (10, 16, 22, 28, 40, ...), got {depth}")
        if width < 1:
            raise ConfigError(f"the width of a wide resnet must be at least 1, got {width}")
        per_stage = (depth - 4) // 6
        self.stem = conv(3, 16, 3)
        self.stages = nn.Sequential(
            _stage(16, 16 * width, per_stage, 1, dropout),
            _stage(16 * width, 32 * width, per_stage, 2, dropout),
            _stage(32 * width, 64 * width, per_stage, 2, dropout),
        )
        self.num_features = 64 * width
        self.norm = nn.BatchNorm2d(self.num_features)
        self.classifier = nn.Linear(self.num_features, num_classes)
        initialise(self)

    def feature_map(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.stages(self.stem(x))))


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = Block(in_channels, out_channels, stride, dropout)
    return nn.Sequential(first, *(Block(out_channels, out_channels, 1, dropout) for _ in range(blocks - 1)))
