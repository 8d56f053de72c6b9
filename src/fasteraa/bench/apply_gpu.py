"""Images per second of batches that lie on a GPU: ours beside torchvision v2, kornia and a plain copy of the batch.

A call returns before the device is done, so each round is a number of calls and one wait at its end. Draws are part
of every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fasteraa.bench.apply import COPY, POLICY, ApplyRow, Table, Work, each, photo
from fasteraa.policy import Policy
from fasteraa.runtime.device import find_device

BATCHES = {32: 4096, 224: 256}  # image side -> images in a batch
_MOST = 2**25  # values in the batch of any other size
_PEERS = 64  # images that a peer takes one by one in a call


def run_gpu(
    sizes: tuple[int, ...] = (32, 224), seconds: float = 2.0, repeats: int = 5, device: str = "cuda"
) -> list[Table]:
    """Interleaved rounds in one process; the median round of each contender counts."""
    return [_run_size(size, seconds / repeats, repeats, find_device(device)) for size in sizes]


def _run_size(size: int, seconds: float, repeats: int, device: torch.device) -> Table:
    count = BATCHES.get(size, max(1, min(4096, _MOST // (3 * size * size))))
    contenders = _contenders(size, count, device)
    calls = {name: _warm(work, seconds, device) for name, (_, work) in contenders.items()}
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, (_, work) in contenders.items():
            rounds[name].append(_speed(work, calls[name], device))
    rows = (ApplyRow(name, exact, float(np.median(rounds[name]))) for name, (exact, _) in contenders.items())
    return Table(size, tuple(rows), device.type, count)


def _warm(work: Work, seconds: float, device: torch.device) -> int:
    """Run until it is warm; how many calls fill a round?"""
    for _ in range(3):
        work[0]()
    calls = 1
    while True:
        took = calls * work[1] / _speed(work, calls, device)
        if took > seconds / 4 or calls >= 2**16:
            return max(1, round(calls * seconds / took))
        calls *= 2


def _speed(work: Work, calls: int, device: torch.device) -> float:
    call, images = work
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait(device)
    return calls * images / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _contenders(size: int, count: int, device: torch.device) -> dict[str, tuple[str, Work]]:
    pictures = [torch.from_numpy(np.array(photo(size, seed))).permute(2, 0, 1) for seed in range(64)]
    batch = torch.stack(pictures).repeat(-(-count // 64), 1, 1, 1)[:count].contiguous().to(device)
    policy, generator, few = Policy.named(POLICY), torch.Generator(device).manual_seed(0), batch[:128].contiguous()
    captured = policy.captured(batch, torch.Generator(device).manual_seed(0), kernels=True)
    captured_few = policy.captured(few, torch.Generator(device).manual_seed(0), kernels=True)
    # `recorded` in labels: as committed records call what is captured
    contenders: dict[str, tuple[str, Work]] = {
        f"fasteraa, batch of {count}": ("exact", (lambda: policy(batch, generator, kernels=True), count)),
        f"fasteraa, batch of {len(few)}": ("exact", (lambda: policy(few, generator, kernels=True), len(few))),
        f"fasteraa, batch of {count}, recorded": ("exact", (lambda: captured(batch), count)),
        f"fasteraa, batch of {count}, recorded, no copies": (
            "exact",
            (lambda: captured(captured.batch, copy=False), count),
        ),
        f"fasteraa, batch of {len(few)}, recorded": ("exact", (lambda: captured_few(few), len(few))),
        f"fasteraa, batch of {count}, plain torch": ("exact", (lambda: policy(batch, generator, kernels=False), count)),
        COPY: ("-", (lambda: batch.clone(), count)),
    }
    return contenders | _torchvision(batch) | _kornia(batch)


def _torchvision(batch: Tensor) -> dict[str, tuple[str, Work]]:
    from torchvision.transforms import v2

    transform = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    return {
        "torchvision v2, uint8 tensor": ("near", each(transform, list(batch[:_PEERS]))),
        f"torchvision v2, batch of {len(batch)} (one draw)": ("near, one draw", _whole(transform, batch)),
    }


def _kornia(batch: Tensor) -> dict[str, tuple[str, Work]]:
    try:
        from kornia.augmentation.auto import AutoAugment
    except ImportError:
        return {}
    return {f"kornia, batch of {len(batch)} (one draw)": ("far", _whole(AutoAugment("cifar10"), batch.float() / 255))}


def _whole(transform: Callable[[Any], object], batch: Tensor) -> Work:
    return (lambda: transform(batch)), len(batch)
