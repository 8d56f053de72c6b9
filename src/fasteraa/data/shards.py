"""WebDataset shards: plain tar files in which members of one base name belong together (0001.jpg, 0001.cls).

For semantic segmentation the mask, 0001.mask.png or 0001.seg.png, stands in the place of the label. `classes.txt`
beside the shards may name the classes, a line for each number.

Read with the standard library: the tar headers are walked once, then any image is one seek away, from any thread.
`tarfile` takes a damaged header for the end of an archive. Here the walk continues at the next header that is whole,
and what lies between counts as broken.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from fasteraa.data.decode import LARGEST_FILE, Unreadable, open_bytes
from fasteraa.data.image_folder import is_image, written_names
from fasteraa.data.labels import label_name, natural_sort, number
from fasteraa.data.masks import mask_listing
from fasteraa.data.source import SPLIT_NAMES, Broken, Listing, Source, canonical_split
from fasteraa.errors import DataError, reason
from fasteraa.runtime.documents import cut

_MOST_BRACES = 10
_LONGEST_LABEL = 4096  # bytes of a .cls member
_MASKS = ("mask.png", "seg.png")  # endings of members that hold a mask
_SCANNED = 1 << 20  # bytes at a time, a multiple of a block


@dataclass(frozen=True)
class Member:
    """Where one image's bytes lie."""

    shard: str
    name: str
    offset: int
    size: int
    label: str
    mask: tuple[int, int] | None = None  # where its mask lies, and how large it is


@dataclass
class Contents:
    """Of one shard, or of several in a row."""

    members: list[Member] = field(default_factory=list)
    ignored: int = 0
    damage: list[Broken] = field(default_factory=list)

    def add(self, other: Contents) -> None:
        self.members += other.members
        self.ignored += other.ignored
        self.damage += other.damage


def open_prefixed(text: str, root: Path, download: bool) -> Source:
    """What stands after the prefix in a source."""
    return open_shards(text)


def open_shards(pattern: str) -> Source:
    """`shards/{000..003}.tar`, a glob, one tar, or a folder with tars whose names begin with train, val or test."""
    by_split = _by_split(pattern)
    contents = {split: _contents(files) for split, files in by_split.items()}
    members = [member for content in contents.values() for member in content.members]
    names = written_names(Path(next(iter(by_split.values()))[0]).parent)
    title = Path(re.sub(r"[{*?\[].*", "", pattern)).name.strip("-_.") or "shards"
    if len({member.mask is None for member in members}) > 1:
        raise DataError(f"all images of {pattern} must have a label, or all a mask; it has some of both")
    if members[0].mask is not None:
        return Source(title, {split: partial(_mask_listing, content, names) for split, content in contents.items()})
    present = {member.label for member in members}
    named = bool(names) and all(label.isdecimal() and int(label) < len(names) for label in present)
    classes = names if named else natural_sort(present)
    return Source(title, {split: partial(_listing, content, classes, named) for split, content in contents.items()})


def expand_braces(pattern: str) -> Iterator[str]:
    """`a{00..02}` -> a00 a01 a02 and `{x,y}` -> x y, as a shell does, zeros kept; one name after the other."""
    match = re.search(r"\{(?:([0-9]{1,18})\.\.([0-9]{1,18})|([^{}]*,[^{}]*))\}", pattern)
    if match is None:
        yield pattern
        return
    first, last, words = match.groups()
    middle = words.split(",") if words else (f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1))
    for part in middle:
        yield from expand_braces(pattern[: match.start()] + part + pattern[match.end() :])


def _by_split(pattern: str) -> dict[str, list[str]]:
    if os.path.isdir(pattern):
        return _folder_by_split(pattern)
    if pattern.count("{") > _MOST_BRACES:
        raise DataError(f"shards are named with at most {_MOST_BRACES} braces, got {cut(pattern)}")
    files: list[str] = []
    for part in expand_braces(pattern):  # stops at the first name without a file: there may be a billion of them
        names = sorted(glob.glob(part)) if glob.has_magic(part) else [part]
        missing = next((name for name in names if not os.path.isfile(name)), None if names else part)
        if missing is not None:
            raise DataError(f"no such shard: {cut(missing)} (from {cut(repr(pattern))})")
        files += names
    if not files:
        raise DataError(f"no such shard: {cut(pattern)}")
    return {"train": files}


def _folder_by_split(folder: str) -> dict[str, list[str]]:
    """The first word of a tar's path inside the folder says its split; without such a word it is train."""
    files_of: dict[str, list[str]] = {}
    for path in sorted(path for path in Path(folder).rglob("*.tar") if path.is_file()):
        word = re.split(r"[^A-Za-z]", str(path.relative_to(folder)), maxsplit=1)[0]
        files_of.setdefault(canonical_split(word) or "train", []).append(str(path))
    if not files_of:
        raise DataError(f"{folder} holds no .tar shards")
    return {split: files_of[split] for split in SPLIT_NAMES if split in files_of}


def _contents(files: list[str]) -> Contents:
    contents = Contents()
    for file in files:
        try:
            contents.add(_index(file))
        except (tarfile.TarError, OSError, EOFError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise DataError(f"{file} is not a readable, uncompressed tar file: {cut(why)}") from error
    if not contents.members:
        raise DataError(f"no images with a .cls member or a mask in {len(files)} shards, the first being {files[0]}")
    return contents


def _index(shard: str) -> Contents:
    """The images of one shard in tar order. The first image of a sample counts, other members are ignored."""
    images: dict[str, tarfile.TarInfo] = {}
    masks: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    damage: list[Broken] = []
    ignored = 0
    with open(shard, "rb") as file:
        for entry in _entries(file, shard, damage):
            key, extension = _sample(entry)
            if not entry.isreg() or not key:
                continue
            if extension == "cls":
                labels[key] = _label(file, entry, shard)
            elif extension in _MASKS:
                masks[key] = entry
            elif is_image(entry.name) and key not in images:
                images[key] = entry
            else:
                ignored += 1
    masks = {key: entry for key, entry in masks.items() if key not in labels}  # else they are one more member
    annotated = labels.keys() | masks.keys()
    lone = [key for key in images if key not in annotated]
    if lone and not damage:
        raise DataError(f"every image needs a .cls member of the same base name, {lone[0]!r} in {shard} has none")
    # a damaged header costs an image its label, or a label its image
    lone += [key for key in labels if key not in images] if damage else []
    damage += [Broken(f"{shard}/{key}", "its image or its label is lost") for key in lone[len(damage) :]]
    members = [
        Member(shard, e.name, e.offset_data, e.size, labels.get(k, ""), _place(masks.get(k)))
        for k, e in images.items()
        if k in annotated
    ]
    return Contents(members, ignored, damage)


def _place(entry: tarfile.TarInfo | None) -> tuple[int, int] | None:
    return None if entry is None else (entry.offset_data, entry.size)


def _sample(entry: tarfile.TarInfo) -> tuple[str, str]:
    """(key, extension): the base name ends at its first dot, as in WebDataset. A key is '' where there is none."""
    folder, name = os.path.split(entry.name)
    stem, _, extension = name.partition(".")
    return (os.path.join(folder, stem) if stem else ""), extension.lower()


def _entries(file: BinaryIO, shard: str, damage: list[Broken]) -> Iterator[tarfile.TarInfo]:
    """The members up to the end of the file, past headers that are damaged and ends of archives in a row."""
    begin = 0  # of the archive we are in
    start: int | None = 0
    while start is not None:
        walk = _Walk(file, start)
        yield from walk
        stop, start = walk.stop, _next_header(file, walk.stop)
        end = file.seek(0, os.SEEK_END) if start is None else start
        lost = "all that follows is" if start is None else f"what lies before byte {start} is"
        if _holds_more_than_zeros(file, stop, end):
            damage.append(Broken(shard, f"the tar header at byte {stop} is damaged: {lost} lost"))
        elif end < stop + tarfile.BLOCKSIZE:
            damage.append(Broken(shard, "it ends without the mark of an archive's end: members may be lost"))
        elif not _ends_archive(end - begin, end - stop, last=start is None):
            zeros = f"at byte {stop} are {end - stop:,} zeros, which is not how an archive ends"
            damage.append(Broken(shard, f"{zeros}: {lost} perhaps lost"))
        else:
            begin = end


def _ends_archive(size: int, zeros: int, last: bool) -> bool:
    """Whether an archive of this size may end with so many zeros: two blocks, and what fills a record.

    A record has 20 blocks; behind the last archive, any power of two. A lost page of a disk looks like the latter.
    """
    filling = zeros - 2 * tarfile.BLOCKSIZE
    record = tarfile.RECORDSIZE if size % tarfile.RECORDSIZE == 0 else 0
    if last:
        return filling < max(record, size & -size)
    return filling == 0 or 0 < filling < record


class _Walk:
    """Members from a header on, as far as headers are whole; `stop` is where the next one should be."""

    def __init__(self, file: BinaryIO, start: int):
        self.file, self.stop = file, start

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        first = self.stop
        self.file.seek(first)
        try:
            with tarfile.open(fileobj=self.file, mode="r:") as tar:
                for entry in tar:
                    if tar.offset <= self.stop or entry.size < 0:
                        break  # a size below zero leads back to where we were
                    self.stop = tar.offset
                    yield entry
        except (tarfile.TarError, ValueError, ArithmeticError, LookupError) as error:
            if first == self.stop == 0 or "unexpected end of data" in str(error):
                raise tarfile.ReadError(str(error)) from error


def _next_header(file: BinaryIO, start: int) -> int | None:
    """Where the first header lies whose checksum is right, behind the block at `start`."""
    size, place = tarfile.BLOCKSIZE, start + tarfile.BLOCKSIZE
    file.seek(place)
    while chunk := file.read(_SCANNED):
        blocks = np.frombuffer(chunk, np.uint8, len(chunk) // size * size).reshape(-1, size)
        digits = blocks[:, 148:154]  # of the checksum, in octal
        likely = ((digits >= ord("0")) & (digits <= ord("7")) | (digits == ord(" ")) | (digits == 0)).all(1)
        for block in np.flatnonzero(likely & blocks.any(1)).tolist():
            try:
                tarfile.TarInfo.frombuf(blocks[block].tobytes(), "utf-8", "surrogateescape")
            except tarfile.TarError:
                continue
            return int(place + block * size)
        place += len(chunk)
    return None


def _holds_more_than_zeros(file: BinaryIO, start: int, end: int) -> bool:
    file.seek(start)
    while chunk := file.read(min(_SCANNED, max(end - start, 0))):
        if chunk.count(0) < len(chunk):
            return True
        start += len(chunk)
    return False


def _label(file: BinaryIO, entry: tarfile.TarInfo, shard: str) -> str:
    file.seek(entry.offset_data)
    text = file.read(min(entry.size, _LONGEST_LABEL)).decode("utf-8", errors="replace")
    return label_name(text, f"{shard}/{entry.name}")


def _listing(content: Contents, classes: tuple[str, ...], by_number: bool) -> Listing:
    members = content.members
    labels = [classes[int(member.label)] if by_number else member.label for member in members]
    return Listing(
        classes,
        number(labels, classes),
        lambda i: _open(members[i], members[i].offset, members[i].size),
        lambda i: f"{members[i].shard}/{members[i].name}",
        content.ignored,
        declared=by_number,
        damage=tuple(content.damage),
    )


def _mask_listing(content: Contents, names: tuple[str, ...]) -> Listing:
    members = content.members

    def pair(i: int) -> tuple[Image.Image, Image.Image]:
        member = members[i]
        assert member.mask is not None
        return _open(member, member.offset, member.size), _open(member, *member.mask)

    where = lambda i: f"{members[i].shard}/{members[i].name}"  # noqa: E731
    listing = mask_listing(len(members), pair, where, names, content.ignored)
    return replace(listing, damage=tuple(content.damage))


def _open(member: Member, offset: int, size: int) -> Image.Image:
    if size > LARGEST_FILE:
        raise Unreadable(f"it has {size / 2**20:,.0f} MiB, the limit is {LARGEST_FILE >> 20:,} MiB")
    with open(member.shard, "rb") as file:
        file.seek(offset)
        return open_bytes(file.read(size))
