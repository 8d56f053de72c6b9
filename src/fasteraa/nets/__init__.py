"""Networks by name: the paper's, a small one for CPUs, and any of timm's.

>>> net = nets.build("wrn-40-2", num_classes=10)
>>> critic = nets.Critic(nets.build("wrn-40-2", 10), 10)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.nets.backbone import Backbone
from fasteraa.nets.critic import Critic, PixelCritic
from fasteraa.nets.norm import freeze_statistics, frozen_statistics, make_norm_free, make_primitive
from fasteraa.nets.resnet import resnet_50
from fasteraa.nets.shake_shake import ShakeShake
from fasteraa.nets.small import Small
from fasteraa.nets.timm import PREFIX, Preprocessing, TimmBackbone, preprocessing
from fasteraa.nets.weights import load_weights, read_weights
from fasteraa.nets.wide_resnet import WideResNet

__all__ = [
    "NAMES",
    "NORMS",
    "Backbone",
    "Critic",
    "PixelCritic",
    "Preprocessing",
    "build",
    "choose_network",
    "frozen_statistics",
    "make_norm_free",
    "make_primitive",
    "preprocessing",
]

# Networks with a name of their own.
NAMES = (
    "wrn-40-2",
    "wrn-28-10",
    "wrn-28-2",
    "shake-shake-26-2x32d",
    "shake-shake-26-2x96d",
    "shake-shake-26-2x112d",
    "resnet-50",
    "small",
)
NORMS = ("fused", "primitive", "frozen", "none")  # kinds of norm layers that `build` knows

# Pattern of a name, the smallest image side the net can pool down, and how to build it from the pattern's numbers.
_FAMILIES: tuple[tuple[str, int, Callable[..., Backbone]], ...] = (
    (r"wrn-(\d+)-(\d+)", 4, lambda classes, depth, width: WideResNet(depth, width, classes)),
    (r"shake-shake-(\d+)-2x(\d+)d", 4, lambda classes, depth, width: ShakeShake(depth, width, classes)),
    (r"resnet-50", 32, lambda classes: resnet_50(classes)),
    (r"small", 8, lambda classes: Small(classes)),
)


def build(
    name: str,
    num_classes: int,
    in_size: int | None = None,
    *,
    norm: str = "fused",
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> Backbone:
    """The network `name` with fresh weights; names beyond `NAMES`: any 'wrn-D-W', 'shake-shake-D-2xWd', 'timm:NAME'.

    `in_size` is the image side: checked where a net has a least one, needed by transformers. `norm="primitive"` gives
    norm layers whose jvp can be differentiated (what `Critic` makes of any net), "fused" the fast ones, "frozen" those
    that keep the statistics of their weights, "none" takes batch statistics out. `pretrained` takes timm's own weights,
    `weights` those of a file; both get a new head.
    """
    if num_classes < 1:
        raise ConfigError(f"num_classes must be at least 1, got {num_classes}")
    if norm not in NORMS:
        raise ConfigError(f"norm must be a known kind, got {norm!r}; {choices_hint(norm, NORMS)}")
    if (pretrained or weights) and norm == "none":
        raise ConfigError("pretrained weights need their norm layers: norm must not be 'none'")
    net = _named(name, num_classes, in_size, pretrained, Path(weights) if weights else None)
    if norm == "none":
        return make_norm_free(net)
    if norm == "frozen":
        net = freeze_statistics(net)
    return net if norm == "fused" else make_primitive(net)


def _named(name: str, num_classes: int, in_size: int | None, pretrained: bool, weights: Path | None) -> Backbone:
    if name.startswith(PREFIX):
        return TimmBackbone(name.removeprefix(PREFIX), num_classes, in_size, pretrained=pretrained, weights=weights)
    if pretrained:
        raise ConfigError(
            f"only timm's networks come with weights (timm:NAME), got {name!r}; or give a file (--weights)"
        )
    for pattern, least, make in _FAMILIES:
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        if in_size is not None and in_size < least:
            raise ConfigError(
                f"the image side must be at least {least} for network {name!r}, got {in_size}: take a larger size "
                "(--size)"
            )
        net = make(num_classes, *map(int, match.groups()))
        if weights is not None:
            load_weights(net, read_weights(weights), ("classifier",), f"{str(weights)!r}")
        return net
    raise ConfigError(
        f"a network must have a known name, got {name!r}; {choices_hint(name, NAMES)}, any 'wrn-D-W', 'timm:NAME'"
    )


def choose_network(name: str, side: int, on_cpu: bool) -> str:
    """`auto`: the paper's WRN-40-2, ResNet-50 for images above 64 pixels, and a small network on a CPU."""
    if name != "auto":
        return name
    if on_cpu:
        return "small"
    return "wrn-40-2" if side <= 64 else "resnet-50"
