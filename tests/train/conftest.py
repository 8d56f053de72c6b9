from dataclasses import replace

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split


def planted(count=64, side=8, seed=0, noise=40):
    """Two classes that a network tells apart at once: the left half is bright, or the right half is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = torch.randint(0, noise, (count, 3, side, side), generator=generator)
    for index, label in enumerate(labels.tolist()):
        half = slice(0, side // 2) if label == 0 else slice(side // 2, side)
        images[index, :, :, half] += 180
    return ImageSet.of(images.to(torch.uint8), labels, ("left", "right"), "planted")


def levels(count, apart, side=8):
    """Dark or bright with noise, so many levels apart: inverting half of the images makes the classes one."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    level = np.where(labels == 0, 127.5 - apart / 2, 127.5 + apart / 2)[:, None, None, None]
    images = np.clip(level + rng.normal(0, 40, (count, 3, side, side)), 0, 255).astype(np.uint8)
    return ImageSet.of(torch.from_numpy(images), torch.from_numpy(labels).long(), ("dark", "bright"), "levels")


@pytest.fixture
def data():
    return planted(64)


@pytest.fixture
def held_out():
    return planted(40, seed=1)


@pytest.fixture
def tiny():
    """A recipe that takes a moment: no crop, no flip, no cutout."""
    return TrainRecipe(
        network="small", epochs=3, batch_size=16, learning_rate=0.05, warmup=1, crop=0.0, flip=False, cutout=0
    )


@pytest.fixture
def split(data, held_out):
    return Split(data, held_out, "test images")


@pytest.fixture
def quick(tiny):
    return replace(tiny, epochs=1)


@pytest.fixture
def cache(tmp_path):
    return RunCache(tmp_path).open()
