"""Masks: the class of every pixel as a whole number, for semantic segmentation.

0..254 are classes, 255 is "not counted" (void, unlabelled, outside). Masks never go through colour conversion and are
scaled by nearest neighbour alone: a number between two classes would be a third one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fasteraa.data.decode import Look, Unreadable, fit, pixels, shape_of, turned
from fasteraa.data.source import Listing
from fasteraa.errors import DataError

IGNORED = 255
Mask = NDArray[np.uint8]
Pair = tuple[Image.Image, Any]  # an image, and its mask: a Pillow image, an array or a tensor


def mask_listing(
    count: int,
    pair: Callable[[int], Pair],
    where: Callable[[int], str],
    names: tuple[str, ...] = (),
    ignored: int = 0,
    threads: bool = True,
) -> Listing:
    """Images with masks; `names` are those of the classes in the masks, where the source knows them.

    Every image counts as of one and the same class, so that subsets and splits are plain draws.
    """
    labels = np.zeros(count, dtype=np.int64)
    return Listing(
        ("images",), labels, lambda i: pair(i)[0], where, ignored, threads, declared=True, pair=pair, mask_names=names
    )


def is_mask(value: Any) -> bool:
    """Does an item's second part say something for every pixel? Labels are numbers or text."""
    if isinstance(value, Image.Image):
        return True
    return isinstance(value, (np.ndarray, Tensor)) and _plane(tuple(value.shape)) is not None


def _plane(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """(height, width) of (H, W), (1, H, W) or (H, W, 1)."""
    if len(shape) == 3 and 1 in (shape[0], shape[2]):
        shape = shape[1:] if shape[0] == 1 else shape[:2]
    return (shape[0], shape[1]) if len(shape) == 2 and min(shape) > 1 else None


def as_mask(value: Any, look: Look) -> Mask:
    """uint8 (H, W), from a Pillow image of class numbers or a whole-numbered array."""
    if isinstance(value, Image.Image):
        return _of_image(value, look)
    array = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    plane = _plane(array.shape)
    if plane is None or array.dtype.kind not in "iub":
        raise Unreadable(f"a mask must hold a whole number for every pixel, got {array.dtype} of shape {array.shape}")
    return _in_range(array.reshape(plane))


def _of_image(image: Image.Image, look: Look) -> Mask:
    image.load()
    if image.mode not in ("1", "L", "P", "I") and not image.mode.startswith("I;16"):
        raise Unreadable(
            f"a mask must hold class numbers (mode L or P), got mode {image.mode}: turn its colours into numbers first"
        )
    return _in_range(np.asarray(turned(image, look)))  # of mode P the numbers, not the colours of the palette


def _in_range(numbers: NDArray[Any]) -> Mask:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high > IGNORED:
        raise Unreadable(f"a mask's class numbers must lie in 0..254 (255 is not counted), got {low}..{high}")
    return numbers.astype(np.uint8)


def pair_pixels(pair: Pair, size: tuple[int, int], look: Look, ignore: int) -> tuple[NDArray[np.uint8], Mask]:
    """(3, height, width) and (height, width): the same cut of both."""
    image, value = pair
    mask = matching_mask(shape_of(image, look), value, look)
    mask = np.where(mask == ignore, np.uint8(IGNORED), mask)
    fitted = fit(Image.fromarray(mask), size, Image.Resampling.NEAREST)
    return pixels(image, size, look), np.asarray(fitted)


def matching_mask(shape: tuple[int, int], value: Any, look: Look) -> Mask:
    """The mask of an image of (height, width)."""
    mask = as_mask(value, look)
    if mask.shape != shape:
        raise Unreadable(
            f"the mask is {mask.shape[1]}x{mask.shape[0]}, the image {shape[1]}x{shape[0]}: both must have one size"
        )
    return mask


def class_names(masks: Tensor, names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The classes of uint8 masks: by the source's names, or their numbers up to the largest that occurs."""
    present = torch.bincount(masks.flatten(), minlength=256)[:IGNORED].nonzero().flatten()
    if not len(present):
        raise DataError(f"the masks of {name} hold nothing but {IGNORED}, which is not counted")
    most = int(present[-1])
    if names and most >= len(names):
        raise DataError(f"{name} names {len(names)} classes, but its masks hold the number {most}")
    return names or tuple(map(str, range(most + 1)))
