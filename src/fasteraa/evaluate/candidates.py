"""Who takes part in the race for how much augmentation, and what is expected of them before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fasteraa.policy.artifact import Policy
from fasteraa.policy.named import named

_COLOURS = (
    "solarize", "posterize", "invert", "contrast", "color", "brightness", "sharpness", "auto_contrast", "equalize",
)  # fmt: skip


class Expected(NamedTuple):
    """An error before it is measured, relative to that of the middling policy on the same data."""

    error: float
    spread: float  # one standard deviation between kinds of data


@dataclass(frozen=True)
class Candidate:
    label: str
    policy: Policy
    expected: Expected | None = None  # None: only what the race measures counts


def usual_candidates(
    start: Policy, found: Policy, halfway: Policy | None, ops: Sequence[str] | None
) -> list[Candidate]:
    """The found policy at several strengths among what people use without a search.

    The most telling first: a small budget drops the last. With a choice of operations only policies of those take part.
    """
    uniform = named("uniform", ops=ops)
    policies = {
        "none": named("none"),
        "trivialaugment-wide": named("trivialaugment-wide"),
        "uniform, 2 passes": uniform.with_strength(2),
        "autoaugment-cifar10": named("autoaugment-cifar10"),
        "found, 2 passes": found.with_strength(2),
        "start": start,
        "randaugment(2,14)": named("randaugment(2,14)"),
        "uniform": uniform,
        "found": found,
        "colours, 2 passes": named("uniform", ops=_COLOURS).with_strength(2),
        "randaugment(3,14)": named("randaugment(3,14)"),
        "uniform, half as often": uniform.with_strength(probability=0.5),
        "autoaugment-svhn": named("autoaugment-svhn"),
        "autoaugment-imagenet": named("autoaugment-imagenet"),
        "uniform, 3 passes": uniform.with_strength(3),
        "found halfway": halfway,
        "found, 3 passes": found.with_strength(3),
    }
    return [
        Candidate(label, policy, _EXPECTED[label])
        for label, policy in policies.items()
        if policy is not None and (ops is None or set(policy.ops) <= set(ops))
    ]


# Measured on seven sets of images in short trainings and on five in long ones (results/candidates), rounded.
_EXPECTED = {
    "none": Expected(1.20, 0.25),
    "trivialaugment-wide": Expected(1.01, 0.04),
    "uniform, 2 passes": Expected(0.98, 0.04),
    "autoaugment-cifar10": Expected(0.97, 0.05),
    "found, 2 passes": Expected(1.01, 0.04),
    "start": Expected(1.04, 0.05),
    "randaugment(2,14)": Expected(0.99, 0.04),
    "uniform": Expected(1.02, 0.04),
    "found": Expected(1.06, 0.06),
    "colours, 2 passes": Expected(1.00, 0.05),
    "randaugment(3,14)": Expected(0.99, 0.04),
    "uniform, half as often": Expected(1.05, 0.06),  # not measured: between uniform and none
    "autoaugment-svhn": Expected(1.00, 0.07),
    "autoaugment-imagenet": Expected(1.00, 0.05),
    "uniform, 3 passes": Expected(1.01, 0.07),
    "found halfway": Expected(1.06, 0.06),  # not measured: as found
    "found, 3 passes": Expected(1.02, 0.06),  # not measured: as two passes
}
