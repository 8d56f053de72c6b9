"""Who is ahead: losses against those of none, weighed against what is predicted, by how noisy each is."""

import json
import math
from dataclasses import replace

import pytest
import torch

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.named import named
from fasteraa.selection import ranking
from fasteraa.selection.prior import FIRST, PriorOf, longer_difference, longer_spread, read_prior
from fasteraa.selection.ranking import (
    Difference,
    Trial,
    best_of,
    better_than_none,
    choose,
    differences,
    expected_gain,
    keep_first,
    regret,
)


def trial(label, errors, images=1000, expected=None, loss=1.0):
    """Losses that are as errors, percent for percent."""
    errors = tuple(errors)
    return Trial(Candidate(label, named("none"), expected), errors, (loss,) * len(errors), errors, images)


def noise_of(error, images):
    return 0.62 * math.sqrt((1 - error / 100) / (error / 100 * images))


FOLDS_DIFFER = (("none", (10.0, 10.0, 10.0)), ("a", (8.0, 12.0, 9.0)))
GOOD, POOR = Expected(-0.05, 0.05), Expected(0.05, 0.05)


def test_the_lowest_loss_is_chosen():
    assert choose([trial("a", (9.0, 8.9)), trial("b", (8.8, 8.9)), trial("none", (12.0, 12.0))]).label == "b"
    assert choose([trial("a", (9.0, 8.9)), trial("b", (8.8, 8.9))]).label == "b"  # without none, too


def test_a_difference_is_that_of_logarithms():
    none, other = differences([trial("none", (10.0, 20.0)), trial("a", (5.0, 10.0))])
    assert none == (0.0, 0.0)
    assert other.mean == pytest.approx(math.log(0.5))
    assert other.spread == pytest.approx(noise_of(7.5, 1000))


def test_seeds_make_a_difference_on_any_number_of_images():
    """One training of each says nothing of it, and of a few by chance nothing may be seen."""
    for trainings in (1, 3):
        pair = [trial("none", (10.0,) * trainings, 10**6), trial("a", (9.5,) * trainings, 10**6)]
        assert differences(pair)[1].spread == pytest.approx(0.06 / math.sqrt(trainings))


def test_more_trainings_on_the_same_folds_say_nothing_new_of_their_images():
    """On one fold a policy helps, on another it harms: that many seeds agree on both does not make three folds more."""
    rows = [trial(label, (*folds,) * times, 10**6) for times in (1, 5) for label, folds in FOLDS_DIFFER]
    once, often = (differences(some)[1].spread for some in (rows[:2], rows[2:]))
    assert often == pytest.approx(once)
    seeds = [(label, (*folds[:2], *folds[1::-1])) for label, folds in FOLDS_DIFFER]  # the same, from seed to seed
    noise = [differences([trial(label, row * n, 10**6) for label, row in seeds])[1].spread for n in (1, 6)]
    assert noise[1] < noise[0] / 2


@pytest.mark.parametrize(
    ("difference", "better"),
    [(Difference(-1.0, 1.0), 0.8413), (Difference(0.0, 1.0), 0.5), (Difference(0.5, 0.0), 0.0), ((0.0, 0.0), 0.5)],
)
def test_the_probability_is_that_of_a_normal_distribution(difference, better):
    assert Difference(*difference).better == pytest.approx(better, abs=1e-4)


def test_what_is_not_probably_better_than_none_is_not_chosen():
    """0.84 standard errors make a probability of 0.8."""
    noise = noise_of(10.0, 800)
    none = trial("none", (10.0 * math.exp(0.85 * noise),), 800)
    assert better_than_none([trial("a", (10.0,), 800), none]) == pytest.approx({"a": 0.802}, abs=1e-3)
    assert choose([trial("a", (10.0,), 800), none]).label == "a"
    assert choose([trial("a", (10.0,), 800), trial("none", (10.0 * math.exp(0.83 * noise),), 800)]).label == "none"
    assert choose([trial("a", (10.0,), images=100), none]).label == "none"  # of fewer images more is needed
    assert better_than_none([trial("a", (10.0,))]) == {}


def test_what_is_predicted_on_these_images_counts_as_far_as_the_measurement_is_noisy():
    """A prediction as sure as the measurement lies as near: half of the way, and a root of two surer."""
    noise = noise_of(20.0, 400)
    hopeful = Expected(-0.2, noise)
    _, one = differences([trial("none", (20.0,), 400), trial("a", (20.0,), 400, hopeful)])
    assert one.mean == pytest.approx(-0.1)
    assert one.spread == pytest.approx(noise / math.sqrt(2))
    _, plain = differences([trial("none", (20.0,), 400), trial("a", (20.0,), 400)])
    assert plain == pytest.approx((0.0, noise))
    _, many = differences([trial("none", (20.0,) * 99, 10**6), trial("a", (20.0,) * 99, 10**6, hopeful)])
    assert abs(many.mean) < 0.01


def test_what_no_noise_explains_counts_as_it_was_measured():
    """An operation may ruin a kind of data: three standard errors at most are given."""
    ruined = trial("ruined", (60.0,), 50, Expected(-0.1, 0.001))
    none = trial("none", (20.0,), 50)
    _, difference = differences([none, ruined])
    assert difference.mean == pytest.approx(math.log(3) - 3 * noise_of(60.0, 50))
    assert choose([none, ruined]).label == "none"


def test_a_lower_loss_with_more_errors_than_none_is_not_chosen():
    surer = replace(trial("a", (12.0, 12.0)), scores=(5.0, 5.0))
    assert choose([surer, trial("none", (11.0, 11.0))]).label == "none"
    assert choose([replace(surer, errors=(11.0, 11.0)), trial("none", (11.0, 11.0))]).label == "a"


def test_how_differently_trainings_do_counts_as_noise():
    """Any number of images: a difference that comes and goes from fold to fold is none."""
    steady = [trial("a", (9.0, 9.1, 9.0), 10**6), trial("none", (10.0, 10.1, 10.0), 10**6)]
    assert choose(steady).label == "a"
    changing = [trial("a", (7.0, 12.0, 8.0), 10**6), trial("none", (10.0, 10.0, 10.0), 10**6)]
    assert choose(changing).label == "none"


def test_noise_between_trainings_is_that_of_a_mean_difference():
    """Of every logarithm half a tenth is left over, which neither its row nor its column explains."""
    rows = [(1.0, 1.1, 1.0, 1.1), (1.1, 1.0, 1.1, 1.0)]
    trials = [replace(trial(a, map(math.exp, row)), folds=4) for a, row in zip("ab", rows, strict=True)]
    assert ranking._training_noise(trials) == pytest.approx((8 * 0.0025 / 3) ** 0.5 * (2 / 4) ** 0.5)


def test_few_images_do_not_outweigh_a_prediction_and_many_do():
    for images, count, winner in ((200, 1, "good"), (20_000, 4, "poor")):
        race = [trial("good", (20.0,) * count, images, GOOD), trial("poor", (19.0,) * count, images, POOR)]
        assert best_of([*race, trial("none", (20.0,) * count, images)], 1)[0].label == winner


def test_the_training_to_come_may_be_longer():
    """What is hard to learn does worse in the race and better later; the carried difference is less sure."""
    none = replace(trial("none", (11.0,) * 30, 10**6, loss=0.1), length=4.0)
    hard = replace(trial("hard", (11.2,) * 30, 10**6, loss=9.0), length=4.0)
    assert choose([replace(none, length=1.0), replace(hard, length=1.0)]).label == "none"
    _, difference = differences([none, hard])
    unlearned = 9.0 / 11.2 - 0.1 / 11.0
    assert difference.mean == pytest.approx(longer_difference(math.log(11.2 / 11.0), unlearned, 4.0))
    assert difference.mean < 0
    assert difference.spread == pytest.approx(longer_spread(4.0), rel=0.01)
    assert choose([none, hard]).label == "hard"
    assert [each.label for each in best_of([none, hard], 1)] == ["hard", "none"]


def test_a_difference_is_carried_on_by_the_lines_of_the_race(tmp_path):
    file = tmp_path / "prior.json"
    lines = {**FIRST.lines, "longer": {"difference": 0.0, "unlearned": 0.0, "learned": 2.0, "spread": 0.3}}
    file.write_text(json.dumps({**read_prior(), "networks": {**read_prior()["networks"], "small": lines}}))
    race = [
        replace(trial(label, (error,) * 3, 10**6, loss=1.0), length=4.0, prior=PriorOf(str(file), "small"))
        for label, error in (("none", 11.0), ("a", 10.0))
    ]
    _, difference = differences(race)
    assert difference.mean == pytest.approx(math.log(10.0 / 11.0))
    assert difference.spread == pytest.approx(0.3, rel=0.01)


def test_who_stays_is_decided_by_the_weighed_difference():
    race = [trial("poor", (19.5,), 100, POOR), trial("good", (20.0,), 100, GOOD), trial("m", (20.1,), 100)]
    assert [each.label for each in best_of([*race, trial("none", (20.2,), 100)], 1)] == ["good", "none"]


def test_none_is_among_any_number_of_those_that_stay():
    race = [trial(label, (10.0,)) for label in ("a", "b", "none", "c")]
    assert [[each.label for each in keep_first(race, count)] for count in (4, 3, 2)] == [
        ["a", "b", "none", "c"], ["a", "b", "none"], ["a", "none"],
    ]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_equal_errors_nothing_is_chosen(order):
    """Wherever it stands among the candidates."""
    trials = [trial("none", (11.0, 11.0)), trial("a", (11.0, 11.0))]
    assert choose([trials[place] for place in order]).label == "none"


@pytest.mark.parametrize("none", [0.0, 30.0])
def test_losses_of_nothing_have_a_logarithm(none):
    race = [trial("none", (none,), 60), *(trial(label, (0.0,), 60) for label in "abc")]
    assert choose(race).label == ("a" if none else "none")


def test_only_those_that_came_furthest_can_win():
    assert choose([trial("early", (1.0,)), trial("late", (5.0, 5.0))]).label == "late"


def test_what_failed_loses_to_a_worse_error():
    lost = replace(trial("a", (5.0, 50.0)), failed="why")
    assert choose([lost, trial("b", (60.0, 60.0)), trial("none", (70.0, 70.0), images=10**6)]).label == "b"
    staying = best_of([lost, trial("b", (60.0,)), trial("none", (70.0,))], 2)
    assert [each.label for each in staying] == ["b", "none"]


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.0, "under 1%"),
        (0.004, "under 1%"),
        (0.5, "50%"),
        (0.994, "99%"),
        (0.996, "more than 99%"),
        (1.0, "more than 99%"),
    ],
)
def test_nothing_is_certain(probability, words):
    assert ranking.percent(probability) == words


# --- what another choice would gain ----------------------------------------------------------------------------------


def test_the_expected_gain_is_the_mean_of_what_is_above_zero():
    draws = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mean, spread in ((0.0, 1.0), (-0.3, 0.2), (0.5, 0.4)):
        assert expected_gain(mean, spread) == pytest.approx(
            (mean + spread * draws).clamp(min=0).mean().item(), abs=1e-3
        )
    assert (expected_gain(-0.1, 0.0), expected_gain(0.1, 0.0)) == (0.0, 0.1)


def test_regret_is_what_the_others_may_gain_over_the_choice():
    none, good, poor = trial("none", (10.0,)), trial("good", (5.0,)), trial("poor", (8.0,))
    away = {name: math.log(loss / 5.0) for name, loss in (("none", 10.0), ("poor", 8.0))}
    spread = {each.label: each.noise for each in (good, poor)}
    expected = expected_gain(-away["none"], spread["good"])
    good_to_poor = (
        spread["good"] ** 2 + spread["poor"] ** 2 - spread["good"] * spread["poor"]
    )  # less none's half, twice
    expected += expected_gain(-away["poor"], math.sqrt(good_to_poor))
    assert choose([none, good, poor]).label == "good"
    assert regret([none, good, poor]) == pytest.approx(expected)
    assert regret([none, good, replace(poor, errors=(), scores=())]) < expected  # who is out does not count


def test_of_fewer_images_another_choice_may_gain_more():
    regrets = [
        regret([trial("none", (10.0,), images), trial("a", (9.0,), images), trial("b", (9.1,), images)])
        for images in (100, 1000, 10_000)
    ]
    assert regrets == sorted(regrets, reverse=True)


def test_what_is_not_chosen_for_want_of_certainty_may_gain():
    unclear = [trial("none", (10.0,), 50), trial("a", (9.5,), 50)]
    assert choose(unclear).label == "none"
    assert regret(unclear) > 0.05


def test_of_a_training_much_longer_than_those_of_the_race_nobody_knows():
    longer = [replace(each, length=100.0) for each in (trial("none", (10.0,)), trial("a", (5.0,)))]
    assert regret(longer) == math.inf
