"""WebDataset shards: plain tar files in which members of one base name belong together (0001.jpg, 0001.cls).

Read with the standard library: the tar headers are walked once, then any image is one seek away, from any thread.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fasteraa.data.decode import open_bytes
from fasteraa.data.image_folder import is_image
from fasteraa.data.labels import label_name, natural_sort, number
from fasteraa.data.source import SPLIT_NAMES, Listing, Source, canonical_split
from fasteraa.errors import DataError


@dataclass(frozen=True)
class Member:
    """Where one image's bytes lie."""

    shard: str
    name: str
    offset: int
    size: int
    label: str


@dataclass(frozen=True)
class Contents:
    members: tuple[Member, ...]
    ignored: int


def open_prefixed(text: str, root: Path, download: bool) -> Source:
    """What stands after the prefix in a source."""
    return open_shards(text)


def open_shards(pattern: str) -> Source:
    """`shards/{000..003}.tar`, a glob, one tar, or a folder with tars whose names begin with train, val or test."""
    contents = {split: _contents(files) for split, files in _by_split(pattern).items()}
    classes = natural_sort(member.label for content in contents.values() for member in content.members)
    splits = {split: partial(_listing, content, classes) for split, content in contents.items()}
    return Source(Path(re.sub(r"[{*?\[].*", "", pattern)).name.strip("-_.") or "shards", splits)


def expand_braces(pattern: str) -> list[str]:
    """`a{00..02}` -> a00 a01 a02 and `{x,y}` -> x y, as a shell does, zeros kept."""
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", pattern)
    if match is None:
        return [pattern]
    first, last, words = match.groups()
    middle = words.split(",") if words else [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    return [
        whole for part in middle for whole in expand_braces(pattern[: match.start()] + part + pattern[match.end() :])
    ]


def _by_split(pattern: str) -> dict[str, list[str]]:
    if os.path.isdir(pattern):
        return _folder_by_split(pattern)
    files = [
        name
        for part in expand_braces(pattern)
        for name in (sorted(glob.glob(part)) if glob.has_magic(part) else [part])
    ]
    missing = [name for name in files if not os.path.isfile(name)]
    if missing or not files:
        raise DataError(
            f"no such shard: {missing[0] if missing else pattern} (from {pattern!r}, {len(files)} shards named)"
        )
    return {"train": files}


def _folder_by_split(folder: str) -> dict[str, list[str]]:
    """The first word of a tar's path inside the folder says its split; without such a word it is train."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(folder).rglob("*.tar")):
        word = re.split(r"[^A-Za-z]", str(path.relative_to(folder)), maxsplit=1)[0]
        found.setdefault(canonical_split(word) or "train", []).append(str(path))
    if not found:
        raise DataError(f"{folder} holds no .tar shards")
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def _contents(files: list[str]) -> Contents:
    members: list[Member] = []
    ignored = 0
    for file in files:
        try:
            found, others = _index(file)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"{file} is not a readable, uncompressed tar file: {error}") from error
        members += found
        ignored += others
    if not members:
        raise DataError(f"no images with a .cls member in {len(files)} shards, the first being {files[0]}")
    return Contents(tuple(members), ignored)


def _index(shard: str) -> tuple[list[Member], int]:
    """The images of one shard in tar order. The first image of a sample counts, other members are ignored."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    ignored = 0
    with tarfile.open(shard, "r:") as tar:
        for entry, key, extension in _samples(tar):
            if extension == "cls":
                labels[key] = _label(tar, entry, shard)
            elif is_image(entry.name) and key not in images:
                images[key] = entry
            else:
                ignored += 1
    if unlabelled := next((key for key in images if key not in labels), None):
        raise DataError(f"every image needs a .cls member of the same base name, {unlabelled!r} in {shard} has none")
    return [Member(shard, e.name, e.offset_data, e.size, labels[key]) for key, e in images.items()], ignored


def _samples(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str, str]]:
    """(member, key, extension): the base name ends at its first dot, as in WebDataset."""
    for entry in tar:
        folder, name = os.path.split(entry.name)
        stem, _, extension = name.partition(".")
        if entry.isreg() and stem:
            yield entry, os.path.join(folder, stem), extension.lower()


def _label(tar: tarfile.TarFile, entry: tarfile.TarInfo, shard: str) -> str:
    stream = tar.extractfile(entry)
    text = stream.read().decode("utf-8", errors="replace") if stream else ""
    return label_name(text, f"{shard}/{entry.name}")


def _listing(content: Contents, classes: tuple[str, ...]) -> Listing:
    members = content.members
    return Listing(
        classes,
        number([member.label for member in members], classes),
        lambda i: open_bytes(_bytes(members[i])),
        lambda i: f"{members[i].shard}/{members[i].name}",
        content.ignored,
    )


def _bytes(member: Member) -> bytes:
    with open(member.shard, "rb") as file:
        file.seek(member.offset)
        return file.read(member.size)
