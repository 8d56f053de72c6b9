"""The Ray runner: trainings on a cluster, one long-lived actor for each GPU, or for each core where there is none.

An actor keeps the images on its device and trains several policies at once. The driver alone writes the cache, so that
local runs and runs on a cluster continue each other. What an actor was doing when it was lost is done again.
"""

from __future__ import annotations

import math
import os
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fasteraa.data.large import tell
from fasteraa.errors import ConfigError, FasterAAError, OutOfTime, RunError
from fasteraa.runtime.cluster import KEPT, POLL_S, Head, check_cluster, check_versions, connect, versions
from fasteraa.runtime.documents import cut
from fasteraa.runtime.files import write_atomic
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.base import CachingRunner
from fasteraa.train.runner.local import LocalRunner, free_places, groups_of, side_by_side, train_group
from fasteraa.train.split import Split

_START_S = 300.0  # without any device, before it is given up
_LOSSES = 3  # of a training: after that it is what ends its workers


class RayRunner(CachingRunner):
    """Trains on the Ray cluster at `address`: HOST:PORT of its head, or `auto`, the one that this machine is part of.

    `jobs` trainings go side by side on each GPU (default: as many as memory and speed allow), one on each core.
    `device="cpu"` leaves the GPUs of the cluster alone.
    """

    takes = ("device", "address", "jobs", "compile", "command")

    def __init__(
        self,
        cache: RunCache,
        *,
        device: str = "auto",
        address: str | None = None,
        jobs: int | None = None,
        compile: bool | None = None,
        command: str | None = None,
    ):
        super().__init__(cache, jobs)
        _check_device(device)
        self.device = torch.device("cpu")  # of the driver, which trains nothing
        self._wants, self._address = device, address or "auto"
        self._given = (compile, command)
        self._cluster: _Cluster | None = None

    @staticmethod
    def check(*, device: str, address: str | None = None, **_: object) -> None:
        """Before images are read: is the cluster there?"""
        _check_device(device)
        check_cluster(address)

    def __exit__(self, *error: object) -> None:
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.close()

    def prepare(self, splits: Sequence[Split]) -> None:
        """Start the actors, and send the images to those that are ready."""
        cluster = self._open()
        cluster.wait_for_worker()
        for split in splits:
            cluster.put(split)

    def _open(self) -> _Cluster:
        if self._cluster is None:
            self._cluster = _Cluster(self._address, self._wants, self._given)
        return self._cluster

    def _image_seconds(self, jobs: Sequence[TrainJob]) -> float:
        cluster = self._open()
        worker = cluster.wait_for_worker()
        some = jobs[: self._at_once(jobs, worker)]
        seconds = cluster.call(worker, "cost", some, len(some))
        return float(seconds) / max(len(cluster.workers), 1)

    def _at_once(self, jobs: Sequence[TrainJob], worker: _Worker) -> int:
        """On each device, so that every one has some."""
        share = math.ceil(len(jobs) / max(len(self._open().workers), 1))
        most = 1 if worker.facts["places"] is None else self.jobs or min(side_by_side(jobs), worker.facts["places"])
        return max(1, min(most, share))

    def _train(self, jobs: Sequence[TrainJob], until: float) -> Iterator[tuple[TrainJob, Outcome]]:
        if time.time() > until:
            return
        cluster = self._open()
        waiting = deque(groups_of(self.cache, jobs, self._at_once(jobs, cluster.wait_for_worker())))
        running: dict[Any, tuple[_Worker, list[TrainJob]]] = {}
        losses: Counter[str] = Counter()
        try:
            while running or (waiting and time.time() <= until):
                for worker in cluster.idle():
                    if waiting and time.time() <= until:
                        group = waiting.popleft()
                        running[self._begin(worker, group, until)] = worker, group
                for call in cluster.finished(list(running)):
                    worker, group = running.pop(call)
                    results = cluster.result(worker, call)
                    if results is None:
                        waiting.extendleft(self._again(group, losses))
                    else:
                        yield from self._keep_results(group, results)
        finally:
            for worker, _ in running.values():  # somebody stopped: they would finish what nobody waits for
                cluster.drop(worker)

    def _begin(self, worker: _Worker, group: Sequence[TrainJob], until: float) -> Any:
        states = [_bytes(self.cache.checkpoint(job)) for job in group]
        return self._open().start(worker, "train", group, states, until - time.time())

    def _again(self, group: list[TrainJob], losses: Counter[str]) -> list[list[TrainJob]]:
        """What a lost worker was doing, one by one: one of them may be what ends workers."""
        losses.update(job.key for job in group)
        for job in group:
            if losses[job.key] >= _LOSSES:
                raise RunError(
                    f"{job}: {_LOSSES} workers were lost while they trained it, perhaps for lack of memory: {KEPT}, "
                    "with fewer at once (--jobs)"
                )
        tell(f"a worker of the Ray cluster was lost, its trainings run again: {', '.join(map(str, group))}")
        return [[job] for job in group]

    def _keep_results(
        self, group: Sequence[TrainJob], results: Sequence[_Result]
    ) -> Iterator[tuple[TrainJob, Outcome]]:
        for job, result in zip(group, results, strict=True):
            checkpoint = self.cache.checkpoint(job)
            if result.record is None:  # time was up
                if result.checkpoint is not None:
                    write_atomic(checkpoint, result.checkpoint)
                continue
            for suffix, content in result.network.items():
                write_atomic(self.cache.network(job).with_suffix(suffix), content)
            self.cache.write(job, result.record)
            checkpoint.unlink(missing_ok=True)
            yield job, Outcome.of(result.record)


def _check_device(device: str) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"on a cluster --device takes auto, cpu or cuda, got {device!r}")


# --- the cluster, as the driver sees it ------------------------------------------------------------------------------


@dataclass
class _Worker:
    """An actor. Its facts are known once it has started."""

    actor: Any
    call: Any  # that it is busy with; None if it is idle
    facts: dict[str, Any] = field(default_factory=dict)
    holds: set[tuple[str, str]] = field(default_factory=set)  # splits


class _Cluster:
    """Actors on all devices of a cluster, also on those that join later."""

    def __init__(self, address: str, wants: str, given: tuple[bool | None, str | None]):
        self.ray, self.own = connect(address)
        self.head = Head(self.ray.get_runtime_context().gcs_address)
        self.given, self.heard = given, time.monotonic()
        self.on_gpu = wants != "cpu" and self.ray.cluster_resources().get("GPU", 0) >= 1
        if wants == "cuda" and not self.on_gpu:
            raise ConfigError(f"--device cuda was asked for, but the Ray cluster at {self.head.address} has no GPU")
        self.workers: list[_Worker] = []
        self.splits: dict[tuple[str, str], Any] = {}  # by fingerprints: where Ray keeps them

    # --- workers -----------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """An actor for each device; those of a node that was lost are not missed, those of a new one are made."""
        there = int(self.ray.cluster_resources().get("GPU" if self.on_gpu else "CPU", 0))
        for _ in range(there - len(self.workers)):
            resources = {"num_gpus": 1, "num_cpus": 0} if self.on_gpu else {"num_cpus": 1}
            actor = self.ray.remote(**resources, max_restarts=0)(TrainingActor).remote(self.on_gpu, *self.given)
            self.workers.append(_Worker(actor, actor.facts.remote()))

    def wait_for_worker(self) -> _Worker:
        """The first that is ready."""
        while True:
            if ready := [worker for worker in self.workers if worker.facts]:
                return ready[0]
            self.finished([])

    def idle(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.facts and worker.call is None]

    def drop(self, worker: _Worker) -> None:
        with suppress(Exception):
            self.ray.kill(worker.actor)
        self.workers = [each for each in self.workers if each is not worker]

    # --- calls -------------------------------------------------------------------------------------------------------

    def put(self, split: Split) -> Any:
        """Once, whatever asks for it."""
        if split.fingerprints not in self.splits:
            self.splits[split.fingerprints] = self.ray.put(split)
        return self.splits[split.fingerprints]

    def start(self, worker: _Worker, name: str, jobs: Sequence[TrainJob], *given: Any) -> Any:
        """Jobs go without their images, which the actor gets once."""
        split = jobs[0].split
        key = split.fingerprints
        if key not in worker.holds:
            worker.actor.hold.remote(key, self.put(split))
            worker.holds.add(key)
        light = [replace(job, split=None) for job in jobs]  # type: ignore[arg-type]
        worker.call = getattr(worker.actor, name).remote(key, light, *given)
        return worker.call

    def call(self, worker: _Worker, name: str, jobs: Sequence[TrainJob], *given: Any) -> Any:
        """Start it and wait for its result."""
        call = self.start(worker, name, jobs, *given)
        while call not in self.finished([call]):
            pass
        result = self.result(worker, call)
        if result is None:
            raise RunError(f"a worker was lost while it measured what a training costs: {KEPT}")
        return result

    def finished(self, calls: list[Any]) -> list[Any]:
        """Those of the calls that are over, after a second or so; meanwhile actors come and go."""
        if not self.head.answers():
            time.sleep(POLL_S)
            return []
        self.grow()
        starting = {worker.call: worker for worker in self.workers if not worker.facts}
        ready = self._wait([*calls, *starting])
        if ready:
            self.heard = time.monotonic()
        else:
            self._check_devices()
        for call in ready:
            if call in starting:
                self._welcome(starting[call])
        return [call for call in ready if call not in starting]

    def _wait(self, calls: list[Any]) -> list[Any]:
        if not calls:
            time.sleep(POLL_S)
            return []
        ready: list[Any] = self.ray.wait(calls, num_returns=1, timeout=POLL_S)[0]
        return ready

    def result(self, worker: _Worker, call: Any) -> Any:
        """None if the worker was lost, by itself or with its node."""
        worker.call = None
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (RunError(str(cause)) if isinstance(cause, FasterAAError) else error) from error
        except self.ray.exceptions.RayError:
            self.drop(worker)
            for (
                other
            ) in self.idle():  # they may have gone with the same node: nothing is given to them before they answer
                other.facts, other.call = {}, other.actor.facts.remote()
            return None

    def _welcome(self, worker: _Worker) -> None:
        try:
            facts = self.ray.get(worker.call)
        except self.ray.exceptions.RayError as error:
            self.drop(worker)
            if "ModuleNotFoundError" in str(error) or "ImportError" in str(error):
                why = cut(str(error).strip().splitlines()[-1], 150)
                raise RunError(f"fasteraa could not be imported on a node of the Ray cluster: {why}") from error
            return
        check_versions(versions(), facts["versions"], facts["node"])
        worker.call, worker.facts = None, facts

    def _check_devices(self) -> None:
        """Others may have them all, or the nodes that had some are gone."""
        if not any(worker.facts for worker in self.workers) and time.monotonic() > self.heard + _START_S:
            what, where = "GPU" if self.on_gpu else "core", self.head.address
            raise RunError(f"the Ray cluster at {where} had no free {what} for {_START_S:.0f} seconds: {KEPT}")

    def close(self) -> None:
        if self.head.lost:
            return
        for worker in list(self.workers):
            self.drop(worker)
        if self.own:
            self.ray.shutdown()


# --- in an actor -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    """Of one training: its record, or where it stopped when time was up."""

    record: dict[str, Any] | None
    checkpoint: bytes | None = None
    network: dict[str, bytes] = field(default_factory=dict)  # files by their suffix, if the job asked for them


class TrainingActor:
    """Keeps images on its device, and trains."""

    def __init__(self, on_gpu: bool, compile: bool | None, command: str | None):
        self.device, self.compile, self.command = torch.device("cuda:0" if on_gpu else "cpu"), compile, command
        self.splits: dict[tuple[str, str], Split] = {}  # in main memory, to measure a cost on a part of them
        self.placed: dict[tuple[str, str], Split] = {}  # on the device
        if not on_gpu:
            torch.set_num_threads(1)

    def facts(self) -> dict[str, Any]:
        places = free_places(self.device) if self.device.type == "cuda" else None
        return {"versions": versions(), "node": socket.gethostname(), "pid": os.getpid(), "places": places}

    def hold(self, key: tuple[str, str], split: Split) -> None:
        self.splits[key], self.placed[key] = split, split.on(self.device)

    def cost(self, key: tuple[str, str], jobs: Sequence[TrainJob], at_once: int) -> float:
        with tempfile.TemporaryDirectory() as scratch:
            runner = LocalRunner(RunCache(Path(scratch)), device=str(self.device), jobs=at_once)
            return runner._image_seconds([replace(job, split=self.splits[key]) for job in jobs])

    def train(
        self, key: tuple[str, str], jobs: Sequence[TrainJob], states: Sequence[bytes | None], seconds: float
    ) -> list[_Result]:
        """Everything goes back to the driver: nodes need not share a disk."""
        try:
            return self._train(key, jobs, states, seconds)
        except OSError as error:
            raise RunError(
                f"the node {socket.gethostname()} could not keep a checkpoint in {tempfile.gettempdir()!r} "
                f"({error.strerror or error}): free some space there, or take the node out of the cluster; {KEPT}"
            ) from error

    def _train(
        self, key: tuple[str, str], jobs: Sequence[TrainJob], states: Sequence[bytes | None], seconds: float
    ) -> list[_Result]:
        jobs, end = [replace(job, split=self.placed[key]) for job in jobs], time.time() + seconds
        with tempfile.TemporaryDirectory() as scratch:
            cache = RunCache(Path(scratch)).open()
            for job, state in zip(jobs, states, strict=True):
                if state is not None:
                    cache.checkpoint(job).write_bytes(state)
            try:
                outcomes = train_group(cache, jobs, str(self.device), self.compile, self.command, lambda: end)
            except OutOfTime:
                return [_Result(None, _bytes(cache.checkpoint(job))) for job in jobs]
            return [
                _Result(dict(outcome.record), network=_network(cache, job))
                for job, outcome in zip(jobs, outcomes, strict=True)
            ]


def _network(cache: RunCache, job: TrainJob) -> dict[str, bytes]:
    files = {suffix: _bytes(cache.network(job).with_suffix(suffix)) for suffix in (".pt", ".json")}
    return {suffix: content for suffix, content in files.items() if content is not None}


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None
