"""What runners have in common: finished jobs come from the cache; costs are measured once for a kind of training."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

from fasteraa.errors import ConfigError
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split


class CachingRunner(ABC):
    """A runner whose outcomes go into a `RunCache`; a subclass trains what is missing there.

    `takes` names the settings of `train.runner.SETTINGS` that `__init__` gets by keyword, all of them each time.
    """

    takes: ClassVar[tuple[str, ...]] = ("device", "jobs")

    def __init__(self, cache: RunCache, jobs: int | None = None):
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs must be at least 1, got {jobs}")
        self.cache, self.jobs = cache, jobs
        self._costs: dict[tuple[Any, ...], float] = {}
        self._part_costs: dict[tuple[Any, ...], float] = {}  # of a part of a training, beside its epochs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...  # noqa: B027 (not every runner has anything to end)

    def prepare(self, splits: Sequence[Split]) -> None:  # noqa: B027
        """Place the images of jobs to come, where that takes time."""

    def run(self, jobs: Iterable[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        distinct: dict[str, TrainJob] = {}
        for job in jobs:
            distinct.setdefault(job.key, job)
        missing = []
        for job in distinct.values():
            outcome = self.cache.read(job)
            if outcome is None:
                missing.append(job)
            else:
                yield job, outcome
        began, done = time.monotonic(), []
        for job, outcome in self._train(missing, until) if missing else ():
            done.append(job)
            yield job, outcome
        self._learn_cost(done, time.monotonic() - began)

    @abstractmethod
    def _train(self, jobs: Sequence[TrainJob], until: float) -> Iterator[tuple[TrainJob, Outcome]]:
        """Train them and keep their records."""

    def estimate(self, jobs: Sequence[TrainJob]) -> float:
        """What an image costs is measured once for a kind of training, with jobs that share the device as they will."""
        for job in jobs:
            kind = _kind(job)
            if kind not in self._costs:
                alike = [each for each in jobs if _kind(each) == kind]
                self._costs[kind] = self._image_seconds(alike)
                self._part_costs[kind] = self._part_seconds(alike) if job.epochs else 0.0
        return sum(self._costs[_kind(job)] * job.image_epochs + self._part_costs[_kind(job)] for job in jobs)

    def _part_seconds(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds that one part of a training takes to begin and to be measured."""
        return 0.0

    @abstractmethod
    def _image_seconds(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds that an image costs one training in an epoch."""

    def _learn_cost(self, done: Sequence[TrainJob], seconds: float) -> None:
        """What trainings really took knows of more than epochs: starting them and measuring networks, too."""
        if len({_kind(job) for job in done}) == 1:
            self._costs[_kind(done[0])] = seconds / sum(job.image_epochs for job in done)
            self._part_costs[_kind(done[0])] = 0.0


def _kind(job: TrainJob) -> tuple[Any, ...]:
    """Trainings of one kind cost the same by image and epoch; of a short part, beginning it counts, too."""
    recipe = job.recipe
    probe = (recipe.copies, recipe.epochs) if recipe.copies else ()
    size = job.split.train.size
    return (recipe.network, recipe.batch_size, recipe.precision, *probe, *size, job.epochs is None)
