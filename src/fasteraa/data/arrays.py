"""Images that are arrays already: .npz files, a pair (images, labels) in Python, and the embedded sample.

uint8 images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), C being 1, 3 or 4; labels of shape (N,) or (N, 1), or
masks: whole numbers of shape (N, H, W), (N, H, W, 1) or (N, 1, H, W).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fasteraa.data.image_set import ImageSet
from fasteraa.data.labels import Labels, label_name, natural_sort, number
from fasteraa.data.masks import mask_listing
from fasteraa.data.source import SPLIT_NAMES, Listing, Source
from fasteraa.errors import DataError

SAMPLE_FILE = Path(__file__).with_name("sample.npz")
_KEYS = (
    ("images", "labels"), ("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("images", "masks"), ("{}_images", "{}_masks"),
)  # fmt: skip
_CLASS_KEYS = ("classes", "label_names", "class_names")

Images = NDArray[np.uint8]


def open_npz(file: Path, name: str | None = None) -> Source:
    """Keys: images, labels; or x_train, y_train, ... (Keras); or train_images, train_labels, ...; maybe classes."""
    try:
        with open(file, "rb") as stream:  # opened here, because numpy leaves a damaged file open
            if not zipfile.is_zipfile(stream):
                raise DataError(f"{file} is not an .npz file: numpy.savez(file, images=..., labels=...) writes one")
            stream.seek(0)
            return _npz_source(np.load(stream, allow_pickle=False), file, name or file.stem)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        said = "it holds Python objects, which are never loaded" if "pickle" in str(error) else str(error)
        raise DataError(f"{file} is not an .npz file of plain arrays: {said}") from error


def _npz_source(archive: Mapping[str, Any], file: Path, name: str) -> Source:
    keys = _find_keys(set(archive), file)
    given = next((archive[key] for key in _CLASS_KEYS if key in archive), None)
    second = {split: archive[y] for split, (_, y) in keys.items()}
    if any(map(is_masks, second.values())):
        names = () if given is None else tuple(map(str, given.tolist()))
        return Source(
            name, {s: partial(masked_listing, archive[keys[s][0]], second[s], str(file), names) for s in keys}
        )
    labels = {split: flat_labels(second[split], f"{file} [{y}]") for split, (_, y) in keys.items()}
    classes = _class_names(list(labels.values()), str(file)) if given is None else tuple(map(str, given.tolist()))
    splits = {}
    for split, (x, _) in keys.items():
        where = f"{file} [{x}]"
        numbers = numbered(labels[split], classes, where, by_place=given is not None)
        splits[split] = partial(
            array_listing, as_images(archive[x], where), numbers, classes, where, declared=given is not None
        )
    return Source(name, splits)


def _find_keys(present: set[str], file: Path) -> dict[str, tuple[str, str]]:
    """Split -> (images key, labels key)."""
    found: dict[str, tuple[str, str]] = {}
    for split, aliases in SPLIT_NAMES.items():
        for x, y in [(x.format(alias), y.format(alias)) for x, y in _KEYS for alias in aliases]:
            if x in present and y in present and (split == "train" or x != "images"):
                found.setdefault(split, (x, y))
    if not found:
        raise DataError(
            f"{file} has no images with labels; found keys: {', '.join(sorted(present)) or 'none'}; expected images "
            "and labels, or x_train and y_train, or train_images and train_labels (or masks in the place of labels)"
        )
    return found


def open_arrays(images: Any, labels: Any) -> Source:
    """The pair (images, labels) or (images, masks), each a numpy array or a tensor."""
    if is_masks(labels):
        return Source("arrays", {"train": partial(masked_listing, images, labels, "images")})
    flat = flat_labels(labels, "labels")
    classes = _class_names([flat], "labels")
    numbers = numbered(flat, classes, "labels")
    return Source("arrays", {"train": partial(array_listing, as_images(images, "images"), numbers, classes, "images")})


def open_image_set(images: ImageSet) -> Source:
    """What was loaded before, as a source again."""
    pixels = as_images(images.images.permute(0, 2, 3, 1), images.name)
    if images.masks is not None:
        masked = partial(masked_listing, pixels, images.masks, images.name, images.classes)
        return Source(images.name, {"train": masked})
    numbers = images.labels.numpy()
    listing = partial(array_listing, pixels, numbers, images.classes, images.name, declared=True)
    return Source(images.name, {"train": listing})


def is_masks(value: Any) -> bool:
    """A number for every pixel of every image, not one for every image?"""
    return len(np.shape(value)) >= 3


def masked_listing(images: Any, masks: Any, where: str, names: tuple[str, ...] = ()) -> Listing:
    """Images and masks that lie in two arrays."""
    pictures = as_images(images, where)
    numbers = np.asarray(masks.cpu() if isinstance(masks, Tensor) else masks)
    if len(pictures) != len(numbers):
        raise DataError(
            f"there must be one mask per image, got {len(pictures)} images, {len(numbers)} masks in {where}"
        )
    pair = lambda i: (Image.fromarray(pictures[i]), numbers[i])  # noqa: E731
    return mask_listing(len(pictures), pair, lambda i: f"{where}[{i}]", names)


def as_images(value: Any, where: str) -> Images:
    """uint8 (N, H, W) or (N, H, W, C), from any of the layouts above."""
    array = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if array.dtype != np.uint8:
        hint = "; multiply images in [0, 1] by 255 first" if array.dtype.kind == "f" else ""
        raise DataError(f"images must be uint8, got {array.dtype} in {where}{hint}")
    if array.ndim == 4 and array.shape[3] not in (1, 3, 4) and array.shape[1] in (1, 3, 4):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim not in (3, 4) or 0 in array.shape or (array.ndim == 4 and array.shape[3] not in (1, 3, 4)):
        raise DataError(
            f"images must have shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C in 1, 3, 4 and none of them 0, "
            f"got {array.shape} in {where}"
        )
    return array[..., 0] if array.shape[3:] == (1,) else array


def flat_labels(value: Any, where: str) -> NDArray[Any]:
    """One label per image: whole numbers or text."""
    array = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        hint = "; turn one-hot rows into numbers with argmax" if array.ndim == 2 else ""
        raise DataError(
            f"labels must be whole numbers or text of shape (N,), got {array.dtype} {array.shape} in {where}{hint}"
        )
    return array


def _class_names(labels: Sequence[NDArray[Any]], where: str) -> tuple[str, ...]:
    """The labels that occur in any split, in natural order."""
    return natural_sort(label_name(value, where) for array in labels for value in np.unique(array).tolist())


def numbered(labels: NDArray[Any], classes: tuple[str, ...], where: str, by_place: bool = False) -> Labels:
    """Labels as places in `classes`. Whole numbers are such places already when the source names its classes."""
    if not (by_place and labels.dtype.kind in "iu"):
        return number([name.strip() for name in labels.astype(str).tolist()], classes)
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(f"labels must lie in 0..{len(classes) - 1}, got {labels.min()}..{labels.max()} in {where}")
    return labels.astype(np.int64)


def array_listing(
    images: Images, labels: Labels, classes: tuple[str, ...], where: str, declared: bool = False
) -> Listing:
    """Images that lie in one array."""
    if len(images) != len(labels):
        raise DataError(f"there must be one label per image, got {len(images)} images, {len(labels)} labels in {where}")
    return Listing(classes, labels, lambda i: Image.fromarray(images[i]), lambda i: f"{where}[{i}]", declared=declared)
