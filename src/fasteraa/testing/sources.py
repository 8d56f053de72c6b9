"""Checks for a data source: what it lists is the same every time, labels fit, and trouble is said in words.

>>> check_source(lambda: open_mine("photos"), broken=lambda: open_mine("photos-with-a-cut-off-file"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from fasteraa.data.materialize import LoadOptions, gather
from fasteraa.data.source import Listing, Source
from fasteraa.errors import DataError, SplitError

_READ = 8  # images of a split, spread over it
_THREADS = 4
_NO_SPLIT = "no-such-split"
Open = Callable[[], Source]


def check_source(open_source: Open, *, broken: Open | None = None) -> None:
    """AssertionError unless a source keeps what `fasteraa.data.source.Source` promises.

    `open_source` opens it; it is called a few times. `broken` opens one of which some image cannot be read.
    """
    source = open_source()
    assert isinstance(source, Source), f"a source is a fasteraa.data.source.Source, got a {type(source).__name__}"
    assert source.name.strip(), "a source has a name, for messages and reports"
    _check_splits(source)
    for split in source.splits:
        listing = source.listing(split)
        _check_listing(listing, split)
        _check_same(listing, open_source().listing(split), split)
        _check_images(listing, split)
    if broken is not None:
        _check_broken(broken())


def _check_splits(source: Source) -> None:
    """A split is listed when somebody asks for it: the images of a large one take a while."""
    assert isinstance(source.splits, Mapping), f"splits must be a mapping, got a {type(source.splits).__name__}"
    assert source.splits, "a source has at least one split"
    for name, listed in source.splits.items():
        assert callable(listed), f"the split {name!r} must be a function that lists it, got a {type(listed).__name__}"
    try:
        source.listing(_NO_SPLIT)
    except SplitError as error:
        missing = [name for name in source.splits if name not in str(error)]
        assert not missing, f"the error about a missing split must name the choices, {', '.join(missing)} is not there"
    else:
        raise AssertionError("a split that is not there must be a SplitError")


def _check_listing(listing: Listing, split: str) -> None:
    assert isinstance(listing, Listing), f"the split {split!r} must give a Listing, got a {type(listing).__name__}"
    assert len(listing), f"the split {split!r} has no images"
    labels, count = listing.labels, len(listing.classes)
    assert isinstance(labels, np.ndarray), f"labels must be an array, got a {type(labels).__name__}"
    assert labels.ndim == 1, f"labels must be one for each image, got {labels.shape}"
    assert labels.dtype == np.int64, f"labels must be int64, got {labels.dtype}"
    assert len(set(listing.classes)) == count, f"names of classes must differ, got {', '.join(listing.classes)}"
    if listing.pair is None:  # the classes of masks are in the masks
        wrong = labels[(labels < 0) | (labels >= count)]
        assert not len(wrong), f"labels of {split!r} must be numbers of its {count} classes, got {wrong[0]}"


def _check_same(listing: Listing, again: Listing, split: str) -> None:
    assert listing.classes == again.classes, f"opened again, {split!r} has other classes"
    assert np.array_equal(listing.labels, again.labels), f"opened again, {split!r} has other labels, or another order"
    for place in _some(listing):
        assert listing.where(place) == again.where(place), f"opened again, {split!r} names its images otherwise"


def _check_images(listing: Listing, split: str) -> None:
    places = _some(listing)
    pictures = [_pixels(listing, place) for place in places]
    for place, before in zip(places, pictures, strict=True):
        assert isinstance(listing.where(place), str), f"where(...) must name an image of {split!r} in a word"
        assert np.array_equal(_pixels(listing, place), before), f"read again, {listing.where(place)} is another image"
    if listing.threads:
        with ThreadPoolExecutor(_THREADS) as threads:
            side_by_side = list(threads.map(lambda place: _pixels(listing, place), places))
        same = all(map(np.array_equal, side_by_side, pictures))
        assert same, f"images of {split!r} are others when threads read them side by side: say threads=False"


def _check_broken(source: Source) -> None:
    """Within the budget it is left out and listed, beyond it it is an error; nothing else gets through."""
    listing = source.listing(next(iter(source.splits)))
    for budget, is_error in ((0.0, True), (1.0, False)):
        try:
            read = gather(listing, source.name, LoadOptions(size=(8, 8), broken_budget=budget))
        except DataError as error:
            if not is_error:
                raise AssertionError(f"an unreadable image within the budget must be left out, got: {error}") from error
        except Exception as error:
            raise AssertionError(f"an unreadable image ended with {type(error).__name__}: {error}") from error
        else:
            assert not is_error, "an unreadable image must be a DataError where none is allowed"
            assert read.broken, "an image that was left out must be listed"
            assert all(each.path for each in read.broken), "an image that was left out must be named"


def _some(listing: Listing) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, len(listing) - 1, _READ)})


def _pixels(listing: Listing, place: int) -> np.ndarray:
    image = listing.read(place) if listing.pair is None else listing.pair(place)[0]
    assert isinstance(image, Image.Image), f"read(...) must give a PIL image, got a {type(image).__name__}"
    return np.asarray(image.convert("RGB"))
