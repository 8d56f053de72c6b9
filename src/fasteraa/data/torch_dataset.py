"""Any map-style `Dataset` in Python that yields (image, label): Pillow image, uint8 tensor CHW or numpy array HWC.

One that yields (image, mask) is for semantic segmentation: the mask a Pillow image, a tensor or an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from fasteraa.data.decode import Unreadable, why
from fasteraa.data.labels import label_name, natural_sort, number
from fasteraa.data.masks import Pair, is_mask, mask_listing
from fasteraa.data.source import Listing, Source
from fasteraa.errors import DataError

_LABEL_LISTS = ("targets", "labels", "_labels")
_TRIED = 5  # items looked at for what they are


def open_dataset(dataset: Any, name: str | None = None) -> Source:
    """All of it is `train`. Items are read in the calling thread: nobody promised that a Dataset bears threads."""
    title = name or type(dataset).__name__
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(
            f"a data set must be map-style (have __len__ and __getitem__), got {title}; read an iterable one into "
            "arrays first and pass (images, labels)"
        )
    return Source(title, {"train": lambda: dataset_listing(dataset, title)})


def dataset_listing(dataset: Any, title: str) -> Listing:
    """Labels come from the data set's own list when it has one; else every item is read once for its label."""
    listed = _declared_labels(dataset)
    # text in the data set's own list may name the files of masks
    if (listed is None or not all(name.isdecimal() for name in listed)) and _yields_masks(dataset):
        return _masked(dataset, title)
    names = listed or [_item(dataset, i, title)[1] for i in range(len(dataset))]
    given = _class_names(dataset)
    declared = given is not None and all(name.isdecimal() and int(name) < len(given) for name in names)
    classes = given if given is not None and declared else natural_sort(names)
    labels = np.array([int(name) for name in names], dtype=np.int64) if declared else number(names, classes)

    def value(i: int) -> Any:
        image, label = _item(dataset, i, title)
        if label != names[i]:
            raise DataError(f"{title}[{i}] yields label {label} but its list of labels says {names[i]}")
        return image

    def pixels(i: int) -> Image.Image | NDArray[np.uint8]:
        image = value(i)
        plain = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,) and image.size
        return image if plain else as_image(image)

    read = lambda i: as_image(value(i))  # noqa: E731
    where = lambda i: f"{title}[{i}]"  # noqa: E731
    return Listing(classes, labels, read, where, pixels=pixels, threads=False, declared=declared)


def _yields_masks(dataset: Any) -> bool:
    """By the first of a few items that can be read."""
    for i in range(min(len(dataset), _TRIED)):
        try:
            item = dataset[i]
        except Exception:  # broken: it is reported when it is decoded
            continue
        return isinstance(item, (tuple, list)) and len(item) >= 2 and is_mask(item[1])
    return False


def _masked(dataset: Any, title: str) -> Listing:
    def pair(i: int) -> Pair:
        image, mask = _two(dataset, i, title)
        if not is_mask(mask):
            raise DataError(f"{title} yields masks, but with {title}[{i}] comes {type(mask).__name__}")
        return as_image(image), mask

    names = _class_names(dataset) or ()
    return mask_listing(len(dataset), pair, lambda i: f"{title}[{i}]", names, threads=False)


def _item(dataset: Any, i: int, title: str) -> tuple[Any, str]:
    image, label = _two(dataset, i, title)
    return image, label_name(_plain(label), f"{title}[{i}]")


def _two(dataset: Any, i: int, title: str) -> tuple[Any, Any]:
    item = dataset[i]
    if not (isinstance(item, (tuple, list)) and len(item) >= 2):
        raise DataError(
            f"a data set must yield (image, label) or (image, mask), got {type(item).__name__} from {title}[{i}]"
        )
    return item[0], item[1]


def _plain(label: Any) -> Any:
    """A tensor or numpy scalar as the Python value in it."""
    label = label.cpu().numpy() if isinstance(label, Tensor) else label
    return label.item() if isinstance(label, (np.ndarray, np.generic)) and label.size == 1 else label


def _declared_labels(dataset: Any) -> list[str] | None:
    """The labels as the data set lists them; every item that is read later is checked against this list."""
    if isinstance(dataset, Subset):
        inner = _declared_labels(dataset.dataset)
        return inner and [inner[i] for i in dataset.indices]
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for attribute in _LABEL_LISTS:
        values = getattr(dataset, attribute, None)
        if isinstance(values, (Sequence, Tensor, np.ndarray)) and len(values) == len(dataset):
            plain = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else values
            return [label_name(_plain(value), f"{attribute}[{i}]") for i, value in enumerate(plain)]
    return None


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    if isinstance(dataset, Subset):
        return _class_names(dataset.dataset)
    names = getattr(dataset, "classes", None)
    return tuple(names) if isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names) else None


def as_image(value: Any) -> Image.Image:
    """A Pillow image from what data sets yield."""
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, Tensor):
        value = value.cpu().numpy()
        value = value.transpose(1, 2, 0) if value.ndim == 3 else value
    if not isinstance(value, np.ndarray):
        raise Unreadable(f"{type(value).__name__} is neither a Pillow image, nor a tensor, nor a numpy array")
    return _from_array(value)


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.dtype != np.uint8:
        raise Unreadable(f"{array.dtype} pixels; give uint8 or Pillow images (leave out ToTensor and Normalize)")
    array = array[..., 0] if array.shape[2:] == (1,) else array
    try:
        return Image.fromarray(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise Unreadable(f"an array of shape {array.shape} is no image ({why(error)})") from error
