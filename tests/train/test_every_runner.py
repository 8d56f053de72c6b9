"""One file over all runners: the checks that come with the package, and that each of them can fail."""

import math
import multiprocessing
from dataclasses import replace
from typing import ClassVar

import pytest

from fasteraa.testing.runners import ScriptedRunner, by_key, check_runner, small_jobs
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import RUNNERS, local
from fasteraa.train.runner.local import LocalRunner


@pytest.fixture(autouse=True)
def quick_estimates(monkeypatch):
    monkeypatch.setattr(local, "_MEASURED_S", 0.0)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", [name for name in RUNNERS.names() if name != "ray"])  # test_ray_runner.py has it
def test_every_runner(name, jobs):
    check_runner(name, jobs=jobs)


# --- runners with one mistake each -----------------------------------------------------------------------------------


class Broken(LocalRunner):
    """Whatever is taken from it."""


class RoundsItsLosses(Broken):
    def run(self, jobs, until=math.inf):
        for job, outcome in super().run(jobs, until):
            yield job, replace(outcome, loss=round(outcome.loss, 6))


class TrainsWhatIsThere(Broken):
    def run(self, jobs, until=math.inf):
        for job in {job.key: job for job in jobs}.values():
            self.cache.file(job).unlink(missing_ok=True)
        yield from super().run(jobs, until)


class NeverLooksAtTheClock(Broken):
    def run(self, jobs, until=math.inf):
        yield from super().run(jobs)


class RunsEqualKeysApart(Broken):
    def run(self, jobs, until=math.inf):
        for job in jobs:
            yield from super().run([job], until)


class KeepsNothing(Broken):
    def run(self, jobs, until=math.inf):
        for job, outcome in super().run(jobs, until):
            self.cache.file(job).unlink()
            yield job, outcome


class CachedOnesLast(Broken):
    def run(self, jobs, until=math.inf):
        yield from reversed(list(super().run(jobs, until)))


class ForgetsWhatFailed(Broken):
    def run(self, jobs, until=math.inf):
        for job, outcome in super().run(jobs, until):
            yield job, replace(outcome, failed=None, error=90.0) if outcome.failed else outcome


class HasNoIdeaOfTime(Broken):
    def estimate(self, jobs):
        return 1.0


class ThrowsNetworksAway(Broken):
    def run(self, jobs, until=math.inf):
        yield from super().run([replace(job, keep_network=False) for job in jobs], until)


class LeavesAProcess(Broken):
    left: ClassVar = []

    def __exit__(self, *error):
        process = multiprocessing.get_context("fork").Process(target=multiprocessing.Event().wait, args=(60,))
        process.start()
        self.left.append(process)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (RoundsItsLosses, "loss must be .*, as the local runner has it"),
        (TrainsWhatIsThere, "records of finished runs were written again"),
        (NeverLooksAtTheClock, "until was in the past"),
        (RunsEqualKeysApart, "distinct jobs have 7 outcomes"),
        (KeepsNothing, "before it was kept in the cache"),
        (CachedOnesLast, "cached outcomes must come first"),
        (ForgetsWhatFailed, "failed must be 'the training loss was not finite in epoch .', got None"),
        (HasNoIdeaOfTime, r"estimated to take 1\.0 s, one of 30 times its epochs 1\.0 s"),
        (ThrowsNetworksAway, "asked to keep its network, but there is no file of it"),
        (LeavesAProcess, "processes are left"),
    ],
)
def test_a_runner_with_a_mistake_is_found_out(broken, words):
    try:
        with pytest.raises(AssertionError, match=words):
            check_runner(broken, jobs=1)
    finally:
        for process in LeavesAProcess.left:
            process.kill()
            process.join()
        LeavesAProcess.left.clear()


def test_a_job_that_was_in_the_cache_is_what_its_record_says():
    """A runner that trains again and keeps quiet about it."""

    class TrainsAgain(Broken):
        def run(self, jobs, until=math.inf):
            for job, outcome in super().run(jobs, until):
                yield job, replace(outcome, error=outcome.record["error_top5"]) if outcome.error == 12.5 else outcome

    with pytest.raises(AssertionError, match="a job that was in the cache was run again"):
        check_runner(TrainsAgain, jobs=1)


# --- the runner without trainings ------------------------------------------------------------------------------------


def test_a_scripted_runner_keeps_what_it_says(tmp_path):
    cache, jobs = RunCache(tmp_path).open(), small_jobs()
    first = ScriptedRunner(cache, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        list(first.run(jobs))
    assert first.trained == jobs[:3]
    second = ScriptedRunner(cache)
    assert list(second.run(jobs[3:], until=0.0)) == []
    pairs = list(second.run([*reversed(jobs), replace(jobs[0], label="again")]))
    assert second.trained == jobs[3:]
    assert [job for job, _ in pairs] == [jobs[2], jobs[1], jobs[0], jobs[3]]
    for job, outcome in pairs:
        assert (outcome.error, outcome.loss, outcome.train_loss) == tuple(by_key(job).values())
        assert outcome == cache.read(job)
    assert second.estimate(jobs) == pytest.approx(1e-6 * sum(job.image_epochs for job in jobs))
