"""What hurts: how much worse a trained network guesses when held-out images pass through an operation.

A network that never saw an operation fails on its images as far as they lie from the data; that tells which
operations leave the data, not by itself which ones help training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fasteraa.ops import Op, Span
from fasteraa.policy.apply import augment
from fasteraa.policy.artifact import Choice, Policy, SubPolicy

MAGNITUDES = (0.1, 0.25, 0.5, 0.75, 1.0)
Guess = Callable[[Tensor], Tensor]  # uint8 images (b, 3, H, W) -> class numbers (b,)


@dataclass(frozen=True)
class Drop:
    """Loss of accuracy in points; `half` is half of its 95% interval over images."""

    points: float
    half: float


@dataclass(frozen=True)
class OpHarm:
    op: str
    at: dict[float, Drop]  # unit magnitude -> drop; only 1.0 where the operation has no magnitude


@dataclass(frozen=True)
class SubPolicyHarm:
    number: int  # place in the policy
    drop: Drop


@dataclass(frozen=True)
class Harms:
    """All that `compare --per-op` measures, and on which images."""

    accuracy: float  # % of the plain images
    images: int
    held_out_from: str
    on_test_images: bool
    ops: Sequence[OpHarm]
    policies: Sequence[tuple[Policy, Sequence[SubPolicyHarm]]]


class Judge:
    """A network's guesses on held-out images, plain and augmented."""

    def __init__(self, guess: Guess, images: Tensor, labels: Tensor, seed: int = 0, batch: int = 512):
        self.guess, self.images, self.labels, self.seed, self.batch = guess, images, labels, seed, batch
        self.plain = self._right(None)

    @property
    def accuracy(self) -> float:
        return 100 * float(self.plain.mean())

    def drop(self, policy: Policy) -> Drop:
        """Image by image against the plain ones, so the interval is that of a paired difference."""
        lost = self.plain - self._right(policy)
        error = float(lost.std()) / math.sqrt(len(lost)) if len(lost) > 1 else math.inf
        return Drop(100 * float(lost.mean()), 100 * 1.96 * error)

    @torch.no_grad()
    def _right(self, policy: Policy | None) -> Tensor:
        generator = Generator(self.images.device).manual_seed(self.seed)
        right = []
        for images, labels in zip(
            torch.split(self.images, self.batch), torch.split(self.labels, self.batch), strict=True
        ):
            seen = images if policy is None else augment(policy, images, generator, pool=self.images)
            right.append((self.guess(seen) == labels).double())
        return torch.cat(right)


def harm_of_ops(
    judge: Judge, ops: Sequence[Op], magnitudes: Sequence[float] = MAGNITUDES, spans: dict[str, Span] | None = None
) -> list[OpHarm]:
    """Each operation alone, always applied, at rising magnitudes; the most harmful first."""
    found = []
    for row in ops:
        levels = tuple(magnitudes) if row.span else (1.0,)
        at = {level: judge.drop(_always(row, level if row.span else None, spans or {})) for level in levels}
        found.append(OpHarm(row.name, at))
    return sorted(found, key=lambda each: -max(drop.points for drop in each.at.values()))


def _always(row: Op, magnitude: float | None, spans: dict[str, Span]) -> Policy:
    kept = {name: span for name, span in spans.items() if name == row.name}
    return Policy((SubPolicy(((Choice(row.name, 1.0, magnitude),),)),), row.name, kept)


def harm_of_sub_policies(judge: Judge, policy: Policy) -> list[SubPolicyHarm]:
    """Each sub-policy alone, as it is drawn; the most harmful first."""
    found = [
        SubPolicyHarm(number, judge.drop(replace(policy, sub_policies=(replace(sub, weight=1.0),))))
        for number, sub in enumerate(policy.sub_policies)
        if sub.weight > 0
    ]
    return sorted(found, key=lambda each: -each.drop.points)
