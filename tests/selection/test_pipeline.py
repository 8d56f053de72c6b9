"""A search step by step: who is asked for candidates, what they may spend, when there is no race, when it continues."""

import json
import math
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RaceError, RunError, Stopped
from fasteraa.methods import Candidate, Method
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.dada import Dada
from fasteraa.methods.op_effects import OpEffects
from fasteraa.methods.published import PublishedPolicies
from fasteraa.methods.randaugment import RandAugmentGrid
from fasteraa.methods.random import RandomSearch
from fasteraa.methods.task import FOLDS, Task
from fasteraa.policy.named import named
from fasteraa.report.summary import summarise
from fasteraa.runtime.files import sealed
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection import pipeline
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.pipeline import propose_and_race
from fasteraa.selection.schedule import TYPICAL_CANDIDATES, trainings_of_rounds
from fasteraa.testing.runners import ScriptedRunner, by_key
from fasteraa.train.job import TrainJob
from fasteraa.train.runner import Engine, run_jobs
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.split import Split

from .conftest import TWO, WORST, Said, brightness_classes

MINUTES = RaceConfig(minutes=5)


class Proposes(Method):
    """Candidates that are there from the beginning."""

    def __init__(self, *candidates, name="proposes"):
        self.given, self.name, self.asked = candidates, name, []

    def candidates(self, task, budget, runner):
        self.asked.append(task)
        return list(self.given)


class Trains(Method):
    """As many trainings as it may have, or so many; the last of them is what it proposes."""

    trains = True

    def __init__(self, name="trains", most=10**6):
        self.name, self.most, self.shares = name, most, []

    def candidates(self, task, budget, runner):
        self.shares.append(budget)
        count = min(self.most, budget.trainings if budget.trainings is not None else self.most)
        task.decisions.decide(self.name, lambda: {"trainings": count})
        jobs = [task.job(f"{self.name}-{n}", named("random", seed=n), fold=0, seed=0, epochs=1) for n in range(count)]
        run_jobs(runner, jobs)
        return [Candidate(jobs[-1].label, jobs[-1].policy)] if jobs else []


@pytest.fixture
def scripted(monkeypatch):
    """Runners that were made in the place of real ones, and how they are made."""
    made = []

    def make_runner(engine, cache, **settings):
        made.append(ScriptedRunner(cache, make_runner.script, **make_runner.options))
        made[-1].engine, made[-1].settings = engine, settings
        return made[-1]

    make_runner.script, make_runner.options, make_runner.made = by_key, {}, made
    monkeypatch.setattr(pipeline, "make_runner", make_runner)
    return make_runner


def run(methods, data=None, race=MINUTES, folder=None, end=math.inf, said=None, jobs=None, training=None, **config):
    task = Task(
        data or brightness_classes(40),
        SearchConfig(**config),
        "cpu",
        folder=RunFolder(folder) if folder else None,
        progress=Said(said if said is not None else []),
    )
    return propose_and_race(task, methods, race, end, Engine(device=task.device, jobs=jobs), training)


def numbered(labels, side=8):
    """Images that differ, with these labels."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (len(labels), 3, side, side), dtype=np.uint8)
    classes = tuple(f"c{number}" for number in range(max(labels) + 1))
    return ImageSet.of(torch.from_numpy(images), torch.tensor(labels), classes, "numbered")


# --- with a race -----------------------------------------------------------------------------------------------------


def test_a_candidate_that_does_nothing_is_not_raced_in_the_place_of_none(scripted):
    """With another policy on a fold it would race as what it is not."""
    scripted.script = lambda job: {**by_key(job), "held_out_loss": 0.9 if job.label == "none" else 0.1}
    pba, said = Candidate("pba", named("none"), on_folds={"fold 1": WORST}), []
    result = run([Proposes(pba, Candidate("faint", named("uniform").with_strength(probability=0)))], said=said)
    assert (result.chosen, [row.label for row in result.table]) == ("none", ["none"])
    assert {job.policy.hash for job in scripted.made[0].trained} == {named("none").hash}
    assert "pba leaves every image as it is, so it races as none" in said
    assert "faint leaves every image as it is, so it races as none" in said
    both = run([Proposes(pba, TWO[1])])
    assert (both.chosen, both.table[0].against_none is not None) == ("inverted", True)


def test_none_is_the_label_of_nothing_else(scripted):
    with pytest.raises(ConfigError, match="the label 'none' means no augmentation, got a policy with invert"):
        run([Proposes(Candidate("none", WORST))])


def test_all_methods_propose_and_the_race_decides(scripted):
    scripted.script = lambda job: {
        **by_key(job),
        "held_out_loss": 0.1 if job.label == "inverted" else 0.9,
        "error": 9.0,
    }
    methods = [Proposes(TWO[0]), Trains(most=3), Proposes(TWO[1], name="more")]
    result = run(methods)
    assert [each.label for each in result.candidates] == ["none", "trains-2", "inverted"]
    assert (result.chosen, result.policy.hash, result.policy.name) == ("inverted", WORST.hash, "inverted")
    assert result.race.chosen.label == "inverted"
    assert {row.label for row in result.table} == {"none", "trains-2", "inverted"}
    assert result.policy.provenance["race"]["chosen"] == result.policy.provenance["candidate"] == "inverted"
    assert result.note == ""
    (runner,) = scripted.made
    assert runner.engine == "local"
    assert not methods[0].asked[0].folds  # nobody needs them before


def test_a_policy_says_which_method_proposed_it(scripted):
    """Not another one that took part in the search, whatever that left behind."""
    origin = {"method": "A long search", "seconds": 12.5, "finished": False}
    searched = replace(WORST, provenance=origin)
    by_search = Candidate("searched", searched, details={"origin": origin})
    of_search, brought = run([Proposes(by_search)], race=None), run([Proposes(TWO[1], by_search)], race=None)
    assert of_search.policy.provenance["method"] == "A long search"
    assert brought.policy.provenance["method"] == "proposes"
    scripted.script = lambda job: {**by_key(job), "held_out_loss": 0.1 + (job.label != "none")}
    chosen = run([Proposes(by_search)]).policy.provenance  # `none` is in every race
    assert (chosen["candidate"], chosen["method"], chosen["seconds"]) == ("none", "race", 12.5)


def test_validation_images_judge_in_the_race_and_not_for_methods(scripted):
    judge = brightness_classes(24)
    methods = [Proposes(*TWO), Trains(most=2)]
    task = Task(brightness_classes(40), SearchConfig(), "cpu", progress=Said([]), validation=judge)
    result = propose_and_race(task, methods, MINUTES, math.inf, Engine())
    (runner,) = scripted.made
    by_method = [job for job in runner.trained if job.recipe.epochs == 1]
    raced = [job for job in runner.trained if job.recipe.epochs > 1]
    assert {job.split.name for job in by_method} == {"fold 1"}
    assert {job.split.held_out.fingerprint for job in raced} == {judge.fingerprint}
    assert {len(job.split.train) for job in raced} == {40}
    assert len({job.seed for job in raced}) > 1  # several rounds, of one split
    assert result.race.folds == 1
    about = {"name": judge.name, "images": 24, "fingerprint": judge.fingerprint}
    assert result.policy.provenance["race"]["validation"] == about


@pytest.mark.parametrize(("metric", "chosen"), [("error", "none"), ("balanced-error", "inverted"), ("loss", "uniform")])
def test_the_metric_decides(scripted, metric, chosen):
    """One policy helps the rare classes, another the loss, but not the errors."""
    outcomes = {
        "none": (10.0, 0.5, 30.0, 0.9),
        "inverted": (12.0, 0.6, 15.0, 0.4),
        "uniform": (11.0, 0.2, 35.0, 1.0),
    }
    names = ("error", "held_out_loss", "balanced_error", "balanced_loss")
    scripted.script = lambda job: {**by_key(job), **dict(zip(names, outcomes[job.label], strict=True))}
    methods = [Proposes(*TWO, Candidate("uniform", named("uniform")))]
    result = run(methods, brightness_classes(300), race=RaceConfig(minutes=5, metric=metric, epochs=12))
    assert result.chosen == chosen
    assert ("balanced held-out error" in result.race.sentence()) == (metric == "balanced-error")


@pytest.mark.parametrize(
    ("seconds", "judge", "raced"),
    [(1e-6, "auto", True), (1.0, "auto", False), (1.0, "training", True), (1e-6, "probe", True)],
)
def test_a_cpu_without_time_for_fine_tuning_has_no_race(scripted, tmp_path, seconds, judge, raced):
    """Linear probes are raced where somebody asks for them, and never in the place of fine-tunings."""
    torch.save({}, tmp_path / "weights.pt")
    scripted.options = {"image_seconds": seconds}
    race = RaceConfig(minutes=5, network="small", weights=str(tmp_path / "weights.pt"), judge=judge)
    result = run([Proposes(*TWO)], race=race)
    (runner,) = scripted.made
    assert {(job.recipe.freeze, job.recipe.copies) for job in runner.trained} == (
        {(judge == "probe", 4 * (judge == "probe"))} if raced else set()
    )
    assert (result.race is not None) == raced
    if not raced:
        assert result.chosen == result.policy.name == "none"
        assert result.sentence().startswith(
            "Use none: nothing was measured that speaks for another policy. There was no race: fine-tuning takes too "
            "long on this CPU, three candidates would need about"
        )


def test_a_fine_tuning_suits_the_images_that_time_allows_for(scripted, tmp_path):
    class Looks(Trains):
        def candidates(self, task, budget, runner):
            self.task = task
            return []

    torch.save({}, tmp_path / "weights.pt")
    scripted.options = {"image_seconds": 0.01}
    weights = {"network": "small", "weights": str(tmp_path / "weights.pt"), "judge": "training"}
    for given, batch, epochs in (({}, 14, 34), ({"epochs": 7}, 14, 7), ({"train": {"batch_size": 32}}, 32, 75)):
        method, race = Looks(), RaceConfig(minutes=5, **weights, **given)
        run([Proposes(*TWO), method], brightness_classes(1200), race=race)
        recipe = method.task.recipe
        assert (method.task.train_images, recipe.batch_size, recipe.epochs) == (133, batch, epochs)


def test_a_training_measured_without_balanced_errors_is_named(scripted):
    scripted.script = lambda job: {"error": 1.0, "held_out_loss": 0.1, "train_loss": 0.1}
    with pytest.raises(RunError, match="measured without balanced errors"):
        run([Proposes(*TWO)], race=RaceConfig(minutes=5, metric="balanced-error"))


def test_a_method_that_trains_must_say_so(scripted):
    class Quietly(Proposes):
        def candidates(self, task, budget, runner):
            return run_jobs(runner, [TrainJob("mine", WORST, task.recipe, 0, Split(task.data, task.data, "all"))])

    with pytest.raises(ConfigError, match="a method that trains must say so: trains = True"):
        run([Quietly()])


def test_nothing_is_compiled_and_as_many_trainings_go_side_by_side_as_asked_for(scripted):
    """The plan was measured without, and compiling takes half a minute."""
    run([Proposes(*TWO)], jobs=3)
    run([Proposes(*TWO)])
    assert [runner.settings for runner in scripted.made] == [
        {"device": "cpu", "jobs": jobs, "devices": None, "address": None, "compile": False} for jobs in (3, None)
    ]


def test_a_race_may_tune_its_training_first(scripted, tmp_path):
    """Without a policy, on the images of the race; every training after it has that rate and decay."""

    def script(job):
        recipe = job.recipe
        loss = 1 + abs(recipe.learning_rate - 0.3) + 10 * abs(recipe.weight_decay - 5e-3)
        return {"error": 20.0, "held_out_loss": loss, "train_loss": 0.1}

    scripted.script, race = script, RaceConfig(minutes=5, tune=True)
    result = run([Proposes(*TWO)], race=race, folder=tmp_path)
    assert (result.race.recipe.learning_rate, result.race.recipe.weight_decay) == (pytest.approx(0.3), 5e-3)
    tuning = [job for job in scripted.made[0].trained if job.label == "none, tuned"]
    assert {(job.policy.hash, job.split.name) for job in tuning} == {(named("none").hash, "fold 1")}
    assert len(tuning) == 6
    raced = [job for job in scripted.made[0].trained if job.label != "none, tuned"]
    assert {job.recipe.weight_decay for job in raced} == {5e-3}


def test_who_says_how_long_the_training_will_be_has_it_raced_or_predicted(scripted):
    """Where trainings are counted, they are as long as is worth it: 150 of 600 epochs."""
    raced = run([Proposes(*TWO)], race=RaceConfig(trainings=6, epochs=3))
    assert {each.length for each in raced.race.trials} == {1.0}
    shorter = run([Proposes(*TWO)], race=RaceConfig(trainings=6, epochs=10_000))
    assert {each.length for each in shorter.race.trials} == {10_000 / shorter.race.recipe.epochs}
    assert shorter.race.recipe.epochs < 10_000


def test_doing_nothing_takes_part_in_every_race(scripted):
    result = run([Proposes(TWO[1])], race=RaceConfig(trainings=6))
    assert sorted(each.label for each in result.race.trials) == ["inverted", "none"]


def test_methods_that_train_have_equal_shares_of_half_of_what_is_left(scripted):
    one, other = Trains("one", most=6), Trains("other", most=4)
    run([Proposes(*TWO), one, other], race=RaceConfig(trainings=40))
    assert [one.shares[0].trainings, other.shares[0].trainings] == [10, 10]
    (runner,) = scripted.made
    raced = [job for job in runner.trained if not job.label.startswith(("one-", "other-")) or job.recipe.epochs > 1]
    assert len(runner.trained) <= 40
    assert len(raced) <= 30
    assert len({job.split.name for job in raced}) == 3


def test_seconds_of_methods_are_not_there_for_the_race(scripted, monkeypatch):
    """Of 300 s the method takes 100: the race has what is left."""
    now = [1000.0]
    monkeypatch.setattr(pipeline.time, "monotonic", lambda: now[0])
    scripted.options = {"image_seconds": 0.001}

    def script(job):
        now[0] += 100.0 if job.label == "trains-0" and job.recipe.epochs == 1 else 0.0
        return by_key(job)

    scripted.script = script
    method = Trains(most=1)
    result = run([Proposes(*TWO), method])
    assert method.shares[0].seconds == pytest.approx(150.0)
    assert result.race.seconds == pytest.approx(100.0, abs=5)


@pytest.mark.parametrize(("left", "epochs"), [(math.inf, 19), (239.0, 19), (214.0, 13), (164.0, 4)])
def test_a_slow_setup_leaves_the_race_half_of_its_time(scripted, monkeypatch, left, epochs):
    """Of 150 s setting up takes 164; 75 s are six trainings of 19 epochs. A limit on everything is kept."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ScriptedRunner, "prepare", lambda self, folds: now.__setitem__(0, now[0] + 164.0))
    scripted.options = {"image_seconds": 75 / (6 * 19 * 27)}
    race = RaceConfig(minutes=2.5, network="small", epochs=60)
    result = run([Proposes(*TWO)], race=race, end=now[0] + left)
    assert result.race.rounds[0].epochs == epochs
    assert result.race.seconds == pytest.approx(164.0)  # what it really took


@pytest.mark.parametrize("image_seconds", [0.0001, 0.01, 1.0])
def test_methods_leave_the_race_the_time_that_it_needs(scripted, tmp_path, image_seconds):
    """Of 300 s: half where that leaves enough, else what a race of six candidates does not need."""
    scripted.options = {"image_seconds": image_seconds}
    method = Trains(most=0)
    run([Proposes(*TWO), method], race=RaceConfig(minutes=5, network="small", epochs=60), folder=tmp_path)
    share = method.shares[0].seconds
    needed = json.loads((tmp_path / "race" / "schedule.json").read_text())["race/least"]["seconds"]
    assert needed == pytest.approx(13 * 60 * 26 * image_seconds, rel=0.1)  # trainings, epochs, images of a fold
    assert share == pytest.approx({0.0001: 150, 0.01: 300 - needed, 1.0: 0}[image_seconds], abs=2)


# --- without one -----------------------------------------------------------------------------------------------------


def test_without_a_race_the_first_method_is_asked_alone(scripted):
    first, second = Proposes(TWO[1], TWO[0]), Proposes(name="second")
    result = run([first, second], race=None)
    assert (result.chosen, result.race, result.table, result.note) == ("inverted", None, (), "")
    assert (len(first.asked), len(second.asked), scripted.made) == (1, 0, [])
    assert "race" not in result.policy.provenance


def test_without_a_race_none_is_proposed_only_if_it_is_all_there_is(scripted):
    published = run([PublishedPolicies()], race=None)
    assert (published.chosen, published.policy.name) == ("randaugment-2-9", "randaugment-2-9")
    assert [each.label for each in published.candidates][:2] == ["none", "randaugment-2-9"]  # as they race
    assert run([Proposes(TWO[0])], race=None).chosen == "none"


def test_a_first_method_that_trains_needs_no_race(scripted):
    result = run([Trains(most=3), Proposes(*TWO)], race=None)
    assert (result.chosen, result.race) == ("trains-2", None)
    assert len(scripted.made[0].trained) == 3


def test_images_with_masks_have_no_race(scripted):
    data = brightness_classes(12)
    masks = (data.images[:, 0] > 100).to(torch.uint8)
    scenes = ImageSet.of_masks(data.images, masks, ("a", "b"), "scenes")
    for methods in ([Proposes(*TWO), Proposes(name="second")], [OpEffects(), Dada(), Proposes(*TWO)]):
        result = run(methods, scenes)
        assert result.race is None
        assert (
            result.note == "A race trains classifiers, so images with masks have none: this is the policy of proposes."
        )
        assert (result.chosen, scripted.made) == ("inverted", [])


def copies():
    data = brightness_classes(8)
    return ImageSet.of(data.images[[0, 0, 1, 1]], data.labels[[0, 0, 1, 1]], data.classes, "twins")


def one_class_but_for_copies():
    data = brightness_classes(8)
    images, labels = data.images[[0, 2, 0]], torch.tensor([0, 0, 1])
    return ImageSet.of(images, labels, data.classes, "copies")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lambda: numbered([0, 0, 0]), "a race trains classifiers, which needs images of two classes: there is one"),
        (
            one_class_but_for_copies,
            "a race trains classifiers, which needs images of two classes: there is one once copies are left out",
        ),
        (lambda: numbered([0, 1, 2]), "a race holds images out, but no class has two different ones"),
        (copies, "a race holds images out, but no class has two different ones"),
    ],
)
def test_images_that_cannot_be_raced(scripted, data, why):
    result = run([Proposes(*reversed(TWO)), Trains()], data())
    assert result.note == f"There was no race: {why}."
    assert (result.race, result.chosen) == (None, "inverted")
    assert scripted.made == []
    with pytest.raises(RaceError, match=why):
        run([Trains()], data())  # there is no other policy, either


def test_time_that_is_up_before_a_race_could_begin(scripted):
    result = run([Proposes(*TWO)], end=time.time() + 9.0)
    assert result.note == "There was no race: the time was up before one could begin."
    assert result.chosen == "inverted"  # nothing says that none is better
    short = run([Proposes(*TWO)], race=RaceConfig(minutes=0.01))  # asked for
    assert short.race is not None


def test_a_limit_on_everything_is_one_on_the_race(scripted):
    method = Trains(most=1)
    run([Proposes(*TWO), method], end=time.time() + 100.0)
    assert method.shares[0].seconds == pytest.approx(50.0, abs=2)
    quiet = Proposes(*TWO)
    before = time.time()
    run([quiet], end=before + 100.0)
    assert quiet.asked[0].until == pytest.approx(before + 50.0, abs=2)  # a race follows
    run([quiet], end=before + 100.0, race=None)
    assert quiet.asked[1].until == before + 100.0


@pytest.fixture
def ten_seconds_each(scripted, monkeypatch):
    """A clock on which every training takes ten seconds, and nothing else any time."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def script(job):
        now[0] += 10.0
        return by_key(job)

    scripted.script = script
    return now


def test_a_limit_on_everything_is_one_on_counted_trainings_too(scripted, ten_seconds_each, tmp_path):
    """The rounds that were finished decide; with more time the race continues as if it had not been stopped."""
    race, said = RaceConfig(trainings=40), []
    whole = run([Proposes(*TWO), Trains(most=4)], race=race)
    taken = [sum(each.trainings for each in whole.race.rounds[:count]) for count in range(4)]
    end = ten_seconds_each[0] + 10 * (4 + taken[2]) + 5
    part = run([Proposes(*TWO), Trains(most=4)], race=race, end=end, folder=tmp_path, said=said)
    assert ten_seconds_each[0] <= end + 10
    assert part.race.unfinished
    assert [each.trainings for each in part.race.rounds] == [each.trainings for each in whole.race.rounds[:2]]
    assert max(row.trainings for row in part.table) == 2
    assert "time is up: round 3 is left out, and the rounds before it decide" in said
    assert "Time was up before the race was over" in summarise(part)
    again = run([Proposes(*TWO), Trains(most=4)], race=race, folder=tmp_path)
    assert not again.race.unfinished
    assert (again.table, again.policy.hash) == (whole.table, whole.policy.hash)


def test_where_the_first_round_has_no_time_there_is_no_race(scripted, ten_seconds_each):
    three = [*TWO, Candidate("uniform", named("uniform"))]
    result = run([Proposes(*three)], race=RaceConfig(trainings=40), end=ten_seconds_each[0] + 15)
    assert (result.race, result.note) == (None, "There was no race: the time was up in its first round.")


def test_a_method_without_time_for_its_trainings_proposes_nothing(scripted, ten_seconds_each):
    said, race = [], RaceConfig(trainings=40)
    result = run([Proposes(*TWO), Trains(most=12)], race=race, end=ten_seconds_each[0] + 35, said=said)
    assert "trains proposes nothing: the time was up before these trainings were finished" in said
    assert result.note == "There was no race: the time was up in its first round."
    assert [each.label for each in result.candidates] == ["none", "inverted"]


def test_where_every_training_fails_there_is_no_race(scripted):
    scripted.script = lambda job: {"diverged": "the loss was not finite"}
    result = run([Proposes(*TWO)])
    assert result.note == "There was no race: every training of the race failed (none: the loss was not finite)."
    assert result.race is None


def test_methods_that_propose_nothing(scripted):
    why = "no policy was proposed by proposes, trains: more trainings than 12, or more methods"
    with pytest.raises(ConfigError, match=why):
        run([Proposes(), Trains(most=0)], race=RaceConfig(trainings=12))
    with pytest.raises(ConfigError, match="no policy was proposed by trains: more trainings than 3, or more methods"):
        run([Trains(most=0)], race=None, training=RaceConfig(trainings=3))
    with pytest.raises(ConfigError, match="no policy was proposed by proposes, trains: more time, or more methods"):
        run([Proposes(), Trains(most=0)], race=RaceConfig(minutes=1.0))


@pytest.mark.parametrize("raced", [True, False])
@pytest.mark.parametrize("methods", [(RandomSearch,), (RandomSearch, RandAugmentGrid)])
def test_too_little_time_says_how_much_would_be_enough(scripted, methods, raced, tmp_path):
    scripted.options = {"image_seconds": 0.004}

    def search(minutes):
        settings = RaceConfig(minutes=minutes)
        return run([each() for each in methods], folder=tmp_path, race=settings if raced else None, training=settings)

    with pytest.raises(ConfigError, match=r"more time \(about \d+ minutes\), or more methods") as error:
        search(0.2)
    minutes = int(re.search(r"about (\d+)", str(error.value))[1])
    with pytest.raises(ConfigError, match="no policy was proposed"):
        search(0.4 * minutes)
    assert search(minutes).candidates  # in the same folder: with more time it is planned anew


# --- its images ------------------------------------------------------------------------------------------------------


def parts_of(runner):
    return [
        [{image.numpy().tobytes() for image in part.images} for part in (split.train, split.held_out)]
        for split in {id(job.split): job.split for job in runner.trained}.values()
    ]


def test_copies_are_not_trained_on_and_held_out_at_once(scripted):
    """A set in which every image is there three times is raced as if it were there once."""
    once, said = brightness_classes(40), []
    data = ImageSet.of(once.images.repeat(3, 1, 1, 1), once.labels.repeat(3), once.classes, "copies")
    result = run([Proposes(*TWO)], data, said=said)
    parts = parts_of(scripted.made[0])
    assert len(parts) == 3
    for trained, held_out in parts:
        assert (len(trained), len(held_out)) in ((26, 14), (27, 13))
        assert not trained & held_out
    assert said[0] == "racing without 80 images, which are copies of others"
    assert (result.race.images, result.race.all_images) == (40, 120)
    one = ImageSet.of(once.images[[*range(40), 0]], once.labels[[*range(40), 0]], once.classes, "one copy")
    run([Proposes(*TWO)], one, said=said)
    assert "racing without 1 image, which is a copy of another" in said


@pytest.mark.parametrize("data", [lambda: brightness_classes(1500), lambda: numbered([0] * 1490 + [1] * 10)])
def test_a_set_that_is_too_large_for_the_time_is_cut(scripted, data):
    """A second an image: 90 s pay for nothing, so as few images as there may be are taken, however small a class."""
    said = []
    scripted.options = {"image_seconds": 1.0}
    result = run([Proposes(*TWO)], data(), race=RaceConfig(), said=said)
    (runner,) = scripted.made
    assert {len(job.split.train) + len(job.split.held_out) for job in runner.trained} == {1000}
    assert said[0] == "racing with 1000 of 1500 images: time does not allow for more"
    told = result.policy.provenance["race"]
    assert (told["images"], told["all_images"]) == (1000, 1500)
    assert "4 epochs of the small network, 1000 of 1500 images" in told["sentence"]


def test_images_are_planned_for_the_candidates_that_there_are(scripted):
    """A method that trains may bring any number: then for the usual one."""
    counts = []
    for methods in ([Proposes(*TWO)], [Proposes(*TWO), Trains(most=1)]):
        scripted.options = {"image_seconds": 300 / 1_800_000}
        counts.append(run(methods, brightness_classes(8000), race=MINUTES).race.images)
    trainings = [sum(trainings_of_rounds(count, (1,) * FOLDS)) for count in (2, TYPICAL_CANDIDATES)]
    assert counts[0] / counts[1] == pytest.approx(trainings[1] / trainings[0], rel=0.01)


def test_counted_trainings_have_all_images(scripted):
    scripted.options = {"image_seconds": 1e6}
    result = run([Proposes(*TWO)], brightness_classes(1500), race=RaceConfig(trainings=2))
    assert result.race.images == 1500


# --- stopped and resumed ---------------------------------------------------------------------------------------------


def jobs_in(*runners):
    return [(job.label, job.split.name, job.seed, job.recipe.epochs) for each in runners for job in each.trained]


METHODS = {"published": lambda: [PublishedPolicies()], "op-effects": lambda: [PublishedPolicies(), OpEffects()]}


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("race", [RaceConfig(minutes=5), RaceConfig(trainings=48)], ids=["minutes", "trainings"])
def test_a_search_that_was_stopped_continues_as_it_was_planned(scripted, tmp_path, methods, race):
    """In the experiment, between it and the race, and in any round; then the machine seems far slower.

    What was decided is kept: the experiment, and the race once it is planned.
    """

    def once(folder, stop_after=None, cost=1e-6):
        scripted.options = {"stop_after": stop_after, "image_seconds": cost}
        with pytest.raises(Stopped) if stop_after is not None else nullcontext():
            return run(methods(), folder=tmp_path / folder, race=race)
        return None

    whole = once("whole")
    everything = jobs_in(scripted.made[-1])
    count, experiment = len(everything), sum(label.startswith("drawn-") for label, *_ in everything)
    assert (experiment >= 18, whole.effects is not None) == (methods is METHODS["op-effects"],) * 2
    for stop_after in sorted({0, 1, 7, experiment, experiment + 1, (experiment + count) // 2, count - 1}):
        once(str(stop_after), stop_after)
        planned = race.trainings is not None or stop_after >= experiment
        resumed = once(str(stop_after), cost=10.0 if planned else 1e-6)
        assert jobs_in(*scripted.made[-2:]) == everything  # nothing twice, nothing else
        assert (resumed.race.trials, resumed.chosen) == (whole.race.trials, whole.chosen)
        assert resumed.policy.hash == whole.policy.hash
        assert resumed.effects == whole.effects
    once("slower", 7)
    slower = once("slower", cost=10.0)
    assert jobs_in(*scripted.made[-2:])[:experiment] == everything[:experiment]
    assert slower.effects == whole.effects


def test_a_search_that_is_over_is_the_same_again(scripted, tmp_path, monkeypatch):
    said = []
    first = run([Proposes(*TWO)], folder=tmp_path, said=said)
    assert "the race that was begun continues" not in said
    scripted.options = {"image_seconds": 100.0}
    prepared = []
    monkeypatch.setattr(ScriptedRunner, "prepare", lambda self, splits: prepared.append(splits))
    again = run([Proposes(*TWO)], folder=tmp_path, said=said)
    assert "the race that was begun continues" in said
    assert scripted.made[-1].trained == prepared == []  # processes take seconds to start
    assert again.race == first.race


def test_a_race_that_is_over_is_run_again_with_more_time_alone(scripted, tmp_path):
    """What the sentence about short trainings advises can be done with --resume."""
    said, epochs = [], []
    scripted.options = {"image_seconds": 0.05}
    for minutes in (0.01, 0.01, 5, 0.01, 4):
        race = RaceConfig(minutes=minutes, network="small", train={"epochs": 12})
        result = run([Proposes(*TWO)], brightness_classes(24), race, tmp_path, said=said)
        epochs.append(result.race.rounds[0].epochs)
    assert epochs == [4, 4, 12, 12, 12]
    assert said.count("racing again: the race in the folder had less time") == 1


def test_a_race_that_was_stopped_is_not_run_again_with_more_time(scripted, tmp_path):
    race = {"network": "small", "train": {"epochs": 12}}
    scripted.options = {"image_seconds": 0.05, "stop_after": 1}
    with pytest.raises(Stopped):
        run([Proposes(*TWO)], race=RaceConfig(minutes=0.01, **race), folder=tmp_path)
    scripted.options = {"image_seconds": 0.05}
    result = run([Proposes(*TWO)], race=RaceConfig(minutes=5, **race), folder=tmp_path)
    assert result.race.rounds[0].epochs == 4


@pytest.mark.parametrize(
    "other",
    [
        {"data": brightness_classes(44)},
        {"seed": 1},
        {"ops": ("rotate", "invert")},
        {"race": RaceConfig(minutes=5, epochs=9)},
        {"race": RaceConfig(minutes=5, train={"weight_decay": 0.1})},
        {"race": RaceConfig(trainings=12)},
        {"methods": [Proposes(*TWO, name="another")]},
        {"race": RaceConfig(minutes=5, tune=True)},
        {"race": RaceConfig(minutes=5, prior=str(files("fasteraa.selection") / "prior.json"))},
    ],
    ids=["data", "seed", "ops", "epochs", "train", "trainings", "methods", "tune", "prior"],
)
def test_another_race_does_not_replace_the_one_in_the_folder(scripted, tmp_path, other):
    run([Proposes(*TWO)], folder=tmp_path)
    before = (tmp_path / "race" / "schedule.json").read_bytes()
    with pytest.raises(RunError, match=r"is of other images, weights or settings: choose another folder \(--out\)"):
        run(**{"methods": [Proposes(*TWO)], **other}, folder=tmp_path)
    assert (tmp_path / "race" / "schedule.json").read_bytes() == before


def test_other_minutes_are_the_same_race(scripted, tmp_path):
    said = []
    run([Proposes(*TWO)], folder=tmp_path)
    run([Proposes(*TWO)], folder=tmp_path, race=RaceConfig(minutes=4), said=said)
    assert "the race that was begun continues" in said


def test_runs_of_another_race_in_the_folder_are_not_run_again(scripted, tmp_path):
    """They are found by their keys, whatever raced."""
    run([Proposes(*TWO)], folder=tmp_path)
    (tmp_path / "race" / "schedule.json").unlink()
    run([Proposes(*TWO, name="another")], folder=tmp_path)
    assert [len(runner.trained) for runner in scripted.made] == [6, 0]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"off": "x"}', {"race": 3}, {"images": {}}, {"setup": {"seconds": "x"}}]
)
def test_a_damaged_schedule_is_named(scripted, tmp_path, content):
    run([Proposes(*TWO)], folder=tmp_path)
    file = tmp_path / "race" / "schedule.json"
    of = json.loads(file.read_text())["of"]
    file.write_text(content if isinstance(content, str) else json.dumps(sealed({"of": of, **content})))
    with pytest.raises(RunError, match=r"schedule\.json' cannot be read .*: remove it to plan the race again"):
        run([Proposes(*TWO)], folder=tmp_path)
    file.unlink()
    assert run([Proposes(*TWO)], folder=tmp_path).race is not None


def test_a_schedule_of_another_version_without_a_race_is_replaced(scripted, tmp_path):
    """It may lack what there is now, or have what there is not."""
    (tmp_path / "race").mkdir()
    file = tmp_path / "race" / "schedule.json"
    for old in ({"of": "x"}, {"of": "x", "later": {}}):
        file.write_text(json.dumps(sealed(old)))
        assert len(run([Proposes(*TWO)], folder=tmp_path).race.rounds) == 3
        assert json.loads(file.read_text())["of"] != "x"


def test_without_a_folder_nothing_is_left(scripted):
    run([Proposes(*TWO)])
    assert not scripted.made[0].cache.folder.exists()


def test_a_real_race_on_one_core(tmp_path, monkeypatch):
    """Everything as it is, but short: the local runner, its estimates, methods that train."""
    made, plain = [], pipeline.make_runner
    monkeypatch.setattr(pipeline, "make_runner", lambda *given, **more: made.append(plain(*given, **more)) or made[-1])
    race = RaceConfig(trainings=8, epochs=12, train={"crop": 0.0, "flip": False})
    result = run([Proposes(*TWO), Trains(most=2)], brightness_classes(60), race, tmp_path, jobs=1)
    assert isinstance(made[0], LocalRunner)
    assert result.chosen == "none"
    assert len(list((tmp_path / "race" / "runs").glob("*.json"))) <= 8
