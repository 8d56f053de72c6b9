"""Races by fine-tuning on few images: what other sets say, and how measurements of all policies add up."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fasteraa.methods import Budget, Candidate, Expected
from fasteraa.methods.published import RACED_FINE_TUNING
from fasteraa.policy.named import named
from fasteraa.selection import finetuning
from fasteraa.selection.finetuning import (
    error_margin,
    expected_effect,
    methods_budget,
    weighed_together,
    with_expected_effects,
)
from fasteraa.selection.race import race
from fasteraa.selection.ranking import Trial, choose, differences
from fasteraa.testing.runners import ScriptedRunner

from .conftest import RECIPE, TWO, WORST, brightness_classes, cache_in, task_of

TUNED = replace(RECIPE, pretrained=True)
PRIOR = {
    "effects": {"trivialaugment-wide": -0.1, "uniform-half": -0.02},
    "common": 0.03,
    "alone": 0.04,
    "line": {"level": 0.0, "operations": 0.05, "spread": 0.12},
}


@pytest.fixture
def prior(monkeypatch):
    finetuning._by_hash.cache_clear()
    monkeypatch.setattr(finetuning, "_prior", lambda: PRIOR)
    yield PRIOR
    finetuning._by_hash.cache_clear()


def expecting(effect, spread=0.1, shared=0.08):
    return Expected(effect, spread, shared)


# --- what other sets say ---------------------------------------------------------------------------------------------


def test_a_policy_that_was_measured_elsewhere_is_known_by_what_it_does(prior):
    renamed = replace(named("trivialaugment-wide"), name="mine")
    assert expected_effect(renamed) == (-0.1, pytest.approx(0.05), 0.03)


def test_of_another_its_operations_are_counted(prior):
    one, two = expected_effect(named("uniform")), expected_effect(named("uniform-x2"))
    assert (one.effect, two.effect) == (pytest.approx(0.05), pytest.approx(0.1))
    assert one.spread == two.spread == pytest.approx(0.13)  # less is known of it


def test_the_order_is_that_of_other_sets(prior):
    own = Candidate("own", WORST, Expected(-0.5, 0.5))
    names = ("uniform-x2", "uniform-half", "none", "trivialaugment-wide")
    ordered = with_expected_effects([*(Candidate(name, named(name)) for name in names), own])
    assert [each.label for each in ordered] == ["none", "own", "trivialaugment-wide", "uniform-half", "uniform-x2"]
    assert ordered[0].expected is None
    assert ordered[1] is own  # its method knows better


def test_the_numbers_that_come_along():
    """Every policy that races is in them, and they are what a few hundred fine-tunings can show."""
    finetuning._prior.cache_clear()
    shipped = finetuning._prior()
    assert set(RACED_FINE_TUNING) - {"none"} <= set(shipped["effects"])
    assert not set(shipped["about"]["sets"]) & {"animals10", "dtd10", "rsscn7", "hymenoptera"}  # of results/finetune
    assert all(abs(effect) < 1 for effect in shipped["effects"].values())
    assert 0 < shipped["common"] < 1
    assert 0 < shipped["alone"] < 1


# --- measurements ----------------------------------------------------------------------------------------------------


def test_one_policy_is_weighed_by_noise_and_spread():
    ((mean, spread),) = weighed_together([(0.3, 0.2)], [expecting(-0.1, 0.1)])
    assert mean == pytest.approx((0.3 / 0.04 - 0.1 / 0.01) / (1 / 0.04 + 1 / 0.01))
    assert spread == pytest.approx(math.sqrt(1 / (1 / 0.04 + 1 / 0.01)))


def test_the_answer_is_that_of_bayes_rule():
    """Drawn from what is expected, then measured with noise of which `none` has half: no other line errs less."""
    rng, count, draws = np.random.default_rng(0), 4, 20_000
    effects, noise = np.array([-0.1, 0.0, 0.05, -0.02]), 0.15
    alone = math.sqrt(0.1**2 - 0.08**2)
    truth = effects + 0.08 * rng.normal(size=(draws, 1)) + alone * rng.normal(size=(draws, count))
    half = noise / math.sqrt(2)
    measured = truth + half * rng.normal(size=(draws, 1)) + half * rng.normal(size=(draws, count))
    expected = [expecting(effect) for effect in effects]
    away = np.array([weighed_together([(m, noise) for m in row], expected) for row in measured[:2000]])
    error = away[:, :, 0] - truth[:2000]
    assert np.sqrt((error**2).mean()) == pytest.approx(away[0, 0, 1], rel=0.05)  # as sure as it says
    design = np.hstack([np.ones((draws, 1)), measured])
    line = design @ np.linalg.lstsq(design, truth, rcond=None)[0]
    assert np.sqrt((error**2).mean()) == pytest.approx(np.sqrt(((line - truth) ** 2).mean()), rel=0.02)


def test_what_others_do_on_these_images_says_something_about_a_policy():
    together = weighed_together([(0.2, 0.1)] * 3 + [(0.0, 100.0)], [expecting(0.0)] * 4)
    apart = weighed_together([(0.2, 0.1)] * 3 + [(0.0, 100.0)], [expecting(0.0, shared=0.0)] * 4)
    assert together[3][0] > 0.05
    assert abs(apart[3][0]) < 0.01
    assert together[3][1] < apart[3][1]


def test_what_no_noise_explains_counts_as_it_was_measured():
    ((mean, _),) = weighed_together([(2.0, 0.01)], [expecting(-0.1, 0.001, 0.0)])
    assert mean == pytest.approx(2.0 - 3 * 0.01)


def test_without_noise_measurements_stay():
    assert weighed_together([(0.3, 0.0), (0.1, 0.0)], [expecting(0.0), None])[0] == pytest.approx((0.3, 0.0))


# --- the race --------------------------------------------------------------------------------------------------------


def trial(label, errors, images=60, expected=None, policy="none"):
    errors = tuple(errors)
    return Trial(Candidate(label, named(policy), expected), errors, (1.0,) * len(errors), errors, images)


def test_a_race_of_few_images_takes_what_helped_elsewhere():
    """One image more or less says nothing; without other sets the answer was `none`."""
    none, good = trial("none", (20.0, 20.0, 25.0)), trial("good", (20.0, 20.0, 25.0), expected=expecting(-0.12))
    assert choose([none, good]).label == "good"
    assert choose([none, replace(good, candidate=Candidate("good", named("none")))]).label == "none"
    slightly_worse = trial("good", (20.0, 22.0, 25.0), expected=expecting(-0.15))
    assert choose([none, slightly_worse]).label == "good"
    assert choose([none, trial("good", (50.0, 55.0, 50.0), expected=expecting(-0.12))]).label == "none"


def test_differences_are_those_to_none_in_any_order():
    trials = [trial("a", (10.0,), expected=expecting(-0.1)), trial("none", (12.0,)), trial("b", (15.0,))]
    a, none, b = differences(trials)
    assert none == (0.0, 0.0)
    for again, first in zip(differences([trials[1], trials[2], trials[0]]), [none, b, a], strict=True):
        assert again == pytest.approx(first)
    assert a.mean < b.mean


def test_points_of_error_that_few_images_do_not_tell():
    assert error_margin(20.0, 100) == pytest.approx(4.0)
    assert error_margin(0.0, 100) == 0.0


def test_images_that_are_held_out_again_are_no_new_images(tmp_path, monkeypatch, prior):
    monkeypatch.setattr("fasteraa.selection.schedule.REPEATS", ((1, 3, 3),))
    data = brightness_classes(24)
    tuned, scratch = (
        race(TWO, task_of(data, recipe), ScriptedRunner(cache_in(tmp_path / name)), Budget(trainings=14))
        for name, recipe in (("tuned", TUNED), ("scratch", RECIPE))
    )
    images = [{len(t.errors): t.images for t in result.trials} for result in (tuned, scratch)]
    assert images == [{7: 24}, {7: 24}]


def test_methods_that_train_get_what_the_race_leaves_over(tmp_path):
    class Priced(ScriptedRunner):
        def estimate(self, jobs):
            return 2.0 * len(jobs)

    runner, task = Priced(cache_in(tmp_path)), task_of(brightness_classes(24), TUNED)
    whole = 8 + 5 + 2 * 4 + 4 * 3 + 8 * 3  # trainings of the usual candidates in five rounds
    assert methods_budget(Budget(30.0), task, runner).seconds == 0
    assert methods_budget(Budget(2.0 * whole + 10), task, runner).seconds == pytest.approx(10.0)
    assert methods_budget(Budget(), task, runner).seconds == math.inf
    assert methods_budget(Budget(trainings=whole + 5), task, runner).trainings == 5
