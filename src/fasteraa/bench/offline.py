"""`fasteraa apply` on generated images: its speed beside the policy and the encoder alone, and each worker's memory."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from fasteraa.api import apply
from fasteraa.bench.apply import POLICY, photo
from fasteraa.data.decode import open_bytes
from fasteraa.offline.writers import encode
from fasteraa.policy import Policy
from fasteraa.runtime.device import find_device

_PHOTOS = 64
_CLASSES = 10
_BATCH = 512
_BATCH_BYTES = 2**24
_LOOK_S = 0.1  # between two looks at the memory of workers


_Parts = tuple[float, float, float]


@dataclass(frozen=True)
class OfflineSpeed:
    """What was measured in one run."""

    images: int  # of the source
    copies: int
    size: int
    workers: int
    device: str
    seconds: float  # of `apply`, from the call to its end
    images_per_second: float  # augmented
    alone_per_second: float  # the policy on batches plus encoding, in as many processes, before and after
    images_per_cpu_second: float  # the same for time that processes were given: others may use the cores, too
    alone_per_cpu_second: float
    peak_mib: int | None  # of the worker that held the most, what it shares with its parent included
    jpeg: bool = False  # the source is JPEG files, else arrays that are made when they are asked for
    reading_s: float = 0.0  # of one process for an augmented image, each part alone in as many processes at once
    policy_s: float = 0.0
    encoding_s: float = 0.0

    @property
    def ratio(self) -> float:
        return self.images_per_second / self.alone_per_second

    @property
    def cpu_ratio(self) -> float:
        return self.images_per_cpu_second / self.alone_per_cpu_second

    @property
    def shares(self) -> dict[str, float]:
        """Of a worker's time, by the parts alone."""
        whole = self.workers / self.images_per_second
        parts = {"reading": self.reading_s, "the policy": self.policy_s, "encoding": self.encoding_s}
        shares = {name: seconds / whole for name, seconds in parts.items()}
        return {**shares, "starting, drawing, writing and waiting": max(0.0, 1 - sum(shares.values()))}

    @property
    def limit(self) -> str:
        """The part that takes the most."""
        return max(self.shares, key=lambda name: self.shares[name])


class Generated:
    """So many different small photographs, made when they are asked for."""

    def __init__(self, count: int, size: int):
        self.photos = [np.asarray(photo(size, seed)) for seed in range(_PHOTOS)]
        self.targets = np.arange(count) % _CLASSES

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[NDArray[np.uint8], int]:
        turned = np.roll(self.photos[place % _PHOTOS], place // _PHOTOS, axis=1)
        return turned, int(self.targets[place])


def write_files(folder: Path, count: int, size: int) -> Path:
    """So many JPEG files in class folders: few photographs, of which each file is one, by a link of its own."""
    photos = []
    for seed in range(_PHOTOS):
        photos.append(folder / f"{seed}.jpg")
        photo(size, seed).save(photos[-1], quality=90)
    for place in range(count):
        link = folder / "photos" / str(place % _CLASSES) / f"{place:07}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(photos[place // _CLASSES % _PHOTOS], link)
    return folder / "photos"


def run_offline(
    images: int,
    size: int = 32,
    copies: int = 3,
    workers: int = 2,
    device: str = "cpu",
    seconds: float = 5.0,
    jpeg: bool = False,
) -> OfflineSpeed:
    """`seconds` for the policy and the encoder alone, half of it before `apply` and half after."""
    policy = Policy.named(POLICY)
    with TemporaryDirectory() as folder, _peak_of_workers() as peaks:
        source = write_files(Path(folder), images, size) if jpeg else Generated(images, size)
        before = _alone(size, workers, device, seconds / 2, jpeg)
        began, spent = time.perf_counter(), _cpu_seconds()
        made = apply(
            source,
            policy,
            out=Path(folder) / "shards",
            copies=copies,
            workers=workers,
            device=device,
            say=lambda line: None,
        )
        took, spent = time.perf_counter() - began, _cpu_seconds() - spent
    after = _alone(size, workers, device, seconds / 2, jpeg)
    alone, alone_cpu, *parts = ((one + two) / 2 for one, two in zip(before, after, strict=True))
    peak = max(peaks) >> 10 if peaks else None
    speeds = (made.samples / took, alone, made.samples / spent, alone_cpu)
    reading, policy_s, encoding = parts
    return OfflineSpeed(
        images, copies, size, workers, str(find_device(device)), took, *speeds, peak, jpeg,
        reading / copies, policy_s, encoding,
    )  # fmt: skip


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _alone(size: int, workers: int, device: str, seconds: float, jpeg: bool = False) -> tuple[float, ...]:
    """Augmented and encoded images a second, of all processes together, and for a second of a processor.

    Then a process's seconds for an image: of reading, of the policy, of encoding.
    """
    context = multiprocessing.get_context("fork" if find_device(device).type == "cpu" else "spawn")
    with warnings.catch_warnings(), ProcessPoolExecutor(workers, context) as pool:
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        waiting = [pool.submit(_one_alone, size, device, seconds, jpeg) for _ in range(workers)]
        counts, seconds_each, cpu, *parts = zip(*(each.result() for each in waiting), strict=True)
    means = (sum(part) / workers for part in parts)
    return sum(map(truediv, counts, seconds_each)), sum(counts) / sum(cpu), *means


def _one_alone(size: int, device: str, seconds: float, jpeg: bool = False) -> tuple[int, float, float, *_Parts]:
    """Images, seconds, and seconds of a processor; then seconds for an image: reading, policy, encoding."""
    torch.set_num_threads(1)
    suffix = "jpg" if jpeg else "png"
    count = max(8, min(_BATCH, _BATCH_BYTES // (3 * size * size)))
    source, policy = Generated(max(count, _PHOTOS), size), Policy.named(POLICY)
    batch = torch.from_numpy(np.stack([source[place][0] for place in range(count)])).permute(0, 3, 1, 2).contiguous()
    batch = batch.to(find_device(device))
    policy(batch)  # warm
    reading = _seconds_to_read(source, jpeg)
    done, of_policy, began, spent = 0, 0.0, time.perf_counter(), time.process_time()
    while not done or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        levels = policy(batch).permute(0, 2, 3, 1).contiguous().cpu().numpy()
        of_policy += time.perf_counter() - before
        for image in levels:
            encode(image, suffix)
        done += len(batch)
    took = time.perf_counter() - began
    return done, took, time.process_time() - spent, reading, of_policy / done, (took - of_policy) / done


def _seconds_to_read(source: Generated, jpeg: bool) -> float:
    """For one image, decoded or made."""
    files = [encode(source[place][0], "jpg") for place in range(_PHOTOS)] if jpeg else []
    if jpeg:
        open_bytes(files[0]).load()  # the first one loads what decodes
    began = time.perf_counter()
    for place in range(_PHOTOS):
        np.asarray(open_bytes(files[place]).convert("RGB") if jpeg else source[place][0])
    return (time.perf_counter() - began) / _PHOTOS


@contextmanager
def _peak_of_workers() -> Iterator[list[int]]:
    """KiB of memory at its highest, of every process begun in it; empty where the system does not tell."""
    peak_of: dict[int, int] = {}
    peaks: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            for process in multiprocessing.active_children():
                if process.pid is not None and (peak := _peak(process.pid)):
                    peak_of[process.pid] = peak

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
        peaks.extend(peak_of.values())


def _peak(process: int) -> int | None:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    line = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(line[1]) if line else None
