"""The images of a race: distinct, as many as the budget pays for, in folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RaceError
from fasteraa.methods import Budget, Method
from fasteraa.methods.published import RACED
from fasteraa.methods.task import FOLDS, Task, informative_epochs
from fasteraa.policy.named import named
from fasteraa.selection.schedule import (
    LEAST_FINE_TUNING_IMAGES,
    LEAST_IMAGES,
    TYPICAL_CANDIDATES,
    payable_images,
)
from fasteraa.train.job import TrainJob
from fasteraa.train.runner import Runner, Say
from fasteraa.train.split import Split, fold_splits, twice_words


def without_training(methods: Sequence[Method], data: ImageSet) -> list[Method]:
    """Of images with masks only methods that train nothing make a policy."""
    some = [method for method in methods if not method.trains]
    if not some:
        raise ConfigError(
            f"a method that trains classifiers needs labels, {data.name!r} has masks in their place: "
            f"{', '.join(method.name for method in methods)} cannot propose a policy, --methods faster-aa can"
        )
    return some


def raceable(data: ImageSet, say: Say) -> ImageSet:
    """Without copies of images, which would be trained on and held out at once."""
    if data.masks is not None:
        raise RaceError(f"a race trains classifiers, {data.name!r} has masks in the place of labels")
    whole, data = len(data), data.distinct()
    if sum(count > 0 for count in data.counts()) < 2:
        left = " once copies are left out" if len(data) < whole else ""
        raise RaceError(f"a race trains classifiers, which needs images of two classes: there is one{left}")
    if max(data.counts()) < 2:
        raise RaceError("a race holds images out, but no class has two different ones")
    if len(data) < whole:
        copies = whole - len(data)
        which = "image, which is a copy of another" if copies == 1 else "images, which are copies of others"
        say(f"racing without {copies} {which}")
    return data


def folded(
    task: Task,
    data: ImageSet,
    runner: Runner,
    budget: Budget,
    experiment: bool,
    candidates: int = TYPICAL_CANDIDATES,
) -> Task:
    """The task with folds of as many images as informative trainings of so many candidates can be paid for."""
    decided = task.decisions.decide(
        "images", lambda: {"count": _payable(task, data, runner, budget, experiment, candidates)}
    )
    if decided["count"] < len(data):
        task.say(f"racing with {decided['count']} of {len(data)} images: time does not allow for more")
        data = data.subset(decided["count"], task.seed)
    return replace(task, folds=tuple(fold_splits(data, FOLDS, task.seed)))


def judged_by_validation(task: Task) -> Task:
    """Where somebody brought validation images: trained on all folds together, measured on those images.

    Methods that train have seen folds of the training images only, so what they propose is new to these images.
    """
    if task.validation is None:
        return task
    fold = task.folds[0]
    train = fold.train.merged(fold.held_out)  # type: ignore[union-attr, arg-type]
    split = Split(train, task.validation, "validation images")
    if split.overlap_count:
        task.say(twice_words(split.overlap_count, len(split.held_out)))
    return replace(task, folds=(split,))


def _payable(task: Task, data: ImageSet, runner: Runner, budget: Budget, experiment: bool, candidates: int) -> int:
    if budget.trainings is not None:
        return len(data)
    whole = Split(data, data, "all images")  # nothing is measured on it: what an image costs does not depend on folds
    names = [name for name in RACED if name != "none"]
    jobs = [TrainJob(name, named(name), task.recipe, 0, whole) for name in names]
    cost = runner.estimate(jobs) / sum(job.image_epochs for job in jobs)
    epochs = task.recipe.epochs if task.recipe.fine_tunes else informative_epochs(task.recipe, 10**9)
    least = LEAST_FINE_TUNING_IMAGES if task.recipe.fine_tunes else LEAST_IMAGES
    return payable_images(len(data), len(data.classes), candidates, epochs, cost, budget, experiment, least)
