"""How much augmentation: race policies by what counts, the error of short trainings on images held back from training.

The search says which operations leave the data; it cannot say how strong a policy a training run wants. So candidates
(the found policy at several strengths, its start, published policies, no augmentation at all) are trained for a while
on a part of the training images and measured on the rest: all of them on one part, the better half on another part,
and so on, until time or parts run out. `none` stays in to the end: what is not better than doing nothing is not chosen.
Test images are never touched.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RaceError, RunError
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.compare import Cell, choose_recipe, read_cell, run_cells, start_workers, why_diverged
from fasteraa.evaluate.plan import Plan, Round, read_plan
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.statistics import Estimate, leftover, paired
from fasteraa.evaluate.trainer import Group, Training
from fasteraa.policy.artifact import Policy
from fasteraa.policy.named import named
from fasteraa.search.folder import named_trouble
from fasteraa.search.run import find_device

FOLDS = 3  # few: each training then has many images to be measured on
_LEAST_EPOCHS = 4
# A network that has seen each image 17 times prefers no augmentation where one that has seen them 60 times or more is
# glad of it (results/proxies-cifar10); of few images it must have seen more: 180 steps on 240 of them told nothing.
# Rather fewer images, candidates and rounds than shorter trainings.
_TELLING_EPOCHS = 60
_TELLING_STEPS = 600
_SHORTENED = 0.8  # of the epochs, at least, when a machine slows down
_LEAST_CANDIDATES = 6  # not fewer than these: none, found, two published, uniform, start
_LEAST_IMAGES = 1_000  # not fewer than these
_QUICK_NETWORK = "wrn-16-2"  # on a GPU: many epochs tell more than a large network
_GPU_EPOCHS = 200  # where the budget allows; the recipe of the small network is one for CPUs
_QUICK_SIDE = 128  # up to which it is quick; above, the network for CPUs takes its place
_MEASURED_IMAGES = 2_000  # on which the cost of an epoch is measured, at most
_MEASURED_S = 0.5  # that measuring takes, at least
_SIDE_BY_SIDE = 12  # runs at once on a GPU
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
    diverged: str | None = None  # why a training of it came to nothing; its error there is that of guessing

    @property
    def noise(self) -> float:
        """One standard error of its error, which is also about that of a difference to another on the same images.

        It knows that other images could have been held back, not that another seed would have trained otherwise.
        """
        share = min(max(self.error / 100, 1 / max(self.images, 2)), 1 - 1 / max(self.images, 2))
        return 100 * math.sqrt(share * (1 - share) / max(self.images, 1))

    @property
    def error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def loss(self) -> float | None:
        """None if all of its trainings diverged."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True)
class Calibration:
    chosen: Trial
    trials: tuple[Trial, ...]  # the winner first, then by folds survived and error
    folds: int
    recipe: TrainRecipe
    seconds: float
    images: int = 0  # that took part
    all_images: int = 0  # that there were
    rounds: tuple[Round, ...] = ()

    def against(self, label: str) -> Estimate | None:
        """The winner's error minus that of another, fold by fold, where both were raced."""
        other = next((trial for trial in self.trials if trial.label == label), None)
        if other is None or other.label == self.chosen.label:
            return None
        shared = min(len(self.chosen.errors), len(other.errors))
        return paired(self.chosen.errors[:shared], other.errors[:shared], overlap=1 / (self.folds - 1))

    def sentence(self) -> str:
        """What was chosen, and how sure that is."""
        words = (
            f"Chosen: {self.chosen.label}, with {self.chosen.error:.1f}% errors on images held back from training "
            f"({len(self.chosen.errors)} of {self.folds} folds{self._part()}, {self._epochs()} epochs of "
            f"{self.recipe.network})"
        )
        rest = [trial for trial in self.trials if trial.label != self.chosen.label and not trial.diverged]
        if not rest:
            return words + "."
        second = rest[0]
        if second.error < self.chosen.error:
            return f"{words}; {second.label} had {second.error:.1f}%, which is level with it but trains less hard."
        return f"{words}; next is {second.label} with {second.error:.1f}%{self._sureness(second.label)}."

    def _part(self) -> str:
        return f" of {self.images} of {self.all_images} images" if self.images < self.all_images else ""

    def _epochs(self) -> str:
        """Later rounds may have had fewer."""
        least = min((each.epochs for each in self.rounds), default=self.recipe.epochs)
        return str(least) if least == self.recipe.epochs else f"{least} to {self.recipe.epochs}"

    def _sureness(self, label: str) -> str:
        found = self.against(label)
        if found is None or found.n < 2:
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
            + (f" ({trial.diverged})" if trial.diverged else "")
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
            "images": self.images,
            "all_images": self.all_images,
            "folds": self.folds,
            "rounds": [{"runs": each.runs, "epochs": each.epochs} for each in self.rounds],
            "seconds": round(self.seconds, 1),
            "table": [
                {
                    "candidate": trial.label,
                    "hash": trial.policy.hash,
                    "errors": [round(error, 3) for error in trial.errors],
                    "training_loss": None if trial.loss is None else round(trial.loss, 4),
                    **({"diverged": trial.diverged} if trial.diverged else {}),
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
    published = [] if ops is not None else ["randaugment(2,14)", "trivialaugment-wide"]
    return [
        Candidate("none", named("none")),
        Candidate("found", found),
        *(Candidate(name, named(name)) for name in published),
        Candidate("uniform", uniform),
        Candidate("start", start),
        Candidate("uniform, 2 passes", uniform.with_strength(2)),
        Candidate("found, 2 passes", found.with_strength(2)),
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

    `jobs` runs go side by side: by default as many as there are cores on a CPU, twelve on a GPU. With a `folder` a race
    that was stopped goes on as it was planned, with what was finished; of `minutes` what it took before is gone.
    """
    if not minutes > 0:
        raise ConfigError(f"the minutes of calibration must be positive, got {minutes}")
    if not candidates:
        raise ConfigError("calibration needs a candidate")
    if len({candidate.label for candidate in candidates}) < len(candidates):
        raise ConfigError(f"candidates need labels of their own, got {', '.join(each.label for each in candidates)}")
    began, all_images = time.monotonic(), len(data)
    data = _raceable(data, say)
    recipe = replace(recipe or race_recipe(data, device), cutout=0)
    place = find_device(device)
    on_gpu = place.type == "cuda"
    jobs = jobs or (_SIDE_BY_SIDE if on_gpu else os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = folder or Path(scratch)
        file, of = folder / "race.json", _identity(data, candidates, recipe, seed)
        plan = read_plan(file, of)
        if plan is None:
            cost = _image_seconds(data, candidates, recipe, jobs, place, seed)
            left = 60 * minutes - (time.monotonic() - began)
            images = _payable(len(data), len(data.classes), len(candidates), recipe.epochs, cost, left)
            plan = Plan(file, of, images, cost)
        else:
            say("calibrating: the race that was begun goes on")
        if plan.images < len(data):
            say(f"calibrating with {plan.images} of {len(data)} images: time does not allow for more")
            data = data.subset(plan.images, seed)
        arenas = _folds(data, folder, device, seed)
        workers = None if on_gpu or jobs == 1 else stack.enter_context(start_workers(arenas, jobs))
        if workers is not None:
            workers.ready()
        if not plan.rounds:
            plan.setup_seconds = time.monotonic() - began
            _fit(plan, candidates, recipe, 60 * minutes, arenas, seed)
        # not compiled, as it was measured: that would take the time of a whole round
        train = partial(run_cells, jobs=jobs, say=lambda text: None, workers=workers, fuse=False)
        trials = _race(arenas, candidates, recipe, plan, 60 * minutes, train, say)
    chosen = _choose(trials)
    rest = sorted((t for t in trials if t is not chosen), key=lambda trial: (-len(trial.errors), trial.error))
    return Calibration(
        chosen=chosen,
        trials=(chosen, *rest),
        folds=len(arenas),
        recipe=_shortened(recipe, plan.epochs),
        seconds=plan.seconds,
        images=len(data),
        all_images=all_images,
        rounds=tuple(plan.rounds),
    )


def race_recipe(data: ImageSet, device: str) -> TrainRecipe:
    """Of a network that is trained for many epochs within the time of a race."""
    if find_device(device).type == "cpu":
        return choose_recipe(data, device, "small")
    recipe = choose_recipe(data, device, _QUICK_NETWORK if min(data.size) <= _QUICK_SIDE else "small")
    return replace(recipe, epochs=max(recipe.epochs, _GPU_EPOCHS))


def _raceable(data: ImageSet, say: Say) -> ImageSet:
    """Without copies of images, which would be trained on and held back at once."""
    if data.masks is not None:
        raise RaceError(f"calibration trains classifiers, {data.name!r} has masks in the place of labels")
    whole, data = len(data), data.distinct()
    if sum(count > 0 for count in data.counts()) < 2:
        raise RaceError("calibration trains classifiers, which needs images of two classes: there is one")
    if max(data.counts()) < 2:
        raise RaceError("calibration holds images back, but no class has two different ones")
    if len(data) < whole:
        say(f"calibrating without {whole - len(data)} images, which are copies of others")
    return data


def _identity(data: ImageSet, candidates: Sequence[Candidate], recipe: TrainRecipe, seed: int) -> str:
    """Whatever makes it another race; not the time it may take."""
    policies = [(each.label, each.policy.hash) for each in candidates]
    return hashlib.sha256(json.dumps([data.fingerprint, policies, recipe.key, seed, FOLDS]).encode()).hexdigest()[:16]


def _folds(data: ImageSet, folder: Path, device: str, seed: int) -> list[Arena]:
    """Each fold holds another third of every class back; very few images allow fewer folds."""
    with named_trouble(folder):
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    parts = data.folds(min(FOLDS, sum(count for count in data.counts() if count > 1)), seed)
    return [Arena(rest, part, f"fold {fold}", folder, device) for fold, (rest, part) in enumerate(parts, 1)]


def _payable(images: int, classes: int, candidates: int, epochs: int, cost: float, seconds: float) -> int:
    """All images, or where trainings on them that tell something cannot be paid for, a part of them."""
    passes = sum(_rounds(candidates)) * min(epochs, _TELLING_EPOCHS)
    most = math.floor(max(seconds, 0.0) / (passes * max(cost, 1e-9)) * FOLDS / (FOLDS - 1))
    return min(images, max(most, _LEAST_IMAGES, 2 * classes))


def _fit(
    plan: Plan, candidates: Sequence[Candidate], recipe: TrainRecipe, seconds: float, arenas: Sequence[Arena], seed: int
) -> None:
    """As many candidates and epochs (at most those of the recipe) as the whole race can pay for."""
    images = len(arenas[0].data)
    wanted = min(recipe.epochs, max(_TELLING_EPOCHS, math.ceil(_TELLING_STEPS / max(images // recipe.batch_size, 1))))
    epoch, left = plan.image_seconds * images, seconds - plan.seconds
    count, plan.epochs = _affordable(len(candidates), wanted, recipe.epochs, epoch, left, len(arenas))
    plan.candidates = tuple(candidate.label for candidate in candidates[:count])
    plan.seeds = tuple(seed + fold for fold in range(len(arenas)))  # one seed for all would be one start for all


def _affordable(count: int, wanted: int, most: int, epoch: float, seconds: float, folds: int) -> tuple[int, int]:
    """As many candidates and epochs as the whole race can pay for, when a run's epoch costs `epoch` seconds.

    Candidates are dropped for `wanted` epochs; what is left over pays for more of them.
    """

    def epochs(count: int) -> int:
        return math.floor(seconds / (sum(_rounds(count, folds)) * max(epoch, 1e-9)))

    while count > _LEAST_CANDIDATES and epochs(count) < wanted:
        count -= 1
    return count, min(most, max(_LEAST_EPOCHS, epochs(count)))


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
        seconds = _fastest(group.one_epoch)
    finally:
        torch.set_num_threads(threads)
    return seconds / (len(members) if on_gpu else jobs) / len(data)


def _fastest(epoch: Callable[[], None]) -> float:
    """Of as many as half a second has time for: the first one of few images is slow."""
    began, fastest = time.monotonic(), math.inf
    while time.monotonic() < began + _MEASURED_S or fastest == math.inf:
        start = time.monotonic()
        epoch()
        fastest = min(fastest, time.monotonic() - start)
    return fastest


def _race(
    arenas: Sequence[Arena],
    candidates: Sequence[Candidate],
    recipe: TrainRecipe,
    plan: Plan,
    seconds: float,
    train: Callable[[Arena, list[Cell]], bool],
    say: Say,
) -> list[Trial]:
    trials = [Trial(each.label, each.policy, (), ()) for each in candidates if each.label in plan.candidates]
    alive = trials
    for number, (arena, seed) in enumerate(zip(arenas, plan.seeds, strict=True)):
        if number == len(plan.rounds):
            epochs = _next_epochs(plan, len(alive), len(arenas) - number, seconds)
            if epochs is None:
                break
            plan.begin(len(alive), epochs)
        shortened = _shortened(recipe, plan.rounds[number].epochs)
        cells = [Cell(trial.label, trial.policy, shortened, seed) for trial in alive]
        taken = _one_round(arena, cells, plan.image_seconds, train, say)
        if plan.rounds[number].seconds is None:
            plan.end(taken)
        measured = [_measured(arena, trial, cell) for trial, cell in zip(alive, cells, strict=True)]
        done = {trial.label: trial for trial in measured}
        trials = [done.get(trial.label, trial) for trial in trials]
        if all(trial.diverged for trial in measured):
            break
        alive = _better_half(measured)
    if all(trial.diverged for trial in trials):
        raise RunError(
            f"every training of the calibration diverged ({trials[0].label}: {trials[0].diverged}); use --no-calibrate"
        )
    return trials


def _next_epochs(plan: Plan, alive: int, folds: int, seconds: float) -> int | None:
    """Epochs of the next round; None if there is no time for one. The first is run in any case."""
    if not plan.rounds:
        return plan.epochs
    last, least = plan.rounds[-1], min(plan.epochs, max(_LEAST_EPOCHS, math.ceil(_SHORTENED * plan.epochs)))
    return _epochs_left(_rounds(alive, folds), least, last.epochs, seconds - plan.seconds, last.epoch_seconds)


def _one_round(
    arena: Arena, cells: list[Cell], image_seconds: float, train: Callable[[Arena, list[Cell]], bool], say: Say
) -> float:
    """What it takes in all: for runs that were finished before the race was stopped, as much as for the rest."""
    recipe, missing = cells[0].recipe, sum(read_cell(arena, cell) is None for cell in cells)
    if not missing:
        return image_seconds * len(arena.data) * recipe.epochs * len(cells)
    say(f"calibrating, {arena.held_out_from}: {len(cells)} candidates, {recipe.epochs} epochs of {recipe.network}")
    began = time.monotonic()
    train(arena, cells)
    return (time.monotonic() - began) * len(cells) / missing


def _better_half(measured: list[Trial]) -> list[Trial]:
    """Those who go on, the best first: not who diverged, and `none` in any case."""
    ranked = sorted(measured, key=lambda trial: trial.error)
    best = [trial for trial in ranked if not trial.diverged][: _half(len(ranked))]
    return best + [trial for trial in measured if trial.label == "none" and trial not in best]


def _epochs_left(rounds: Sequence[int], least: int, most: int, seconds: float, cost: float) -> int | None:
    """Epochs of the next rounds, by what the last one cost: rather fewer than fewer rounds, but not below `least`."""
    for kept in range(len(rounds), 0, -1):
        affordable = min(most, math.floor(seconds / (sum(rounds[:kept]) * max(cost, 1e-9))))
        if affordable >= least:
            return affordable
    return None


def _measured(arena: Arena, trial: Trial, cell: Cell) -> Trial:
    record = read_cell(arena, cell)
    assert record is not None
    images = trial.images + len(arena.held_out)
    if why := why_diverged(record):
        guessing = 100 - 100 / len(set(arena.data.labels.tolist()))
        return replace(trial, errors=(*trial.errors, guessing), images=images, diverged=why)
    errors, losses = (*trial.errors, record["error"]), (*trial.losses, record["train_loss"])
    return replace(trial, errors=errors, losses=losses, images=images)


def _choose(trials: Sequence[Trial]) -> Trial:
    """The lowest error of those that came furthest.

    Of those level with it (within half of the noise), and below `none`, the one that trains hardest: the real training
    is longer than these, and longer trainings want more augmentation. Who diverged loses.
    """
    sound = [trial for trial in trials if not trial.diverged]
    furthest = max(len(trial.errors) for trial in sound)
    finalists = sorted((t for t in sound if len(t.errors) == furthest), key=lambda t: (t.error, t.label != "none"))
    best = finalists[0]
    if best.label == "none":
        return best
    plain = min((trial.error for trial in finalists if trial.label == "none"), default=math.inf)
    level = best.error + max(best.noise, _training_noise(finalists)) / 2
    return max((t for t in finalists if t.error <= level and t.error < plain), key=lambda trial: trial.loss or 0.0)


def _training_noise(trials: Sequence[Trial]) -> float:
    """One standard error of a difference, by how differently candidates do from fold to fold, each with its own seed.

    Where many images are held back, trainings differ by more than the choice of the images explains.
    """
    spread = leftover([trial.errors for trial in trials])
    return 0.0 if spread is None else spread * math.sqrt(2 / len(trials[0].errors))
