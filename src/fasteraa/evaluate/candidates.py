"""Who takes part in the race for how much augmentation, and what is expected of them before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fasteraa.evaluate.effects import Effects
from fasteraa.policy.artifact import Policy
from fasteraa.policy.named import named

_COLOURS = (
    "solarize", "posterize", "invert", "contrast", "color", "brightness", "sharpness", "auto_contrast", "equalize",
)  # fmt: skip


# caution and dose of policies that are made of what helps
WEIGHTED = {"weighted": (12, 2), "weighted, boldly": (5, 2), "weighted, 3 operations": (16, 3)}


class Expected(NamedTuple):
    """An error before it is measured, relative to that of the middling policy on the same data."""

    error: float
    spread: float  # one standard deviation between kinds of data


@dataclass(frozen=True)
class Candidate:
    label: str
    policy: Policy
    expected: Expected | None = None  # None: only what the race measures counts
    on_folds: Mapping[str, Policy] = field(default_factory=dict)  # what races there in its place

    def policy_on(self, fold: str) -> Policy:
        return self.on_folds.get(fold, self.policy)


def usual_candidates(
    start: Policy, found: Policy, halfway: Policy | None, ops: Sequence[str] | None
) -> list[Candidate]:
    """The found policy at several strengths among what people use without a search.

    The most telling first: a small budget drops the last. With a choice of operations only policies of those take part.
    """
    uniform, general, trivial = named("uniform", ops=ops), named("general", ops=ops), named("trivialaugment-wide")
    policies = {
        "none": named("none"),
        "trivialaugment-wide": trivial,
        "uniform, 2 passes": uniform.with_strength(2),
        "found, 2 passes": found.with_strength(2),
        "start": start,
        "general or any one": _either(general, trivial),  # any one operation, that is; what was not foreseen may help
        "general": general,
        "autoaugment-cifar10": named("autoaugment-cifar10"),
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
        Candidate(label, policy, _expected(label))
        for label, policy in policies.items()
        if policy is not None and (ops is None or set(policy.ops) <= set(ops))
    ]


def _either(one: Policy, other: Policy) -> Policy:
    """Half of the images go through one, half through the other (in the spans of the first)."""
    halves = [
        replace(sub, weight=sub.weight / sum(each.weight for each in policy.sub_policies))
        for policy in (one, other)
        for sub in policy.sub_policies
    ]
    return replace(one, sub_policies=tuple(halves))


def weighted_candidates(effects: Effects, without: Mapping[str, Effects]) -> list[Candidate]:
    """Operations by how much they help, with differences made more or less of; one of those that came out the same.

    `without` a fold: what was measured on the others. On images that it was made with, a policy would seem too good.
    """
    policies = {label: effects.policy(caution, dose) for label, (caution, dose) in WEIGHTED.items()}
    labels = {policy.hash: label for label, policy in reversed(policies.items())}.values()
    return [
        Candidate(
            label,
            policies[label],
            _expected(label),
            {fold: each.policy(*WEIGHTED[label]) for fold, each in without.items()},
        )
        for label in WEIGHTED
        if label in labels
    ]


# About the mean of seven sets of images in short trainings and of five in long ones (results/candidates, SVHN's long
# ones in results/calibrated-h200), on test images of sets that the quality table has, too.
_ERRORS = {
    "none": 1.20,
    "trivialaugment-wide": 1.01,
    "uniform, 2 passes": 0.98,
    "autoaugment-cifar10": 0.97,  # on SVHN and photographs AutoAugment's policies for those were measured
    "found, 2 passes": 1.01,
    "start": 1.04,
    "randaugment(2,14)": 0.99,
    "uniform": 1.02,
    "found": 1.06,
    "colours, 2 passes": 1.00,
    "randaugment(3,14)": 0.99,
    "uniform, half as often": 1.05,  # not measured: between uniform and none
    "autoaugment-svhn": 1.00,  # not measured but on SVHN, where it is the best one
    "autoaugment-imagenet": 1.00,  # not measured but on photographs
    "uniform, 3 passes": 1.01,
    "found halfway": 1.06,  # not measured: as found
    "found, 3 passes": 1.02,  # not measured: as two passes
    "general or any one": 0.95,  # results/unseen: 5% below general on eight sets, by one loop; two of it counts
    "general": 0.97,  # results/designs, as the three below: on three sets, of each of which nothing else was known
    "weighted": 0.94,
    "weighted, boldly": 0.94,
    "weighted, 3 operations": 0.95,
}
_SPREAD = 0.05  # with which simulated races did best (tools/expectations.py)
_SPREAD_OF_NONE = 0.25  # on one set it has three quarters more errors than the others, on another as many


def _expected(label: str) -> Expected:
    return Expected(_ERRORS[label], _SPREAD_OF_NONE if label == "none" else _SPREAD)
