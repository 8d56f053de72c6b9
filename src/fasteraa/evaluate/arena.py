"""Where a comparison takes place: training images, held-out images, device and folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fasteraa.data import ImageSet
from fasteraa.data.decode import Look
from fasteraa.data.fitness import check_for_classifiers
from fasteraa.data.folder import check_beside
from fasteraa.data.gather import Wanted, gather, probe_size
from fasteraa.data.load import as_size, check_not_empty, hold_out
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Listing, Source
from fasteraa.errors import ConfigError, DataError, SplitError
from fasteraa.evaluate.listed import Images, ListedSet
from fasteraa.search.folder import named_trouble
from fasteraa.search.run import find_device

HELD_OUT = 0.2  # of the training images, where a source has no other ones
MEMORY_SHARE = 0.5  # of this machine's memory: decoded images that need more stay in their files


@dataclass(frozen=True)
class Arena:
    """Data, device and folder of a comparison."""

    data: Images
    held_out: Images
    held_out_from: str
    folder: Path
    device: str
    share: float = 0.0  # of the training images that was held out to measure errors on
    command: str | None = None  # the command line that asked for it
    seed: int = 0  # by which that share was chosen
    split: str = "test"  # that errors are measured on where no share is held out

    @property
    def device_name(self) -> str:
        place = find_device(self.device)
        return torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"

    @property
    def broken(self) -> list[str]:
        """Which images are left out, and why; of sets that stay in their files it is not known before training."""
        sets = [each for each in (self.data, self.held_out) if isinstance(each, ImageSet)]
        found = dict.fromkeys(each for data in sets for each in data.broken)  # parts of one set tell the same
        return [f"{each.path} ({each.reason})" for each in found]

    @cached_property
    def twice(self) -> int:
        """Held-out images that are among the training images, pixel by pixel; sets that stay in files are not read."""
        if not (isinstance(self.data, ImageSet) and isinstance(self.held_out, ImageSet)):
            return 0
        trained = set(_digests(self.data))
        return sum(each in trained for each in _digests(self.held_out))

    @property
    def warnings(self) -> list[str]:
        """What is to be known of the images before anything is trained."""
        lines = [f"left out, could not be read: {each}" for each in self.broken]
        return [*lines, twice_words(self.twice, len(self.held_out))] if self.twice else lines


def twice_words(count: int, of: int) -> str:
    return (
        f"{count} of the {of} held-out images {'is' if count == 1 else 'are'} among the training images, too (the same "
        "pixels), which flatters all policies: see fasteraa data check"
    )


def _digests(data: ImageSet) -> Iterator[bytes]:
    return (hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in data.images.numpy())


def open_arena(
    source: Any,
    folder: Path,
    *,
    device: str = "auto",
    data_root: str | Path | None = None,
    split: str = "train",
    size: int | None = None,
    subset: int | None = None,
    held_out: float | None = None,
    seed: int = 0,
) -> Arena:
    """Training images, and the source's test (or val) images; a part of the training images where it has none.

    `held_out` asks for such a part in any case, so that a choice can be made without a look at the test images.
    """
    find_device(device)
    if held_out is not None and not 0 < held_out < 1:
        raise ConfigError(f"the held-out share must be in (0, 1), got {held_out}")
    check_beside(source, folder)
    opened = open_source(source, data_root)
    open_folder(folder)
    train = opened.listing(split)
    check_not_empty(train, opened.name, split)
    check_for_classifiers(train, opened.name)
    test = _test_listing(opened, train.classes) if held_out is None else None
    measured_on, share = "test images", 0.0
    if test is None:
        share, all_of_them = HELD_OUT if held_out is None else held_out, len(train)
        train, test = hold_out(train, opened.name, share, seed)
        percent = 100 * len(test) / all_of_them  # every class is in it, so it may be more than was asked for
        measured_on = f"{percent:.3g}% of the training images"
    side = as_size(size) or probe_size(train, Look())
    fits = fits_memory((subset or len(train)) + len(test), side)
    data = _images(train, opened.name, side, fits, subset, seed)
    measured = _images(test, opened.name, side, fits)
    other = "test" if "test" in opened.splits else "val"
    return Arena(data, measured, measured_on, folder, device, share, seed=seed, split=other)


def open_folder(folder: Path) -> None:
    """Make it and see that it can be written, before any work is done."""
    with named_trouble(folder):
        (folder / "cells").mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder / "cells").close()


def fits_memory(count: int, size: tuple[int, int]) -> bool:
    """Whether so many decoded images need at most half of this machine's memory."""
    have = _memory()
    return have is None or count * 3 * size[0] * size[1] <= MEMORY_SHARE * have


def _memory() -> int | None:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None


def _images(
    listing: Listing, name: str, size: tuple[int, int], fits: bool, subset: int | None = None, seed: int = 0
) -> Images:
    if fits:
        return gather(listing, name, Wanted(size, subset, seed))
    listed = ListedSet.of(listing, name, size)
    return listed if subset is None else listed.subset(subset, seed)


def _test_listing(opened: Source, classes: tuple[str, ...]) -> Listing | None:
    """The test images with the training images' class numbers; None if there are none."""
    try:
        test = opened.listing("test")
    except SplitError:
        return None
    unknown = sorted({test.classes[label] for label in np.unique(test.labels)} - set(classes))
    if unknown:
        raise DataError(f"the test images have classes that the training images lack: {', '.join(unknown[:5])}")
    if test.classes == classes:
        return test
    number = np.array([classes.index(name) if name in classes else -1 for name in test.classes], dtype=np.int64)
    return replace(test, classes=classes, labels=number[test.labels])
