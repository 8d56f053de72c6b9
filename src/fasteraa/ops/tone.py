"""Level curves: every pixel's new level depends on its old one alone (and on the image's histogram).

A rule gives the curve at the 256 levels, as a table per image and channel, and the curve's slope there. Looking levels
up in the table is the operation, so a weighted mixture of tone operations is one lookup in a mixed table.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from PIL import ImageOps

from fasteraa._lazy import lazy_import
from fasteraa.ops.declare import Context, Op, Span, op

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

Curve = tuple["Tensor", "Tensor | float"]  # levels 0..255 and slope, each broadcastable to (B, C, 256), float64


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
        index = self.index.long()
        counts = torch.zeros(*index.shape[:2], 256, dtype=torch.int64, device=index.device)
        return counts.scatter_add_(2, index, torch.ones_like(index)).double()


class Tone:
    name = "tone"

    def _curve(self, row: Op, levels: Levels, value: Tensor) -> Curve:
        level = torch.arange(256, dtype=torch.float64, device=levels.index.device)
        curve, slope = row.rule(level, value[:, None, None], levels)
        return curve.clamp(0, 255), slope

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        levels = Levels(image.flatten(2))
        curve, _ = self._curve(op, levels, value)
        return look_up(curve.to(torch.uint8).expand(*image.shape[:2], 256), image)  # the conversion truncates

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
            curve, steep = self._curve(row, levels, value[:, n].detach().double())
            share = weight[:, n, None, None]
            table = table + share * curve.to(image.dtype)
            slope = slope + share * (steep.to(image.dtype) if isinstance(steep, torch.Tensor) else steep)
        looked_up = table.gather(2, levels.index) / 255
        return (looked_up + slope.gather(2, levels.index) * (flat - index / 255)).view_as(image)


def look_up(table: Tensor, image: Tensor) -> Tensor:
    """table (B, C, 256) at the levels of the uint8 image (B, C, H, W)."""
    return table.gather(2, image.flatten(2).long()).view_as(image)


tone = Tone()


@op(tone, Span(256, 0, "level"), discrete=True, pillow=lambda image, v, _: ImageOps.solarize(image, v))
def solarize(level: Tensor, v: Tensor, image: Levels) -> Curve:
    """Invert every level at or above the threshold."""
    below = level < v
    return torch.where(below, level, 255 - level), torch.where(below, 1.0, -1.0)


@op(
    tone,
    Span(8, 4, "bit"),
    discrete=True,
    pillow=lambda image, v, _: ImageOps.posterize(image, max(1, int(v))),
)
def posterize(level: Tensor, v: Tensor, image: Levels) -> Curve:
    """Keep the highest bits of every level."""
    step = torch.exp2(8 - v.floor().clamp(min=1))
    return (level / step).floor() * step, 1.0  # a staircase has no slope: straight through


@op(tone, None, pillow=lambda image, v, _: ImageOps.invert(image))
def invert(level: Tensor, v: Tensor, image: Levels) -> Curve:
    """Invert every level."""
    return (255 - level).expand(len(v), 1, 256), -1.0


@op(tone, None, pillow=lambda image, v, _: ImageOps.autocontrast(image))
def auto_contrast(level: Tensor, v: Tensor, image: Levels) -> Curve:
    """Stretch each channel so that its lowest level becomes 0 and its highest 255."""
    span = image.high - image.low
    flat = span == 0
    # 255 / span as a true division: a scalar numerator becomes a rounded reciprocal, off by one level
    scale = torch.where(flat, 1.0, torch.full_like(span, 255) / span.clamp(min=1))
    return level * scale - torch.where(flat, 0.0, image.low * scale), scale


@op(tone, None, pillow=lambda image, v, _: ImageOps.equalize(image))
def equalize(level: Tensor, v: Tensor, image: Levels) -> Curve:
    """Spread each channel's levels so that its histogram becomes flat."""
    counts = image.counts
    step = ((counts.sum(2, keepdim=True) - counts.gather(2, image.high.long())) / 255).floor()
    before = counts.cumsum(2) - counts
    spread = (((step / 2).floor() + before) / step.clamp(min=1)).floor()
    return torch.where(step == 0, level, spread), 1.0  # a staircase again: straight through
