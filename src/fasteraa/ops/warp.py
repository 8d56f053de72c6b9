"""Affine maps of the pixel grid. A rule gives Pillow's six coefficients: where in the source an output point looks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError
from fasteraa.images import colour_like, fill_for
from fasteraa.ops.declare import Context, Op, Pair, Span, op

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

LARGEST_SIDE = 16383  # what 32-bit fixed point holds with room for coordinates outside the image
# x_source = a x + b y + c,  y_source = d x + e y + f, in continuous coordinates (pixel centres lie at .5)
Coefficients = tuple["Tensor | float", ...]


class Warp:
    name = "warp"

    def matrix(self, op: Op, value: Tensor, width: int, height: int) -> Tensor:
        """The six coefficients of each image, (B, 6)."""
        parts = op.rule(value, width, height)
        return torch.stack([part + torch.zeros_like(value) for part in parts], 1)

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        return nearest(image, self.matrix(op, value, image.shape[3], image.shape[2]), context.fill)

    def quick(self, op: Op, image: Image.Image, value: float, pair: Pair) -> Image.Image:
        return op.pillow(image, value, pair)

    def soft(self, ops: list[Op], image: Tensor, value: Tensor, weight: Tensor, context: Context) -> Tensor:
        fill = colour_like(image, context.fill)
        source = image - fill  # grid_sample brings in zeros from outside
        out = torch.zeros_like(image)
        for n, row in enumerate(ops):
            matrix = self.matrix(row, value[:, n], image.shape[3], image.shape[2])
            share = weight[:, n, None, None, None]
            out = out + share * (bilinear(source, matrix) + fill)
        return out


warp = Warp()


def nearest(image: Tensor, matrix: Tensor, fill: tuple[int, ...] | None) -> Tensor:
    """Nearest neighbour exactly as Pillow finds it: in 16.16 fixed point, or on whole pixels where nothing turns.

    With no fill colour zeros come in from outside, whatever the channels hold (masks).
    """
    batch, channels, height, width = image.shape
    index = source_index(matrix, width, height)
    colour = image.new_zeros(1, channels, 1, 1) if fill is None else colour_like(image, fill)
    padded = torch.cat([image.flatten(2), colour.view(1, channels, 1).expand(batch, channels, 1)], 2)
    return padded.gather(2, index.view(batch, 1, -1).expand(batch, channels, -1)).view_as(image)


def source_index(matrix: Tensor, width: int, height: int) -> Tensor:
    """For each output pixel (B, H, W) the flat index of its source pixel; width * height where that is outside."""
    if max(width, height) > LARGEST_SIDE:
        raise ImageError(f"geometric operations take sides of up to {LARGEST_SIDE} pixels, got {width}x{height}")
    a, b, c, d, e, f = matrix.double().unbind(1)
    turns = (b != 0) | (d != 0)
    x_start, y_start = _fixed(c + 0.5 * a + 0.5 * b), _fixed(f + 0.5 * d + 0.5 * e)
    # 32 bits hold every coordinate that lies within twice the image
    x = torch.arange(width, device=matrix.device, dtype=torch.int32)
    y = torch.arange(height, device=matrix.device, dtype=torch.int32)[:, None]
    parts = (_fixed(a), _fixed(b), x_start, _fixed(d), _fixed(e), y_start)
    whole = [part.to(torch.int32).view(-1, 1, 1) for part in parts]
    x_source = (whole[0] * x + (whole[1] * y + whole[2])) >> 16
    y_source = (whole[3] * x + (whole[4] * y + whole[5])) >> 16
    turns = turns.view(-1, 1, 1)
    x_source = torch.where(turns, x_source, _unturned(a, c, x))
    y_source = torch.where(turns, y_source, _unturned(e, f, y))
    inside = (x_source >= 0) & (x_source < width) & (y_source >= 0) & (y_source < height)
    return torch.where(inside, y_source * width + x_source, width * height).long()


def _unturned(scale: Tensor, shift: Tensor, place: Tensor) -> Tensor:
    """Pillow's other way, in doubles: near a whole pixel the rounding of the sum decides."""
    return ((shift + 0.5 * scale).view(-1, 1, 1) + scale.view(-1, 1, 1) * place).floor().to(torch.int32)


def _fixed(number: Tensor) -> Tensor:
    return (number * 65536 + 0.5).floor()


def bilinear(image: Tensor, matrix: Tensor) -> Tensor:
    """Bilinear sampling with zeros outside, differentiable in image and matrix."""
    height, width = image.shape[2:]
    a, b, c, d, e, f = (part.view(-1, 1, 1) for part in matrix.to(image.dtype).unbind(1))
    x = torch.arange(width, dtype=image.dtype, device=image.device) + 0.5
    y = torch.arange(height, dtype=image.dtype, device=image.device)[:, None] + 0.5
    grid = torch.stack([2 * (a * x + b * y + c) / width - 1, 2 * (d * x + e * y + f) / height - 1], 3)
    return torch.nn.functional.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def move_points(points: Tensor, matrix: Tensor) -> Tensor:
    """Where the warp takes points (..., 2) given in continuous coordinates; matrix (6,)."""
    a, b, c, d, e, f = matrix.double().tolist()
    if b == 0 and d == 0:  # whole pixels, as `nearest` moves them
        c, f = _whole_shift(a, c), _whole_shift(e, f)
    x, y = points[..., 0] - c, points[..., 1] - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], -1)


def _whole_shift(scale: float, shift: float) -> float:
    return math.floor(shift + 0.5 * scale) - math.floor(0.5 * scale)


def _transform(image: Image.Image, coefficients: tuple[float, ...], pair: Pair) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=_colour(image, pair))


def _colour(image: Image.Image, pair: Pair) -> tuple[int, ...] | int:
    colour = fill_for(len(image.getbands()), pair.fill)
    return colour if len(colour) > 1 else colour[0]


@op(warp, Span(0, 0.3, "slope"), signed=True, pillow=lambda image, v, pair: _transform(image, (1, v, 0, 0, 1, 0), pair))
def shear_x(v: Tensor, width: int, height: int) -> Coefficients:
    """Shift each row in proportion to its distance from the top."""
    return 1, v, 0, 0, 1, 0


@op(warp, Span(0, 0.3, "slope"), signed=True, pillow=lambda image, v, pair: _transform(image, (1, 0, 0, v, 1, 0), pair))
def shear_y(v: Tensor, width: int, height: int) -> Coefficients:
    """Shift each column in proportion to its distance from the left."""
    return 1, 0, 0, v, 1, 0


@op(
    warp,
    Span(0, 0.45, "width"),
    signed=True,
    pillow=lambda image, v, pair: _transform(image, (1, 0, v, 0, 1, 0), pair),
)
def translate_x(v: Tensor, width: int, height: int) -> Coefficients:
    """Shift to the left."""
    return 1, 0, v, 0, 1, 0


@op(
    warp,
    Span(0, 0.45, "height"),
    signed=True,
    pillow=lambda image, v, pair: _transform(image, (1, 0, 0, 0, 1, v), pair),
)
def translate_y(v: Tensor, width: int, height: int) -> Coefficients:
    """Shift upwards."""
    return 1, 0, 0, 0, 1, v


@op(
    warp,
    Span(0, 30, "degree"),
    signed=True,
    pillow=lambda image, v, pair: image.rotate(v, fillcolor=_colour(image, pair)),
)
def rotate(v: Tensor, width: int, height: int) -> Coefficients:
    """Turn counter-clockwise about the centre."""
    angle = v * (math.pi / 180)
    cos, sin, x, y = angle.cos(), angle.sin(), width / 2, height / 2
    return cos, -sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos


@op(warp, None, pillow=lambda image, v, _: ImageOps.mirror(image))
def flip(v: Tensor, width: int, height: int) -> Coefficients:
    """Mirror left to right."""
    return -1, 0, width, 0, 1, 0
