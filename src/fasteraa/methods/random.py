"""Random search: draw policies, train with each, keep the best. What every method has to beat at the same cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Self

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
from fasteraa.methods.space import Space, concatenated, space_of
from fasteraa.methods.task import Task
from fasteraa.policy.policy import Policy
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner, run_jobs


@dataclass(frozen=True, kw_only=True)
class RandomSettings(Settings):
    """`about` of each field is its help."""

    policies: int = setting(100, "Policies that are drawn and trained with, at most.", least=FEWEST)
    kept: int = setting(5, "Of these the best so many become one policy, as AutoAugment does it.", least=1)


class RandomSearch(Method):
    """The best policies of those that were drawn, alone and concatenated."""

    name = "random"
    trains = True

    def __init__(self, settings: RandomSettings | None = None):
        self.settings = settings or RandomSettings()

    @classmethod
    def reduced(cls) -> Self:
        return cls(RandomSettings(policies=12))

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        space, settings = space_of(task.config), self.settings
        if space is None:
            return []
        planned = plan(
            task, self.name, settings, lambda: payable_trainings(task, budget, runner, most=settings.policies)
        )
        if not planned["trainings"]:
            return too_little(task, self.name, FEWEST, planned["epochs"])
        jobs = drawn_jobs(task, space, planned["trainings"], planned["epochs"])
        task.say(f"random: {len(jobs)} trainings of {epochs_words(planned['epochs'])} of {task.recipe.network}")
        tried = tried_by(jobs, run_jobs(runner, jobs))
        return candidates_of(tried, self.best)

    def best(self, tried: Sequence[Tried]) -> dict[str, Policy]:
        """The best few together first: which of them is the best is mostly luck."""
        policies = best_first(tried)
        kept = f"random-top-{self.settings.kept}"
        together = {kept: concatenated(policies[: self.settings.kept], kept)}
        return together | dict(zip(("random-best", "random-second"), policies, strict=False))


def drawn_jobs(task: Task, space: Space, count: int, epochs: int) -> list[TrainJob]:
    """One policy after the other, each on the next fold; on a fold all networks begin alike."""
    rng, folds = Random(task.seed), len(task.folds)
    policies = [space.decode(space.draw(rng), f"random-{number}") for number in range(count)]
    return [
        task.job(policy.name, policy, fold=number % folds, seed=task.seed + number % folds, epochs=epochs)
        for number, policy in enumerate(policies)
    ]
