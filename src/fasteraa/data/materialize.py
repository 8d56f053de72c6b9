"""Decode a listing into one tensor: choose first, then decode, replace what is broken, and keep to the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from fasteraa.data import stratify
from fasteraa.data.decode import (
    Look,
    Window,
    common_window,
    default_size,
    is_deep,
    level_range,
    pixels,
    shape_of,
    why,
)
from fasteraa.data.image_set import ImageSet
from fasteraa.data.labels import Labels
from fasteraa.data.large import is_heard, tell
from fasteraa.data.masks import IGNORED, class_names, pair_pixels
from fasteraa.data.parallel import Progress, in_order
from fasteraa.data.source import Broken, Listing
from fasteraa.errors import DataError
from fasteraa.runtime.memory import fits, machine_memory

_PROBES = 256  # headers read to find the default size
_NEEDED = 1.3  # times the images: what a search takes at most, beside what does not depend on their number
_MOVED = 1024  # images at a time
_SHOWN = 5  # broken files in an error message


@dataclass(frozen=True)
class LoadOptions:
    """What to make of a listing."""

    size: tuple[int, int] | None = None
    subset: int | None = None
    seed: int = 0
    broken_budget: float = 0.01
    look: Look = field(default_factory=Look)
    ignore_index: int = IGNORED  # a class number in masks that does not count, beside 255
    largest: int | None = None  # side where no size is asked for; masks keep theirs: small things vanish from them


def allowed_broken(count: int, budget: float) -> int:
    """Broken files tolerated among `count`: the share, but at least one; none if the budget is 0."""
    return max(1, floor(budget * count + 1e-9)) if budget > 0 else 0


def gather(listing: Listing, name: str, options: LoadOptions, progress: Progress | None = None) -> ImageSet:
    """The images in source order. A broken image of a subset is replaced by the next candidate of its class."""
    check_budget(listing.damage, allowed_broken(len(listing), options.broken_budget), len(listing), name)
    size = options.size or _default_size(listing, options)
    if listing.own is not None and options.subset is None and listing.own.shape[1:3] == size:
        images, labels = torch.from_numpy(_planes(listing.own)), torch.from_numpy(listing.labels)
        if progress is not None:
            progress(len(listing), len(listing))
        return replace(ImageSet.of(images, labels, listing.classes, name, listing.damage), groups=listing.groups)
    work = _Gathering(listing, name, options, size)
    work.run(progress)
    return work.assembled()


def _planes(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, H, W, 3) as (N, 3, H, W) in the same memory."""
    planes = images.transpose(0, 3, 1, 2)
    if planes.flags.c_contiguous:
        return planes
    moved = images.reshape(planes.shape)
    for first in range(0, len(images), _MOVED):
        moved[first : first + _MOVED] = planes[first : first + _MOVED].copy()
    return moved


def _plan(listing: Listing, options: LoadOptions) -> tuple[Labels, list[Iterator[int]]]:
    """Indices to decode, and per class the ones to fall back on. No pixel is needed for either."""
    if options.subset is None:
        return np.arange(len(listing)), [iter(()) for _ in listing.classes]
    picks = stratify.draw(listing.labels, len(listing.classes), options.subset, options.seed)
    taken = set(picks.tolist())
    orders = stratify.candidates(listing.labels, len(listing.classes), options.seed)
    return picks, [(i for i in order.tolist() if i not in taken) for order in orders]


def _default_size(listing: Listing, options: LoadOptions) -> tuple[int, int]:
    size = probe_size(listing, options.look)
    if options.largest is None or listing.pair is not None or max(size) <= options.largest:
        return size
    return options.largest, options.largest


def probe_size(listing: Listing, look: Look) -> tuple[int, int]:
    """The default size by up to 256 headers, evenly spread over the listing."""
    shapes = _shapes(listing, look)
    return default_size(shapes) if shapes else (64, 64)


def tell_enlarged(listing: Listing, name: str, size: tuple[int, int] | None, look: Look) -> None:
    """Where somebody listens: images that are scaled up to the size that was asked for."""
    if size is None or not is_heard() or not (shapes := _shapes(listing, look)):
        return
    height, width = (round(median(shape[side] for shape in shapes)) for side in range(2))
    if height < size[0] or width < size[1]:
        tell(
            f"{name} has images of {height}x{width} (the median): they are enlarged to {size[0]}x{size[1]}, which "
            "takes time and adds no detail (--size for a smaller side)"
        )


def _shapes(listing: Listing, look: Look) -> list[tuple[int, int]]:
    """Of up to 256 images that can be read."""
    places = _spread(len(listing))

    def shape(place: int) -> tuple[int, int] | None:
        try:
            return shape_of(listing.read(places[place]), look)
        except DataError:
            raise
        except Exception:  # broken: it is reported when it is decoded
            return None

    return [size for size in in_order(shape, len(places), listing.threads) if size]


def common_range(listing: Listing) -> Window | None:
    """By up to 256 images, evenly spread over the listing; None where none of them has more than 8 bits."""
    places = _spread(len(listing))

    def of(place: int) -> Window | None:
        try:
            image = listing.read(places[place])
            return level_range(image) if is_deep(image) else None
        except (DataError, MemoryError):
            raise
        except Exception:  # broken: it is reported when it is decoded
            return None

    ranges = [levels for levels in in_order(of, len(places), listing.threads) if levels]
    return common_window(ranges) if ranges else None


def _spread(count: int) -> list[int]:
    return [int(place) for place in np.unique(np.linspace(0, count - 1, min(_PROBES, count)).astype(int))]


def can_hold(count: int, size: tuple[int, int] | None) -> bool:
    """Whether so many images of a size that was asked for can be held; the default sizes are small."""
    return size is None or fits(_NEEDED * count * 3 * size[0] * size[1])


def _allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    need = float(np.prod(shape, dtype=np.float64))
    if not fits(_NEEDED * need):
        have = (machine_memory() or 0) / 1e9
        raise DataError(
            f"{shape[0]} images of {shape[-2]}x{shape[-1]} need {need / 1e9:.1f} GB, this machine has {have:.1f} GB (a "
            f"search takes {_NEEDED:g} times the images and more); take a subset or a smaller size (--subset, --size)"
        )
    return np.empty(shape, dtype=np.uint8)


class _Gathering:
    """Images being decoded, each into its slot.

    Images of more than 8 bits are read twice unless the window is given: for the range of all, and by it.
    """

    def __init__(self, listing: Listing, name: str, options: LoadOptions, size: tuple[int, int]):
        self.listing, self.name, self.options, self.look = listing, name, options, options.look
        self.picks, self.reserves = _plan(listing, options)
        self.images = _allocate((len(self.picks), 3, *size))
        self.masks = _allocate((len(self.picks), *size)) if listing.pair is not None else None
        self.allowed = allowed_broken(len(self.picks), options.broken_budget)
        self.broken: list[Broken] = []
        self.deep: set[int] = set()  # slots of images with more than 8 bits
        self.ranges: dict[int, Window] = {}  # of slots that wait for the range of all

    def run(self, progress: Progress | None) -> None:
        slots = list(range(len(self.picks)))
        while slots or self.ranges:
            if not slots:
                self.look = replace(self.look, window=common_window(self.ranges.values()))
                slots, self.ranges = sorted(self.ranges), {}
            failed = self._decode(slots, progress)
            self.broken += [Broken(self.listing.where(int(self.picks[slot])), reason) for slot, reason in failed]
            check_budget(self.broken, self.allowed, len(self.picks), self.name)
            slots = _replace(self.picks, [slot for slot, _ in failed], self.listing.labels, self.reserves)

    def _decode(self, slots: list[int], progress: Progress | None) -> list[tuple[int, str]]:
        """Fills the slots; returns those that failed, with the reason."""

        def fill(place: int) -> str | None:
            try:
                self._fill(slots[place])
            except (DataError, MemoryError):
                raise
            except Exception as error:  # Pillow's parsers raise almost anything on damaged bytes
                return why(error)
            return None

        reasons = in_order(fill, len(slots), self.listing.threads, progress)
        return [(slot, reason) for slot, reason in zip(slots, reasons, strict=True) if reason is not None]

    def _fill(self, slot: int) -> None:
        index, size = int(self.picks[slot]), self.images.shape[2:]
        self.deep.discard(slot)  # a replacement may be another kind of image
        image, mask = (self.listing.read(index), None) if self.listing.pair is None else self.listing.pair(index)
        if is_deep(image):
            self.deep.add(slot)
            if self.look.window is None:
                self.ranges[slot] = level_range(image)
                return
        if self.masks is None:
            self.images[slot] = pixels(image, size, self.look)
        else:
            ignored = self.options.ignore_index
            self.images[slot], self.masks[slot] = pair_pixels((image, mask), size, self.look, ignored)

    def assembled(self) -> ImageSet:
        order = np.argsort(self.picks, kind="stable")
        order = order[self.picks[order] >= 0]
        labels, listing = self.listing.labels[self.picks[order]], self.listing
        check_classes_left(listing, labels, self.name)
        images = torch.from_numpy(_in_order(self.images, order))
        broken = (*listing.damage, *self.broken)
        window = self.look.window if self.deep.intersection(order.tolist()) else None
        if self.masks is not None:
            masks = torch.from_numpy(_in_order(self.masks, order))
            names = class_names(masks, listing.mask_names, self.name)
            return ImageSet.of_masks(images, masks, names, self.name, broken, window)
        gathered = ImageSet.of(images, torch.from_numpy(labels), listing.classes, self.name, broken, window)
        return gathered if listing.groups is None else replace(gathered, groups=listing.groups[self.picks[order]])


def _in_order(rows: NDArray[np.uint8], order: Labels) -> NDArray[np.uint8]:
    """`rows[order]`, each row at most once, in the memory of `rows`: there may be no room for them twice."""
    rest = np.setdiff1d(np.arange(len(rows)), order)
    source = np.concatenate([order, rest])
    done = source == np.arange(len(rows))
    for start in np.flatnonzero(~done).tolist():
        if done[start]:
            continue
        place, first = start, rows[start].copy()
        while source[place] != start:
            rows[place] = rows[source[place]]
            done[place] = True
            place = int(source[place])
        rows[place] = first
        done[place] = True
    return rows[: len(order)]


def check_budget(broken: Sequence[Broken], allowed: int, count: int, name: str) -> None:
    if len(broken) > allowed:
        shown = "; ".join(f"{item.path} ({item.reason})" for item in broken[:_SHOWN])
        more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        raise DataError(
            f"{len(broken)} of {count} images of {name} are broken, the budget allows {allowed}: {shown}{more}. "
            "Fix or remove them; a search can do with more (--set broken_budget=0.1)"
        )


def check_classes_left(listing: Listing, labels: Labels, name: str) -> None:
    """`labels` are those of the images that could be read."""
    lost = set(listing.labels.tolist()) - set(labels.tolist())
    if lost:
        raise DataError(f"no readable image is left of class {listing.classes[min(lost)]!r} in {name}")


def _replace(picks: Labels, failed: list[int], labels: Labels, reserves: list[Iterator[int]]) -> list[int]:
    """Puts the next candidate into each failed slot, -1 where the class has none left; returns the slots to decode."""
    for slot in failed:
        picks[slot] = next(reserves[labels[picks[slot]]], -1)
    return [slot for slot in failed if picks[slot] >= 0]
