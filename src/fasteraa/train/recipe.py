"""How a network is trained: the settings of Fast AutoAugment, which the paper follows, and shorter ones for CPUs."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.nets import choose_network
from fasteraa.runtime.device import find_device
from fasteraa.runtime.settings import Settings, setting

PRECISIONS = ("auto", "bfloat16", "float32")
CROPS = ("pad", "resized")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe(Settings):
    """One training run but for data, policy and seed. SGD with Nesterov momentum, warm-up, then a half cosine."""

    network: str = setting("wrn-40-2", "The network: wrn-40-2, wrn-28-10, shake-shake-26-2x96d, small, timm:NAME, ...")
    epochs: int = setting(200, "Passes over the images.", least=1)
    batch_size: int = setting(128, "Images of a step.", least=2)
    learning_rate: float = setting(0.1, "The highest one, reached after the warm-up.", above=0)
    weight_decay: float = setting(2e-4, "Of convolutions and matrices; norms and biases have none.", least=0)
    momentum: float = setting(0.9, "Of Nesterov.", least=0, below=1)
    warmup: float = setting(5.0, "Epochs of linear warm-up; at most half of all.", least=0)
    clip: float = setting(5.0, "The largest length of the gradient; 0 for no limit.", least=0)
    cutout: int = setting(
        16, "Side in pixels of the square cut out of every image after the policy; 0 for none.", least=0
    )
    crop: float = setting(
        0.125, "Zero padding of the random crop, as a share of the side (CIFAR: 4 of 32).", least=0, below=1
    )
    crop_kind: str = setting(
        "pad", "pad: crop of the padded image; resized: crop of any size and shape, as ImageNet.", choices=CROPS
    )
    flip: bool = setting(True, "Random horizontal flip; switch it off for text and digits.")
    precision: str = setting(
        "auto", "auto (bfloat16 where the device calculates in it), bfloat16 or float32.", choices=PRECISIONS
    )

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


_MOST_EPOCHS = 240


def choose_recipe(images: int, side: int, device: str, network: str = "auto") -> TrainRecipe:
    """That of the network. The small one makes as many steps with few images as with a thousand."""
    recipe = default_recipe(choose_network(network, side, find_device(device).type == "cpu"), side)
    if recipe.network != "small":
        return recipe
    return replace(recipe, epochs=min(max(recipe.epochs, 1000 * recipe.epochs // images), _MOST_EPOCHS))


def check_network(recipe: TrainRecipe, network: str) -> None:
    """A recipe has its network."""
    if network not in ("auto", recipe.network):
        raise ConfigError(f"the recipe is one for {recipe.network}, but the network was to be {network}")
