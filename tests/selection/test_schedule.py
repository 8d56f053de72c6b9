"""What a race may cost: how many images, candidates, trainings and epochs a budget pays for."""

import json
from dataclasses import replace

import pytest

from fasteraa.errors import RunError
from fasteraa.methods import Budget, Candidate
from fasteraa.policy.named import named
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.files import sealed, unsealed
from fasteraa.selection import schedule
from fasteraa.selection.schedule import Round, Schedule, read_schedule, save_schedule
from fasteraa.train.split import Split

from .conftest import RECIPE, REPEATS, TWO, brightness_classes, task_of

ONCE = (1, 1, 1)  # on each fold


def of(count):
    return [Candidate(f"c{number}", named("none")) for number in range(count)]


def task_with(images, recipe):
    """A task whose trainings have so many images."""
    data = brightness_classes(2 * images)
    fold = Split(data.subset(images, 0), data, "fold")
    return replace(task_of(brightness_classes(12), recipe), folds=(fold,) * 3)


# --- counting --------------------------------------------------------------------------------------------------------


def test_the_better_half_of_a_round_and_none_make_the_next():
    assert schedule.trainings_of_rounds(11, ONCE) == [11, 7, 5]
    assert schedule.trainings_of_rounds(2, ONCE) == [2, 2, 2]
    assert schedule.trainings_of_rounds(17, (1, 3, 9)) == [17, 30, 54]
    assert [schedule.survivors(count) for count in (1, 2, 3, 4, 11)] == [1, 2, 2, 2, 6]


def test_repeats_are_what_the_budget_pays_for(monkeypatch):
    monkeypatch.setattr(schedule, "REPEATS", REPEATS)
    for repeats, trainings in (((1, 1, 2, 4, 8), 79), ((1, 1, 2, 4), 55), ((1, 1, 2, 2), 47), ((1, 1, 2), 39)):
        assert sum(schedule.trainings_of_rounds(17, repeats)) == trainings
        assert schedule.payable_repeats(17, 90.0, 0.5, trainings * 45.0, 3) == repeats
        assert schedule.payable_repeats(17, 90.0, 0.5, trainings * 45.0 - 1, 3) != repeats
    assert schedule.payable_repeats(17, 90.0, 0.5, 39 * 45.0 - 1, 3) == (1, 1, 1)
    assert schedule.payable_repeats(17, 90.0, 0.5, 0.0, 2) == (1, 1)


def test_informative_trainings_decide_how_many_images():
    """11, 7 and 5 candidates for 60 epochs: 1,380 passes over two thirds of the images."""
    passes = 60 * (11 + 7 + 5)

    def images(count, seconds, classes=2, epochs=60, **more):
        return schedule.payable_images(count, classes, 11, epochs, 1.0, Budget(seconds), **more)

    assert images(3000, passes * 2000.0) == 3000
    assert images(3000, passes * 1600.0) == 2400
    assert images(3000, passes * 800.0, epochs=30) == 2400  # a recipe of fewer epochs has no more
    assert images(3000, 0.0) == 1000
    assert images(900, 0.0) == 900
    assert images(50_000, 0.0, classes=1000) == 2000  # two of a class, on average
    # an experiment of 18 trainings, and as much for the race, are more than 23 trainings
    assert images(3000, 36 * 60 * 1600.0, experiment=True) == 2400
    assert schedule.payable_images(3000, 2, 11, 60, 1e9, Budget(trainings=1)) == 3000  # counted, not timed


def test_candidates_are_dropped_before_trainings_say_nothing():
    trainings = {count: sum(schedule.trainings_of_rounds(count, ONCE)) for count in range(6, 12)}

    def payable(count, least, most, amount):
        return schedule.payable_candidates(count, least, most, 1.0, amount, ONCE)

    assert payable(11, 60, 200, 60.0 * trainings[11]) == (11, 60)
    assert payable(11, 60, 200, 60.0 * trainings[11] - 1) == (10, (60 * trainings[11] - 1) // trainings[10])
    assert payable(11, 60, 200, 300.0 * trainings[11]) == (11, 200)  # the recipe has no more
    assert payable(11, 40, 40, 40.0 * trainings[11]) == (11, 40)
    assert payable(11, 60, 200, 10.0 * trainings[6]) == (6, 10)
    assert payable(11, 60, 200, 0.0) == (6, 4)


# --- planning a race -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (25 * 13, (6, ONCE, 25)),  # an eighth of 200
        (25 * 13 - 1, (5, ONCE, 27)),
        (25 * 10 - 1, (3, ONCE, 27)),
        (25 * 9 - 1, (3, (1, 1), 37)),
        (25 * 6 - 1, (3, (1,), 49)),
        (25 * 3 - 1, (1, (1,), 4)),  # whatever is raced, nothing is predicted
        (0, (1, (1,), 4)),
    ],
)
def test_rather_few_candidates_than_trainings_that_predict_nothing(passes, expected):
    task = task_with(200, replace(RECIPE, epochs=200, batch_size=8))
    plan = schedule.plan_race(task, of(11), Budget(float(passes)), 1.0)
    assert (len(plan.candidates), plan.repeats, plan.epochs) == expected
    assert len(plan.seeds) == len(plan.repeats)
    tuned = schedule.plan_race(replace(task, recipe=replace(task.recipe, pretrained=True)), of(11), Budget(0.0), 1.0)
    assert (len(tuned.candidates), tuned.repeats) == (3, ONCE)  # as long as they are to be, or as time allows


def test_many_trainings_cost_as_much(monkeypatch):
    """Two candidates, trained 1, 1, 2, 4 and 8 times: 32 trainings. What pays for 95 epochs does not pay for 96."""
    monkeypatch.setattr(schedule, "REPEATS", REPEATS)
    task = task_with(40, replace(RECIPE, epochs=480, batch_size=2))
    task = replace(task, config=replace(task.config, seed=7))
    plan = schedule.plan_race(task, TWO, Budget(32 * 95.5 * 0.4), 0.4)
    assert (plan.candidates, plan.repeats, plan.epochs) == (("none", "inverted"), REPEATS[0], 95)
    assert plan.seeds == tuple(range(7, 23))
    plan = replace(plan, rounds=(Round(2, 95, 2 * 95 * 0.1),))
    assert schedule.next_round(plan, 2, 30 * 95 * 0.1 + 0.01) == (2, 95)  # 30 trainings are left
    assert schedule.next_round(plan, 2, 30 * 94 * 0.1 + 0.01) == (2, 94)


@pytest.mark.parametrize(("images", "epochs"), [(200, 60), (40, 120)])
def test_few_images_must_be_seen_more_often(images, epochs):
    """200 images in batches of 8 are 25 steps, so 60 epochs are 1,500; of 40 images, 5 and 300."""
    task = task_with(images, replace(RECIPE, epochs=200, batch_size=8))
    plan = schedule.plan_race(task, TWO, Budget(sum(schedule.trainings_of_rounds(2, ONCE)) * 130.0), 1.0)
    assert plan.epochs == 130  # what there is time for
    least = float(epochs * sum(schedule.trainings_of_rounds(7, ONCE)))
    plan = schedule.plan_race(task, of(11), Budget(least), 1.0)
    assert (len(plan.candidates), plan.epochs) == (7, epochs)


def test_a_long_training_is_raced_with_long_ones():
    """An eighth of it at least: from shorter ones nothing is predicted."""
    epochs = [
        task_with(200, replace(RECIPE, epochs=epochs, batch_size=8)).informative_epochs() for epochs in (480, 960)
    ]
    assert epochs == [60, 120]


def test_a_budget_in_trainings_does_not_ask_a_clock(monkeypatch):
    """Each has the epochs that are worth it: one and a half times the 60 that are informative."""
    task = task_with(200, replace(RECIPE, epochs=200, batch_size=8))
    plans = [schedule.plan_race(task, of(11), Budget(trainings=13), seconds) for seconds in (1e-6, 1e6)]
    assert plans[0] == plans[1]
    assert (len(plans[0].candidates), plans[0].repeats, plans[0].epochs) == (6, ONCE, 90)
    assert len(schedule.plan_race(task, of(11), Budget(trainings=23), 1.0).candidates) == 11
    assert len(schedule.plan_race(task, of(11), Budget(trainings=22), 1.0).candidates) == 10
    short = replace(task, recipe=replace(task.recipe, epochs=7))
    assert schedule.plan_race(short, of(11), Budget(trainings=12), 1.0).epochs == 7
    monkeypatch.setattr(schedule, "REPEATS", REPEATS)
    assert schedule.plan_race(task, of(17), Budget(trainings=79), 1.0).repeats == (1, 1, 2, 4, 8)
    assert schedule.plan_race(task, of(17), Budget(trainings=78), 1.0).repeats == (1, 1, 2, 4)


@pytest.mark.parametrize(("trainings", "count"), [(12, 6), (6, 6), (5, 5), (3, 3), (2, 2), (0, 2)])
def test_few_trainings_are_one_for_each_of_few_candidates(trainings, count):
    task = task_with(200, RECIPE)
    assert len(schedule.plan_race(task, of(11), Budget(trainings=trainings), 1.0).candidates) == count


# --- between rounds --------------------------------------------------------------------------------------------------


def planned(repeats, epochs, *rounds):
    return Schedule((), repeats, (), epochs, rounds)


def test_a_machine_that_slows_down_gets_shorter_rounds_then_fewer_then_candidates():
    """5 candidates: 5, 4, 3, 3 trainings in the next four rounds, of 20 epochs as planned."""

    def left(seconds, epochs=20):
        return schedule.next_round(planned((1,) * 5, 20, Round(5, epochs, 5 * epochs * 0.1)), 5, seconds)

    assert schedule.trainings_of_rounds(5, (1, 1, 1, 1)) == [5, 4, 3, 3]
    assert left(30.0) == left(1000.0) == (5, 20)
    assert left(25.0) == (5, 16)  # 15 trainings of 16 epochs
    assert left(18.0) == (5, 20)  # 12 would be too few: 18 s pay for two rounds of 20
    assert left(8.5) == (5, 17)  # one round
    assert left(7.5) == (4, 18)
    assert left(5.0) == (3, 16)
    assert left(4.7) is None  # the best two and none are the fewest
    assert left(30.0, epochs=16) == (5, 16)  # what the round before had
    assert left(8.2, epochs=16) == (5, 16)
    assert left(7.9, epochs=16) == (4, 16)  # 15 are less than four fifths of what was planned


def test_counted_trainings_are_never_shortened():
    """Five candidates were to be trained in the next round; fewer trainings are left."""
    plan = planned(ONCE, 20, Round(9, 20, 9.0))
    assert [schedule.next_round(plan, 5, left, counted=True) for left in (9, 5, 4, 3, 2)] == [
        (5, 20), (5, 20), (4, 20), (3, 20), None,
    ]  # fmt: skip
    thrice = planned((1, 3, 9), 20, Round(9, 20, 9.0))
    assert [schedule.next_round(thrice, 5, left, counted=True) for left in (15, 14, 9, 8)] == [
        (5, 20), (4, 20), (3, 20), None,
    ]  # fmt: skip


def test_the_first_round_is_run_in_any_case():
    assert schedule.next_round(planned(ONCE, 10), 5, -100.0) == (5, 10)


def test_two_candidates_are_the_fewest():
    plan = planned(ONCE, 10, Round(2, 10, 2.0))
    assert schedule.next_round(plan, 2, 4.0) == (2, 10)
    assert schedule.next_round(plan, 2, 1.5) is None


def test_a_recipe_of_few_epochs_is_raced_on_all_folds():
    plan = planned(ONCE, 2, Round(5, 2, 1.0))
    assert schedule.next_round(plan, 5, 100.0) == (5, 2)
    assert schedule.next_round(plan, 5, 0.1) is None


def test_what_rounds_cost():
    plan = planned(ONCE, 2, Round(5, 2, 1.0)).begin(4, 2)
    assert (plan.cost, plan.rounds[1]) == (1.0, Round(4, 2))
    assert plan.end(3.0).cost == 4.0
    assert plan.end(3.0).rounds[1].epoch_cost == pytest.approx(3 / 8)


# --- kept ------------------------------------------------------------------------------------------------------------


PLAN = Schedule(("none", "a"), ONCE, (0, 1, 2), 3, (Round(2, 3, 9.0), Round(2, 3)))


def test_a_schedule_is_read_as_it_was_written(tmp_path):
    decisions = Decisions(tmp_path / "schedule.json", "x")
    save_schedule(decisions, PLAN)
    assert read_schedule(decisions) == PLAN
    assert read_schedule(Decisions(tmp_path / "schedule.json", "x")) == PLAN
    assert Decisions(tmp_path / "schedule.json", "y").get("race") == {}


ROUND = {"trainings": 2, "epochs": 4, "cost": None}


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": [0, 1]},
        {"repeats": [1, 3, 9]},
        {"repeats": ["a"]},
        {"repeats": [3]},
        {"repeats": 3},
        {"candidates": None},
        {"epochs": None, "rounds": [ROUND] * 4},
        {"epochs": True},
        {"seeds": [0, 1, "2"]},
        {"candidates": [["none"]]},
        {"policies": 3, "rounds": {"a": 1}},
        {"rounds": [ROUND | {"epochs": 0}]},
        {"rounds": [ROUND | {"epochs": "4"}]},
        {"rounds": [ROUND | {"trainings": 0}]},
        {"rounds": [ROUND | {"cost": -1.0}]},
        {"rounds": [ROUND | {"later": 1}]},
        {"rounds": 3},
    ],
)
def test_a_schedule_that_does_not_add_up(tmp_path, wrong):
    file = tmp_path / "schedule.json"
    decisions = Decisions(file, "x")
    save_schedule(decisions, PLAN)
    content = unsealed(json.loads(file.read_text()))
    content["race"] |= wrong
    file.write_text(json.dumps(sealed(content)))
    with pytest.raises(RunError, match=r"schedule\.json' cannot be read .*: remove it to plan the race again"):
        read_schedule(Decisions(file, "x"))


def test_what_the_budget_pays_for_is_said_before(monkeypatch):
    monkeypatch.setattr(schedule, "REPEATS", REPEATS)
    task = task_with(200, replace(RECIPE, network="timm:x", epochs=20))
    many = [Candidate(f"c{number}", named("none")) for number in range(6)]
    plan = Schedule(tuple(f"c{number}" for number in range(4)), (1, 1, 1), (0, 1, 2), 20)
    said = schedule.plan_words(task, plan, many, 3.0, Budget(600.0))
    assert said == [
        "the race: up to 10 trainings of 20 epochs of timm:x, 1 min each, of 4 candidates",
        "left out, for which the budget does not reach: c4, c5",
        "a clearer result would take about 52 minutes (--race-minutes 52)",
    ]
    for epoch, words in ((0.12, "3 minutes (--race-minutes 3)"), (0.05, "1 minute (--race-minutes 1)")):  # 125 s, 52 s
        lines = schedule.plan_words(task, plan, many, epoch, Budget(10.0))
        assert f"a clearer result would take about {words}" in lines
    late = schedule.plan_words(task, plan, many[:4], 3.0, Budget(60.0))
    assert late[-1].startswith("even so it takes longer than is left (about 10 min, and 1 min are)")
    counted = schedule.plan_words(task, plan, many[:4], 3.0, Budget(trainings=8))
    assert counted == ["the race: up to 8 trainings of 20 epochs of timm:x, of 4 candidates"]
    task = task_with(200, replace(RECIPE, epochs=200, batch_size=8))
    foregone = schedule.plan_words(task, Schedule(("c0",), (1,), (0,), 4), many, 1.0, Budget(50.0))
    assert foregone == [
        "no race: there is no time for trainings that predict one of 200 epochs",
        "left out, for which the budget does not reach: c1, c2, c3, c4, c5",
        "a clearer result would take about 52 minutes (--race-minutes 52)",  # 52 trainings of 60 epochs, not of 4
    ]
