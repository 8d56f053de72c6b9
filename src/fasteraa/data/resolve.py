"""Which reader a source is for: a name, a prefix, a path's ending, or a Python object's type."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from fasteraa.data import arrays, hf, image_folder, imagenet, named, shards, table, torch_dataset
from fasteraa.data.image_set import ImageSet
from fasteraa.data.source import Source, readable
from fasteraa.errors import DataError, choices_hint
from fasteraa.runtime.documents import check_regular
from fasteraa.runtime.registry import Registry

# What a prefix `NAME:` stands for: a function of the rest, the data root and whether to download, that gives a Source.
SOURCES = Registry(
    "data source",
    "fasteraa.sources",
    {
        "hf": "fasteraa.data.hf:open_prefixed",
        "wds": "fasteraa.data.shards:open_prefixed",
        "torchvision": "fasteraa.data.named:open_torchvision",
    },
)
SAMPLE = "sample"  # the name of the embedded sample, which is what `load(None)` gives


def open_source(source: Any, data_root: str | os.PathLike[str] | None = None, download: bool = False) -> Source:
    """Anything `load` accepts, as splits that can be listed."""
    if not isinstance(source, (str, os.PathLike)):
        return _open_object(source)
    with readable(source):
        if isinstance(source, str):
            return _open_text(source, named.data_root_or_default(data_root), download)
        return _open_path(Path(source))


def hidden_folder_hint(source: str) -> str | None:
    """What to say of a known name that is a folder here, too."""
    if source not in (SAMPLE, *named.NAMES) or not os.path.isdir(source):
        return None
    where = "the embedded sample" if source == SAMPLE else "the data set of that name under the data root (--data-root)"
    return f"{source} means {where}; the folder here is {os.path.join(os.curdir, source)}"


def _open_object(source: Any) -> Source:
    if source is None:
        return _sample()
    if isinstance(source, ImageSet):
        return arrays.open_image_set(source)
    if hf.is_hf_object(source):
        return hf.from_object(source)
    if isinstance(source, tuple) and len(source) == 2:
        return arrays.open_arrays(*source)
    return torch_dataset.open_dataset(source)


def _sample() -> Source:
    return arrays.open_npz(arrays.SAMPLE_FILE, SAMPLE)


def _open_text(text: str, root: Path, download: bool) -> Source:
    """A known name wins over a folder of the same name; write ./name for the folder."""
    if not text.strip():
        raise DataError("source must not be empty; leave it out for the embedded sample")
    prefix, colon, rest = text.partition(":")
    if colon and prefix in SOURCES.names():
        source: Source = SOURCES.load(prefix)(os.path.expanduser(rest), root, download)
        return source
    if text == SAMPLE:
        return _sample()
    if text in named.NAMES:
        return named.open_named(text, root, download)
    if text.endswith(".tar") and ("{" in text or glob.has_magic(text)):
        return shards.open_shards(text)
    return _open_path(Path(text).expanduser())


def _open_path(path: Path) -> Source:
    if path.is_dir():
        if hf.is_saved(path):
            return hf.open_hf(str(path))
        layout = imagenet.find_imagenet(path)
        return image_folder.open_folder(path) if layout is None else imagenet.open_imagenet(layout)
    if not path.exists():
        raise _unknown(str(path))
    try:
        check_regular(path)
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    suffix = path.suffix.lower()
    if suffix in table.TABLE_SUFFIXES:
        return table.open_table(path)
    if suffix == ".npz":
        return arrays.open_npz(path)
    if suffix == ".tar":
        return shards.open_shards(str(path))
    raise DataError(
        f"no reader for {path}; a source is a folder, a manifest ({', '.join(sorted(table.TABLE_SUFFIXES))}), an .npz "
        "file, .tar shards, or a name"
    )


def _unknown(text: str) -> DataError:
    if os.sep in text or Path(text).suffix:
        return DataError(f"no such file or folder: {text}")
    choices = choices_hint(text, (SAMPLE, *named.NAMES))
    return DataError(
        f"{text!r} is neither a file or folder nor a known data set; {choices}, torchvision:ClassName, hf:name"
    )
