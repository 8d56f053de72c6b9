"""What is predicted of a policy from measurements on these images, and who takes part where time allows for few."""

import json
import math
from dataclasses import replace

import pytest
import torch

from fasteraa.errors import ConfigError
from fasteraa.methods import Candidate, Expected
from fasteraa.policy.named import named
from fasteraa.selection.prior import (
    FIRST,
    PriorOf,
    Traits,
    is_guessing,
    longer_difference,
    longer_spread,
    operations_per_image,
    predict,
    read_prior,
    with_prior,
)
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.metrics import Measured
from fasteraa.train.runner.local import LocalRunner

from .conftest import RECIPE, WORST, ForgetfulRunner, brightness_classes, cache_in, task_of

PLAIN = Measured(30.0, 5.0, 0.9)


def traits(policy="trivialaugment-wide", error=36.0, loss=1.2, train_loss=0.01):
    return Traits.of(named(policy), PLAIN, Measured(error, 8.0, loss), train_loss)


def test_traits_are_relative_to_plain_images():
    seen = traits(train_loss=0.09)
    assert seen.harder == pytest.approx(math.log(1.2 / 0.9))
    assert seen.confused == pytest.approx(0.06)
    assert seen.unlearned == pytest.approx(math.log(0.1))
    assert seen.features == pytest.approx(
        [seen.harder, 0.06, seen.operations, math.log(0.1), *(math.log(0.1) * v for v in seen.features[:3])]
    )
    assert traits(train_loss=1e-9).unlearned == -4.0  # not beyond what the lines were fitted to
    assert traits(train_loss=5.0).unlearned == 0.0


def test_operations_of_an_image_are_counted_over_all_passes():
    assert operations_per_image(named("none")) == 0
    assert operations_per_image(named("trivialaugment-wide")) == pytest.approx(13 / 14)
    assert operations_per_image(named("uniform-x2")) == pytest.approx(2.0)
    assert operations_per_image(named("uniform-half")) == pytest.approx(0.5)


def test_who_knows_its_images_by_heart_gains_and_who_still_learns_loses():
    """The same policy on the same images: only how far the training came is different."""
    learning, finished = predict(traits(train_loss=0.5)), predict(traits(train_loss=0.002))
    assert finished.effect < learning.effect
    assert finished.effect < 0
    assert predict(traits(error=75.0, loss=2.5, train_loss=0.5)).effect > 0.1
    assert 0.03 < learning.spread < 0.2


def test_the_further_from_what_was_measured_elsewhere_the_less_is_predicted():
    usual, odd = traits(train_loss=0.07), traits("uniform-x3", error=95.0, loss=9.0, train_loss=0.9)
    assert predict(odd).spread > 1.5 * predict(usual).spread


def test_a_network_that_guesses_predicts_nothing(tmp_path):
    labels = torch.tensor([0] * 60 + [1] * 40)
    assert is_guessing(41.0, labels)
    assert is_guessing(31.0, labels)  # within two standard errors of 40 %
    assert not is_guessing(30.0, labels)
    runner, images = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1), brightness_classes(60)
    blind = replace(images, images=torch.full_like(images.images, 7))
    ordered = with_prior(CANDIDATES, task_of(blind, replace(RECIPE, epochs=1)), runner, seed=0, epochs=1)
    assert [each.label for each in ordered] == ["none", "inverted", "mild"]
    assert all(each.expected is None for each in ordered)


def test_longer_trainings_learn_what_is_hard():
    assert longer_difference(0.1, 0.5, 1.0) == pytest.approx(0.1)
    assert longer_difference(0.1, 0.5, 4.0) < longer_difference(0.1, 0.5, 2.0) < 0.1
    assert longer_difference(-0.1, 0.0, 4.0) < 0  # where nothing is left to learn, the sign stays
    assert longer_difference(0.1, 0.5, 100.0) == longer_difference(0.1, 0.5, 8.0)  # not beyond what was checked
    assert longer_spread(1.0) == 0 < longer_spread(2.0) < longer_spread(4.0)


def prior_file(folder, **changed):
    """The lines of the first network, changed, as those of the network that these tests train."""
    content = json.loads(json.dumps(read_prior()))
    content["networks"]["small"] = {**FIRST.lines, "effect": {**FIRST.lines["effect"], **changed}}
    (folder / "prior.json").write_text(json.dumps(content))
    return str(folder / "prior.json")


def test_a_race_predicts_with_the_lines_of_a_file(tmp_path):
    """As where the images of the race must not be among those that the lines were fitted to."""
    file = prior_file(tmp_path, level=FIRST.lines["effect"]["level"] - 0.25)
    assert predict(traits(), PriorOf(file, "small")).effect == pytest.approx(predict(traits()).effect - 0.25)
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    task = task_of(brightness_classes(60), replace(RECIPE, epochs=8))
    (tmp_path / "usual").mkdir()
    usual = with_prior(CANDIDATES, replace(task, prior=prior_file(tmp_path / "usual")), runner, seed=0, epochs=8)
    other = with_prior(CANDIDATES, replace(task, prior=file), runner, seed=0, epochs=8)
    assert other[1].expected.effect == pytest.approx(usual[1].expected.effect - 0.25)


@pytest.mark.parametrize(
    "changed", [{"weights": [0.0]}, {"spread": 0.0}, {"covariance": [[1.0]]}, {"level": "high"}, {"scales": [0.0] * 7}]
)
def test_a_file_that_is_no_prior_is_named(tmp_path, changed):
    with pytest.raises(ConfigError, match=r"prior\.json' is no prior of a race"):
        read_prior(prior_file(tmp_path, **changed))


def test_a_prediction_is_one_for_the_training_to_come(tmp_path, monkeypatch):
    """Which learns more by heart; far from the length of the race it orders candidates and says no more."""
    seen = traits(train_loss=0.4)
    assert seen.after(4.0).unlearned == pytest.approx(seen.unlearned - FIRST.lines["longer"]["learned"])
    assert seen.after(1.0) == seen
    assert seen.after(1000.0).unlearned == -4.0
    assert predict(seen.after(4.0)).effect < predict(seen).effect
    runner, lengths = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1), []
    monkeypatch.setattr(Traits, "after", lambda self, length, prior: lengths.append(length) or self)
    task = task_of(brightness_classes(60), replace(RECIPE, epochs=8))
    own = Candidate("own", named("uniform"), expected=Expected(0.3, 0.2))
    for epochs in (8, 16, 72):
        longer = replace(task, recipe=replace(RECIPE, epochs=epochs))
        far = with_prior([*CANDIDATES, own], longer, runner, seed=0, epochs=8)
    assert lengths == [1.0, 1.0, 2.0, 2.0, 9.0, 9.0]
    assert {each.label: each.expected for each in far if each.expected} == {"own": own.expected}
    assert far[0].label == "none"


CANDIDATES = [Candidate("inverted", WORST), Candidate("mild", named("uniform-half")), Candidate("none", named("none"))]


def test_the_order_is_that_of_what_is_predicted_on_these_images(tmp_path):
    """Inversion makes dark and bright alike."""
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    task = replace(task_of(brightness_classes(60), replace(RECIPE, epochs=8)), prior=prior_file(tmp_path))
    ordered = with_prior(CANDIDATES, task, runner, seed=0, epochs=8)
    assert [each.label for each in ordered] == ["none", "mild", "inverted"]
    assert ordered[0].expected is None
    assert ordered[1].expected.effect < ordered[2].expected.effect
    assert with_prior(CANDIDATES, task, runner, seed=0, epochs=8) == ordered
    own = replace(CANDIDATES[0], expected=Expected(-0.5, 0.5))
    assert with_prior([own, *CANDIDATES[1:]], task, runner, seed=0, epochs=8)[1] == own  # its method knows better


def test_each_network_that_was_measured_has_its_own_lines():
    small = PriorOf(network="small")
    assert small.has_own_lines
    assert small.lines["about"]["network"] == "small"
    assert PriorOf(network="wrn-16-2").lines == FIRST.lines != small.lines
    assert predict(traits(), small) != predict(traits())
    assert longer_difference(0.1, 0.5, 4.0, small) != longer_difference(0.1, 0.5, 4.0)
    assert not PriorOf(network="wrn-28-10").has_own_lines
    assert PriorOf(network="wrn-28-10").lines == FIRST.lines  # they order candidates


def test_of_a_network_that_the_lines_were_not_fitted_to_they_order_candidates_and_no_more(tmp_path):
    """What is expected is no effect, give or take what such networks showed; a method may know better."""
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    content = read_prior()
    networks = {name: lines for name, lines in content["networks"].items() if name != "small"}
    (tmp_path / "prior.json").write_text(json.dumps({**content, "networks": networks}))
    task = task_of(brightness_classes(60), replace(RECIPE, epochs=8))
    task = replace(task, prior=str(tmp_path / "prior.json"))
    nothing = Expected(0.0, read_prior()["other networks"]["spread"])
    ordered = with_prior(CANDIDATES, task, runner, seed=0, epochs=8)
    assert [(each.label, each.expected) for each in ordered] == [
        ("none", None),
        ("mild", nothing),
        ("inverted", nothing),
    ]
    own = replace(CANDIDATES[0], expected=Expected(-0.5, 0.5))
    assert with_prior([own, *CANDIDATES[1:]], task, runner, seed=0, epochs=8)[1] == own


def test_its_training_is_the_first_of_the_race(tmp_path):
    runner, task = ScriptedRunner(cache_in(tmp_path)), task_of(brightness_classes(24))
    with_prior(CANDIDATES, task, runner, seed=7, epochs=5)
    (job,) = runner.trained
    assert job.key == task.job("none", named("none"), fold=0, seed=7, epochs=5).key


def test_without_a_network_nothing_is_predicted_and_the_order_stays(tmp_path):
    runner, task = ForgetfulRunner(cache_in(tmp_path)), task_of(brightness_classes(24))
    ordered = with_prior(CANDIDATES, task, runner, seed=0, epochs=5)
    assert [each.label for each in ordered] == ["none", "inverted", "mild"]
    assert all(each.expected is None for each in ordered)
    assert with_prior(CANDIDATES[:2], task, runner, seed=0, epochs=5) == CANDIDATES[:2]
    tuned = task_of(brightness_classes(24), replace(RECIPE, weights="some.safetensors"))
    assert [each.label for each in with_prior(CANDIDATES, tuned, runner, 0, 5)] == ["none", "inverted", "mild"]
    assert len(runner.trained) == 1


def test_what_fine_tunings_say_is_not_expected_of_linear_probes(tmp_path):
    recipe = replace(RECIPE, weights="some.safetensors")
    tuned, probed = (task_of(brightness_classes(24), replace(recipe, freeze=freeze)) for freeze in (False, True))
    candidates = [*CANDIDATES, Candidate("general", named("general")), Candidate("own", WORST, Expected(-0.2, 0.1))]
    of_tunings, of_probes = (with_prior(candidates, task, None, 0, 5) for task in (tuned, probed))
    assert [each.label for each in of_probes] == [each.label for each in of_tunings]
    assert any(each.expected.shared for each in of_tunings if each.expected)
    expected = {each.label: each.expected and each.expected.numbers for each in of_probes}
    spread = read_prior()["other networks"]["spread"]
    assert expected["none"] is None
    assert expected["general"] == Expected(0.0, spread).numbers
    assert expected["own"] == Expected(-0.2, 0.1).numbers
