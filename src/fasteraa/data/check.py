"""`check`: look at every image of a source before a run is spent on it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from fasteraa.data.decode import (
    CPU_SIDE,
    Look,
    Window,
    common_window,
    is_deep,
    level_range,
    levels,
    shape_of,
    upright,
    why,
)
from fasteraa.data.masks import IGNORED, matching_mask
from fasteraa.data.materialize import probe_size
from fasteraa.data.parallel import Progress, in_order
from fasteraa.data.requirements import refusals
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Broken, Listing, Source
from fasteraa.errors import DataError
from fasteraa.runtime.documents import printable

_RARE = 0.001  # of the pixels of an image: as many may be darker, and as many brighter, than what it shows
_SHOWN = 10  # lines of each list in the text


@dataclass(frozen=True)
class SplitCount:
    """Images listed in one split, broken ones included."""

    split: str
    per_class: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Images of all classes."""
        return sum(count for _, count in self.per_class)

    @property
    def empty(self) -> tuple[str, ...]:
        """Classes without an image."""
        return tuple(name for name, count in self.per_class if not count)


@dataclass(frozen=True)
class Seen:
    """One image that could be decoded."""

    path: str
    split: str
    label: str
    size: tuple[int, int] = field(compare=False)  # (height, width), upright
    mode: str = field(compare=False)  # as stored
    digest: bytes = field(compare=False, repr=False)  # of the upright RGB pixels, or of levels beyond 8 bits
    mask: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)  # (class number, pixels)
    levels: tuple[Window, Window] | None = field(default=None, compare=False)  # of more than 8 bits: all, and most


@dataclass(frozen=True)
class Duplicate:
    """Images with the same pixels."""

    images: tuple[Seen, ...]

    @property
    def across_classes(self) -> bool:
        """Do they have different labels?"""
        return len({image.label for image in self.images}) > 1

    @property
    def across_splits(self) -> bool:
        """Do they lie in different splits?"""
        return len({image.split for image in self.images}) > 1

    def line(self) -> str:
        """Their paths, and what is wrong with them."""
        what = [word for word, so in (("CLASSES", self.across_classes), ("SPLITS", self.across_splits)) if so]
        return (f"across {' and '.join(what)}: " if what else "") + " = ".join(image.path for image in self.images)


@dataclass(frozen=True)
class InMasks:
    """One class in the masks of all splits."""

    number: int
    name: str
    share: float  # of all pixels
    images: int  # that hold it


@dataclass(frozen=True)
class Deep:
    """Images of more than 8 bits, and what a search makes of them."""

    images: int
    levels: Window  # the lowest and the highest of all
    most: Window  # between these lie nearly all pixels of every image
    window: Window  # what becomes 0 and 255, unless another one is asked for

    def lines(self) -> list[str]:
        """What is said of them."""
        low, high = self.window
        line = (
            f"more than 8 bits: {self.images} images, levels {self.levels[0]} to {self.levels[1]}; a search turns "
            f"{low}..{high} into 0..255 (--window LOW,HIGH for another range)"
        )
        if 4 * (self.most[1] - self.most[0]) >= high - low or self.most[0] == self.most[1]:
            return [line]
        return [line, f"  but nearly all pixels lie in {self.most[0]}..{self.most[1]}: try --window {_pair(self.most)}"]


def _pair(window: Window) -> str:
    return f"{window[0]},{window[1]}"


@dataclass(frozen=True)
class CheckReport:
    """What `fasteraa data check` prints."""

    name: str
    splits: tuple[SplitCount, ...]
    sizes: tuple[tuple[tuple[int, int], int], ...]  # ((height, width), count), most common first
    modes: tuple[tuple[str, int], ...]  # most common first
    duplicates: tuple[Duplicate, ...]  # those across classes or splits first
    broken: tuple[Broken, ...]
    ignored: int  # files that are no images
    default_size: tuple[int, int]  # what load() would resize to
    notes: tuple[str, ...]  # splits that could not be listed
    in_masks: tuple[InMasks, ...] = ()  # what masks hold, 255 too if it occurs
    segmentation: bool = False
    aside: tuple[str, ...] = ()  # folders beside the splits, which nothing is read from
    refusals: tuple[str, ...] = ()  # what search and compare, with their defaults, would say
    deep: Deep | None = None  # images of more than 8 bits, where there are some

    @property
    def task(self) -> str:
        """classification or segmentation, by what the source holds."""
        return "segmentation" if self.segmentation else "classification"

    @property
    def total(self) -> int:
        """Images of all splits."""
        return sum(split.total for split in self.splits)

    @property
    def ok(self) -> bool:
        """Nothing broken, no class empty, no image twice under two labels or in two splits, nothing refused."""
        worrying = any(group.across_classes or group.across_splits for group in self.duplicates)
        return not (self.broken or self.notes or self.refusals or worrying or any(split.empty for split in self.splits))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "name": self.name,
            "task": self.task,
            "ok": self.ok,
            "images": self.total,
            "splits": {split.split: dict(split.per_class) for split in self.splits},
            "sizes": [{"height": h, "width": w, "images": count} for (h, w), count in self.sizes],
            "modes": dict(self.modes),
            "in_masks": [asdict(each) for each in self.in_masks],
            "deep": None if self.deep is None else asdict(self.deep),
            "default_size": list(self.default_size),
            "duplicates": [[image.path for image in group.images] for group in self.duplicates],
            "broken": [{"path": item.path, "reason": item.reason} for item in self.broken],
            "ignored": self.ignored,
            "aside": list(self.aside),
            "notes": list(self.notes),
            "refusals": list(self.refusals),
        }

    def lines(self) -> list[str]:
        """The report as text, fit for a terminal whatever the names are."""
        return [printable(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        classes = sum(each.number != IGNORED for each in self.in_masks)
        if not self.segmentation:
            classes = len(self.splits[0].per_class)
        return [
            f"{self.name}: {self.total} images, {classes} classes, {len(self.broken)} broken",
            *(_mask_lines(self.in_masks) if self.segmentation else ()),
            *(line for split in self.splits for line in _split_lines(split, self.segmentation)),
            *_size_lines(self.sizes, self.default_size, None if self.segmentation else CPU_SIDE),
            "modes: " + (", ".join(f"{mode} {count}" for mode, count in self.modes) or "none"),
            *(self.deep.lines() if self.deep else ()),
            *_list_lines("duplicates (same pixels)", [group.line() for group in self.duplicates]),
            *_list_lines("broken", [f"{item.path}: {item.reason}" for item in self.broken]),
            f"ignored: {self.ignored} files that are no images or lie beside the class folders",
            *([f"left aside, beside the splits: {_few(self.aside)}"] if self.aside else ()),
            *(f"note: {note}" for note in self.notes),
            *self.refusals,
        ]


def check(
    source: Any = None,
    *,
    data_root: str | os.PathLike[str] | None = None,
    background: tuple[int, int, int] = (255, 255, 255),
    exif: bool = True,
    download: bool = False,
    progress: Progress | None = None,
) -> CheckReport:
    """Decode every image of every split at full size: counts, sizes, modes, duplicates, broken files."""
    look = Look(background, exif)
    opened = open_source(source, data_root, download)
    listings, notes = _listings(opened)
    looked = {split: _look_at(listing, split, look, progress) for split, listing in listings.items()}
    seen = [item for items in looked.values() for item in items if isinstance(item, Seen)]
    names = next((listing.mask_names for listing in listings.values()), ())
    damage = [item for listing in listings.values() for item in listing.damage]
    broken = (*damage, *(item for items in looked.values() for item in items if isinstance(item, Broken)))
    return CheckReport(
        name=opened.name,
        splits=tuple(_count(listing, split) for split, listing in listings.items()),
        sizes=tuple(Counter(item.size for item in seen).most_common()),
        modes=tuple(Counter(item.mode for item in seen).most_common()),
        duplicates=_duplicates(seen),
        broken=broken,
        ignored=sum(listing.ignored for listing in listings.values()),
        default_size=probe_size(next(iter(listings.values())), look),
        notes=tuple(notes),
        in_masks=_in_masks(seen, names),
        segmentation=any(listing.pair is not None for listing in listings.values()),
        aside=opened.aside,
        refusals=tuple(refusals(opened, broken)),
        deep=_deep(seen, "train" if "train" in listings else next(iter(listings))),
    )


def _listings(opened: Source) -> tuple[dict[str, Listing], list[str]]:
    """Every split that can be listed, a note on each that cannot; a joined one ('train+extra') is left out."""
    listings: dict[str, Listing] = {}
    notes: list[str] = []
    errors: list[DataError] = []
    for split in (name for name in opened.splits if "+" not in name):
        try:
            listings[split] = opened.listing(split)
        except DataError as error:
            notes.append(f"split {split}: {error}")
            errors.append(error)
    if not listings:
        raise errors[0]  # the others say much the same
    return listings, notes


def _look_at(listing: Listing, split: str, look: Look, progress: Progress | None) -> list[Seen | Broken]:
    def see(i: int) -> Seen | Broken:
        path = listing.where(i)
        try:
            image, mask = (listing.read(i), None) if listing.pair is None else listing.pair(i)
            mode = image.mode
            numbers = () if mask is None else _numbers(matching_mask(shape_of(image, look), mask, look))
            level_ranges, raw = _levels(image) if is_deep(image) else (None, None)
            rgb = upright(image, look)
        except (DataError, MemoryError):
            raise
        except Exception as error:  # Pillow's parsers raise almost anything on damaged bytes
            return Broken(path, why(error))
        size = (rgb.height, rgb.width)
        content = rgb.tobytes() if raw is None else raw
        digest = hashlib.blake2b(repr(size).encode() + content, digest_size=16).digest()
        return Seen(path, split, listing.classes[listing.labels[i]], size, mode, digest, numbers, level_ranges)

    return in_order(see, len(listing), listing.threads, progress)


def _levels(image: Any) -> tuple[tuple[Window, Window], bytes]:
    """Its range and that of nearly all of its pixels; and all levels, since 8 bits may not tell two images apart."""
    whole, values = level_range(image), levels(image)
    low, high = np.quantile(values, (_RARE, 1 - _RARE), method="nearest").tolist() if values.size else whole
    return (whole, (int(low), int(high))), b"deep" + values.tobytes()


def _deep(seen: Sequence[Seen], split: str) -> Deep | None:
    """By the images of the split that a search is made on, where it has any such."""
    deep = [item for item in seen if item.levels is not None]
    deep = [item for item in deep if item.split == split] or deep
    ranges = [item.levels for item in deep if item.levels is not None]
    if not ranges:
        return None
    (lows, highs), (darkest, brightest) = (zip(*each, strict=True) for each in zip(*ranges, strict=True))
    window = common_window(whole for whole, _ in ranges)
    return Deep(len(ranges), (min(lows), max(highs)), (min(darkest), max(brightest)), window)


def _numbers(mask: Any) -> tuple[tuple[int, int], ...]:
    """(class number, pixels), for those that occur."""
    counts = np.bincount(mask.ravel(), minlength=256)
    return tuple((int(number), int(counts[number])) for number in np.flatnonzero(counts))


def _in_masks(seen: Iterable[Seen], names: tuple[str, ...]) -> tuple[InMasks, ...]:
    pixels: Counter[int] = Counter()
    images: Counter[int] = Counter()
    for number, count in (pair for item in seen for pair in item.mask):
        pixels[number] += count
        images[number] += 1
    total = sum(pixels.values())

    def name(number: int) -> str:
        return "not counted" if number == IGNORED else names[number] if number < len(names) else str(number)

    return tuple(InMasks(each, name(each), pixels[each] / total, images[each]) for each in sorted(pixels))


def _mask_lines(classes: tuple[InMasks, ...]) -> list[str]:
    lines = [
        f"  {each.number}{'' if each.name == str(each.number) else f' {each.name}'}: {each.share:.1%} of the pixels, "
        f"in {each.images} images"
        for each in classes
    ]
    counted = [each for each in classes if each.number != IGNORED]
    lone = ["  ONE CLASS ALONE: a search needs two; write the other one as 1, since 255 does not count"]
    return ["task: semantic segmentation, by masks that hold", *lines, *(lone if len(counted) == 1 else [])]


def _count(listing: Listing, split: str) -> SplitCount:
    return SplitCount(split, tuple(zip(listing.classes, listing.counts().tolist(), strict=True)))


def _duplicates(seen: Iterable[Seen]) -> tuple[Duplicate, ...]:
    groups: dict[bytes, list[Seen]] = {}
    for item in seen:
        groups.setdefault(item.digest, []).append(item)
    duplicates = [Duplicate(tuple(group)) for group in groups.values() if len(group) > 1]
    return tuple(sorted(duplicates, key=lambda group: (not group.across_classes, not group.across_splits)))


def _split_lines(split: SplitCount, segmentation: bool = False) -> list[str]:
    if segmentation:
        return [f"{split.split}: {split.total} images with masks"]
    counts = [count for _, count in split.per_class]
    same = len(set(counts)) == 1 and counts[0] > 0
    even = f"{counts[0]} in each class" if same else f"{min(counts)} to {max(counts)} per class"
    head = f"{split.split}: {split.total} images, {even}"
    if same:
        return [head]
    rows = [f"{name} {count}" for name, count in split.per_class]
    empty = [f"  WITHOUT IMAGES: {', '.join(split.empty[:_SHOWN])}"] if split.empty else []
    return [f"{head} ({_few(rows)})", *empty]


def _few(words: Sequence[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (f", and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")


def _size_lines(
    sizes: tuple[tuple[tuple[int, int], int], ...], default: tuple[int, int], on_cpu: int | None
) -> list[str]:
    if not sizes:
        return ["sizes: no readable image"]
    common = ", ".join(f"{width}x{height} ({count})" for (height, width), count in sizes[:5])
    sides = sorted(min(size) for size, count in sizes for _ in range(count))
    spread = f"shorter side {sides[0]} to {sides[-1]}, median {median(sides):g}"
    smaller = f" (on a CPU at {on_cpu}x{on_cpu})" if on_cpu is not None and max(default) > on_cpu else ""
    return [
        f"sizes: {common}{', ...' if len(sizes) > 5 else ''}; {spread}; a search takes them at "
        f"{default[1]}x{default[0]} if no size is given{smaller}"
    ]


def _list_lines(title: str, items: list[str]) -> list[str]:
    more = [f"  and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return [f"{title}: {len(items) or 'none'}", *(f"  {item}" for item in items[:_SHOWN]), *more]
