"""Where and with what a table is made: folder, seeds, device, and which files stand in for the named sets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fasteraa.data.named import NAMES
from fasteraa.data.resolve import open_source
from fasteraa.errors import ConfigError, DataError
from fasteraa.reproduce.schema import DATA, Line, find_recipe
from fasteraa.reproduce.smoke import QUICK_IMAGES, quick_recipe
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Engine, Say


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is the same for all searches and trainings of a table."""

    out: Path
    seeds: int
    engine: Engine  # what trains, and where
    data_root: Path | None
    sources: Mapping[str, str]  # named set -> what stands in for it
    subset: int | None
    quick: bool
    until: float  # the moment (time.time()) at which nothing more is begun
    say: Say
    command: str | None  # the command line that asked for it
    tune: bool = False  # learning rate and weight decay of every recipe, on held-out training images

    @property
    def time_left(self) -> bool:
        return time.time() < self.until

    def source(self, name: str) -> str:
        """The named set itself, or what stands in for it."""
        return self.sources.get(name, name)

    def known_source(self, name: str) -> str:
        """The same; an error where the name alone does not say where the images are."""
        if name not in self.sources and name not in NAMES:
            raise DataError(f"{name} is not found by its name alone: --source {name}=FOLDER names its folder")
        return self.source(name)

    def recipe(self, line: Line) -> TrainRecipe:
        recipe = find_recipe(line.recipe)
        return quick_recipe(recipe) if self.quick else recipe

    def size(self, side: int | None) -> int | None:
        return None if self.quick else side

    def image_count(self, name: str, images: int | None, split: str = "train") -> int | None:
        """So many images, or None where a source that stands in has no more than that."""
        if self.quick:
            return images and QUICK_IMAGES
        source = self.source(name)
        if source == name or images is None:
            return images
        return images if len(open_source(source, self.data_root).listing(split)) > images else None

    def class_count(self, name: str, classes: int | None) -> int | None:
        """The same of classes."""
        source = self.source(name)
        if source == name or classes is None:
            return classes
        return classes if len(open_source(source, self.data_root).listing("train").classes) > classes else None


def parse_sources(texts: Iterable[str]) -> dict[str, str]:
    """`cifar10=FILE.npz` stands in for that set, `FILE.npz` for all of them."""
    sources: dict[str, str] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if equals:
            sources[name] = source
        else:
            sources |= {each.source: text for each in DATA.values()}
    return sources


def check_sources(sources: Mapping[str, str]) -> None:
    choices = {each.source for each in DATA.values()}
    for name in sources:
        if name not in choices:
            raise ConfigError(f"no data set {name!r} takes part; choices: {', '.join(sorted(choices))}")
