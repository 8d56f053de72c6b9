"""Which images train and which measure: a source's own test images, a held-out share, or folds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fasteraa.data import ImageSet
from fasteraa.data.decode import Look, Window
from fasteraa.data.image_folder import check_beside
from fasteraa.data.large import subset_to_hold, tell, tell_subset
from fasteraa.data.lazy_set import Images, LazyImageSet
from fasteraa.data.load import (
    as_size,
    check_groups_apart,
    check_not_empty,
    check_window,
    hold_out,
    validation_listing,
    with_classes,
    with_groups,
)
from fasteraa.data.materialize import LoadOptions, gather, probe_size, tell_enlarged
from fasteraa.data.requirements import check_for_classifiers
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Listing, Source, canonical_split, whole_and_split
from fasteraa.errors import ConfigError, SplitError
from fasteraa.runtime.arguments import checks_types
from fasteraa.runtime.device import image_device
from fasteraa.runtime.memory import machine_memory

HELD_OUT = 0.2  # of the training images, where a source has no other ones
MEMORY_SHARE = 0.5  # of this machine's memory: decoded images that need more stay in their files


@dataclass(frozen=True)
class Split:
    """Which images train a network and which measure it."""

    train: Images
    held_out: Images
    name: str  # of the held-out images: test images, 20% of the training images, fold 1
    share: float = 0.0  # of the training images that was held out to measure errors on
    seed: int = 0  # by which that share was chosen
    measured_on: str = "test"  # the source's split, or another source, where no share is held out

    def on(self, device: torch.device) -> Split:
        """With its images in the memory of a GPU, where they fit, so that trainings there need not copy them."""
        if device.type != "cuda":
            return self
        return replace(self, train=_on(self.train, device), held_out=_on(self.held_out, device))

    @property
    def fingerprints(self) -> tuple[str, str]:
        return self.train.fingerprint, self.held_out.fingerprint

    @property
    def broken(self) -> list[str]:
        """Which images are left out, and why; of sets that stay in their files it is not known before training."""
        sets = [each for each in (self.train, self.held_out) if isinstance(each, ImageSet)]
        files = dict.fromkeys(each for data in sets for each in data.broken)  # parts of one set tell the same
        return [f"{each.path} ({each.reason})" for each in files]

    @property
    def measured(self) -> tuple[str, str]:
        """The source of the held-out images, by name, and its split."""
        whole, part = whole_and_split(self.train.name)
        if self.share:
            return whole, part
        return (whole, self.measured_on) if canonical_split(self.measured_on) else whole_and_split(self.measured_on)

    @cached_property
    def overlap_count(self) -> int:
        """Held-out images that are among the training images, pixel by pixel; sets that stay in files are not read."""
        if not (isinstance(self.train, ImageSet) and isinstance(self.held_out, ImageSet)):
            return 0
        trained = set(_digests(self.train))
        return sum(each in trained for each in _digests(self.held_out))

    @property
    def warnings(self) -> list[str]:
        """What is to be known of the images before anything is trained."""
        lines = [f"left out, could not be read: {each}" for each in self.broken]
        return [*lines, twice_words(self.overlap_count, len(self.held_out))] if self.overlap_count else lines


def _on(data: Images, device: torch.device) -> Images:
    if not isinstance(data, ImageSet):
        return data
    return data.on(image_device(data.images, device))


def twice_words(count: int, of: int) -> str:
    return (
        f"{count} of the {of} held-out images {'is' if count == 1 else 'are'} among the training images, too (the same "
        "pixels), which flatters all policies: see fasteraa data check"
    )


def _digests(data: ImageSet) -> Iterator[bytes]:
    return (hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in data.images.numpy())


@checks_types()
def open_split(
    source: Any,
    *,
    folder: Path | None = None,
    data_root: str | Path | None = None,
    split: str = "train",
    size: int | None = None,
    largest: int | None = None,
    subset: int | None = None,
    large: int | None = None,
    held_out: float | None = None,
    group_by: str = "",
    validation: str = "",
    seed: int = 0,
    interpolation: str = "bilinear",
    window: Window | None = None,
) -> Split:
    """Training images, and the source's test (or val) images; a part of the training images where it has none.

    `held_out` asks for such a part in any case, so that a choice can be made without a look at the test images, and
    `group_by` keeps groups whole in it. `validation` names the images to measure on: a split, or a folder. The
    `folder` that is going to be written must not lie among the images. Levels of more than 8 bits are scaled as in
    the training images. Where `size` is left out, the side is at most `largest`. Of more than 100,000 training images
    in files, `large` are taken where `subset` is left out, and half as many to measure on.
    """
    if held_out is not None and not 0 < held_out < 1:
        raise ConfigError(f"the held-out share must be in (0, 1), got {held_out}")
    if validation and held_out is not None:
        raise ConfigError(f"errors are measured on a held-out share or on validation images, got {validation!r}, too")
    if folder is not None:
        check_beside(source, folder)
    opened = open_source(source, data_root)
    train = opened.listing(split)
    check_not_empty(train, opened.name, split)
    check_for_classifiers(train, opened.name)
    train = with_groups(source, train, group_by, opened.name)
    measured_on, share = "validation images" if validation else "test images", 0.0
    if validation:
        listed = validation_listing(source, opened, validation, train.classes, data_root)
        test: Listing | None = listed[0]
        other = canonical_split(validation) or validation
        other = other if other in opened.splits else listed[1]
        check_groups_apart(train, opened.name, *listed, group_by, refuse=True)
    else:
        test = _test_listing(opened, train.classes) if held_out is None else None
        other = "test" if "test" in opened.splits else "val"
        if test is not None:
            check_groups_apart(train, opened.name, test, f"{opened.name}/{other}", group_by)
    if test is None:
        share, all_of_them = HELD_OUT if held_out is None else held_out, len(train)
        train, test = hold_out(train, opened.name, share, seed)
        percent = 100 * len(test) / all_of_them  # every class is in it, so it may be more than was asked for
        measured_on = f"{percent:.3g}% of the training images"
    look = Look(interpolation=interpolation, window=check_window(window))
    tell_enlarged(train, opened.name, as_size(size), look)
    side = as_size(size) or _default_side(train, look, largest)
    measures: int | None = None
    if (held := subset_to_hold(train, subset, large)) != subset:
        assert held is not None
        tell_subset(opened.name, "training images", held, len(train), seed)
        subset, measures = held, _measures(test, held // 2, opened.name, seed)
    fits = fits_memory((subset or len(train)) + (measures or len(test)), side)
    data = _images(train, opened.name, side, fits, look, subset, seed)
    measured = _images(test, opened.name, side, fits, replace(look, window=data.window or look.window), measures, seed)
    return Split(data, measured, measured_on, share, seed, other)


def _measures(test: Listing, most: int, name: str, seed: int) -> int | None:
    """How many images measure, where training images are a few of many; None for all."""
    count = max(most, int((test.counts() > 0).sum()))
    if count >= len(test):
        return None
    tell(f"{name}: {count:,} of its {len(test):,} held-out images measure, drawn by class with seed {seed}")
    return count


def _default_side(train: Listing, look: Look, largest: int | None) -> tuple[int, int]:
    side = probe_size(train, look)
    return side if largest is None or max(side) <= largest else (largest, largest)


def fold_splits(data: ImageSet, count: int, seed: int) -> list[Split]:
    """Each fold holds another part of every class out; very few images allow fewer folds."""
    parts = data.folds(min(count, data.foldable), seed)
    return [Split(rest, part, f"fold {fold}") for fold, (rest, part) in enumerate(parts, 1)]


def fits_memory(count: int, size: tuple[int, int]) -> bool:
    """Whether so many decoded images need at most half of this machine's memory."""
    have = _memory()
    return have is None or count * 3 * size[0] * size[1] <= MEMORY_SHARE * have


def _memory() -> int | None:
    return machine_memory()


def _images(
    listing: Listing,
    name: str,
    size: tuple[int, int],
    fits: bool,
    look: Look,
    subset: int | None = None,
    seed: int = 0,
) -> Images:
    if fits:
        return gather(listing, name, LoadOptions(size, subset, seed, look=look))
    listed = LazyImageSet.of(listing, name, size, look=look)
    return listed if subset is None else listed.subset(subset, seed)


def _test_listing(opened: Source, classes: tuple[str, ...]) -> Listing | None:
    """The test images with the training images' class numbers; None if there are none."""
    try:
        test = opened.listing("test")
    except SplitError:
        return None
    return with_classes(test, classes, "the test images")
