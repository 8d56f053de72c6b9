"""How a network is trained: the settings of Fast AutoAugment, which the paper follows, and shorter ones for CPUs."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from fasteraa.errors import ConfigError, choices_hint

_KINDS = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "str": (str, "text"),
}
PRECISIONS = ("auto", "bfloat16", "float32")
CROPS = ("pad", "resized")


def _setting(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """One training run but for data, policy and seed. SGD with Nesterov momentum, warm-up, then a half cosine."""

    network: str = _setting("wrn-40-2", "The network: wrn-40-2, wrn-28-10, shake-shake-26-2x96d, small, timm:NAME, ...")
    epochs: int = _setting(200, "Passes over the images.")
    batch_size: int = _setting(128, "Images of a step.")
    learning_rate: float = _setting(0.1, "The highest one, reached after the warm-up.")
    weight_decay: float = _setting(2e-4, "Of convolutions and matrices; norms and biases have none.")
    momentum: float = _setting(0.9, "Of Nesterov.")
    warmup: float = _setting(5.0, "Epochs of linear warm-up; at most half of all.")
    clip: float = _setting(5.0, "The largest length of the gradient; 0 for no limit.")
    cutout: int = _setting(16, "Side in pixels of the square cut out of every image after the policy; 0 for none.")
    crop: float = _setting(0.125, "Zero padding of the random crop, as a share of the side (CIFAR: 4 of 32).")
    crop_kind: str = _setting("pad", "pad: crop of the padded image; resized: crop of any size and shape, as ImageNet.")
    flip: bool = _setting(True, "Random horizontal flip; switch it off for text and digits.")
    precision: str = _setting("auto", "auto (bfloat16 where the device calculates in it), bfloat16 or float32.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, (kind, words) = getattr(self, each.name), _KINDS[str(each.type)]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(f"{each.name} must be {words}, got {value!r}")
        for name, least in (("epochs", 1), ("batch_size", 2), ("warmup", 0), ("clip", 0), ("cutout", 0)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ConfigError(
                f"learning_rate must be positive and weight_decay not negative, got {self.learning_rate} and "
                f"{self.weight_decay}"
            )
        for name in ("momentum", "crop"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name, choices in (("precision", PRECISIONS), ("crop_kind", CROPS)):
            if getattr(self, name) not in choices:
                value = getattr(self, name)
                raise ConfigError(f"unknown {name} {value!r}: {choices_hint(value, choices)}")

    @property
    def key(self) -> str:
        """A short hash of all settings."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step (counted from 0)."""
        total = self.epochs * steps_per_epoch
        warm = min(self.warmup * steps_per_epoch, total / 2)
        if step < warm:
            return self.learning_rate * min((step + 1) / warm, 1.0)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


FIELDS = {each.name: each for each in fields(TrainRecipe)}

_WIDE = TrainRecipe(network="wrn-28-10", weight_decay=5e-4)
_SHAKE = TrainRecipe(epochs=1800, learning_rate=0.01, weight_decay=1e-3)
# not clipped there; steps of its learning rate (at 90, 180 and 240 of 270 epochs) are a cosine here, as elsewhere
_IMAGENET = TrainRecipe(
    network="resnet-50", epochs=270, batch_size=256, weight_decay=1e-4, clip=0, cutout=0, crop_kind="resized"
)
# What the paper follows, by the kind of data and the network.
PAPER: dict[str, TrainRecipe] = {
    "cifar/wrn-40-2": TrainRecipe(),
    "cifar/wrn-28-2": TrainRecipe(network="wrn-28-2", weight_decay=5e-4),
    "cifar/wrn-28-10": _WIDE,
    **{f"cifar/shake-shake-26-2x{w}d": replace(_SHAKE, network=f"shake-shake-26-2x{w}d") for w in (32, 96, 112)},
    # Fast AutoAugment flips house numbers, too. It has no file for WRN-40-2 there: as WRN-28-10, weight decay and all
    "svhn/wrn-40-2": TrainRecipe(learning_rate=0.01, weight_decay=5e-4, cutout=20),
    "svhn/wrn-28-10": replace(_WIDE, learning_rate=0.01, cutout=20),
    "imagenet/resnet-50": _IMAGENET,
    "imagenet/resnet-50-200": replace(_IMAGENET, epochs=200),
}


def paper_recipe(name: str) -> TrainRecipe:
    """The recipe of that name in `PAPER`."""
    if name not in PAPER:
        raise ConfigError(f"the paper has no recipe {name!r}: {choices_hint(name, PAPER)}")
    return PAPER[name]


def default_recipe(network: str, side: int) -> TrainRecipe:
    """For anybody's images: the paper's recipe of that network where it has one, else settings that suit its kind."""
    if f"cifar/{network}" in PAPER:
        found = PAPER[f"cifar/{network}"]
        return found if side == 32 else replace(found, cutout=side // 2)
    if network == "small":
        return TrainRecipe(network="small", epochs=40, batch_size=64, weight_decay=5e-4, warmup=2, cutout=0)
    return TrainRecipe(network=network, batch_size=64, learning_rate=0.05, weight_decay=5e-4, cutout=0)
