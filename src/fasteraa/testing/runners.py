"""Checks for a runner: outcomes as those of the local one, nothing run twice, an interrupted run continues.

>>> check_runner(MyRunner)

`ScriptedRunner` is for tests of what stands above a runner: it has outcomes without trainings.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fasteraa.data import load
from fasteraa.policy.named import named
from fasteraa.runtime.documents import read_json
from fasteraa.runtime.files import replacing, sealed, unsealed, write_atomic
from fasteraa.runtime.seeds import seeded
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Runner, make_runner
from fasteraa.train.runner.local import LocalRunner, one_thread
from fasteraa.train.split import Split, fold_splits
from fasteraa.train.training import make_network

# a training that takes a moment
SMALL = TrainRecipe(
    network="small", epochs=2, batch_size=16, learning_rate=0.05, warmup=1, cutout=0, precision="float32"
)
_SOON_S = 0.05  # in which a long training is begun and not finished
Script = Callable[[TrainJob], Mapping[str, Any]]


# --- a runner without trainings ----------------------------------------------------------------------------------


def by_key(job: TrainJob) -> dict[str, float]:
    """Numbers that follow from the job's key alone, so that every run of it has the same."""
    first, second = (int(hashlib.sha256(f"{job.key}{part}".encode()).hexdigest()[:8], 16) / 2**32 for part in "ab")
    return {"error": 20 + 20 * first, "held_out_loss": 0.5 + first, "train_loss": 0.2 + second}


class ScriptedRunner:
    """Outcomes come from a function of the job, at once; they are kept as every runner keeps them.

    `trained` holds the jobs that were asked for and not in the cache. After `stop_after` of them somebody presses
    Ctrl-C. `image_seconds` is what an image is said to cost in an epoch. Networks that are to be kept are as they
    were made from their seed.
    """

    takes = ()

    def __init__(
        self,
        cache: RunCache,
        script: Script = by_key,
        *,
        image_seconds: float = 1e-6,
        stop_after: int | None = None,
    ):
        self.cache, self.script, self.image_seconds, self.stop_after = cache, script, image_seconds, stop_after
        self.trained: list[TrainJob] = []

    def prepare(self, splits: Sequence[Split]) -> None: ...

    def run(self, jobs: Iterable[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        distinct: dict[str, TrainJob] = {}
        for job in jobs:
            distinct.setdefault(job.key, job)
        outcomes = {key: self.cache.read(job) for key, job in distinct.items()}
        yield from ((distinct[key], outcome) for key, outcome in outcomes.items() if outcome is not None)
        for key, job in distinct.items():
            if outcomes[key] is None and time.time() <= until:
                yield job, self._train(job)

    def _train(self, job: TrainJob) -> Outcome:
        if len(self.trained) == self.stop_after:
            raise KeyboardInterrupt
        self.trained.append(job)
        record = {"label": job.label, "seconds": 0.0, **self.script(job)}
        outcome = Outcome.of(record)
        if job.keep_network and not outcome.failed:
            self._keep_network(job)
        self.cache.write(job, record)
        return outcome

    def _keep_network(self, job: TrainJob) -> None:
        with seeded(job.seed):
            network = make_network(job.recipe, len(job.split.train.classes), min(job.split.train.size))
        with replacing(self.cache.network(job)) as partial:
            torch.save(network.state_dict(), partial)

    def estimate(self, jobs: Sequence[TrainJob]) -> float:
        return self.image_seconds * sum(job.image_epochs for job in jobs)

    def __enter__(self) -> ScriptedRunner:
        return self

    def __exit__(self, *error: object) -> None: ...


# --- the checks --------------------------------------------------------------------------------------------------


def check_runner(runner: str | Callable[..., Runner], **settings: Any) -> None:
    """AssertionError unless its outcomes are those of `LocalRunner(jobs=1)` on a CPU, exactly, however it is stopped.

    `runner` is a class or a registered name. It is made a few times, as a search and as `compare` make it, to train on
    CPUs; `settings` are more for `make_runner`, such as the address of a cluster.
    """

    def in_search(cache: RunCache) -> Runner:
        return make_runner(runner, cache, **{"device": "cpu", "compile": False, **settings})

    def in_compare(cache: RunCache) -> Runner:
        return make_runner(runner, cache, **{"device": "cpu", "command": "fasteraa compare photos", **settings})

    jobs = small_jobs()
    long = replace(jobs[0], label="long", recipe=replace(SMALL, epochs=60))
    twin = replace(jobs[0], label="the-first-by-another-name")
    wild = replace(jobs[1], label="wild", recipe=replace(SMALL, learning_rate=1e30, clip=0))
    children = set(multiprocessing.active_children())
    with TemporaryDirectory() as scratch, one_thread():  # sums in one order, here and in processes of their own
        with LocalRunner(RunCache(Path(scratch) / "reference").open(), device="cpu", jobs=1) as reference:
            expected = dict(_by_key(reference.run([*jobs, long, wild])))
        cache = RunCache(Path(scratch) / "checked").open()
        with suppress(KeyboardInterrupt), in_search(cache) as first:
            first.prepare(list({id(job.split): job.split for job in jobs}.values()))
            _check_estimate(first, jobs[0], long)
            _check_time_that_is_up(first, jobs)
            list(first.run([long], time.time() + _SOON_S))
            for _ in first.run(jobs):
                raise KeyboardInterrupt
        _check_everything(in_search, cache, [*jobs, twin, long, wild], expected)
        _check_nothing_is_run_again(in_compare, cache, jobs)
        _check_networks_are_kept(in_compare, cache, jobs[0])
    assert set(multiprocessing.active_children()) == children, "processes are left after the runner was"


def small_jobs() -> list[TrainJob]:
    """Four trainings on two folds of the embedded sample, each of them a moment."""
    folds = fold_splits(load(None, size=8, subset=60), 2, seed=0)
    policies = {name: named(name) for name in ("none", "uniform")}
    return [
        TrainJob(label, policy, SMALL, seed, fold)
        for seed, fold in enumerate(folds)
        for label, policy in policies.items()
    ]


def _check_estimate(runner: Runner, short: TrainJob, long: TrainJob) -> None:
    one, other = runner.estimate([short]), runner.estimate([long])
    assert 0 < one < other < math.inf, f"a training is estimated to take {one} s, one of 30 times its epochs {other} s"


def _check_time_that_is_up(runner: Runner, jobs: Sequence[TrainJob]) -> None:
    outcomes = list(runner.run(jobs, until=0.0))
    assert outcomes == [], f"until was in the past, but {len(outcomes)} of {len(jobs)} jobs were run"
    assert not _records(runner.cache), "until was in the past, but records were written"


def _check_everything(
    make: Callable[[RunCache], Runner],
    cache: RunCache,
    jobs: Sequence[TrainJob],
    expected: Mapping[str, Outcome],
) -> None:
    """What the interrupted runner left is neither lost nor run again."""
    before = _records(cache)
    assert before, "the first outcome was given out before it was kept in the cache"
    there = {job.key for job in jobs if cache.read(job) is not None}
    with make(cache) as runner:
        pairs = list(runner.run(jobs))
    keys = [job.key for job, _ in pairs]
    assert set(keys[: len(there)]) == there, "cached outcomes must come first"
    assert sorted(keys) == sorted(expected), f"{len(expected)} distinct jobs have {len(keys)} outcomes"
    after = _records(cache)
    assert {path: after.get(path) for path in before} == before, "records of finished runs were written again"
    assert len(after) == len(expected), f"{len(expected)} distinct jobs have {len(after)} records"
    for job, outcome in pairs:
        _check_same(job, outcome, expected[job.key])
        record = cache.read(job)
        assert record is not None, f"{job}: there is no record of it"
        _check_same(job, record, expected[job.key])


def _check_same(job: TrainJob, outcome: Outcome, expected: Outcome) -> None:
    if expected.failed:
        assert outcome.failed == expected.failed, f"{job}: failed must be {expected.failed!r}, got {outcome.failed!r}"
        return
    assert outcome.failed is None, f"{job}: failed, which it does not in the local runner: {outcome.failed}"
    for name in ("error", "loss", "train_loss"):
        mine, theirs = getattr(outcome, name), getattr(expected, name)
        assert mine == theirs, f"{job}: {name} must be {theirs!r}, as the local runner has it, got {mine!r}"


def _check_nothing_is_run_again(make: Callable[[RunCache], Runner], cache: RunCache, jobs: Sequence[TrainJob]) -> None:
    """A record that says something else than a training would is what comes back."""
    file = cache.file(jobs[-1])
    write_atomic(file, json.dumps(sealed({**unsealed(read_json(file)), "error": 12.5})))
    before = _records(cache)
    with make(cache) as runner:
        outcomes = _by_key(runner.run(jobs))
    assert outcomes.keys() == {job.key for job in jobs}
    assert outcomes[jobs[-1].key].error == 12.5, "a job that was in the cache was run again"
    assert _records(cache) == before, "records of finished runs were written again"


def _check_networks_are_kept(make: Callable[[RunCache], Runner], cache: RunCache, job: TrainJob) -> None:
    """Weights of a run that is finished but did not keep them: it is run once more, and its record stays."""
    before, job = _records(cache), replace(job, keep_network=True)
    with make(cache) as runner:
        pairs = list(runner.run([job]))
    assert [each.key for each, _ in pairs] == [job.key]
    assert cache.network(job).exists(), "a job asked to keep its network, but there is no file of it"
    assert _records(cache) == before, "records of finished runs were written again"


def _by_key(pairs: Iterable[tuple[TrainJob, Outcome]]) -> dict[str, Outcome]:
    return {job.key: outcome for job, outcome in pairs}


def _records(cache: RunCache) -> dict[str, int]:
    """Files of finished runs, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in cache.runs.glob("*.json")}
