"""Images in memory: one uint8 tensor, labels or masks, class names, and a fingerprint for a policy's provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fasteraa.data import stratify
from fasteraa.data.decode import Window
from fasteraa.data.groups import foldable_groups, group_cut, group_folds
from fasteraa.data.labels import Labels
from fasteraa.data.source import Broken
from fasteraa.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Decoded images of one size. Build it with `ImageSet.of`, which works out the fingerprint."""

    images: Tensor  # uint8 (N, 3, H, W), contiguous, CPU
    labels: Tensor  # int64 (N,); all 0 where there are masks
    classes: tuple[str, ...]
    name: str
    fingerprint: str  # sha256 over images, labels, classes and masks
    broken: tuple[Broken, ...] = ()
    masks: Tensor | None = None  # uint8 (N, H, W): a place in `classes` for every pixel, 255 where none counts
    window: Window | None = None  # the levels that became 0 and 255, where images have more than 8 bits
    groups: Labels | None = None  # of each image: those of one group are not split between training and held-out images

    def __post_init__(self) -> None:
        _check_images(self.images)
        _check_labels(self.labels, len(self.images), self.classes)
        if self.masks is not None:
            _check_masks(self.masks, self.images, self.classes)

    def __repr__(self) -> str:
        """In one line: a result that is printed must not fill the screen with pixels."""
        height, width = self.size
        return f"<ImageSet {self.name!r}: {len(self)} images of {len(self.classes)} classes at {width}x{height}>"

    def on(self, device: torch.device) -> ImageSet:
        """With its images in the memory of a device, to train on and to measure on. What is cut must be on the CPU."""
        moved = copy(self)
        object.__setattr__(moved, "images", self.images.to(device))  # without the look at them, which was taken
        return moved

    @classmethod
    def of(
        cls,
        images: Tensor,
        labels: Tensor,
        classes: tuple[str, ...],
        name: str,
        broken: tuple[Broken, ...] = (),
        window: Window | None = None,
    ) -> ImageSet:
        """The set of these images, with its fingerprint."""
        return cls(images, labels, classes, name, fingerprint(images, labels, classes), broken, window=window)

    @classmethod
    def of_masks(
        cls,
        images: Tensor,
        masks: Tensor,
        classes: tuple[str, ...],
        name: str,
        broken: tuple[Broken, ...] = (),
        window: Window | None = None,
    ) -> ImageSet:
        """Images for semantic segmentation."""
        labels = torch.zeros(len(images), dtype=torch.int64)
        return cls(images, labels, classes, name, fingerprint(images, labels, classes, masks), broken, masks, window)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width): pass it to the `load` of another split, so that both have one size."""
        height, width = self.images.shape[2:]
        return height, width

    @property
    def task(self) -> str:
        """`classification`, or `segmentation` where there are masks."""
        return "classification" if self.masks is None else "segmentation"

    def counts(self) -> tuple[int, ...]:
        """Images per class."""
        return tuple(torch.bincount(self.labels, minlength=len(self.classes)).tolist())

    def about(self) -> dict[str, Any]:
        """What a policy's provenance keeps of it."""
        return {
            "name": self.name,
            "task": self.task,
            "images": len(self),
            "classes": len(self.classes),
            "size": list(self.size),
            **({} if self.window is None else {"window": list(self.window)}),
            "fingerprint": self.fingerprint,
        }

    def subset(self, count: int, seed: int) -> ImageSet:
        """`count` images in the proportions of the whole; the same seed gives the same ones."""
        return self._take(stratify.draw(self.labels.numpy(), len(self.classes), count, seed))

    def split(self, fraction: float, seed: int) -> tuple[ImageSet, ImageSet]:
        """`fraction` of every class, and the rest; every class is in both parts, as far as groups allow it."""
        labels, count = self.labels.numpy(), len(self.classes)
        if self.groups is not None:
            first, rest = group_cut(labels, count, self.groups, fraction, seed)
        else:
            first, rest = stratify.cut(labels, count, fraction, seed)
        return self._take(first), self._take(rest)

    def merged(self, other: ImageSet) -> ImageSet:
        """The images of both, which have the same classes and size."""
        images, labels = torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels])
        return replace(
            self, images=images, labels=labels, fingerprint=fingerprint(images, labels, self.classes), groups=None
        )

    def resized(self, side: int) -> ImageSet:
        """Scaled so that the shorter side is `side`, bilinear with antialiasing; masks keep whole numbers."""
        height, width = self.size
        scale = side / min(height, width)
        size = [max(1, round(scale * height)), max(1, round(scale * width))]
        images = self.images.new_empty(len(self), 3, *size)
        for part, scaled in zip(torch.split(self.images, 256), torch.split(images, 256), strict=True):
            scaled.copy_(F.interpolate(part, size, mode="bilinear", antialias=True))
        masks = None if self.masks is None else F.interpolate(self.masks[:, None], size, mode="nearest")[:, 0]
        mark = fingerprint(images, self.labels, self.classes, masks)
        return replace(self, images=images, masks=masks, fingerprint=mark)

    def distinct(self) -> ImageSet:
        """Without copies: of images equal in every pixel the first stays, whatever their labels."""
        first: dict[bytes, int] = {}
        for place, image in enumerate(self.images.numpy()):
            first.setdefault(hashlib.sha256(image.data).digest(), place)
        return self if len(first) == len(self) else self._take(np.array(list(first.values())))

    def folds(self, count: int, seed: int) -> Iterator[tuple[ImageSet, ImageSet]]:
        """`count` times (the rest, the fold): each image is in one fold, and every class in the rest.

        The only image of its class is always in the rest.
        """
        able, labels = self.foldable, self.labels.numpy()
        if not 2 <= count <= able:
            what = "an image whose class has others" if self.groups is None else "a group whose classes have others"
            units = "images" if self.groups is None else "groups"
            raise DataError(f"every fold needs {what}, got {count} folds of {able} such {units}")
        if self.groups is not None:
            fold_of = group_folds(labels, len(self.classes), self.groups, count, seed)
        else:
            fold_of = stratify.folds(labels, len(self.classes), count, seed)
        for fold in range(count):
            yield self._take(np.flatnonzero(fold_of != fold)), self._take(np.flatnonzero(fold_of == fold))

    @property
    def foldable(self) -> int:
        """Images, or groups of them, that can be held out: their classes have others."""
        if self.groups is not None:
            return foldable_groups(self.labels.numpy(), self.groups)
        return sum(number for number in self.counts() if number > 1)

    def _take(self, index: Labels) -> ImageSet:
        rows = torch.from_numpy(index)
        images, labels = self.images[rows], self.labels[rows]
        masks = None if self.masks is None else self.masks[rows]
        mark = fingerprint(images, labels, self.classes, masks)
        groups = None if self.groups is None else self.groups[index]
        return replace(self, images=images, labels=labels, masks=masks, fingerprint=mark, groups=groups)


def fingerprint(images: Tensor, labels: Tensor, classes: tuple[str, ...], masks: Tensor | None = None) -> str:
    """sha256 over shape, class names, pixels, labels and masks."""
    digest = hashlib.sha256(json.dumps([list(images.shape), classes]).encode())
    digest.update(images.contiguous().numpy().data)
    digest.update(labels.numpy().astype("<i8").tobytes())
    if masks is not None:
        digest.update(masks.contiguous().numpy().data)
    return digest.hexdigest()


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(f"images must be uint8 of shape (N, 3, H, W), got {images.dtype} {tuple(images.shape)}")
    if not images.is_contiguous() or images.device.type != "cpu":
        raise DataError(f"images must be contiguous and on the CPU, got strides {images.stride()} on {images.device}")


def _check_labels(labels: Tensor, count: int, classes: tuple[str, ...]) -> None:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise DataError(f"labels must be int64 of shape ({count},), got {labels.dtype} {tuple(labels.shape)}")
    values = np.unique(labels.numpy())
    if len(values) and not 0 <= values[0] <= values[-1] < len(classes):
        raise DataError(f"labels must lie in 0..{len(classes) - 1}, got {values[0]}..{values[-1]}")


def _check_masks(masks: Tensor, images: Tensor, classes: tuple[str, ...]) -> None:
    shape = (len(images), *images.shape[2:])
    if masks.dtype != torch.uint8 or masks.shape != shape:
        raise DataError(f"masks must be uint8 of shape {shape}, got {masks.dtype} {tuple(masks.shape)}")
    present = torch.bincount(masks.flatten(), minlength=256)[:255].nonzero()  # needs no second copy of them
    most = int(present[-1]) if len(present) else 0
    if most >= len(classes):
        raise DataError(f"masks must hold 0..{len(classes) - 1} (or 255 for what does not count), got {most}")
