"""What a method is: given a task, a budget and a runner it returns candidates, policies with a label."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fasteraa.errors import ConfigError
from fasteraa.policy.policy import Policy

if TYPE_CHECKING:
    from fasteraa.methods.task import Task
    from fasteraa.train.runner import Runner


class Expected(NamedTuple):
    """An error before it is measured, relative to that of the middling policy on the same data."""

    error: float
    spread: float  # one standard deviation between kinds of data


@dataclass(frozen=True)
class Candidate:
    """A policy that takes part in the race, under a label that users can type."""

    label: str
    policy: Policy
    expected: Expected | None = None  # None: only what the race measures counts
    on_folds: Mapping[str, Policy] = field(default_factory=dict)  # what races there in its place
    details: Mapping[str, Any] = field(default_factory=dict)  # what else its method knows, for Result.details

    def policy_on(self, fold: str) -> Policy:
        """A policy made from trainings must not be measured on images that it was made with."""
        return self.on_folds.get(fold, self.policy)


@dataclass(frozen=True)
class Budget:
    """What trainings may cost: seconds of the clock, or a number of trainings, which makes a run repeatable."""

    seconds: float = math.inf
    trainings: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise ConfigError(f"the seconds of a budget must not be negative, got {self.seconds}")
        if self.trainings is not None and self.trainings < 0:
            raise ConfigError(f"the trainings of a budget must not be negative, got {self.trainings}")

    @property
    def amount(self) -> float:
        """In its own unit."""
        return self.seconds if self.trainings is None else float(self.trainings)

    def cost(self, seconds: float, trainings: float) -> float:
        """In its own unit."""
        return seconds if self.trainings is None else float(trainings)

    def share(self, part: float) -> Budget:
        """A part of it."""
        return Budget(part * self.seconds, None if self.trainings is None else int(part * self.trainings))

    def less(self, spent: float) -> Budget:
        """What is left after so much of its own unit."""
        if self.trainings is None:
            return Budget(max(self.seconds - spent, 0.0))
        return Budget(self.seconds, max(self.trainings - math.ceil(spent), 0))


class Method(ABC):
    """Proposes policies. One file each; `fasteraa.methods.METHODS` knows them by name."""

    name: str
    trains = False  # True: it asks the runner for trainings, so it shares the time of the race

    @classmethod
    def reduced(cls) -> Self:
        """With settings with which it takes seconds, for tests; its own where it is quick anyway."""
        return cls()

    @abstractmethod
    def candidates(self, task: Task, budget: Budget, runner: Runner) -> Sequence[Candidate]:
        """Policies worth racing, the best guess first. Same task, budget and seed: same candidates.

        Killed anywhere and called again it continues: trainings come from the runner's cache, and what was decided by
        a clock is kept with `task.decisions`.
        """
