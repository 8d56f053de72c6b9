"""What is expected of a candidate before it is measured, and who comes first where time allows for few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.named import RACED_FINE_TUNING

# Error relative to that of the middling policy on the same data, the most telling first: about the mean of seven sets
# of images in short trainings and of five in long ones. `results/defaults` has the numbers, and
# `tools/defaults.py` prints them beside these.
_ERRORS = {
    "none": 1.20,
    "trivialaugment-wide": 1.01,
    "weighted": 0.94,
    "weighted-strong": 0.94,
    "weighted-3-ops": 0.95,
    "uniform-x2": 0.98,
    "faster-aa-x2": 1.01,
    "faster-aa-start": 1.04,
    "general-or-trivial": 0.95,
    "general": 0.97,
    "autoaugment-cifar10": 0.97,
    "randaugment-2-14": 0.99,
    "uniform": 1.02,
    "faster-aa": 1.06,
    "color-ops-x2": 1.00,
    "randaugment-3-14": 0.99,
    "uniform-half": 1.05,  # not measured: between uniform and none
    "autoaugment-svhn": 1.00,  # not measured but on SVHN, where it is the best one
    "autoaugment-imagenet": 1.00,  # not measured but on photographs
    "uniform-x3": 1.01,
    "faster-aa-halfway": 1.06,  # not measured: as faster-aa
    "faster-aa-x3": 1.02,  # not measured: as two passes
}
_SPREAD = 0.05  # with which simulated races did best
_SPREAD_OF_NONE = 0.25  # on one set it has three quarters more errors than the others, on another as many
_FIRST = 2  # of the order above: what every policy is compared with


def with_prior(candidates: Sequence[Candidate], fine_tuning: bool = False) -> list[Candidate]:
    """In the order in which a small budget keeps them, with what is expected of those that are known.

    Of fine-tuning nothing is expected: what helps a long training from scratch often harms there.

    A candidate that is not known comes right after what every policy is compared with: it was made for these images.
    """
    order = {label: place for place, label in enumerate(RACED_FINE_TUNING if fine_tuning else _ERRORS)}
    if fine_tuning:
        return sorted(candidates, key=lambda each: order.get(each.label, len(order)))
    ranked = sorted(candidates, key=lambda each: order.get(each.label, _FIRST - 0.5))
    return [each if each.expected is not None else replace(each, expected=expected(each.label)) for each in ranked]


def expected(label: str) -> Expected | None:
    """None for a label that nobody knows: only what the race measures counts."""
    if label not in _ERRORS:
        return None
    return Expected(_ERRORS[label], _SPREAD_OF_NONE if label == "none" else _SPREAD)
