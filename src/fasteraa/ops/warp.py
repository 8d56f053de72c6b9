"""Affine maps of the pixel grid. A rule gives Pillow's six coefficients: where in the source an output point looks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError
from fasteraa.images import colour_like, fill_for
from fasteraa.ops.declare import Context, Op, Pair, Span, op

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
else:
    np = lazy_import("numpy")
    torch = lazy_import("torch")

LARGEST_SIDE = 16383  # what 32-bit fixed point holds with room for coordinates outside the image
# x_source = a x + b y + c,  y_source = d x + e y + f, in continuous coordinates (pixel centres lie at .5)
Coefficients = tuple["Tensor | float", ...]


class Warp:
    name = "warp"

    def matrix(self, op: Op, value: Tensor, width: int, height: int) -> Tensor:
        """The six coefficients of each image, (B, 6)."""
        zeros = torch.zeros_like(value)
        return torch.stack([part + zeros for part in op.rule(value, width, height)], 1)

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        matrix = self.matrix(op, value, image.shape[3], image.shape[2])
        return nearest(image, matrix, context.fill, scales(op), shifts(op))

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


@lru_cache
def scales(op: Op) -> bool:
    """Does it make things larger or smaller without turning them? Asked of the rule: asking a matrix may wait."""
    a, b, _, d, e, _ = op.rule(torch.tensor(0.37, dtype=torch.float64), 8, 8)
    return bool(b == 0 and d == 0 and not abs(a) == abs(e) == 1)


@lru_cache
def shifts(op: Op) -> bool:
    """Does it move the image and nothing else?"""
    a, b, _, d, e, _ = op.rule(torch.tensor(0.37, dtype=torch.float64), 8, 8)
    return bool(a == 1 and b == 0 and d == 0 and e == 1)


def nearest(image: Tensor, matrix: Tensor, fill: tuple[int, ...] | int, scaled: bool, shifted: bool = False) -> Tensor:
    """Nearest neighbour exactly as Pillow finds it: in 16.16 fixed point, or step by step where nothing turns.

    A single number as `fill` comes in from outside as it is, whatever the channels hold (masks). `shifted` says of all
    images that they only move: on a CPU each is then copied at once.
    """
    batch, channels, height, width = image.shape
    if max(width, height) > LARGEST_SIDE:
        raise ImageError(f"geometric operations take sides of up to {LARGEST_SIDE} pixels, got {width}x{height}")
    colour = image.new_full((1, channels, 1, 1), fill) if isinstance(fill, int) else colour_like(image, fill)
    if shifted and image.device.type == "cpu":
        far = _whole_shifts(matrix, width, height)
        if far is not None:
            return _shifted(image, far, colour)
    index = source_index(matrix, width, height, scaled).view(batch, 1, -1)
    framed = colour.repeat(batch, 1, height + 2, width + 2)  # pixels that look outside find the frame
    framed[:, :, 1:-1, 1:-1] = image
    return framed.flatten(2).gather(2, index.expand(batch, channels, -1)).view_as(image)


def _whole_shifts(matrix: Tensor, width: int, height: int) -> list[tuple[int, int]] | None:
    """How far to the right and down each image looks; None where rounding near half a pixel parts a row's two ends."""
    sides = []
    for shift, side in zip(matrix.detach().numpy()[:, 2::3].T, (width, height), strict=True):
        step = np.arange(side)
        first = np.floor(shift[:, None] + 0.5 + step) - step  # as in `_steps`
        if (first != first[:, :1]).any():
            return None
        sides.append(np.clip(first[:, 0], -side, side).astype(int).tolist())
    return list(zip(*sides, strict=True))


def _shifted(image: Tensor, far: list[tuple[int, int]], colour: Tensor) -> Tensor:
    """One copy for each image instead of a look-up for every pixel."""
    height, width = image.shape[2:]
    out = colour.expand_as(image).clone(memory_format=torch.contiguous_format)
    for target, source, (right, down) in zip(out.numpy(), image.numpy(), far, strict=True):
        to_x, from_x = _overlap(right, width)
        to_y, from_y = _overlap(down, height)
        target[:, to_y, to_x] = source[:, from_y, from_x]
    return out


@lru_cache(maxsize=1024)
def _overlap(shift: int, side: int) -> tuple[slice, slice]:
    """Which part of a side is still seen: where it goes, and where it was."""
    to, at, length = max(0, -shift), max(0, shift), side - abs(shift)
    return slice(to, to + length), slice(at, at + length)


def source_index(matrix: Tensor, width: int, height: int, scaled: bool) -> Tensor:
    """For each output pixel (B, H, W) the flat index of its source pixel in the framed image (height+2, width+2)."""
    matrix = matrix.double()
    turns = (matrix[:, 1:4:2] != 0).any(1).view(-1, 1, 1)
    if matrix.device.type == "cpu" and not turns.any():  # asking a GPU would wait for it
        x, y = _unturned(matrix, width, height, scaled)
    elif matrix.device.type == "cpu" and turns.all():
        x, y = _turned(matrix, width, height)
    else:
        both = zip(_turned(matrix, width, height), _unturned(matrix, width, height, scaled), strict=True)
        x, y = (torch.where(turns, turned, unturned) for turned, unturned in both)
    row = y.clamp_(-1, height).add_(1).mul_(width + 2)
    return (row + x.clamp_(-1, width).add_(1)).long()


def _turned(matrix: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """In 16.16 fixed point. 32 bits hold every coordinate that lies within twice the image."""
    a, b, c, d, e, f = matrix.unbind(1)
    centred = torch.stack([a, b, c + 0.5 * a + 0.5 * b, d, e, f + 0.5 * d + 0.5 * e])
    a, b, c, d, e, f = (centred * 65536 + 0.5).floor().to(torch.int32).view(6, -1, 1, 1).unbind(0)
    x = torch.arange(width, device=matrix.device, dtype=torch.int32)
    y = torch.arange(height, device=matrix.device, dtype=torch.int32)[:, None]
    x, y = a * x + (b * y + c), d * x + (e * y + f)
    return x.bitwise_right_shift_(16), y.bitwise_right_shift_(16)


def _unturned(matrix: Tensor, width: int, height: int, scaled: bool) -> tuple[Tensor, Tensor]:
    """Where nothing turns, Pillow steps along each axis in doubles."""
    a, _, c, _, e, f = matrix.unbind(1)
    return _steps(a, c, width, scaled).unsqueeze(1), _steps(e, f, height, scaled).unsqueeze(2)


def _steps(scale: Tensor, shift: Tensor, count: int, scaled: bool) -> Tensor:
    """(B, count): near a whole pixel the rounding of the sums decides. Steps of 1 can be taken at once."""
    places = [shift + 0.5 * scale]
    if not scaled:
        at_once = places[0][:, None] + scale[:, None] * torch.arange(count, device=scale.device)
        return at_once.floor().to(torch.int32)
    for _ in range(count - 1):
        places.append(places[-1] + scale)
    return torch.stack(places, 1).floor().to(torch.int32)


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
    if b == 0 and d == 0:
        c, f = _whole_shift(a, c), _whole_shift(e, f)
    x, y = points[..., 0] - c, points[..., 1] - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], -1)


def cut_at_border(points: Tensor, width: int, height: int) -> Tensor:
    """The part of a convex polygon (P, 2) that lies in the image: none or at least three points."""
    for axis, limit, inwards in ((0, 0.0, 1.0), (0, float(width), -1.0), (1, 0.0, 1.0), (1, float(height), -1.0)):
        depth = (points[:, axis] - limit) * inwards
        if len(points) == 0 or bool((depth >= 0).all()):
            continue
        ends, end_depth = points.roll(-1, 0), depth.roll(-1)
        crosses = (depth > 0) != (end_depth > 0)
        share = torch.where(crosses, depth / (depth - end_depth), 0)[:, None]
        crossing = points + share * (ends - points)
        crossing[:, axis] = limit  # to the last digit
        # each point that is inside, and after it the place where the next side crosses the border
        both = torch.stack([points, crossing], 1).view(-1, 2)
        points = both[torch.stack([depth > 0, crosses], 1).view(-1)]
    return points


def _whole_shift(scale: float, shift: float) -> float:
    """`nearest` moves by whole pixels, unless it makes things larger or smaller."""
    return math.floor(shift + 0.5 * scale) - math.floor(0.5 * scale) if abs(scale) == 1 else shift


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
