"""From class names to label numbers: one order, the natural one, wherever names are all we have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fasteraa.errors import DataError

Labels = NDArray[np.int64]


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts 'class2' before 'class10', and '9' before '10', so that numeric names keep their numbers as labels."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts], name


def natural_sort(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names in natural order."""
    return tuple(sorted(set(names), key=natural_key))


def number(names: Sequence[str], classes: Sequence[str]) -> Labels:
    """The label of each name: its place in `classes`."""
    place = {name: label for label, name in enumerate(classes)}
    if unknown := set(names) - place.keys():
        raise DataError(f"label {min(unknown)!r} is not among the {len(classes)} named classes: {', '.join(classes)}")
    return np.fromiter((place[name] for name in names), dtype=np.int64, count=len(names))


def label_name(value: object, where: str) -> str:
    """A label as a class name; only whole numbers and non-empty text can be one."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise DataError(f"a label must not be negative (that usually means 'unlabelled'), got {value} at {where}")
        return str(int(value))
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise DataError(f"a label must be a whole number or non-empty text, got {value!r} at {where}")
