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
from fasteraa.offline.writers import encode
from fasteraa.policy import Policy
from fasteraa.runtime.device import find_device

_PHOTOS = 64
_CLASSES = 10
_BATCH = 512
_LOOK_S = 0.1  # between two looks at the memory of workers


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

    @property
    def ratio(self) -> float:
        return self.images_per_second / self.alone_per_second

    @property
    def cpu_ratio(self) -> float:
        return self.images_per_cpu_second / self.alone_per_cpu_second


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


def run_offline(
    images: int, size: int = 32, copies: int = 3, workers: int = 2, device: str = "cpu", seconds: float = 5.0
) -> OfflineSpeed:
    """`seconds` for the policy and the encoder alone, half of it before `apply` and half after."""
    policy = Policy.named(POLICY)
    before = _alone(size, workers, device, seconds / 2)
    with TemporaryDirectory() as folder, _peak_of_workers() as peaks:
        began, spent = time.perf_counter(), _cpu_seconds()
        made = apply(
            Generated(images, size),
            policy,
            out=Path(folder) / "shards",
            copies=copies,
            workers=workers,
            device=device,
            say=lambda line: None,
        )
        took, spent = time.perf_counter() - began, _cpu_seconds() - spent
    after = _alone(size, workers, device, seconds / 2)
    alone, alone_cpu = ((one + two) / 2 for one, two in zip(before, after, strict=True))
    peak = max(peaks) >> 10 if peaks else None
    speeds = (made.samples / took, alone, made.samples / spent, alone_cpu)
    return OfflineSpeed(images, copies, size, workers, str(find_device(device)), took, *speeds, peak)


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _alone(size: int, workers: int, device: str, seconds: float) -> tuple[float, float]:
    """Augmented and encoded images a second, of all processes together; and for a second of a processor."""
    context = multiprocessing.get_context("fork" if find_device(device).type == "cpu" else "spawn")
    with warnings.catch_warnings(), ProcessPoolExecutor(workers, context) as pool:
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        waiting = [pool.submit(_one_alone, size, device, seconds) for _ in range(workers)]
        counts, seconds_each, cpu = zip(*(each.result() for each in waiting), strict=True)
    return sum(map(truediv, counts, seconds_each)), sum(counts) / sum(cpu)


def _one_alone(size: int, device: str, seconds: float) -> tuple[int, float, float]:
    """Images, seconds, and seconds of a processor."""
    torch.set_num_threads(1)
    source, policy = Generated(_BATCH, size), Policy.named(POLICY)
    batch = torch.from_numpy(np.stack([source[place][0] for place in range(_BATCH)])).permute(0, 3, 1, 2).contiguous()
    batch = batch.to(find_device(device))
    policy(batch)  # warm
    done, began, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for image in policy(batch).permute(0, 2, 3, 1).contiguous().cpu().numpy():
            encode(image, "png")
        done += _BATCH
    return done, time.perf_counter() - began, time.process_time() - spent


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
