"""The two forwards of every operation: hard (exact levels, one operation) and soft (differentiable, a mixture)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError, PolicyError
from fasteraa.images import check_batch
from fasteraa.ops.declare import SIDES, Context, Family, Number, Op, Span, find

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from fasteraa.ops.declare import Pair
else:
    torch = lazy_import("torch")

Spans = Mapping[str, Span]  # operations with another span than their own, by name
NO_SPANS: Spans = {}  # every operation has its own span
CENTRE = (0.5, 0.5)
FINE = 2**20  # parts of a pixel


def physical(row: Op, magnitude: Number, sign: Number, width: int, height: int, spans: Spans = NO_SPANS) -> Number:
    """Unit magnitude and sign -> the value the row's rule takes. Rows without a magnitude get it as it is.

    Rules take shares of a side in pixels: dividing a span in pixels by the side here, and multiplying again there,
    would lose a pixel at some sides.
    """
    span = spans.get(row.name, row.span)
    if span is None or row.span is None:
        return magnitude
    value = span.value(magnitude, sign if row.signed else 1.0)
    if span.unit == "px":
        # 1/49 of 49 pixels is one pixel, but for an ulp: whole pixels stay whole where they are counted
        return (value * FINE + 0.5) // 1 / FINE if row.discrete else value
    if row.span.unit in SIDES:
        value = value * (width if row.span.unit == "width" else height)
    return value


def hard(
    op: Op | str,
    image: Tensor,
    magnitude: Tensor | float = 0.0,
    sign: Tensor | float = 1.0,
    context: Context | None = None,
    spans: Spans = NO_SPANS,
) -> Tensor:
    """Apply one operation to uint8 images (B, C, H, W) or (C, H, W), with a magnitude and a sign per image.

    Bit-exact to Pillow. `context` holds the partner images of sample_pairing and the place of cutout's hole (the
    centre of the image if it is not given).
    """
    row = find(op) if isinstance(op, str) else op
    batch = image.unsqueeze(0) if image.ndim == 3 else image
    check_batch(batch, soft=False)
    if batch.numel() == 0:
        return image
    context = _with_hole(context or Context(), batch)
    m = _per_image(magnitude, batch, row, torch.float64)
    s = _per_image(sign, batch, row, torch.float64, low=-1.0)
    value = physical(row, m, s, batch.shape[3], batch.shape[2], spans)
    return row.family.hard(row, batch, value, context).view_as(image)


def hard_pillow(
    row: Op, image: Image.Image, magnitude: float, sign: float, pair: Pair, spans: Spans = NO_SPANS
) -> Image.Image:
    """The same to one Pillow image."""
    return row.family.quick(row, image, physical(row, magnitude, sign, image.width, image.height, spans), pair)


def soft(
    op: Op | str,
    image: Tensor,
    magnitude: Tensor | float = 0.0,
    sign: Tensor | float = 1.0,
    context: Context | None = None,
    spans: Spans = NO_SPANS,
) -> Tensor:
    """Apply one operation to float images in [0, 1], differentiable in image and magnitude."""
    row = find(op) if isinstance(op, str) else op
    batch = image.unsqueeze(0) if image.ndim == 3 else image
    check_batch(batch, soft=True)
    if batch.numel() == 0:
        return image
    m = _per_image(magnitude, batch, row, batch.dtype)[:, None]
    s = _per_image(sign, batch, row, batch.dtype, low=-1.0)[:, None]
    return soft_mixture([row], batch, m, s, torch.ones_like(m), context, spans).view_as(image)


def soft_mixture(
    ops: Sequence[Op],
    image: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    weight: Tensor,
    context: Context | None = None,
    spans: Spans = NO_SPANS,
) -> Tensor:
    """sum_n weight[:, n] * op_n(image; magnitude[:, n], sign[:, n]); the three tensors have the shape (B, N).

    Each family mixes its own operations. Discrete ones see their magnitude as a constant and get its gradient
    straight through.
    """
    height, width = image.shape[2:]
    context = _with_hole(context or Context(), image)
    out = torch.zeros_like(image)
    for family, members in _by_family(ops):
        rows = [ops[n] for n in members]
        values = [physical(ops[n], magnitude[:, n], sign[:, n], width, height, spans) for n in members]
        out = out + family.soft(rows, image, torch.stack(values, 1), _columns(weight, members), context)
    discrete = [n for n, row in enumerate(ops) if row.discrete]
    return straight_through(out, _columns(magnitude, discrete), _columns(weight, discrete)) if discrete else out


def straight_through(image: Tensor, magnitude: Tensor, weight: Tensor) -> Tensor:
    """The paper's estimator, in unit space: every pixel's derivative by a discrete magnitude is 1 (times its share)."""
    shift = (weight.detach() * magnitude).sum(1)
    return image + (shift - shift.detach()).view(-1, 1, 1, 1)


def _columns(table: Tensor, members: list[int]) -> Tensor:
    """table[:, members] without sending the list of indices to the device, which would wait."""
    return torch.stack([table[:, n] for n in members], 1)


def _by_family(ops: Sequence[Op]) -> list[tuple[Family, list[int]]]:
    groups: dict[str, tuple[Family, list[int]]] = {}
    for n, row in enumerate(ops):
        groups.setdefault(row.family.name, (row.family, []))[1].append(n)
    return list(groups.values())


def _with_hole(context: Context, image: Tensor) -> Context:
    if context.hole is not None:
        return context
    hole = torch.tensor(CENTRE, dtype=torch.float64, device=image.device).expand(len(image), 2)
    return Context(context.partner, hole, context.fill, context.hole_fill)


def _per_image(number: Tensor | float, image: Tensor, row: Op, dtype: torch.dtype, low: float = 0.0) -> Tensor:
    """A number or a tensor (B,) as a tensor (B,); numbers are checked, tensors on a GPU are not (that would wait)."""
    what = "sign" if low < 0 else "magnitude"
    if isinstance(number, torch.Tensor):
        if number.ndim > 1 or (number.ndim == 1 and len(number) != len(image)):
            raise ImageError(f"{what} must have one entry for each of {len(image)} images, got {tuple(number.shape)}")
        if number.device.type == "cpu" and not bool(((number >= low) & (number <= 1)).all()):
            raise PolicyError(f"{what} must be in [{low:g}, 1], got {number.tolist()} for op {row.name!r}")
        return number.to(image.device, dtype).expand(len(image))
    if not low <= number <= 1:
        raise PolicyError(f"{what} must be in [{low:g}, 1], got {number} for op {row.name!r}")
    return torch.full((len(image),), number, dtype=dtype, device=image.device)
