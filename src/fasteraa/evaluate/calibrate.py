"""How much augmentation: race policies by what counts, how short trainings do on images held back from training.

The search says which operations leave the data; it cannot say which ones help a training run, nor how strong a policy
it wants. So, where trainings are quick, an experiment first tells which operations help (`experiment`). Then candidates
(policies made of what helps, the found policy at several strengths, its start, published ones, no augmentation at all)
are trained for a while on a part of the training images and measured on the rest: all of them on one part, the better
half on another part, and so on, until time or parts run out (`budget`); where trainings are quick, those who are left
are trained several times. `none` stays in to the end: what is not better than doing nothing is not chosen. Test images
are never touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RaceError
from fasteraa.evaluate import budget
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.budget import FOLDS
from fasteraa.evaluate.candidates import WEIGHTED, Candidate, usual_candidates, weighted_candidates
from fasteraa.evaluate.compare import (
    Cell,
    check_jobs,
    choose_recipe,
    read_cell,
    run_cells,
    start_workers,
    why_diverged,
)
from fasteraa.evaluate.effects import Effects
from fasteraa.evaluate.experiment import cells_of_experiment, read_experiment
from fasteraa.evaluate.plan import Plan, read_plan
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.verdict import (
    CREDIT,
    Calibration,
    Trial,
    better_half,
    choose,
    epochs_in_words,
    first_ones,
    trainings,
)
from fasteraa.ops import select
from fasteraa.search.folder import named_trouble
from fasteraa.search.run import find_device

_RACE = 3  # another one where a race cannot go on that an earlier version began
_QUICK_NETWORK = "wrn-16-2"  # on a GPU: many epochs tell more than a large network
_GPU_EPOCHS = 200  # where the budget allows; the recipe of the small network is one for CPUs
_GPU_STEPS = 1_200  # the same
_MANY_IMAGES = 2_000  # from which on batches are twice as large
_QUICK_SIDE = 128  # up to which it is quick; above, the network for CPUs takes its place
_SIDE_BY_SIDE = 20  # runs at once on a GPU
Say = Callable[[str], None]
__all__ = ["Calibration", "Candidate", "Trial", "calibrate", "race_recipe", "usual_candidates"]


def calibrate(
    data: ImageSet,
    candidates: Sequence[Candidate],
    *,
    minutes: float = 1.5,
    recipe: TrainRecipe | None = None,
    device: str = "auto",
    folder: str | Path | None = None,
    seed: int = 0,
    jobs: int | None = None,
    ops: Sequence[str] = (),
    credit: float = CREDIT,
    say: Say = lambda text: None,
) -> Calibration:
    """Race the candidates and name the winner. `recipe.epochs` is the most that a run may take.

    Which of `ops` help is tested before, where there is time for it: policies that are made of those take part, too.
    `jobs` runs go side by side: by default as many as there are cores on a CPU, twenty on a GPU. With a `folder` a
    race that was stopped goes on as it was planned, with what was finished; of `minutes` what it took before is gone.
    `credit` is the share of a loss that longer trainings take off where networks are still as bad as guessing: 0 if the
    trainings to come are those of the race.
    """
    ops = [row.name for row in select(ops)] if ops else []
    ops = ops if len(ops) > 1 else []  # of one alone there are no policies without it
    candidates = list(candidates)
    _check(minutes, candidates, ops, credit)
    check_jobs(jobs)
    if not isinstance(data, ImageSet):
        raise ConfigError(f"calibration needs images as fasteraa.data.load gives them, got a {type(data).__name__}")
    began, all_images = time.monotonic(), len(data)
    data = _raceable(data, say)
    recipe = replace(recipe or race_recipe(data, device), cutout=0)
    place = find_device(device)
    on_gpu = place.type == "cuda"
    jobs = jobs or (_SIDE_BY_SIDE if on_gpu else os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(folder or scratch)
        file, of = folder / "race.json", _identity(data, candidates, ops, recipe, seed, credit)
        plan = read_plan(file, of)
        if plan is not None and plan.over and minutes > plan.minutes:
            say("calibrating anew: the race in the folder had less time")
            plan = None
        if plan is None:
            cost = budget.image_seconds(data, candidates, recipe, jobs, place, seed)
            left = 60 * minutes - (time.monotonic() - began)
            images = budget.payable_images(
                len(data), len(data.classes), len(candidates), recipe.epochs, cost, left, bool(ops)
            )
            plan = Plan(file, of, images, cost, minutes=minutes)
        else:
            say("calibrating: the race that was begun goes on")
        if plan.images < len(data):
            say(f"calibrating with {plan.images} of {len(data)} images: time does not allow for more")
            data = data.subset(plan.images, seed)
        arenas = _folds(data, folder / of, device, seed)
        trained_on = len(arenas[0].data)
        workers = None if on_gpu or jobs == 1 else stack.enter_context(start_workers(arenas, jobs))
        if workers is not None:
            workers.ready()
        plan.setup_seconds = plan.setup_seconds or time.monotonic() - began
        # not compiled, as it was measured: that would take the time of a whole round
        train = partial(run_cells, jobs=jobs, say=lambda text: None, workers=workers, fuse=False)
        if ops and plan.experiment is None and not plan.rounds:
            budget.plan_experiment(plan, recipe, 60 * minutes, trained_on, len(arenas))
        found = _experiment(arenas, ops, recipe, plan, train, say, seed) if plan.experiment else None
        if found is not None:
            candidates = [*candidates[:2], *weighted_candidates(*found), *candidates[2:]]
        if not plan.rounds:
            budget.plan_race(plan, candidates, recipe, 60 * minutes, trained_on, len(arenas), seed)
        trials = _race(arenas, candidates, recipe, plan, 60 * minutes, credit, train, say)
        plan.minutes, plan.over = max(plan.minutes, minutes), True
        plan.save()
    chosen = choose(trials)
    rest = sorted((t for t in trials if t is not chosen), key=lambda trial: (-len(trial.errors), trial.outlook))
    return Calibration(
        chosen=chosen,
        trials=(chosen, *rest),
        folds=len(arenas),
        recipe=_shortened(recipe, plan.epochs),
        seconds=plan.seconds,
        images=len(data),
        all_images=all_images,
        rounds=tuple(plan.rounds),
        effects=found[0] if found else None,
        telling=budget.telling(plan, recipe, trained_on),
    )


def _check(minutes: float, candidates: Sequence[Candidate], ops: Sequence[str], credit: float) -> None:
    if not 0 < minutes < math.inf:
        raise ConfigError(f"the minutes of calibration must be a positive number, got {minutes}")
    if not 0 <= credit < math.inf:
        raise ConfigError(f"the credit for what is hard to learn must be finite and must not be negative, got {credit}")
    if not candidates:
        raise ConfigError("calibration needs a candidate")
    for each in candidates:
        if not isinstance(each, Candidate):
            raise ConfigError(f"a candidate is a Candidate(label, policy), got a {type(each).__name__}")
    if len({candidate.label for candidate in candidates}) < len(candidates):
        raise ConfigError(f"candidates need labels of their own, got {', '.join(each.label for each in candidates)}")
    for each in candidates:
        if each.expected is not None and not all(0 < value < math.inf for value in each.expected):
            raise ConfigError(
                f"what is expected of {each.label!r} must be positive numbers, got {tuple(each.expected)}"
            )
    if ops and (taken := sorted({candidate.label for candidate in candidates} & set(WEIGHTED))):
        raise ConfigError(f"policies that are made of what helps are called {', '.join(taken)}: rename the candidate")


def race_recipe(data: ImageSet, device: str, network: str | None = None, epochs: int | None = None) -> TrainRecipe:
    """That of the training which is to come, where `network` and `epochs` say so.

    Otherwise of a network that is trained for many epochs within the time of a race.
    """
    on_cpu = find_device(device).type == "cpu"
    quick = "small" if on_cpu or min(data.size) > _QUICK_SIDE else _QUICK_NETWORK
    recipe = choose_recipe(data, device, network or quick)
    if not on_cpu:
        if network is None:
            recipe = _in_large_batches(recipe, len(data))
        recipe = _long_enough(recipe, len(data))
    return replace(recipe, epochs=epochs or recipe.epochs)


def _long_enough(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Few images make few steps of an epoch: more epochs."""
    steps = max(images * (FOLDS - 1) // FOLDS // recipe.batch_size, 1)
    return replace(recipe, epochs=max(recipe.epochs, _GPU_EPOCHS, math.ceil(_GPU_STEPS / steps)))


def _in_large_batches(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Where there are many images, which a GPU gets through faster that way."""
    if images < _MANY_IMAGES:
        return recipe
    return replace(recipe, batch_size=2 * recipe.batch_size, learning_rate=2 * recipe.learning_rate)


def _raceable(data: ImageSet, say: Say) -> ImageSet:
    """Without copies of images, which would be trained on and held back at once."""
    if data.masks is not None:
        raise RaceError(f"calibration trains classifiers, {data.name!r} has masks in the place of labels")
    whole, data = len(data), data.distinct()
    if sum(count > 0 for count in data.counts()) < 2:
        left = " once copies are left out" if len(data) < whole else ""
        raise RaceError(f"calibration trains classifiers, which needs images of two classes: there is one{left}")
    if max(data.counts()) < 2:
        raise RaceError("calibration holds images back, but no class has two different ones")
    if len(data) < whole:
        copies = whole - len(data)
        which = "image, which is a copy of another" if copies == 1 else "images, which are copies of others"
        say(f"calibrating without {copies} {which}")
    return data


def _identity(
    data: ImageSet, candidates: Sequence[Candidate], ops: Sequence[str], recipe: TrainRecipe, seed: int, credit: float
) -> str:
    """Whatever makes it another race (who goes on depends on expectations, too); not the time it may take."""
    policies = [
        (each.label, each.policy.hash, each.expected, *((fold, other.hash) for fold, other in each.on_folds.items()))
        for each in candidates
    ]
    content = json.dumps([data.fingerprint, policies, list(ops), recipe.key, seed, FOLDS, _RACE, credit])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _folds(data: ImageSet, folder: Path, device: str, seed: int) -> list[Arena]:
    """Each fold holds another third of every class back; very few images allow fewer folds."""
    with named_trouble(folder):
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    parts = data.folds(min(FOLDS, sum(count for count in data.counts() if count > 1)), seed)
    return [Arena(rest, part, f"fold {fold}", folder, device) for fold, (rest, part) in enumerate(parts, 1)]


def _experiment(
    arenas: Sequence[Arena],
    ops: Sequence[str],
    recipe: TrainRecipe,
    plan: Plan,
    train: Callable[[Arena, list[Cell]], bool],
    say: Say,
    seed: int,
) -> tuple[Effects, dict[str, Effects]] | None:
    assert plan.experiment is not None
    shortened = _shortened(recipe, plan.experiment.epochs)
    runs = cells_of_experiment(arenas, ops, shortened, plan.experiment.runs, seed)
    what = f"{len(runs)} trainings of {epochs_in_words(shortened.epochs)} of {shortened.network}"
    taken = _trained(runs, plan.image_seconds, train, lambda: say(f"calibrating: which operations help? {what}"))
    if plan.experiment.seconds is None:
        plan.experiment = replace(plan.experiment, seconds=taken)
        plan.save()
    return read_experiment(runs, ops)


def _shortened(recipe: TrainRecipe, epochs: int) -> TrainRecipe:
    """At most so many epochs; the warm-up takes at most an eighth of them."""
    most = min(recipe.epochs, epochs)
    return replace(recipe, epochs=most, warmup=min(recipe.warmup, most / 8))


def _race(
    arenas: Sequence[Arena],
    candidates: Sequence[Candidate],
    recipe: TrainRecipe,
    plan: Plan,
    seconds: float,
    credit: float,
    train: Callable[[Arena, list[Cell]], bool],
    say: Say,
) -> list[Trial]:
    guessing = math.log(len(set(arenas[0].data.labels.tolist())))
    trials = [Trial(each, credit=credit, guessing=guessing) for each in candidates if each.label in plan.candidates]
    alive = trials
    for number in range(len(plan.heats)):
        if number == len(plan.rounds):
            payable = budget.next_round(plan, len(alive), seconds)
            if payable is None:
                break
            count, epochs = payable
            plan.begin(plan.heats[number] * count, epochs)
        alive = first_ones(alive, plan.rounds[number].runs // plan.heats[number])
        shortened = _shortened(recipe, plan.rounds[number].epochs)
        heats = [
            (
                arena,
                [Cell(trial.label, trial.candidate.policy_on(arena.held_out_from), shortened, seed) for trial in alive],
            )
            for arena, seed in _blocks(arenas, plan, number)
        ]
        taken = _one_round(number + 1, heats, plan.image_seconds, train, say)
        if plan.rounds[number].seconds is None:
            plan.end(taken)
        for arena, cells in heats:
            alive = [_measured(arena, trial, cell) for trial, cell in zip(alive, cells, strict=True)]
        done = {trial.label: trial for trial in alive}
        trials = [done.get(trial.label, trial) for trial in trials]
        if all(trial.diverged for trial in alive):
            break
        alive = better_half(alive, budget.half(len(alive)))
    if all(trial.diverged for trial in trials):
        raise RaceError(f"every training of the calibration diverged ({trials[0].label}: {trials[0].diverged})")
    return trials


def _blocks(arenas: Sequence[Arena], plan: Plan, number: int) -> list[tuple[Arena, int]]:
    """The folds of a round, one after the other and over again, each with its seed."""
    first = sum(plan.heats[:number])
    return [(arenas[heat % len(arenas)], plan.seeds[heat]) for heat in range(first, first + plan.heats[number])]


def _one_round(
    number: int,
    heats: Sequence[tuple[Arena, list[Cell]]],
    image_seconds: float,
    train: Callable[[Arena, list[Cell]], bool],
    say: Say,
) -> float:
    runs = [(arena, cell) for arena, cells in heats for cell in cells]
    recipe = runs[0][1].recipe
    each = f"{trainings(len(heats))} of {epochs_in_words(recipe.epochs)} of {recipe.network}"
    what = f"calibrating, round {number}: {len(heats[0][1])} candidates, {each}"
    return _trained(runs, image_seconds, train, lambda: say(what))


def _trained(
    runs: Sequence[tuple[Arena, Cell]],
    image_seconds: float,
    train: Callable[[Arena, list[Cell]], bool],
    announce: Callable[[], None],
) -> float:
    """What it takes in all: for runs that were finished before the race was stopped, as much as for the rest."""
    missing = sum(read_cell(arena, cell) is None for arena, cell in runs)
    if not missing:
        return sum(image_seconds * len(arena.data) * cell.recipe.epochs for arena, cell in runs)
    announce()
    began = time.monotonic()
    for fold in {arena.held_out_from: arena for arena, _ in runs}.values():  # whatever is on one fold, side by side
        train(fold, [cell for arena, cell in runs if arena is fold])
    return (time.monotonic() - began) * len(runs) / missing


def _measured(arena: Arena, trial: Trial, cell: Cell) -> Trial:
    record = read_cell(arena, cell)
    assert record is not None
    images = trial.images + len(arena.held_out)
    if why := why_diverged(record):
        classes = len(set(arena.data.labels.tolist()))
        errors, scores = (*trial.errors, 100 - 100 / classes), (*trial.scores, math.log(classes))
        return replace(trial, errors=errors, scores=scores, images=images, diverged=why)
    return replace(
        trial,
        errors=(*trial.errors, record["error"]),
        losses=(*trial.losses, record["train_loss"]),
        scores=(*trial.scores, record["held_out_loss"]),
        images=images,
    )
