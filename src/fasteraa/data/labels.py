"""From class names to label numbers: one order, the natural one, wherever names are all we have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fasteraa.errors import DataError
from fasteraa.runtime.documents import cut, quoted

Labels = NDArray[np.int64]


_LONGEST = 1000  # characters of a class's name


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts 'class2' before 'class10', and '9' before '10', so that numeric names keep their numbers as labels."""
    parts = re.findall(r"0*([0-9]+)|([^0-9]+)", name)
    # of two numbers the one with more digits is larger, of however many digits
    return [(0, len(digits), digits) if digits else (1, 0, text) for digits, text in parts], name


def natural_sort(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names in natural order."""
    return tuple(sorted(set(names), key=natural_key))


def number(names: Sequence[str], classes: Sequence[str]) -> Labels:
    """The label of each name: its place in `classes`."""
    place = {name: label for label, name in enumerate(classes)}
    if unknown := set(names) - place.keys():
        raise DataError(
            f"label {quoted(min(unknown))} is not among the {len(classes)} named classes: {cut(', '.join(classes))}"
        )
    return np.fromiter((place[name] for name in names), dtype=np.int64, count=len(names))


def label_name(value: object, where: str) -> str:
    """A label as a class name; only whole numbers and non-empty text can be one."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise DataError(
                f"a label must not be negative (that usually means 'unlabelled'), got {quoted(value)} at {where}"
            )
        if value < 1 << 63:
            return str(int(value))
        raise DataError(f"a label must be below 2**63, got {quoted(value)} at {where}")
    if isinstance(value, str) and value.strip():
        if len(value) <= _LONGEST:
            return value.strip()
        raise DataError(f"a label must have at most {_LONGEST} characters, got {quoted(value)} at {where}")
    raise DataError(f"a label must be a whole number or non-empty text, got {quoted(value)} at {where}")
