"""Published and baseline policies by name."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fasteraa.errors import PolicyError, choices_hint
from fasteraa.ops import OPS, Span, select
from fasteraa.policy.policy import Choice, Policy, Stage, SubPolicy
from fasteraa.runtime.documents import quoted

MOST_STAGES = 100  # of a sub-policy; a search has the same limits
MOST_SUB_POLICIES = 1000
_LONGEST = 1000  # characters of a name with its settings
# torchvision's names
_TORCHVISION = {
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "color",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "auto_contrast",
    "Equalize": "equalize",
    "Invert": "invert",
}
# RandAugment and TrivialAugment draw one of 14: these 13, or nothing
_NO_SEARCH_OPS = [op for op in _TORCHVISION.values() if op != "invert"]
_ALL_BUT_ONE = len(_NO_SEARCH_OPS) / (len(_NO_SEARCH_OPS) + 1)
# AutoAugment shifts by up to 150 pixels of a 331-pixel image
_AUTOAUGMENT_SPANS = {"translate_x": Span(0, 150 / 331, "width"), "translate_y": Span(0, 150 / 331, "height")}
_WIDE_SPANS = {
    "shear_x": Span(0, 0.99, "slope"),
    "shear_y": Span(0, 0.99, "slope"),
    "translate_x": Span(0, 32, "px"),
    "translate_y": Span(0, 32, "px"),
    "rotate": Span(0, 135, "degree"),
    **{name: Span(1, 1.99, "factor") for name in ("brightness", "color", "contrast", "sharpness")},
    "posterize": Span(8, 0, "bit"),  # down to 2 bits; whole bits are exact eighths of the span
}


_COLOR_OPS = (
    "solarize", "posterize", "invert", "contrast", "color", "brightness", "sharpness", "auto_contrast", "equalize",
)  # fmt: skip
# By how many % errors change when images are augmented by an operation once: the mean of seven sets of images.
# `tools/defaults.py` makes them of results/defaults.
EFFECTS = {
    "shear_x": 0.4, "shear_y": -1.8, "translate_x": 0.4, "translate_y": 0.6, "rotate": 0.4, "solarize": -6.7,
    "posterize": -0.8, "invert": 1.6, "auto_contrast": -2.4, "equalize": -4.5, "contrast": -1.5, "color": -1.2,
    "brightness": -2.1, "sharpness": -0.7, "sample_pairing": -1.2, "cutout": -2.1,
}  # fmt: skip


_NUMBERED = re.compile(r"randaugment-\d{1,3}-[\d.]+|random-\d{1,3}-\d{1,3}-\d+")


def is_name(text: str) -> bool:
    """Whether it names a policy, with or without settings."""
    key = _key(text)
    return key in _MAKERS or _NUMBERED.fullmatch(key) is not None


# what races of version 0.1 called some of them
_OLD_LABELS = {
    "general or any one": "general-or-trivial",
    "colours, 2 passes": "color-ops-x2",
    "uniform, 2 passes": "uniform-x2",
    "uniform, 3 passes": "uniform-x3",
    "uniform, half as often": "uniform-half",
}


def _key(text: str) -> str:
    key = text.partition("(")[0].strip().lower()
    return _OLD_LABELS.get(key, key)


def named(name: str, **settings: Any) -> Policy:
    """`named("randaugment-2-14")`, `named("randaugment", n=2, m=14)` or `named("randaugment(2, 14)")`."""
    key, inside = _key(name), name.partition("(")[2].strip()
    if _NUMBERED.fullmatch(key) and not inside:
        key, *numbers = key.split("-")
        inside = ",".join(numbers) + ")"
    if key not in _MAKERS:
        raise PolicyError(f"unknown policy {quoted(name, 80)}: {choices_hint(key, NAMES)}")
    if len(name) > _LONGEST:
        raise PolicyError(f"a name must have at most {_LONGEST} characters, got {len(name)}: {quoted(name, 80)}")
    maker = _MAKERS[key]
    try:
        positional, by_name = _arguments(f"f({inside or ')'}")
        return maker(*positional, **by_name, **settings)
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        parameters = inspect.signature(maker).parameters.values()
        takes = (
            f"is written as {key}({', '.join(f'{p.name}={p.default}' for p in parameters)})"
            if parameters
            else "has no settings"
        )
        raise PolicyError(f"policy {key!r} {takes}, got {quoted(_as_written(name, settings))}") from error


def _arguments(call: str) -> tuple[list[Any], dict[str, Any]]:
    """`f(2, m=14)` -> [2], {"m": 14}; plain values alone, nothing is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python thinks of its style
        tree = ast.parse(call, mode="eval").body
    if not isinstance(tree, ast.Call) or any(keyword.arg is None for keyword in tree.keywords):
        raise SyntaxError(call)
    by_name = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    return [ast.literal_eval(value) for value in tree.args], by_name


def _as_written(name: str, settings: dict[str, Any]) -> str:
    return name + (f"({', '.join(f'{key}={quoted(value)}' for key, value in settings.items())})" if settings else "")


def _check_count(name: str, count: Any, most: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} must be a whole number")
    if not 1 <= count <= most:
        raise PolicyError(f"{name} must be in 1..{most:,}, got {quoted(count, 40)}")


def none() -> Policy:
    """Leave every image alone."""
    return Policy((SubPolicy(()),), "none")


def cutout() -> Policy:
    """A square of half the width, always (16 pixels on CIFAR)."""
    return Policy((SubPolicy((_one("cutout", magnitude=1.0),)),), "cutout")


def _autoaugment(which: str) -> Policy:
    """The 25 sub-policies as torchvision has them."""
    from torchvision.transforms import autoaugment as published

    policy = published.AutoAugmentPolicy[which.upper()]
    rows = published.AutoAugment(policy).policies
    subs = [SubPolicy(tuple(_published_stage(*step) for step in steps)) for steps in rows]
    return Policy(tuple(subs), f"autoaugment-{which}", _AUTOAUGMENT_SPANS)


def autoaugment_cifar10() -> Policy:
    """AutoAugment's policy for CIFAR-10: 25 sub-policies, mostly color."""
    return _autoaugment("cifar10")


def autoaugment_svhn() -> Policy:
    """AutoAugment's policy for SVHN: 25 sub-policies, mostly shear and invert."""
    return _autoaugment("svhn")


def autoaugment_imagenet() -> Policy:
    """AutoAugment's policy for ImageNet: 25 sub-policies, mostly posterize, equalize and rotate."""
    return _autoaugment("imagenet")


def _published_stage(name: str, probability: float, bin_: int | None) -> Stage:
    """torchvision counts strengths in bins 0..9."""
    op = _TORCHVISION[name]
    return _one(op, probability, None if bin_ is None else _tenth(op, bin_ / 9))


def _tenth(op: str, strength: float) -> float:
    """The unit magnitude of torchvision's linear strength in [0, 1] on AutoAugment's space."""
    if op == "posterize":
        return round(4 * strength) / 4  # whole bits, 8 down to 4
    if op == "solarize":
        return (1 + 255 * strength) / 256  # thresholds 255 down to 0
    return strength


def randaugment(n: int = 2, m: float = 9) -> Policy:
    """n operations of 14 (one of them nothing) at strength m of 30."""
    _check_count("n of randaugment", n, MOST_STAGES)
    if isinstance(m, bool) or not 0 <= m <= 30:
        raise PolicyError(f"m of randaugment must be in [0, 30], got {quoted(m, 40)}")
    stage = tuple(Choice(op, _ALL_BUT_ONE, _tenth(op, m / 30)) for op in _NO_SEARCH_OPS)
    return Policy((SubPolicy((stage,) * n),), f"randaugment-{n}-{m}", _AUTOAUGMENT_SPANS)


def trivialaugment_wide() -> Policy:
    """One operation of 14 (one of them nothing) at a strength drawn uniformly from a wide range."""
    ops = [op for op in _NO_SEARCH_OPS if op != "posterize"]
    choices = [Choice(op, _ALL_BUT_ONE, (1 / 256, 1.0) if op == "solarize" else (0.0, 1.0)) for op in ops]
    bits = [round(8 - 6 * bin_ / 30) for bin_ in range(31)]  # torchvision rounds its 31 strengths to whole bits
    choices += [Choice("posterize", _ALL_BUT_ONE, (8 - b) / 8, bits.count(b) / 31) for b in dict.fromkeys(bits)]
    return Policy((SubPolicy((tuple(choices),)),), "trivialaugment-wide", _WIDE_SPANS)


def uniform(operation_count: int = 2, ops: Sequence[str] | None = None) -> Policy:
    """Every stage any operation of the search space, half of the time, at any magnitude."""
    _check_count("operation_count", operation_count, MOST_STAGES)
    stage = tuple(Choice(row.name, 0.5, (0.0, 1.0)) for row in select(ops))
    return Policy((SubPolicy((stage,) * operation_count),), "uniform")


def general(ops: Sequence[str] | None = None) -> Policy:
    """Every operation as often as it helped on seven kinds of images: for those who cannot search."""
    effects = EFFECTS if ops is None else {row.name: EFFECTS.get(row.name, 0.0) for row in select(ops)}
    return replace(weighted(effects), name="general")


def general_or_trivial(ops: Sequence[str] | None = None) -> Policy:
    """Half of the images go through `general`, half through TrivialAugment: what was not foreseen may help."""
    return replace(_either(general(ops), trivialaugment_wide()), name="general-or-trivial")


def _either(one: Policy, other: Policy) -> Policy:
    """Half of the images go through one, half through the other (in the spans of the first)."""
    halves = [
        replace(sub, weight=sub.weight / sum(each.weight for each in policy.sub_policies))
        for policy in (one, other)
        for sub in policy.sub_policies
    ]
    return replace(one, sub_policies=tuple(halves))


def uniform_x2(ops: Sequence[str] | None = None) -> Policy:
    """Two passes of `uniform`."""
    return replace(uniform(ops=ops).with_strength(2), name="uniform-x2")


def uniform_x3(ops: Sequence[str] | None = None) -> Policy:
    """Three passes of `uniform`."""
    return replace(uniform(ops=ops).with_strength(3), name="uniform-x3")


def uniform_half(ops: Sequence[str] | None = None) -> Policy:
    """`uniform`, half as often."""
    return replace(uniform(ops=ops).with_strength(probability=0.5), name="uniform-half")


def color_ops_x2() -> Policy:
    """Two passes of `uniform` with color operations alone: nothing moves."""
    return replace(uniform(ops=_COLOR_OPS).with_strength(2), name="color-ops-x2")


def general_mild(ops: Sequence[str] | None = None) -> Policy:
    """`general`, half as often and half as strong: for short trainings and pretrained networks."""
    return replace(general(ops).with_strength(magnitude=0.5, probability=0.5), name="general-mild")


def randaugment_m9() -> Policy:
    """Near timm's rand-m9-mstd0.5-inc1: two of 14 operations, each half of the time, at nine tenths."""
    spans = {**_AUTOAUGMENT_SPANS, "posterize": Span(8, 0, "bit")}
    spans |= {op: Span(0, 0.45, side) for op, side in (("translate_x", "width"), ("translate_y", "height"))}
    level = (0.815, 0.985)  # uniform, with the mean and the spread of theirs
    ops = [op for op in _TORCHVISION.values() if op != "posterize"]
    choices = [Choice(op, 0.5, level if OPS[op].span else None) for op in ops]
    choices.append(Choice("posterize", 0.5, 7 / 8))  # to one bit
    return Policy((SubPolicy((tuple(choices),) * 2),), "randaugment-m9", spans)


def three_augment() -> Policy:
    """DeiT III's 3-Augment as near as it gets: grey, solarize or smoothed, one of three (smoothed, not blurred)."""
    spans = {op: Span(1, 2, "factor") for op in ("color", "sharpness")}  # downwards to 0: grey, smoothed
    stage = (Choice("color", 1.0, 1.0, sign="-"), Choice("solarize", 1.0, 0.5), Choice("sharpness", 1.0, 1.0, sign="-"))
    return Policy((SubPolicy((stage,)),), "three-augment", spans)


def weighted(effects: Mapping[str, float], margin: float = 8.0, ops_per_image: int = 2, warps: float = 0.35) -> Policy:
    """Operations by how much they help: by how many % an error changes when images are augmented by one once.

    An image is augmented by `ops_per_image` of them, on average. If an error went down by an operation's effect times
    the root of how often it is applied, the squares of effects would be the best shares; `margin` is added to all, as
    if each did good by being another one.
    """
    worths = {op: max(margin - effect, 0.0) ** 2 for op, effect in effects.items()}
    if not sum(worths.values()):
        raise PolicyError(f"no operation helps: all effects are {margin} or more, got {dict(effects)}")

    def choice(op: str, share: float) -> Choice:
        largest = warps if OPS[op].geometric else 1.0
        return Choice(
            op, ops_per_image / (ops_per_image + 1), (0.0, largest) if OPS[op].span else None, round(share, 4)
        )

    choices = [choice(op, worth / sum(worths.values())) for op, worth in worths.items()]
    drawn = tuple(each for each in choices if each.weight)
    return Policy((SubPolicy((drawn,) * (ops_per_image + 1)),), "weighted")


def random(sub_policies: int = 10, operation_count: int = 2, seed: int = 0, ops: Sequence[str] | None = None) -> Policy:
    """Where a search starts: a learnable policy with its random initial values."""
    import torch

    from fasteraa.policy.soft import SoftPolicy

    _check_count("sub_policies", sub_policies, MOST_SUB_POLICIES)
    _check_count("operation_count", operation_count, MOST_STAGES)
    if not -(2**63) <= seed < 2**63:
        raise PolicyError(f"seed must be a whole number of 64 bits, got {quoted(seed, 40)}")
    generator = torch.Generator().manual_seed(seed)
    start = SoftPolicy(sub_policies, operation_count, ops, generator=generator)
    return start.freeze(f"random-{sub_policies}-{operation_count}-{seed}")


def _one(op: str, probability: float = 1.0, magnitude: float | None = None) -> Stage:
    return (Choice(op, probability, magnitude if OPS[op].span else None),)


_MAKERS: dict[str, Callable[..., Policy]] = {
    "none": none,
    "cutout": cutout,
    "autoaugment-cifar10": autoaugment_cifar10,
    "autoaugment-svhn": autoaugment_svhn,
    "autoaugment-imagenet": autoaugment_imagenet,
    "randaugment": randaugment,
    "trivialaugment-wide": trivialaugment_wide,
    "uniform": uniform,
    "general": general,
    "general-or-trivial": general_or_trivial,
    "uniform-x2": uniform_x2,
    "uniform-x3": uniform_x3,
    "uniform-half": uniform_half,
    "color-ops-x2": color_ops_x2,
    "general-mild": general_mild,
    "randaugment-m9": randaugment_m9,
    "three-augment": three_augment,
    "random": random,
}
NAMES = tuple(_MAKERS)


def descriptions() -> dict[str, str]:
    """Every name with one line about it, for `fasteraa show --list`."""
    lines = {name: (inspect.getdoc(maker) or "").splitlines()[0] for name, maker in _MAKERS.items()}
    numbered = {"randaugment": "randaugment-N-M", "random": "random-L-K-SEED"}
    return {numbered.get(name, name): line for name, line in lines.items()}
