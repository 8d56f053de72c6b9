"""Which operations help on these images? An experiment: policies drawn at random, a short training each, a line.

Each policy has some of the operations and not the others, so every training says something about all of them: a few
dozen trainings tell for each what it does to the loss on held-out images. What helped on other data
(`policy.named.EFFECTS`) is what is expected before; the more is measured, the less that counts. The candidates are
policies made of what helps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from fasteraa.methods.black_box import LATEST, TimeShare
from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.space import operations_to_test
from fasteraa.methods.task import EXPERIMENT, LONG, Task
from fasteraa.ops import OPS
from fasteraa.policy.named import EFFECTS, weighted
from fasteraa.policy.policy import Policy
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner

# Trainings: fewer tell too little. On 1,000 images the standard errors of effects are 2.0 to 2.5 % after 54; by the
# same noise they are 1.5 to 1.9 % after 108.
FEWEST_TRAININGS, MOST_TRAININGS = EXPERIMENT, 108
# margin and operations per image of policies that are made of what helps
WEIGHTED = {"weighted": (12, 2), "weighted-strong": (5, 2), "weighted-3-ops": (16, 3)}
_DOSES = (1, 2, 3)  # operations on an image, on average
_REACHES = (0.35, 0.7, 1.0)  # the largest magnitude of warps
_ONE_IN = 4  # operations a policy has, at least
_EXPECTED_REACH = 1.3  # warps that go far do harm on average, too
_SPREAD = 5.0  # of effects between kinds of data, one standard deviation in %
_NOISES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 30.0)  # of a training, in %: the likeliest one is taken


class OpEffects(Method):
    """Policies made of the operations that help, by trainings with operations drawn at random."""

    name = "op-effects"
    trains = True

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        ops = operations_to_test(task.config.ops)
        if len(ops) < 2:  # of one alone there are no policies without it
            return []
        share = TimeShare(task, self.name, budget, late=LATEST)  # it has no use for fewer than some trainings
        plan = task.decisions.decide(self.name, lambda: plan_experiment(task, budget, runner))
        if not plan["trainings"]:
            task.say(
                f"{self.name}: no policies, its share of the race must pay for {FEWEST_TRAININGS} trainings of "
                f"{epochs_words(task.informative_epochs())}"
            )
            return []
        jobs = drawn_jobs(task, ops, plan["trainings"], plan["epochs"])
        task.say(f"op-effects: {len(jobs)} trainings of {epochs_words(plan['epochs'])} of {task.recipe.network_words}")
        outcomes = share.run(runner, jobs)
        jobs = [job for job in jobs if job.key in outcomes]
        if len(jobs) < FEWEST_TRAININGS:
            return []
        measured = read_experiment(jobs, outcomes, ops)
        return [] if measured is None else weighted_candidates(*measured)


def plan_experiment(task: Task, budget: Budget, runner: Runner) -> dict[str, int]:
    """As many trainings as the budget pays for, the same number on each fold; none where those are too few."""
    least = task.informative_epochs()
    most = min(task.recipe.epochs, int(LONG * least))
    epoch = runner.estimate([task.job("none", weighted(EFFECTS), fold=0, seed=0)]) / task.recipe.epochs
    return affordable(budget, epoch, least, most, len(task.folds))


def affordable(budget: Budget, epoch: float, least: int, most: int, folds: int) -> dict[str, int]:
    """Trainings and their epochs, when an epoch of a training costs `epoch` seconds."""
    payable = budget.trainings
    if payable is None:
        payable = math.floor(budget.seconds / (least * max(epoch, 1e-9)))
    count = min(payable, MOST_TRAININGS) // folds * folds
    if count < FEWEST_TRAININGS:
        return {"trainings": 0, "epochs": 0}
    longest = math.floor(budget.seconds / (count * max(epoch, 1e-9))) if budget.trainings is None else most
    return {"trainings": count, "epochs": min(most, longest)}


def drawn_jobs(task: Task, ops: Sequence[str], count: int, epochs: int) -> list[TrainJob]:
    """Policies drawn at random, as many on each fold.

    Of few operations there are few policies: one that a fold had before has another seed, else it would be the same
    training, counted twice.
    """
    jobs, had = [], Counter[tuple[str, int]]()
    for number, policy in enumerate(drawn(count, ops, task.seed)):
        fold = number % len(task.folds)
        seed = task.seed + fold + len(task.folds) * had[policy.hash, fold]
        had[policy.hash, fold] += 1
        jobs.append(task.job(f"drawn-{number}", policy, fold=fold, seed=seed, epochs=epochs))
    return jobs


def read_experiment(
    jobs: Sequence[TrainJob], outcomes: Mapping[str, Outcome], ops: Sequence[str]
) -> tuple[Effects, dict[str, Effects]] | None:
    """By all trainings, and for each fold by those on the others; None if there are none, or most failed."""
    effects = _effects(jobs, outcomes, ops)
    folds = dict.fromkeys(job.split.name for job in jobs)
    without = {fold: _effects([job for job in jobs if job.split.name != fold], outcomes, ops) for fold in folds}
    of_folds = {fold: each for fold, each in without.items() if each is not None}
    return None if effects is None or len(of_folds) < len(folds) else (effects, of_folds)


def _effects(jobs: Sequence[TrainJob], outcomes: Mapping[str, Outcome], ops: Sequence[str]) -> Effects | None:
    sound = [(job, outcomes[job.key]) for job in jobs if job.key in outcomes and not outcomes[job.key].failed]
    if not sound or 2 * len(sound) < len(jobs):
        return None
    return fit(
        [job.policy for job, _ in sound],
        # what is less than one image of all adds is luck: where there are no errors, logarithms would make much of it
        [max(outcome.loss, 1 / len(job.split.held_out)) for job, outcome in sound],
        [job.split.name for job, _ in sound],
        ops,
    )


def weighted_candidates(effects: Effects, without: Mapping[str, Effects]) -> list[Candidate]:
    """Operations by how much they help, with differences made more or less of; one of those that came out the same.

    `without` a fold: what was measured on the others. On images that it was made with, a policy would seem too good.
    """
    policies = {label: effects.policy(margin, ops) for label, (margin, ops) in WEIGHTED.items()}
    labels = {policy.hash: label for label, policy in reversed(policies.items())}.values()
    return [
        Candidate(
            label,
            policies[label],
            on_folds={fold: each.policy(*WEIGHTED[label]) for fold, each in without.items()},
            details={"effects": effects},
        )
        for label in WEIGHTED
        if label in labels
    ]


@dataclass(frozen=True)
class Effects:
    """By how many % the loss changes when images are augmented by an operation once; one standard error of each."""

    of: dict[str, float]
    errors: dict[str, float]
    warp_effect: float  # the same for warps that go all the way and not two thirds of it
    trainings: int

    def policy(self, margin: float, ops_per_image: int = 2) -> Policy:
        """Every operation as often as it helps; a smaller margin makes more of the differences.

        Where all do harm, those that do the least.
        """
        margin = max(margin, min(self.of.values()) + 1)
        return weighted(self.of, margin, ops_per_image, warps=_REACHES[0] if self.warp_effect > 0 else _REACHES[-1])

    def words(self, op: str) -> str:
        """`rotate -3 ± 2`: two standard errors."""
        return f"{op} {round(self.of[op]):+d} ± {2 * self.errors[op]:.0f}"

    def table(self) -> dict[str, Any]:
        """For the artifact."""
        of = {op: [round(self.of[op], 2), round(self.errors[op], 2)] for op in self.of}
        return {"trainings": self.trainings, "of": of, "reach": round(self.warp_effect, 2)}


def drawn(count: int, ops: Sequence[str], seed: int) -> list[Policy]:
    """Policies of about half of the operations."""
    rng = Random(seed)
    return [_draw(ops, rng) for _ in range(count)]


def _draw(ops: Sequence[str], rng: Random) -> Policy:
    chosen: list[str] = []
    while len(chosen) < max(len(ops) // _ONE_IN, 1):
        chosen = [op for op in ops if rng.random() < 0.5]
    count, largest = rng.choice(_DOSES), rng.choice(_REACHES)
    return weighted(dict.fromkeys(chosen, 0.0), ops_per_image=count, warps=largest)


def fit(policies: Sequence[Policy], losses: Sequence[float], folds: Sequence[str], ops: Sequence[str]) -> Effects:
    """Bayes' line through the logarithms of losses; each fold (images that were held out) has a level of its own."""
    x = _within(np.array([features(policy, ops) for policy in policies]), folds)
    y = _within(100 * np.log(np.array(losses)), folds)
    expected = np.array([*(EFFECTS.get(op, 0.0) for op in ops), 0.0, 0.0, _EXPECTED_REACH])
    noise = max(_NOISES, key=lambda each: _evidence(x, y - x @ expected, each, len(set(folds))))
    covariance = np.linalg.inv(x.T @ x / noise**2 + np.eye(x.shape[1]) / _SPREAD**2)
    posterior = expected + covariance @ x.T @ (y - x @ expected) / noise**2
    error = np.sqrt(np.diag(covariance))
    return Effects(
        of={op: float(posterior[number]) for number, op in enumerate(ops)},
        errors={op: float(error[number]) for number, op in enumerate(ops)},
        warp_effect=float(posterior[-1]),
        trainings=len(policies),
    )


def features(policy: Policy, ops: Sequence[str]) -> list[float]:
    """Roots: the second time that an operation augments an image adds less than the first."""
    met, reached = exposures(policy)
    dose = sum(met.values())
    warps = sum(met[op] for op in met if OPS[op].geometric)
    reach = sum(reached[op] for op in met if OPS[op].geometric) / warps if warps else _REACHES[1]
    roots = [math.sqrt(met.get(op, 0.0)) for op in ops]
    return [*roots, dose - 2, (dose - 2) ** 2, 3 * math.sqrt(warps) * (reach - _REACHES[1])]


def exposures(policy: Policy) -> tuple[dict[str, float], dict[str, float]]:
    """How often an image is augmented by each operation, and that times the largest magnitude."""
    passes = sum(number * share for number, share in enumerate(policy.strength.passes))
    met: dict[str, float] = {}
    reached: dict[str, float] = {}
    for choice, often in policy.scaled().exposures():
        met[choice.op] = met.get(choice.op, 0.0) + passes * often
        reached[choice.op] = reached.get(choice.op, 0.0) + passes * often * choice.range[1]
    return met, reached


def _within(values: np.ndarray, folds: Sequence[str]) -> np.ndarray:
    """Less the mean of each fold."""
    values, of = values.copy(), np.array(folds)
    for fold in set(folds):
        values[of == fold] -= values[of == fold].mean(0)
    return values


def _evidence(x: np.ndarray, y: np.ndarray, noise: float, levels: int) -> float:
    """How likely the measurements are, given the noise (its logarithm, but for a constant).

    Those less the means of folds have as many dimensions fewer, in which there is no noise.
    """
    covariance = noise**2 * np.eye(len(y)) + _SPREAD**2 * x @ x.T
    determinant = np.linalg.slogdet(covariance)[1] - levels * math.log(noise**2)
    return float(-0.5 * (determinant + y @ np.linalg.solve(covariance, y)))
