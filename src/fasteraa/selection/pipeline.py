"""A search step by step: methods that need no training, folds, methods that train, the race."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, OutOfTime, RaceError, RunError
from fasteraa.methods import Budget, Candidate, Method
from fasteraa.methods.black_box import epoch_seconds
from fasteraa.methods.faster_aa import FasterAA
from fasteraa.methods.given import Given
from fasteraa.methods.task import FOLDS, LONG, Task
from fasteraa.policy.named import named
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.device import device_name, find_device
from fasteraa.runtime.words import counted
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.finetuning import methods_budget
from fasteraa.selection.folds import folded, judged_by_validation, raceable, without_training
from fasteraa.selection.prior import read_prior
from fasteraa.selection.race import race as run_race
from fasteraa.selection.race import with_none
from fasteraa.selection.recipe import race_recipe, suiting
from fasteraa.selection.result import RaceResult, Result, best_guess, chosen_policy
from fasteraa.selection.schedule import LEAST_CANDIDATES, TYPICAL_CANDIDATES, trainings_of_rounds
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import EndingRunner, Engine, Runner, Say, make_runner, run_jobs
from fasteraa.train.split import Split
from fasteraa.train.tune import best_of, grid

METHOD_SHARE = 0.5  # of the time of a race, for methods that train
_RACE_SHARE = 0.5  # of it for the race's own trainings, whatever setting up and methods took
LEAST_SECONDS = 10.0  # of a race
_FEWEST = 3  # candidates of a race by fine-tuning
_SIDE_BY_SIDE = 20  # trainings of a race at once on a GPU


def propose_and_race(
    task: Task,
    methods: Sequence[Method],
    race: RaceConfig | None,
    end: float,
    engine: Engine,
    training: RaceConfig | None = None,
) -> Result:
    """Methods that need no training first; then folds, methods that train, and the race.

    Without a race `training` says what methods train, and what that may cost.
    Of several ranks all share the gradient search, and the first alone does the rest.
    """
    note = ""
    if task.data.masks is not None:
        methods = without_training(methods, task.data)
        name, race = methods[0].name, None
        note = f"A race trains classifiers, so images with masks have none: this is the policy of {name}."
    if race is None:
        methods = methods[:1]
    else:
        recipe = race_recipe(task.data, task.device, task.config, race)
        task = replace(task, recipe=recipe, metric=race.metric, prior=race.prior)
    quiet = replace(task, until=end if race is None else _gradient_end(end))
    if not task.ranks.is_first:
        methods, race = [method for method in methods if method.name == FasterAA.name], None
    by_name = {
        method.name: list(method.candidates(quiet, Budget(), _NO_RUNNER)) for method in methods if not method.trains
    }
    trains = [method for method in methods if method.trains]
    result: RaceResult | None = None
    if trains or race is not None:
        try:
            by_name, result = _judged(task, methods, by_name, race, end, engine, training)
        except RaceError as error:
            if not any(by_name.values()):
                raise
            note = f"There was no race: {error}."
            if isinstance(error, _NoFineTuningError):  # a best guess may do harm, as few fine-tunings gain much
                methods, by_name = [Given([])], {Given.name: [Candidate("none", named("none"))]}
    proposers = {each.label: name for name, given in by_name.items() if name != Given.name for each in given}
    candidates = _all_of(methods, by_name, None if race is None else race.trainings)
    return _result(task, candidates, proposers, result, note)


def _all_of(
    methods: Sequence[Method], by_name: Mapping[str, Sequence[Candidate]], trainings: int | None, about: str = ""
) -> list[Candidate]:
    """In the order of the methods."""
    candidates = [each for method in methods for each in by_name.get(method.name, ())]
    if not candidates:
        more = f"time{about}" if trainings is None else f"trainings than {trainings}"
        raise ConfigError(
            f"no policy was proposed by {', '.join(method.name for method in methods)}: more {more}, or more methods"
        )
    return candidates


def _judged(
    task: Task,
    methods: Sequence[Method],
    by_name: Mapping[str, list[Candidate]],
    race: RaceConfig | None,
    end: float,
    engine: Engine,
    training: RaceConfig | None = None,
) -> tuple[dict[str, list[Candidate]], RaceResult | None]:
    settings = race or training or RaceConfig()
    began, say = time.monotonic(), task.say
    seconds = (
        min(60 * settings.minutes, end - time.time()) if race is not None or end == math.inf else end - time.time()
    )
    if seconds < LEAST_SECONDS and end < math.inf:
        raise RaceError("the time was up before one could begin")
    budget = Budget(trainings=settings.trainings) if settings.trainings is not None else Budget(seconds)
    trains = [method for method in methods if method.trains]
    if race is None:
        task = replace(task, recipe=race_recipe(task.data, task.device, task.config, settings))
    with _race_folder(task) as place:
        decisions = Decisions(place / "schedule.json", _identity(task, methods, settings))
        _race_again(decisions, settings, say)
        task = replace(task, decisions=decisions)
        data = raceable(task.data, say)
        made = make_runner(engine.name, RunCache(place).open(), **_race_runner(engine, task.recipe))
        # a budget in seconds ends in time by its plan; a number of trainings does not know how long they take
        with EndingRunner(made, math.inf if budget.trainings is None else end) as runner:
            _check_affordable(task, data, runner, budget, settings)
            known = [each for given in by_name.values() for each in given]  # all, unless a method that trains has more
            count = TYPICAL_CANDIDATES if trains else len(with_none(known, lambda text: None))
            task = folded(task, data, runner, budget, bool(trains), count)
            task = replace(task, recipe=suiting(task.recipe, task.train_images, settings))
            if not decisions.get("setup").get("over"):  # else there is nothing left to train
                runner.prepare(task.folds)
            task = _tuned(task, runner, settings)
            spent = decisions.decide("setup", lambda: {"seconds": time.monotonic() - began})["seconds"]
            spent = budget.cost(spent, 0)
            proposed = dict(by_name)
            share = _share_of_methods(task, runner, budget.less(spent), len(trains), race is not None)
            for method in trains:
                proposed[method.name], cost = _propose(method, task, share, runner)
                spent += cost
            about = ""
            if not any(proposed.values()):
                about = _about(task, runner, trains, settings, race is not None)
                decisions.forget()  # with more time it is planned again
            candidates = _all_of(methods, proposed, settings.trainings, about)
            if race is None:
                return proposed, None
            task = judged_by_validation(task)
            try:
                field = with_none(candidates, say)
                result = run_race(field, task, runner, _with_floor(budget, spent, end), spent=spent)
            except OutOfTime as error:
                raise RaceError("the time was up in its first round") from error
        minutes = max(settings.minutes, decisions.get("setup").get("minutes", 0.0))  # what its race had
        decisions.note("setup", {"minutes": minutes, "over": not result.unfinished})
    return proposed, result


def _tuned(task: Task, runner: Runner, race: RaceConfig) -> Task:
    """With learning rate and weight decay that suit these images, where that was asked for; on the first fold."""
    if not race.tune:
        return task

    def best() -> dict[str, Any]:
        none, epochs = named("none"), math.ceil(LONG * task.informative_epochs())
        tasks = [replace(task, recipe=each) for each in grid(task.recipe)]
        jobs = [each.job("none, tuned", none, fold=0, seed=task.seed, epochs=epochs) for each in tasks]
        recipe = best_of(run_jobs(runner, jobs), jobs, task.say)
        return {"learning_rate": recipe.learning_rate, "weight_decay": recipe.weight_decay}

    return replace(task, recipe=replace(task.recipe, **task.decisions.decide("tune", best)))


class _NoFineTuningError(RaceError):
    """The budget does not pay for fine-tunings, and nothing cheaper shows which policy helps."""


def _check_affordable(task: Task, data: ImageSet, runner: Runner, budget: Budget, race: RaceConfig) -> None:
    """On a CPU a budget may not pay for three fine-tunings on every fold; a decision stays."""
    on_gpu = find_device(task.device).type == "cuda"
    if race.judge != "auto" or not race.fine_tunes or on_gpu or task.recipe.freeze or budget.trainings is not None:
        return

    def needed() -> dict[str, Any]:
        job = TrainJob("none", named("none"), task.recipe, 0, Split(data, data, "all images"))
        return {"seconds": _FEWEST * FOLDS * runner.estimate([job]) * (FOLDS - 1) / FOLDS, "has": budget.seconds}

    decided = task.decisions.decide("judge", needed)
    if decided["seconds"] <= decided["has"]:
        return
    minutes = math.ceil(decided["seconds"] / 60)
    task.decisions.forget()  # with more time it is planned again
    raise _NoFineTuningError(
        f"fine-tuning takes too long on this CPU, three candidates would need about {counted(minutes, 'minute')} "
        f"(--race-minutes {minutes}). Linear probes (--judge probe) take seconds, but gain less by "
        "augmentation than fine-tunings do"
    )


def _share_of_methods(task: Task, runner: Runner, left: Budget, count: int, raced: bool) -> Budget:
    """For each method that trains, the same: half of what is left, and never what the race itself needs.

    A race that is too short says nothing of any candidate, however good they are.
    """
    if not count or not raced:
        return left.share(1 / max(count, 1))
    if task.recipe.fine_tunes:
        return methods_budget(left, task, runner).share(METHOD_SHARE / count)
    half = left.share(METHOD_SHARE)
    if left.trainings is None and math.isfinite(left.seconds):
        needed = task.decisions.decide("race/least", lambda: {"seconds": _least_race(task, runner)})["seconds"]
        half = min(half, left.less(needed), key=lambda budget: budget.seconds)
    return half.share(1 / count)


def _with_floor(budget: Budget, spent: float, end: float) -> Budget:
    """Where a busy machine took long to set up, the race takes longer than it was to; not beyond the `end` of all."""
    if budget.trainings is not None:
        return budget
    return Budget(max(budget.seconds, spent + min(_RACE_SHARE * budget.seconds, end - time.time())))


def _about(task: Task, runner: Runner, methods: Sequence[Method], race: RaceConfig, raced: bool) -> str:
    """How many minutes would pay for the trainings that methods need at least; nothing where nobody knows."""
    needs = [needed for method in methods if (needed := task.decisions.get(method.name).get("needs"))]
    if not needs or task.recipe.fine_tunes:
        return ""
    seconds = len(methods) * max(trainings * epochs for trainings, epochs in needs) * epoch_seconds(task, runner)
    if raced:
        seconds = max(seconds / METHOD_SHARE, seconds + task.decisions.get("race/least").get("seconds", 0.0))
    seconds += task.decisions.get("setup").get("seconds", 0.0)
    minutes = max(math.ceil(seconds / 60), math.floor(race.minutes) + 1)
    return f" (about {minutes} minute{'s' * (minutes > 1)})"


def _least_race(task: Task, runner: Runner) -> float:
    """Seconds of the fewest candidates on every fold, in the shortest trainings that tell something."""
    none = named("none")
    jobs = [task.job("none", none, fold=0, seed=task.seed + number) for number in range(LEAST_CANDIDATES)]
    trainings = sum(trainings_of_rounds(LEAST_CANDIDATES, (1,) * len(task.folds)))
    share = task.informative_epochs() / task.recipe.epochs
    return runner.estimate(jobs) / len(jobs) * trainings * share


def _propose(method: Method, task: Task, share: Budget, runner: Runner) -> tuple[list[Candidate], float]:
    """Candidates of a method that trains, and what they cost; a method's decision may say how many `trainings`."""
    began = time.monotonic()
    try:
        candidates = list(method.candidates(task, share, runner))
    except OutOfTime as error:
        task.say(f"{method.name} proposes nothing: {error}")
        candidates = []
    name = f"{method.name}/cost"
    taken = task.decisions.decide(name, lambda: {"seconds": time.monotonic() - began})["seconds"]
    return candidates, share.cost(taken, task.decisions.get(method.name).get("trainings", share.trainings or 0))


def _race_runner(engine: Engine, recipe: TrainRecipe) -> dict[str, Any]:
    """Not compiled, as it was measured: that would take the time of a whole round. Of fine-tunings as many as fit."""
    small = find_device(engine.device).type == "cuda" and not recipe.fine_tunes
    return {**engine.settings, "jobs": engine.jobs or (_SIDE_BY_SIDE if small else None), "compile": False}


@contextmanager
def _race_folder(task: Task) -> Iterator[Path]:
    if task.folder is not None:
        yield task.folder.race
        return
    with TemporaryDirectory() as scratch:
        yield Path(scratch)


def _identity(task: Task, methods: Sequence[Method], race: RaceConfig) -> str:
    """Whatever makes it another race; not the time it may take."""
    names = [method.name for method in methods]
    parts = [task.data.fingerprint, names, task.config.ops, task.recipe.key, task.seed, race.trainings, FOLDS]
    parts += [race.metric] if race.metric != "error" else []
    parts += ["validation", task.validation.fingerprint] if task.validation is not None else []
    parts += ["tune"] if race.tune else []
    parts += ["prior", json.dumps(read_prior(race.prior), sort_keys=True)] if race.prior else []
    parts += ["groups", task.data.groups.tolist()] if task.data.groups is not None else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _race_again(decisions: Decisions, race: RaceConfig, say: Say) -> None:
    """A race that is over may be run again with more time; one that was stopped continues. Another would replace it."""
    if "race" in decisions.of_another:
        raise RunError(
            f"the race in {str(decisions.file)!r} is of other images, weights or settings: choose another folder "
            "(--out)"
        )
    setup = decisions.get("setup")
    if not setup:
        return
    if setup.get("over") and race.trainings is None and race.minutes > setup.get("minutes", math.inf):
        say("racing again: the race in the folder had less time")
        decisions.forget()
    else:
        say("the race that was begun continues")


def _result(
    task: Task, candidates: Sequence[Candidate], proposers: Mapping[str, str], race: RaceResult | None, note: str
) -> Result:
    winner = race.chosen.candidate if race else best_guess(candidates)
    effects = next((each.details["effects"] for each in candidates if "effects" in each.details), None)
    origin = {**_origin(task, candidates), "method": proposers.get(winner.label, "race")}  # every race has a `none`
    more: dict[str, Any] = {"effects": effects.table()} if effects else {}
    if task.validation is not None:  # nobody is to take these images for fresh ones
        about = task.validation.about()
        more["validation"] = {name: about[name] for name in ("name", "images", "fingerprint")}
    return Result(
        policy=chosen_policy(winner, origin, race, **more),
        candidates=tuple(candidates),
        data=task.data,
        folder=task.folder.path if task.folder else None,
        race=race,
        effects=effects,
        details={each.label: each.details for each in candidates if each.details},
        note=note,
    )


def _origin(task: Task, candidates: Sequence[Candidate]) -> Mapping[str, Any]:
    """The search that it was chosen in: what a method of this run says of it, or the least that is known of any.

    Policies that somebody brought may have been found on other images.
    """
    origin = next((each.details["origin"] for each in candidates if "origin" in each.details), None)
    if origin is not None:
        return dict(origin)
    about, device = task.data.about(), device_name(task.device)
    return {"data": about, "config": task.config.plain(), "finished": True, "device": device}


def _gradient_end(end: float) -> float:
    """A race follows: half of what is left."""
    now = time.time()
    return end if end == math.inf else now + (end - now) / 2


class _NoRunner:
    """For methods that do not train."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError("a method that trains must say so: trains = True")


_NO_RUNNER: Any = _NoRunner()
