"""ImageNet as ILSVRC 2012 comes: train/n01440764/*.JPEG, and validation images in class folders or flat.

Flat ones have their labels in a file beside them, of which several are in use: LOC_val_solution.csv (Kaggle),
imagenet_2012_validation_synset_labels.txt (a synset for each image in order), val.txt or val_map.txt (a name and the
number of a class, or its synset). Test images have no labels, so they are no split.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fasteraa.data.image_folder import file_listing, folder_name, folders, list_split, open_folder, walk
from fasteraa.data.labels import natural_sort
from fasteraa.data.source import Listing, Source
from fasteraa.errors import DataError
from fasteraa.runtime.documents import quoted, read_text

LABEL_FILES = (
    "LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt", "val_map.txt", "val_labels.txt",
)  # fmt: skip
_SYNSET = re.compile(r"n[0-9]{8}")
_KAGGLE = Path("ILSVRC/Data/CLS-LOC")
_ABOVE = 3  # folders above the images in which a file of labels may lie


def find_imagenet(root: Path) -> Path | None:
    """The folder under `root` that has train/ with a folder for each synset; None if there is no such."""
    for folder in (root, root / _KAGGLE, root / _KAGGLE.relative_to("ILSVRC")):
        if (folder / "train").is_dir() and (names := folders(folder / "train")):
            return folder if all(map(_SYNSET.fullmatch, names)) else None
    return None


def open_imagenet(root: Path, name: str | None = None) -> Source:
    """What `find_imagenet` found. Validation images in class folders need nothing but these."""
    source, name = open_folder(root, name), name or folder_name(root)
    classes = natural_sort(folders(root / "train"))
    splits = {"train": partial(list_split, root / "train", classes)}
    if (root / "val").is_dir():
        splits["val"] = source.splits["val"] if folders(root / "val") else partial(_flat, root, classes)  # type: ignore[assignment]
    if (root / "test").is_dir() and folders(root / "test"):
        splits["test"] = source.splits["test"]  # type: ignore[assignment]
    return replace(source, name=name, splits=splits)


def _flat(root: Path, classes: tuple[str, ...]) -> Listing:
    """Validation images, all in one folder."""
    files, ignored = walk(str(root / "val"))
    places = [root / "val", root, *list(root.resolve().parents)[:_ABOVE]]
    label_files = [place / name for place in places for name in LABEL_FILES if (place / name).is_file()]
    if not label_files:
        raise DataError(
            f"{root / 'val'} holds {len(files)} images without class folders, and no file of their labels lies beside "
            f"it ({', '.join(LABEL_FILES[:3])}); add one, or hold out training images (--held-out 0.2)"
        )
    label_of = _labels(label_files[0], classes, [os.path.basename(file) for file in files])
    return file_listing(classes, np.array(label_of, dtype=np.int64), files, ignored)


def _labels(file: Path, classes: tuple[str, ...], names: list[str]) -> list[int]:
    """Of each image by its name, or in order where the file names none."""
    number = {name: label for label, name in enumerate(classes)}
    rows = [re.split(r"[\s,;]+", line.strip()) for line in read_text(file, DataError).splitlines() if line.strip()]
    rows = [row for row in rows if row[0] != "ImageId"]
    if all(len(row) == 1 for row in rows):
        if len(rows) != len(names):
            raise DataError(f"{file} must have a label for each of {len(names)} images, it has {len(rows)}")
        return [_label(row[0], number, file) for row in rows]
    by_stem = {os.path.splitext(os.path.basename(row[0]))[0]: row[1] for row in rows if len(row) > 1}
    lacking = [name for name in names if os.path.splitext(name)[0] not in by_stem]
    if lacking:
        raise DataError(f"{file} has no label for {len(lacking)} of {len(names)} images, such as {lacking[0]}")
    return [_label(by_stem[os.path.splitext(name)[0]], number, file, named=True) for name in names]


def _label(text: str, number: dict[str, int], file: Path, named: bool = False) -> int:
    if text in number:
        return number[text]
    if named and text.isdecimal() and int(text) < len(number):
        return int(text)
    hint = "; numbers of the development kit are not those of the folders" if text.isdecimal() else ""
    raise DataError(f"{file} has a label that is no folder of train/: {quoted(text)}{hint}")
