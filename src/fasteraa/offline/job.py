"""What is to be made of a source, as data: a job, and its tasks, one for every shard that is written."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasteraa.data import stratify
from fasteraa.data.decode import Look, Window
from fasteraa.data.image_folder import is_image
from fasteraa.data.labels import Labels
from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Listing
from fasteraa.errors import ConfigError, DataError, choices_hint
from fasteraa.policy.policy import Policy

FORMATS = ("shards", "folder")
ENCODINGS = ("auto", "png", "jpg")  # auto: JPEG for what is JPEG, PNG for everything else
RECORDS = ".tasks"  # the folder of what is finished, in the one that is written
_NO_FOLDER = re.compile(r"^\.|[/\\\0]|^$|^__MACOSX$")  # what a folder cannot be called, or no reader looks into
_PROBED = (32, 32)  # the size at which a few images go into the fingerprint
_SHUFFLE = 0  # the stream of random numbers for the order of images


@dataclass(frozen=True, kw_only=True)
class ApplyJob:
    """A policy, a source, and how what they make is written. All of it decides what is written, but for `KEPT_OUT`."""

    source: Any  # as `fasteraa.data.load` takes it
    data_root: str | None
    split: str
    policy: str  # the text of its file
    out: str
    seed: int = 0
    copies: int = 1
    format: str = "shards"
    encoding: str = "auto"
    size: tuple[int, int] | None = None  # None: images keep theirs
    shard_size: int = 5000  # augmented images in a shard, or for one task
    window: Window | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, choices in (("format", FORMATS), ("encoding", ENCODINGS)):
            if getattr(self, name) not in choices:
                given = str(getattr(self, name))
                raise ConfigError(f"unknown {name} {given!r}; {choices_hint(given, choices)}")
        for name, least in (("seed", 0), ("copies", 1), ("shard_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def folder(self) -> Path:
        return Path(self.out)

    @property
    def look(self) -> Look:
        return Look(window=self.window)

    @property
    def images_each(self) -> int:
        """Of the source, for one task: all copies of an image are made by one."""
        return max(1, self.shard_size // self.copies)

    @cached_property
    def parsed_policy(self) -> Policy:
        return Policy.from_json(self.policy)

    def settings(self) -> dict[str, Any]:
        """What the result depends on, beside the images themselves."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _KEPT_OUT}
        sizes = {name: value and list(value) for name, value in plain.items() if name in ("size", "window")}
        return {"policy": self.parsed_policy.hash, **plain, **sizes}


_KEPT_OUT = ("source", "data_root", "out", "device", "policy")  # the images have a fingerprint, the policy a hash


@dataclass(frozen=True)
class ShardTask:
    """One shard, or one part of a folder."""

    job: ApplyJob
    number: int

    @property
    def name(self) -> str:
        return f"{self.job.split}-{self.number:06d}"

    @property
    def shard(self) -> Path:
        return self.job.folder / f"{self.name}.tar"

    @property
    def record(self) -> Path:
        """Written last: a task that has one is finished."""
        return self.job.folder / RECORDS / f"{self.name}.json"

    def places(self, count: int) -> Labels:
        """Its images, of `count` in the listing. Shards are drawn from everywhere: who trains reads them in a row."""
        first = self.number * self.job.images_each
        last = min(first + self.job.images_each, count)
        return _order(count, self.job.seed)[first:last] if self.job.format == "shards" else np.arange(first, last)


@lru_cache(maxsize=1)
def _order(count: int, seed: int) -> Labels:
    """Once in a process: of a million images it takes a tenth of the time that a shard takes."""
    return stratify.shuffled(count, seed, _SHUFFLE)


def tasks_of(job: ApplyJob, count: int) -> list[ShardTask]:
    """For `count` images of the source."""
    return [ShardTask(job, number) for number in range(-(-count // job.images_each))]


# --- images by their place -------------------------------------------------------------------------------------------

_opened: tuple[tuple[Any, ...], str, Listing] | None = None  # of this process: to list a million files takes its time


def list_images(job: ApplyJob) -> tuple[str, Listing]:
    """The name of the source and its images, as they are now."""
    global _opened
    opened = open_source(job.source, job.data_root)
    _opened = _key(job), opened.name, opened.listing(job.split)
    return _opened[1:]


def open_images(job: ApplyJob) -> LazyImageSet:
    """The images as they are now, with their fingerprint."""
    name, listing = list_images(job)
    return LazyImageSet.of(listing, name, _PROBED, look=job.look)


def images_of(job: ApplyJob) -> Listing:
    """Listed once in a process; a forked one has what its parent listed."""
    return _opened[2] if _opened is not None and _opened[0] == _key(job) else list_images(job)[1]


def _key(job: ApplyJob) -> tuple[Any, ...]:
    source = job.source if isinstance(job.source, str | None) else id(job.source)
    return source, job.data_root, job.split


def key_of(where: str, place: int) -> str:
    """The name of an image in what is written: of its file, fit for every system, and its place, which is its own."""
    stem = os.path.splitext(os.path.basename(where))[0] if is_image(where) else ""
    return "-".join(filter(None, [re.sub(r"[^A-Za-z0-9_]+", "-", stem)[:60].strip("-"), f"{place:07d}"]))


def chance(seed: int, key: str, copy: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for one copy of one image, the same wherever and whenever they are asked for."""
    digest = hashlib.shake_256(f"{seed}\0{key}\0{copy}".encode()).digest(8 * count)
    return (np.frombuffer(digest, "<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def class_folders(listing: Listing) -> tuple[str, ...]:
    """The names of classes as folders, where all of them can be some."""
    wrong = [name for name in listing.classes if _NO_FOLDER.search(name)]
    if wrong:
        raise DataError(f"a class cannot be a folder if it is called {wrong[0]!r}; write shards (--format shards)")
    if len({name.casefold() for name in listing.classes}) < len(listing.classes):
        raise DataError("classes whose names differ in case alone cannot be folders; write shards (--format shards)")
    return listing.classes
