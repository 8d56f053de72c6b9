"""RandAugment (Cubuk et al., 2019): its two numbers from a grid, each pair of them trained on every fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from fasteraa.errors import ConfigError
from fasteraa.methods.black_box import (
    FEWEST,
    Tried,
    best_first,
    candidates_of,
    payable_trainings,
    plan,
    too_little,
    tried_by,
)
from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.task import Task
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner, run_jobs


@dataclass(frozen=True, kw_only=True)
class RandAugmentSettings(Settings):
    """`about` of each field is its help."""

    n: tuple[int, ...] = setting((1, 2, 3), "Operations that an image meets.")
    m: tuple[int, ...] = setting((3, 9, 15, 21, 27), "Magnitudes, of 30.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("n", 1, 8), ("m", 0, 30)):
            values = getattr(self, name)
            if not values or not all(type(each) is int and low <= each <= high for each in values):
                raise ConfigError(f"{name} must be whole numbers in {low}..{high}, got {list(values)}")


class RandAugmentGrid(Method):
    """The best pairs of n and m."""

    name = "randaugment"
    trains = True

    def __init__(self, settings: RandAugmentSettings | None = None):
        self.settings = settings or RandAugmentSettings()

    @classmethod
    def reduced(cls) -> Self:
        return cls(RandAugmentSettings(n=(1, 2), m=(9, 21)))

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        settings, folds = self.settings, range(len(task.folds))
        most = len(settings.n) * len(settings.m) * len(folds)
        planned = plan(task, self.name, settings, lambda: payable_trainings(task, budget, runner, most))
        if not planned["trainings"]:
            return too_little(task, self.name, FEWEST, planned["epochs"])
        pairs = payable_grid(settings, planned["trainings"] // len(folds))
        policies = [policy for n, m in pairs if (policy := randaugment(n, m, task.config.ops)) is not None]
        jobs = [
            task.job(policy.name, policy, fold=fold, seed=task.seed + fold, epochs=planned["epochs"])
            for policy in policies
            for fold in folds
        ]
        if not jobs:
            return []
        what = f"{len(jobs)} trainings of {epochs_words(planned['epochs'])} of {task.recipe.network}"
        task.say(f"randaugment: {what}, {len(policies)} pairs of n and m on {len(folds)} folds")
        return candidates_of(tried_by(jobs, run_jobs(runner, jobs)), best)


def best(tried: Sequence[Tried]) -> dict[str, Policy]:
    return dict(zip(("randaugment-grid", "randaugment-grid-second"), best_first(tried), strict=False))


def payable_grid(settings: RandAugmentSettings, pairs: int) -> list[tuple[int, int]]:
    """All pairs, or at most so many: first fewer magnitudes, evenly spread, then one number of operations alone."""
    for counts in (settings.n, settings.n[len(settings.n) // 2 :][:1]):
        magnitudes = spread(settings.m, min(len(settings.m), pairs // len(counts)))
        if magnitudes:
            return [(n, m) for n in counts for m in magnitudes]
    return []


def spread(values: Sequence[int], count: int) -> list[int]:
    """So many of them from end to end; none where one alone would have to stand for several."""
    if count == 1:
        return list(values) if len(values) == 1 else []
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def randaugment(n: int, m: int, ops: Sequence[str] | None) -> Policy | None:
    """Of the operations that were chosen, if RandAugment has any of them."""
    policy = named("randaugment", n=n, m=m)
    left_out = [op for op in policy.ops if ops is not None and op not in ops]
    if len(left_out) == len(policy.ops):
        return None
    return replace(policy.without(*left_out), name=policy.name)
