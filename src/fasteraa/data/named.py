"""Public data sets by name, in their official layout under the data root, through torchvision's own classes.

Some official files are pickles (CIFAR); torchvision opens those only after their md5 sums have matched.
"""

from __future__ import annotations

import inspect
import os
import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fasteraa.data.arrays import array_listing, as_images, flat_labels, numbered
from fasteraa.data.imagenet import find_imagenet, open_imagenet
from fasteraa.data.source import SPLIT_NAMES, Listing, Source, concatenate
from fasteraa.data.torch_dataset import dataset_listing
from fasteraa.errors import DataError, SplitError, choices_hint
from fasteraa.runtime.documents import cut

_BY_FLAG: Mapping[str, Mapping[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_BY_WORD: Mapping[str, Mapping[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
_SPELLINGS = {**SPLIT_NAMES, "train": ("train", "trainval", "train-standard")}  # as torchvision's classes spell them


@dataclass(frozen=True)
class Named:
    """A torchvision class that holds all its images in one array."""

    torchvision: str
    files: str  # where they lie under the data root
    home: str  # where a person gets them
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _BY_FLAG)


NAMED = {
    "cifar10": Named("CIFAR10", "cifar-10-batches-py/", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "cifar100": Named("CIFAR100", "cifar-100-python/", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "fashion-mnist": Named("FashionMNIST", "FashionMNIST/raw/", "https://github.com/zalandoresearch/fashion-mnist"),
    "mnist": Named("MNIST", "MNIST/raw/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    "stl10": Named("STL10", "stl10_binary/", "https://cs.stanford.edu/~acoates/stl10/", _BY_WORD),
    "svhn": Named(
        "SVHN",
        "train_32x32.mat, test_32x32.mat, extra_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/",
        {**_BY_WORD, "extra": {"split": "extra"}},
    ),
}
# torchvision's readers on damaged files, beside what they raise where there are none; a ValueError may be about a split
_PARSERS_RAISE = (AssertionError, LookupError, ArithmeticError, TypeError, struct.error, pickle.UnpicklingError)
IMAGENET = "imagenet"
NAMES = (*NAMED, IMAGENET)  # data sets that are found under the data root by their name


def data_root_or_default(data_root: str | os.PathLike[str] | None) -> Path:
    """The one given, else $FASTERAA_DATA_ROOT, else ./data."""
    return Path(data_root or os.environ.get("FASTERAA_DATA_ROOT") or "data").expanduser()


def open_named(name: str, root: Path, download: bool) -> Source:
    """One of NAMES."""
    if name == IMAGENET:
        return _imagenet(root)
    row = NAMED[name]
    splits: dict[str, Callable[[], Listing]] = {
        split: partial(_listing, name, row, root, split, download) for split in row.splits
    }
    if "extra" in splits:
        splits["train+extra"] = lambda: concatenate(splits["train"](), splits["extra"]())
    return Source(name, splits)


def _imagenet(root: Path) -> Source:
    """Plain folders per class: needs no devkit."""
    folder = root / IMAGENET
    imagenet = find_imagenet(folder) or (folder if (folder / "train").is_dir() else None)
    if imagenet is None:
        raise DataError(
            f"imagenet is not at {folder}/train; expected {folder}/train/n01440764/*.JPEG and {folder}/val/... "
            "(from https://image-net.org/download); the folder above is named with data_root (--data-root)"
        )
    return open_imagenet(imagenet, IMAGENET)


def _listing(name: str, row: Named, root: Path, split: str, download: bool) -> Listing:
    place = f"expected {row.files} under {root}, which data_root (--data-root) names; get it from {row.home}"
    what = f"{name} ({place})"
    try:
        dataset = _construct(row.torchvision, {"root": root, "download": download, **row.splits[split]}, what)
    except ValueError as error:  # its splits are known
        raise DataError(f"{what} is damaged: {cut(error)}") from error
    targets = dataset.labels if hasattr(dataset, "labels") else dataset.targets
    labels = flat_labels(targets, name)
    classes = tuple(getattr(dataset, "classes", ())) or tuple(map(str, range(10)))
    images = as_images(dataset.data, name)
    if images.ndim == 3 or not images.transpose(0, 3, 1, 2).flags.c_contiguous:
        # SVHN's file has the image number last in memory: a copy now, not a stride of 3 kB per pixel later
        images = np.ascontiguousarray(images)
    numbers = numbered(labels, classes, name, by_place=True)
    return array_listing(images, numbers, classes, f"{name}/{split}", declared=True, own=True)


def _construct(class_name: str, arguments: Mapping[str, Any], what: str) -> Any:
    from torchvision import datasets  # takes seconds, so only here

    try:
        return getattr(datasets, class_name)(**arguments)
    except ImportError as error:
        raise DataError(f"{what} needs another package: {error}; pip install {error.name or 'it'}") from error
    except (RuntimeError, OSError, EOFError, *_PARSERS_RAISE) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        why = cut(lines[0].partition(" You can use download")[0])  # ours to offer, and only in Python
        raise DataError(f"{what} is not there or damaged: {why}") from error


def open_torchvision(class_name: str, root: Path, download: bool) -> Source:
    """`torchvision:ClassName`: any class whose split is chosen by `train`, by `split` or not at all."""
    from torchvision import datasets

    names = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
    if class_name not in names:
        raise DataError(f"torchvision has no data set {class_name!r}; {choices_hint(class_name, names)}")
    parameters = inspect.signature(getattr(datasets, class_name)).parameters
    shared = {key: value for key, value in {"root": root, "download": download}.items() if key in parameters}
    _check_parameters(class_name, parameters)
    splits: dict[str, tuple[Mapping[str, Any], ...]]
    if "train" in parameters:
        splits = {split: (choice,) for split, choice in _BY_FLAG.items()}
    elif "split" in parameters:
        splits = {split: tuple({"split": word} for word in words) for split, words in _SPELLINGS.items()}
    else:
        splits = {"train": ({},)}
    openers = {split: partial(_try_each, class_name, shared, choices, root) for split, choices in splits.items()}
    return Source(class_name.lower(), openers)


def _check_parameters(class_name: str, parameters: Mapping[str, inspect.Parameter]) -> None:
    needed = [
        key for key, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD and key != "root"
    ]
    if needed:
        raise DataError(
            f"torchvision:{class_name} needs the arguments {', '.join(needed)}; build the object in Python and pass it"
        )


def _try_each(
    class_name: str, shared: Mapping[str, Any], choices: tuple[Mapping[str, Any], ...], root: Path
) -> Listing:
    """The first spelling of the split that the class accepts."""
    refusal = ""
    for choice in choices:
        try:
            dataset = _construct(class_name, {**shared, **choice}, f"torchvision:{class_name} under {root}")
        except ValueError as error:
            refusal = str(error)
            continue
        return dataset_listing(dataset, class_name)
    raise SplitError(f"torchvision:{class_name} has no such split: {refusal}")
