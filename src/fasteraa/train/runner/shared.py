"""The runner under torchrun: one training at a time, of which every rank has a part of each batch.

Rank 0 decides what is trained, keeps the cache and says what there is to say; the others train along until it is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fasteraa.errors import OutOfTime
from fasteraa.runtime.ranks import Ranks
from fasteraa.train.group import Until
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner, check_time, train_now
from fasteraa.train.split import Split
from fasteraa.train.trainer import train_together
from fasteraa.train.training import TrainingRun


@dataclass(frozen=True)
class _Next:
    """What rank 0 trains now."""

    job: TrainJob  # without its images, which every rank has


@dataclass(frozen=True)
class _End:
    """There is nothing more to train."""

    result: Any


class SharedRunner(LocalRunner):
    """On rank 0: trains on the devices of all ranks together."""

    def __init__(self, cache: RunCache, ranks: Ranks, device: str, command: str | None = None):
        super().__init__(cache, device=device, jobs=1, command=command)
        self.ranks = ranks

    def train_group(self, jobs: Sequence[TrainJob], until: Until | None = None) -> list[Outcome]:
        (job,) = jobs
        check_time(until)  # before the others begin
        self.ranks.broadcast(_Next(replace(job, split=None)))  # type: ignore[arg-type]
        return train_now(self.cache, jobs, str(self.device), None, self.command, until, self.ranks)

    def _train(self, jobs: Sequence[TrainJob], until: float) -> Iterator[tuple[TrainJob, Outcome]]:
        for job in jobs:
            with suppress(OutOfTime):
                yield job, self.train_group([job], lambda: until)[0]

    def _image_seconds(self, jobs: Sequence[TrainJob]) -> float:
        return super()._image_seconds(jobs) / self.ranks.size  # measured by rank 0 alone


def tell_end(ranks: Ranks, result: Any) -> None:
    """Rank 0 is done: the others return what it returns."""
    ranks.broadcast(_End(result))


def train_along(ranks: Ranks, split: Split, device: str) -> Any:
    """What the other ranks do; returns what rank 0 reports in the end."""
    while not isinstance(order := ranks.broadcast(), _End):
        job = order.job
        run = TrainingRun(job.policy, job.recipe, job.seed)
        with suppress(OutOfTime):
            train_together(split.train, split.held_out, [run], device=device, until=lambda: math.inf, ranks=ranks)
    return order.result
