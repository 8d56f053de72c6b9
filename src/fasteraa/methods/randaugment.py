"""RandAugment (Cubuk et al., 2019): its two numbers from a grid, trained on every fold. The values of M are ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fasteraa.errors import ConfigError
from fasteraa.methods.black_box import BlackBox, Tried, best_first
from fasteraa.methods.method import Published
from fasteraa.methods.task import Task
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.job import TrainJob


@dataclass(frozen=True, kw_only=True)
class RandAugmentSettings(Settings):
    """`about` of each field is its help."""

    n: tuple[int, ...] = setting((1, 2, 3), "Operations that augment an image.")
    m: tuple[int, ...] = setting((3, 9, 15, 21, 27), "Magnitudes, of 30.")
    epochs: int | None = setting(None, "Of each training; None: what the budget pays for, as of every method.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("n", 1, 8), ("m", 0, 30)):
            values = getattr(self, name)
            if not values or not all(type(each) is int and low <= each <= high for each in values):
                raise ConfigError(f"{name} must be whole numbers in {low}..{high}, got {list(values)}")


class RandAugmentGrid(BlackBox):
    """The best pairs of n and m."""

    name = "randaugment"
    settings_class = RandAugmentSettings
    settings: RandAugmentSettings

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """Each pair trains the network of the paper's table to the end."""
        return Published({"epochs": 200}, {"network": "wrn-40-2", "epochs": 200, "train": {"cutout": 16}})

    @classmethod
    def reduced(cls) -> Self:
        return cls(RandAugmentSettings(n=(1, 2), m=(9, 21)))

    def most(self, task: Task) -> int:
        return len(self.settings.n) * len(self.settings.m) * len(task.folds)

    def jobs(self, task: Task, planned: Mapping[str, Any]) -> list[TrainJob]:
        """Each pair of n and m on every fold; on a fold all networks begin alike."""
        folds = range(len(task.folds))
        pairs = payable_grid(self.settings, planned["trainings"] // len(folds))
        policies = [policy for n, m in pairs if (policy := randaugment(n, m, task.config.ops)) is not None]
        return [
            task.job(policy.name, policy, fold=fold, seed=task.seed + fold, epochs=planned["epochs"])
            for policy in policies
            for fold in folds
        ]

    def words(self, task: Task, jobs: Sequence[TrainJob]) -> str:
        folds = len(task.folds)
        return f"{super().words(task, jobs)}, {len(jobs) // folds} pairs of n and m on {folds} folds"

    def best(self, tried: Sequence[Tried]) -> dict[str, Policy]:
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
