"""A share of the time holds on a machine that is slower than was measured; a resumed run is the same run."""

import math
import time
from dataclasses import replace

import pytest

from fasteraa.errors import Stopped
from fasteraa.methods import METHODS, Budget
from fasteraa.methods.black_box import LATE, LATEST, TimeShare
from fasteraa.methods.pba import PbaSettings, PopulationBased
from fasteraa.methods.random import RandomSearch
from fasteraa.policy.named import named
from fasteraa.runtime.decisions import Decisions
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import run_jobs
from fasteraa.train.runner.local import LocalRunner

from .planted import OPERATIONS, RECIPE, harmful_and_helpful, scripted, summary, task_of

NAMES = ("random", "randaugment", "autoaugment", "pba")
LONG = replace(RECIPE, epochs=30)
UNIT = 60 * LONG.epochs  # seconds that a training is said to take


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)

    def slow(self, times):
        """Trainings take so many times what the runner says."""

        def script(job):
            self.now += times * job.image_epochs
            return harmful_and_helpful(job)

        return script


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def task_in(folder, ops=OPERATIONS):
    folder.mkdir(exist_ok=True)
    return replace(task_of(ops, recipe=LONG), decisions=Decisions(folder / "schedule.json", "a race"))


def slow_run(name, folder, clock, times, **options):
    ops = None if name == "randaugment" else OPERATIONS
    task, runner = task_in(folder, ops), scripted(folder, clock.slow(times), image_seconds=1.0, **options)
    began = clock.now
    candidates = METHODS.load(name)().candidates(task, Budget(24.5 * UNIT), runner)
    return candidates, runner, (clock.now - began) / (24.5 * UNIT), task.progress.lines


@pytest.mark.parametrize("name", NAMES)
def test_on_a_machine_as_fast_as_was_measured_everything_is_trained(tmp_path, clock, name):
    candidates, _, taken, lines = slow_run(name, tmp_path, clock, 1.0)
    assert candidates
    assert 0.7 < taken <= 1
    assert not any("time is up" in line for line in lines)
    assert set(task_in(tmp_path).decisions.get(name)) == {"trainings", "epochs", "settings"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("times", [1.5, 3.0])
def test_on_a_slower_machine_it_ends_with_what_it_has(tmp_path, clock, name, times):
    candidates, _, taken, lines = slow_run(name, tmp_path, clock, times)
    assert candidates
    assert 0.8 < taken <= LATE
    (line,) = [line for line in lines if "time is up" in line]
    assert line.startswith(f"{name}: its time is up after ")
    again, more, none, _ = slow_run(name, tmp_path, clock, times)  # resumed, with a new clock
    assert (summary(again), more.trained, none) == (summary(candidates), [], 0)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_decided_is_kept_before_anybody_acts_on_it(tmp_path, clock, monkeypatch, name):
    whole = summary(slow_run(name, tmp_path / "whole", clock, 2.0)[0])
    note = Decisions.note

    def killed(self, method, values):
        note(self, method, values)
        if {"ended", "finished"} & set(values):
            raise KeyboardInterrupt

    monkeypatch.setattr(Decisions, "note", killed)
    with pytest.raises(KeyboardInterrupt):
        slow_run(name, tmp_path / "killed", clock, 2.0)
    monkeypatch.setattr(Decisions, "note", note)
    again, runner, _, _ = slow_run(name, tmp_path / "killed", clock, 1.0)
    assert (summary(again), runner.trained) == (whole, [])


def test_killed_before_its_time_was_up_it_continues(tmp_path, clock):
    with pytest.raises(Stopped):
        slow_run("random", tmp_path, clock, 1.5, stop_after=5)
    _, runner, taken, _ = slow_run("random", tmp_path, clock, 1.5)
    assert taken <= LATE
    assert len(runner.trained) > 5


def test_a_number_of_trainings_is_trained_however_long_it_takes(tmp_path, clock):
    for name in NAMES:
        runner = scripted(tmp_path / name, clock.slow(1e6))
        METHODS.load(name)().candidates(task_of(recipe=LONG, ops=None), Budget(trainings=24), runner)
        assert sum(job.share for job in runner.trained) > 16


def test_networks_of_fast_aa_that_are_not_in_time_are_left_out(tmp_path, clock):
    """Half of its share was for three networks; they take three times as long."""
    pytest.importorskip("optuna")
    method = METHODS.load("fast-aa")
    found = []
    for trained in (2, 0):  # and resumed
        task, runner = task_in(tmp_path), scripted(tmp_path, clock.slow(3.0), image_seconds=1.0)
        settings = {"trials": 2, "passes": 1, "kept": 1}
        candidates = method.with_settings(settings).candidates(task, Budget(6.1 * UNIT), runner)
        assert len(runner.trained) == trained
        assert set(candidates[0].on_folds) == {"fold 1", "fold 2"}
        found.append(summary(candidates))
    assert found[0] == found[1]


# --- a population ----------------------------------------------------------------------------------------------------


def test_a_population_that_ends_early_proposes_its_best_schedule_up_to_then(tmp_path, clock):
    (schedule, _), runner, _, lines = slow_run("pba", tmp_path, clock, 2.0)
    done = max(job.epochs[1] for job in runner.trained)
    assert 3 < done < LONG.epochs
    assert lines[-1].startswith(f"pba: its time is up after {done} of {LONG.epochs} epochs")
    parts = schedule.policy.parts
    assert (parts[0].start, parts[-1].end) == (0, 1)
    assert all(round(part.start * done, 6) % 3 == 0 for part in parts)  # of the epochs that were trained
    last = next(job for job in runner.trained if job.policy.sub_policies == parts[-1].policy.sub_policies)
    assert parts[-1].start == pytest.approx(last.epochs[0] / done)


def test_of_a_population_that_has_not_selected_yet_there_is_no_schedule(tmp_path, clock):
    task, runner = task_in(tmp_path), scripted(tmp_path, clock.slow(3.0), image_seconds=1.0)
    method = PopulationBased(PbaSettings(interval=12))
    assert method.candidates(task, Budget(8 * UNIT), runner) == []
    assert {job.epochs for job in runner.trained} == {(0, 12)}
    assert task.progress.lines[-1].startswith("pba: no policies")


# --- trainings side by side ------------------------------------------------------------------------------------------


class SideBySide:
    """Ten trainings as a group, which a GPU trains together: there are outcomes of all at once, or of none."""

    def __init__(self, folder, clock, seconds):
        self.cache, self.clock, self.seconds, self.inner = RunCache(folder).open(), clock, seconds, scripted(folder)
        self.begun = 0

    def run(self, jobs, until=math.inf):
        jobs = list(jobs)
        for first in range(0, len(jobs), 10):
            self.begun += 1
            self.clock.now += self.seconds
            if self.clock.now <= until:
                yield from list(self.inner.run(jobs[first : first + 10]))


def drawn(task, count):
    return [task.job(f"{seed}", named("uniform"), fold=seed % 3, seed=seed) for seed in range(count)]


@pytest.mark.parametrize(
    ("seconds", "begun", "finished"), [(20.0, 5, 50), (22.0, 5, 50), (24.0, 4, 40), (60.0, 1, 10), (140.0, 5, 0)]
)
def test_of_a_group_that_was_in_time_all_count(tmp_path, clock, seconds, begun, finished):
    """Also those of which nobody asked; and no group begins that would end after the time."""
    task, runner = task_in(tmp_path), SideBySide(tmp_path, clock, seconds)
    jobs = drawn(task, 50)
    outcomes = TimeShare(task, "random", Budget(100.0)).run(runner, jobs)
    assert runner.begun == begun
    assert list(outcomes) == [job.key for job in jobs[:finished]]
    again = TimeShare(task, "random", Budget(100.0)).run(runner, jobs)
    assert (again, runner.begun) == (outcomes, begun)


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.expensive)])
def test_a_runner_that_was_stopped_trains_what_comes_next(tmp_path, at_once):
    """Here and in processes of its own; what was in time then is not trained again."""
    task = replace(task_in(tmp_path), recipe=RECIPE)
    jobs = drawn(task, 6)
    with LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=at_once) as runner:
        runner.prepare(task.folds)
        share = TimeShare(task, "random", Budget(1e6))
        share.end = 0.0
        outcomes = share.run(runner, jobs)
        assert 1 <= len(outcomes) < 6
        every = run_jobs(runner, jobs)
    assert set(every) == {job.key for job in jobs}
    assert {key: every[key] for key in outcomes} == outcomes


def test_a_slow_start_alone_ends_nothing(tmp_path, clock):
    """Workers that start first: the first training came late, and the rest is in time all the same."""
    task, jobs = task_in(tmp_path), drawn(task_of(recipe=LONG), 20)
    waits = iter([30.0, *[3.0] * 19])

    def script(job):
        clock.now += next(waits)
        return harmful_and_helpful(job)

    outcomes = TimeShare(task, "random", Budget(85.0)).run(scripted(tmp_path, script), jobs)
    assert len(outcomes) == 20
    assert "finished" not in task.decisions.get("random")


def test_the_time_begins_with_the_plan(tmp_path, clock):
    """Measuring what a training costs is part of the share."""
    task, runner = task_in(tmp_path), scripted(tmp_path, clock.slow(1.0), image_seconds=1.0)
    estimate = runner.estimate

    def slow_estimate(jobs):
        clock.now += 12 * UNIT
        return estimate(jobs)

    runner.estimate, began = slow_estimate, clock.now
    RandomSearch().candidates(task, Budget(24 * UNIT), runner)
    assert clock.now - began <= LATE * 24 * UNIT
    assert LATE < LATEST
