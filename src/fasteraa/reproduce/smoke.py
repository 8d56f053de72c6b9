"""The same tables on tiny data with a tiny network, in seconds: it shows that they run, not what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fasteraa.data import load
from fasteraa.runtime.files import replacing
from fasteraa.selection.config import RaceConfig
from fasteraa.train.recipe import TrainRecipe

SIDE, TRAIN, TEST = 12, 40, 20
QUICK_IMAGES = 30  # where the paper takes a part of the images
_SEEDS = {
    "cifar10": 0,
    "cifar100": 1,
    "svhn": 2,
    "imagenet": 3,
    "fashion-mnist": 4,
    "imagenette": 5,
    "ants-and-bees": 6,
}


def quick_sources(folder: Path) -> dict[str, str]:
    """A few small images of the embedded sample for each data set, other ones for each."""
    sources = {}
    for name, seed in _SEEDS.items():
        file = folder / "quick" / f"{name}.npz"
        sources[name] = str(file)
        if not file.exists():
            train = load(None, subset=TRAIN, size=SIDE, seed=seed)
            test = load(None, split="test", subset=TEST, size=SIDE, seed=seed)
            with replacing(file) as partial:
                np.savez(
                    partial,
                    x_train=train.images.numpy(),
                    y_train=train.labels.numpy(),
                    x_test=test.images.numpy(),
                    y_test=test.labels.numpy(),
                )
    return sources


def quick_recipe(recipe: TrainRecipe) -> TrainRecipe:
    return replace(recipe, network="small", epochs=1, batch_size=20, warmup=0.0, cutout=min(recipe.cutout, SIDE // 3))


def quick_search(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "critic": "small", "epochs": 1, "batch_size": 20}


def quick_race(trainings: int = 4) -> RaceConfig:
    return RaceConfig(trainings=trainings, network="small", epochs=1, train={"batch_size": 20, "warmup": 0.0})
