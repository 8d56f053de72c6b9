"""The settings of a search; a TOML file and the command line override them by name.

The defaults are the paper's, but for `objective` ("paper" is its own), `chunk_size` (8, on ImageNet 16), `critic_norm`
("batch"), and `epochs` where images are few. docs/how-it-works.md says why.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fasteraa.errors import ConfigError, FasterAAError, choices_hint
from fasteraa.ops import Span, check_span, find, select
from fasteraa.policy.artifact import check_colour


def _setting(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What a search does. `about` of each field is its help on the command line."""

    seed: int = _setting(0, "Of everything random: the subset, the start, the order, all draws.")
    epochs: int | None = _setting(None, "Passes over the images (default: 20 as in the paper, but at least 300 steps).")
    batch_size: int = _setting(
        128, "Images of a step, or all where there are fewer: half are augmented, half stay as they are."
    )
    subset: int | None = _setting(None, "Search on so many images, evenly over the classes (default: all).")
    held_out: float = _setting(
        0.0, "Leave this share of the training images to compare, which holds 0.2 out where there are no test images."
    )
    classes: int | None = _setting(None, "Search on so many of the classes, chosen by the seed (default: all).")
    size: int | None = _setting(None, "Image side during the search (default: by the images; on a CPU at most 32).")
    ops: tuple[str, ...] | None = _setting(None, "The operations to search over (default: all).")
    spans: Mapping[str, Span] = field(default_factory=dict, metadata={"about": "Operations with another span."})
    sub_policies: int = _setting(10, "L, the number of sub-policies.")
    operation_count: int = _setting(2, "K, the number of stages of a sub-policy.")
    chunk_size: int = _setting(1, "Images that share a draw of the sub-policy (the paper: 8, on ImageNet 16).")
    choice_temperature: float = _setting(0.05, "eta of the softmax over operations.")
    gate_temperature: float = _setting(0.05, "lambda of the relaxed Bernoulli gates.")
    backbone: str = _setting("auto", "The critic's network: auto, wrn-40-2, resnet-50, small, or timm:NAME.")
    critic_norm: str = _setting("none", "The critic's norm layers: none, or batch, as the paper's networks have them.")
    precision: str = _setting(
        "auto", "What the critic calculates in: bf16, tf32 (on a CPU: float32), float32; auto is bf16 if fast on a GPU."
    )
    fast: bool = _setting(
        True, "The critic's derivatives written out, on a GPU recorded once; switch it off for the plain step."
    )
    deterministic: bool = _setting(
        True, "On a GPU: convolutions that repeat themselves, so that with kernels the whole search does."
    )
    objective: str = _setting("diverse", "What the policy is after: diverse, or paper (docs/search.md).")
    floor: float = _setting(1.0, "diverse: the share of the start's dose and spread that must be kept.")
    kernels: bool = _setting(
        True, "On a GPU: Triton kernels, for the soft policy and the fast critic; switch it off for plain torch."
    )
    learning_rate: float = _setting(1e-3, "Of Adam, for policy and critic alike.")
    beta1: float = _setting(0.0, "Adam's first coefficient.")
    beta2: float = _setting(0.999, "Adam's second coefficient.")
    penalty: float = _setting(10.0, "The coefficient of the gradient penalty.")
    class_weight: float = _setting(0.1, "epsilon, the coefficient of the classification loss.")
    crop: float = _setting(0.125, "Baseline random crop: zero padding as a share of the side (CIFAR: 4 of 32).")
    flip: bool = _setting(True, "Baseline random horizontal flip; switch it off for text and digits.")
    fill: tuple[int, int, int] = _setting((0, 0, 0), "What geometry brings in from outside the image.")
    broken_budget: float = _setting(0.01, "The share of unreadable images that is skipped.")
    ignore_index: int = _setting(255, "The class number in masks that does not count; 255 never counts.")

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, _converted(name, getattr(self, name)))
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ConfigError(f"{name} must be a number of at least {least}, got {value}")
        if self.seed >= 1 << 63:
            raise ConfigError(f"seed must be below 2**63, got {self.seed}")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a positive number, got {getattr(self, name)}")
        for name in _SHARES:
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        named = (("critic_norm", NORMS), ("precision", PRECISIONS), ("objective", OBJECTIVES))
        for name, choices in named:
            if getattr(self, name) not in choices:
                value = getattr(self, name)
                raise ConfigError(f"unknown {name} {value!r}: {choices_hint(value, choices)}")
        if not 0 <= self.ignore_index <= 255:
            raise ConfigError(f"ignore_index must be a class number in 0..255, got {self.ignore_index}")
        if self.batch_size % 2:
            raise ConfigError(f"batch_size must be even (half of a batch is augmented), got {self.batch_size}")
        select(self.ops)
        for name, span in self.spans.items():
            check_span(find(name), span)
        check_colour("fill", self.fill)


PAPER_EPOCHS, LEAST_STEPS = 20, 300  # with fewer steps the critic is too crude to follow
NORMS = ("none", "batch")
PRECISIONS = ("auto", "bf16", "tf32", "float32")
OBJECTIVES = ("paper", "diverse")
_GONE = ("allowance",)  # settings that the files of old runs still have
_GONE_OBJECTIVES = ("hard", "bilevel")
BEFORE = {"objective": "paper"}  # what old runs had whose files do not name it: there was no choice
LEAST_BATCH = 4
_AT_LEAST = {
    "seed": 0, "epochs": 1, "batch_size": LEAST_BATCH, "subset": 2, "classes": 1, "size": 8, "sub_policies": 1,
    "operation_count": 1,
    "chunk_size": 1, "penalty": 0, "class_weight": 0, "floor": 0,
}  # fmt: skip
_POSITIVE = ("choice_temperature", "gate_temperature", "learning_rate")
_SHARES = ("beta1", "beta2", "crop", "broken_budget", "held_out")
FIELDS = {each.name: each for each in dataclasses.fields(SearchConfig)}


def settled(config: SearchConfig, images: int) -> SearchConfig:
    """With a batch that there are images for, and a number of epochs: the paper's, or more where images are few."""
    if config.batch_size > images:
        config = dataclasses.replace(config, batch_size=images - images % 2)
    if config.epochs is not None:
        return config
    steps_per_epoch = images // config.batch_size
    return dataclasses.replace(config, epochs=max(PAPER_EPOCHS, math.ceil(LEAST_STEPS / steps_per_epoch)))


def make_config(settings: Mapping[str, Any]) -> SearchConfig:
    """A config from plain values (TOML, JSON, flags); unknown names and wrong types are errors."""
    for name in settings:
        if name not in FIELDS:
            raise ConfigError(f"unknown setting {name!r}: {choices_hint(name, FIELDS)}")
    return SearchConfig(**settings)


def read_config(path: Path, to_show: bool = False) -> dict[str, Any]:
    """The settings in a TOML file, at the top level or under [search].

    `to_show`: of a run to be looked at, not to go on with; an objective that is gone is left out.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the config {str(path)!r} could not be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config {str(path)!r} is not valid TOML: {error}") from error
    settings = content.get("search", content)
    beside = [key for key in content if key != "search"] if "search" in content else []
    if not isinstance(settings, dict) or beside:
        wrong = f"{beside[0]!r} beside it" if beside else f"search = {settings!r}"
        raise ConfigError(f"{str(path)!r} must hold the settings at the top level or all in [search], got {wrong}")
    settings = {name: value for name, value in settings.items() if name not in _GONE}
    if to_show and settings.get("objective") in _GONE_OBJECTIVES:
        del settings["objective"]
    try:
        make_config(settings)
    except FasterAAError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error
    return settings


def to_settings(config: SearchConfig) -> dict[str, Any]:
    """Plain values, as TOML and JSON hold them; settings that are None are left out."""
    settings = dataclasses.asdict(config)
    settings["spans"] = {name: dataclasses.asdict(span) for name, span in config.spans.items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value is not None
    }


def to_toml(config: SearchConfig) -> str:
    """The effective config, with what each setting means; settings without a value stand as comments."""
    settings = to_settings(config)
    lines = ["[search]"]
    for name, each in FIELDS.items():
        if name == "spans":
            continue
        lines.append(f"# {each.metadata['about']}")
        lines.append(f"{name} = {_toml(settings[name])}" if name in settings else f"# {name} =")
    for op, span in config.spans.items():
        lines.append(f"[search.spans.{op}]")
        lines += [f"{key} = {_toml(value)}" for key, value in dataclasses.asdict(span).items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


_WORDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", tuple: "a list",
}  # fmt: skip


def _converted(name: str, value: Any) -> Any:
    if name == "spans":
        return _spans(value)
    kinds = _kinds(_hints()[name])
    if isinstance(value, list | tuple) and tuple in kinds:
        kind = int if name == "fill" else str
        if not all(type(each) is kind for each in value):
            raise ConfigError(f"{name} must be a list, each of it {_WORDS[kind]}, got {value!r}")
        return tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        return float(value)
    if type(value) not in kinds:
        wanted = " or ".join(_WORDS[kind] for kind in kinds if kind is not types.NoneType)
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")
    return value


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(SearchConfig)


def _kinds(hint: Any) -> set[type]:
    """`int | None` -> {int, NoneType}; `tuple[str, ...]` -> {tuple}."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}


def _spans(value: Any) -> dict[str, Span]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"spans must be a table, got {value!r}")
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
            raise ConfigError(f"the span of {op!r} must have at_zero, at_one and unit, got {span!r}")
    return spans
