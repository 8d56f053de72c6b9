"""Encoded images into one tar file, or into a tree of files; whole or not there, whatever ends the process."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from numpy.typing import NDArray
from PIL import Image

from fasteraa.offline.job import ShardTask
from fasteraa.runtime.documents import check_regular
from fasteraa.runtime.files import explain_os_error, replacing

_QUALITY: dict[str, Any] = {"quality": 95, "subsampling": 0}
_BUFFER = 1 << 20  # bytes that are written at once
_PADDING = bytes(tarfile.RECORDSIZE)
DIGITS = 16  # of a digest: a million files are distinguished, and damage is found


class Sample(NamedTuple):
    """One copy of one image, encoded."""

    name: str
    label: int
    suffix: str
    image: bytes
    mask: bytes | None


class Writer(Protocol):
    digests: dict[str, str]  # of each file that is written, by its path in the folder of the job

    def write(self, sample: Sample) -> None: ...


def encode(image: NDArray[Any], suffix: str) -> bytes:
    """(H, W, 3), or the numbers of a mask (H, W)."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG" if suffix == "jpg" else "PNG", **(_QUALITY if suffix == "jpg" else {}))
    return buffer.getvalue()


def part_of(path: Path) -> Path:
    """What is written first, and takes the name of `path` once it is whole."""
    return path.with_name(f"{path.name}.part")


@contextmanager
def open_writer(task: ShardTask, classes: tuple[str, ...]) -> Iterator[Writer]:
    if task.job.format == "folder":
        yield FolderWriter(task.job.folder, task.job.split, classes)
        if hasattr(os, "sync"):
            os.sync()  # once for all of its files: one by one they would take hours
        return
    with replacing(task.shard, partial=part_of(task.shard)) as partial, partial.open("wb", _BUFFER) as file:
        writer = TarWriter(file, task.shard.name)
        yield writer
        writer.close()


class TarWriter:
    """A WebDataset shard: `KEY.jpg` and `KEY.cls`, the number of the class; with masks `KEY.mask.png` in its place."""

    def __init__(self, file: BinaryIO, name: str):
        self.file, self.name, self.digests = file, name, dict[str, str]()
        self._sha = hashlib.sha256()

    def write(self, sample: Sample) -> None:
        self._add(f"{sample.name}.{sample.suffix}", sample.image)
        if sample.mask is None:
            self._add(f"{sample.name}.cls", str(sample.label).encode())
        else:
            self._add(f"{sample.name}.mask.png", sample.mask)

    def _add(self, name: str, content: bytes) -> None:
        padding = _PADDING[: -len(content) % tarfile.BLOCKSIZE]
        self._put(b"".join((header(name, len(content)), content, padding)))

    def _put(self, content: bytes) -> None:
        self._sha.update(content)
        self.file.write(content)

    def close(self) -> None:
        """The end of a tar file; the shard is known by its digest from now on."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(_PADDING[: -self.file.tell() % tarfile.RECORDSIZE])
        self.digests[self.name] = self._sha.hexdigest()[:DIGITS]


_ZERO = b"0000000\x00"
_AFTER_NAME = b"0000644\x00" + 2 * _ZERO  # mode, owner, group
_AFTER_SIZE = b"00000000000\x00"  # date
_AFTER_SUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)  # a plain file; names of owner and group, device, folder
_SUM = sum(_AFTER_NAME + _AFTER_SIZE + _AFTER_SUM) + 8 * ord(" ")  # the checksum itself counts as blanks


def header(name: str, size: int) -> bytes:
    """Of a plain file of nobody's and of no date. `tarfile` takes 20 times as long, as long as a small image."""
    plain, digits = name.encode("ascii"), b"%011o\x00" % size
    checksum = b"%06o\x00 " % (_SUM + sum(plain) + sum(digits))
    return b"".join((plain.ljust(100, b"\x00"), _AFTER_NAME, digits, _AFTER_SIZE, checksum, _AFTER_SUM))


class FolderWriter:
    """`CLASS/KEY.jpg`; with masks `images/KEY.jpg` and `masks/KEY.png`."""

    def __init__(self, home: Path, split: str, classes: tuple[str, ...]):
        self.home, self.folder, self.classes = home, home / split, classes
        self.made: set[Path] = set()
        self.digests: dict[str, str] = {}

    def write(self, sample: Sample) -> None:
        image = f"{sample.name}.{sample.suffix}"
        if sample.mask is None:
            self._file(self.folder / self.classes[sample.label], image, sample.image)
        else:
            self._file(self.folder / "masks", f"{sample.name}.png", sample.mask)
            self._file(self.folder / "images", image, sample.image)

    def _file(self, folder: Path, name: str, content: bytes) -> None:
        path = folder / name
        with explain_os_error(path):
            if folder not in self.made:
                folder.mkdir(parents=True, exist_ok=True)
                self.made.add(folder)
            try:
                part_of(path).write_bytes(content)
                part_of(path).replace(path)
            except OSError:
                part_of(path).unlink(missing_ok=True)
                raise
        self.digests[path.relative_to(self.home).as_posix()] = hashlib.sha256(content).hexdigest()[:DIGITS]


def is_whole(path: Path, digest: str) -> bool:
    """Whether the file is there, with the content that it was written with."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS] == digest
    except (OSError, ValueError):
        return False
