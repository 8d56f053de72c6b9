"""A folder of class folders, or of `train/`, `val/` and `test/` with class folders in each.

Classes are in natural order ('class2' before 'class10'), over all splits together, so that a class that one split
lacks does not shift the others' labels. Images are in the order of their paths. Sub-folders of a class folder belong
to the class. Hidden entries do not exist; files that are no images are counted.

A folder of `images/` and `masks/`, or with them in each split, is for semantic segmentation: an image's mask has its
path with another ending. `classes.txt` beside them may name the classes, a line for each number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fasteraa.data.decode import IMAGE_SUFFIXES, Unreadable, open_file
from fasteraa.data.labels import natural_sort
from fasteraa.data.large import counted
from fasteraa.data.masks import Pair, mask_listing
from fasteraa.data.source import Listing, Source, canonical_split
from fasteraa.errors import DataError
from fasteraa.runtime.documents import read_text

_NOT_CLASSES = frozenset(("images", "labels", "masks", "annotations"))


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def open_folder(root: Path, name: str | None = None) -> Source:
    """The splits that are folders under `root`, or all of it as `train`."""
    split_folders = _split_folders(root)
    splits = split_folders or {"train": root}
    aside = natural_sort(set(folders(root)) - {path.name for path in split_folders.values()}) if split_folders else ()
    classes = natural_sort(folder for path in splits.values() for folder in folders(path))
    if not classes:
        raise _no_class_folders(root)
    if set(classes) == {"images", "masks"}:
        names = written_names(root)
        masked = {split: partial(_list_masks, path, names) for split, path in splits.items()}
        return Source(name or folder_name(root), masked, aside)
    if _NOT_CLASSES.issuperset(word.lower() for word in classes):
        raise DataError(
            f"{root} is laid out for detection or segmentation (folders {', '.join(classes)}), not by class; "
            f"expected {root}/CLASS/IMAGE or {root}/train/CLASS/IMAGE, or a CSV manifest with path and label, or for "
            "segmentation the folders images and masks"
        )
    listings = {split: partial(list_split, path, classes) for split, path in splits.items()}
    return Source(name or folder_name(root), listings, aside)


def folder_name(root: Path) -> str:
    """One that is a split of another is named with it: every set has its `train`."""
    whole = root.resolve()
    return f"{whole.parent.name}/{whole.name}" if canonical_split(whole.name) else whole.name


def check_beside(source: Any, out: Path) -> None:
    """Refuse to write below class folders: what is written there would be a class the next time."""
    if not source or not isinstance(source, str | os.PathLike):
        return
    root, below = Path(source).expanduser().resolve(), out.resolve()
    if root.is_dir() and root in (below, *below.parents) and not _split_folders(root):
        raise DataError(
            f"{str(out)!r} lies in the folder of the images, where it would be taken for a class: choose another "
            f"(--out {os.path.join(os.path.relpath(root.parent), out.name)})"
        )


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def folders(path: Path) -> list[str]:
    """Names of the visible ones."""
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if _is_folder(entry) and not _hidden(entry.name)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads to itself is none, and no error either."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _split_folders(root: Path) -> dict[str, Path]:
    """Split name -> folder. A lone folder called 'train' among others may be a class: then it has no folders inside."""
    of_split = {canonical: root / name for name in sorted(folders(root)) if (canonical := canonical_split(name))}
    if any(folders(path) for path in of_split.values()) or len(of_split) == len(folders(root)):
        return {split: of_split[split] for split in ("train", "val", "test") if split in of_split}
    return {}


def _no_class_folders(root: Path) -> DataError:
    files, ignored = walk(str(root))
    layout = f"expected {root}/CLASS/IMAGE, or {root}/train/CLASS/IMAGE and {root}/val/CLASS/IMAGE, or a CSV manifest"
    if files:
        return DataError(f"{root} holds {len(files)} images but no class folders, so they have no labels; {layout}")
    return DataError(f"{root} holds no images ({ignored} other files); {layout}")


def list_split(path: Path, classes: tuple[str, ...]) -> Listing:
    """The images of class folders."""
    with os.scandir(path) as entries:
        ignored = sum(
            not _is_folder(entry) and not _hidden(entry.name) for entry in entries
        )  # beside the class folders
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images, others = walk(os.path.join(path, name), len(files))
        files += images
        labels += [label] * len(images)
        ignored += others
    if not files:
        raise _no_class_folders(path)
    return file_listing(classes, np.array(labels, dtype=np.int64), files, ignored)


def _list_masks(path: Path, names: tuple[str, ...]) -> Listing:
    """The images in order of their paths; a mask without an image is one of the files that are no images."""
    images, others = walk(os.path.join(path, "images"))
    masks, more = walk(os.path.join(path, "masks"))
    if not images:
        raise DataError(f"{path} holds no images in images/ ({others} other files)")
    of_stem: dict[str, str] = {}
    for mask in masks:
        stem = _stem(mask, os.path.join(path, "masks"))
        if stem in of_stem:
            raise DataError(f"an image must have one mask, {stem!r} in {path} has {of_stem[stem]} and {mask}")
        of_stem[stem] = mask
    mask_of_image = [of_stem.get(_stem(image, os.path.join(path, "images"))) for image in images]
    unused = len(set(masks) - set(mask_of_image))
    return mask_file_listing(images, mask_of_image, names, others + more + unused)


def _stem(file: str, folder: str) -> str:
    return os.path.splitext(os.path.relpath(file, folder))[0]


def written_names(root: Path) -> tuple[str, ...]:
    """Of the classes by their numbers, a line each in `classes.txt`; none where there is no such file."""
    file = root / "classes.txt"
    if not os.path.lexists(file):
        return ()
    return tuple(line.strip() for line in read_text(file, DataError).splitlines() if line.strip())


def mask_file_listing(
    images: list[str], masks: Sequence[str | None], names: tuple[str, ...] = (), ignored: int = 0
) -> Listing:
    """Images and masks that lie in files. An image without a mask counts as broken."""

    def pair(i: int) -> Pair:
        mask = masks[i]
        if mask is None:
            raise Unreadable("it has no mask of its name in masks/")
        return open_file(images[i]), open_file(mask)

    listing = mask_listing(len(images), pair, lambda i: images[i], names, ignored)
    return replace(listing, read=lambda i: open_file(images[i]))  # its size needs no mask


def file_listing(classes: tuple[str, ...], labels: np.ndarray, files: list[str], ignored: int = 0) -> Listing:
    """Images that lie in files."""
    return Listing(classes, labels, lambda i: open_file(files[i]), lambda i: files[i], ignored)


def walk(folder: str, before: int = 0) -> tuple[list[str], int]:
    """All images under a folder, sorted by path, and the number of other files. A folder that is not there is empty."""
    above = frozenset(map(str, Path(os.path.realpath(folder)).parents))
    names = list(counted(_visible_files(folder, above), "files", before)) if os.path.isdir(folder) else []
    images = sorted(name for name in names if is_image(name))
    return images, len(names) - len(images)


def _visible_files(folder: str, above: frozenset[str]) -> Iterator[str]:
    """Follows links, but not into a folder that it is already in: the class folder's own parents count."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _hidden(entry.name):
                continue
            if _is_folder(entry):  # by what the folder says of it: no file is asked for
                yield from _visible_files(entry.path, above | {real})
            elif entry.is_symlink() or entry.is_file():  # a link to nothing is listed as broken; a pipe is no file
                yield entry.path
