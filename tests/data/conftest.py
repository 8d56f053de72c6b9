"""Small pictures and folders of them, made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Image.Image]


@pytest.fixture
def paint() -> Paint:
    """paint(seed, height, width): coloured noise, different for every seed."""

    def make(seed: int = 0, height: int = 8, width: int = 8) -> Image.Image:
        return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8))

    return make


@pytest.fixture
def grow(tmp_path: Path, paint: Paint) -> Callable[..., Path]:
    """grow({'train/cat': 3}, height, width): a folder with so many PNG files in each sub-folder."""
    seeds = iter(range(10_000))

    def make(folders: Mapping[str, int], height: int = 8, width: int = 8, name: str = "pictures") -> Path:
        for folder, count in folders.items():
            place = tmp_path / name / folder
            place.mkdir(parents=True)
            for i in range(count):
                paint(next(seeds), height, width).save(place / f"{i}.png")
        return tmp_path / name

    return make


@pytest.fixture
def array_of() -> Callable[[Image.Image], np.ndarray]:
    """A picture as (3, H, W), to compare with a row of ImageSet.images."""
    return lambda image: np.asarray(image.convert("RGB")).transpose(2, 0, 1)
