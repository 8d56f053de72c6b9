"""The race for how much augmentation: who takes part, who goes on, who is chosen, and that it finds a planted truth."""

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError, RaceError, RunError, Stopped
from fasteraa.evaluate import budget, verdict
from fasteraa.evaluate import calibrate as module
from fasteraa.selection.race import Calibration, Candidate, Trial, calibrate, usual_candidates
from fasteraa.selection.candidates import Expected
from fasteraa.comparison.compare import run_group
from fasteraa.selection.schedule import Plan, Round, read_plan
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.statistics import in_words
from fasteraa.train.trainer import Training
from fasteraa.selection.ranking import better_half, choose, estimates, first_ones
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named

from .conftest import levels

RECIPE = TrainRecipe(network="small", epochs=12, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
WORST = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "inverted")
TWO = [Candidate("none", named("none")), Candidate("inverted", WORST)]


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Everything in this process: starting others takes longer than these trainings."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(budget, "MEASURED_S", 0.0)
    monkeypatch.setattr(budget, "HEATS", ())


HEATS = budget.HEATS


def brightness_classes(count=120, side=8):
    return levels(count, apart=115, side=side)


def test_planted_truth(tmp_path):
    """Inversion makes dark and bright alike; leaving images alone must win, and its table is kept."""
    candidates = [Candidate("inverted", WORST), Candidate("none", named("none"))]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert found.chosen.label == "none"
    assert found.chosen.error < 10 < found.trials[1].error
    assert found.recipe.epochs == 12
    assert len(found.chosen.errors) == found.folds == 3
    assert found.against("inverted").significant
    assert f"clearly behind ({in_words(found.against('inverted').p)})" in found.sentence()
    policy = found.policy(WORST)
    table = policy.provenance["calibration"]["table"]
    assert [row["candidate"] for row in table] == ["none", "inverted"]
    assert json.loads(policy.to_json())["provenance"]["calibration"]["chosen"] == "none"
    assert policy.hash == named("none").hash


def test_each_image_is_held_back_once():
    data = brightness_classes(23)
    seen = []
    for rest, part in data.folds(5, seed=3):
        assert len(rest) + len(part) == 23
        assert set(part.labels.tolist()) == {0, 1}
        seen += [image.numpy().tobytes() for image in part.images]
    assert sorted(seen) == sorted(image.numpy().tobytes() for image in data.images)


def numbered(labels, side=8):
    """Images that differ, with these labels."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (len(labels), 3, side, side), dtype=np.uint8)
    classes = tuple(f"c{number}" for number in range(max(labels) + 1))
    return ImageSet.of(torch.from_numpy(images), torch.tensor(labels), classes, "numbered")


@pytest.mark.parametrize(
    ("labels", "folds", "held_back"),
    [
        ([0] * 20 + [1] * 20, 3, 40),
        ([0] * 37 + [1] * 2 + [2], 3, 39),  # two classes of few: the lone image is always trained on
        ([number // 2 for number in range(2000)], 3, 2000),  # 1,000 classes of two
        ([0, 0, 1], 2, 2),
        ([0, 0, 1, 1], 3, 4),
    ],
)
def test_what_is_held_back_is_of_a_class_that_is_trained_on(labels, folds, held_back, tmp_path):
    arenas = module._folds(numbered(labels), tmp_path, "cpu", 0)
    assert len(arenas) == folds
    seen = []
    for arena in arenas:
        assert set(arena.data.labels.tolist()) == set(labels)
        assert len(arena.data) + len(arena.held_out) == len(labels)
        trained, held = ({image.numpy().tobytes() for image in part.images} for part in (arena.data, arena.held_out))
        assert held
        assert not trained & held
        seen += held
    assert len(seen) == len(set(seen)) == held_back
    sizes = [len(arena.held_out) for arena in arenas]
    assert max(sizes) - min(sizes) <= 1


def test_folds_need_images_to_hold_back():
    with pytest.raises(DataError, match="whose class has others, got 4 folds of 3 such images"):
        list(numbered([0, 0, 0, 1]).folds(4, seed=0))


def test_copies_are_not_trained_on_and_held_back_at_once(monkeypatch, tmp_path):
    """A set in which every image is there three times is raced as if it were there once."""
    raced, said = [], []
    monkeypatch.setattr(module, "run_cells", lambda arena, cells, **_: raced.append(arena))
    monkeypatch.setattr(module, "_measured", lambda arena, each, cell: trial(each.label, (1.0,)))
    once = brightness_classes(40)
    images, labels = once.images.repeat(3, 1, 1, 1), once.labels.repeat(3)
    data = ImageSet.of(images, labels, once.classes, "copies")
    found = calibrate(data, TWO, recipe=RECIPE, device="cpu", folder=tmp_path, say=said.append)
    for arena in raced:
        trained, held = ({image.numpy().tobytes() for image in part.images} for part in (arena.data, arena.held_out))
        assert (len(trained), len(held)) in ((26, 14), (27, 13))
        assert not trained & held
    assert said[0] == "calibrating without 80 images, which are copies of others"
    assert (found.images, found.all_images) == (40, 120)


def test_forty_images_and_two_classes_are_raced(tmp_path):
    found = calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert (found.chosen.label, found.chosen.images, len(found.chosen.errors)) == ("none", 40, 3)


def test_the_better_half_goes_on(monkeypatch, tmp_path):
    """With errors planted for every candidate, the rounds are counted."""
    rounds = []

    def trained(arena, cells, **_):
        rounds.append([cell.label for cell in cells])

    def measured(arena, trial, cell):
        error = 99.0 if trial.label == "none" else float(trial.label)
        errors = (*trial.errors, error)
        return Trial(trial.candidate, errors, (*trial.losses, 1.0), errors, 1000)

    monkeypatch.setattr(module, "run_cells", trained)
    monkeypatch.setattr(module, "_measured", measured)
    labels = ("none", "5", "3", "9", "1", "7", "8")
    candidates = [Candidate(label, named("none")) for label in labels]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert [len(each) for each in rounds] == [7, 5, 4]
    assert rounds[1] == ["1", "3", "5", "7", "none"]
    assert rounds[2] == ["1", "3", "5", "none"]
    assert found.chosen.label == "1"
    assert [trial.label for trial in found.trials] == ["1", "3", "5", "none", "7", "8", "9"]


def test_every_fold_has_a_seed_of_its_own(monkeypatch, tmp_path):
    """With one seed for all of them the luck of one start would look like three."""
    seeds = []
    monkeypatch.setattr(module, "run_cells", lambda arena, cells, **_: seeds.append({cell.seed for cell in cells}))
    monkeypatch.setattr(module, "_measured", lambda arena, each, cell: trial(each.label, (1.0,)))
    calibrate(brightness_classes(), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5, seed=7)
    assert seeds == [{7}, {8}, {9}]


def test_where_there_is_time_those_who_are_left_are_trained_several_times(monkeypatch, tmp_path):
    """One fold after the other and over again; no two trainings of a candidate have a seed in common."""
    monkeypatch.setattr(budget, "HEATS", HEATS)
    said, trained = [], []
    run_cells = module.run_cells

    def train(arena, cells, **given):
        trained.append((arena.held_out_from, sorted({cell.seed for cell in cells})))
        return run_cells(arena, cells, **given)

    monkeypatch.setattr(module, "run_cells", train)
    settings = {"recipe": replace(RECIPE, epochs=1), "device": "cpu", "folder": tmp_path, "minutes": 50, "seed": 7}
    found = calibrate(brightness_classes(40), TWO, **settings, say=said.append)
    assert trained == [
        ("fold 1", [7]),
        ("fold 2", [8]), ("fold 3", [9]), ("fold 1", [10]),
        ("fold 2", [11, 14, 17]), ("fold 3", [12, 15, 18]), ("fold 1", [13, 16, 19]),
    ]  # fmt: skip
    assert said == [
        "calibrating, round 1: 2 candidates, 1 training of 1 epoch of small",
        "calibrating, round 2: 2 candidates, 3 trainings of 1 epoch of small",
        "calibrating, round 3: 2 candidates, 9 trainings of 1 epoch of small",
    ]
    assert [len(each.errors) for each in found.trials] == [13, 13]
    parts = [len(part) for _, part in brightness_classes(40).folds(3, 7)]
    assert {each.images for each in found.trials} == {4 * sum(parts) + parts[0]}
    assert [(each.runs, each.epochs) for each in found.rounds] == [(2, 1), (6, 1), (18, 1)]
    assert "(13 trainings of 1 epoch of small)" in found.sentence()
    assert calibrate(brightness_classes(40), TWO, **settings).trials == found.trials  # from what is there


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = Plan(
        tmp_path / "race.json", "x", 40, 0.5, ("none",), (1, 1), (0, 1), 3, 1.5, Round(18, 2), [Round(1, 3, 9.0)]
    )
    plan.save()
    assert read_plan(plan.file, "x") == plan
    assert plan.seconds == 10.5
    plan.experiment = Round(18, 2, 4.0)
    plan.save()
    assert read_plan(plan.file, "x") == plan
    assert plan.seconds == 14.5
    assert read_plan(plan.file, "y") is None


def trial(label, errors, images=1000, expected=None):
    """Losses that are as errors, percent for percent."""
    errors = tuple(errors)
    return Trial(Candidate(label, named("none"), expected), errors, (1.0,) * len(errors), errors, images)


def expecting(label, error, expected, images=1600):
    return trial(label, (error,), images, expected)


def test_the_lowest_error_is_chosen():
    assert choose([trial("a", (11.0, 10.9)), trial("b", (10.8, 10.9)), trial("none", (11.0, 11.0))]).label == "b"


GOOD, MIDDLING, POOR = Expected(0.95, 0.05), Expected(1.0, 0.05), Expected(1.05, 0.05)


def test_an_estimate_lies_between_what_was_measured_and_what_was_expected():
    """The middling one has 20%: 5% of that is a point, and one standard error of 20% of 1,600 images is one too.

    Of a loss it is 0.62 of that, as of 1,600 / 0.62² images.
    """
    images = round(1600 * 0.62**2)
    trials = [expecting("a", 17.0, GOOD, images), expecting("b", 20.0, MIDDLING, images)]
    trials.append(expecting("c", 22.5, POOR, images))
    found = estimates(trials)
    assert found[1] == pytest.approx(20.0)
    assert found[0] == pytest.approx((17.0 + 19.0) / 2, abs=0.1)
    assert found[2] == pytest.approx((22.5 + 21.0) / 2, abs=0.1)


def test_few_images_do_not_outweigh_an_expectation_and_many_do():
    for images, winner in ((200, "good"), (20_000, "poor")):
        race = [expecting("good", 20.0, GOOD, images), expecting("m", 20.2, MIDDLING, images)]
        assert choose([*race, expecting("poor", 19.0, POOR, images)]).label == winner


def test_what_is_hard_to_learn_gains_by_longer_trainings():
    """Guessing has a loss of 4, and 0.4 would be taken off that: 0.95 of 11 is more than 0.86 of 11.5."""
    easy, hard = trial("easy", (11.0, 11.0)), trial("hard", (11.5, 11.5))
    easy, hard = (replace(each, losses=(loss,) * 2) for each, loss in ((easy, 0.5), (hard, 1.5)))
    assert choose([easy, hard]).label == "easy"
    credited = [replace(each, credit=0.4, guessing=4.0) for each in (easy, hard)]
    assert estimates(credited) == pytest.approx([11.0 * math.exp(-0.05), 11.5 * math.exp(-0.15)])
    assert choose(credited).label == "hard"
    assert [each.label for each in better_half(credited, 1)] == ["hard"]
    found = Calibration(credited[1], (credited[1], credited[0]), 3, RECIPE, 1.0)
    assert (
        "easy has fewer, 11.0%, but is easier to learn, so that longer trainings gain less (loss 11.000 against"
        in found.sentence()
    )
    assert found.against("easy").mean == pytest.approx(11.5 * math.exp(-0.15) - 11.0 * math.exp(-0.05))
    unsure = replace(credited[0], scores=(13.0, 13.0))
    assert (
        "11.0%, but a higher loss (loss 13.000 against 11.500)"
        in replace(found, trials=(credited[1], unsure)).sentence()
    )


@pytest.mark.parametrize("credit", [None, 0.0])
def test_credit_is_a_share_of_the_loss_of_guessing(tmp_path, credit):
    """There are two classes."""
    given = {} if credit is None else {"credit": credit}
    found = calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, **given)
    assert found.provenance()["credit"] == (verdict.CREDIT if credit is None else 0.0)
    assert {(each.credit, each.guessing) for each in found.trials} == {(found.chosen.credit, math.log(2))}


def test_without_expectations_what_was_measured_counts():
    assert estimates([trial("a", (10.0, 12.0), images=4), trial("none", (50.0, 60.0), images=4)]) == [11.0, 55.0]


def test_one_that_is_far_off_does_not_move_the_others():
    """An operation may ruin a kind of data; the level is that of the middling one."""
    near = [expecting(name, 20.0, MIDDLING) for name in "abc"]
    assert estimates([*near, expecting("d", 80.0, MIDDLING)])[:3] == estimates(near)


def test_an_error_that_no_noise_explains_counts_as_it_is():
    """Where the others have few errors, what is expected is near none of them, whatever was measured."""
    race = [expecting("m", 0.2, MIDDLING, 1000), expecting("n", 0.2, MIDDLING, 1000)]
    ruined = expecting("ruined", 50.0, GOOD, 1000)
    assert estimates([*race, ruined])[2] > 40.0
    assert choose([*race, ruined]).label == "m"
    assert [each.label for each in better_half([*race, ruined], 2)] == ["m", "n"]
    lucky = expecting("lucky", 1.0, POOR, 1000)
    high = [expecting("m", 30.0, MIDDLING, 1000), expecting("n", 30.0, MIDDLING, 1000)]
    assert estimates([*high, lucky])[2] < 5.0


@pytest.mark.parametrize(("error", "images"), [(30.0, 60), (10.0, 60), (50.0, 2)])
def test_where_most_have_no_errors_one_that_has_some_is_not_chosen(error, images):
    """All are then expected to have none, and `none` would win among equals."""
    race = [expecting("none", error, Expected(1.2, 0.25), images)]
    race += [expecting(label, 0.0, MIDDLING, images) for label in "abc"]
    assert choose(race).label == "a"
    assert choose([replace(race[0], errors=(0.0,)), *race[1:]]).label == "none"


def test_noise_between_seeds_counts():
    """However many images are held back, those who do differently from fold to fold are hard to tell apart."""
    steady, changing = (9.0, 9.0, 9.0, 9.0), (8.0, 7.5, 8.0, 7.5)
    apart = [trial("good", (9.0, 9.5, 9.0, 9.5), expected=GOOD), trial("m", steady, expected=MIDDLING)]
    for luck, winner in ((changing, "poor"), ((1.0, 16.0, 1.0, 13.0), "good")):
        race = [*apart, trial("poor", luck, expected=POOR)]
        assert choose([replace(each, images=1_000_000) for each in race]).label == winner


def test_noise_between_seeds_is_that_of_a_mean_difference():
    """Of every error half a point is left over, which neither its row nor its column explains."""
    rows = [(10.0, 11.0, 10.0, 11.0), (11.0, 10.0, 11.0, 10.0)]
    noise = verdict._training_noise([trial(label, row) for label, row in zip("ab", rows, strict=True)])
    assert noise == pytest.approx((8 * 0.25 / 3) ** 0.5 * (2 / 4) ** 0.5)


def test_who_goes_on_is_decided_by_the_estimate():
    race = [expecting("poor", 19.5, POOR, 100), expecting("good", 20.0, GOOD, 100), expecting("m", 20.1, MIDDLING, 100)]
    plain = expecting("none", 30.0, Expected(1.2, 0.25), 100)
    assert [each.label for each in better_half([*race, plain], 1)] == ["good", "none"]


def test_none_is_among_any_number_of_those_who_go_on():
    race = [trial(label, (10.0,)) for label in ("a", "b", "none", "c")]
    assert [[each.label for each in first_ones(race, count)] for count in (4, 3, 2)] == [
        ["a", "b", "none", "c"], ["a", "b", "none"], ["a", "none"],
    ]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_equal_errors_nothing_is_chosen(order):
    """Wherever it stands among the candidates."""
    trials = [trial("none", (11.0, 11.0)), trial("a", (11.0, 11.0))]
    assert choose([trials[place] for place in order]).label == "none"


def test_a_race_is_planned_by_the_images_that_are_trained_on(monkeypatch, tmp_path):
    """A second for each of 40 of 60: six runs of eight epochs take 1,920 s, and of nine 2,160 s."""
    Clock(monkeypatch, 1.0)
    found = calibrate(brightness_classes(60), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=2_040 / 60)
    assert found.recipe.epochs == 8


def test_other_folds_are_another_race(monkeypatch):
    given = (brightness_classes(8), TWO, (), RECIPE, 0, 0.2)
    before = module._identity(*given)
    assert module._identity(*given) == before
    other = [TWO[0], replace(TWO[1], expected=GOOD)]  # others may go on
    assert module._identity(given[0], other, *given[2:]) != before
    elsewhere = [replace(given[1][0], on_folds={"fold 1": WORST}), *given[1][1:]]
    assert module._identity(given[0], elsewhere, *given[2:]) != before
    assert module._identity(*given[:2], ("invert",), *given[3:]) != before
    assert module._identity(*given[:-1], 0.0) != before
    monkeypatch.setattr(module, "FOLDS", module.FOLDS + 1)
    assert module._identity(*given) != before


@pytest.mark.slow
def test_processes_are_kept_over_the_folds(monkeypatch, tmp_path):
    """One start for all of them, and the same errors as in one process."""
    started = []
    start = module.start_workers
    monkeypatch.setattr(module, "start_workers", lambda *given: started.append(given) or start(*given))
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    given = {"recipe": RECIPE, "device": "cpu", "minutes": 30}  # time for all epochs
    found = [
        calibrate(brightness_classes(40), candidates, folder=tmp_path / str(jobs), jobs=jobs, **given)
        for jobs in (1, 2)
    ]
    assert len(started) == 1
    alone, together = ([trial.errors for trial in each.trials] for each in found)
    assert [len(errors) for errors in together] == [3, 3]
    assert alone == together


def test_a_set_that_is_too_large_for_the_time_is_cut(monkeypatch, tmp_path):
    """A second an image: 90 s pay for nothing, so as few images as there may be are taken."""
    said, raced = [], []
    monkeypatch.setattr(budget, "image_seconds", lambda *given: 1.0)
    monkeypatch.setattr(module, "run_cells", lambda arena, cells, **_: raced.append(arena))
    monkeypatch.setattr(module, "_measured", lambda arena, each, *_: trial(each.label, (1.0,)))
    found = calibrate(brightness_classes(1500), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, say=said.append)
    assert {len(arena.data) + len(arena.held_out) for arena in raced} == {1000}
    assert said[0] == "calibrating with 1000 of 1500 images: time does not allow for more"
    told = found.provenance()
    assert (told["images"], told["all_images"]) == (1000, 1500)
    assert "(1 training of 4 epochs of small, 1000 of 1500 images)" in told["sentence"]
    assert "(1 training of 4 epochs of small)" in replace(found, images=1500).sentence()


def test_a_gpu_races_a_quick_network(monkeypatch):
    data = brightness_classes(40)
    assert module.race_recipe(data, "cpu").network == "small"
    monkeypatch.setattr(module, "find_device", lambda name: torch.device("cuda"))
    assert module.race_recipe(data, "cpu").network == "wrn-16-2"
    monkeypatch.setattr(module, "_QUICK_SIDE", min(data.size) - 1)
    assert module.race_recipe(data, "cpu").network == "small"


@pytest.mark.parametrize(("images", "epochs"), [(4000, 200), (1000, 200), (300, 400), (60, 1200)])
def test_few_images_are_seen_more_often(images, epochs):
    """300 images: 200 of them are trained on, three batches of 64, so 400 epochs are 1,200 steps."""
    assert module._long_enough(TrainRecipe(epochs=100, batch_size=64), images).epochs == epochs


@pytest.mark.parametrize(("images", "batch", "rate"), [(2000, 128, 0.1), (1999, 64, 0.05)])
def test_many_images_are_seen_in_larger_batches(images, batch, rate):
    recipe = module._in_large_batches(TrainRecipe(batch_size=64, learning_rate=0.05), images)
    assert (recipe.batch_size, recipe.learning_rate) == (batch, rate)


def test_on_a_gpu_a_race_is_long_and_in_large_batches_unless_the_network_is_given(monkeypatch):
    monkeypatch.setattr(module, "find_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(module, "_MANY_IMAGES", 40)
    own = module.choose_recipe(brightness_classes(40), "cpu", "wrn-16-2")
    quick, given = (module.race_recipe(brightness_classes(40), "cpu", name) for name in (None, "wrn-16-2"))
    assert (quick.batch_size, given.batch_size) == (2 * own.batch_size, own.batch_size)
    assert quick.epochs == given.epochs == 1200  # one step an epoch


def test_a_race_may_be_like_the_training_to_come():
    recipe = module.race_recipe(brightness_classes(40), "cpu", "wrn-10-1", 7)
    assert (recipe.network, recipe.epochs) == ("wrn-10-1", 7)


def test_a_small_class_does_not_keep_a_large_set_from_being_cut(monkeypatch, tmp_path):
    raced = []
    monkeypatch.setattr(budget, "image_seconds", lambda *given: 1.0)
    monkeypatch.setattr(module, "run_cells", lambda arena, cells, **_: raced.append(arena))
    monkeypatch.setattr(module, "_measured", lambda arena, each, *_: trial(each.label, (1.0,)))
    data = numbered([0] * 1490 + [1] * 10)
    calibrate(data, TWO, recipe=RECIPE, device="cpu", folder=tmp_path)
    assert {len(arena.data) + len(arena.held_out) for arena in raced} == {1000}


def test_nothing_is_compiled(monkeypatch, tmp_path):
    """However much there is to train: the plan was measured without, and compiling takes half a minute."""
    seen = []

    def group(arena, cells, *, until, fuse):
        seen.append(fuse)
        return run_group(arena, cells, until=until, fuse=fuse)

    monkeypatch.setattr(sys.modules[run_group.__module__], "run_group", group)
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    calibrate(brightness_classes(40), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=1e-6)
    assert set(seen) == {False}


def test_only_those_who_came_furthest_can_win():
    assert choose([trial("early", (1.0,)), trial("late", (5.0, 5.0))]).label == "late"


def test_one_fold_is_called_a_guess():
    trials = (trial("a", (5.0,)), trial("b", (6.0,)))
    assert "a guess" in Calibration(trials[0], trials, 5, RECIPE, 1.0).sentence()


def test_within_noise_is_said():
    trials = (trial("a", (5.0, 7.0)), trial("b", (6.0, 6.5)))
    assert "within the noise" in Calibration(trials[0], trials, 5, RECIPE, 1.0).sentence()
    same = (trial("a", (5.0, 5.0)), trial("b", (5.0, 5.0)))
    assert "within the noise" in Calibration(same[0], same, 5, RECIPE, 1.0).sentence()  # and no guess


def test_a_choice_against_the_lowest_error_is_explained():
    trials = (trial("good", (7.0,)), trial("poor", (6.0,)))
    found = Calibration(trials[0], trials, 5, RECIPE, 1.0)
    assert found.sentence().endswith(
        "; poor did better (6.0%, loss 6.000 against 7.000), but so few images do not outweigh what was measured on "
        "other data."
    )
    fewer = replace(trials[1], scores=(8.0,))
    assert (
        Calibration(trials[0], (trials[0], fewer), 5, RECIPE, 1.0)
        .sentence()
        .endswith(
            "; poor has fewer, 6.0%, but a higher loss (loss 8.000 against 7.000); from one training alone, this is a "
            "guess."
        )
    )


def test_what_did_better_is_said_truly():
    """A lower loss need not be fewer errors; what looks the same is not fewer; the one with the fewest is named."""

    def said(*others):
        first = trial("a", (7.0, 7.0))
        return Calibration(first, (first, *others), 3, RECIPE, 1.0).sentence()

    surer = replace(trial("b", (7.5, 7.5)), scores=(6.0, 6.0))
    assert "; b did better (7.5%, loss " in said(surer)
    assert "; next is b with 7.0%; the difference is within" in said(
        replace(trial("b", (6.99, 6.99)), scores=(8.0, 8.0))
    )
    harder = replace(trial("b", (7.5, 7.5)), losses=(0.4, 0.4), credit=0.5)
    assert "; b is harder to learn and may gain more (7.5%, loss 7.500 against 7.000), but so few images" in said(
        harder
    )
    second, third = trial("b", (7.1, 7.3)), replace(trial("c", (6.0, 6.1)), scores=(8.0, 8.0))
    assert "; c has fewer, 6.0%, but a higher loss (" in said(second, third)


def test_labels_with_a_comma_stand_in_quotes():
    one, two = trial("found, 2 passes", (5.0, 5.0)), trial("uniform, 2 passes", (6.0, 6.0))
    assert Calibration(one, (one, two), 3, RECIPE, 1.0).sentence().startswith("Chosen: 'found, 2 passes', with 5.0%")
    others = (two, replace(two, scores=(4.0, 4.0)), replace(two, errors=(4.0, 4.0)))
    for other, words in zip(others, ("next is '", "; '", "; '"), strict=True):
        assert f"{words}uniform, 2 passes' " in Calibration(one, (one, other), 3, RECIPE, 1.0).sentence()


def test_the_policy_none_is_not_nobody():
    one, none = trial("a", (5.0, 5.0)), trial("none", (6.0, 6.0))
    assert "; next is 'none' with 6.0%" in Calibration(one, (one, none), 3, RECIPE, 1.0).sentence()
    better = replace(none, scores=(4.0, 4.0))
    assert "; 'none' did better (6.0%" in Calibration(one, (one, better), 3, RECIPE, 1.0).sentence()


def test_one_that_went_out_earlier_was_not_outweighed():
    """All others that came as far diverged: it had fewer errors, but on fewer images."""
    trials = (trial("a", (7.0, 7.0)), replace(trial("b", (6.0, 50.0)), diverged="why"), trial("c", (6.0,)))
    found = Calibration(trials[0], trials, 3, RECIPE, 1.0)
    assert found.sentence().endswith(
        "; next is c with 6.0%; from one training alone, this is a guess. Who has fewer trainings went out earlier, "
        "with errors and losses of fewer held-back images."
    )
    assert "went out" not in replace(found, trials=trials[:2]).sentence()


def test_folds_that_share_images_are_less_sure_than_seeds():
    """Differences of -1, -2 and -1.5: t is 3.93, of two degrees of freedom; else it were 5.20 (p 0.035)."""
    trials = (trial("a", (5.0, 5.0, 5.0)), trial("b", (6.0, 7.0, 6.5)))
    found = Calibration(trials[0], trials, 5, RECIPE, 1.0)
    assert found.against("b").p == pytest.approx(1 - 3.928 / (2 + 3.928**2) ** 0.5, abs=1e-4)
    assert "within the noise" in found.sentence()


def test_fewer_epochs_in_later_rounds_are_said():
    one = (trial("a", (5.0,)),)
    rounds = (Round(5, 12, 1.0), Round(3, 7, 1.0))
    assert "7 to 12 epochs of small" in Calibration(one[0], one, 5, RECIPE, 1.0, rounds=rounds).sentence()


def test_trainings_too_short_to_tell_are_said_to_be():
    one = (trial("a", (5.0,)),)
    found = Calibration(one[0], one, 3, RECIPE, 1.0, rounds=(Round(6, 40, 1.0),), telling=(60, 601.0))
    assert found.sentence().endswith(
        " Trainings as short as that say little about longer ones: 60 epochs would say more, and take about 11 minutes "
        "(--calibrate-minutes 11)."
    )
    assert "short" not in replace(found, rounds=(Round(6, 48, 1.0),)).sentence()  # a slow machine, four fifths
    assert "short" not in replace(found, telling=None).sentence()


def test_a_short_race_says_what_a_telling_one_would_take(tmp_path, monkeypatch):
    """4 of 60 epochs; two candidates on three folds, each in every round; given that time, the next race takes it."""
    monkeypatch.setattr(budget, "image_seconds", lambda *_: 0.05)
    recipe = replace(RECIPE, epochs=60)
    data = brightness_classes(24)
    short = calibrate(data, TWO, recipe=recipe, device="cpu", folder=tmp_path, minutes=0.01, jobs=1)
    epochs, seconds = short.telling
    assert (short.rounds[0].epochs, epochs) == (4, 60)
    assert seconds == pytest.approx(60 * 6 * 0.05 * len(data) * 2 / 3, rel=0.1)
    plan = Plan(tmp_path / "other.json", "", len(data), 0.05)
    budget.plan_race(plan, TWO, recipe, seconds, len(data) * 2 // 3, 3, 0)
    assert plan.epochs == 60


def test_a_race_that_is_over_is_run_anew_with_more_time_alone(tmp_path, monkeypatch):
    """What the sentence about short trainings advises can be done with --resume."""
    monkeypatch.setattr(budget, "image_seconds", lambda *_: 0.05)
    data, said, epochs = brightness_classes(24), [], []
    for minutes in (0.01, 0.01, 5, 0.01):
        found = calibrate(
            data, TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=minutes, jobs=1, say=said.append
        )
        epochs.append(found.rounds[0].epochs)
    assert epochs == [4, 4, 12, 12]
    assert said.count("calibrating anew: the race in the folder had less time") == 1


# --- trainings that diverge -----------------------------------------------------------------------------------------


def diverging(policy, fold=None):
    """A step that makes the loss of one policy no number."""
    plain = Training.step

    def step(self, images, targets):
        mine = self.feed.policy.hash == policy.hash and fold in (None, self.seed)
        return plain(self, images, targets) + (float("nan") if mine else 0.0)

    return step


def test_a_training_that_diverges_loses_and_the_race_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(Training, "step", diverging(WORST))
    found = calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert found.chosen.label == "none"
    assert len(found.chosen.errors) == 3
    lost = found.trials[1]
    assert (lost.errors, lost.losses, lost.loss) == ((50.0,), (), None)
    assert lost.diverged == "the training loss was not finite in epoch 1"
    row = json.loads(found.policy(WORST).to_json())["provenance"]["calibration"]["table"][1]
    assert (row["diverged"], row["training_loss"]) == (lost.diverged, None)
    assert (
        "inverted   50.0% errors, loss 0.693, 1 training (the training loss was not finite in epoch 1)" in found.words()
    )


def test_none_stays_in_though_it_diverged_once_and_is_not_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(Training, "step", diverging(named("none"), fold=0))
    found = calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert found.chosen.label == "inverted"
    assert [len(each.errors) for each in found.trials] == [3, 3]
    assert len(found.trials[1].losses) == 2


def test_who_diverged_loses_to_a_worse_error():
    lost = replace(trial("a", (5.0, 50.0)), diverged="why")
    assert choose([lost, trial("b", (60.0, 60.0)), trial("none", (61.0, 61.0), images=10**6)]).label == "b"
    going_on = better_half([lost, trial("b", (60.0,)), trial("none", (70.0,))], 2)
    assert [each.label for each in going_on] == ["b", "none"]


def test_a_race_in_which_all_diverge_is_one_sentence(monkeypatch, tmp_path):
    plain = Training.step
    monkeypatch.setattr(Training, "step", lambda self, *batch: plain(self, *batch) * float("nan"))
    with pytest.raises(
        RaceError, match=r"every training .* diverged \(none: the training loss was not finite in epoch 1"
    ):
        calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert len(list(tmp_path.glob("*/cells/*.json"))) == 2  # nobody is left for a second round


# --- stopped and resumed --------------------------------------------------------------------------------------------


FOUR = [*TWO, Candidate("uniform", named("uniform")), Candidate("flipped", named("random", seed=1, ops=["flip"]))]


class Clock:
    """The machine's speed: a measured cost of an image, and seconds that trainings take."""

    def __init__(self, monkeypatch, cost, stop_after=None):
        self.trained, self.cost = [], cost
        plain = run_group

        def group(arena, cells, **given):
            if stop_after is not None and len(self.trained) == stop_after:
                raise KeyboardInterrupt
            self.trained += [(arena.held_out_from, cell.label, cell.recipe.epochs, cell.seed) for cell in cells]
            return plain(arena, cells, **given)

        monkeypatch.setattr(sys.modules[run_group.__module__], "run_group", group)
        monkeypatch.setattr(budget, "image_seconds", lambda *given: self.cost)


def errors_of(found):
    return {each.label: each.errors for each in found.trials}


def test_a_race_that_was_stopped_goes_on_as_it_was_planned(monkeypatch, tmp_path):
    """In its first round, as its second begins, and in that; the machine seems far slower the second time."""
    monkeypatch.setattr(budget, "LEAST_IMAGES", 30)
    data, given = brightness_classes(40), {"recipe": replace(RECIPE, epochs=6), "device": "cpu", "minutes": 5}

    def race(folder, cost, stop_after=None):
        with monkeypatch.context() as patch:
            clock = Clock(patch, cost, stop_after)
            with pytest.raises(Stopped) if stop_after else nullcontext():
                return clock, calibrate(data, FOUR, folder=tmp_path / folder, **given)
        return clock, None

    clock, whole = race("whole", 1e-6)
    again, same = race("whole", 1.0)
    assert (again.trained, same) == ([], whole)  # one that is over, too, and with its seconds
    for stop_after in (1, 4, 5):
        begun, _ = race(str(stop_after), 1e-6, stop_after)
        rest, resumed = race(str(stop_after), 1.0)
        assert begun.trained + rest.trained == clock.trained  # nothing twice, nothing else
        assert errors_of(resumed) == errors_of(whole)
        assert (resumed.images, resumed.recipe) == (whole.images, whole.recipe)
        assert (whole.images, whole.recipe.epochs) == (40, 6)
        assert [(r.runs, r.epochs) for r in resumed.rounds] == [(r.runs, r.epochs) for r in whole.rounds]


def test_a_round_of_fewer_goes_on_with_those(monkeypatch, tmp_path):
    """The machine was too slow for the three that were to go on."""
    given = {"recipe": RECIPE, "device": "cpu", "minutes": 5}
    monkeypatch.setattr(budget, "next_round", lambda plan, alive, seconds: (2 if plan.rounds else alive, 12))

    def race(folder, stop_after=None):
        with monkeypatch.context() as patch:
            Clock(patch, 1e-6, stop_after)
            with pytest.raises(Stopped) if stop_after else nullcontext():
                return calibrate(brightness_classes(40), FOUR, folder=tmp_path / folder, **given)

    whole = race("whole")
    assert [each.runs for each in whole.rounds] == [4, 2, 2]
    assert sorted(map(len, errors_of(whole).values())) == [1, 1, 3, 3]
    assert len(errors_of(whole)["none"]) == 3
    race("stopped", 5)
    assert errors_of(race("stopped")) == errors_of(whole)


def test_time_that_was_spent_is_not_there_again(monkeypatch, tmp_path):
    """Stopped in its second round; what the first took, the whole five minutes, leaves nothing for a third."""
    given = {"recipe": RECIPE, "device": "cpu", "minutes": 5, "folder": tmp_path}
    with monkeypatch.context() as patch:
        Clock(patch, 1e-6, 5)
        with pytest.raises(Stopped):
            calibrate(brightness_classes(40), FOUR, **given)
    plan = json.loads((tmp_path / "race.json").read_text())
    assert plan["candidates"] == ["none", "inverted", "uniform", "flipped"]
    assert (plan["images"], plan["seeds"], plan["epochs"]) == (40, [0, 1, 2], 12)
    assert [each["epochs"] for each in plan["rounds"]] == [12, 12]
    assert plan["rounds"][1]["seconds"] is None
    plan["rounds"][0]["seconds"] = 300.0
    (tmp_path / "race.json").write_text(json.dumps(plan))
    found = calibrate(brightness_classes(40), FOUR, **given)
    assert len(found.rounds) == 2
    assert found.seconds > 300


def test_runs_that_were_finished_before_count_as_the_others(monkeypatch, tmp_path):
    """Three of four are there: the last takes two seconds, so the round takes eight."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "read_cell", lambda arena, cell: None if cell.label == "none" else {})
    (arena,) = module._folds(brightness_classes(40), tmp_path, "cpu", 0)[:1]
    cells = [module.Cell(each.label, each.policy, RECIPE, 0) for each in FOUR]
    train = lambda arena, cells: now.__setitem__(0, now[0] + 2.0)  # noqa: E731
    assert module._one_round(1, [(arena, cells)], 0.5, train, str) == 8.0
    assert (
        module._one_round(1, [(arena, cells[1:])], 0.5, train, str) == 3 * 12 * len(arena.data) * 0.5
    )  # as was planned


def test_a_plan_that_does_not_add_up(monkeypatch, tmp_path):
    given = {"recipe": RECIPE, "device": "cpu", "minutes": 5, "folder": tmp_path}
    Clock(monkeypatch, 1e-6)
    calibrate(brightness_classes(40), TWO, **given)
    file = tmp_path / "race.json"
    plan = json.loads(file.read_text())
    experiment = {"runs": 18, "epochs": 4, "seconds": None}
    for wrong in (
        {"seeds": [0, 1]},
        {"heats": [1, 3, 9]},
        {"heats": ["a"]},
        {"heats": [3]},
        {"experiment": []},
        *({"experiment": experiment | each} for each in ({"runs": 0}, {"epochs": "4"}, {"seconds": -1.0})),
        {"rounds": [experiment | {"epochs": 0}]},
    ):
        file.write_text(json.dumps(plan | wrong))
        with pytest.raises(RunError, match=r"race\.json' cannot be read .*: remove it to plan the race anew"):
            calibrate(brightness_classes(40), TWO, **given)


def test_another_race_has_another_plan(monkeypatch, tmp_path):
    given = {"recipe": RECIPE, "device": "cpu", "minutes": 5, "folder": tmp_path}
    Clock(monkeypatch, 1e-6)
    calibrate(brightness_classes(40), TWO, **given)
    before = json.loads((tmp_path / "race.json").read_text())
    calibrate(brightness_classes(44), TWO, **given)
    after = json.loads((tmp_path / "race.json").read_text())
    assert (before["images"], after["images"]) == (40, 44)
    assert before["of"] != after["of"]


def test_the_plan_of_another_version_is_that_of_another_race(monkeypatch, tmp_path):
    """It may lack what there is now, or have what there is not: a search of before the update is resumed."""
    file = tmp_path / "race.json"
    Clock(monkeypatch, 1e-6)
    for old in ('{"of": "x", "rounds": []}', '{"of": "x", "rounds": [], "experiment": {"of": 3}, "later": 1}'):
        file.write_text(old)
        found = calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path)
        assert len(found.rounds) == 3
        assert json.loads(file.read_text())["of"] != "x"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"off": "x"}', '{"rounds": 3}'])
def test_a_damaged_plan_is_named(tmp_path, content):
    (tmp_path / "race.json").write_text(content)
    with pytest.raises(RunError, match=r"race\.json' cannot be read .*: remove it to plan the race anew"):
        calibrate(brightness_classes(40), TWO, recipe=RECIPE, device="cpu", folder=tmp_path)


def test_a_small_budget_means_short_trainings(tmp_path):
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=1e-6)
    assert found.recipe.epochs == budget.LEAST_EPOCHS
    assert len(found.chosen.errors) == 1


def test_candidates_hold_what_people_use_and_the_start():
    start, found = named("random", seed=0), named("random", seed=1)
    labels = [each.label for each in usual_candidates(start, found, None, None)]
    assert {"none", "trivialaugment-wide", "uniform", "start", "found"} <= set(labels)
    assert len(set(labels)) == len(labels)
    least = labels[: budget.LEAST_CANDIDATES]  # that any budget has
    assert {"none", "trivialaugment-wide", "start"} <= set(least)
    assert {label.split(",")[0] for label in least} >= {"uniform", "found"}


def test_candidates_are_as_strong_as_they_are_called():
    start, found = named("random", seed=0), named("random", seed=1)
    by_label = {each.label: each for each in usual_candidates(start, found, start, None)}
    for label, each in by_label.items():
        passes = int(label.split(", ")[1][0]) if label.endswith(" passes") else 1
        assert each.policy.strength.passes == named("uniform").with_strength(passes).strength.passes, label
    assert by_label["uniform, half as often"].policy == named("uniform").with_strength(probability=0.5)
    either = by_label["general or any one"].policy
    assert [sub.weight for sub in either.sub_policies] == [1.0, 1.0]
    for sub, name in zip(either.sub_policies, ("general", "trivialaugment-wide"), strict=True):
        assert sub.stages == named(name).sub_policies[0].stages
    assert not either.spans  # the paper's, not the wide ones
    assert by_label["none"].expected.spread >= 4 * by_label["found"].expected.spread
    assert min(each.expected.error for each in by_label.values()) > 0.9
    assert max(by_label.values(), key=lambda each: each.expected.error).label == "none"


def test_a_choice_of_operations_is_kept_to():
    start, found = (named("random", seed=seed, ops=["flip", "rotate"]) for seed in (0, 1))
    for each in usual_candidates(start, found, found, ("flip", "rotate")):
        assert set(each.policy.ops) <= {"flip", "rotate"}


def test_refusals(tmp_path):
    data = brightness_classes()
    for minutes in (0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"must be a positive number, got {minutes}"):
            calibrate(data, [Candidate("none", named("none"))], minutes=minutes)
    with pytest.raises(ConfigError, match=r"expected of 'mine' must be positive numbers, got \(0.0, 0.05\)"):
        calibrate(data, [Candidate("mine", named("none"), Expected(0.0, 0.05))])
    for credit in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"must not be negative, got {credit}"):
            calibrate(data, [Candidate("none", named("none"))], credit=credit)
    with pytest.raises(ConfigError, match=r"a candidate is a Candidate\(label, policy\), got a Policy"):
        calibrate(brightness_classes(), [WORST], device="cpu")
    with pytest.raises(ConfigError, match=r"images as fasteraa\.data\.load gives them, got a tuple"):
        calibrate(((), ()), TWO, device="cpu")
    with pytest.raises(ConfigError, match="needs a candidate"):
        calibrate(data, [])
    with pytest.raises(ConfigError, match="labels of their own, got none, none"):
        calibrate(data, [TWO[0], TWO[0]])
    for labels, words in (([0, 1, 2], "no class has two different ones"), ([0, 0, 0], "needs images of two classes")):
        with pytest.raises(RaceError, match=words):
            calibrate(numbered(labels), TWO, recipe=RECIPE, device="cpu", folder=tmp_path)
    twins = ImageSet.of(data.images[[0, 0, 1, 1]], data.labels[[0, 0, 1, 1]], data.classes, "twins")
    with pytest.raises(RaceError, match="no class has two different ones"):
        calibrate(twins, TWO, recipe=RECIPE, device="cpu", folder=tmp_path)
