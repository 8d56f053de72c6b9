"""The local runner: several trainings side by side on a GPU, or one process per core."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.errors import ConfigError, OutOfTime, RunError
from fasteraa.runtime.device import find_device
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.processes import Workers
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split
from fasteraa.train.trainer import (
    Diverged,
    Group,
    Trained,
    Training,
    TrainingRun,
    Until,
    epochs_done,
    save_network,
    train_together,
)

# Small networks leave most of a GPU idle. On an H200, eight runs of WRN-40-2 side by side take 2.36 ms a step each, one
# alone 3.75; two of WRN-28-10 9.0, one alone 9.3 (batches of 128, 32x32). Of EfficientNet-Lite0 with batches of 16 at
# 224x224 four take 3.0 ms a step each, eight 2.9, one alone 5.1. Larger steps keep it busy.
_SIDE_BY_SIDE = ((128 * 32 * 32, 8), (32 * 224 * 224, 4))  # pixels of a step, runs at once
_ROOM = 3 * 2**30  # bytes for each; a compiled WRN-28-10 takes 1.7 GiB
_MEASURED_IMAGES = 2_000  # on which the cost of an epoch is measured, at most
_MEASURED_S = 0.5  # that measuring takes, at least
_MEASURED_JOBS = 2  # on a CPU, one after the other


class LocalRunner:
    """Trains on this machine.

    `jobs` trainings go side by side: by default up to eight of small images on a GPU (where they are branches of one
    CUDA graph), as many as there are cores on a CPU (where they are processes). `compile` as in `train_together`.
    """

    def __init__(
        self,
        cache: RunCache,
        *,
        device: str = "auto",
        jobs: int | None = None,
        compile: bool | None = None,
        command: str | None = None,
    ):
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs must be at least 1, got {jobs}")
        self.cache, self.device, self.jobs, self.compile = cache, find_device(device), jobs, compile
        self.command = command  # the command line that asked for it, for the records
        self._workers: Workers | None = None
        self._costs: dict[tuple[Any, ...], float] = {}

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_workers()

    # --- running -------------------------------------------------------------------------------------------------

    def prepare(self, splits: Sequence[Split]) -> None:
        """On a CPU: start the processes, which takes seconds."""
        jobs = self.jobs or os.cpu_count() or 1
        if self.device.type == "cpu" and jobs > 1:
            self._start_workers(splits, jobs).ready()

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

    def _train(self, jobs: Sequence[TrainJob], until: float) -> Iterator[tuple[TrainJob, Outcome]]:
        at_once = self._at_once(jobs)
        if self.device.type == "cpu" and (at_once > 1 or (self._workers and all(map(self._workers.holds, jobs)))):
            splits = list({id(job.split): job.split for job in jobs}.values())
            try:
                yield from self._start_workers(splits, at_once).results(jobs, until)
            except BaseException:
                self._stop_workers()  # it was told to end: what comes next needs another
                raise
            return
        for group in _groups(self.cache, jobs, at_once):
            with suppress(OutOfTime):
                outcomes = self.train_group(group, until=lambda: until)
                yield from zip(group, outcomes, strict=True)

    def train_group(self, jobs: Sequence[TrainJob], until: Until | None = None) -> list[Outcome]:
        """Train jobs on the same images side by side and keep their records."""
        return _train_group(self.cache, jobs, str(self.device), self.compile, self.command, until)

    def _at_once(self, jobs: Sequence[TrainJob]) -> int:
        if any(isinstance(job.split.train, LazyImageSet) for job in jobs):
            return 1  # reading the images keeps all cores busy
        by_default = (os.cpu_count() or 1) if self.device.type == "cpu" else _side_by_side(jobs, self.device)
        return min(self.jobs or by_default, max(len(jobs), 1))

    def _start_workers(self, splits: Sequence[Split], jobs: int) -> Workers:
        """Those that are there, if they have the images."""
        if self._workers is None or not all(any(s is each for each in self._workers.splits) for s in splits):
            self._stop_workers()
            threads = max(1, (os.cpu_count() or 1) // jobs)
            work = partial(_train_one, self.cache, str(self.device), self.compile, self.command)
            self._workers = Workers(work, splits, jobs, threads).__enter__()
        return self._workers

    def _stop_workers(self) -> None:
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.__exit__()

    # --- what it costs -------------------------------------------------------------------------------------------

    def estimate(self, jobs: Sequence[TrainJob]) -> float:
        """What an image costs is measured once for a kind of training, with jobs that share the device as they will."""
        for job in jobs:
            if _kind(job) not in self._costs:
                self._costs[_kind(job)] = self._image_seconds([each for each in jobs if _kind(each) == _kind(job)])
        return sum(self._costs[_kind(job)] * job.image_epochs for job in jobs)

    def _learn_cost(self, done: Sequence[TrainJob], seconds: float) -> None:
        """What trainings really took knows of more than epochs: starting them and measuring networks, too."""
        if len({_kind(job) for job in done}) == 1:
            self._costs[_kind(done[0])] = seconds / sum(job.image_epochs for job in done)

    def _image_seconds(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds that an image costs one training in an epoch."""
        data, on_gpu, at_once = jobs[0].split.train, self.device.type == "cuda", self.jobs or self._at_once(jobs)
        most = max(_MEASURED_IMAGES, 2 * len(data.classes))
        data = data.subset(most, 0) if len(data) > most else data
        some = jobs[: at_once if on_gpu else _MEASURED_JOBS]
        group = Group([Training(data, job.policy, job.recipe, 0, self.device) for job in some], fuse=False)
        threads = torch.get_num_threads()
        if not on_gpu:
            torch.set_num_threads(1)
        try:
            group.capture()
            if on_gpu:
                group.one_epoch()
            seconds = fastest(group.one_epoch)
        finally:
            torch.set_num_threads(threads)
        return seconds / len(some) / (1 if on_gpu else at_once) / len(data)


def _kind(job: TrainJob) -> tuple[Any, ...]:
    """Trainings of one kind cost the same by image and epoch."""
    return (job.recipe.network, job.recipe.batch_size, job.recipe.precision, *job.split.train.size)


def fastest(epoch: Callable[[], None]) -> float:
    """Of as many as half a second has time for: the first one of few images is slow."""
    began, least = time.monotonic(), math.inf
    while time.monotonic() < began + _MEASURED_S or least == math.inf:
        start = time.monotonic()
        epoch()
        least = min(least, time.monotonic() - start)
    return least


def _side_by_side(jobs: Sequence[TrainJob], device: torch.device) -> int:
    """How many runs share a GPU by default: several where steps are small and there is memory for them."""
    pixels = max((job.recipe.batch_size * _input_pixels(job) for job in jobs), default=0)
    most = next((runs for limit, runs in _SIDE_BY_SIDE if pixels <= limit), 1)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(most, free // _ROOM))


def _input_pixels(job: TrainJob) -> int:
    return job.recipe.input_size**2 or math.prod(job.split.train.size)


def _groups(cache: RunCache, jobs: Sequence[TrainJob], at_once: int) -> Iterator[list[TrainJob]]:
    """So many at once, in their order.

    What shares a graph has the same images and network and as many steps of the same size, and as many of them behind
    it. Those that cannot be resumed come last: what they report ends it all.
    """
    alike: dict[tuple[Any, ...], list[TrainJob]] = {}
    for job in jobs:
        try:
            done, lost = epochs_done(cache.checkpoint(job)), False
        except RunError:
            done, lost = 0, True
        recipe = job.recipe
        kind = (lost, id(job.split), recipe.network, recipe.epochs, recipe.batch_size, done)
        alike.setdefault(kind, []).append(job)
    for _, kind_of in sorted(alike.items(), key=lambda each: each[0][0]):
        yield from (kind_of[first : first + at_once] for first in range(0, len(kind_of), at_once))


def _train_one(
    cache: RunCache, device: str, compile: bool | None, command: str | None, job: TrainJob, until: Until
) -> Outcome:
    """In a worker process."""
    return _train_group(cache, [job], device, compile, command, until)[0]


def _train_group(
    cache: RunCache,
    jobs: Sequence[TrainJob],
    device: str,
    compile: bool | None,
    command: str | None,
    until: Until | None = None,
) -> list[Outcome]:
    if until is not None and time.time() > until():
        raise OutOfTime("time was up before the run began")
    split = jobs[0].split
    runs = [TrainingRun(job.policy, job.recipe, job.seed, cache.checkpoint(job)) for job in jobs]
    try:
        trained = train_together(split.train, split.held_out, runs, device=device, fuse=compile, until=until)
    except OutOfTime:
        raise
    except RunError as error:
        raise RunError(f"{'; '.join(map(str, jobs))}: {error}") from error
    for job, each in zip(jobs, trained, strict=True):
        if job.keep_network and isinstance(each, Trained):
            save_network(cache.network(job), each)
    records = [{**_record(job, each), "command": command} for job, each in zip(jobs, trained, strict=True)]
    for job, record in zip(jobs, records, strict=True):
        cache.write(job, record)
    return [Outcome.of(record) for record in records]


def _record(job: TrainJob, trained: Trained | Diverged) -> dict[str, Any]:
    if isinstance(trained, Diverged):
        known = {"diverged": trained.why, "seconds": round(trained.seconds, 2), "together": trained.together}
        return {"label": job.label, **known, **trained.provenance}
    return {
        "label": job.label,
        "error": trained.error,
        "error_top5": trained.error_top5,
        "held_out_loss": trained.held_out_loss,
        "train_loss": trained.train_loss,
        "seconds": round(trained.seconds, 2),
        "setup_seconds": round(trained.setup_seconds, 2),
        "together": trained.together,
        "share_seconds": round(trained.share_seconds, 2),
        "kernels": trained.kernels,
        "steps": trained.steps,
        **trained.provenance,
    }
