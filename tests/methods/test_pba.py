"""Population-based augmentation: its rule, exploit and explore, lineages as schedules, and a planted truth."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from fasteraa.errors import ConfigError
from fasteraa.methods import Budget, make_methods
from fasteraa.methods.black_box import TimeShare
from fasteraa.methods.pba import (
    PbaSettings,
    Population,
    PopulationBased,
    evolve,
    explored,
    payable,
    sub_policies,
    training_seconds,
)
from fasteraa.methods.space import Space
from fasteraa.ops import OPS
from fasteraa.policy.policy import Policy
from fasteraa.train.group import Group
from fasteraa.train.job import Outcome
from fasteraa.train.live_groups import LiveGroups
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import local
from fasteraa.train.runner.local import LocalRunner

from ..train.conftest import levels
from .planted import OPERATIONS, RECIPE, dose, scripted, summary, task_of

SPACE = Space(("rotate", "invert", "brightness"))
LONG = replace(RECIPE, epochs=30)


def population(count=8, epochs=12, fold=0, seed=0, **settings):
    task = task_of(recipe=replace(RECIPE, epochs=epochs), seed=seed)
    return Population(task, Space(OPERATIONS), PbaSettings(**settings), fold, count, epochs)


def outcome(error):
    return Outcome(error, 1.0, 1.0, 1.0, "the loss was not finite" if math.isnan(error) else None)


def trained(found, errors, first, last):
    """One part of every trial, with these errors."""
    jobs = found.jobs(first, last)
    found.learn(jobs, {job.key: outcome(error) for job, error in zip(jobs, errors, strict=True)})
    return jobs


def test_by_name():
    (method,) = make_methods("pba")
    assert method.settings == PbaSettings(trials=16, interval=3, epochs=None, replaced=0.25, resampled=0.2)
    with pytest.raises(ConfigError, match="trials must be a number of at least 4, got 3"):
        PbaSettings(trials=3)


# --- its numbers -----------------------------------------------------------------------------------------------------


def test_explore():
    """Up to three steps either way, each as likely, or anything with the chance of a fifth; never beyond the limits."""
    rng, start = Random(0), (5, 5)
    steps = [Counter(explored(start, rng, 0.2)[place] - 5 for _ in range(6000)) for place in range(2)]
    for place, most in enumerate((10, 9)):
        assert set(steps[place]) == set(range(-5, most - 4))
        anew = 0.2 / (most + 1)
        for step, chance in ((0, 0.2), (1, 0.1), (-3, 0.1), (4, 0.0)):
            expected = 6000 * (anew + chance)  # of 0 there are two: up and down
            assert abs(steps[place][step] - expected) < 5 * math.sqrt(expected)
    assert {explored((10, 9), rng, 0.0) for _ in range(500)} == {(10 - a, 9 - b) for a in range(4) for b in range(4)}
    assert {max(explored((0, 0), rng, 1.0)) for _ in range(500)} == set(range(11))


def imitated(numbers, space, rng):
    """PBA's own procedure: shuffle, apply each with its probability until the count is used up."""
    entries = [(op, numbers[2 * i], numbers[2 * i + 1]) for i, op in enumerate([*space.ops, *space.ops])]
    rng.shuffle(entries)
    count = rng.choices((0, 1, 2), (0.2, 0.3, 0.5))[0]
    applied = []
    for op, probability, magnitude in entries:
        if len(applied) < count and rng.random() < probability / 10:
            applied.append((op, magnitude))
    return applied


@pytest.mark.parametrize(
    "numbers",
    [
        (3, 9, 0, 0, 10, 2, 1, 4, 5, 0, 7, 7),
        (10, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (2, 1, 0, 3, 0, 9, 1, 9, 0, 0, 0, 0),
    ],
)
def test_the_rule_is_that_of_pba(numbers):
    """How many operations an image gets, and how often each of them."""
    rng, many = Random(1), 30_000
    counts, often = Counter(), Counter()
    for _ in range(many):
        applied = imitated(numbers, SPACE, rng)
        counts[len(applied)] += 1
        often.update((op, magnitude if op != "invert" else None) for op, magnitude in applied)
    policy = Policy(tuple(sub_policies(numbers, SPACE)))
    shares = {len(sub.stages): sub.weight for sub in policy.sub_policies}
    assert sum(shares.values()) == pytest.approx(1)
    met = Counter()
    for choice, share in policy.exposures():
        assert choice.probability == 1.0
        met[choice.op, None if choice.op == "invert" else round(9 * choice.range[1])] += share
    for count in range(3):
        assert counts[count] / many == pytest.approx(shares.get(count, 0.0), abs=0.015)
    assert set(often) == {each for each in met if met[each] > 0}
    for each, share in met.items():
        assert often[each] / many == pytest.approx(share, abs=0.015)


def test_zeros_do_nothing():
    (nothing,) = sub_policies((0, 9) * 6, SPACE)
    assert (nothing.stages, nothing.weight) == ((), 1.0)


# --- exploit ---------------------------------------------------------------------------------------------------------


def test_all_begin_alike_but_for_their_seeds():
    found = population(4)
    jobs = found.jobs(0, 3)
    assert [job.seed for job in jobs] == [0, 2, 4, 6]
    assert [job.seed for job in population(4, fold=1).jobs(0, 3)] == [1, 3, 5, 7]
    assert {(job.epochs, job.after, len(job.policy.ops)) for job in jobs} == {((0, 3), "", 0)}
    assert {job.recipe.epochs for job in jobs} == {12}
    assert len(found.trials[0].numbers) == 4 * len(OPERATIONS)


def test_the_worst_quarter_goes_on_from_the_best():
    found = population(8)
    jobs = trained(found, [50, 10, 30, 30, 90, 20, 30, 80], 0, 3)
    found.select()
    after = [trial.after for trial in found.trials]
    models = {jobs[1].key, jobs[5].key}
    for number in (4, 7):
        assert after[number] in models
        assert any(found.trials[number].numbers)
    for number in (0, 1, 2, 3, 5, 6):
        assert after[number] == jobs[number].key
        assert not any(found.trials[number].numbers)
    second = found.jobs(3, 6)
    assert [job.seed for job in second] == [job.seed for job in jobs]
    assert second[4].after in models
    assert second[4].policy.ops


def test_what_came_to_nothing_is_replaced_too():
    found = population(8)
    jobs = trained(found, [math.nan, math.nan, math.nan, 40, 50, 60, 30, 20], 0, 3)
    found.select()
    models = {jobs[6].key, jobs[7].key}
    assert {found.trials[number].after for number in (0, 1, 2)} <= models
    assert found.trials[5].after == jobs[5].key
    lost = population(4)
    trained(lost, [math.nan] * 4, 0, 3)
    lost.select()
    assert lost.lowest == math.inf


def test_the_lineage_of_a_clone_is_its_models():
    found = population(4, epochs=12)
    trained(found, [1, 2, 3, 4], 0, 3)
    found.select()  # 3 goes on from 0
    trained(found, [3, 3, 3, 1], 3, 6)
    found.select()  # 3 is the best; the last of those with 3 goes on from it
    trained(found, [3, 3, 1, 2], 6, 9)
    third, fourth = found.trials[2], found.trials[3]
    assert [first for first, _ in third.history] == [0, 3, 6]
    assert third.history[:2] == fourth.history[:2]
    assert third.history[2] != fourth.history[2]
    whole = replace(third, history=(*third.history, (9, third.numbers)))
    schedule = found.schedule(whole)
    assert [(part.start, part.end) for part in schedule.parts] == [
        (0, 0.25),
        (0.25, 0.5),
        (0.5, 1),
    ]  # 6 and 9 are alike
    for part, numbers in zip(schedule.parts, [third.history[k][1] for k in range(3)], strict=True):
        assert part.policy.sub_policies == tuple(sub_policies(numbers, found.space))
    assert not found.schedule(found.trials[0]).scheduled


# --- the whole -------------------------------------------------------------------------------------------------------


def test_planted_truth(tmp_path):
    """To invert does harm, to rotate helps, and the folds differ by more than either."""
    task, runner = task_of(recipe=LONG), scripted(tmp_path)
    schedule, flat = PopulationBased().candidates(task, Budget(trainings=32), runner)
    assert [each.label for each in (schedule, flat)] == ["pba", "pba-flat"]
    assert len(runner.trained) == 320
    assert sum(job.share for job in runner.trained) == pytest.approx(32)
    assert schedule.policy.scheduled
    assert not schedule.policy.parts[0].policy.ops  # nothing, to begin with
    assert flat.policy.hash == schedule.policy.flattened().hash
    for policy in (schedule.policy.parts[-1].policy, *(p.parts[-1].policy for p in schedule.on_folds.values())):
        assert dose(policy, "rotate") > 2 * dose(policy, "invert")
    rows = schedule.details["tried"]  # every part of every trial, in their order
    assert len(rows) == 320
    assert Counter(fold for fold, *_ in rows) == {"fold 1": 160, "fold 2": 160}
    assert min(error for _, error, _ in rows[-32:]) < min(error for _, error, _ in rows[:32])
    assert task.progress.lines[0] == (
        "pba: 2 populations of 16 trainings of 30 epochs of the small network, the worst are replaced every 3 epochs"
    )
    assert len(task.progress.lines) <= 11
    assert task.progress.lines[-1].startswith("pba: 30 epochs of 30, the best accuracy is ")


def test_what_races_on_a_fold_was_rewarded_on_another(tmp_path):
    runner = scripted(tmp_path)
    schedule, flat = PopulationBased().candidates(task_of(recipe=LONG), Budget(trainings=8), runner)
    last = {job.policy.sub_policies: job.split.name for job in runner.trained if job.epochs[1] == 30 and job.policy.ops}
    for candidate in (schedule, flat):
        assert set(candidate.on_folds) == {"fold 1", "fold 2"}
    assert last[schedule.on_folds["fold 1"].parts[-1].policy.sub_policies] == "fold 2"
    assert last[schedule.on_folds["fold 2"].parts[-1].policy.sub_policies] == "fold 1"
    assert flat.on_folds["fold 1"].hash == schedule.on_folds["fold 1"].flattened().hash


@pytest.mark.parametrize(("ops", "paired"), [(None, False), (("rotate", "invert", "sample_pairing"), True)])
def test_the_published_search_has_no_sample_pairing_unless_it_is_named(tmp_path, ops, paired):
    settings = {**PopulationBased.published().settings, "epochs": 30}
    runner = scripted(tmp_path)
    PopulationBased.with_settings(settings).candidates(task_of(ops, recipe=LONG), Budget(trainings=8), runner)
    met = {op for job in runner.trained for op in job.policy.ops}
    assert met == {"rotate", "invert", "sample_pairing"} if paired else met == set(OPS) - {"flip", "sample_pairing"}


def test_killed_and_resumed(tmp_path):
    method, budget = PopulationBased(), Budget(trainings=10)
    whole = summary(method.candidates(task_of(recipe=LONG), budget, scripted(tmp_path / "whole")))
    with pytest.raises(BaseException, match="stopped; 3 of 10 runs were finished"):
        method.candidates(task_of(recipe=LONG), budget, scripted(tmp_path / "killed", stop_after=43))
    rest = scripted(tmp_path / "killed")
    assert summary(method.candidates(task_of(recipe=LONG), budget, rest)) == whole
    assert len(rest.trained) == 57
    other = method.candidates(task_of(recipe=LONG, seed=1), budget, scripted(tmp_path / "other"))
    assert summary(other) != whole


def test_only_the_last_states_are_kept(tmp_path):
    """A state is there as long as a part may continue it."""
    runner, there = scripted(tmp_path), []
    wanted = runner._train

    def train(job):
        state = runner.cache.state(job.key)
        state.parent.mkdir(exist_ok=True)
        assert not job.after or runner.cache.state(job.after).exists()
        state.touch()
        there.append(len(list(state.parent.iterdir())))
        return wanted(job)

    runner._train = train
    populations = [population(4, fold=fold) for fold in range(2)]
    evolve(task_of(), runner, populations, 12, 3, TimeShare(task_of(), "pba", Budget()))
    assert there == [*range(1, 9), *[*range(9, 17)] * 3]
    assert not list((tmp_path / "states").iterdir())


def test_without_time_it_says_why(tmp_path):
    task = task_of(recipe=LONG)
    assert PopulationBased().candidates(task, Budget(trainings=7), scripted(tmp_path)) == []
    assert task.progress.lines == ["pba: no policies, its share of the race must pay for 8 trainings of 30 epochs"]
    assert PopulationBased().candidates(task_of(ops=("flip",)), Budget(trainings=50), scripted(tmp_path)) == []
    alone = replace(task, folds=task.folds[:1])
    assert PopulationBased().candidates(alone, Budget(trainings=50), scripted(tmp_path)) == []


@pytest.mark.parametrize(
    ("budget", "epochs", "expected"),
    [
        (Budget(trainings=50), None, (32, 90)),
        (Budget(trainings=11), None, (10, 90)),
        (Budget(trainings=11), 200, (10, 200)),
        (Budget(8 * 60), None, (8, 60)),
        (Budget(8 * 60 - 1), None, (0, 60)),
        (Budget(32 * 75), None, (32, 75)),
        (Budget(math.inf), None, (32, 90)),
        (Budget(32 * 200), 200, (32, 200)),
        (Budget(8 * 199), 200, (0, 200)),
    ],
)
def test_what_a_budget_pays_for(tmp_path, budget, epochs, expected):
    """A training image costs a sixtieth of a second; 60 epochs are the shortest training that says something."""
    task = task_of(recipe=replace(RECIPE, epochs=200, batch_size=6))
    settings = PbaSettings(epochs=epochs)
    found = payable(task, Space(OPERATIONS), budget, scripted(tmp_path, image_seconds=1 / 60), settings)
    assert (found["trainings"], found["epochs"]) == expected


def test_a_graph_that_is_there_makes_parts_cheaper(tmp_path, monkeypatch):
    """As on a GPU: it is captured once for all parts of a training. Here that takes 8 s, an epoch half a second."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def pass_by(seconds):
        clock.now += seconds

    monkeypatch.setattr(local, "time", clock)
    monkeypatch.setattr(Group, "capture", lambda group: pass_by(8.0))
    monkeypatch.setattr(Group, "one_epoch", lambda group: pass_by(1.0))
    costs = []
    for live in (None, LiveGroups()):
        with LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=1) as runner:
            runner._live = live
            costs.append(training_seconds([population(4, epochs=30)], 30, runner)[30])
    assert costs == pytest.approx([10 * 8 + 15, 8 + 15])


@pytest.mark.slow
def test_with_live_groups_it_finds_the_same(tmp_path):
    """Where a trial continues itself, and from files where it continues another: here each is a group of its own."""
    task = task_of(("rotate", "invert"), data=levels(90, apart=75), recipe=replace(RECIPE, epochs=8))
    found = []
    for name, live in (("cold", None), ("live", LiveGroups())):
        with LocalRunner(RunCache(tmp_path / name).open(), device="cpu", jobs=1) as runner:
            runner._live = live
            method = PopulationBased(PbaSettings(interval=2))
            found.append(summary(method.candidates(task, Budget(trainings=8), runner)))
    assert found[0] == found[1]


def test_parts_cost_more_than_their_epochs(tmp_path):
    found = [population(4, epochs=10)]
    with LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=1) as runner:
        costs = training_seconds(found, 7, runner)
    assert list(costs) == [1, 2, 3, 4, 5, 6, 7]
    assert costs[6] == pytest.approx(2 * costs[3])
    assert costs[4] == pytest.approx(costs[3] + costs[1])
    assert costs[3] < 3 * costs[1]
    assert all(later > earlier for earlier, later in pairwise(costs.values()))


@pytest.mark.slow
def test_real_trainings(tmp_path):
    """To invert makes dark images bright ones, which are the classes; killed in the middle, it is as if it were not."""
    task = task_of(("rotate", "invert"), data=levels(90, apart=75), recipe=replace(RECIPE, epochs=8))
    method, budget = PopulationBased(PbaSettings(interval=2)), Budget(trainings=8)
    with LocalRunner(RunCache(tmp_path / "whole").open(), device="cpu", jobs=1) as runner:
        whole = method.candidates(task, budget, runner)
    with LocalRunner(RunCache(tmp_path / "killed").open(), device="cpu", jobs=1) as runner:
        train, seen = runner.train_group, []

        def stop(group, until=None):
            seen.append(group)
            if len(seen) == 13:
                raise KeyboardInterrupt
            return train(group, until)

        runner.train_group = stop
        with pytest.raises(BaseException, match="stopped; 4 of 8 runs"):
            method.candidates(task, budget, runner)
    with LocalRunner(RunCache(tmp_path / "killed").open(), device="cpu", jobs=1) as runner:
        assert summary(method.candidates(task, budget, runner)) == summary(whole)
    assert not list((tmp_path / "whole" / "states").iterdir())
