"""The local runner: several trainings side by side on each GPU, or one process per core."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.errors import OutOfTime, RunError
from fasteraa.runtime.device import find_devices
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.train.group import Group, Until
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.live_groups import LiveGroups
from fasteraa.train.processes import Workers
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.base import CachingRunner
from fasteraa.train.split import Split
from fasteraa.train.trainer import Diverged, Trained, save_network, train_together
from fasteraa.train.training import Training, TrainingPart, TrainingRun, epochs_done

# Small networks leave most of a GPU idle. On an H200, eight runs of WRN-40-2 side by side take 2.36 ms a step each, one
# alone 3.75; two of WRN-28-10 9.0, one alone 9.3 (batches of 128, 32x32). Of EfficientNet-Lite0 with batches of 16 at
# 224x224 four take 3.0 ms a step each, eight 2.9, one alone 5.1. Larger steps keep it busy.
_SIDE_BY_SIDE = ((128 * 32 * 32, 8), (32 * 224 * 224, 4))  # pixels of a step, runs at once
_ROOM = 3 * 2**30  # bytes for each; a compiled WRN-28-10 takes 1.7 GiB
_MEASURED_IMAGES = 2_000  # on which the cost of an epoch is measured, at most
_MEASURED_S = 0.5  # that measuring takes, at least
_MEASURED_JOBS = 2  # on a CPU, one after the other
_MEASURED_STEPS = 2  # of a fine-tuning on a CPU


class LocalRunner(CachingRunner):
    """Trains on this machine, on all of its GPUs unless `device` or `devices` name some.

    `jobs` trainings go side by side: by default up to eight of small images on a GPU (where they are branches of one
    CUDA graph), as many as there are cores on a CPU (where they are processes). Of several GPUs each has a process of
    its own, which keeps the images there. `compile` as in `train_together`.
    """

    takes = ("device", "devices", "jobs", "compile", "command")

    def __init__(
        self,
        cache: RunCache,
        *,
        device: str = "auto",
        devices: str | None = None,
        jobs: int | None = None,
        compile: bool | None = None,
        command: str | None = None,
    ):
        super().__init__(cache, jobs)
        self.devices, self.compile = find_devices(device, devices), compile
        self.device = self.devices[0]  # where what one device does is done
        self.command = command  # the command line that asked for it, for the records
        self._workers: Workers | None = None
        self._live = LiveGroups() if self.device.type == "cuda" else None  # elsewhere there is no graph to save

    def __exit__(self, *error: object) -> None:
        self._stop_workers()

    # --- running -------------------------------------------------------------------------------------------------

    def prepare(self, splits: Sequence[Split]) -> None:
        """Start the processes, which takes seconds."""
        jobs = self.jobs or core_count()
        if len(self.devices) > 1 or (self.device.type == "cpu" and jobs > 1):
            self._start_workers(splits, jobs).ready()

    def _train(self, jobs: Sequence[TrainJob], until: float) -> Iterator[tuple[TrainJob, Outcome]]:
        at_once = self._at_once(jobs)
        if self._in_processes(jobs, at_once):
            splits = list({id(job.split): job.split for job in jobs}.values())
            on_cpu = self.device.type == "cpu"
            groups = [[job] for job in jobs] if on_cpu else list(groups_of(self.cache, jobs, at_once))
            try:
                yield from self._start_workers(splits, at_once).results(groups, until)
            except BaseException:
                self._stop_workers()  # it was to end: what comes next needs another
                raise
            return
        for group in groups_of(self.cache, jobs, at_once):
            with suppress(OutOfTime):
                outcomes = self.train_group(group, until=lambda: until)
                yield from zip(group, outcomes, strict=True)

    def _in_processes(self, jobs: Sequence[TrainJob], at_once: int) -> bool:
        there = self._workers is not None and all(map(self._workers.holds, jobs))
        more = len(jobs) > at_once if self.device.type == "cuda" else at_once > 1
        return there or (more and (self.device.type == "cpu" or len(self.devices) > 1))

    def train_group(self, jobs: Sequence[TrainJob], until: Until | None = None) -> list[Outcome]:
        """Train jobs on the same images side by side and keep their records."""
        if self._live is not None and jobs[0].epochs is None:
            self._live.clear()  # the memory is for others now
        return train_group(self.cache, jobs, str(self.device), self.compile, self.command, until, self._live)

    def _at_once(self, jobs: Sequence[TrainJob]) -> int:
        """Trainings side by side: on each GPU, so that every one has some; on all cores together."""
        if any(isinstance(job.split.train, LazyImageSet) for job in jobs):
            return 1  # reading the images keeps all cores busy
        on_cpu = self.device.type == "cpu"
        by_default = core_count() if on_cpu else min(side_by_side(jobs), free_places(self.device))
        share = len(jobs) if on_cpu else math.ceil(len(jobs) / len(self.devices))
        return min(self.jobs or by_default, max(share, 1))

    def _start_workers(self, splits: Sequence[Split], jobs: int) -> Workers:
        """Those that are there, if they have the images."""
        if self._workers is None or not all(any(s is each for each in self._workers.splits) for s in splits):
            self._stop_workers()
            devices = [str(each) for each in self.devices]
            places = devices if len(devices) > 1 else devices * jobs
            threads = max(1, core_count() // len(places))
            work = partial(_train_there, self.cache, self.compile, self.command)
            self._workers = Workers(work, splits, places, threads).__enter__()
        return self._workers

    def _stop_workers(self) -> None:
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.__exit__()

    # --- what it costs -------------------------------------------------------------------------------------------

    def _image_seconds(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds that an image costs one training in an epoch."""
        data, on_gpu, at_once = jobs[0].split.train, self.device.type == "cuda", self.jobs or self._at_once(jobs)
        slow = not on_gpu and jobs[0].recipe.fine_tunes  # an epoch may take minutes: a few steps tell as much
        most = max(_MEASURED_STEPS * jobs[0].recipe.batch_size if slow else _MEASURED_IMAGES, 2 * len(data.classes))
        data = data.subset(most, 0) if len(data) > most else data
        some = jobs[: at_once if on_gpu else 1 if slow else _MEASURED_JOBS]
        group = Group([Training(data, job.policy, job.recipe, 0, self.device) for job in some], fuse=False)
        with nullcontext() if on_gpu else one_thread():
            group.capture()
            if on_gpu:
                group.one_epoch()
            if copies := 0 if on_gpu else jobs[0].recipe.copies:  # later epochs cost next to nothing
                began = time.monotonic()
                group.one_epoch()
                seconds = (time.monotonic() - began) * min(copies / jobs[0].recipe.epochs, 1.0)
            else:
                seconds = fastest(group.one_epoch)
        together = len(self.devices) if on_gpu or len(self.devices) > 1 else at_once
        return seconds / len(some) / together / len(data)

    def _part_seconds(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds that one part takes beside its epochs: begun from a state, measured, left as a state.

        On a GPU the networks and the graph of the first part do for all of a training.
        """
        on_gpu, at_once = self.device.type == "cuda", self.jobs or self._at_once(jobs)
        some, split, state = jobs[: at_once if on_gpu else 1], jobs[0].split, self.cache.state("estimate")
        part = TrainingPart(0, 1, state, state)
        for _ in range(2):  # the first of all takes longer
            began = time.monotonic()
            members = [Training(split.train, job.policy, job.recipe, 0, self.device, part) for job in some]
            group = Group(members, fuse=False)
            group.capture()
            built = time.monotonic()
            group.leave_states()
            for member in members:
                if self._live is None:
                    member.follow(state)
                member.measure(split.held_out)
            ended = time.monotonic()
        self.cache.drop_states(["estimate"])
        first, last = jobs[0].part
        parts = 1 if self._live is None else math.ceil(jobs[0].recipe.epochs / (last - first))
        seconds = (built - began) / parts + ended - built
        return seconds / len(some) / (len(self.devices) if on_gpu or len(self.devices) > 1 else at_once)


def fastest(epoch: Callable[[], None]) -> float:
    """Of as many as half a second has time for: the first one of few images is slow."""
    began, least = time.monotonic(), math.inf
    while time.monotonic() < began + _MEASURED_S or least == math.inf:
        start = time.monotonic()
        epoch()
        least = min(least, time.monotonic() - start)
    return least


def side_by_side(jobs: Sequence[TrainJob]) -> int:
    """How many runs share a GPU by default: several where steps are small."""
    pixels = max((job.recipe.batch_size * _input_pixels(job) for job in jobs), default=0)
    return next((runs for limit, runs in _SIDE_BY_SIDE if pixels <= limit), 1)


def free_places(device: torch.device) -> int:
    """Runs that a GPU has memory for."""
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, free // _ROOM)


def _input_pixels(job: TrainJob) -> int:
    return job.recipe.input_size**2 or math.prod(job.split.train.size)


def groups_of(cache: RunCache, jobs: Sequence[TrainJob], at_once: int) -> Iterator[list[TrainJob]]:
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
        kind = (lost, id(job.split), recipe.network, recipe.epochs, recipe.batch_size, job.part, done)
        alike.setdefault(kind, []).append(job)
    for _, kind_of in sorted(alike.items(), key=lambda each: each[0][0]):
        yield from (kind_of[first : first + at_once] for first in range(0, len(kind_of), at_once))


def _train_there(
    cache: RunCache, compile: bool | None, command: str | None, device: str, jobs: Sequence[TrainJob], until: Until
) -> list[Outcome]:
    """In a worker process."""
    return train_group(cache, jobs, device, compile, command, until)


def train_group(
    cache: RunCache,
    jobs: Sequence[TrainJob],
    device: str,
    compile: bool | None = None,
    command: str | None = None,
    until: Until | None = None,
    live: LiveGroups | None = None,
) -> list[Outcome]:
    """Train jobs on the same images side by side on a device, and keep their records."""
    check_time(until)
    small = device == "cpu" and all(job.recipe.network == "small" for job in jobs)
    with one_thread() if small else nullcontext():  # several gain little, and on busy cores cost several times the time
        return train_now(cache, jobs, device, compile, command, until, live=live)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch calculates on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_time(until: Until | None) -> None:
    """Is there any left?"""
    if until is not None and time.time() > until():
        raise OutOfTime("time was up before the run began")


def train_now(
    cache: RunCache,
    jobs: Sequence[TrainJob],
    device: str,
    compile: bool | None,
    command: str | None,
    until: Until | None,
    ranks: Ranks = ALONE,
    live: LiveGroups | None = None,
) -> list[Outcome]:
    """Begin, whatever the time: other ranks are beginning, too."""
    split = jobs[0].split
    runs = [TrainingRun(job.policy, job.recipe, job.seed, cache.checkpoint(job), _part(cache, job)) for job in jobs]
    try:
        trained = train_together(
            split.train, split.held_out, runs, device=device, fuse=compile, until=until, ranks=ranks, live=live
        )
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


def _part(cache: RunCache, job: TrainJob) -> TrainingPart | None:
    if job.epochs is None:
        return None
    return TrainingPart(*job.epochs, cache.state(job.after) if job.after else None, cache.state(job.key))


def _record(job: TrainJob, trained: Trained | Diverged) -> dict[str, Any]:
    about = {"label": job.label, **({} if job.epochs is None else {"epochs": list(job.epochs), "after": job.after})}
    if isinstance(trained, Diverged):
        facts = {"diverged": trained.why, "seconds": round(trained.seconds, 2), "together": trained.together}
        return {**about, **facts, **trained.provenance}
    return {
        **about,
        "error": trained.error,
        "error_top5": trained.error_top5,
        "held_out_loss": trained.held_out_loss,
        "balanced_error": trained.balanced_error,
        "balanced_loss": trained.balanced_loss,
        "train_loss": trained.train_loss,
        "seconds": round(trained.seconds, 2),
        "setup_seconds": round(trained.setup_seconds, 2),
        "together": trained.together,
        "share_seconds": round(trained.share_seconds, 2),
        "kernels": trained.kernels,
        "steps": trained.steps,
        **trained.provenance,
    }
