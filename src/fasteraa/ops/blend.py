"""Blends: a straight line from one image through another, `start + v * (end - start)`, clipped to the range of levels.

Pillow's enhancers start at a degenerate image (black, grey, blurred) and end at the original, so v = 1 is the identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageEnhance

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError
from fasteraa.images import luma
from fasteraa.ops.declare import Context, Op, Pair, Span, op

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

Ends = tuple["Tensor", "Tensor"]


class Blend:
    name = "blend"

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        start, end = op.rule(image.float(), replace(context, whole=True))
        # float32, one rounding per operation and truncation, as Pillow's C code does it
        blended: Tensor = (end - start).mul_(value.float().view(-1, 1, 1, 1)).add_(start)
        return blended.clamp_(0, 255).to(torch.int16).to(torch.uint8)  # by way of int16: 4 times as fast on a CPU

    def quick(self, op: Op, image: Image.Image, value: float, pair: Pair) -> Image.Image:
        return op.pillow(image, value, pair)

    def soft(self, ops: list[Op], image: Tensor, value: Tensor, weight: Tensor, context: Context) -> Tensor:
        out = torch.zeros_like(image)
        for n, row in enumerate(ops):
            start, end = row.rule(image, context)
            blended = start + value[:, n, None, None, None] * (end - start)
            out = out + weight[:, n, None, None, None] * blended.clamp(0, 1)
        return out


blend = Blend()


def smooth(image: Tensor, whole: bool) -> Tensor:
    """Pillow's SMOOTH filter: 3x3 with a centre of 5, sum 13, the outermost pixels as they were.

    The sums run along the flat image, which is several times faster than along its rows; what wraps around lands in
    the first and last column, and those are put back.
    """
    height, width = image.shape[2:]
    if min(height, width) < 3:
        return image
    flat = image.flatten(2)
    rows = (flat[..., : -2 * width] + flat[..., width:-width]).add_(flat[..., 2 * width :])
    total = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:]).add_(flat[..., width + 1 : -width - 1], alpha=4)
    out = flat.clone()
    # whole sums are 1/26 or more away from where the nearest level changes, so a rounded 1 / 13 does
    out[..., width + 1 : -width - 1] = total.add_(6.5).mul_(1 / 13).floor_() if whole else total / 13
    out = out.view_as(image)
    out[..., :: width - 1] = image[..., :: width - 1]
    return out


def mean_level(grey: Tensor, whole: bool) -> Tensor:
    """The mean of each image (B, 1, 1, 1), to the nearest level if they are whole."""
    if not whole:
        return grey.mean((1, 2, 3), keepdim=True)
    # a GPU's mean multiplies by a rounded 1 / count, which misses exact halves: divide, and by a tensor
    total = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
    return ((2 * total + grey[0].numel()) / torch.full_like(total, 2 * grey[0].numel())).floor().to(grey.dtype)


def _enhance(kind: str) -> Any:
    return lambda image, v, _: getattr(ImageEnhance, kind)(image).enhance(v)


@op(blend, Span(1, 1.9, "factor"), signed=True, pillow=_enhance("Contrast"))
def contrast(image: Tensor, context: Context) -> Ends:
    """Away from (or towards) the image's mean grey."""
    return mean_level(luma(image, context.whole), context.whole), image


@op(blend, Span(1, 1.9, "factor"), signed=True, pillow=_enhance("Color"))
def color(image: Tensor, context: Context) -> Ends:
    """Away from (or towards) the grey image."""
    return luma(image, context.whole), image


@op(blend, Span(1, 1.9, "factor"), signed=True, pillow=_enhance("Brightness"))
def brightness(image: Tensor, context: Context) -> Ends:
    """Away from (or towards) black."""
    return image.new_zeros(1, 1, 1, 1), image


@op(blend, Span(1, 1.9, "factor"), signed=True, pillow=_enhance("Sharpness"))
def sharpness(image: Tensor, context: Context) -> Ends:
    """Away from (or towards) the smoothed image."""
    return smooth(image, context.whole), image


def _pillow_pairing(image: Image.Image, v: float, pair: Pair) -> Image.Image:
    if pair.partner is None:
        raise ImageError("sample_pairing needs a partner image, got none")
    return Image.blend(image, pair.partner, v)


@op(blend, Span(0, 0.4, "share"), pillow=_pillow_pairing)
def sample_pairing(image: Tensor, context: Context) -> Ends:
    """Mix in another image."""
    if context.partner is None:
        raise ImageError("sample_pairing needs a partner image for each image, got none")
    return image, context.partner.to(image.dtype)
