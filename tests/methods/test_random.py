"""Random search: what is drawn, and that the best of it is found."""

import pytest

from fasteraa.errors import ConfigError
from fasteraa.methods import Budget, make_methods
from fasteraa.methods.random import RandomSearch, RandomSettings, drawn_jobs
from fasteraa.methods.space import Space
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner

from ..train.conftest import levels
from .planted import OPERATIONS, dose, scripted, summary, task_of


def test_by_name():
    (method,) = make_methods("random")
    assert method.settings == RandomSettings(policies=100, kept=5)
    with pytest.raises(ConfigError, match="policies must be a number of at least 6, got 5"):
        RandomSettings(policies=5)


def test_policies_are_drawn_by_the_seed_and_spread_over_the_folds():
    task, space = task_of(seed=7), Space(OPERATIONS)
    jobs = drawn_jobs(task, space, 9, 2)
    assert [job.split.name for job in jobs] == ["fold 1", "fold 2", "fold 3"] * 3
    assert [job.seed for job in jobs] == [7, 8, 9] * 3
    assert {job.recipe.epochs for job in jobs} == {2}
    assert len({job.policy.hash for job in jobs}) == 9
    assert [job.key for job in jobs] == [job.key for job in drawn_jobs(task, space, 9, 2)]
    assert [job.policy for job in jobs[:3]] == [job.policy for job in drawn_jobs(task, space, 3, 2)]
    assert jobs[0].policy != drawn_jobs(task_of(seed=8), space, 1, 2)[0].policy


def test_planted_truth(tmp_path):
    """To invert does harm, to rotate helps, and the folds differ by more than either."""
    task, runner = task_of(), scripted(tmp_path)
    best, first, second = RandomSearch().candidates(task, Budget(trainings=90), runner)
    assert [each.label for each in (best, first, second)] == ["random-top-5", "random-best", "random-second"]
    assert len(runner.trained) == 90
    assert len(best.policy.sub_policies) == 25
    assert best.policy.sub_policies[:10] == (*first.policy.sub_policies, *second.policy.sub_policies)
    drawn = {op: sum(dose(job.policy, op) for job in runner.trained) / 90 for op in ("invert", "rotate")}
    for policy in (best.policy, *best.on_folds.values(), first.policy):
        assert dose(policy, "invert") < 0.5 * drawn["invert"]
        assert dose(policy, "rotate") > 1.2 * drawn["rotate"]
    first, *lines = task.progress.lines
    assert first == "random: 90 trainings of 4 epochs of the small network"
    assert [line.split(" random")[0] for line in lines] == [f"random: {9 * k}/90" for k in range(1, 11)]


def test_what_races_on_a_fold_was_tried_on_the_others(tmp_path):
    runner = scripted(tmp_path)
    top, best, _ = RandomSearch().candidates(task_of(), Budget(trainings=30), runner)
    where = {job.policy.hash: job.split.name for job in runner.trained}
    assert set(best.on_folds) == {"fold 1", "fold 2", "fold 3"}
    for fold, policy in best.on_folds.items():
        assert where[policy.hash] != fold
    subs = {sub: job.split.name for job in runner.trained for sub in job.policy.sub_policies}
    for fold, policy in top.on_folds.items():
        assert fold not in {subs[sub] for sub in policy.sub_policies}


def test_killed_and_resumed(tmp_path):
    whole = summary(RandomSearch().candidates(task_of(), Budget(trainings=20), scripted(tmp_path / "whole")))
    with pytest.raises(BaseException, match="stopped; 7 of 20 runs were finished"):
        RandomSearch().candidates(task_of(), Budget(trainings=20), scripted(tmp_path / "killed", stop_after=7))
    rest = scripted(tmp_path / "killed")
    assert summary(RandomSearch().candidates(task_of(), Budget(trainings=20), rest)) == whole
    assert len(rest.trained) == 13
    other = RandomSearch().candidates(task_of(seed=1), Budget(trainings=20), scripted(tmp_path / "other"))
    assert summary(other) != whole


def test_without_time_it_says_why(tmp_path):
    task = task_of()
    assert RandomSearch().candidates(task, Budget(trainings=5), scripted(tmp_path)) == []
    assert task.progress.lines == ["random: no policies, its share of the race must pay for 6 trainings of 4 epochs"]
    assert RandomSearch().candidates(task_of(ops=("flip",)), Budget(trainings=50), scripted(tmp_path)) == []


@pytest.mark.slow
def test_real_trainings(tmp_path):
    """To invert makes dark images bright ones, which are the classes; to rotate does nothing."""
    ops = ("rotate", "invert")
    task, method = task_of(ops, data=levels(90, apart=75)), RandomSearch(RandomSettings(kept=3))
    with LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=1) as runner:
        top, *rest = method.candidates(task, Budget(trainings=24), runner)
        again = method.candidates(task, Budget(trainings=24), runner)
    drawn = drawn_jobs(task, Space(ops), 24, 4)
    assert dose(top.policy, "invert") < 0.8 * sum(dose(job.policy, "invert") for job in drawn) / 24
    assert summary(again) == summary([top, *rest])
