"""Hugging Face `datasets`: `hf:name`, `hf:name:split`, `hf:folder`, or a Dataset object. An extra, imported here only.

Images are fetched undecoded and go through our own decoder, so that EXIF, 16 bit and transparency mean the same
from every source and a broken image is listed instead of ending the run.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fasteraa.data.arrays import numbered
from fasteraa.data.decode import Unreadable, open_bytes, open_file, why
from fasteraa.data.labels import label_name, natural_sort, number
from fasteraa.data.source import SPLIT_NAMES, Listing, Source, canonical_split
from fasteraa.errors import DataError

_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError("a Hugging Face data set needs the package datasets: pip install 'fasteraa[hf]'") from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def is_saved(folder: Path) -> bool:
    """A folder written by save_to_disk."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def open_prefixed(text: str, root: Path, download: bool) -> Source:
    """What stands after the prefix in a source."""
    return open_hf(text)


def open_hf(spec: str) -> Source:
    """`name[:split]`. A split given here is all there is, and serves as `train`."""
    name, _, split = (spec, "", "") if Path(spec).exists() else spec.partition(":")
    if not name.strip():
        raise DataError("hf: must be followed by a name on the hub or a folder, as in hf:beans or hf:saved/beans")
    loaded = _load(name)
    title = Path(name).name
    if not split:
        return from_object(loaded, title)
    if not isinstance(loaded, dict) or split not in loaded:
        splits = ", ".join(loaded) if isinstance(loaded, dict) else "none, it is a single data set"
        raise DataError(f"{name} has no split {split!r}; choices: {splits}")
    return from_object(loaded[split], f"{title}:{split}")


def _load(name: str) -> Any:
    datasets = _datasets()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would report each of its tries
    try:
        return datasets.load_from_disk(name) if is_saved(Path(name)) else datasets.load_dataset(name)
    except Exception as error:  # the library raises its own, the hub's, fsspec's and pyarrow's errors
        raise DataError(
            f"Hugging Face data set {name!r} could not be loaded ({why(error)}); give a name on the hub that can be "
            "reached or is in the cache, or a folder written by save_to_disk"
        ) from error


def is_hf_object(value: object) -> bool:
    """Whether it is one, without importing the package."""
    return type(value).__module__.split(".")[0] == "datasets" and hasattr(value, "cast_column")


def from_object(loaded: Any, title: str = "hf") -> Source:
    """A Dataset, or a DatasetDict of splits."""
    if isinstance(loaded, dict):
        splits = {
            canonical_split(name) or name: partial(_listing, part, f"{title}/{name}") for name, part in loaded.items()
        }
        return Source(title, dict(sorted(splits.items(), key=lambda item: [*SPLIT_NAMES, item[0]].index(item[0]))))
    return Source(title, {"train": partial(_listing, loaded, title)})


def _listing(dataset: Any, title: str) -> Listing:
    if not hasattr(dataset, "features") or not hasattr(dataset, "__len__"):
        raise DataError(f"a streaming data set cannot be searched ({title}); load it with streaming=False")
    image, label = _columns(dataset.features, title)
    classes, labels, declared = _labels(dataset, label, title)
    rows = dataset.select_columns([image]).cast_column(image, _datasets().Image(decode=False))
    return Listing(
        classes, labels, lambda i: _open(rows[i][image]), lambda i: f"{title}[{i}]", threads=False, declared=declared
    )


def _columns(features: Any, title: str) -> tuple[str, str]:
    """The image column and the label column."""
    datasets = _datasets()
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    named = [name for name in _LABEL_COLUMNS if name in features]
    numbered_columns = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not images or not (named or len(numbered_columns) == 1):
        raise DataError(f"{title} needs an image column and a column 'label'; found: {features}")
    return images[0], (named or numbered_columns)[0]


def _labels(dataset: Any, column: str, title: str) -> tuple[tuple[str, ...], Any, bool]:
    """Classes, label numbers, and whether the data set itself names the classes."""
    values = list(dataset[column])
    feature = dataset.features[column]
    if isinstance(feature, _datasets().ClassLabel):
        places = np.array([-1 if value is None else value for value in values], dtype=np.int64)
        return tuple(feature.names), numbered(places, tuple(feature.names), title, by_place=True), True
    names = [label_name(value, f"{title}[{i}]") for i, value in enumerate(values)]
    return natural_sort(names), number(names, natural_sort(names)), False


def _open(cell: Any) -> Image.Image:
    """{'bytes': ..., 'path': ...}, one of which may be missing."""
    if not cell:
        raise Unreadable("no image in this row")
    return open_bytes(cell["bytes"]) if cell["bytes"] is not None else open_file(cell["path"])
