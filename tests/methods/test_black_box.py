"""What black-box methods share: what a budget pays for, and that no candidate is judged by images that made it."""

import math
from dataclasses import replace
from random import Random

import pytest

from fasteraa.methods import Budget
from fasteraa.methods.black_box import Tried, best_first, candidates_of, payable_trainings, plan, tried_by
from fasteraa.methods.random import RandomSettings
from fasteraa.methods.space import Space
from fasteraa.runtime.decisions import Decisions
from fasteraa.train.job import Outcome

from .planted import RECIPE, scripted, task_of

SPACE = Space(("rotate", "invert", "brightness"))


def policies(count):
    rng = Random(0)
    return [SPACE.decode(SPACE.draw(rng), f"{number}") for number in range(count)]


# --- what a budget pays for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "trainings", "epochs"),
    [
        (Budget(trainings=0), 0, 60),
        (Budget(trainings=5), 0, 60),
        (Budget(trainings=6), 6, 90),
        (Budget(trainings=500), 100, 90),
        (Budget(6 * 60 - 1), 0, 60),
        (Budget(6 * 60), 6, 60),
        (Budget(7 * 60), 7, 60),
        (Budget(100 * 75), 100, 75),
        (Budget(1e6), 100, 90),
        (Budget(math.inf), 100, 90),
    ],
)
def test_informative_trainings_first_longer_ones_then(tmp_path, budget, trainings, epochs):
    """600 steps of an epoch each are too many epochs; a training image costs a sixtieth of a second."""
    task = task_of(recipe=replace(RECIPE, epochs=200, batch_size=6))
    assert (task.train_images, task.informative_epochs()) == (60, 60)
    runner = scripted(tmp_path, image_seconds=1 / 60)
    assert payable_trainings(task, budget, runner, 100) == {"trainings": trainings, "epochs": epochs}


def test_a_plan_is_kept_for_the_same_settings(tmp_path):
    task = replace(task_of(), decisions=Decisions(tmp_path / "schedule.json", "a race"))
    asked = []

    def decide(settings, again=task):
        return plan(again, "random", settings, lambda: asked.append(1) or {"trainings": len(asked)})

    assert decide(RandomSettings())["trainings"] == 1
    assert decide(RandomSettings())["trainings"] == 1
    resumed = replace(task, decisions=Decisions(tmp_path / "schedule.json", "a race"))
    assert decide(RandomSettings(), resumed)["trainings"] == 1
    earlier = {name: value for name, value in RandomSettings().plain().items() if name != "kept"}
    resumed.decisions.content["random"]["settings"] = earlier  # of a version that had no such setting
    assert decide(RandomSettings(), resumed)["trainings"] == 1
    assert decide(RandomSettings(kept=3), resumed)["trainings"] == 2


# --- what was tried --------------------------------------------------------------------------------------------------


def test_the_best_are_those_below_the_middle_of_their_fold():
    a, b, c, d, e, f = policies(6)
    tried = [
        Tried(a, "easy", 0.10), Tried(b, "easy", 0.20), Tried(c, "easy", 0.21),
        Tried(d, "hard", 0.70), Tried(e, "hard", 0.90), Tried(f, "hard", 1.30),
    ]  # fmt: skip
    assert best_first(tried) == [d, a, b, e, c, f]


def test_a_policy_on_several_folds_counts_by_the_mean():
    a, b, c = policies(3)
    scores = {a: (0.1, 0.9), b: (0.3, 0.5), c: (0.2, 0.8)}
    tried = [Tried(policy, fold, score) for policy in scores for fold, score in zip("xy", scores[policy], strict=True)]
    assert best_first(tried) == [b, a, c]


def test_failed_trainings_and_luck():
    task, (a, b, c) = task_of(), policies(3)
    jobs = [task.job(each.name, each, fold=fold, seed=0) for each in (a, b, c) for fold in range(2)]
    outcomes = {job.key: Outcome(10.0, 0.0, 0.1, 1.0) for job in jobs}
    outcomes[jobs[0].key] = Outcome(math.nan, math.nan, math.nan, 1.0, "the loss was not finite")
    del outcomes[jobs[5].key]
    assert tried_by(jobs, outcomes) == [Tried(b, "fold 1", 1 / 30, 1.0), Tried(b, "fold 2", 1 / 30, 1.0)]


def one(tried):
    return {"best": best_first(tried)[0]}


def test_what_races_on_a_fold_is_made_of_what_was_tried_on_the_others():
    a, b, c, d, e, f = policies(6)
    tried = [
        Tried(a, "fold 1", 0.1), Tried(b, "fold 1", 0.9), Tried(c, "fold 2", 0.2),
        Tried(d, "fold 2", 0.9), Tried(e, "fold 3", 0.3), Tried(f, "fold 3", 0.9),
    ]  # fmt: skip
    (candidate,) = candidates_of(tried, one)
    assert candidate.policy == a
    assert dict(candidate.on_folds) == {"fold 1": c, "fold 2": a, "fold 3": a}
    assert candidate.policy_on("fold 1") == c
    assert candidate.details["tried"][0] == ["fold 1", 0.1, 0.0]


def test_without_two_folds_nobody_can_judge():
    a, b = policies(2)
    assert candidates_of([], one) == []
    assert candidates_of([Tried(a, "fold 1", 0.1), Tried(b, "fold 1", 0.2)], one) == []


def test_one_of_those_that_came_out_the_same_and_none_that_a_fold_lacks():
    a, b, c = policies(3)
    tried = [Tried(a, "fold 1", 0.1), Tried(b, "fold 1", 0.3), Tried(c, "fold 2", 0.2)]

    def several(tried):
        ranked = best_first(tried)
        return {"best": ranked[0], "again": ranked[0], **({"second": ranked[1]} if len(ranked) > 1 else {})}

    assert [each.label for each in candidates_of(tried, several)] == ["best"]
