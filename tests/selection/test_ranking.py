"""Who is ahead: losses weighed against what was expected, by how noisy the measurement is."""

import math
from dataclasses import replace

import pytest

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.named import named
from fasteraa.selection import ranking
from fasteraa.selection.ranking import Trial, best_of, better_than_none, choose, estimates, keep_first


def trial(label, errors, images=1000, expected=None):
    """Losses that are as errors, percent for percent."""
    errors = tuple(errors)
    return Trial(Candidate(label, named("none"), expected), errors, (1.0,) * len(errors), errors, images)


def expecting(label, error, expected, images=1600):
    return trial(label, (error,), images, expected)


GOOD, MIDDLING, POOR = Expected(0.95, 0.05), Expected(1.0, 0.05), Expected(1.05, 0.05)


def test_the_lowest_loss_is_chosen():
    assert choose([trial("a", (9.0, 8.9)), trial("b", (8.8, 8.9)), trial("none", (12.0, 12.0))]).label == "b"
    assert choose([trial("a", (9.0, 8.9)), trial("b", (8.8, 8.9))]).label == "b"  # without none, too


def test_what_is_not_probably_better_than_none_is_not_chosen():
    """One standard error of 10% of 1,000 held-out images is 0.59: 0.84 of those make a probability of 0.8."""
    noise = 0.62 * 10.0 * math.sqrt(0.9 / (0.1 * 1000))
    none = trial("none", (10.0 + 0.85 * noise,))
    assert better_than_none([trial("a", (10.0,)), none]) == pytest.approx({"a": 0.802}, abs=1e-3)
    assert choose([trial("a", (10.0,)), none]).label == "a"
    assert choose([trial("a", (10.0,)), trial("none", (10.0 + 0.83 * noise,))]).label == "none"
    assert choose([trial("a", (10.0,), images=100), none]).label == "none"  # of fewer images more is needed
    assert better_than_none([trial("a", (10.0,))]) == {}


def test_what_is_expected_makes_no_policy_better_than_none():
    """It orders those that are."""
    hoped = Expected(0.5, 0.01)
    assert choose([expecting("a", 19.9, hoped, 200), expecting("none", 20.0, MIDDLING, 200)]).label == "none"
    race = [expecting("a", 15.0, hoped, 400), expecting("b", 14.9, POOR, 400), expecting("none", 20.0, MIDDLING, 400)]
    assert choose(race).label == "a"


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


def test_an_estimate_lies_between_what_was_measured_and_what_was_expected():
    """The middling one has 20%: 5% of that is a point, and one standard error of 20% of 1,600 images is one too.

    Of a loss it is 0.62 of that, as of 1,600 / 0.62² images.
    """
    images = round(1600 * 0.62**2)
    trials = [expecting("a", 17.0, GOOD, images), expecting("b", 20.0, MIDDLING, images)]
    trials.append(expecting("c", 22.5, POOR, images))
    values = estimates(trials)
    assert values[1] == pytest.approx(20.0)
    assert values[0] == pytest.approx((17.0 + 19.0) / 2, abs=0.1)
    assert values[2] == pytest.approx((22.5 + 21.0) / 2, abs=0.1)


def test_few_images_do_not_outweigh_an_expectation_and_many_do():
    for images, winner in ((200, "good"), (20_000, "poor")):
        race = [expecting("good", 20.0, GOOD, images), expecting("m", 20.2, MIDDLING, images)]
        assert choose([*race, expecting("poor", 19.0, POOR, images)]).label == winner


def test_what_is_hard_to_learn_gains_by_longer_trainings():
    """Guessing has a loss of 4, and 0.4 would be taken off that: 0.95 of 11 is more than 0.86 of 11.5."""
    easy, hard = trial("easy", (11.0, 11.0)), trial("hard", (11.5, 11.5))
    easy, hard = (replace(each, losses=(loss,) * 2) for each, loss in ((easy, 0.5), (hard, 1.5)))
    assert choose([easy, hard]).label == "easy"
    credited = [replace(each, credit=0.4, guess_loss=4.0) for each in (easy, hard)]
    assert estimates(credited) == pytest.approx([11.0 * math.exp(-0.05), 11.5 * math.exp(-0.15)])
    assert choose(credited).label == "hard"
    assert [each.label for each in best_of(credited, 1)] == ["hard"]
    worse = replace(hard, losses=(40.0, 40.0), credit=0.4, guess_loss=4.0)
    assert worse.prediction == pytest.approx(11.5 * math.exp(-0.4))  # not more than for guessing


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
    assert [each.label for each in best_of([*race, ruined], 2)] == ["m", "n"]
    lucky = expecting("lucky", 1.0, POOR, 1000)
    high = [expecting("m", 30.0, MIDDLING, 1000), expecting("n", 30.0, MIDDLING, 1000)]
    assert estimates([*high, lucky])[2] < 5.0


@pytest.mark.parametrize(("error", "images"), [(30.0, 60), (10.0, 60), (50.0, 2)])
def test_where_most_have_no_errors_one_that_has_some_is_not_chosen(error, images):
    """All are then expected to have none, and `none` would win among equals."""
    race = [expecting("none", error, Expected(1.2, 0.25), images)]
    race += [expecting(label, 0.0, MIDDLING, images) for label in "abc"]
    assert choose(race).label == "a"
    assert choose([replace(race[0], errors=(0.0,), scores=(0.0,)), *race[1:]]).label == "none"


def test_noise_between_seeds_counts():
    """However many images are held out, those that do differently from fold to fold are hard to tell apart."""
    steady, changing = (9.0, 9.0, 9.0, 9.0), (8.0, 7.5, 8.0, 7.5)
    apart = [trial("good", (9.0, 9.5, 9.0, 9.5), expected=GOOD), trial("m", steady, expected=MIDDLING)]
    for luck, winner in ((changing, "poor"), ((1.0, 16.0, 1.0, 13.0), "good")):
        race = [*apart, trial("poor", luck, expected=POOR)]
        assert choose([replace(each, images=1_000_000) for each in race]).label == winner


def test_noise_between_seeds_is_that_of_a_mean_difference():
    """Of every error half a point is left over, which neither its row nor its column explains."""
    rows = [(10.0, 11.0, 10.0, 11.0), (11.0, 10.0, 11.0, 10.0)]
    noise = ranking._training_noise([trial(label, row) for label, row in zip("ab", rows, strict=True)])
    assert noise == pytest.approx((8 * 0.25 / 3) ** 0.5 * (2 / 4) ** 0.5)


def test_who_stays_is_decided_by_the_estimate():
    race = [expecting("poor", 19.5, POOR, 100), expecting("good", 20.0, GOOD, 100), expecting("m", 20.1, MIDDLING, 100)]
    plain = expecting("none", 30.0, Expected(1.2, 0.25), 100)
    assert [each.label for each in best_of([*race, plain], 1)] == ["good", "none"]


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


def test_only_those_that_came_furthest_can_win():
    assert choose([trial("early", (1.0,)), trial("late", (5.0, 5.0))]).label == "late"


def test_what_failed_loses_to_a_worse_error():
    lost = replace(trial("a", (5.0, 50.0)), failed="why")
    assert choose([lost, trial("b", (60.0, 60.0)), trial("none", (61.0, 61.0), images=10**6)]).label == "b"
    staying = best_of([lost, trial("b", (60.0,)), trial("none", (70.0,))], 2)
    assert [each.label for each in staying] == ["b", "none"]
    assert lost.predictions == (5.0, 50.0)  # without a credit
