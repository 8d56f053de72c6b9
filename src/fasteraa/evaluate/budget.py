"""What a race costs, and what can be had for the time that there is.

What an image costs is measured before anything is planned. From that follow how many images take part, whether there is
time for an experiment before the race, and how many candidates are trained how often and for how long. After each round
what that one really cost says how long the next ones may be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from fasteraa.data import ImageSet
from fasteraa.evaluate.candidates import Candidate
from fasteraa.evaluate.experiment import FEWEST, affordable
from fasteraa.evaluate.plan import Plan, Round
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.trainer import Group, Training

FOLDS = 3  # few: each training then has many images to be measured on
LEAST_EPOCHS = 4
# A network that has seen each image 17 times prefers no augmentation where one that has seen them 60 times or more is
# glad of it (results/proxies-cifar10); of few images it must have seen more: 180 steps on 240 of them told nothing.
# Rather fewer images, candidates and rounds than shorter trainings.
_TELLING_EPOCHS = 60
_TELLING_STEPS = 600
_WELL_TOLD = 1.5  # times what tells something
# Trainings of a candidate in each round. Few of many and many of few is what simulated races did best with
# (tools/expectations.py); where there is no time for trainings somewhat longer than what tells something, the next.
HEATS: tuple[tuple[int, ...], ...] = ((1, 3, 9), (1, 3, 6), (1, 3, 3), (1, 2, 2))
_SHORTENED = 0.8  # of the epochs, at least, when a machine slows down
LEAST_CANDIDATES = 6  # not fewer than these, the first of the list
_FINALISTS = 3  # in later rounds not fewer than the best two and `none`
LEAST_IMAGES = 1_000  # not fewer than these
MEASURED_IMAGES = 2_000  # on which the cost of an epoch is measured, at most
MEASURED_S = 0.5  # that measuring takes, at least
_MEASURED_POLICIES = 2  # on a CPU, one after the other: a quick one and a slow one


# --- what it costs -----------------------------------------------------------------------------------------------


def image_seconds(
    data: ImageSet, candidates: Sequence[Candidate], recipe: TrainRecipe, jobs: int, place: torch.device, seed: int
) -> float:
    """What an image costs one run in an epoch when runs share the device as they will: measured."""
    if len(data) > max(MEASURED_IMAGES, 2 * len(data.classes)):
        data = data.subset(max(MEASURED_IMAGES, 2 * len(data.classes)), seed)
    on_gpu = place.type == "cuda"
    members = [
        Training(data, candidate.policy, recipe, 0, place)
        for candidate in candidates[1 : 1 + (jobs if on_gpu else _MEASURED_POLICIES)] or candidates
    ]
    group = Group(members, fuse=False)
    threads = torch.get_num_threads()
    if not on_gpu:
        torch.set_num_threads(1)
    try:
        group.record()
        if on_gpu:
            group.one_epoch()
        seconds = fastest(group.one_epoch)
    finally:
        torch.set_num_threads(threads)
    return seconds / len(members) / (1 if on_gpu else jobs) / len(data)


def fastest(epoch: Callable[[], None]) -> float:
    """Of as many as half a second has time for: the first one of few images is slow."""
    began, found = time.monotonic(), math.inf
    while time.monotonic() < began + MEASURED_S or found == math.inf:
        start = time.monotonic()
        epoch()
        found = min(found, time.monotonic() - start)
    return found


def runs_of_rounds(count: int, heats: Sequence[int]) -> list[int]:
    """The trainings of each round, when the first begins with `count` candidates."""
    runs = []
    for heat in heats:
        runs.append(heat * count)
        count = min(count, half(count) + 1)  # none stays, too
    return runs


def half(count: int) -> int:
    """Of so many candidates these go on."""
    return max(min(count, 2), math.ceil(count / 2))


# --- what is planned before ----------------------------------------------------------------------------------------


def payable_images(
    images: int, classes: int, candidates: int, epochs: int, cost: float, seconds: float, experiment: bool = False
) -> int:
    """All images, or where trainings on them that tell something cannot be paid for, a part of them."""
    runs = max(sum(runs_of_rounds(candidates, (1,) * FOLDS)), 2 * FEWEST * experiment)
    passes = runs * min(epochs, _TELLING_EPOCHS)
    most = math.floor(max(seconds, 0.0) / (passes * max(cost, 1e-9)) * FOLDS / (FOLDS - 1))
    return min(images, max(most, LEAST_IMAGES, 2 * classes))


def plan_experiment(plan: Plan, recipe: TrainRecipe, seconds: float, images: int, folds: int) -> None:
    """As many trainings on `images` each as half of the time can pay for; none where those are too few."""
    wanted = _telling_epochs(recipe, images)
    most = min(recipe.epochs, int(_WELL_TOLD * wanted))
    runs, epochs = affordable(seconds - plan.seconds, plan.image_seconds * images, wanted, most, folds)
    if runs:
        plan.experiment = Round(runs, epochs)
        plan.save()


def plan_race(
    plan: Plan,
    candidates: Sequence[Candidate],
    recipe: TrainRecipe,
    seconds: float,
    images: int,
    folds: int,
    seed: int,
) -> None:
    """As many candidates and epochs (at most those of the recipe) on `images` each as the whole race can pay for."""
    wanted = _telling_epochs(recipe, images)
    # what an experiment really took knows of more than the epochs: beginning trainings and measuring networks, too
    epoch = plan.experiment.epoch_seconds if plan.experiment else plan.image_seconds * images
    left = seconds - plan.seconds
    plan.heats = payable_heats(len(candidates), min(recipe.epochs, _WELL_TOLD * wanted), epoch, left, folds)
    count, plan.epochs = payable_candidates(len(candidates), wanted, recipe.epochs, epoch, left, plan.heats)
    plan.candidates = tuple(candidate.label for candidate in candidates[:count])
    plan.seeds = tuple(seed + number for number in range(sum(plan.heats)))  # one for all would be one start for all


def telling(plan: Plan, recipe: TrainRecipe, images: int) -> tuple[int, float]:
    """Epochs that tell something, and the seconds of this race if it had those."""
    epochs = _telling_epochs(recipe, images)
    runs = sum(runs_of_rounds(len(plan.candidates), plan.heats))
    return epochs, plan.setup_seconds + runs * epochs * images * plan.image_seconds


def _telling_epochs(recipe: TrainRecipe, images: int) -> int:
    """Epochs that tell something."""
    return min(recipe.epochs, max(_TELLING_EPOCHS, math.ceil(_TELLING_STEPS / max(images // recipe.batch_size, 1))))


def payable_heats(count: int, epochs: float, epoch: float, seconds: float, folds: int) -> tuple[int, ...]:
    """As many trainings of all candidates as there is time for; one on each fold in any case."""
    for heats in HEATS:
        if seconds >= epochs * epoch * sum(runs_of_rounds(count, heats)):
            return heats
    return (1,) * folds


def payable_candidates(
    count: int, wanted: int, most: int, epoch: float, seconds: float, heats: Sequence[int]
) -> tuple[int, int]:
    """As many candidates and epochs as the whole race can pay for, when a run's epoch costs `epoch` seconds.

    Candidates are dropped for `wanted` epochs; what is left over pays for more of them.
    """

    def epochs(count: int) -> int:
        return math.floor(seconds / (sum(runs_of_rounds(count, heats)) * max(epoch, 1e-9)))

    while count > LEAST_CANDIDATES and epochs(count) < wanted:
        count -= 1
    return count, min(most, max(LEAST_EPOCHS, epochs(count)))


# --- what is decided between rounds --------------------------------------------------------------------------------


def next_round(plan: Plan, alive: int, seconds: float) -> tuple[int, int] | None:
    """Candidates and epochs of the next round; None if there is no time for one. The first is run in any case.

    When a machine is slower than it was measured, fewer candidates go on than were to.
    """
    if not plan.rounds:
        return alive, plan.epochs
    for count in range(alive, min(alive, _FINALISTS) - 1, -1):
        if (epochs := _next_epochs(plan, count, seconds)) is not None:
            return count, epochs
    return None


def _next_epochs(plan: Plan, alive: int, seconds: float) -> int | None:
    last, least = plan.rounds[-1], min(plan.epochs, max(LEAST_EPOCHS, math.ceil(_SHORTENED * plan.epochs)))
    runs = runs_of_rounds(alive, plan.heats[len(plan.rounds) :])
    return _epochs_left(runs, least, last.epochs, seconds - plan.seconds, last.epoch_seconds)


def _epochs_left(rounds: Sequence[int], least: int, most: int, seconds: float, cost: float) -> int | None:
    """Epochs of the next rounds, by what the last one cost: rather fewer than fewer rounds, but not below `least`."""
    for kept in range(len(rounds), 0, -1):
        payable = min(most, math.floor(seconds / (sum(rounds[:kept]) * max(cost, 1e-9))))
        if payable >= least:
            return payable
    return None
