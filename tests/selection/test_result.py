"""What a race says: the recommendation first, then who was ahead of it, and whether trainings were long enough."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.named import named
from fasteraa.selection import result as result_module
from fasteraa.selection.ranking import choose
from fasteraa.selection.recommendation import difference_words
from fasteraa.selection.result import RaceResult, Result, chosen_policy
from fasteraa.selection.schedule import Round
from fasteraa.train.statistics import Estimate

from .conftest import RECIPE, brightness_classes
from .test_ranking import trial


def result_of(*trials, folds=3, **more):
    return RaceResult(trials[0], trials, folds, RECIPE, 1.0, **more)


# --- the sentence ----------------------------------------------------------------------------------------------------


def test_the_recommendation_comes_first_with_its_difference_to_none():
    """Differences of -1, -2 and -1.5 on three folds that share images: the mean and its interval."""
    result = result_of(trial("a", (5.0, 5.0, 5.0)), trial("none", (6.0, 7.0, 6.5)))
    half = 4.30265 * math.sqrt(0.25 * (1 / 3 + 1 / 2))
    assert result.sentence() == (
        "Use a: 5.0% held-out error against 6.5% without augmentation (3 trainings of 12 epochs of the small network, "
        f"difference -1.5 ± {half:.1f} points; better with a probability of more than 99%)."
    )


def test_who_has_learned_little_is_told_to_train_longer_first():
    none, a = (replace(trial(label, (30.0,)), scores=(1.02,), losses=(0.9,)) for label in ("none", "a"))
    words = (
        " Train longer before you augment: after 12 epochs of the small network without augmentation the loss is "
        "still 0.90 on training images and 1.02 on held-out ones. Race again for 48 epochs (--train-epochs 48)."
    )
    assert result_of(none, a).sentence().endswith(words)
    learned = replace(none, losses=(0.3,))
    assert "longer before" not in result_of(learned, a).sentence()
    assert "longer before" not in result_of(a).sentence()  # without none nobody knows
    assert "longer before" not in result_of(replace(none, length=2.0), a).sentence()  # not the length to come
    smoothed = replace(result_of(none, a), recipe=replace(RECIPE, label_smoothing=0.1))
    assert "longer before" not in smoothed.sentence()


def test_probabilities_are_computed_once(monkeypatch):
    """For the table of all candidates and for the sentence together."""
    asked = []
    monkeypatch.setattr(result_module, "better_than_none", lambda trials: asked.append(trials) or {"a": 0.9})
    result = result_of(trial("a", (5.0,)), trial("b", (5.5,)), trial("none", (6.0,)), folds=1)
    assert [row.better for row in result.table] == [0.9, None, None]
    assert result.table is result.table
    assert asked == [result.trials]


def test_one_training_has_no_interval():
    result = result_of(trial("a", (5.0,)), trial("none", (6.0,)))
    assert (
        "(1 training of 12 epochs of the small network, difference -1.0 points, one training; better"
        in result.sentence()
    )
    assert difference_words(Estimate(-2.5, 0.8, 3)) == "-2.5 ± 0.8 points"


def test_one_epoch_is_one_epoch():
    result = replace(result_of(trial("a", (5.0,))), recipe=replace(RECIPE, epochs=1))
    assert result.sentence() == "Use a: 5.0% held-out error (1 training of 1 epoch of the small network)."


def test_a_linear_probe_is_not_called_a_training_of_the_network():
    probed = replace(result_of(trial("a", (5.0,))), recipe=replace(RECIPE, freeze=True))
    assert f"1 training of {RECIPE.epochs} epochs of a linear probe of the small network" in probed.sentence()


def test_where_nothing_is_better_than_none():
    result = result_of(trial("none", (5.0, 5.0)), trial("a", (6.0, 6.5)))
    assert result.sentence() == (
        "Use none: do not augment these images. No policy is better with a probability of 80% (without augmentation "
        "5.0% held-out error, 2 trainings of 12 epochs of the small network). This is for trainings of 12 epochs: "
        "longer ones gain more by augmentation (--train-epochs)."
    )
    longer = replace(result_of(*(replace(each, length=7.0) for each in result.trials)))
    assert "better after 84 epochs with a probability of 80%" in longer.sentence()
    longer = replace(longer, recipe=replace(RECIPE, epochs=30))
    assert "longer ones" not in longer.sentence()  # 210 epochs
    assert "longer ones" not in result_of(trial("a", (5.0,)), trial("none", (6.0,))).sentence()


def test_a_race_much_shorter_than_the_training_chooses_nothing_and_says_what_would():
    """However clear its own trainings are: beyond eight times their length nothing was ever checked."""
    clear, none = trial("a", (1.0,) * 3), trial("none", (50.0,) * 3)
    at_eight, beyond = ([replace(each, length=length) for each in (clear, none)] for length in (8.0, 8.1))
    assert choose(at_eight).label == "a"
    assert "; better after 96 epochs with a probability of" in result_of(*at_eight).sentence()
    assert choose(beyond).label == "none"
    result = result_of(*reversed(beyond), rounds=(Round(6, 12, 1.0),), informative=(13, 601.0))
    assert result.sentence() == (
        "Use none: trainings of 12 epochs do not predict one of 97 epochs, more than 8 times as long (50.0% held-out "
        "error, 3 trainings of 12 epochs of the small network). Trainings this short say little about longer ones: "
        "13 epochs would say more, and take about 11 minutes (--race-minutes 11)."
    )
    assert [row.better for row in result.table] == [None, None]
    assert result.for_longer is None


def test_what_a_longer_training_would_have_is_said_where_it_is_something_else():
    """What is hard to learn is learned late. What was expected for the shorter training has no part in it."""
    none = replace(trial("none", (30.0,) * 3, 10**5), losses=(1.0,) * 3, length=1.5)
    hard = replace(trial("hard", (31.0,) * 3, 10**5, expected=Expected(0.5, 0.01)), losses=(30.0,) * 3, length=1.5)
    result = result_of(none, hard)
    assert choose(result.trials).label == "none"
    epochs, label, better = result.for_longer
    assert (epochs, label) == (72, "hard")  # four times 18
    assert 0.8 < better < 1
    assert result.sentence().endswith(
        " For a training of 72 epochs, 4 times as long, these trainings say hard: better with a probability of "
        f"{better:.0%} (--train-epochs 72)."
    )
    assert result.provenance()["for_longer"] == {"epochs": 72, "label": "hard", "better": better}
    twice = result_of(*(replace(each, length=3.0) for each in result.trials))
    assert twice.for_longer is None or twice.for_longer.epochs == 72  # four times the length is too far from the race's
    assert result_of(none, trial("worse", (60.0,) * 3)).for_longer is None
    assert result_of(hard, none).for_longer is None  # the same
    assert replace(result, recipe=replace(RECIPE, epochs=150)).for_longer is None  # long already
    assert replace(result, recipe=replace(RECIPE, weights="x.pt")).for_longer is None


def test_a_race_that_could_not_tell_says_so_and_what_would():
    """As many errors as none and a loss that is a little lower."""
    none, close = trial("none", (5.0, 5.0)), replace(trial("a", (5.0, 5.0)), scores=(4.9, 4.9))
    words = " The race could not tell: a is better with a probability of 59%: a race of about 2 minutes would tell"
    assert f"{words} (--race-minutes 2)." in result_of(none, close).sentence()


def test_who_has_fewer_errors_than_none_but_is_not_surely_better_is_named():
    """The chance of a lower loss counts, not the errors."""
    none, lucky = trial("none", (5.0, 5.0)), replace(trial("a", (4.5, 4.5)), scores=(4.9, 4.9))
    noise = 0.62 * math.sqrt(0.955 / (0.045 * 1000))
    chance = 0.5 * (1 + math.erf(math.log(5.0 / 4.9) / noise / math.sqrt(2)))
    assert f"{chance:.0%}" == "59%"
    words = "a has fewer errors (4.5%), but is better with a probability of 59% only"
    longer = replace(result_of(none, lucky), seconds=120.0).sentence()
    (minutes,) = re.findall(r"a race of about (\d+) minutes would tell \(--race-minutes \1\)\.", longer)
    assert words in longer
    z = math.log(5.0 / 4.9) / noise  # standard errors apart; 0.84 of them are 80%
    assert int(minutes) == math.ceil(2 * (0.8416 / z) ** 2)
    counted = replace(result_of(none, lucky), counted=6, rounds=(Round(4, 12),))  # two of the budget were left over
    count = math.ceil(6 * (0.8416 / z) ** 2)
    assert f"only: about {count} trainings would tell (--race-trainings {count})." in counted.sentence()
    better = {row.label: row.better for row in result_of(none, lucky).table}
    assert better == {"none": None, "a": pytest.approx(chance)}


def test_without_none_or_where_that_failed_there_is_no_difference():
    alone = "Use a: 5.0% held-out error (1 training of 12 epochs of the small network)."
    assert result_of(trial("a", (5.0,)), trial("b", (6.0,))).sentence() == alone
    failed = replace(trial("none", (50.0,)), failed="why")
    result = result_of(trial("a", (5.0,)), failed)
    assert result.sentence() == alone
    assert [row.against_none for row in result.table] == [None, None]


def test_a_part_of_the_images_is_said():
    result = result_of(trial("a", (5.0,)), images=1000, all_images=1500)
    assert "(1 training of 12 epochs of the small network, 1000 of 1500 images)" in result.sentence()
    assert "(1 training of 12 epochs of the small network)" in replace(result, images=1500).sentence()


def test_fewer_epochs_in_later_rounds_are_said():
    rounds = (Round(5, 12, 1.0), Round(3, 7, 1.0))
    assert "7 to 12 epochs of the small network" in result_of(trial("a", (5.0,)), rounds=rounds).sentence()


def test_what_did_better_and_was_not_chosen_is_explained():
    """By its loss, by what is easy to learn, or by too few images; what looks the same is not said to be better."""

    def said(other, **mine):
        first = replace(trial("a", (7.0, 7.0)), **mine)
        return result_of(first, other, trial("none", (9.0, 9.0))).sentence()

    fewer = trial("b", (6.0, 6.0))
    unsure = replace(fewer, scores=(8.0, 8.0))
    assert said(unsure).endswith("b has fewer errors but a higher loss (6.0%, loss 8.000 against 7.000).")
    easy = replace(fewer, losses=(0.1, 0.1), length=4.0)
    assert said(easy, losses=(2.0, 2.0), length=4.0).endswith(
        "b did better (6.0%, loss 6.000 against 7.000) but is easier to learn, so longer trainings gain less by it."
    )
    assert "b did better (6.0%, loss 6.000 against 7.000), by less than so few images can tell." in said(fewer)
    for same in (trial("b", (6.99, 6.99)), trial("b", (7.5, 7.5)), replace(fewer, failed="why"), trial("b", (6.0,))):
        assert "b " not in said(same)  # not fewer, not sound, or eliminated earlier on fewer images
    best = result_of(trial("a", (7.0,)), trial("b", (6.5,)), trial("c", (6.0,)))
    assert "c did better" in best.sentence()  # the one with the fewest errors


def test_trainings_too_short_to_say_much_are_said_to_be():
    result = result_of(trial("a", (5.0,)), rounds=(Round(6, 40, 1.0),), informative=(60, 601.0))
    assert result.longer == (60, 11)
    assert result.sentence().endswith(
        " Trainings this short say little about longer ones: 60 epochs would say more, and take about 11 minutes "
        "(--race-minutes 11)."
    )
    assert "short" not in replace(result, rounds=(Round(6, 48, 1.0),)).sentence()  # a slow machine, four fifths
    assert "short" not in replace(result, informative=None).sentence()
    assert replace(result, informative=(60, 1.0)).longer == (60, 2)


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_candidate():
    first, none, early = trial("a", (5.0, 5.5)), trial("none", (6.0, 7.0)), trial("b", (8.0,))
    lost = replace(trial("c", (50.0,)), losses=(), failed="why")
    rows = {row.label: row for row in result_of(first, none, early, lost).table}
    assert list(rows) == ["a", "none", "b", "c"]
    assert (rows["a"].error, rows["a"].trainings, rows["a"].errors) == (5.25, 2, (5.0, 5.5))
    assert rows["a"].against_none.mean == pytest.approx(-1.25)
    assert rows["b"].against_none == Estimate(2.0, math.inf, 1)  # on the fold that both had
    assert rows["none"].against_none is None
    assert [rows[label].eliminated for label in rows] == [False, False, True, True]
    assert (rows["c"].failed, rows["c"].train_loss, rows["c"].against_none) == ("why", None, None)


def test_folds_that_share_images_are_less_sure_than_seeds():
    """Differences of -1, -2 and -1.5: t is 3.93, of two degrees of freedom; else it were 5.20 (p 0.035)."""
    result = result_of(trial("a", (5.0, 5.0, 5.0)), trial("b", (6.0, 7.0, 6.5)), folds=5)
    assert result.against("b").p == pytest.approx(1 - 3.928 / (2 + 3.928**2) ** 0.5, abs=1e-4)
    assert not result.against("b").significant
    assert result.against("a") is None
    assert result.against("c") is None


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_policy_file_holds_the_whole_table():
    lost = replace(trial("c", (50.0,)), losses=(), failed="why")
    first = replace(trial("a", (5.0,), expected=Expected(-0.1, 0.1)), length=2.0)
    race = result_of(first, lost, rounds=(Round(2, 12, 1.0),), images=40, all_images=60)
    mine = Candidate("a", replace(named("uniform"), name="found on photos", provenance={"seed": 3}))
    policy = chosen_policy(mine, {"data": {"name": "photos"}, "seed": 1}, race, effects={"trainings": 54})
    assert (policy.name, policy.hash) == ("a", named("uniform").hash)
    known = json.loads(policy.to_json())["provenance"]
    assert (known["candidate"], known["data"], known["seed"]) == ("a", {"name": "photos"}, 3)
    told = known["race"]
    assert (told["chosen"], told["length"], told["images"], told["all_images"]) == ("a", 2.0, 40, 60)
    assert told["sentence"] == race.sentence()
    assert told["rounds"] == [{"runs": 2, "epochs": 12}]
    assert told["effects"] == {"trainings": 54}
    assert [row["candidate"] for row in told["table"]] == ["a", "c"]
    assert told["table"][0]["expected"] == [-0.1, 0.1]
    assert (told["table"][1]["failed"], told["table"][1]["training_loss"]) == ("why", None)
    assert replace(race, seconds=math.nan).provenance()["seconds"] is None  # trainings were counted
    assert "race" not in chosen_policy(mine, {}, None).provenance


def test_a_search_without_a_race_has_the_first_candidate():
    candidates = (Candidate("a", named("uniform"), details={"finished": False}), Candidate("b", named("none")))
    result = Result(named("uniform"), candidates, brightness_classes(4), details={"a": {"finished": False}})
    assert (result.chosen, result.table, result.finished) == ("a", (), False)
    assert replace(result, details={}).finished
    raced = replace(result, race=result_of(trial("b", (5.0,))))
    assert (raced.chosen, len(raced.table)) == ("b", 1)
    assert repr(raced) == "<Result: b of 2 candidates, raced, 4 images>"


def test_what_is_printed_is_the_answer():
    """Not 250,000 characters of images and policies."""
    candidates = (Candidate("none", named("none")), Candidate("general", named("general")))
    race = result_of(trial("general", (5.0, 5.0, 5.0)), trial("none", (6.0, 7.0, 6.5)))
    result = Result(named("general"), candidates, brightness_classes(400), race=race, folder=Path("runs/photos"))
    assert repr(result) == "<Result: general of 2 candidates, raced, 400 images, in 'runs/photos'>"
    answer, table = str(result).split("\n\n")
    assert answer.startswith("Use general: 5.0% held-out error against 6.5% without augmentation")
    assert [line.split()[0] for line in table.splitlines()] == ["error", "general", "none"]
    assert str(race) == str(result)
    assert repr(race) == "<RaceResult: general of 2 candidates>"
    assert repr(result.policy).startswith("<Policy general: sub-policies ")
    alone = replace(result, race=None, note="There was no race: why.")
    assert str(alone) == "Use general: it is what its method proposes, and was not raced. There was no race: why."
