"""Which operations help: what is drawn, what the line finds, what is made of it, and that it finds a planted truth."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from fasteraa.errors import PolicyError
from fasteraa.methods import Budget
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.op_effects import (
    Effects,
    OpEffects,
    _evidence,
    _within,
    affordable,
    drawn,
    drawn_jobs,
    exposures,
    fit,
    read_experiment,
    weighted_candidates,
)
from fasteraa.methods.space import operations_to_test
from fasteraa.methods.task import FOLDS, Task
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import EFFECTS, named, weighted
from fasteraa.runtime.progress import Silent
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.job import Outcome
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.split import fold_splits
from fasteraa.train.training import Training

from ..train.conftest import levels

OPERATIONS = operations_to_test(None)


def test_all_but_the_flip_are_tested():
    """Of a new operation nothing is known before."""
    assert set(OPERATIONS) == set(OPS) - {"flip"} >= set(EFFECTS)
    assert operations_to_test(["flip", "invert", "rotate"]) == ["rotate", "invert"]


def test_drawn_policies_have_about_half_of_the_operations_and_come_again():
    policies = drawn(200, OPERATIONS, 3)
    assert policies == drawn(200, OPERATIONS, 3)
    assert policies != drawn(200, OPERATIONS, 4)
    counts = [len(policy.ops) for policy in policies]
    assert min(counts) >= 4
    assert np.mean(counts) == pytest.approx(len(OPERATIONS) / 2, abs=0.5)
    doses = [sum(exposures(policy)[0].values()) for policy in policies]
    assert {round(dose, 2) for dose in doses} == {1, 2, 3}
    for op in OPERATIONS:
        assert 70 < sum(op in policy.ops for policy in policies) < 130
    reaches = {choice.range[1] for policy in policies for choice in policy.choices() if OPS[choice.op].geometric}
    assert reaches == {0.35, 0.7, 1.0}
    assert {tuple(policy.ops) for policy in drawn(30, ["rotate", "invert"], 0)} == {
        ("rotate",), ("invert",), ("rotate", "invert"),
    }  # fmt: skip


def test_how_often_an_image_meets_an_operation():
    """Weights of sub-policies and choices, probabilities, passes and scales, all of them."""
    first = SubPolicy(((Choice("rotate", 0.5, (0.1, 0.8), 3.0), Choice("invert", 1.0)),), 2.0)
    second = SubPolicy(((Choice("invert", 0.2),), (Choice("rotate", 1.0, 0.4),)))
    policy = Policy((first, second)).with_strength((0, 0.5, 0.5), probability=0.5)
    met, reached = exposures(policy)
    rotated = 1.5 * 0.5 * (2 / 3 * 3 / 4 * 0.5 + 1 / 3)
    assert met == pytest.approx({"rotate": rotated, "invert": 1.5 * 0.5 * (2 / 3 / 4 + 1 / 3 * 0.2)})
    assert reached["rotate"] == pytest.approx(1.5 * 0.5 * (2 / 3 * 3 / 4 * 0.5 * 0.8 + 1 / 3 * 0.4))


def lost(policies, folds, truth, noise=0.0):
    """Losses that follow the line, each fold with a level of its own."""
    rng = np.random.default_rng(0)
    losses = []
    for policy, fold in zip(policies, folds, strict=True):
        met = exposures(policy)[0]
        change = sum(truth.get(op, 0.0) * math.sqrt(often) for op, often in met.items()) + noise * rng.normal()
        losses.append(0.7 * (1 + int(fold)) * math.exp(change / 100))
    return losses


def test_a_line_is_found_in_noise():
    truth = {"invert": 20.0, "rotate": -15.0, "color": 6.0}
    policies, folds = drawn(300, OPERATIONS, 0), [str(number % 3) for number in range(300)]
    found = fit(policies, lost(policies, folds, truth, noise=3.0), folds, OPERATIONS)
    assert found.trainings == 300
    for op in OPERATIONS:
        assert found.of[op] == pytest.approx(truth.get(op, 0.0), abs=4 * found.errors[op])
        assert 0.5 < found.errors[op] < 2
    few = fit(policies[:12], lost(policies[:12], folds[:12], truth, noise=3.0), folds[:12], OPERATIONS)
    assert min(few.errors.values()) > max(found.errors.values())


def test_noise_is_looked_for_where_there_is_some():
    """Less the means of three folds, twelve measurements have nine dimensions: the evidence is that of those nine."""
    rng = np.random.default_rng(0)
    folds = [str(number % 3) for number in range(12)]
    x, y = (_within(rng.normal(size=size), folds) for size in ((12, 4), 12))
    levels = np.array([[float(fold == each) for each in "012"] for fold in folds])
    basis = np.linalg.svd(levels)[0][:, 3:]
    for noise in (0.5, 2.0):
        covariance = basis.T @ (noise**2 * np.eye(12) + 25 * x @ x.T) @ basis
        measured = basis.T @ y
        expected = np.linalg.slogdet(covariance)[1] + measured @ np.linalg.solve(covariance, measured)
        assert _evidence(x, y, noise, 3) == pytest.approx(-expected / 2)


def test_far_warps_that_harm_are_seen():
    policies, folds = drawn(120, OPERATIONS, 0), ["one"] * 120
    losses = []
    for policy in policies:
        met, reached = exposures(policy)
        warps = sum(met[op] for op in met if OPS[op].geometric)
        reach = sum(reached[op] for op in met if OPS[op].geometric) / warps if warps else 0.7
        losses.append(math.exp(0.3 * math.sqrt(warps) * (reach - 0.7)))
    assert fit(policies, losses, folds, OPERATIONS).warp_effect == pytest.approx(10, abs=1)
    assert fit(policies, [1 / loss for loss in losses], folds, OPERATIONS).warp_effect == pytest.approx(-10, abs=1)


def test_what_nothing_is_known_about_is_what_was_expected():
    """Noise alone: effects stay near those of other data."""
    policies, folds = drawn(18, OPERATIONS, 0), ["1"] * 18
    found = fit(policies, lost(policies, folds, EFFECTS, noise=40.0), folds, OPERATIONS)
    for op in OPERATIONS:
        assert found.of[op] == pytest.approx(EFFECTS.get(op, 0.0), abs=4)
        assert found.errors[op] > 4


def shares(policy):
    return {choice.op: choice.weight for choice in policy.sub_policies[0].stages[0]}


def test_operations_are_weighted_by_the_squares_of_what_they_do():
    policy = weighted(
        {"invert": -4.0, "rotate": 0.0, "color": 4.0, "solarize": 9.0}, margin=8, ops_per_image=2, warps=0.5
    )
    assert shares(policy) == pytest.approx({"invert": 144 / 224, "rotate": 64 / 224, "color": 16 / 224}, abs=1e-4)
    assert exposures(policy)[0] == pytest.approx({op: 2 * share for op, share in shares(policy).items()}, abs=1e-3)
    assert {choice.op: choice.range[1] for choice in policy.choices()} == {"invert": 0, "rotate": 0.5, "color": 1.0}
    assert set(shares(weighted({"invert": -20.0, "rotate": 7.9}))) == {"invert"}  # not the other with a share of 0


def test_the_general_policy_has_all_operations_and_mild_warps():
    policy = named("general")
    assert policy.name == "general"
    assert set(policy.ops) == set(EFFECTS)
    assert max(shares(policy), key=shares(policy).get) == "solarize"
    assert {choice.range[1] for choice in policy.choices() if OPS[choice.op].geometric} == {0.35}
    assert sum(exposures(policy)[0].values()) == pytest.approx(2, abs=1e-3)


def test_the_general_policy_of_chosen_operations():
    policy = named("general", ops=["rotate", "flip", "solarize"])
    goods = {op: (8 - EFFECTS.get(op, 0.0)) ** 2 for op in ("rotate", "flip", "solarize")}
    assert shares(policy) == pytest.approx({op: good / sum(goods.values()) for op, good in goods.items()}, abs=1e-4)


def known(reach=1.0, **of):
    return Effects(of, dict.fromkeys(of, 1.0), reach, 54)


def test_policies_made_of_what_helps():
    mild, strong, more = (each.policy for each in weighted_candidates(known(rotate=-6.0, color=0.0, invert=4.0), {}))
    ratio = [shares(each)["rotate"] / shares(each)["invert"] for each in (more, mild, strong)]
    assert ratio == sorted(ratio)
    assert [round(sum(exposures(each)[0].values()), 2) for each in (mild, strong, more)] == [2, 2, 3]
    assert [each.label for each in weighted_candidates(known(rotate=1.0, color=2.0), {})] == [
        "weighted", "weighted-strong", "weighted-3-ops",
    ]  # fmt: skip


def test_the_same_policy_does_not_race_against_itself():
    labels = [each.label for each in weighted_candidates(known(rotate=1.0, color=20.0), {})]
    assert labels == ["weighted", "weighted-3-ops"]


def test_warps_go_as_far_as_helps():
    for reach, most in ((1.0, 0.35), (-1.0, 1.0)):
        assert {choice.range[1] for choice in known(reach, rotate=0.0).policy(8).choices()} == {most}


def test_where_all_do_harm_the_least_harmful_are_left():
    assert shares(known(rotate=40.0, invert=60.0).policy(5)) == {"rotate": 1.0}
    with pytest.raises(PolicyError, match=r"no operation helps: all effects are 8\.0 or more"):
        weighted({"rotate": 9.0})


def test_words_and_table():
    assert known(color=-0.4).words("color") == "color +0 ± 2"
    found = known(rotate=-6.4, invert=4.0)
    assert [found.words(op) for op in found.of] == ["rotate -6 ± 2", "invert +4 ± 2"]
    assert found.table() == {"trainings": 54, "of": {"rotate": [-6.4, 1.0], "invert": [4.0, 1.0]}, "reach": 1.0}


# --- the experiment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "trainings", "epochs"),
    [
        (10_000, 108, 90),  # longer ones tell no more
        (108 * 70, 108, 70),
        (108 * 60, 108, 60),
        (108 * 60 - 1, 105, 61),
        (18 * 60, 18, 60),
        (18 * 60 - 1, 0, 0),  # fewer tell too little
    ],
)
def test_whole_folds_of_informative_trainings_are_paid_for(seconds, trainings, epochs):
    assert affordable(Budget(seconds), 1.0, 60, 90, 3) == {"trainings": trainings, "epochs": epochs}


@pytest.mark.parametrize(("budget", "trainings"), [(17, 0), (18, 18), (20, 18), (53, 51), (100, 99), (200, 108)])
def test_counted_trainings_ask_no_clock(budget, trainings):
    plan = affordable(Budget(trainings=budget), 1e9, 60, 90, 3)
    assert plan == {"trainings": trainings, "epochs": 90 if trainings else 0}


RECIPE = TrainRecipe(network="small", epochs=4, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
TESTED = ("rotate", "invert", "brightness", "sharpness")


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def task_of(ops=TESTED, seed=0, count=90):
    data = levels(count, apart=75)
    config = SearchConfig(ops=ops, seed=seed)
    folds = tuple(fold_splits(data, FOLDS, seed))
    return Task(data, config, "cpu", recipe=RECIPE, folds=folds, progress=Said())


def scripted(folder, script, **options):
    return ScriptedRunner(RunCache(folder).open(), script, **options)


def lost_by(loss):
    """A script by a function of the job that gives its loss on held-out images."""
    return lambda job: {"error": 10.0, "held_out_loss": loss(job), "train_loss": 0.1}


@pytest.mark.slow
def test_planted_truth(tmp_path):
    """Inverting half of the images ruins this data, and turning them does nothing to it."""
    task, runner = task_of(), LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=1)
    candidates = OpEffects().candidates(task, Budget(trainings=54), runner)
    assert task.progress.lines == ["op-effects: 54 trainings of 4 epochs of the small network"]
    effects = candidates[0].details["effects"]
    assert effects.trainings == 54
    assert max(effects.of, key=effects.of.get) == "invert"
    assert effects.of["invert"] - 3 * effects.errors["invert"] > effects.of["rotate"]
    assert [each.label for each in candidates] == ["weighted", "weighted-strong", "weighted-3-ops"]
    strong = candidates[1].policy
    assert "invert" not in shares(strong) or shares(strong)["invert"] < 0.5 * shares(strong)["rotate"]


def test_without_time_or_operations_there_is_no_experiment(tmp_path):
    runner = scripted(tmp_path, lost_by(lambda job: 0.5), image_seconds=1.0)
    assert OpEffects().candidates(task_of(("rotate",)), Budget(1e9), runner) == []  # nothing to compare it with
    assert OpEffects().candidates(task_of(("rotate", "flip")), Budget(1e9), runner) == []
    task = task_of()
    informative = 18 * RECIPE.epochs * task.train_images
    assert OpEffects().candidates(task, Budget(informative - 1.0), runner) == []
    assert runner.trained == []
    why = "op-effects: no policies, its share of the race must pay for 18 trainings of"
    assert [line.startswith(why) for line in task.progress.lines] == [True]
    assert OpEffects().candidates(task_of(), Budget(float(informative)), runner) != []
    assert len(runner.trained) == 18


@pytest.mark.parametrize(("in_time", "finished"), [(20, 26), (10, 0)])
def test_on_a_machine_that_is_slower_than_was_measured_it_ends_with_what_it_has(
    tmp_path, monkeypatch, in_time, finished
):
    """36 trainings were planned; in the time that they have only so many end. Fewer than 18 say nothing."""
    task, now = task_of(), [1000.0]
    budget = Budget(36.5 * RECIPE.epochs * task.train_images)
    monkeypatch.setattr(time, "time", lambda: now[0])

    def script(job):
        now[0] += budget.seconds / in_time
        return {"error": 10.0, "held_out_loss": 0.5, "train_loss": 0.1}

    runner = scripted(tmp_path, script, image_seconds=1.0)
    candidates = OpEffects().candidates(task, budget, runner)
    assert len(runner.trained) == int(1.3 * in_time)
    assert [each.details["effects"].trainings for each in candidates[:1]] == [finished] * bool(finished)
    count = len(runner.trained)
    again = OpEffects().candidates(task, budget, runner)  # resumed: with the same trainings
    assert [each.policy.hash for each in again] == [each.policy.hash for each in candidates]
    assert len(runner.trained) == count


def test_losses_below_that_of_one_image_say_nothing():
    """Where no image is wrong, losses of 1e-9 and 1e-3 are the same; by their logarithms all would hang on chance."""
    jobs = drawn_jobs(task_of(), TESTED, 54, 4)

    def read(loss):
        outcomes = {job.key: Outcome(10.0, loss(job), 0.1, 1.0) for job in jobs}
        return read_experiment(jobs, outcomes, TESTED)[0]

    assert read(lambda job: 1e-3 if "invert" in job.policy.ops else 0.0) == read(lambda job: 1e-2)
    assert read(lambda job: 0.2 if "invert" in job.policy.ops else 0.0).of["invert"] > 20


def test_trainings_that_fail_are_left_out_and_most_of_them_are_too_many(tmp_path):
    few = sum({"sharpness", "rotate"} <= set(policy.ops) for policy in drawn(18, TESTED, 0))
    assert 0 < few < 9

    def failing(which):
        sound = lost_by(lambda job: 0.5)
        return lambda job: {"diverged": "why"} if which(set(job.policy.ops)) else sound(job)

    def effects(folder, which):
        candidates = OpEffects().candidates(
            task_of(), Budget(trainings=18), scripted(tmp_path / folder, failing(which))
        )
        return candidates[0].details["effects"] if candidates else None

    assert effects("none", lambda ops: False).trainings == 18
    assert effects("few", lambda ops: {"sharpness", "rotate"} <= ops).trainings == 18 - few
    assert effects("all", lambda ops: True) is None


def test_a_real_training_that_fails_is_left_out(tmp_path, monkeypatch):
    plain = Training.step

    def step(self, images, labels):
        lost = {"sharpness", "rotate"} <= set(self.feed.policy.ops)
        return plain(self, images, labels) + (float("nan") if lost else 0.0)

    monkeypatch.setattr(Training, "step", step)
    task = replace(task_of(), recipe=replace(RECIPE, epochs=1))
    runner = LocalRunner(RunCache(tmp_path).open(), device="cpu", jobs=1)
    candidates = OpEffects().candidates(task, Budget(trainings=18), runner)
    few = sum({"sharpness", "rotate"} <= set(policy.ops) for policy in drawn(18, TESTED, 0))
    assert candidates[0].details["effects"].trainings == 18 - few


def test_what_is_measured_on_a_fold_is_not_in_the_policies_that_race_there(tmp_path):
    """To invert does harm on the images of the second fold alone."""
    runner = scripted(
        tmp_path, lost_by(lambda job: 0.8 if job.split.name == "fold 2" and "invert" in job.policy.ops else 0.4)
    )
    weighted_policy, *_ = OpEffects().candidates(task_of(), Budget(trainings=18), runner)
    first, second, third = (shares(weighted_policy.policy_on(f"fold {fold}"))["invert"] for fold in (1, 2, 3))
    assert second == pytest.approx(1 / 4, abs=0.01)  # on the others nothing does anything
    assert max(first, third, shares(weighted_policy.policy)["invert"]) < 0.6 * second  # made with the second, too
    assert set(weighted_policy.on_folds) == {"fold 1", "fold 2", "fold 3"}


def test_a_fold_of_which_most_failed_leaves_no_policy_to_race_elsewhere(tmp_path):
    """Without the first fold, those of the others would decide alone, and most of these failed."""
    sound = lost_by(lambda job: 0.5)
    runner = scripted(tmp_path, lambda job: sound(job) if job.split.name == "fold 1" else {"diverged": "why"})
    assert OpEffects().candidates(task_of(), Budget(trainings=18), runner) == []


def test_trainings_that_ended_on_one_fold_alone_leave_no_policy():
    """A slow GPU trains those of a fold side by side and is late: policies would race on what they were made with."""
    jobs = [job for job in drawn_jobs(task_of(), TESTED, 54, 4) if job.split.name == "fold 1"]
    assert len(jobs) == 18
    assert read_experiment(jobs, {job.key: Outcome(10.0, 0.5, 0.1, 1.0) for job in jobs}, TESTED) is None


def test_no_training_of_an_experiment_is_another_one_again():
    """Two operations make few policies: the same one on the same fold must begin from another seed."""
    jobs = drawn_jobs(task_of(), ["invert", "solarize"], 54, 4)
    assert len({(job.split.name, job.policy.hash) for job in jobs}) < 40
    assert len({job.key for job in jobs}) == 54
    assert {job.recipe.epochs for job in jobs} == {4}
    many = drawn_jobs(task_of(seed=5), operations_to_test(None), 54, 4)
    alone = {(job.split.name, job.seed) for job in many}
    assert alone == {("fold 1", 5), ("fold 2", 6), ("fold 3", 7)}  # a seed for each fold, where policies differ


def test_wrong_operations_are_named():
    with pytest.raises(PolicyError, match="did you mean 'rotate'"):
        operations_to_test(["rotat", "invert"])
