"""What a method is: given a task, a budget and a runner it returns candidates, policies with a label."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from fasteraa.errors import ConfigError
from fasteraa.policy.policy import Policy

if TYPE_CHECKING:
    from fasteraa.methods.config import SearchConfig
    from fasteraa.methods.task import Task
    from fasteraa.runtime.run_folder import RunFolder
    from fasteraa.runtime.settings import Settings
    from fasteraa.train.runner import Runner


class Expected(NamedTuple):
    """What training with a policy will do to the loss, before it is measured."""

    effect: float  # logarithm of the loss relative to that of `none`: -0.1 is about ten percent less
    spread: float  # one standard deviation
    shared: float = 0.0  # of the spread, what policies have in common on a set of images

    @property
    def numbers(self) -> list[float]:
        """As files hold them."""
        return list(self) if self.shared else list(self)[:2]


@dataclass(frozen=True)
class Candidate:
    """A policy that takes part in the race, under a label that users can type."""

    label: str
    policy: Policy
    expected: Expected | None = None  # None: only what the race measures counts
    on_folds: Mapping[str, Policy] = field(default_factory=dict)  # what races there in its place
    # What else its method knows, for Result.details. Of any method: `finished` (False if a time limit ended it early),
    # `done` (how far it came, in words), `origin` (where its policies were made, for the policy file).
    details: Mapping[str, Any] = field(default_factory=dict)

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


class Published(NamedTuple):
    """What the authors of a method searched with, where it is not its default: `--preset paper`."""

    settings: Mapping[str, Any] = {}  # its own
    training: Mapping[str, Any] = {}  # of `RaceConfig`, for the trainings that it asks for


class Method(ABC):
    """Proposes policies. One file each; `fasteraa.methods.METHODS` knows them by name."""

    name: str
    trains = False  # True: it asks the runner for trainings, so it shares the time of the race
    settings_class: ClassVar[type[Settings] | None] = None  # of its own settings, where it has any
    settings: Settings | None = None

    def __init__(self, settings: Settings | None = None):
        """With settings of its own, or with their defaults."""
        self.settings = settings or (self.settings_class() if self.settings_class else None)

    @classmethod
    def with_settings(cls, values: Mapping[str, Any]) -> Self:
        """With settings by name, as TOML files and `--set METHOD.SETTING=VALUE` have them; the others as they are."""
        own = cls().settings
        if own is None:
            raise ConfigError(f"the method {cls.name!r} has no settings of its own, got {', '.join(values)}")
        try:
            return cls(type(own).make(values))
        except ConfigError as error:
            raise ConfigError(f"of the method {cls.name}, {error}") from error

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """For a named set of images."""
        return Published()

    @classmethod
    def reduced(cls) -> Self:
        """With settings with which it takes seconds, for tests; its own where it is quick anyway."""
        return cls()

    def check(self, config: SearchConfig) -> None:  # noqa: B027 (most have nothing to check)
        """ConfigError for settings that it cannot work with. Called before images are read."""

    def check_resumable(self, folder: RunFolder, config: SearchConfig) -> None:  # noqa: B027
        """RunError if what it left in the folder of a run cannot be continued. Called before anything is changed."""

    @abstractmethod
    def candidates(self, task: Task, budget: Budget, runner: Runner) -> Sequence[Candidate]:
        """Policies worth racing, the best guess first. Same task, budget and seed: same candidates.

        Killed anywhere and called again it continues: trainings come from the runner's cache, and what was decided by
        a clock is kept with `task.decisions`.
        """
