"""Random search: draw policies, train with each, keep the best. What every method has to beat at the same cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self

from fasteraa.methods.black_box import FEWEST, BlackBox, Tried, best_first
from fasteraa.methods.method import Published
from fasteraa.methods.space import Space, concatenated, space_of
from fasteraa.methods.task import Task
from fasteraa.policy.policy import Policy
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.job import TrainJob


@dataclass(frozen=True, kw_only=True)
class RandomSettings(Settings):
    """`about` of each field is its help."""

    policies: int = setting(100, "Policies that are drawn and trained with, at most.", least=FEWEST)
    kept: int = setting(5, "Of these the best so many become one policy, as AutoAugment does it.", least=1)


class RandomSearch(BlackBox):
    """The best policies of those that were drawn, alone and concatenated."""

    name = "random"
    settings_class = RandomSettings
    settings: RandomSettings

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """All of its policies: nobody published it, it is what the published ones have to beat."""
        return Published({"policies": RandomSettings().policies})

    @classmethod
    def reduced(cls) -> Self:
        return cls(RandomSettings(policies=12))

    def most(self, task: Task) -> int:
        return self.settings.policies

    def jobs(self, task: Task, planned: Mapping[str, Any]) -> list[TrainJob]:
        space = space_of(task.config)
        assert space is not None
        return drawn_jobs(task, space, planned["trainings"], planned["epochs"])

    def best(self, tried: Sequence[Tried]) -> dict[str, Policy]:
        """The best few together first: which of them is the best is mostly luck."""
        policies = best_first(tried)
        top = f"random-top-{self.settings.kept}"
        together = {top: concatenated(policies[: self.settings.kept], top)}
        return together | dict(zip(("random-best", "random-second"), policies, strict=False))


def drawn_jobs(task: Task, space: Space, count: int, epochs: int) -> list[TrainJob]:
    """One policy after the other, each on the next fold; on a fold all networks begin alike."""
    rng, folds = Random(task.seed), len(task.folds)
    policies = [space.decode(space.draw(rng), f"random-{number}") for number in range(count)]
    return [
        task.job(policy.name, policy, fold=number % folds, seed=task.seed + number % folds, epochs=epochs)
        for number, policy in enumerate(policies)
    ]
