"""`load`: from anything that holds labelled images to one `ImageSet`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fasteraa.data import stratify
from fasteraa.data.decode import Look, Window
from fasteraa.data.groups import group_cut, group_names, grouped
from fasteraa.data.image_set import ImageSet
from fasteraa.data.large import subset_to_hold, tell, tell_subset
from fasteraa.data.masks import IGNORED
from fasteraa.data.materialize import LoadOptions, can_hold, gather, tell_enlarged
from fasteraa.data.parallel import Progress
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Listing, Source, canonical_split
from fasteraa.data.table import TABLE_SUFFIXES
from fasteraa.errors import DataError, SplitError, choices_hint
from fasteraa.runtime.arguments import checks_types
from fasteraa.runtime.documents import quoted

_LARGEST_LEVEL = 1 << 32
_PATHS = (str, os.PathLike)


@checks_types(DataError)
def load(
    source: Any = None,
    *,
    split: str = "train",
    size: int | tuple[int, int] | None = None,
    largest: int | None = None,
    data_root: str | os.PathLike[str] | None = None,
    subset: int | None = None,
    at_most: int | None = None,
    large: int | None = None,
    classes: int | Sequence[str] | None = None,
    held_out: float = 0.0,
    group_by: str = "",
    seed: int = 0,
    broken_budget: float = 0.01,
    ignore_index: int = IGNORED,
    background: tuple[int, int, int] = (255, 255, 255),
    exif: bool = True,
    interpolation: str = "bilinear",
    window: Window | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> ImageSet:
    """Read labelled images, decode them once and hold them as one uint8 tensor of one size.

    Args:
        source: a folder of class folders (or with train/, val/, test/ in it); a .csv, .tsv, .jsonl or .parquet manifest
            (path, label, maybe split); `cifar10`, `cifar100`, `svhn`, `fashion-mnist`, `mnist`, `stl10`, `imagenet` or
            `torchvision:ClassName` under `data_root`; an .npz file; `hf:name[:split]`; `shards/{000..003}.tar` or
            `wds:...`; a map-style Dataset; a pair (images, labels); None for the embedded sample of Fashion-MNIST.
            With masks: a folder of images/ and masks/, a manifest with a column `mask`, images and masks in an .npz
            file or a pair, a Dataset of (image, mask). `.task` says what was found.
        split: `train`, `val`, `test` (which falls back on val), for svhn also `extra` and `train+extra`.
        size: side of the square, or (height, width): scaled to cover it, then cropped to the centre. By default images
            that all have one size of at most 64 keep it; else the side is 32, 64 or 128 by their median shorter side.
        largest: where `size` is left out and there are no masks, the side is at most this.
        data_root: where named sets lie; else $FASTERAA_DATA_ROOT, else ./data.
        subset: so many images, stratified by class and chosen before anything is decoded.
        at_most: as `subset`, but a smaller set is taken whole and a set of more classes gives one image of each.
        large: as `subset`, but only where that is left out and files hold more than 100,000 images, or more than fit in
            memory at `size`: none is read in vain, and `fasteraa.data.large.reporting` hears which were chosen.
        classes: names to keep, or how many to keep, chosen by `seed`. Kept classes stay in the source's order.
        held_out: leave out the images that a comparison holds out of the training images if it is asked for this share.
        group_by: a column of a manifest, or a pattern on file names: images of one group are held out together.
        broken_budget: the share of broken images that is skipped and listed in `.broken` (at least one image; none
            if 0). More than that is an error.
        ignore_index: a number in masks that does not count, beside 255.
        background: shows through transparent pixels.
        exif: turn images as their EXIF orientation says.
        interpolation: how images are scaled: bilinear, bicubic or lanczos (always with antialiasing).
        window: (low, high), the levels of images with more than 8 bits that become 0 and 255; what lies beyond is
            clipped. By default the lowest and the highest level of all images read, as `.window` shows.
        download: let torchvision fetch a named set that is not there.
        progress: called with (done, total) while images are decoded.
    """
    look = Look(_background(background), exif, interpolation, check_window(window))
    opened = open_source(source, data_root, download)
    listing = opened.listing(split)
    listing = with_groups(source, listing, group_by, opened.name)
    if held_out:
        listing, _ = hold_out(listing, opened.name, held_out)
    listing = restrict(listing, classes, seed)
    check_not_empty(listing, opened.name, split)
    if at_most is not None:
        subset = min(max(at_most, int((listing.counts() > 0).sum())), subset or len(listing), len(listing))
    elif (held := subset_to_hold(listing, subset, large, can_hold(len(listing), as_size(size)))) != subset:
        assert held is not None
        tell_subset(opened.name, "images", held, len(listing), seed)
        subset = held
    tell_enlarged(listing, opened.name, as_size(size), look)
    options = LoadOptions(as_size(size), subset, _seed(seed), _budget(broken_budget), look, ignore_index, largest)
    images = gather(listing, opened.name, options, progress)
    if window is not None and images.window is None:
        raise DataError(f"a window is for images of more than 8 bits, {opened.name} has none: leave it out")
    return images


def with_groups(source: Any, listing: Listing, group_by: str, name: str) -> Listing:
    """The listing with the group of each image, where that is asked for; an ImageSet keeps those of its own."""
    if not group_by:
        return listing
    if isinstance(source, ImageSet):
        raise DataError(
            f"group_by is a column of a manifest or a pattern on file names, and {name} holds images in memory: load "
            f"them with groups, fasteraa.data.load(..., group_by={quoted(group_by)}), and leave it out here"
        )
    return grouped(listing, group_by, name)


def check_groups_apart(
    train: Listing, name: str, other: Listing, what: str, group_by: str, *, refuse: bool = False
) -> None:
    """A group with images on both sides flatters every policy: tell, or `refuse`, where these images were asked for."""
    if not group_by:
        return
    try:
        shared = set(group_names(train, group_by, name)).intersection(group_names(other, group_by, what))
    except DataError as error:  # another source, without such a column or such names
        tell(f"whether groups lie on both sides is not known: {error}")
        return
    if not shared:
        return
    words = (
        f"groups by {quoted(group_by)} must not be split, but {len(shared)} of them, such as {quoted(min(shared))}, "
        f"{'has' if len(shared) == 1 else 'have'} images among the training images and among {what}"
    )
    held_out = "a part of the training images keeps them whole"
    if refuse:
        raise DataError(f"{words}: move the images of each to one side, or leave --validation out ({held_out})")
    tell(f"{words}, which flatters all policies: --held-out 0.2 measures elsewhere ({held_out})")


def load_validation(
    source: Any,
    validation: str,
    like: ImageSet,
    *,
    data_root: str | os.PathLike[str] | None,
    interpolation: str,
    group_by: str = "",
) -> ImageSet:
    """The images that judge, at the size and with the classes of those that train."""
    opened = open_source(source, data_root)
    listing, name = validation_listing(source, opened, validation, like.classes, data_root)
    if group_by:
        check_groups_apart(opened.listing("train"), opened.name, listing, name, group_by, refuse=True)
    look = Look(interpolation=interpolation, window=like.window)
    return gather(listing, name, LoadOptions(like.size, look=look))


def validation_listing(
    source: Any, opened: Source, validation: str, classes: tuple[str, ...], data_root: str | os.PathLike[str] | None
) -> tuple[Listing, str]:
    """A split of the source by its name, or a folder or manifest of its own; its classes are numbered as given."""
    split = canonical_split(validation) or validation
    splits = ", ".join(each for each in opened.splits if each != "train")
    choices = splits or "a folder"
    others = f"--validation: images that judge must be others than those that train, got {validation!r}"
    if split == "train":
        raise SplitError(f"{others}; choices: {choices}")
    if split in opened.splits:
        return with_classes(opened.listing(split), classes, f"the {split} images"), f"{opened.name}/{split}"
    if canonical_split(validation) is not None and not os.path.exists(validation):
        raise SplitError(f"--validation: {opened.name} has no split {validation!r} to judge by; choices: {choices}")
    try:
        other = open_source(validation, data_root)
    except DataError as error:
        a_split = f"a split of {opened.name} ({splits}) or " if splits else ""
        raise DataError(f"--validation must be {a_split}a folder of images: {error}") from error
    split = next(each for each in ("val", "test", "train", *other.splits) if each in other.splits)
    if (split == "train" and _same_path(source, validation)) or _shared_files(source, opened, validation, other, split):
        raise SplitError(f"{others}; choices: {choices}")
    return with_classes(other.listing(split), classes, "the validation images"), other.name


def _same_path(source: Any, validation: str) -> bool:
    paths = [os.path.realpath(os.path.expanduser(each)) for each in (source, validation) if isinstance(each, _PATHS)]
    return len(paths) == 2 and paths[0] == paths[1]


def _shared_files(source: Any, opened: Source, validation: str, other: Source, split: str) -> bool:
    """Whether a file is among the training images of the one and those of the other's split."""
    if not isinstance(source, _PATHS) or not all(_lists_files(each) for each in (source, validation)):
        return False
    return not _files(opened.listing("train")).isdisjoint(_files(other.listing(split)))


def _lists_files(path: str | os.PathLike[str]) -> bool:
    """A folder or a manifest: to list what holds arrays would be to read them."""
    path = Path(path).expanduser()
    return path.is_dir() or (path.is_file() and path.suffix.lower() in TABLE_SUFFIXES)


def _files(listing: Listing) -> set[str]:
    """Whatever links lead to their folders; none where images are no files."""
    if not len(listing) or not os.path.isfile(listing.where(0)):
        return set()
    real = cache(os.path.realpath)
    pairs = (os.path.split(listing.where(place)) for place in range(len(listing)))
    return {os.path.join(real(folder), name) for folder, name in pairs}


def with_classes(listing: Listing, classes: tuple[str, ...], what: str) -> Listing:
    """Numbered as the training images are."""
    unknown = sorted({listing.classes[label] for label in np.unique(listing.labels)} - set(classes))
    if unknown:
        raise DataError(f"{what} have classes that the training images lack: {', '.join(unknown[:5])}")
    if listing.classes == classes:
        return listing
    number = np.array([classes.index(name) if name in classes else -1 for name in listing.classes], dtype=np.int64)
    return replace(listing, classes=classes, labels=number[listing.labels], own=None)


def check_window(window: Sequence[int] | None) -> Window | None:
    """Two whole numbers, the lower first."""
    if window is None:
        return None
    if len(window) != 2 or not all(isinstance(level, (int, np.integer)) for level in window) or window[0] >= window[1]:
        raise DataError(f"window must be two whole numbers, the lower first, got {quoted(window)}")
    if max(abs(int(level)) for level in window) > _LARGEST_LEVEL:
        raise DataError(f"window must lie within {-_LARGEST_LEVEL}..{_LARGEST_LEVEL}, got {quoted(window)}")
    return int(window[0]), int(window[1])


def hold_out(listing: Listing, name: str, share: float, seed: int = 0) -> tuple[Listing, Listing]:
    """The rest and the part that is held out, every class in both; a smaller share is a part of a larger one."""
    if not 0 < share < 1:
        raise DataError(f"the held-out share must lie between 0 and 1, got {share}")
    check_can_hold_out(listing, name)
    if listing.groups is not None:
        rest, part = group_cut(listing.labels, len(listing.classes), listing.groups, 1 - share, seed)
    else:
        rest, part = stratify.cut(listing.labels, len(listing.classes), 1 - share, seed)
    return listing.take(rest), listing.take(part)


def check_can_hold_out(listing: Listing, name: str) -> None:
    if alone := [listing.classes[place] for place in np.flatnonzero(listing.counts() == 1)]:
        raise DataError(
            f"a part of the training images is held out, for which a class needs two images; {name} has one of "
            f"{', '.join(map(repr, alone[:5]))}: add some, remove the class, or bring test images"
        )


def restrict(listing: Listing, classes: int | Sequence[str] | None, seed: int) -> Listing:
    """Only the classes named, or so many of them by seed."""
    if classes is None:
        return listing
    if listing.pair is not None:
        raise DataError(f"classes chooses among images by their label, which images with masks lack; got {classes!r}")
    if isinstance(classes, int):
        return listing.restrict(stratify.choose_classes(listing.classes, classes, seed))
    names = [classes] if isinstance(classes, str) else list(classes)
    for name in names:
        if name not in listing.classes:
            raise DataError(f"unknown class {name!r}; {choices_hint(name, listing.classes)}")
    return listing.restrict(names)


def check_not_empty(listing: Listing, name: str, split: str) -> None:
    """A class folder without images is a slip in a training set; a test set may lack a class."""
    if not len(listing):
        raise DataError(f"{name} has no images in split {split!r}")
    empty = [listing.classes[i] for i in np.flatnonzero(listing.counts() == 0)]
    if empty and canonical_split(split) == "train" and not listing.declared:
        raise DataError(
            f"every class needs images, {name} has none for {', '.join(map(repr, empty[:5]))} in split {split!r}; "
            "add some or remove the class"
        )


def as_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise DataError(f"size must be positive (a side, in Python also height and width), got {size}")
    return pair[0], pair[1]


def _seed(seed: int) -> int:
    if seed < 0:
        raise DataError(f"seed must not be negative, got {seed}")
    return seed


def _budget(budget: float) -> float:
    if not 0 <= budget <= 1:
        raise DataError(f"broken_budget must lie in [0, 1], got {budget}")
    return budget


def _background(background: tuple[int, int, int]) -> tuple[int, int, int]:
    if len(background) != 3 or not all(0 <= level <= 255 for level in background):
        raise DataError(f"background must be three levels in 0..255, got {background}")
    red, green, blue = background
    return red, green, blue
