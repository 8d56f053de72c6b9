"""What every network here is: pooled features and one linear classifier on top of them."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """`features(x)` gives (B, num_features); `classifier` turns them into class logits.

    A subclass sets `num_features` and `classifier` and defines `feature_map`, whose mean the features are; the critic
    puts its own head beside.
    """

    num_features: int
    classifier: nn.Linear

    def feature_map(self, x: Tensor) -> Tensor:
        """(B, num_features, h, w): the last features that still have a place."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (B, num_features) of normalised images (B, 3, H, W)."""
        return self.feature_map(x).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the side (divided by the stride); no bias, since a norm layer follows."""
    return nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=False)


def initialise(module: nn.Module) -> None:
    """He et al. by fan-out for convolutions, zero biases: what the Torch7 sources of WRN and Shake-Shake do.

    Fast AutoAugment's copies keep it for Shake-Shake, while its WRN has its initialiser commented out.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
