"""The race for how much augmentation: who takes part, who goes on, who is chosen, and that it finds a planted truth."""

import json
import sys

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError
from fasteraa.evaluate import calibrate as module
from fasteraa.evaluate.calibrate import Calibration, Candidate, Trial, calibrate, usual_candidates
from fasteraa.evaluate.compare import run_group
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named

RECIPE = TrainRecipe(network="small", epochs=12, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
WORST = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "inverted")


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Everything in this process: starting others takes longer than these trainings."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def brightness_classes(count=120, side=8):
    """Dark or bright with noise: inverting half of the images makes the classes one."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    level = np.where(labels == 0, 70, 185)[:, None, None, None]
    images = np.clip(level + rng.normal(0, 40, (count, 3, side, side)), 0, 255).astype(np.uint8)
    return ImageSet.of(torch.from_numpy(images), torch.from_numpy(labels).long(), ("dark", "bright"), "levels")


def test_planted_truth(tmp_path):
    """Inversion makes dark and bright alike; leaving images alone must win, and its table is kept."""
    candidates = [Candidate("inverted", WORST), Candidate("none", named("none"))]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert found.chosen.label == "none"
    assert found.chosen.error < 10 < found.trials[1].error
    assert found.recipe.epochs == 12
    assert len(found.chosen.errors) == found.folds == 5
    assert found.against("inverted").significant
    assert "clearly behind" in found.sentence()
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


def test_folds_need_an_image_of_each_class():
    data = brightness_classes(6)
    with pytest.raises(DataError, match="every fold needs an image of each class, got 4 folds"):
        list(data.folds(4, seed=0))


def test_the_better_half_goes_on(monkeypatch, tmp_path):
    """With errors planted for every candidate, the rounds are counted."""
    rounds = []

    def trained(arena, cells, **_):
        rounds.append([cell.label for cell in cells])

    def measured(arena, trial, recipe, seed):
        error = 99.0 if trial.label == "none" else float(trial.label)
        return Trial(trial.label, trial.policy, (*trial.errors, error), (*trial.losses, 1.0), 1000)

    monkeypatch.setattr(module, "run_cells", trained)
    monkeypatch.setattr(module, "_measured", measured)
    labels = ("none", "5", "3", "9", "1", "7", "8")
    candidates = [Candidate(label, named("none")) for label in labels]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=5)
    assert [len(each) for each in rounds] == [7, 5, 4, 3, 3]
    assert rounds[1] == ["1", "3", "5", "7", "none"]
    assert rounds[4] == ["1", "3", "none"]
    assert found.chosen.label == "1"
    assert [trial.label for trial in found.trials] == ["1", "3", "none", "5", "7", "8", "9"]


def trial(label, errors, loss=1.0, images=1000):
    return Trial(label, named("none"), tuple(errors), (loss,) * len(errors), images)


def test_of_equals_the_harder_one_is_chosen():
    weak, strong = trial("weak", (10.0, 11.0), 0.1), trial("strong", (10.2, 11.2), 0.5)
    assert module._choose([weak, strong]).label == "strong"
    worse = trial("worse", (12.0, 13.0), 0.9)
    assert module._choose([weak, worse]).label == "weak"


def test_what_is_not_clearly_better_than_nothing_is_not_chosen():
    """One standard error of 11% of 1,000 images is a point."""
    plain = trial("none", (11.0, 11.0), 0.01)
    assert module._choose([plain, trial("a", (10.4, 10.4))]).label == "none"
    assert module._choose([plain, trial("a", (9.8, 9.8))]).label == "a"
    assert module._choose([plain, trial("a", (10.4, 10.4), images=100_000)]).label == "none"
    many = trial("none", (11.0, 11.0), 0.01, images=100_000)
    assert module._choose([many, trial("a", (10.4, 10.4), images=100_000)]).label == "a"


def test_a_small_budget_drops_the_last_candidates():
    assert module._rounds(11) == [11, 7, 5, 4, 3]
    assert module._rounds(2) == [2, 2, 2, 2, 2]


def test_a_machine_that_slows_down_gets_shorter_rounds_then_fewer():
    """5 candidates: 5, 4, 3, 3 runs in the next four rounds, of 20 epochs as planned."""

    def left(seconds, cost=0.1):
        return module._epochs_left(5, 4, 20, seconds, cost)

    assert module._rounds(5, 4) == [5, 4, 3, 3]
    assert left(30.0) == left(1000.0) == 20
    assert left(18.0) == 12  # 15 runs of 12 epochs
    assert left(14.0) == 11  # 10 would be half of it: 14 s pay for three rounds of 11
    assert left(5.5) == 11  # one round
    assert left(4.0) is None
    assert module._epochs_left(5, 4, 4, 1.5, 0.1) is None  # three epochs tell nothing


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
    assert [len(errors) for errors in together] == [5, 5]
    assert alone == together


def test_a_set_that_is_too_large_for_the_time_is_cut(monkeypatch, tmp_path):
    """A second an image: 90 s pay for nothing, so as few images as there may be are taken."""
    said, raced = [], []
    monkeypatch.setattr(module, "_image_seconds", lambda *given: 1.0)
    monkeypatch.setattr(module, "run_cells", lambda arena, cells, **_: raced.append(arena))
    monkeypatch.setattr(module, "_measured", lambda arena, each, *_: trial(each.label, (1.0,)))
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    calibrate(brightness_classes(1500), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, say=said.append)
    assert {len(arena.data) + len(arena.held_out) for arena in raced} == {1000}
    assert said[0] == "calibrating with 1000 of 1500 images: time does not allow for more"


def test_two_rounds_of_the_shortest_race_decide_how_many_images():
    """Five candidates, then four, of four epochs: 36 passes over four fifths of the images."""
    data = brightness_classes(3000)
    assert module._payable(data, 11, 1.0, 36.0 * 2400, 0) is data
    assert len(module._payable(data, 11, 1.0, 36.0 * 2000, 0)) == 2500
    assert len(module._payable(data, 11, 1.0, -1.0, 0)) == 1000
    few = data.subset(900, 0)
    assert module._payable(few, 11, 1.0, -1.0, 0) is few


def test_the_cost_of_an_image_is_measured_on_a_part(monkeypatch):
    seen = []
    plain = module.Training
    monkeypatch.setattr(module, "Training", lambda data, *given: seen.append(len(data)) or plain(data, *given))
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    monkeypatch.setattr(module, "_MEASURED_IMAGES", 64)
    assert module._image_seconds(brightness_classes(200), candidates, RECIPE, 1, torch.device("cpu"), 0) > 0
    assert seen == [64]


def test_nothing_is_compiled(monkeypatch, tmp_path):
    """However much there is to train: the plan was measured without, and compiling takes half a minute."""
    seen = []

    def group(arena, cells, *, until, fuse):
        seen.append(fuse)
        return run_group(arena, cells, until=until, fuse=fuse)

    monkeypatch.setattr(sys.modules[run_group.__module__], "run_group", group)
    monkeypatch.setattr(sys.modules[run_group.__module__], "_pays", lambda *given: True)
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    calibrate(brightness_classes(40), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=1e-6)
    assert set(seen) == {False}


def test_only_those_who_came_furthest_can_win():
    assert module._choose([trial("early", (1.0,)), trial("late", (5.0, 5.0))]).label == "late"


def test_one_fold_is_called_a_guess():
    trials = (trial("a", (5.0,)), trial("b", (6.0,)))
    assert "a guess" in Calibration(trials[0], trials, 5, RECIPE, 1.0).sentence()


def test_that_nothing_was_clearly_better_is_said():
    trials = (trial("none", (6.0, 7.0)), trial("b", (6.0, 6.5)))
    assert (
        "b had 6.2%, which is not clearly better than nothing"
        in Calibration(trials[0], trials, 5, RECIPE, 1.0).sentence()
    )


def test_within_noise_is_said():
    trials = (trial("a", (5.0, 7.0)), trial("b", (6.0, 6.5)))
    assert "within the noise" in Calibration(trials[0], trials, 5, RECIPE, 1.0).sentence()


def test_a_small_budget_means_short_trainings(tmp_path):
    candidates = [Candidate("none", named("none")), Candidate("inverted", WORST)]
    found = calibrate(brightness_classes(), candidates, recipe=RECIPE, device="cpu", folder=tmp_path, minutes=1e-6)
    assert found.recipe.epochs == module._LEAST_EPOCHS
    assert len(found.chosen.errors) == 1


def test_candidates_hold_what_people_use_and_the_start():
    start, found = named("random", seed=0), named("random", seed=1)
    labels = [each.label for each in usual_candidates(start, found, None, None)]
    assert {"none", "trivialaugment-wide", "uniform", "start", "found"} <= set(labels)
    assert len(set(labels)) == len(labels)


def test_a_choice_of_operations_is_kept_to():
    start, found = (named("random", seed=seed, ops=["flip", "rotate"]) for seed in (0, 1))
    for each in usual_candidates(start, found, found, ("flip", "rotate")):
        assert set(each.policy.ops) <= {"flip", "rotate"}


def test_refusals(tmp_path):
    data = brightness_classes()
    with pytest.raises(ConfigError, match="must be positive, got 0"):
        calibrate(data, [Candidate("none", named("none"))], minutes=0)
    with pytest.raises(ConfigError, match="needs a candidate"):
        calibrate(data, [])
    lone = ImageSet.of(data.images[:3], torch.tensor([0, 0, 1]), data.classes, "lone")
    with pytest.raises(DataError, match="each needs two; use --no-calibrate"):
        calibrate(lone, [Candidate("none", named("none"))], recipe=RECIPE, device="cpu", folder=tmp_path)
