"""What a policy is wanted for: the images, the training that judges, the device, and where a run keeps its files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fasteraa.data import ImageSet
from fasteraa.methods.config import SearchConfig
from fasteraa.policy.policy import Policy
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.progress import Progress, Silent
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Split

FOLDS = 3  # few: each training then has many images to be measured on
LEAST_EPOCHS = 4
PREDICTABLE = 8  # times the length of a race's trainings: what comes of longer ones was never checked
LONG = 1.5  # times the shortest informative training: methods and races gain nothing by longer ones
EXPERIMENT = 18  # trainings, at least, of a method that trains: for so many the number of images is planned
# A network that has seen each image 17 times prefers no augmentation where one that has seen them 60 times or more
# profits from it; of few images it must have seen more: 180 steps on 240 of them showed nothing.
# Rather fewer images, candidates and rounds than shorter trainings.
_INFORMATIVE_EPOCHS = 60
_INFORMATIVE_STEPS = 600


@dataclass(frozen=True)
class Task:
    """Everything a method may look at. Methods that train get one with folds."""

    data: ImageSet
    config: SearchConfig
    device: str = "auto"
    recipe: TrainRecipe = field(default_factory=TrainRecipe)  # the training that judges
    folds: tuple[Split, ...] = ()
    validation: ImageSet | None = None  # the images that judge in the race, where somebody brought them
    metric: str = "error"  # that must be low: error, balanced-error or loss
    prior: str = ""  # the file that a race predicts with; the package's own if empty
    folder: RunFolder | None = None
    resume: bool = False
    decisions: Decisions = field(default_factory=lambda: Decisions(None, ""))
    progress: Progress = field(default_factory=Silent)
    until: float = math.inf  # the moment (time.time()) at which a method without trainings must end
    ranks: Ranks = ALONE  # processes that share a method's own gradient loop

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def say(self) -> Callable[[str], None]:
        return self.progress.say

    def folder_of(self, method: str) -> Path | None:
        """Where a method may keep files of its own, of any name; None where the run keeps nothing."""
        return self.folder.of_method(method) if self.folder else None

    @property
    def train_images(self) -> int:
        """Of a training on a fold."""
        return len(self.folds[0].train)

    def job(self, label: str, policy: Policy, *, fold: int, seed: int, epochs: int | None = None) -> TrainJob:
        """A training on a fold (counted from 0), shortened to `epochs`."""
        recipe = self.recipe if epochs is None else shortened(self.recipe, epochs)
        return TrainJob(label, policy, recipe, seed, self.folds[fold])

    def informative_epochs(self) -> int:
        """The shortest training on a fold whose result says something about longer ones; a fine-tuning is short."""
        if self.recipe.fine_tunes:
            return self.recipe.epochs
        return informative_epochs(self.recipe, self.train_images)


def shortened(recipe: TrainRecipe, epochs: int) -> TrainRecipe:
    """At most so many epochs; the warm-up takes at most an eighth of them."""
    most = min(recipe.epochs, epochs)
    return replace(recipe, epochs=most, warmup=min(recipe.warmup, most / 8))


def informative_epochs(recipe: TrainRecipe, images: int) -> int:
    steps, predicting = max(images // recipe.batch_size, 1), math.ceil(recipe.epochs / PREDICTABLE)
    return min(recipe.epochs, max(_INFORMATIVE_EPOCHS, math.ceil(_INFORMATIVE_STEPS / steps), predicting))
