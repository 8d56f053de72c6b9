"""What hurts: how much worse a trained network predicts when held-out images pass through an operation.

A network that never saw an operation fails on its images as far as they lie from the data; that shows which
operations leave the data, not by itself which ones help training.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fasteraa.comparison.contenders import Contender
from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.errors import OutOfTime, RunError, Stopped
from fasteraa.ops import OPS, Op, Span
from fasteraa.policy.apply import augment
from fasteraa.policy.named import named
from fasteraa.policy.policy import Choice, Policy, SubPolicy
from fasteraa.train.guess import Guess, load_guess
from fasteraa.train.job import TrainJob, make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Runner
from fasteraa.train.split import Split

_MOST = {"cpu": 1_000, "cuda": 5_000}  # held-out images that are measured: enough for intervals of a point or two
MAGNITUDES = (0.1, 0.25, 0.5, 0.75, 1.0)


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
class PerOp:
    """All that `compare --per-op` measures, and on which images."""

    accuracy: float  # % of the plain images
    images: int
    held_out_from: str
    on_test_images: bool
    ops: Sequence[OpHarm]
    policies: Sequence[tuple[Policy, Sequence[SubPolicyHarm]]]


class ReferenceNetwork:
    """A network's predictions on held-out images, plain and augmented."""

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
    network: ReferenceNetwork,
    ops: Sequence[Op],
    magnitudes: Sequence[float] = MAGNITUDES,
    spans: dict[str, Span] | None = None,
) -> list[OpHarm]:
    """Each operation alone, always applied, at rising magnitudes; the most harmful first."""
    harms = []
    for row in ops:
        levels = tuple(magnitudes) if row.span else (1.0,)
        at = {level: network.drop(_always(row, level if row.span else None, spans or {})) for level in levels}
        harms.append(OpHarm(row.name, at))
    return sorted(harms, key=lambda each: -max(drop.points for drop in each.at.values()))


def _always(row: Op, magnitude: float | None, spans: dict[str, Span]) -> Policy:
    own_span = {name: span for name, span in spans.items() if name == row.name}
    return Policy((SubPolicy(((Choice(row.name, 1.0, magnitude),),)),), row.name, own_span)


def harm_of_sub_policies(network: ReferenceNetwork, policy: Policy) -> list[SubPolicyHarm]:
    """Each sub-policy alone, as it is drawn; the most harmful first."""
    harms = [
        SubPolicyHarm(number, network.drop(replace(policy, sub_policies=(replace(sub, weight=1.0, during=None),))))
        for number, sub in enumerate(policy.sub_policies)
        if sub.weight > 0
    ]
    return sorted(harms, key=lambda each: -each.drop.points)


# --- the network ---------------------------------------------------------------------------------------------------


def per_op(
    runner: Runner, split: Split, recipe: TrainRecipe, contenders: Sequence[Contender], until: float = math.inf
) -> PerOp:
    """Every operation, and every sub-policy of the contenders.

    OutOfTime if the moment `until` (time.time()) comes before the network is trained; it continues next time.
    """
    network = clean_network(runner, split, recipe, until)
    ops = harm_of_ops(network, list(OPS.values()))
    policies = [_labelled(each) for each in contenders]
    subs = [(policy, harm_of_sub_policies(network, policy)) for policy in policies if len(policy.sub_policies) > 1]
    return PerOp(network.accuracy, len(network.labels), split.name, not split.share, ops, subs)


def _labelled(contender: Contender) -> Policy:
    """By the label of its row: policies that were found on the same data have the same name."""
    count = len({policy.hash for policy in contender.policies})
    label = contender.label if count == 1 else f"{contender.label} (the first of {count})"
    return replace(contender.policy(0), name=label)


def clean_network(runner: Runner, split: Split, recipe: TrainRecipe, until: float = math.inf) -> ReferenceNetwork:
    """Trained with `none` and seed 0, or loaded, if that was done before."""
    job = replace(make_job("none", named("none"), recipe, 0, split), keep_network=True)
    _train(runner, job, until)
    device: torch.device = getattr(runner, "device", torch.device("cpu"))  # one that trains elsewhere names none
    guess = load_guess(runner.cache.network(job), job, device)
    most = _MOST.get(device.type, 1_000)
    measured = split.held_out.subset(most, 0) if len(split.held_out) > most else split.held_out
    measured = measured.decoded() if isinstance(measured, LazyImageSet) else measured
    return ReferenceNetwork(guess, measured.images.to(device), measured.labels.to(device))


def _train(runner: Runner, job: TrainJob, until: float) -> None:
    """Unless that was done before."""
    try:
        outcomes = [outcome for _, outcome in runner.run([job], until)]
    except KeyboardInterrupt as error:
        raise Stopped(
            "stopped while a network was trained to measure operations: give the same command again to continue",
            next(iter(error.args), signal.SIGINT),
        ) from None
    if not outcomes:
        raise OutOfTime("time was up before the network was trained that operations are measured with")
    if outcomes[0].failed:
        raise RunError(f"there is no network to measure operations with, none, seed 0: {outcomes[0].failed}")
