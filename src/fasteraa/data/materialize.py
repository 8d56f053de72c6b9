"""Decode a listing into one tensor: choose first, then decode, replace what is broken, and keep to the budget."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor

import numpy as np
import torch
from numpy.typing import NDArray

from fasteraa.data import stratify
from fasteraa.data.decode import Look, default_size, pixels, shape_of, why
from fasteraa.data.image_set import Broken, ImageSet
from fasteraa.data.labels import Labels
from fasteraa.data.masks import IGNORED, class_names, pair_pixels
from fasteraa.data.parallel import Progress, in_order
from fasteraa.data.source import Listing
from fasteraa.errors import DataError

_PROBES = 256  # headers read to find the default size
_SHOWN = 5  # broken files in an error message


@dataclass(frozen=True)
class Wanted:
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


def gather(listing: Listing, name: str, wanted: Wanted, progress: Progress | None = None) -> ImageSet:
    """The images in source order. A broken image of a subset is replaced by the next candidate of its class."""
    picks, reserves = _plan(listing, wanted)
    size = wanted.size or _default_size(listing, wanted)
    out = _allocate(len(picks), size)
    masks = np.empty((len(picks), *size), dtype=np.uint8) if listing.pair is not None else None
    allowed = allowed_broken(len(picks), wanted.broken_budget)
    broken: list[Broken] = []
    slots = list(range(len(picks)))
    while slots:
        failed = _decode(listing, picks, slots, out, masks, wanted, progress)
        broken += [Broken(listing.where(int(picks[slot])), reason) for slot, reason in failed]
        check_budget(broken, allowed, len(picks), name)
        slots = _replace(picks, [slot for slot, _ in failed], listing.labels, reserves)
    return _assemble(listing, picks, out, masks, name, broken)


def _plan(listing: Listing, wanted: Wanted) -> tuple[Labels, list[Iterator[int]]]:
    """Indices to decode, and per class the ones to fall back on. No pixel is needed for either."""
    if wanted.subset is None:
        return np.arange(len(listing)), [iter(()) for _ in listing.classes]
    picks = stratify.draw(listing.labels, len(listing.classes), wanted.subset, wanted.seed)
    taken = set(picks.tolist())
    orders = stratify.candidates(listing.labels, len(listing.classes), wanted.seed)
    return picks, [(i for i in order.tolist() if i not in taken) for order in orders]


def _default_size(listing: Listing, wanted: Wanted) -> tuple[int, int]:
    size = probe_size(listing, wanted.look)
    if wanted.largest is None or listing.pair is not None or max(size) <= wanted.largest:
        return size
    return wanted.largest, wanted.largest


def probe_size(listing: Listing, look: Look) -> tuple[int, int]:
    """The default size by up to 256 headers, evenly spread over the listing."""
    places = np.unique(np.linspace(0, len(listing) - 1, min(_PROBES, len(listing))).astype(int)).tolist()

    def shape(place: int) -> tuple[int, int] | None:
        try:
            return shape_of(listing.read(places[place]), look)
        except DataError:
            raise
        except Exception:  # broken: it is reported when it is decoded
            return None

    shapes = [found for found in in_order(shape, len(places), listing.threads) if found]
    return default_size(shapes) if shapes else (64, 64)


def _allocate(count: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    need = count * 3 * size[0] * size[1]
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    if have is not None and need > 0.8 * have:
        raise DataError(
            f"{count} images of {size[0]}x{size[1]} need {need / 1e9:.1f} GB, this machine has {have / 1e9:.1f} GB; "
            "take a subset or a smaller size (--subset, --size)"
        )
    return np.empty((count, 3, *size), dtype=np.uint8)


def _decode(
    listing: Listing,
    picks: Labels,
    slots: list[int],
    out: NDArray[np.uint8],
    masks: NDArray[np.uint8] | None,
    wanted: Wanted,
    progress: Progress | None,
) -> list[tuple[int, str]]:
    """Fills the slots; returns those that failed, with the reason."""

    def fill(place: int) -> str | None:
        slot = slots[place]
        try:
            index, size = int(picks[slot]), out.shape[2:]
            if masks is None or listing.pair is None:
                out[slot] = pixels(listing.read(index), size, wanted.look)
            else:
                out[slot], masks[slot] = pair_pixels(listing.pair(index), size, wanted.look, wanted.ignore_index)
        except (DataError, MemoryError):
            raise
        except Exception as error:  # Pillow's parsers raise almost anything on damaged bytes
            return why(error)
        return None

    reasons = in_order(fill, len(slots), listing.threads, progress)
    return [(slot, reason) for slot, reason in zip(slots, reasons, strict=True) if reason is not None]


def check_budget(broken: Sequence[Broken], allowed: int, count: int, name: str) -> None:
    if len(broken) > allowed:
        shown = "; ".join(f"{item.path} ({item.reason})" for item in broken[:_SHOWN])
        more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        raise DataError(
            f"{len(broken)} of {count} images of {name} are broken, the budget allows {allowed}: {shown}{more}. "
            "Mend or remove them; a search can do with more (--set broken_budget=0.1)"
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


def _assemble(
    listing: Listing,
    picks: Labels,
    out: NDArray[np.uint8],
    masks: NDArray[np.uint8] | None,
    name: str,
    broken: list[Broken],
) -> ImageSet:
    order = np.argsort(picks, kind="stable")
    order = order[picks[order] >= 0]
    labels = listing.labels[picks[order]]
    check_classes_left(listing, labels, name)
    in_place = len(order) == len(out) and bool((np.diff(order) > 0).all())
    images = torch.from_numpy(out if in_place else out[order])
    if masks is not None:
        kept = torch.from_numpy(masks if in_place else masks[order])
        return ImageSet.of_masks(images, kept, class_names(kept, listing.mask_names, name), name, tuple(broken))
    return ImageSet.of(images, torch.from_numpy(labels), listing.classes, name, tuple(broken))
