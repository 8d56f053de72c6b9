"""Images that are arrays already: .npz files, a pair (images, labels) in Python, and the embedded sample.

uint8 images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), C being 1, 3 or 4; labels of shape (N,) or (N, 1), or
masks: whole numbers of shape (N, H, W), (N, H, W, 1) or (N, 1, H, W).
"""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fasteraa.data.image_set import ImageSet
from fasteraa.data.labels import Labels, label_name, natural_sort, number
from fasteraa.data.masks import mask_listing
from fasteraa.data.source import SPLIT_NAMES, Listing, Source
from fasteraa.errors import DataError
from fasteraa.runtime.documents import cut
from fasteraa.runtime.memory import fits, machine_memory

SAMPLE_FILE = Path(__file__).with_name("sample.npz")
_KEYS = (
    ("images", "labels"), ("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("images", "masks"), ("{}_images", "{}_masks"),
)  # fmt: skip
# what numpy and zipfile raise on damaged bytes; RuntimeError on passwords and unknown compressions
_DAMAGE = (
    ValueError, EOFError, RuntimeError, LookupError, ArithmeticError, TypeError, SyntaxError, MemoryError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip
_CLASS_KEYS = ("classes", "label_names", "class_names")

Images = NDArray[np.uint8]


def open_npz(file: Path, name: str | None = None) -> Source:
    """Keys: images, labels; or x_train, y_train, ... (Keras); or train_images, train_labels, ...; maybe classes.

    The images of a split are read when it is asked for.
    """
    with _npz(file) as archive:
        keys = _find_keys(set(archive.files), file)
        given = next((_array(archive, key, file) for key in _CLASS_KEYS if key in archive.files), None)
        names = () if given is None else tuple(map(str, given.tolist()))
        if any(len(_header(archive, y, file)[0]) >= 3 for _, y in keys.values()):
            return Source(name or file.stem, {split: partial(_npz_masks, file, *keys[split], names) for split in keys})
        labels = {split: flat_labels(_array(archive, y, file), f"{file} [{y}]") for split, (_, y) in keys.items()}
    classes = _class_names(list(labels.values()), str(file)) if given is None else names
    splits = {}
    for split, (x, _) in keys.items():
        numbers = numbered(labels[split], classes, f"{file} [{x}]", by_place=given is not None)
        splits[split] = partial(_npz_listing, file, x, numbers, classes, given is not None)
    return Source(name or file.stem, splits)


def _npz_listing(file: Path, key: str, numbers: Labels, classes: tuple[str, ...], declared: bool) -> Listing:
    where = f"{file} [{key}]"
    with _npz(file) as archive:
        images = as_images(_array(archive, key, file), where)
    return array_listing(images, numbers, classes, where, declared, own=True)


def _npz_masks(file: Path, images: str, masks: str, names: tuple[str, ...]) -> Listing:
    with _npz(file) as archive:
        return masked_listing(_array(archive, images, file), _array(archive, masks, file), str(file), names)


@contextmanager
def _npz(file: Path) -> Iterator[NpzFile]:
    try:
        with open(file, "rb") as stream:  # opened here, because numpy leaves a damaged file open
            if not zipfile.is_zipfile(stream):
                raise DataError(f"{file} is not an .npz file: numpy.savez(file, images=..., labels=...) writes one")
            stream.seek(0)
            yield np.load(stream, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
    except _DAMAGE as error:
        why = "it holds Python objects, which are never loaded" if "pickle" in str(error) else cut(error)
        raise DataError(f"{file} is not an .npz file of plain arrays: {why}") from error


def _header(archive: NpzFile, key: str, file: Path) -> tuple[tuple[int, ...], int]:
    """(shape, bytes) of an array, which must be there: its header may promise anything."""
    assert archive.zip is not None
    member = archive.zip.getinfo(key if key in archive.zip.namelist() else f"{key}.npy")
    with archive.zip.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        there = member.file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError("pickle")
    need = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or need > there:
        raise DataError(f"{file} [{key}] promises {cut(shape)} of {dtype}, but holds {there:,} bytes")
    return shape, need


def _array(archive: NpzFile, key: str, file: Path) -> NDArray[Any]:
    shape, need = _header(archive, key, file)
    if not fits(need):
        have = (machine_memory() or 0) / 1e9
        raise DataError(f"{file} [{key}] {shape} needs {need / 1e9:.1f} GB, this machine has {have:.1f} GB")
    array: NDArray[Any] = archive[key]
    return array


def _find_keys(present: set[str], file: Path) -> dict[str, tuple[str, str]]:
    """Split -> (images key, labels key)."""
    keys_of: dict[str, tuple[str, str]] = {}
    for split, aliases in SPLIT_NAMES.items():
        for x, y in [(x.format(alias), y.format(alias)) for x, y in _KEYS for alias in aliases]:
            if x in present and y in present and (split == "train" or x != "images"):
                keys_of.setdefault(split, (x, y))
    if not keys_of:
        raise DataError(
            f"{file} has no images with labels; found keys: {', '.join(sorted(present)) or 'none'}; expected images "
            "and labels, or x_train and y_train, or train_images and train_labels (or masks in the place of labels)"
        )
    return keys_of


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
    listing = array_listing(pixels, numbers, images.classes, images.name, declared=True)
    return Source(images.name, {"train": lambda: replace(listing, groups=images.groups)})


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
    return replace(mask_listing(len(pictures), pair, lambda i: f"{where}[{i}]", names), decodes=False)


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
    images: Images,
    labels: Labels,
    classes: tuple[str, ...],
    where: str,
    declared: bool = False,
    own: bool = False,
) -> Listing:
    """Images that lie in one array; `own` if nobody else needs it, so that its memory can become that of the set."""
    if len(images) != len(labels):
        raise DataError(f"there must be one label per image, got {len(images)} images, {len(labels)} labels in {where}")
    mine = images if own and images.shape[3:] == (3,) and images.flags.writeable else None
    read = lambda i: Image.fromarray(images[i])  # noqa: E731
    pixels = (lambda i: images[i]) if images.shape[3:] == (3,) else None
    named = lambda i: f"{where}[{i}]"  # noqa: E731
    return Listing(classes, labels, read, named, pixels=pixels, decodes=False, declared=declared, own=mine)
