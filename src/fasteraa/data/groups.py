"""Images that belong together (of a patient, a film, a series): no group is split between training and held-out images.

A group is a value of a manifest's column, or what a pattern matches in the file name: its first group in brackets,
`^([^_]+)_` of `p07_scan3.png`, or all of the match.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fasteraa.data.labels import Labels
from fasteraa.data.source import Listing
from fasteraa.data.stratify import shuffled
from fasteraa.errors import DataError
from fasteraa.runtime.documents import cut, quoted


def grouped(listing: Listing, by: str, name: str) -> Listing:
    """The listing with the group of each image; `by` names a column of its manifest or is a pattern."""
    _, numbers = np.unique(group_names(listing, by, name), return_inverse=True)
    if (count := int(numbers.max(initial=0)) + 1) < 2:
        raise DataError(
            f"all {len(listing)} images of {name} are of one group by {quoted(by)}: nothing can be held out"
        )
    if count == len(listing):
        raise DataError(f"every image of {name} is a group of its own by {quoted(by)}: leave it out, or correct it")
    return replace(listing, groups=numbers.astype(np.int64))


def group_names(listing: Listing, by: str, name: str) -> Sequence[str]:
    """The group of each image, as its column or its file name has it."""
    values = listing.column(by) if listing.column is not None else None
    return _matches(listing, by, name) if values is None else values


def _matches(listing: Listing, by: str, name: str) -> Sequence[str]:
    try:
        pattern = re.compile(by)
    except (re.error, RecursionError, OverflowError) as error:
        raise DataError(
            f"--group-by takes a column of a manifest or a pattern, got {quoted(by)}: {cut(error)}"
        ) from error
    names = []
    for place in range(len(listing)):
        file = os.path.basename(listing.where(place))
        match = pattern.search(file)
        if match is None:
            what = "is no column of its manifest, and as a pattern" if listing.column is not None else "as a pattern"
            raise DataError(f"{quoted(by)} (--group-by) {what} matches no part of {quoted(file)} in {name}")
        names.append((match[1] if pattern.groups else match[0]) or "")
    return names


def group_folds(labels: Labels, class_count: int, groups: Labels, count: int, seed: int) -> Labels:
    """The fold of each image, whole groups at a time, classes as even as groups allow.

    -1 are groups that are in no fold: what holds the last images of a class stays with the training images.
    """
    ids, member = np.unique(groups, return_inverse=True)
    table = np.zeros((len(ids), class_count), dtype=np.int64)
    np.add.at(table, (member, labels), 1)
    share = np.maximum(table.sum(0), 1)
    alone = ((table == table.sum(0)) & (table > 0)).any(1)  # all images of a class
    order = shuffled(len(ids), seed, class_count)
    order = order[np.argsort(-table[order].sum(1), kind="stable")]  # the large ones first
    fold_of, load = np.full(len(ids), -1, dtype=np.int64), np.zeros((count, class_count))
    for group in order[~alone[order]]:
        added = (((load + table[group]) / share) ** 2 - (load / share) ** 2).sum(1)
        fold = int(np.lexsort((load.sum(1), added))[0])
        fold_of[group] = fold
        load[fold] += table[group]
    for label in range(class_count):  # a class that landed in one fold whole
        of_class = np.flatnonzero(table[:, label])
        if len(of_class) and len(set(fold_of[of_class])) == 1 and fold_of[of_class[0]] >= 0:
            fold_of[of_class[0]] = -1
    if len(set(fold_of[fold_of >= 0])) < count:
        raise DataError(
            f"{count} parts need {count} groups that can be held out, got {int((fold_of >= 0).sum())}: of each class "
            "one group must train (--group-by)"
        )
    return fold_of[member]


def group_cut(labels: Labels, class_count: int, groups: Labels, fraction: float, seed: int) -> tuple[Labels, Labels]:
    """Indices of about `fraction` of the images and of the rest; every class is in the first part."""
    if not 0 < fraction < 1:
        raise DataError(f"fraction must lie between 0 and 1, got {fraction}")
    small = min(fraction, 1 - fraction)
    most = max(2, min(round(1 / small), foldable_groups(labels, groups)))
    fold_of = group_folds(labels, class_count, groups, most, seed)
    rest = fold_of == 0 if fraction >= 0.5 else fold_of > 0
    return np.flatnonzero(~rest), np.flatnonzero(rest)


def foldable_groups(labels: Labels, groups: Labels) -> int:
    """Groups that can be held out: those that do not hold all images of a class."""
    whole = {label: set(groups[labels == label].tolist()) for label in set(labels.tolist())}
    alone = {next(iter(each)) for each in whole.values() if len(each) == 1}
    return len(set(groups.tolist()) - alone)
