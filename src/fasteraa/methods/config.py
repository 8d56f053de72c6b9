"""The settings of a search; a TOML file and the command line override them by name.

The defaults are ours. `paper_settings` are the paper's, by the name `--preset paper`: they differ in `objective`,
`critic`, `critic_norm`, `chunk_size`, `spans` and, where images are few, `epochs`. docs/how-it-works.md says why.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fasteraa.errors import ConfigError, FasterAAError, RunError
from fasteraa.ops import Span, check_span, find, select
from fasteraa.policy.policy import check_colour
from fasteraa.runtime.documents import quoted, read_toml
from fasteraa.runtime.settings import Settings, setting

NORMS = ("none", "batch")
PRECISIONS = ("auto", "bf16", "tf32", "float32")
OBJECTIVES = ("paper", "diverse")
LEAST_BATCH = 4
PRETRAINED = "pretrained"  # the weights of a critic that are timm's own


MOST_STAGES = 2000  # of all sub-policies: what a search and a file can hold with ease


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings):
    """What a search does. `about` of each field is its help on the command line."""

    seed: int = setting(0, "Of everything random: the subset, the start, the order, all draws.", least=0, below=1 << 63)
    epochs: int | None = setting(
        None,
        "Epochs of the gradient search (default: 20 as in the paper, at least 300 steps). Your own: --train-epochs.",
        least=1,
        most=1_000_000,
    )
    batch_size: int = setting(
        128,
        "Batch size of the gradient search: half of the images are augmented, half stay as they are.",
        least=LEAST_BATCH,
    )
    subset: int | None = setting(None, "Search on so many images, evenly over the classes (default: all).", least=2)
    held_out: float = setting(
        0.0,
        "Keep this share of the training images out of the search, for fasteraa compare --held-out.",
        least=0,
        below=1,
    )
    classes: int | None = setting(None, "Search on so many of the classes, chosen by the seed (default: all).", least=1)
    size: int | None = setting(
        None, "Image side during the search (default: by the images; on a CPU at most 32).", least=8, most=4096
    )
    ops: tuple[str, ...] | None = setting(None, "The operations to search over (default: all).")
    spans: Mapping[str, Span] = field(default_factory=dict, metadata={"about": "Operations with another span."})
    sub_policies: int = setting(10, "L, the number of sub-policies.", least=1, most=1000)
    operation_count: int = setting(2, "K, the number of stages of a sub-policy.", least=1, most=100)
    chunk_size: int = setting(1, "Images that share a draw of the sub-policy (the paper: 8, on ImageNet 16).", least=1)
    choice_temperature: float = setting(0.05, "eta of the softmax over operations.", above=0)
    gate_temperature: float = setting(0.05, "lambda of the relaxed Bernoulli gates.", above=0)
    critic: str = setting("auto", "The critic's network: auto, wrn-40-2, resnet-50, small, or timm:NAME.")
    critic_weights: str | None = setting(
        None,
        "The critic begins with the weights in this file, or with timm's own (pretrained). Where it is the network "
        "that is fine-tuned, they are those of the race.",
    )
    critic_norm: str = setting(
        "none", "The critic's norm layers: none, or batch, as the paper's networks have them.", choices=NORMS
    )
    precision: str = setting(
        "auto",
        "What the critic calculates in: bf16, tf32 (on a CPU: float32), float32; auto is bf16 if fast on a GPU.",
        choices=PRECISIONS,
    )
    fast: bool = setting(
        True, "The critic's derivatives written out, on a GPU captured once; switch it off for the plain step."
    )
    deterministic: bool = setting(
        True, "On a GPU: convolutions that repeat themselves, so that with kernels the whole search does."
    )
    objective: str = setting(
        "diverse", "What the policy is after: diverse, or paper (docs/settings.md).", choices=OBJECTIVES
    )
    floor: float = setting(1.0, "diverse: the share of the start's dose and spread that must be kept.", least=0)
    kernels: bool = setting(
        True, "On a GPU: Triton kernels, for the soft policy and the fast critic; switch it off for plain torch."
    )
    learning_rate: float = setting(1e-3, "Of Adam, for policy and critic alike.", above=0)
    beta1: float = setting(0.0, "Adam's first coefficient.", least=0, below=1)
    beta2: float = setting(0.999, "Adam's second coefficient.", least=0, below=1)
    penalty: float = setting(10.0, "The coefficient of the gradient penalty.", least=0)
    class_weight: float = setting(0.1, "epsilon, the coefficient of the classification loss.", least=0)
    crop: float = setting(
        0.125, "Baseline random crop: zero padding as a share of the side (CIFAR: 4 of 32).", least=0, below=1
    )
    flip: bool = setting(True, "Baseline random horizontal flip; switch it off for text and digits.")
    fill: tuple[int, int, int] = setting((0, 0, 0), "What geometry brings in from outside the image.")
    broken_budget: float = setting(0.01, "The share of unreadable images that is skipped.", least=0, below=1)
    window: tuple[int, int] | None = setting(
        None, "Levels of images with more than 8 bits that become black and white (default: the range of all images)."
    )
    ignore_index: int = setting(255, "The class number in masks that does not count; 255 never counts.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore_index > 255:
            raise ConfigError(f"ignore_index must be a class number in 0..255, got {self.ignore_index}")
        if self.batch_size % 2:
            raise ConfigError(f"batch_size must be even (half of a batch is augmented), got {self.batch_size}")
        if self.sub_policies * self.operation_count > MOST_STAGES:
            raise ConfigError(
                f"a policy may have at most {MOST_STAGES} stages in all, got sub_policies = {self.sub_policies} times "
                f"operation_count = {self.operation_count}"
            )
        select(self.ops)
        for name, span in self.spans.items():
            check_span(find(name), span)
        check_colour("fill", self.fill)
        if self.window is not None and not (len(self.window) == 2 and self.window[0] < self.window[1]):
            raise ConfigError(f"window must be two whole numbers, the lower first, got {quoted(list(self.window))}")

    def _converted(self, name: str, value: Any) -> Any:
        if name == "spans":
            return _spans(value)
        value = super()._converted(name, value)
        kind = {"fill": int, "window": int, "ops": str}.get(name)
        if kind is not None and value is not None and not all(type(each) is kind for each in value):
            words = "a whole number" if kind is int else "text"
            raise ConfigError(f"{name} must be a list, each of it {words}, got {quoted(list(value))}")
        return value


PAPER_EPOCHS, LEAST_STEPS = 20, 300  # with fewer steps the critic is too crude to follow
TRAIN_CHUNK = 16  # images that share a sub-policy while a network is trained with the paper's policy (ImageNet: 32)
_PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "objective": "paper",
        "sub_policies": 10,
        "operation_count": 2,
        "epochs": PAPER_EPOCHS,
        "critic": "wrn-40-2",
        "critic_norm": "batch",
        "chunk_size": 8,
        "choice_temperature": 0.05,
        "gate_temperature": 0.05,
        "learning_rate": 1e-3,
        "beta1": 0.0,
        "beta2": 0.999,
        "class_weight": 0.1,
        "penalty": 10.0,
        "batch_size": 128,
        "crop": 0.125,
        "flip": True,
        "spans": {"cutout": {"at_zero": 0, "at_one": 0.2, "unit": "width"}},
    }
)
_PAPER_IMAGENET: Mapping[str, Any] = MappingProxyType({"critic": "resnet-50", "chunk_size": 16})
BESIDE = ("run", "race", "train", "methods")  # tables that a run keeps beside [search]
RENAMED: dict[str, str] = {"backbone": "critic"}
# settings with which a run may be resumed that was begun with others
_MAY_CHANGE = ("epochs", "fast", "kernels", "deterministic")
FIELDS = SearchConfig.fields()


def resolve_defaults(config: SearchConfig, images: int) -> SearchConfig:
    """With a batch that there are images for, and a number of epochs: the paper's, or more where images are few."""
    if config.batch_size > images:
        config = dataclasses.replace(config, batch_size=images - images % 2)
    if config.epochs is not None:
        return config
    steps_per_epoch = images // config.batch_size
    return dataclasses.replace(config, epochs=max(PAPER_EPOCHS, math.ceil(LEAST_STEPS / steps_per_epoch)))


def paper_settings(source: str = "cifar10") -> dict[str, Any]:
    """The search of the paper, every setting said, on a named set.

    From its section "Experimental Settings": L = 10 sub-policies of K = 2 stages; 20 epochs; WRN-40-2, on ImageNet
    ResNet-50, as they are in Fast AutoAugment's repository, so with batch norm; chunks of 8 images, on ImageNet 16;
    both temperatures 0.05; Adam with a rate of 1e-3 and betas (0, 0.999); epsilon 0.1; a penalty of 10. The size of the
    subset is in `fasteraa.data.RECIPES`, the chunks of reproduce's trainings in `TRAIN_CHUNK`.

    From the authors' code, where the paper is silent: batches of 128, of which half are augmented; a uniform start.
    From Fast AutoAugment's repository, whose preprocessing and ranges the paper takes over: crop with 4 of 32 pixels,
    flip, cutout of up to 0.2 of the side.
    Ours: the penalty's length is taken over an image (the authors' code: over channels at each pixel), operations are
    Pillow's (theirs: posterize does nothing), and sharpness has a magnitude (as in every earlier system).
    """
    return {**_PAPER, **(_PAPER_IMAGENET if source == "imagenet" else {})}


def make_config(settings: Mapping[str, Any]) -> SearchConfig:
    """A config from plain values (TOML, JSON, flags); unknown names and wrong types are errors."""
    for name in settings:
        if name in RENAMED:
            raise ConfigError(f"the setting {name!r} is called {RENAMED[name]!r} now")
    return SearchConfig.make(settings)


def check_same(config: SearchConfig, old: Mapping[str, Any], where: Path, but: Collection[str] = ()) -> None:
    """A run is resumed with the settings that it was begun with (more epochs are welcome)."""
    before = vars(make_config(old))
    for name, value in vars(config).items():
        if before[name] != value and name not in (*_MAY_CHANGE, *but):
            raise RunError(
                f"the run in {str(where)!r} was started with {name} = {before[name]!r}, now it is {value!r}: resume it "
                "with its own settings, or start another"
            )


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file: [search], and what a run keeps beside it."""
    return read_toml(path)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, at the top level or under [search], which may stand beside those of a race."""
    content = read_tables(path)
    settings = content.get("search", content)
    beside = [key for key in content if key not in ("search", *BESIDE)] if "search" in content else []
    if not isinstance(settings, dict) or beside:
        wrong = f"{quoted(beside[0])} beside it" if beside else f"search = {quoted(settings)}"
        raise ConfigError(f"{str(path)!r} must hold the settings at the top level or all in [search], got {wrong}")
    if "run" not in content and "backbone" in settings:
        raise ConfigError(f"{str(path)!r} is of version 0.1: the setting backbone is called critic now")
    settings = {name: value for name, value in settings.items() if name not in BESIDE}
    try:
        make_config(settings)
    except FasterAAError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error
    return settings


def _spans(value: Any) -> dict[str, Span]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"spans must be a table, got {quoted(value)}")
    spans = {}
    for op, span in value.items():
        if isinstance(span, Span):
            spans[op] = span
        elif (
            isinstance(span, Mapping)
            and set(span) == {"at_zero", "at_one", "unit"}
            and all(type(span[end]) in (int, float) for end in ("at_zero", "at_one"))
        ):
            spans[op] = Span(**span)
        else:
            raise ConfigError(f"the span of {quoted(op, 60)} must have at_zero, at_one and unit, got {quoted(span)}")
    return spans
