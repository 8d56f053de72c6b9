"""What every source turns into before a pixel is decoded: named splits, each a listing of images with labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fasteraa.data.labels import Labels
from fasteraa.errors import DataError, SplitError
from fasteraa.runtime.documents import printable

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_CANONICAL = {alias: name for name, aliases in SPLIT_NAMES.items() for alias in aliases}


def canonical_split(name: str) -> str | None:
    """`train`, `val` or `test` for any spelling of them, None for another word."""
    return _CANONICAL.get(name.strip().lower())


def whole_and_split(name: str) -> tuple[str, str]:
    """Of the name of a source: `photos/test` is the split `test` of `photos`, any other is for its training images."""
    whole, _, last = name.rpartition("/")
    split = canonical_split(last)
    return (whole, split) if whole and split else (name, "train")


@dataclass(frozen=True)
class Broken:
    """An image that was skipped, and why; fit to be printed."""

    path: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", printable(self.path))
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True, eq=False)
class Listing:
    """One split: labels are known, images are read one at a time, by index, when somebody asks.

    Columns instead of an object per image, because ImageNet has 1.28 million of them. Names of classes are fit to be
    printed, whatever bytes a folder's name has.
    """

    classes: tuple[str, ...]
    labels: Labels
    read: Callable[[int], Image.Image]  # may return an image that is not loaded yet, and may raise anything
    where: Callable[[int], str]  # the path, or whatever names the image in a report
    ignored: int = 0  # files seen that are no images
    threads: bool = True  # read() may be called from several threads
    decodes: bool = True  # read() takes a file apart, which costs milliseconds; False of arrays
    declared: bool = False  # classes come from metadata, so a class without images is no mistake of the user's
    # with masks, the image and its mask at once: a data set may cut both at random
    pair: Callable[[int], tuple[Image.Image, Any]] | None = None
    mask_names: tuple[str, ...] = ()  # of the classes in the masks, where they are known
    damage: tuple[Broken, ...] = ()  # what could not even be listed
    # uint8 (N, H, W, 3), all images, where nobody else needs them: their memory may become the set's own
    own: NDArray[np.uint8] | None = None
    groups: Labels | None = None  # a number for each image: those of one group are not split (data.groups)
    column: Callable[[str], list[str] | None] | None = None  # of a manifest, by name; None if it has none of that name
    # as read(), but uint8 (H, W, 3) where the source has that: a Pillow image of few pixels costs more than its policy
    pixels: Callable[[int], Image.Image | NDArray[np.uint8]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(map(printable, self.classes)))
        object.__setattr__(self, "mask_names", tuple(map(printable, self.mask_names)))

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> Labels:
        """Images per class."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def restrict(self, names: Sequence[str]) -> Listing:
        """Only these classes, renumbered, in the order this listing has them."""
        classes = tuple(name for name in self.classes if name in set(names))
        new_label = np.array([classes.index(name) if name in classes else -1 for name in self.classes], dtype=np.int64)
        labels = new_label[self.labels]
        return replace(self, classes=classes, labels=labels).take(np.flatnonzero(labels >= 0))

    def take(self, index: Labels) -> Listing:
        """Only these images."""
        pair, pixels = self.pair, self.pixels
        return replace(
            self,
            labels=self.labels[index],
            read=lambda i: self.read(int(index[i])),
            where=lambda i: self.where(int(index[i])),
            pixels=None if pixels is None else lambda i: pixels(int(index[i])),
            pair=None if pair is None else lambda i: pair(int(index[i])),
            own=None,
            groups=None if self.groups is None else self.groups[index],
            column=None,
        )


@dataclass(frozen=True, eq=False)
class Source:
    """A data set under a name; a split is only listed when it is asked for."""

    name: str
    splits: Mapping[str, Callable[[], Listing]]
    aside: tuple[str, ...] = ()  # folders that are no part of it

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))

    def listing(self, split: str) -> Listing:
        """The split of that name; `test` falls back on `val`, which is all that many folders have."""
        asked = canonical_split(split) or split
        for name in (asked, "val") if asked == "test" else (asked,):
            if name in self.splits:
                with readable(self.name):
                    return self.splits[name]()
        hint = (
            "Put the images to learn from into train/, or all class folders side by side without split folders"
            if asked == "train"
            else "For held-out images add a test/ or val/ folder beside train/, or a split column to a manifest (in "
            "Python, ImageSet.split(fraction, seed) divides one set)"
        )
        raise SplitError(f"{self.name} has no split {split!r}; choices: {', '.join(self.splits)}. {hint}")


@contextmanager
def readable(what: object) -> Iterator[None]:
    """A folder or table that the system refuses to read is the user's to fix, not a traceback."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) != str(what) else ""
        raise DataError(f"{what} cannot be read: {error.strerror or error}{where}") from error


def concatenate(first: Listing, second: Listing) -> Listing:
    """Both listings in a row (SVHN's train and extra)."""
    n = len(first)
    return Listing(
        first.classes,
        np.concatenate([first.labels, second.labels]),
        lambda i: first.read(i) if i < n else second.read(i - n),
        lambda i: first.where(i) if i < n else second.where(i - n),
        threads=first.threads and second.threads,
        declared=first.declared,
        damage=first.damage + second.damage,
    )
