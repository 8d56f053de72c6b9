"""How much augmentation: race policies by what counts, the error of short trainings on images held back from training.

The search says which operations leave the data; it cannot say how strong a policy a training run wants. So candidates
(the found policy at several strengths, its start, published policies, no augmentation at all) are trained for a while
on a part of the training images and measured on the rest: all of them on one part, the better half on another part,
and so on, until time or parts run out. `none` stays in to the end: what is not clearly better than doing nothing is not
chosen. Test images are never touched.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.compare import Cell, choose_recipe, read_cell, run_cells, start_workers
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.statistics import Estimate, paired
from fasteraa.evaluate.trainer import Group, Training
from fasteraa.policy.artifact import Policy
from fasteraa.policy.named import named
from fasteraa.search.folder import named_trouble
from fasteraa.search.run import find_device

FOLDS = 5
_LEAST_EPOCHS = 4
_WORTHWHILE_EPOCHS = 20  # rather fewer candidates than shorter trainings,
_LEAST_CANDIDATES = 5  # but not fewer than these
_LEAST_IMAGES = 1_000  # rather fewer images than no second round, but not fewer than these
_MEASURED_IMAGES = 2_000  # on which the cost of an epoch is measured, at most
_SIDE_BY_SIDE = 8  # runs at once on a GPU
Say = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    label: str
    policy: Policy


@dataclass(frozen=True)
class Trial:
    """A candidate and how it did: an error in % for each fold it was raced on."""

    label: str
    policy: Policy
    errors: tuple[float, ...]
    losses: tuple[float, ...]  # training loss at the end: how hard the policy makes it
    images: int = 0  # held back in all of its folds

    @property
    def noise(self) -> float:
        """One standard error of its error, which is also about that of a difference to another on the same images."""
        share = min(max(self.error / 100, 1 / max(self.images, 2)), 1 - 1 / max(self.images, 2))
        return 100 * math.sqrt(share * (1 - share) / max(self.images, 1))

    @property
    def error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True)
class Calibration:
    chosen: Trial
    trials: tuple[Trial, ...]  # the winner first, then by folds survived and error
    folds: int
    recipe: TrainRecipe
    seconds: float

    def against(self, label: str) -> Estimate | None:
        """The winner's error minus that of another, fold by fold, where both were raced."""
        other = next((trial for trial in self.trials if trial.label == label), None)
        if other is None or other.label == self.chosen.label:
            return None
        shared = min(len(self.chosen.errors), len(other.errors))
        return paired(self.chosen.errors[:shared], other.errors[:shared])

    def sentence(self) -> str:
        """What was chosen, and how sure that is."""
        words = (
            f"Chosen: {self.chosen.label}, with {self.chosen.error:.1f}% errors on images held back from training "
            f"({len(self.chosen.errors)} of {self.folds} folds, {self.recipe.epochs} epochs of {self.recipe.network})"
        )
        rest = [trial for trial in self.trials if trial.label != self.chosen.label]
        if not rest:
            return words + "."
        second = rest[0]
        if second.error < self.chosen.error and self.chosen.label == "none":
            return f"{words}; {second.label} had {second.error:.1f}%, which is not clearly better than nothing."
        return f"{words}; next is {second.label} with {second.error:.1f}%{self._sureness(second.label)}."

    def _sureness(self, label: str) -> str:
        found = self.against(label)
        if found is None or found.p is None:
            return ", from one fold alone: a guess"
        if found.significant:
            return f", clearly behind (p {found.p:.3f})"
        return ", which is within the noise between folds"

    def policy(self, found: Policy) -> Policy:
        """The winner, with the whole story: of the search and of the race."""
        provenance = {**found.provenance, "calibration": self.provenance()}
        name = found.name if self.chosen.policy.sub_policies == found.sub_policies else self.chosen.label
        return replace(self.chosen.policy, name=name, provenance=provenance)

    def words(self) -> str:
        """The table and the sentence."""
        width = max(len(trial.label) for trial in self.trials)
        lines = [
            f"  {trial.label:{width}}  {trial.error:5.1f}% errors, {len(trial.errors)} of {self.folds} folds"
            for trial in self.trials
        ]
        return "\n".join([*lines, self.sentence()])

    def provenance(self) -> dict[str, Any]:
        """For the artifact: the whole table."""
        return {
            "chosen": self.chosen.label,
            "sentence": self.sentence(),
            "network": self.recipe.network,
            "epochs": self.recipe.epochs,
            "folds": self.folds,
            "seconds": round(self.seconds, 1),
            "table": [
                {
                    "candidate": trial.label,
                    "hash": trial.policy.hash,
                    "errors": [round(error, 3) for error in trial.errors],
                    "training_loss": round(trial.loss, 4),
                }
                for trial in self.trials
            ],
        }


def usual_candidates(
    start: Policy, found: Policy, halfway: Policy | None, ops: Sequence[str] | None
) -> list[Candidate]:
    """The found policy at several strengths among what people use without a search.

    The most telling first: a small budget drops the last. With a choice of operations only policies of those take part.
    """
    uniform = named("uniform", ops=ops)
    published = [] if ops is not None else ["trivialaugment-wide", "randaugment(2,14)"]
    return [
        Candidate("none", named("none")),
        Candidate("found", found),
        *(Candidate(name, named(name)) for name in published[:1]),
        Candidate("uniform", uniform),
        Candidate("start", start),
        Candidate("uniform, 2 passes", uniform.with_strength(2)),
        Candidate("found, 2 passes", found.with_strength(2)),
        *(Candidate(name, named(name)) for name in published[1:]),
        Candidate("uniform, half as often", uniform.with_strength(probability=0.5)),
        *([] if halfway is None else [Candidate("found halfway", halfway)]),
        Candidate("found, 3 passes", found.with_strength(3)),
    ]


def calibrate(
    data: ImageSet,
    candidates: Sequence[Candidate],
    *,
    minutes: float = 1.5,
    recipe: TrainRecipe | None = None,
    device: str = "auto",
    folder: Path | None = None,
    seed: int = 0,
    jobs: int | None = None,
    say: Say = lambda text: None,
) -> Calibration:
    """Race the candidates and name the winner. `recipe.epochs` is the most that a run may take.

    `jobs` runs go side by side: by default as many as there are cores on a CPU, eight on a GPU.
    """
    if not minutes > 0:
        raise ConfigError(f"the minutes of calibration must be positive, got {minutes}")
    if not candidates:
        raise ConfigError("calibration needs a candidate")
    if data.masks is not None:
        raise DataError(f"calibration trains classifiers, {data.name!r} has masks in the place of labels")
    recipe = replace(recipe or choose_recipe(data, device), cutout=0)
    began = time.monotonic()
    end = began + 60 * minutes
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        arenas = _folds(data, folder or Path(scratch), device, seed)  # first of all: classes may be too small
        place = find_device(device)
        on_gpu = place.type == "cuda"
        jobs = jobs or (_SIDE_BY_SIDE if on_gpu else os.cpu_count() or 1)
        cost = _image_seconds(data, candidates, recipe, jobs, place, seed)
        part = _payable(data, len(candidates), cost, end - time.monotonic(), seed)
        if part is not data:
            say(f"calibrating with {len(part)} of {len(data)} images: time does not allow for more")
            arenas = _folds(part, arenas[0].folder, device, seed)
        workers = None if on_gpu or jobs == 1 else stack.enter_context(start_workers(arenas, jobs))
        if workers is not None:
            workers.ready()
        epoch = cost * len(arenas[0].data)
        candidates, recipe = _affordable(candidates, recipe, epoch, end - time.monotonic(), len(arenas))
        # not compiled, as it was measured: that would take the time of a whole round
        train = partial(run_cells, jobs=jobs, say=lambda text: None, workers=workers, fuse=False)
        trials = _race(arenas, candidates, recipe, end, seed, train, say)
    chosen = _choose(trials)
    rest = sorted((t for t in trials if t is not chosen), key=lambda trial: (-len(trial.errors), trial.error))
    return Calibration(chosen, (chosen, *rest), len(arenas), recipe, time.monotonic() - began)


def _folds(data: ImageSet, folder: Path, device: str, seed: int) -> list[Arena]:
    """Each fold holds another fifth of every class back; classes of few images allow fewer folds."""
    least = min(count for count in data.counts() if count)
    if least < 2:
        raise DataError("calibration holds images of every class back, so each needs two; use --no-calibrate")
    with named_trouble(folder):
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    parts = data.folds(min(FOLDS, least), seed)
    return [Arena(rest, part, f"fold {fold}", folder, device) for fold, (rest, part) in enumerate(parts, 1)]


def _payable(data: ImageSet, candidates: int, cost: float, seconds: float, seed: int) -> ImageSet:
    """All images, or where not even two rounds of the shortest race on them can be paid for, a part of them."""
    runs = sum(_rounds(min(candidates, _LEAST_CANDIDATES))[:2])
    most = math.floor(max(seconds, 0.0) / (runs * _LEAST_EPOCHS * max(cost, 1e-9)) * FOLDS / (FOLDS - 1))
    count = max(most, _LEAST_IMAGES, 2 * len(data.classes))
    if count >= len(data):
        return data
    part = data.subset(count, seed)
    enough = min(FOLDS, *(number for number in data.counts() if number))
    return part if min(number for number in part.counts() if number) >= enough else data


def _affordable(
    candidates: Sequence[Candidate], recipe: TrainRecipe, epoch: float, seconds: float, folds: int
) -> tuple[Sequence[Candidate], TrainRecipe]:
    """As many candidates and epochs as the whole race can pay for, when a run's epoch costs `epoch` seconds."""

    def epochs(count: int) -> int:
        return math.floor(seconds / (sum(_rounds(count, folds)) * max(epoch, 1e-9)))

    count = len(candidates)
    wanted = min(recipe.epochs, max(_WORTHWHILE_EPOCHS, recipe.epochs // 2))
    while count > _LEAST_CANDIDATES and epochs(count) < wanted:
        count -= 1
    return candidates[:count], _shortened(recipe, max(_LEAST_EPOCHS, epochs(count)))


def _shortened(recipe: TrainRecipe, epochs: int) -> TrainRecipe:
    """At most so many epochs; the warm-up takes at most an eighth of them."""
    most = min(recipe.epochs, epochs)
    return replace(recipe, epochs=most, warmup=min(recipe.warmup, most / 8))


def _rounds(count: int, folds: int = FOLDS) -> list[int]:
    """Runs in each round."""
    rounds = []
    for _ in range(folds):
        rounds.append(count)
        count = min(count, _half(count) + 1)  # none stays, too
    return rounds


def _half(count: int) -> int:
    return max(min(count, 2), math.ceil(count / 2))


def _image_seconds(
    data: ImageSet, candidates: Sequence[Candidate], recipe: TrainRecipe, jobs: int, place: torch.device, seed: int
) -> float:
    """What an image costs one run in an epoch when runs share the device as they will: measured."""
    if len(data) > max(_MEASURED_IMAGES, 2 * len(data.classes)):
        data = data.subset(max(_MEASURED_IMAGES, 2 * len(data.classes)), seed)
    on_gpu = place.type == "cuda"
    members = [
        Training(data, candidate.policy, recipe, 0, place)
        for candidate in candidates[1 : 1 + (jobs if on_gpu else 1)] or candidates
    ]
    group = Group(members, fuse=False)
    threads = torch.get_num_threads()
    if not on_gpu:
        torch.set_num_threads(1)
    try:
        group.record()
        if on_gpu:
            group.one_epoch()
        began = time.monotonic()
        group.one_epoch()
    finally:
        torch.set_num_threads(threads)
    return (time.monotonic() - began) / (len(members) if on_gpu else jobs) / len(data)


def _race(
    arenas: Sequence[Arena],
    candidates: Sequence[Candidate],
    recipe: TrainRecipe,
    end: float,
    seed: int,
    train: Callable[[Arena, list[Cell]], bool],
    say: Say,
) -> list[Trial]:
    trials = [Trial(candidate.label, candidate.policy, (), ()) for candidate in candidates]
    alive, cost = trials, None
    for number, arena in enumerate(arenas):
        if cost is not None:
            affordable = _epochs_left(len(alive), len(arenas) - number, recipe.epochs, end - time.monotonic(), cost)
            if affordable is None:
                break
            recipe = _shortened(recipe, affordable)
        say(f"calibrating, fold {number + 1}: {len(alive)} candidates, {recipe.epochs} epochs of {recipe.network}")
        began = time.monotonic()
        train(arena, [_cell(trial, recipe, seed) for trial in alive])
        cost = (time.monotonic() - began) / (len(alive) * recipe.epochs)
        alive = [_measured(arena, trial, recipe, seed) for trial in alive]
        alive.sort(key=lambda trial: trial.error)
        done = {trial.label: trial for trial in alive}
        trials = [done.get(trial.label, trial) for trial in trials]
        best = alive[: _half(len(alive))]
        alive = best + [trial for trial in alive[len(best) :] if trial.label == "none"]
    return trials


def _epochs_left(count: int, folds: int, epochs: int, seconds: float, cost: float) -> int | None:
    """Epochs of the next rounds, by what the last one cost: shorter ones (not below half) rather than fewer rounds."""
    rounds = _rounds(count, folds)
    for kept in range(folds, 0, -1):
        affordable = min(epochs, math.floor(seconds / (sum(rounds[:kept]) * max(cost, 1e-9))))
        if 2 * affordable >= epochs and affordable >= _LEAST_EPOCHS:
            return affordable
    return None


def _measured(arena: Arena, trial: Trial, recipe: TrainRecipe, seed: int) -> Trial:
    record = read_cell(arena, _cell(trial, recipe, seed))
    assert record is not None
    errors, losses = (*trial.errors, record["error"]), (*trial.losses, record["train_loss"])
    return replace(trial, errors=errors, losses=losses, images=trial.images + len(arena.held_out))


def _cell(trial: Trial, recipe: TrainRecipe, seed: int) -> Cell:
    return Cell(trial.label, trial.policy, recipe, seed)


def _choose(trials: Sequence[Trial]) -> Trial:
    """The lowest error of those that came furthest, if it is below that of `none` by more than the noise.

    Of those level with it the one that trains hardest: the real training is longer than these, and longer trainings
    want more augmentation.
    """
    furthest = max(len(trial.errors) for trial in trials)
    finalists = sorted((t for t in trials if len(t.errors) == furthest), key=lambda trial: trial.error)
    best = finalists[0]
    plain = next((trial for trial in finalists if trial.label == "none"), None)
    if plain is not None:
        finalists = [trial for trial in finalists if trial.error < plain.error - plain.noise]
        if not finalists:
            return plain
    return max((t for t in finalists if t.error <= best.error + best.noise / 2), key=lambda trial: trial.loss)
