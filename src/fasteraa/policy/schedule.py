"""A policy that changes during a training: its parts, and which of them an epoch has. Never imports torch.

A sub-policy may take part in a part of the training only (`SubPolicy.during`, as shares of the training's length), so a
schedule is stretched to any number of epochs. Between two ends of such intervals the policy stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from fasteraa.errors import PolicyError
from fasteraa.policy.parts import SubPolicy
from fasteraa.runtime.documents import quoted

if TYPE_CHECKING:
    from fasteraa.policy.policy import Policy


class SchedulePart(NamedTuple):
    """What a policy is from one share of a training to another: a policy without a schedule."""

    start: float
    end: float
    policy: Policy

    def __str__(self) -> str:
        return f"from {100 * self.start:.3g}% to {100 * self.end:.3g}% of the training"


def intervals(subs: Sequence[SubPolicy]) -> list[tuple[float, float]]:
    """Parts of a training in which the same sub-policies take part, one after the other."""
    ends = sorted({0.0, 1.0, *(end for sub in subs for end in sub.interval)})
    return list(pairwise(ends))


def active(subs: Sequence[SubPolicy], start: float) -> list[SubPolicy]:
    """Those that take part in what begins at that share of the training."""
    return [sub for sub in subs if sub.interval[0] <= start < sub.interval[1]]


def parts_of(policy: Policy) -> tuple[SchedulePart, ...]:
    """One after the other, from 0 to 1."""
    return tuple(
        SchedulePart(start, end, replace(policy, sub_policies=tuple(map(_always, active(policy.sub_policies, start)))))
        for start, end in intervals(policy.sub_policies)
    )


def shares(subs: Sequence[SubPolicy]) -> list[float]:
    """How often an image draws each of them, on average over the training."""
    share_of = [0.0] * len(subs)
    for start, end in intervals(subs):
        total = sum(sub.weight for sub in active(subs, start))
        for number, sub in enumerate(subs):
            if sub.interval[0] <= start < sub.interval[1]:
                share_of[number] += (end - start) * sub.weight / total
    return share_of


def flattened(policy: Policy) -> Policy:
    """Every image draws a moment of the training, and then a sub-policy as it is drawn at that moment."""
    if not policy.scheduled:
        return policy
    weights: dict[SubPolicy, float] = {}
    for sub, share in zip(policy.sub_policies, shares(policy.sub_policies), strict=True):
        alike = replace(sub, weight=1.0, during=None)
        weights[alike] = weights.get(alike, 0.0) + share
    subs = tuple(replace(sub, weight=weight) for sub, weight in weights.items())
    return replace(policy, sub_policies=subs, name=f"{policy.name} (flat)")


def share_of(epoch: Any, epochs: Any) -> float:
    """Where the middle of an epoch (counted from 0) lies, as a share of the training; at most just below 1."""
    for name, number, least in (("epoch", epoch, 0), ("epochs", epochs, 1)):
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
            raise PolicyError(f"{name} must be a whole number of at least {least}, got {quoted(number)}")
    return min((int(epoch) + 0.5) / int(epochs), 1 - 2**-53)


def _always(sub: SubPolicy) -> SubPolicy:
    return replace(sub, during=None)
