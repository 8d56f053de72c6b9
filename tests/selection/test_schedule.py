"""What a race may cost: how many images, candidates, trainings and epochs there is time for."""

from dataclasses import replace

import pytest
import torch

from fasteraa.selection import budget
from fasteraa.selection.candidates import Candidate
from fasteraa.selection.schedule import Plan, Round, read_plan
from fasteraa.train.recipe import TrainRecipe
from fasteraa.policy.named import named

from .conftest import levels

RECIPE = TrainRecipe(network="small", epochs=12, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
TWO = [Candidate("none", named("none")), Candidate("uniform", named("uniform"))]
ONCE = (1, 1, 1)  # on each fold


def test_heats_are_what_there_is_time_for():
    assert budget.runs_of_rounds(17, (1, 3, 9)) == [17, 30, 54]
    for heats, runs in (((1, 3, 9), 101), ((1, 3, 6), 83), ((1, 3, 3), 65), ((1, 2, 2), 49)):
        assert sum(budget.runs_of_rounds(17, heats)) == runs
        assert budget.payable_heats(17, 90.0, 0.5, runs * 45.0, 3) == heats
        assert budget.payable_heats(17, 90.0, 0.5, runs * 45.0 - 1, 3) != heats
    assert budget.payable_heats(17, 90.0, 0.5, 49 * 45.0 - 1, 3) == (1, 1, 1)
    assert budget.payable_heats(17, 90.0, 0.5, 0.0, 2) == (1, 1)


def test_the_better_half_of_a_round_and_none_make_the_next():
    assert budget.runs_of_rounds(11, ONCE) == [11, 7, 5]
    assert budget.runs_of_rounds(2, ONCE) == [2, 2, 2]


def test_a_machine_that_slows_down_gets_shorter_rounds_then_fewer_then_candidates():
    """5 candidates: 5, 4, 3, 3 runs in the next four rounds, of 20 epochs as planned."""

    def left(seconds, spent=0.0, epochs=20):
        last = Round(5, epochs, 5 * epochs * 0.1)
        plan = Plan(None, "", 100, 0.0, (), (1,) * 5, (), 20, setup_seconds=spent - last.seconds, rounds=[last])
        return budget.next_round(plan, 5, seconds)

    assert budget.runs_of_rounds(5, (1, 1, 1, 1)) == [5, 4, 3, 3]
    assert left(30.0) == left(1000.0) == (5, 20)
    assert left(25.0) == (5, 16)  # 15 runs of 16 epochs
    assert left(18.0) == (5, 20)  # 12 would be too few: 18 s pay for two rounds of 20
    assert left(8.5) == (5, 17)  # one round
    assert left(7.5) == (4, 18)
    assert left(5.0) == (3, 16)
    assert left(4.7) is None  # the best two and none are the fewest
    assert left(1025.0, spent=1000.0) == (5, 16)
    assert left(30.0, epochs=16) == (5, 16)  # what the round before had
    assert left(8.2, epochs=16) == (5, 16)
    assert left(7.9, epochs=16) == (4, 16)  # 15 are less than four fifths of what was planned


def test_two_candidates_are_the_fewest():
    plan = Plan(None, "", 100, 0.0, heats=ONCE, epochs=10, rounds=[Round(2, 10, 2.0)])
    assert budget.next_round(plan, 2, 4.0) == (2, 10)
    assert budget.next_round(plan, 2, 3.5) is None


def test_many_trainings_cost_as_many_runs():
    """Two candidates, trained 1, 3 and 9 times: 26 runs. What pays for 95 epochs of them does not pay for 96."""
    recipe = replace(RECIPE, epochs=1000, batch_size=2)
    plan = Plan(None, "", 60, 0.01)
    budget.plan_race(plan, TWO, recipe, 26 * 95.5 * 0.4, 40, 3, 7)
    assert (plan.heats, plan.epochs, plan.seeds) == ((1, 3, 9), 95, tuple(range(7, 20)))
    plan.rounds = [Round(2, 95, 2 * 95 * 0.1)]  # 19 s
    assert budget.next_round(plan, 2, 19 + 24 * 95 * 0.1 + 0.01) == (2, 95)  # 24 runs are left
    assert budget.next_round(plan, 2, 19 + 24 * 94 * 0.1 + 0.01) == (2, 94)


def test_a_recipe_of_few_epochs_is_raced_on_all_folds():
    plan = Plan(None, "", 100, 0.0, heats=ONCE, epochs=2, rounds=[Round(5, 2, 1.0)])
    assert budget.next_round(plan, 5, 100.0) == (5, 2)
    assert budget.next_round(plan, 5, 1.1) is None


def test_trainings_that_tell_something_decide_how_many_images():
    """11, 7 and 5 candidates for 60 epochs: 1,380 passes over two thirds of the images."""
    passes = 60 * (11 + 7 + 5)
    assert budget.payable_images(3000, 2, 11, 200, 1.0, passes * 2000.0) == 3000
    assert budget.payable_images(3000, 2, 11, 200, 1.0, passes * 1600.0) == 2400
    assert budget.payable_images(3000, 2, 11, 30, 1.0, passes * 800.0) == 2400  # a recipe of fewer epochs has no more
    assert budget.payable_images(3000, 2, 11, 200, 1.0, -1.0) == 1000
    assert budget.payable_images(900, 2, 11, 200, 1.0, -1.0) == 900
    assert budget.payable_images(50_000, 1000, 11, 200, 1.0, -1.0) == 2000  # two of a class, on average
    # an experiment of 18 trainings, and as much for the race, are more than 23 runs
    assert budget.payable_images(3000, 2, 11, 200, 1.0, 36 * 60 * 1600.0, experiment=True) == 2400


def test_candidates_are_dropped_before_trainings_tell_nothing():
    runs = {count: sum(budget.runs_of_rounds(count, ONCE)) for count in range(6, 12)}
    assert budget.payable_candidates(11, 60, 200, 1.0, 60.0 * runs[11], ONCE) == (11, 60)
    assert budget.payable_candidates(11, 60, 200, 1.0, 60.0 * runs[11] - 1, ONCE) == (
        10,
        (60 * runs[11] - 1) // runs[10],
    )
    assert budget.payable_candidates(11, 60, 200, 1.0, 300.0 * runs[11], ONCE) == (11, 200)  # the recipe has no more
    assert budget.payable_candidates(11, 40, 40, 1.0, 40.0 * runs[11], ONCE) == (11, 40)
    assert budget.payable_candidates(11, 60, 200, 1.0, 10.0 * runs[6], ONCE) == (6, 10)
    assert budget.payable_candidates(11, 60, 200, 1.0, 0.0, ONCE) == (6, 4)


def test_few_images_must_be_seen_more_often(monkeypatch):
    """200 images in batches of 8 are 25 steps, so 60 epochs are 1,500; of 40 images, 5 and 300."""
    monkeypatch.setattr(budget, "HEATS", ())
    for images, epochs in ((200, 60), (40, 120)):
        plan = Plan(None, "", images * 3 // 2, 1.0)
        recipe = replace(RECIPE, epochs=200, batch_size=8)
        budget.plan_race(plan, TWO, recipe, sum(budget.runs_of_rounds(2, ONCE)) * images * 130.0, images, 3, 0)
        assert plan.epochs == 130  # what there is time for
        eleven = [Candidate(str(number), named("none")) for number in range(11)]
        least = epochs * sum(budget.runs_of_rounds(7, ONCE)) * images
        budget.plan_race(plan, eleven, recipe, float(least), images, 3, 0)
        assert (len(plan.candidates), plan.epochs) == (7, epochs)


def test_the_cost_of_an_image_is_measured_on_a_part(monkeypatch):
    seen = []
    plain = budget.Training
    monkeypatch.setattr(budget, "Training", lambda data, *given: seen.append(len(data)) or plain(data, *given))
    monkeypatch.setattr(budget, "MEASURED_S", 0.0)
    monkeypatch.setattr(budget, "MEASURED_IMAGES", 64)
    assert budget.image_seconds(levels(200, apart=115), TWO, RECIPE, 1, torch.device("cpu"), 0) > 0
    assert seen == [64]


def test_of_several_short_epochs_the_fastest_counts(monkeypatch):
    """Epochs of 0.4, 0.1 and 0.2 s on a clock of their own; a fourth would begin after the half second."""
    monkeypatch.setattr(budget, "MEASURED_S", 0.55)
    now, lengths = [0.0], iter((0.4, 0.1, 0.2, 0.01))
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    assert budget.fastest(lambda: now.__setitem__(0, now[0] + next(lengths))) == pytest.approx(0.1)
    assert next(lengths) == 0.01


def test_an_experiment_takes_half_of_what_is_left_or_there_is_none(tmp_path):
    """54 trainings of the 60 epochs that tell something, on 100 images of 0.01 s each; 10 s are gone."""
    recipe, seconds = replace(RECIPE, epochs=200, batch_size=8), 10 + 2 * 54 * 60 * 1.001
    plan = Plan(tmp_path / "race.json", "x", 150, 0.01, setup_seconds=10.0)
    budget.plan_experiment(plan, recipe, seconds, 100, 3)
    assert plan.experiment == Round(54, 60)
    assert read_plan(plan.file, "x") == plan
    plan.experiment = None
    budget.plan_experiment(plan, recipe, 10 + 2 * 18 * 60 * 0.999, 100, 3)
    assert plan.experiment is None
    budget.plan_experiment(plan, recipe, 1e6, 100, 3)
    assert plan.experiment == Round(54, 90)  # longer ones tell no more


def test_a_race_is_planned_by_what_the_experiment_took(monkeypatch):
    """Its trainings took ten times what was measured before: so will those of the race."""
    monkeypatch.setattr(budget, "HEATS", ())
    recipe, six = replace(RECIPE, epochs=600), [Candidate(str(number), named("none")) for number in range(6)]
    plan = Plan(None, "x", 90, 0.01 / 60, experiment=Round(18, 600, 18 * 600 * 0.1))
    budget.plan_race(plan, six, recipe, plan.seconds + 13 * 60.01, 60, 3, 0)
    assert (len(plan.candidates), plan.heats, plan.epochs) == (6, (1, 1, 1), 600)
    budget.plan_race(plan, six, recipe, plan.seconds + 13 * 30.01, 60, 3, 0)
    assert plan.epochs == 300
    plan.experiment = None
    budget.plan_race(plan, six, recipe, plan.seconds + 13 * 3.001, 60, 3, 0)
    assert plan.epochs == 300
