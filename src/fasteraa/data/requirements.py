"""What a set of images must have to be searched on, and to be compared on; said before a run is spent on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fasteraa.data.load import check_can_hold_out, check_not_empty
from fasteraa.data.materialize import LoadOptions, allowed_broken, check_budget, check_classes_left
from fasteraa.data.source import Broken, Listing, Source
from fasteraa.errors import DataError, SplitError
from fasteraa.runtime.documents import printable

LEAST_IMAGES = 4  # a batch of two that are augmented and two that stay as they are


def check_enough(count: int, name: str) -> None:
    if count < LEAST_IMAGES:
        raise DataError(f"a search needs at least {LEAST_IMAGES} images, {name!r} has {count}")


def check_for_classifiers(listing: Listing, name: str) -> None:
    if listing.pair is not None:
        raise DataError(f"policies are compared by training classifiers, {name} has masks in the place of labels")
    if len(np.unique(listing.labels)) < 2:
        raise DataError(f"policies are compared by training classifiers, that needs two classes; {name} has one")


def refusals(opened: Source, broken: Sequence[Broken]) -> list[str]:
    """What `search` and `compare` would say to all training images, with the settings that they have by default."""
    try:
        train = opened.listing("train")
    except DataError as error:
        return [f"fasteraa search and fasteraa compare will refuse them: {error}"]
    reasons = {
        "search": _said(lambda: _check_search(train, opened.name, broken)),
        "compare": _said(lambda: _check_comparison(train, opened)) if train.pair is None else None,
    }
    return [f"fasteraa {who} will refuse them: {why}" for who, why in reasons.items() if why is not None]


def _said(check: Callable[[], None]) -> str | None:
    try:
        check()
    except DataError as error:
        return str(error)
    return None


def _check_search(train: Listing, name: str, broken: Sequence[Broken]) -> None:
    check_not_empty(train, name, "train")
    broken_at = {each.path: each for each in broken}
    paths = [printable(train.where(place)) for place in range(len(train))]
    check_budget(train.damage, allowed_broken(len(train), LoadOptions().broken_budget), len(train), name)
    readable = np.array([path not in broken_at for path in paths])
    of_train = [broken_at[path] for path in paths if path in broken_at]
    check_budget(of_train, allowed_broken(len(train), LoadOptions().broken_budget), len(train), name)
    check_classes_left(train, train.labels[readable], name)
    check_enough(int(readable.sum()), name)


def _check_comparison(train: Listing, opened: Source) -> None:
    check_not_empty(train, opened.name, "train")
    check_for_classifiers(train, opened.name)
    try:
        opened.listing("test")
    except SplitError:
        check_can_hold_out(train, opened.name)
