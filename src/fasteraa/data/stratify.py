"""Seeded, stratified choice: the class proportions of the whole, by largest remainder, and no class lost."""

from __future__ import annotations

import numpy as np

from fasteraa.data.labels import Labels
from fasteraa.errors import DataError


def quotas(counts: Labels, total: int, leave: int = 0) -> Labels:
    """How many of each class to take so that `total` are taken in proportion to `counts`.

    Every class that has images gets at least one, and keeps `leave` untaken. Whole-number arithmetic: no rounding
    can make two machines disagree.
    """
    everything = int(counts.sum())
    low = np.minimum(counts, 1)
    high = np.maximum(counts - leave, low)
    if not low.sum() <= total <= high.sum():
        raise DataError(f"can take between {low.sum()} (one per class) and {high.sum()} images, got {total}")
    quota = np.clip(counts * total // everything, low, high)
    while missing := total - int(quota.sum()):
        owed = counts * total - quota * everything
        if missing > 0:
            quota[np.argmax(np.where(quota < high, owed, np.iinfo(np.int64).min))] += 1
        else:
            quota[np.argmin(np.where(quota > low, owed, np.iinfo(np.int64).max))] -= 1
    return quota


def shuffled(count: int, seed: int, stream: int) -> Labels:
    """A permutation of range(count). Sorts raw PCG64 words, whose values numpy promises never to change."""
    if seed < 0:
        raise DataError(f"seed must not be negative, got {seed}")
    words = np.random.PCG64(np.random.SeedSequence([seed, stream])).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def candidates(labels: Labels, class_count: int, seed: int) -> list[Labels]:
    """For each class the indices of its images in the order in which a subset draws them."""
    ends = np.cumsum(np.bincount(labels, minlength=class_count))
    members = np.split(np.argsort(labels, kind="stable"), ends[:-1])  # one sort, however many classes
    return [index[shuffled(len(index), seed, label)] for label, index in enumerate(members)]


def check_subset(count: int, counts: Labels) -> None:
    """Refuse a subset that cannot hold every class, or is larger than the set."""
    present, total = int((counts > 0).sum()), int(counts.sum())
    if not present <= count <= total:
        raise DataError(
            f"subset must lie between {present} (the number of classes) and {total} (all images), got {count}"
        )


def draw(labels: Labels, class_count: int, count: int, seed: int) -> Labels:
    """`count` indices, stratified, in ascending order."""
    counts = np.bincount(labels, minlength=class_count)
    check_subset(count, counts)
    takes = zip(candidates(labels, class_count, seed), quotas(counts, count), strict=True)
    return np.sort(np.concatenate([order[:take] for order, take in takes]))


def cut(labels: Labels, class_count: int, fraction: float, seed: int) -> tuple[Labels, Labels]:
    """Indices of the first part, `fraction` of the whole, and of the rest; every class is in both."""
    if not 0 < fraction < 1:
        raise DataError(f"fraction must lie between 0 and 1, got {fraction}")
    counts = np.bincount(labels, minlength=class_count)
    if (counts == 1).any():
        raise DataError(
            f"a class needs two images to be in both parts, class number {counts.tolist().index(1)} has one"
        )
    present, total = int((counts > 0).sum()), int(counts.sum())
    take = min(max(round(fraction * total), present), total - present)
    parts = zip(candidates(labels, class_count, seed), quotas(counts, take, leave=1), strict=True)
    first = np.sort(np.concatenate([order[:size] for order, size in parts]))
    return first, np.setdiff1d(np.arange(total), first)


def folds(labels: Labels, class_count: int, count: int, seed: int) -> Labels:
    """The fold of each image: every class is dealt out in turn, continuing where the class before it stopped.

    The only image of its class is in none of them (-1): no network could learn it from the others.
    """
    order = np.concatenate([each for each in candidates(labels, class_count, seed) if len(each) != 1])
    fold_of = np.full(len(labels), -1, dtype=np.int64)
    fold_of[order] = np.arange(len(order)) % count
    return fold_of


def choose_classes(classes: tuple[str, ...], count: int, seed: int) -> tuple[str, ...]:
    """`count` class names by seed; it looks at names only, so that train and test choose the same."""
    if not 1 <= count <= len(classes):
        raise DataError(f"classes must lie between 1 and {len(classes)} (all of them), got {count}")
    chosen = shuffled(len(classes), seed, len(classes))[:count]
    return tuple(classes[i] for i in np.sort(chosen))
