"""Images per second under the AutoAugment CIFAR-10 policy: ours beside torchvision v2, timm and kornia."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from fasteraa.policy import Policy

POLICY = "autoaugment-cifar10"
COPY = "copy of the batch"  # on a GPU: the floor
Work = tuple[Callable[[], object], int]  # a call, and how many images it treats


@dataclass(frozen=True)
class ApplyRow:
    name: str
    exact: str  # how near to Pillow
    images_per_second: float


@dataclass(frozen=True)
class Table:
    size: int
    rows: tuple[ApplyRow, ...]
    device: str = "cpu"
    batch: int | None = None  # images in a batch, where it is one size for all

    @property
    def best_peer(self) -> ApplyRow:
        """The fastest peer that works image by image and is exact or nearly so."""
        peers = [row for row in self.rows if not row.name.startswith("fasteraa") and row.exact in ("exact", "near")]
        return max(peers, key=lambda row: row.images_per_second)

    @property
    def largest_batch(self) -> ApplyRow:
        start = "fasteraa, batch of "
        ours = {row.name.removeprefix(start): row for row in self.rows if row.name.startswith(start)}
        return ours[max((count for count in ours if count.isdigit()), key=int)]

    def speed(self, name: str) -> float:
        return next(row.images_per_second for row in self.rows if row.name == name)


def run(sizes: tuple[int, ...] = (32, 224), seconds: float = 2.0, repeats: int = 5) -> list[Table]:
    """Interleaved rounds on one thread; the median round of each contender counts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_run_size(size, seconds, repeats) for size in sizes]
    finally:
        torch.set_num_threads(threads)


def _run_size(size: int, seconds: float, repeats: int) -> Table:
    contenders = _contenders(size)
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 1):  # the first round warms up
        for name, (_, work) in contenders.items():
            rounds[name].append(_speed(work, seconds / repeats))
    rows = (ApplyRow(name, exact, float(np.median(rounds[name][1:]))) for name, (exact, _) in contenders.items())
    return Table(size, tuple(rows))


def _speed(work: Work, seconds: float) -> float:
    call, images = work
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        done += images
    return done / (time.perf_counter() - start)


def _contenders(size: int) -> dict[str, tuple[str, Work]]:
    pictures = [photo(size, seed) for seed in range(64)]
    tensors = [torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous() for picture in pictures]
    policy = Policy.named(POLICY)
    transform = policy.transform()
    contenders: dict[str, tuple[str, Work]] = {
        "fasteraa, Pillow image": ("exact", each(transform, pictures)),
        "fasteraa, uint8 tensor": ("exact", each(transform, tensors)),
    }
    for count in (4096, 1024, 128) if size <= 64 else (256, 64):
        contenders[f"fasteraa, batch of {count}"] = ("exact", _batch(policy, tensors, count))
    return contenders | _torchvision(pictures, tensors) | _timm(pictures) | _kornia(torch.stack(tensors))


def each(transform: Callable[[Any], object], items: list[Any]) -> Work:
    def call() -> None:
        for item in items:
            transform(item)

    return call, len(items)


def _batch(policy: Policy, tensors: list[torch.Tensor], count: int) -> Work:
    batch = torch.stack(tensors).repeat(-(-count // len(tensors)), 1, 1, 1)[:count]
    return lambda: policy(batch), count


def photo(size: int, seed: int) -> Image.Image:
    """Smooth structure with some noise: neither the best nor the worst case of any operation."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(coarse).astype(int) + rng.integers(-9, 10, (size, size, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _torchvision(pictures: list[Image.Image], tensors: list[torch.Tensor]) -> dict[str, tuple[str, Work]]:
    from torchvision.transforms import v2

    transform = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    return {
        "torchvision v2, Pillow image": ("exact", each(transform, pictures)),
        "torchvision v2, uint8 tensor": ("near", each(transform, tensors)),
    }


def _timm(pictures: list[Image.Image]) -> dict[str, tuple[str, Work]]:
    try:
        from timm.data import auto_augment
    except ImportError:
        return {}
    from torchvision.transforms import autoaugment as published

    timm_op: Any = auto_augment.AugmentOp
    timm_policy: Any = auto_augment.AutoAugment
    hparams = {"interpolation": Image.Resampling.NEAREST, "img_mean": (0, 0, 0)}
    names = {"Posterize": "PosterizeOriginal", "TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}
    rows = published.AutoAugment(published.AutoAugmentPolicy.CIFAR10).policies
    # timm's levels run to 10 where torchvision's bins run to 9
    policy = [
        [
            timm_op(names.get(name, name), p, 0 if level is None else level / 0.9, hparams=hparams)
            for name, p, level in s
        ]
        for s in rows
    ]
    return {"timm, Pillow image": ("exact", each(timm_policy(policy), pictures))}


def _kornia(batch: torch.Tensor) -> dict[str, tuple[str, Work]]:
    try:
        from kornia.augmentation.auto import AutoAugment
    except ImportError:
        return {}
    transform, images = AutoAugment("cifar10"), batch.float() / 255
    return {f"kornia, batch of {len(batch)} (one draw)": ("far", (lambda: transform(images), len(batch)))}
