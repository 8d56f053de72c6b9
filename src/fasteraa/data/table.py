"""A manifest: CSV (or TSV), JSONL or Parquet with the columns path, label and, if wanted, split.

For semantic segmentation the column mask stands in the place of label. Paths are relative to the manifest's own
folder. A file that is missing counts as a broken image.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fasteraa.data.image_folder import file_listing, mask_file_listing
from fasteraa.data.labels import label_name, natural_sort, number
from fasteraa.data.large import counted
from fasteraa.data.source import SPLIT_NAMES, Listing, Source, canonical_split
from fasteraa.errors import DataError, choices_hint
from fasteraa.runtime.documents import cut, parse_json, quoted

COLUMNS = {
    "path": ("path", "file_name", "filename"), "label": ("label", "class"), "split": ("split",),
    "mask": ("mask", "mask_path"),
}  # fmt: skip
_LONGEST_PATH = 4096
_LONGEST_LINE = 1 << 20  # characters of a row
TABLE_SUFFIXES = frozenset((".csv", ".tsv", ".jsonl", ".parquet"))


@dataclass(frozen=True, slots=True)
class ManifestRow:
    path: str
    label: str  # or the path of the mask
    split: str
    masked: bool = False


def open_table(file: Path) -> Source:
    """Classes are those of all splits together, in natural order."""
    rows = [_row(raw, file, line) for line, raw in counted(_READERS[file.suffix.lower()](file), "rows")]
    if not rows:
        raise DataError(f"{file} has no rows")
    present = {row.split for row in rows}
    if len({row.masked for row in rows}) > 1:
        raise DataError(f"all rows of {file} must name a label, or all a mask; it has some of both")
    if rows[0].masked:
        masked = {split: partial(_mask_listing, file, rows, split) for split in SPLIT_NAMES if split in present}
        return Source(file.stem, masked)
    classes = natural_sort(row.label for row in rows)
    splits = {split: partial(_listing, file, rows, classes, split) for split in SPLIT_NAMES if split in present}
    return Source(file.stem, splits)


def _listing(file: Path, rows: list[ManifestRow], classes: tuple[str, ...], split: str) -> Listing:
    chosen, folder = [row for row in rows if row.split == split], str(file.parent)
    paths = [os.path.join(folder, row.path) for row in chosen]  # pathlib takes five times as long
    listing = file_listing(classes, number([row.label for row in chosen], classes), paths)
    return replace(listing, column=partial(_column, file, split))


def _column(file: Path, split: str, name: str) -> list[str] | None:
    """Read again: of ImageNet no column is kept that nobody asks for."""
    rows = list(_parquet(file, name) if file.suffix.lower() == ".parquet" else _READERS[file.suffix.lower()](file))
    if not any(name in raw for _, raw in rows):
        return None
    chosen = [(line, raw) for line, raw in rows if _split(raw, f"{file} row {line}") == split]
    for line, raw in chosen:
        if raw.get(name) is None or raw[name] == "":
            raise DataError(f"the column {name!r} is empty at {file} row {line}")
    return [str(raw[name]) for _, raw in chosen]


def _mask_listing(file: Path, rows: list[ManifestRow], split: str) -> Listing:
    chosen, folder = [row for row in rows if row.split == split], str(file.parent)
    images = [os.path.join(folder, row.path) for row in chosen]
    return mask_file_listing(images, [os.path.join(folder, row.label) for row in chosen])


def _row(raw: Mapping[str, Any], file: Path, line: int) -> ManifestRow:
    where = f"{file} row {line}"
    path, split = _path(raw, "path", where), _split(raw, where)
    if not any(name in raw for name in COLUMNS["mask"]):
        return ManifestRow(path, label_name(_cell(raw, "label", where), where), split)
    if any(name in raw for name in COLUMNS["label"]):
        raise DataError(f"a manifest names labels or masks, got both at {where}: leave out one of the columns")
    return ManifestRow(path, _path(raw, "mask", where), split, masked=True)


def _path(raw: Mapping[str, Any], column: str, where: str) -> str:
    path = _cell(raw, column, where)
    if not isinstance(path, str) or not path.strip():
        raise DataError(f"a {column} must be non-empty text, got {quoted(path)} at {where}")
    if len(path) > _LONGEST_PATH:
        raise DataError(f"a {column} must have at most {_LONGEST_PATH} characters, got {quoted(path)} at {where}")
    return path.strip()


def _cell(raw: Mapping[str, Any], column: str, where: str) -> Any:
    for name in COLUMNS[column]:
        if name in raw:
            return raw[name]
    names = " or ".join(map(repr, COLUMNS[column]))
    raise DataError(f"a column {names} is missing at {where}; found: {cut(', '.join(map(str, raw))) or 'nothing'}")


def _split(raw: Mapping[str, Any], where: str) -> str:
    if "split" not in raw:
        return "train"
    word = raw["split"] if isinstance(raw["split"], str) else quoted(raw["split"])
    if split := canonical_split(word):
        return split
    raise DataError(
        f"unknown split {quoted(word)} at {where}; {choices_hint(cut(word), sum(SPLIT_NAMES.values(), ()))}"
    )


def _csv(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:  # -sig: Excel writes a byte order mark
            reader = csv.DictReader(stream, delimiter=_delimiter(stream.readline(), file))
            stream.seek(0)
            for raw in reader:
                yield reader.line_num, {str(key).strip(): value for key, value in raw.items() if key is not None}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8: {cut(error)}") from error


def _delimiter(header: str, file: Path) -> str:
    """Excel writes semicolons where the comma is the decimal sign."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def _jsonl(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Row by row: of ImageNet they have more than a hundred megabytes."""
    line = 0
    try:
        with open(file, encoding="utf-8-sig") as stream:
            while text := stream.readline(_LONGEST_LINE):
                line += 1
                if len(text) == _LONGEST_LINE:
                    raise DataError(f"a row must have at most {_LONGEST_LINE} characters, {file} row {line} has more")
                if text.strip():
                    yield line, _json_object(text, f"{file} row {line}")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not a JSONL file in UTF-8 (row {line + 1})") from error


def _json_object(text: str, where: str) -> Mapping[str, Any]:
    value = parse_json(text, DataError, where)
    if not isinstance(value, dict):
        raise DataError(f"not a JSON object at {where}: got {type(value).__name__}")
    return value


def _parquet(file: Path, more: str | None = None) -> Iterable[tuple[int, Mapping[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"reading {file} needs pyarrow: pip install 'fasteraa[parquet]'") from error
    try:
        present = parquet.read_schema(file).names
        needed = [*(name for names in COLUMNS.values() for name in names), more]
        table = parquet.read_table(file, columns=[name for name in present if name in needed])
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a Parquet file: {cut(error)}") from error
    if not table.num_columns:
        raise DataError(f"columns 'path' and 'label' are missing in {file}; found: {', '.join(present)}")
    return enumerate(table.to_pylist(), start=1)


_READERS: dict[str, Callable[[Path], Iterable[tuple[int, Mapping[str, Any]]]]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
