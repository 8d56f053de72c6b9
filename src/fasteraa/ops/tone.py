"""Level curves: every pixel's new level depends on its old one alone (and on the image's histogram).

A rule gives the curve at the 256 levels, as a table per image and channel, and the curve's slope there; it takes the
image's statistics as a third argument if it needs them. Looking levels up in the table is the operation, so a weighted
mixture of tone operations is one lookup in a mixed table.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps

from fasteraa._lazy import lazy_import
from fasteraa.ops.declare import Context, Op, Pair, Span, op

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
else:
    np = lazy_import("numpy")
    torch = lazy_import("torch")

Array = Any  # float64, of torch or of numpy: rules are written for both, with `xp` the module
Curve = tuple[Array, Array]  # levels 0..255 and slope, each broadcastable to (B, C, 256)


class Levels:
    """A batch as integer levels (B, C, H*W), with the statistics that rules ask for."""

    def __init__(self, index: Tensor):
        self.index = index

    @cached_property
    def low(self) -> Tensor:
        return self.index.amin(2, keepdim=True).double()

    @cached_property
    def high(self) -> Tensor:
        return self.index.amax(2, keepdim=True).double()

    @cached_property
    def counts(self) -> Tensor:
        """The histogram (B, C, 256)."""
        batch, channels, _ = self.index.shape
        if self.index.device.type == "cpu":  # faster there; elsewhere bincount waits for the device
            first = 256 * torch.arange(batch * channels, dtype=torch.int32).view(batch, channels, 1)
            counts = torch.bincount((self.index.int() + first).flatten(), minlength=256 * batch * channels)
            return counts.view(batch, channels, 256).double()
        index = self.index.long()
        counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=index.device)
        return counts.scatter_add_(2, index, torch.ones_like(index)).double()

    @cached_property
    def highest(self) -> Tensor:
        """How many pixels have the highest level (B, C, 1)."""
        return self.counts.gather(2, self.high.long())


class _PillowLevels:
    """The same statistics of one Pillow image, in numpy."""

    def __init__(self, image: Image.Image):
        self._image = image

    @cached_property
    def low(self) -> Array:
        return self._extrema[..., :1]

    @cached_property
    def high(self) -> Array:
        return self._extrema[..., 1:]

    @cached_property
    def counts(self) -> Array:
        return np.array(self._image.histogram(), dtype=np.float64).reshape(1, -1, 256)

    @cached_property
    def highest(self) -> Array:
        last = 255 - (self.counts[..., ::-1] > 0).argmax(2, keepdims=True)  # getextrema would read the image again
        return np.take_along_axis(self.counts, last, 2)

    @cached_property
    def _extrema(self) -> Array:
        return np.array(self._image.getextrema(), dtype=np.float64).reshape(1, -1, 2)


class Tone:
    name = "tone"

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        curve, _ = _curve(op, Levels(image.flatten(2)), value)
        return look_up(curve.to(torch.int32).to(torch.uint8).expand(*image.shape[:2], 256), image)  # truncated

    def quick(self, op: Op, image: Image.Image, value: float, pair: Pair) -> Image.Image:
        """Pillow spends its time building tables in Python; ours come from the rule."""
        bands = len(image.getbands())
        if not _sees_image(op):
            return _point(image, _still_table(op, value) * bands)
        curve, _ = op.rule(np, _levels(), value, _PillowLevels(image))
        return _point(image, curve.clip(0, 255).astype(np.uint8).ravel().tolist())

    def soft(self, ops: list[Op], image: Tensor, value: Tensor, weight: Tensor, context: Context) -> Tensor:
        """The mixed curve at the nearest level, plus its slope times what lies between levels.

        So an image on the 256-level grid gets exactly the curve, an identity curve leaves any image alone, and the
        image's gradient is the curve's slope.
        """
        flat = image.flatten(2)
        index = (flat.detach() * 255).round().clamp(0, 255)
        levels = Levels(index.long())
        table = torch.zeros(*flat.shape[:2], 256, dtype=image.dtype, device=image.device)
        slope = torch.zeros_like(table)
        for n, row in enumerate(ops):
            curve, steep = _curve(row, levels, (value[:, n].detach() if row.discrete else value[:, n]).double())
            share = weight[:, n, None, None]
            table = table + share * curve.to(image.dtype)
            slope = slope + share * (steep.to(image.dtype) if isinstance(steep, torch.Tensor) else steep)
        looked_up = table.gather(2, levels.index) / 255
        return (looked_up + slope.gather(2, levels.index) * (flat - index / 255)).view_as(image)


def _curve(row: Op, levels: Levels, value: Tensor) -> Curve:
    """The row's curve and slope for each image."""
    level = torch.arange(256, dtype=torch.float64, device=value.device)
    seen = (levels,) if _sees_image(row) else ()
    curve, slope = row.rule(torch, level, value[:, None, None], *seen)
    return curve.clamp(0, 255), slope


@lru_cache
def _sees_image(row: Op) -> bool:
    """A rule that ignores the image's statistics does not take them."""
    return len(signature(row.rule).parameters) == 4


@lru_cache
def _levels() -> Array:
    return np.arange(256, dtype=np.float64)


@lru_cache(maxsize=1024)
def _still_table(row: Op, value: float) -> list[int]:
    """The table of a curve that is the same for every image."""
    curve, _ = row.rule(np, _levels(), value)
    table: list[int] = curve.clip(0, 255).astype(np.uint8).tolist()
    return table


def _point(image: Image.Image, table: list[int]) -> Image.Image:
    """image.point(table) without its loop over the table in Python, which costs more than a small image."""
    image.load()  # one that was only opened has nothing inside yet
    try:
        return image._new(image.im.point(table, None))
    except (AttributeError, TypeError):  # a Pillow with other insides
        return image.point(table)


def look_up(table: Tensor, image: Tensor) -> Tensor:
    """table (B, C, 256) at the levels of the uint8 image (B, C, H, W)."""
    return table.gather(2, image.flatten(2).long()).view_as(image)


tone = Tone()


@op(tone, Span(256, 0, "level"), discrete=True, pillow=lambda image, v, _: ImageOps.solarize(image, v))
def solarize(xp: Any, level: Array, v: Array) -> Curve:
    """Invert every level at or above the threshold."""
    below = level < v
    return xp.where(below, level, 255 - level), xp.where(below, 1.0, -1.0)


@op(tone, Span(8, 4, "bit"), discrete=True, pillow=lambda image, v, _: ImageOps.posterize(image, max(1, int(v))))
def posterize(xp: Any, level: Array, v: Array) -> Curve:
    """Keep the highest bits of every level."""
    step = xp.exp2(xp.clip(8 - xp.floor(v), None, 7))  # at least one bit stays
    return xp.floor(level / step) * step, 1.0  # a staircase has no slope: straight through


@op(tone, None, pillow=lambda image, v, _: ImageOps.invert(image))
def invert(xp: Any, level: Array, v: Array) -> Curve:
    """Invert every level."""
    return 255 - level, -1.0


@op(tone, None, pillow=lambda image, v, _: ImageOps.autocontrast(image))
def auto_contrast(xp: Any, level: Array, v: Array, image: Levels) -> Curve:
    """Stretch each channel so that its lowest level becomes 0 and its highest 255."""
    span = image.high - image.low
    # 255 / span as a true division: a scalar numerator becomes a rounded reciprocal, off by one level
    scale = xp.full_like(span, 255) / xp.where(span > 0, span, 255.0)
    low = xp.where(span > 0, image.low, 0.0)
    return level * scale - low * scale, scale


@op(tone, None, pillow=lambda image, v, _: ImageOps.equalize(image))
def equalize(xp: Any, level: Array, v: Array, image: Levels) -> Curve:
    """Spread each channel's levels so that its histogram becomes flat."""
    through = image.counts.cumsum(2)
    step = xp.floor((through[..., -1:] - image.highest) / 255)
    before = through - image.counts
    spread = xp.floor((xp.floor(step / 2) + before) / xp.where(step > 0, step, 1.0))
    return xp.where(step > 0, spread, level), 1.0  # a staircase again: straight through
