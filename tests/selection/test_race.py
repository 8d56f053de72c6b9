"""The race: who takes part, who stays, who is chosen, and that a race that was stopped continues as the same race."""

import json
import math
import re
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fasteraa.errors import ConfigError, RaceError, RunError, Stopped
from fasteraa.methods import Budget, Candidate, Expected
from fasteraa.policy.named import named
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.files import sealed, unsealed
from fasteraa.selection import race as module
from fasteraa.selection import ranking, schedule
from fasteraa.selection.race import race
from fasteraa.selection.schedule import LEAST_CANDIDATES
from fasteraa.testing.runners import ScriptedRunner, by_key
from fasteraa.train import runner as runners
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.training import Training

from .conftest import FOUR, RECIPE, REPEATS, TWO, WORST, ForgetfulRunner, brightness_classes, cache_in, task_of

FIVE_MINUTES = Budget(300.0)


def planted(losses, **more):
    """A script by label: error and loss of every training."""

    def script(job):
        loss = losses[job.label]
        return {"error": min(10 * loss, 100.0), "held_out_loss": loss, "train_loss": 1.0, **more}

    return script


def different(*labels):
    """Candidates whose policies differ, so that each is trained."""
    return [Candidate(label, named("random", seed=number)) for number, label in enumerate(labels)]


def rounds_of(runner):
    """Labels of every fold and seed, in order."""
    blocks = {}
    for job in runner.trained:
        blocks.setdefault((job.split.name, job.seed), []).append(job.label)
    return blocks


# --- real trainings --------------------------------------------------------------------------------------------------


def test_planted_truth(tmp_path):
    """Inversion makes dark and bright alike; leaving images alone must win, and its table is kept."""
    candidates = [Candidate("inverted", WORST), Candidate("none", named("none"))]
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    result = race(candidates, task_of(brightness_classes()), runner, FIVE_MINUTES)
    assert result.chosen.label == "none"
    assert result.chosen.error < 10 < result.trials[1].error
    assert result.recipe.epochs == 12
    assert len(result.chosen.errors) == result.folds == 3
    assert result.against("inverted").significant
    assert [row.label for row in result.table] == ["none", "inverted"]
    assert result.table[1].against_none.mean > 10


def test_forty_images_and_two_classes_are_raced(tmp_path):
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    result = race(TWO, task_of(brightness_classes(40)), runner, FIVE_MINUTES)
    assert (result.chosen.label, result.chosen.images, len(result.chosen.errors)) == ("none", 40, 3)
    assert (result.images, result.all_images) == (40, 40)


# --- who stays -------------------------------------------------------------------------------------------------------


def test_the_better_half_stays(tmp_path):
    """With losses planted for every candidate, the rounds are counted."""
    candidates = [Candidate("none", named("none")), *different("5", "3", "9", "1", "7", "8")]
    losses = {each.label: 9.9 if each.label == "none" else float(each.label) for each in candidates}
    runner = ScriptedRunner(cache_in(tmp_path), planted(losses))
    result = race(candidates, task_of(brightness_classes()), runner, FIVE_MINUTES)
    rounds = list(rounds_of(runner).values())
    assert [len(each) for each in rounds] == [7, 5, 4]
    assert rounds[1] == ["1", "3", "5", "7", "none"]
    assert rounds[2] == ["1", "3", "5", "none"]
    assert result.chosen.label == "1"
    assert [each.label for each in result.trials] == ["1", "3", "5", "none", "7", "8", "9"]
    assert [(each.trainings, each.epochs) for each in result.rounds] == [(7, 12), (5, 12), (4, 12)]


def test_a_small_budget_keeps_none_and_the_first(tmp_path):
    """Where nothing can be predicted, in the order in which they were proposed."""
    runner = ForgetfulRunner(cache_in(tmp_path), image_seconds=1.0)
    labels = ("uniform", "mine", "general", "faster-aa", "trivialaugment-wide", "uniform-x2", "randaugment-3-14")
    candidates = [*different(*labels), Candidate("none", named("none"))]
    result = race(candidates, task_of(brightness_classes()), runner, Budget(1.0))
    first = next(iter(rounds_of(runner).values()))
    assert first == ["none", *labels[: LEAST_CANDIDATES - 1]]
    assert all(each.expected is None for each in result.trials)


def test_every_fold_has_a_seed_of_its_own(tmp_path):
    """With one seed for all of them the luck of one start would look like three."""
    runner = ScriptedRunner(cache_in(tmp_path))
    race(TWO, task_of(brightness_classes(), seed=7), runner, FIVE_MINUTES)
    assert list(rounds_of(runner)) == [("fold 1", 7), ("fold 2", 8), ("fold 3", 9)]


def test_where_there_is_time_those_that_are_left_are_trained_several_times(monkeypatch, tmp_path):
    """One fold after the other and over again; no two trainings of a candidate have a seed in common."""
    monkeypatch.setattr(schedule, "REPEATS", REPEATS)
    said, data, runner = [], brightness_classes(40), ScriptedRunner(cache_in(tmp_path))
    task = task_of(data, replace(RECIPE, epochs=1), tmp_path, seed=7, said=said)
    result = race(TWO, task, runner, Budget(3000.0))
    folds = [f"fold {1 + number % 3}" for number in range(16)]
    assert list(rounds_of(runner)) == list(zip(folds, range(7, 23), strict=True))
    assert said == [
        "the race: up to 32 trainings of 1 epoch of the small network, less than a second each, of 2 candidates",
        "race, round 1: 2 candidates, 1 training of 1 epoch of the small network each",
        "race, round 2: 2 candidates, 1 training of 1 epoch of the small network each",
        "race, round 3: 2 candidates, 2 trainings of 1 epoch of the small network each",
        "race, round 4: 2 candidates, 4 trainings of 1 epoch of the small network each",
        "race, round 5: 2 candidates, 8 trainings of 1 epoch of the small network each",
    ]
    assert [len(each.errors) for each in result.trials] == [16, 16]
    assert {each.images for each in result.trials} == {40}  # each once, however often it was held out
    assert [(each.trainings, each.epochs) for each in result.rounds] == [(2, 1), (2, 1), (4, 1), (8, 1), (16, 1)]
    assert "16 trainings of 1 epoch of the small network" in result.sentence()
    again = race(TWO, replace(task, decisions=Decisions(tmp_path / "schedule.json", "test")), runner, Budget(3000.0))
    assert again == result  # from what is there
    assert len(runner.trained) == 32


@pytest.mark.parametrize(("loss", "rounds"), [(0.5, 2), (2.0, 2), (1.03, 3)])
def test_a_race_ends_where_it_is_clear_who_is_best(monkeypatch, tmp_path, loss, rounds):
    """At half or twice the loss of none after the second round; at nearly the same it goes on."""
    monkeypatch.setattr(ranking, "CLEAR", 0.02)
    said, runner = [], ScriptedRunner(cache_in(tmp_path), planted({"none": 1.0, "inverted": loss}))
    task = task_of(brightness_classes(), folder=tmp_path, said=said)
    result = race(TWO, task, runner, FIVE_MINUTES)
    assert result.chosen.label == ("inverted" if loss < 1 else "none")
    assert [each.trainings for each in result.rounds] == [2] * rounds
    early = "the race ends after round 2: no other choice is expected to gain 2% of the loss"
    assert (early in said) == (rounds == 2)
    decisions = Decisions(tmp_path / "schedule.json", "test")
    assert race(TWO, replace(task, decisions=decisions), runner, FIVE_MINUTES) == result
    assert len(runner.trained) == 2 * rounds


class Patient(ScriptedRunner):
    """A training lasts until something was said of it."""

    def __init__(self, cache, said):
        super().__init__(cache)
        self.said = said

    def run(self, jobs, until=math.inf):
        for number, each in enumerate(super().run(jobs, until)):
            if not number:
                before, until = len(self.said), time.monotonic() + 60
                while len(self.said) == before:
                    assert time.monotonic() < until
                    time.sleep(0.001)
            yield each


def test_a_race_says_how_many_trainings_are_done_and_how_long_the_rest_takes(monkeypatch, tmp_path):
    monkeypatch.setattr(runners, "_EVERY_S", 0.001)
    monkeypatch.setattr(runners, "_LINES", 10**6)
    monkeypatch.setattr(module, "with_prior", lambda candidates, *rest: list(candidates))
    said = []
    task = task_of(brightness_classes(), said=said)
    result = race(FOUR, task, Patient(cache_in(tmp_path), said), Budget(trainings=10))
    assert sum(len(each.errors) for each in result.trials) == 10
    rounds = [line for line in said if line.startswith("race, round")]
    assert len(rounds) == 3
    for line, done in zip(rounds, (0, 4, 7), strict=True):
        assert re.match(rf"{done} of 10 trainings", said[said.index(line) + 1])


def test_the_time_that_is_left_is_said_once_enough_is_done_and_is_calm(monkeypatch):
    """Four side by side take a minute each."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    count = module._Count(began=0.0)
    count.keep(4)
    count.plan(12, [1], math.inf)

    def done(number, at):
        now[0] = at
        for _ in range(number):
            count.one_more()

    assert count.words(20.0) == "4 of 16 trainings"
    done(1, at=60.0)
    assert count.words(61.0) == "5 of 16 trainings"
    done(3, at=62.0)
    assert [count.words(passed) for passed in (62.0, 92.0, 122.0)] == [
        "8 of 16 trainings, about 2 min 4 s left",
        "8 of 16 trainings, about 1 min 34 s left",
        "8 of 16 trainings, about 1 min 4 s left",
    ]
    done(4, at=124.0)
    assert count.words(124.0) == "12 of 16 trainings, about 1 min 2 s left"
    assert count.words(200.0) == "12 of 16 trainings"  # it takes longer than the others


def test_lines_before_trainings_say_that_a_linear_probe_is_one(tmp_path):
    said = []
    task = task_of(brightness_classes(), replace(RECIPE, freeze=True), said=said)
    race(TWO, task, ScriptedRunner(cache_in(tmp_path)), Budget(trainings=6))
    said = [line for line in said if "epochs of" in line]
    assert said[0] == "the race: up to 6 trainings of 12 epochs of a linear probe of the small network, of 2 candidates"
    assert said[1] == "race, round 1: 2 candidates, 1 training of 12 epochs of a linear probe of the small network each"
    assert all("epochs of a linear probe of the small network" in line for line in said)


def test_a_policy_races_on_a_fold_as_it_was_made_without_it(tmp_path):
    """A policy made from trainings must not be measured on images that it was made with."""
    versions = {f"fold {number}": named("random", seed=number) for number in (1, 2)}
    made = Candidate("made", named("uniform"), on_folds=versions)
    runner = ScriptedRunner(cache_in(tmp_path), planted({"made": 0.1, "none": 0.5}))
    result = race([TWO[0], made], task_of(brightness_classes()), runner, FIVE_MINUTES)
    raced = {job.split.name: job.policy.hash for job in runner.trained if job.label == "made"}
    assert raced == {**{fold: policy.hash for fold, policy in versions.items()}, "fold 3": named("uniform").hash}
    assert result.chosen.policy.hash == named("uniform").hash  # the one made with all folds is what is used


def test_what_is_predicted_is_kept_with_the_schedule(tmp_path):
    """A race that is resumed knows it without measuring it again."""
    task, runner = task_of(brightness_classes(60), replace(RECIPE, epochs=4), tmp_path), None
    for jobs in (1, 1):
        runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=jobs)
        result = race(TWO, task, runner, Budget(trainings=6))
        expected = {each.label: each.expected for each in result.trials}
        assert expected["none"] is None
        kept = json.loads((tmp_path / "schedule.json").read_text())["race"]["expected"]
        assert kept == {"inverted": expected["inverted"].numbers}
    file = tmp_path / "schedule.json"
    content = unsealed(json.loads(file.read_text()))
    content["race"]["expected"]["inverted"] = [-3.0, 0.5]
    file.write_text(json.dumps(sealed(content)))
    task = replace(task, decisions=Decisions(file, "test"))
    again = race(TWO, task, runner, Budget(trainings=6))
    assert {each.label: each.expected for each in again.trials}["inverted"] == Expected(-3.0, 0.5)


# --- the budget ------------------------------------------------------------------------------------------------------


def test_a_race_is_planned_by_the_images_that_are_trained_on(tmp_path):
    """A second for each of 40 of 60: six trainings of eight epochs take 1,920 s, and of nine 2,160 s."""
    runner = ScriptedRunner(cache_in(tmp_path), image_seconds=1.0)
    assert race(TWO, task_of(brightness_classes(60)), runner, Budget(2_040.0)).recipe.epochs == 8


def test_what_was_spent_before_is_gone(tmp_path):
    runner = ScriptedRunner(cache_in(tmp_path), image_seconds=1.0)
    result = race(TWO, task_of(brightness_classes(60)), runner, Budget(3_000.0), spent=960.0)
    assert result.recipe.epochs == 8
    assert result.seconds == pytest.approx(960.0, abs=5)


def test_a_small_budget_means_short_trainings(tmp_path):
    runner = ScriptedRunner(cache_in(tmp_path), image_seconds=1.0)
    result = race(TWO, task_of(brightness_classes()), runner, Budget(1e-4), spent=1.0)
    assert result.recipe.epochs == 4
    assert result.recipe.warmup == 0.5  # an eighth of it
    assert len(result.chosen.errors) == 1


@pytest.mark.parametrize(("trainings", "sizes"), [(13, [6, 4, 3]), (12, [6, 4]), (9, [6, 3]), (5, [5]), (2, [2])])
def test_a_budget_in_trainings_is_kept_and_needs_no_clock(tmp_path, trainings, sizes):
    """Whatever the machine; all have the same epochs, and the best two and none are the fewest of a later round."""
    candidates = [Candidate("none", named("none")), *different(*"abcdefgh")]
    losses = {each.label: 0.5 for each in candidates} | {"none": 0.9}
    tables = []
    for name, seconds in (("quick", 1e-9), ("slow", 1e6)):
        runner = ScriptedRunner(cache_in(tmp_path / name), planted(losses), image_seconds=seconds)
        result = race(candidates, task_of(brightness_classes()), runner, Budget(trainings=trainings + 3), spent=3.0)
        assert [len(each) for each in rounds_of(runner).values()] == sizes
        assert {job.recipe.epochs for job in runner.trained} == {12}
        assert [each.cost for each in result.rounds] == sizes
        assert math.isnan(result.seconds)
        assert result.longer is None
        tables.append(result.table)
    assert tables[0] == tables[1]


@pytest.mark.parametrize(("seconds", "rounds"), [(22.0, [(2, 13)]), (0.6, [(1, 4)])])
def test_a_short_race_says_what_an_informative_one_would_take(tmp_path, monkeypatch, seconds, rounds):
    """On one fold, or of none alone; two candidates on three folds for 60 epochs; given that time, a race takes it."""
    now = [0.0]

    def script(job):
        now[0] += 0.05 * job.image_epochs
        return by_key(job)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    data, recipe = brightness_classes(24), replace(RECIPE, epochs=60)
    runner = ScriptedRunner(cache_in(tmp_path), script, image_seconds=0.05)
    short = race(TWO, task_of(data, recipe), runner, Budget(seconds))
    epochs, seconds = short.informative
    assert ([(each.trainings, each.epochs) for each in short.rounds], epochs) == (rounds, 60)
    assert seconds == pytest.approx(60 * 6 * 0.05 * 16)
    assert short.longer == (60, 5)
    long = ScriptedRunner(cache_in(tmp_path / "long"), script, image_seconds=0.05)
    assert race(TWO, task_of(data, recipe), long, Budget(seconds)).recipe.epochs == 60


def test_a_race_that_can_only_say_none_trains_once_and_says_what_would_tell(tmp_path):
    """Nothing is predicted of 200 epochs by fewer than 25."""
    said, runner = [], ScriptedRunner(cache_in(tmp_path), image_seconds=0.01)
    task = task_of(brightness_classes(24), replace(RECIPE, epochs=200), said=said)
    result = race(list(reversed(FOUR)), task, runner, Budget(1.0))
    assert rounds_of(runner) == {("fold 1", 0): ["none"]}
    assert (result.chosen.label, len(result.trials)) == ("none", 1)
    assert said[0] == "no race: there is no time for trainings that predict one of 200 epochs"
    assert "race, round 1: 1 candidate, 1 training of 4 epochs of the small network each" in said
    epochs, minutes = result.longer
    assert result.sentence().endswith(
        f"{epochs} epochs would say more, and take about {minutes} minutes (--race-minutes {minutes})."
    )


# --- trainings that fail ---------------------------------------------------------------------------------------------


def failing(which):
    def script(job):
        if which(job):
            return {"diverged": "the training loss was not finite in epoch 1"}
        return planted({each.label: 0.5 for each in FOUR})(job)

    return script


def test_a_training_that_fails_loses_and_the_race_continues(tmp_path):
    runner = ScriptedRunner(cache_in(tmp_path), failing(lambda job: job.label == "inverted"))
    result = race(TWO, task_of(brightness_classes(40)), runner, FIVE_MINUTES)
    assert result.chosen.label == "none"
    assert len(result.chosen.errors) == 3
    lost = result.trials[1]
    assert (lost.errors, lost.losses, lost.loss) == ((50.0,), (), None)
    assert lost.scores == (math.log(2),)  # those of guessing
    assert lost.failed == "the training loss was not finite in epoch 1"
    row = result.provenance()["table"][1]
    assert (row["failed"], row["training_loss"]) == (lost.failed, None)


def test_a_real_training_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    plain = Training.step

    def step(self, images, labels):
        return plain(self, images, labels) + (float("nan") if self.feed.policy.hash == WORST.hash else 0.0)

    monkeypatch.setattr(Training, "step", step)
    runner = LocalRunner(cache_in(tmp_path), device="cpu", jobs=1)
    result = race(TWO, task_of(brightness_classes(40), replace(RECIPE, epochs=4)), runner, FIVE_MINUTES)
    assert (result.chosen.label, len(result.chosen.errors)) == ("none", 3)
    assert result.trials[1].failed == "the training loss was not finite in epoch 1"


def test_none_stays_though_it_failed_once_and_is_not_chosen(tmp_path):
    runner = ScriptedRunner(cache_in(tmp_path), failing(lambda job: (job.label, job.seed) == ("none", 0)))
    result = race(TWO, task_of(brightness_classes(40)), runner, FIVE_MINUTES)
    assert result.chosen.label == "inverted"
    assert [len(each.errors) for each in result.trials] == [3, 3]
    assert len(result.trials[1].losses) == 2
    assert "without augmentation" not in result.sentence()


def test_a_race_in_which_all_fail_is_one_sentence(tmp_path):
    runner = ScriptedRunner(cache_in(tmp_path), failing(lambda job: True))
    with pytest.raises(RaceError, match=r"every training of the race failed \(none: the training loss was not finite"):
        race(TWO, task_of(brightness_classes(40)), runner, FIVE_MINUTES)
    assert len(runner.trained) == 2  # nobody is left for a second round


# --- stopped and resumed ---------------------------------------------------------------------------------------------


def jobs_in(*runners):
    return [(job.split.name, job.label, job.recipe.epochs, job.seed) for runner in runners for job in runner.trained]


def race_in(folder, stop_after=None, image_seconds=1e-6, data=None, candidates=FOUR, budget=FIVE_MINUTES):
    """Once, in a folder: the runner, and the result unless it was stopped."""
    folder.mkdir(exist_ok=True)
    runner = ScriptedRunner(cache_in(folder), image_seconds=image_seconds, stop_after=stop_after)
    task = task_of(data or brightness_classes(40), folder=folder)
    with pytest.raises(Stopped) if stop_after is not None else nullcontext():
        return runner, race(candidates, task, runner, budget)
    return runner, None


def test_a_race_that_was_stopped_continues_as_it_was_planned(tmp_path):
    """Before its first training, in its first round, as its second begins, and later; the machine seems far slower."""
    runner, whole = race_in(tmp_path / "whole")
    assert [(each.trainings, each.epochs) for each in whole.rounds] == [(4, 12), (3, 12), (2, 12)]
    again, same = race_in(tmp_path / "whole", image_seconds=1.0)
    assert (again.trained, same) == ([], whole)  # one that is over, too, and with its seconds
    for stop_after in range(9):
        folder = tmp_path / str(stop_after)
        begun, _ = race_in(folder, stop_after)
        rest, resumed = race_in(folder, image_seconds=1.0)
        assert jobs_in(begun, rest) == jobs_in(runner)  # nothing twice, nothing else
        assert resumed.trials == whole.trials
        assert resumed.chosen == whole.chosen
        assert (resumed.images, resumed.recipe) == (whole.images, whole.recipe) == (40, replace(RECIPE, warmup=1.5))
        assert [(r.trainings, r.epochs) for r in resumed.rounds] == [(r.trainings, r.epochs) for r in whole.rounds]


def test_a_round_of_fewer_continues_with_those(monkeypatch, tmp_path):
    """The machine was too slow for the three that were to stay."""
    monkeypatch.setattr(module, "next_round", lambda plan, alive, *left: (2 if plan.rounds else alive, 12))
    _, whole = race_in(tmp_path / "whole")
    assert [each.trainings for each in whole.rounds] == [4, 2, 2]
    errors = {each.label: each.errors for each in whole.trials}
    assert sorted(map(len, errors.values())) == [1, 1, 3, 3]
    assert len(errors["none"]) == 3
    race_in(tmp_path / "stopped", 5)
    _, resumed = race_in(tmp_path / "stopped")
    assert {each.label: each.errors for each in resumed.trials} == errors


def test_time_that_was_spent_is_not_there_again(tmp_path):
    """Stopped in its second round; what the first took, the whole five minutes, leaves nothing for a third."""
    race_in(tmp_path, 5)
    file = tmp_path / "schedule.json"
    content = unsealed(json.loads(file.read_text()))
    plan = content["race"]
    assert plan["candidates"][0] == "none"
    assert sorted(plan["candidates"]) == ["flipped", "inverted", "none", "uniform"]
    assert (plan["seeds"], plan["epochs"]) == ([0, 1, 2], 12)
    assert [each["epochs"] for each in plan["rounds"]] == [12, 12]
    assert plan["rounds"][1]["cost"] is None
    plan["rounds"][0]["cost"] = 300.0
    file.write_text(json.dumps(sealed(content)))
    _, result = race_in(tmp_path)
    assert len(result.rounds) == 2
    assert result.seconds > 300


def test_runs_that_were_finished_before_count_as_the_others(monkeypatch, tmp_path):
    """Three of four are there: the last takes two seconds, so the round takes eight; of all there, as estimated."""
    now, cache, task = [0.0], cache_in(tmp_path), task_of(brightness_classes(40))
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(job):
        now[0] += 2.0
        return by_key(job)

    jobs = [task.job(each.label, each.policy, fold=0, seed=0) for each in FOUR]
    list(ScriptedRunner(cache).run(jobs[1:]))
    runner = ScriptedRunner(cache, script, image_seconds=0.5)
    assert module._train_round(task, runner, 1, FOUR, [jobs[:2], jobs[2:]], module._Count())[1] == 8.0
    assert module._train_round(task, runner, 1, FOUR, [jobs], module._Count())[1] == 4 * 12 * task.train_images * 0.5


@pytest.mark.parametrize(
    "other",
    [
        [TWO[0], replace(TWO[1], policy=named("uniform"))],
        [TWO[0], replace(TWO[1], expected=Expected(0.9, 0.1))],  # others may stay
        [TWO[0], replace(TWO[1], on_folds={"fold 1": named("uniform")})],
        [TWO[0], replace(TWO[1], label="another-name")],
    ],
)
def test_other_candidates_are_another_race(tmp_path, other):
    race_in(tmp_path, candidates=TWO)
    before = json.loads((tmp_path / "schedule.json").read_text())["race"]
    _, result = race_in(tmp_path, candidates=other, image_seconds=1.0, budget=Budget(60.0))
    after = json.loads((tmp_path / "schedule.json").read_text())["race"]
    assert before["epochs"] == 12
    assert after["epochs"] == result.recipe.epochs == 4  # planned again, on a slower machine
    _, same = race_in(tmp_path, candidates=other)
    assert same.recipe.epochs == 4


def test_a_damaged_schedule_is_named(tmp_path):
    race_in(tmp_path, candidates=TWO)
    file = tmp_path / "schedule.json"
    content = unsealed(json.loads(file.read_text()))
    content["race"]["seeds"] = [0]
    file.write_text(json.dumps(sealed(content)))
    with pytest.raises(RunError, match=r"schedule\.json' cannot be read \(1 seeds for 3 trainings"):
        race_in(tmp_path, candidates=TWO)
    file.write_text(json.dumps({**sealed(content), "of": "other"}))
    with pytest.raises(RunError, match=r"schedule\.json' cannot be read .*: remove it to plan the race again"):
        race_in(tmp_path, candidates=TWO)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([], "a race needs a candidate"),
        ([TWO[0], TWO[0]], "candidates need labels of their own, got none, none"),
        ([WORST], r"a candidate is a Candidate\(label, policy\), got a Policy"),
        (
            [Candidate("mine", named("none"), Expected(0.1, 0.0))],
            "expected of 'mine' must be an effect and a positive spread, got .*0.1, .*0.0",
        ),
        (
            [Candidate("mine", named("none"), Expected(math.nan, 0.1))],
            "expected of 'mine' must be an effect and a positive spread, got .*nan",
        ),
    ],
)
def test_wrong_candidates(tmp_path, candidates, words):
    with pytest.raises(ConfigError, match=words):
        race(candidates, task_of(brightness_classes(12)), ScriptedRunner(cache_in(tmp_path)), FIVE_MINUTES)


@pytest.mark.parametrize(("given", "words"), [({"seconds": -1}, "seconds"), ({"trainings": -1}, "trainings")])
def test_a_budget_that_cannot_be(given, words):
    with pytest.raises(ConfigError, match=f"the {words} of a budget must not be negative, got -1"):
        Budget(**given)
