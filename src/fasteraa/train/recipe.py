"""How a network is trained: the settings of Fast AutoAugment, which the paper follows, and shorter ones for CPUs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.nets import choose_network, preprocessing
from fasteraa.nets.timm import PREFIX
from fasteraa.nets.weights import digest
from fasteraa.runtime.device import find_device
from fasteraa.runtime.documents import quoted
from fasteraa.runtime.settings import Settings, setting

PRECISIONS = ("auto", "bfloat16", "float32")
CROPS = ("pad", "resized")
ORDERS = ("policy-first", "crop-first")
OPTIMIZERS = ("sgd", "adamw")


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
    # those below are part of the key only where they are not the default
    pretrained: bool = setting(False, "Begin with timm's own weights of the network (timm:NAME).")
    weights: str = setting("", "Begin with the weights in this file: .safetensors, or a state dict of torch.save.")
    input_size: int = setting(0, "Side of the network's input, cropped from larger images; 0: the images.", least=0)
    order: str = setting(
        "policy-first", "policy-first (Fast AutoAugment), or crop-first: crop, flip, then the policy.", choices=ORDERS
    )
    optimizer: str = setting("sgd", "sgd with Nesterov momentum, or adamw.", choices=OPTIMIZERS)
    body_rate: float = setting(1.0, "Learning rate of all but the head, as a share of the head's.", least=0)
    label_smoothing: float = setting(0.0, "Share of the label that is spread over all classes.", least=0, below=1)
    mixup: float = setting(0.0, "alpha of mixup; 0 for none.", least=0)
    cutmix: float = setting(0.0, "alpha of CutMix; 0 for none. With both, each batch draws one.", least=0)
    ema: float = setting(0.0, "Decay of the mean of weights that is measured in the end; 0 for none.", least=0, below=1)
    accumulate: int = setting(1, "Parts that a batch is passed through the network in, where memory is short.", least=1)
    chunk_size: int = setting(
        1, "Images of a batch that share a sub-policy and its operations (Faster AutoAugment: 16).", least=1
    )
    freeze: bool = setting(False, "Train the head alone (a linear probe): the body keeps its weights.")
    copies: int = setting(
        0,
        "With freeze, on a CPU: augmented copies of an image whose features are computed once; 0: every time.",
        least=0,
    )

    @property
    def key(self) -> str:
        """A short hash of all settings; weights count by what is in their file."""
        defaults = {name: each.default for name, each in self.fields().items()}
        settings = {
            name: value for name, value in asdict(self).items() if name in _ALWAYS_IN_KEY or value != defaults[name]
        }
        if self.weights:
            settings["weights"] = digest(self.weights)
        if self.ema:
            settings["ema"] = [self.ema, "warms up"]  # a mean without a warm-up was another training
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def fine_tunes(self) -> bool:
        """Whether it begins with weights of another task."""
        return self.pretrained or bool(self.weights)

    @property
    def network_words(self) -> str:
        """What is trained, as a sentence names it: of a linear probe the head alone."""
        name = "the small network" if self.network == "small" else self.network
        return f"a linear probe of {name}" if self.freeze else name

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step (counted from 0)."""
        total = self.epochs * steps_per_epoch
        warm = min(self.warmup * steps_per_epoch, total / 2)
        if step < warm:
            return self.learning_rate * min((step + 1) / warm, 1.0)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


_ALWAYS_IN_KEY = {
    "network", "epochs", "batch_size", "learning_rate", "weight_decay", "momentum", "warmup", "clip", "cutout", "crop",
    "crop_kind", "flip", "precision",
}  # fmt: skip
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
    # Fast AutoAugment flips SVHN, too. It has no file for WRN-40-2 there: as WRN-28-10, weight decay and all
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
        recipe = PAPER[f"cifar/{network}"]
        return recipe if side == 32 else replace(recipe, cutout=side // 2)
    if network == "small":
        return TrainRecipe(network="small", epochs=40, batch_size=64, weight_decay=5e-4, warmup=2, cutout=0)
    return TrainRecipe(network=network, batch_size=64, learning_rate=0.05, weight_decay=5e-4, cutout=0)


def finetune_recipe(
    network: str, *, pretrained: bool = False, weights: str = "", side: int | None = None
) -> TrainRecipe:
    """For a network that begins with weights: AdamW, a smaller rate for the body, crop and flip before every policy."""
    if network == "auto":
        raise ConfigError("--pretrained and --weights need the network that they are for: --network timm:NAME")
    check_one_of_both(pretrained, weights)
    input_size = side or (preprocessing(network).side if network.startswith(PREFIX) else 0)
    return TrainRecipe(
        network=network,
        pretrained=pretrained,
        weights=weights,
        input_size=input_size,
        epochs=20,
        batch_size=32,
        optimizer="adamw",
        learning_rate=2e-3,
        body_rate=0.25,
        weight_decay=0.05,
        warmup=2.0,
        clip=5.0,
        label_smoothing=0.1,
        cutout=0,
        crop_kind="resized",
        order="crop-first",
    )


_STEPS = 300  # of a fine-tuning, at least: what results/finetune measured, and the prior of a race
_FEW_IMAGES = 400  # below, batches of at most 16: else an epoch is a few steps
_SMALL_BATCH = 16


def finetuned_on(recipe: TrainRecipe, images: int, given: Container[str] = ()) -> TrainRecipe:
    """The fine-tuning with epochs and batches that suit so many training images, but for settings that were `given`.

    Batches are of one size, and what is left over is dropped from an epoch: of few images hardly any.
    """
    size = recipe.batch_size
    if "batch_size" not in given and images < _FEW_IMAGES:
        size = max(images // math.ceil(images / _SMALL_BATCH), 2)
    steps = max(images // size, 1)
    epochs = recipe.epochs if "epochs" in given else max(recipe.epochs, math.ceil(_STEPS / steps))
    return replace(recipe, batch_size=size, epochs=epochs)


_SGD = {"learning_rate": 0.01, "weight_decay": 1e-4}  # what suits it where a network begins with weights
_ADAMW = {"learning_rate": 1e-3, "weight_decay": 0.05}  # in the place of rates that suit SGD


def with_settings(recipe: TrainRecipe, settings: Mapping[str, Any]) -> TrainRecipe:
    """The recipe with these instead of its own. Another optimiser has rates of its own, unless they are given."""
    check_weights_of(settings, recipe.pretrained, recipe.weights)
    change, rates = (recipe.optimizer, settings.get("optimizer")), {}
    if change == ("sgd", "adamw"):
        rates = _ADAMW
    elif change == ("adamw", "sgd") and recipe.fine_tunes:
        rates = _SGD
    return TrainRecipe.make({**recipe.plain(), **rates, **settings})


def check_weights_of(settings: Mapping[str, Any], pretrained: bool, weights: str) -> None:
    """What a network begins with decides about the whole recipe, so it is no single setting."""
    for name, own, flag in (("pretrained", pretrained, "--pretrained"), ("weights", weights, "--weights FILE")):
        if settings.get(name, own) != own:
            raise ConfigError(
                f"{name} cannot be set alone, got {quoted(settings[name])}: weights need the recipe of a fine-tuning, "
                f"which {flag} brings along"
            )


def check_one_of_both(pretrained: bool, weights: str) -> None:
    """A network begins with timm's own weights or with those of a file."""
    if pretrained and weights:
        raise ConfigError(
            f"a network begins with timm's own weights (--pretrained) or with --weights {weights}: not both"
        )


def check_body(recipe: TrainRecipe) -> TrainRecipe:
    """A frozen body must be one that knows something."""
    if recipe.freeze and not recipe.fine_tunes:
        raise ConfigError(
            "freeze trains the head alone, so the body needs weights of its own: --pretrained, or --weights FILE"
        )
    return recipe


def check_input(recipe: TrainRecipe, size: tuple[int, int], name: str) -> None:
    """The input is cut from the images, so they must be at least as large."""
    if recipe.input_size > min(size):
        side = image_side(recipe)
        raise ConfigError(
            f"the network's input is {recipe.input_size} pixels (input_size), the images of {name} have "
            f"{size[1]}x{size[0]}: load them at {side} (--size {side}, in Python size={side}), or take a smaller "
            "input_size"
        )


def image_side(recipe: TrainRecipe) -> int | None:
    """Of the images that the input is cropped from; None where the images decide."""
    if not recipe.input_size:
        return None
    if recipe.network.startswith(PREFIX):
        return preprocessing(recipe.network).image_side(recipe.input_size)
    return recipe.input_size


def interpolation(recipe: TrainRecipe) -> str:
    """How images are scaled: as the pretrained network expects it."""
    if recipe.fine_tunes and recipe.network.startswith(PREFIX):
        return preprocessing(recipe.network).interpolation
    return "bilinear"


_MOST_EPOCHS = 240


def choose_recipe(images: int, side: int, device: str, network: str = "auto") -> TrainRecipe:
    """That of the network. The small one makes as many steps with few images as with a thousand."""
    recipe = default_recipe(choose_network(network, side, find_device(device).type == "cpu"), side)
    if recipe.network != "small":
        return recipe
    return replace(recipe, epochs=min(max(recipe.epochs, 1000 * recipe.epochs // images), _MOST_EPOCHS))


def epochs_words(count: int) -> str:
    """`1 epoch`, `12 epochs`."""
    return f"{count} epoch{'s' * (count != 1)}"


def check_network(recipe: TrainRecipe, network: str) -> None:
    """A recipe has its network."""
    if network not in ("auto", recipe.network):
        raise ConfigError(f"the recipe is one for {recipe.network}, but the network was to be {network}")
