"""Boxes painted over. A rule gives the box of each image, corners included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError
from fasteraa.images import colour_like, fill_for
from fasteraa.ops.declare import Context, Op, Pair, Span, op

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

Box = tuple["Tensor", "Tensor", "Tensor", "Tensor"]  # left, top, right, bottom, all inclusive; (B,)


class Erase:
    name = "erase"

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        inside = self._inside(op, image, value, context).to(image.dtype)
        # differences wrap around at 256, and back; where() takes ten times as long on a CPU
        return (colour_like(image, context.hole_fill) - image).mul_(inside).add_(image)

    def quick(self, op: Op, image: Image.Image, value: float, pair: Pair) -> Image.Image:
        return op.pillow(image, value, pair)

    def soft(self, ops: list[Op], image: Tensor, value: Tensor, weight: Tensor, context: Context) -> Tensor:
        colour = colour_like(image, context.hole_fill)
        out = torch.zeros_like(image)
        for n, row in enumerate(ops):
            # a box is whole pixels: no gradient can come through it but straight through
            inside = self._inside(row, image, value[:, n].detach().double(), context)
            out = out + weight[:, n, None, None, None] * torch.where(inside, colour, image)
        return out

    def _inside(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        """(B, 1, H, W): is the pixel in its image's box? A box of size 0 has no pixels."""
        if context.hole is None:
            raise ImageError(f"{op.name} needs the place of its hole for each image, got none")
        height, width = image.shape[2:]
        box = op.rule(value, width, height, context.hole.double())
        left, top, right, bottom = (part.view(-1, 1, 1, 1) for part in box)
        x = torch.arange(width, device=image.device)
        y = torch.arange(height, device=image.device)[:, None]
        across = (x >= left) & (x <= right)
        down = (y >= top) & (y <= bottom) & (value > 0).view(-1, 1, 1, 1)
        inside: Tensor = across & down  # only here as large as the image
        return inside


erase = Erase()


def _pillow_cutout(image: Image.Image, v: float, pair: Pair) -> Image.Image:
    if v <= 0:
        return image
    left = int(max(0, pair.hole[0] * image.width - v / 2))
    top = int(max(0, pair.hole[1] * image.height - v / 2))
    image, colour = image.copy(), fill_for(len(image.getbands()), pair.hole_fill)
    corners = (left, top, min(image.width, left + v), min(image.height, top + v))
    ImageDraw.Draw(image).rectangle(corners, colour if len(colour) > 1 else colour[0])
    return image


@op(erase, Span(0, 0.5, "width"), discrete=True, pillow=_pillow_cutout)
def cutout(v: Tensor, width: int, height: int, hole: Tensor) -> Box:
    """Paint a square, placed anywhere, in one colour."""
    left = (hole[:, 0] * width - v / 2).clamp(min=0).trunc()
    top = (hole[:, 1] * height - v / 2).clamp(min=0).trunc()
    right = (left + v).clamp(max=width).trunc()
    bottom = (top + v).clamp(max=height).trunc()
    return left, top, right, bottom
