"""Twin of `nets.pointwise` in Triton: one pass over memory where plain torch makes two to five.

Images are channels-last, float32 or bfloat16; arithmetic is float32. To a kernel an image is a table of numbers, whose
rows are `width` long: some pixels side by side, as many as fit into a program's lanes, or one pixel of many channels.
So the channel of a number is its column modulo the channels, and one compiled kernel serves every number of channels.
Sums have two stages and a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fasteraa.nets.pointwise import Pointwise, Scaled

LANES, ROWS = 128, 16  # columns and rows of a program's tile
SUM_ROWS, SUM_WARPS = 32, 8  # the same of sums, which go over several tiles
PARTS = 1024  # sums of each channel that the first stage leaves to the second
BLOCK = 512  # weights of a channel at a time
SLOT = 64  # weights begin at a multiple of this, which convolutions like
_NONE, _RELU, _SEEN = (tl.constexpr(n) for n in range(3))


@triton.jit
def _tile(rows, width, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Place of each number of a tile from the tile's beginning, and whether there is one."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * LANES + tl.arange(0, LANES)[None, :]
    return row * width + column, (row < rows) & (column < width)


@triton.jit
def _per_channel(numbers, width, channels, LANES: tl.constexpr):
    """What belongs to the channel of each column, (1, LANES)."""
    column = tl.program_id(1) * LANES + tl.arange(0, LANES)
    return tl.load(numbers + column % channels, mask=column < width, other=0.0)[None, :]


@triton.jit(do_not_specialize=["rows"])
def _forward(
    value, plus, weight, shift, total, out, rows, width, channels,
    GATE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """total := value + plus, out := weight * total + shift through a ReLU, or through the one that `out` came from."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    place, ok = _tile(rows - first, width, ROWS, LANES)
    start = first * width
    x = tl.load(value + start + place, mask=ok, other=0.0).to(tl.float32)
    if plus is not None:
        x += tl.load(plus + start + place, mask=ok, other=0.0).to(tl.float32)
    if total is not None:
        tl.store(total + start + place, x, mask=ok)
        x = x.to(total.dtype.element_ty).to(tl.float32)  # as whoever reads it
    if weight is not None:
        x *= _per_channel(weight, width, channels, LANES)
    if shift is not None:
        x += _per_channel(shift, width, channels, LANES)
    if GATE == _RELU:
        x = tl.where(x < 0, 0.0, x)  # not a number stays none
    if GATE == _SEEN:
        x = tl.where(tl.load(out + start + place, mask=ok, other=0.0).to(tl.float32) <= 0, 0.0, x)
    tl.store(out + start + place, x, mask=ok)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    gradient, out, weight, onto, delta, to, rows, width, channels, ROWS: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """delta := gradient before the ReLU, to := onto + weight * delta."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    place, ok = _tile(rows - first, width, ROWS, LANES)
    start = first * width
    seen = tl.load(out + start + place, mask=ok, other=0.0).to(tl.float32)
    x = tl.where(seen <= 0, 0.0, tl.load(gradient + start + place, mask=ok, other=0.0).to(tl.float32))
    if delta is not None:
        tl.store(delta + start + place, x, mask=ok)
    if to is not None:
        x *= _per_channel(weight, width, channels, LANES)
        if onto is not None:
            x += tl.load(onto + start + place, mask=ok, other=0.0).to(tl.float32)
        tl.store(to + start + place, x, mask=ok)


@triton.jit(do_not_specialize=["rows", "skipped", "product_at", "delta_at"])
def _sums(
    delta, value, parts, rows, skipped, width, channels, across, product_at, delta_at,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Each program adds every so-manieth tile; the columns of its sum are rows of `parts`, `across` long."""
    by_product, by_delta = tl.zeros((ROWS, LANES), tl.float32), tl.zeros((ROWS, LANES), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        place, ok = _tile(rows - first, width, ROWS, LANES)
        start = first * width
        d = tl.load(delta + start + place, mask=ok, other=0.0).to(tl.float32)
        if value is not None:
            by_product += d * tl.load(value + start + place, mask=ok, other=0.0).to(tl.float32)
        by_delta += tl.where(first + tl.arange(0, ROWS)[:, None] >= skipped, d, 0.0)
    column = tl.program_id(1) * LANES + tl.arange(0, LANES)
    part = tl.program_id(0) * (width // channels) + column // channels
    to = parts + part.to(tl.int64) * across + column % channels
    if value is not None:
        tl.store(to + product_at, tl.sum(by_product, 0), mask=column < width)
    tl.store(to + delta_at, tl.sum(by_delta, 0), mask=column < width)


@triton.jit
def _channel(table):
    """Of a channel's weights: where they begin, how many, where they go, and the place of its scale or -1."""
    row = table + tl.program_id(0) * 4
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)


@triton.jit
def _scale(weight, scale, table, out, BLOCK: tl.constexpr):
    """One channel of a convolution's output: its weights times its scale."""
    begin, count, to, at = _channel(table)
    factor = tl.load(scale + at, mask=at >= 0, other=1.0)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        w = tl.load(weight + begin + place, mask=place < count, other=0.0)
        tl.store(out + to + place, w * factor, mask=place < count)


@triton.jit
def _scale_back(gradient, weight, scale, table, to_weight, to_scale, BLOCK: tl.constexpr):
    begin, count, to, at = _channel(table)
    factor = tl.load(scale + at, mask=at >= 0, other=1.0)
    products = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        g = tl.load(gradient + begin + place, mask=place < count, other=0.0).to(tl.float32)
        products += g * tl.load(weight + begin + place, mask=place < count, other=0.0)
        tl.store(to_weight + to + place, g * factor, mask=place < count)
    tl.store(to_scale + at, tl.sum(products, 0), mask=at >= 0)


_OPTIONS = {"enable_fp_fusion": True}  # the default until Triton 3.9, which warns where nobody has said so
INTERPRETED = not isinstance(_forward, triton.runtime.JITFunction)  # TRITON_INTERPRET=1: runs anywhere, slowly


class Fused(Pointwise):
    def vector(self, parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
        return parameter.detach()

    def shifted_(self, out: Tensor, shift: Tensor | None, relu: bool) -> Tensor:
        if shift is None and not relu:
            return out
        out = _channels_last(out)
        _send(out, out, shift=shift, gate=_RELU if relu else _NONE)
        return out

    def total(self, first: Tensor, second: Tensor, relu: bool) -> Tensor:
        if not relu:
            return super().total(first, second, relu)
        out = torch.empty_like(_channels_last(first))
        _send(first, out, plus=second, gate=_RELU)
        return out

    def affine_relu(
        self, value: Tensor, plus: Tensor | None, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        value = _channels_last(value)
        x, out = value if plus is None else torch.empty_like(value), torch.empty_like(value)
        _send(value, out, plus=plus, weight=weight, shift=shift, total=None if plus is None else x, gate=_RELU)
        return x, out

    def before_relu(self, gradient: Tensor, out: Tensor) -> Tensor:
        delta = torch.empty_like(out)
        _take_back(gradient, out, delta=delta)
        return delta

    def before_affine_relu(
        self, gradient: Tensor, out: Tensor, weight: Tensor, onto: Tensor | None, keep: bool
    ) -> tuple[Tensor | None, Tensor]:
        delta, to = torch.empty_like(out) if keep else None, torch.empty_like(out)
        _take_back(gradient, out, weight, onto, delta, to)
        return delta, to

    def tangent_(self, tangent: Tensor, plus: Tensor | None, out: Tensor, relu: bool) -> Tensor:
        if not relu:
            return super().tangent_(tangent, plus, out, relu)
        _send(tangent, out, plus=plus, gate=_SEEN)
        return out

    def affine_tangent_(
        self, tangent: Tensor, plus: Tensor | None, weight: Tensor, total: Tensor, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        _send(tangent, out, plus=plus, weight=weight, total=None if plus is None else total, gate=_SEEN)
        return tangent if plus is None else total, out

    def sums(self, pairs: Sequence[tuple[Tensor, Tensor | None]], points: int) -> list[tuple[Tensor | None, Tensor]]:
        """The first stage for each pair, the second for all of them together."""
        lengths = [
            length for delta, value in pairs for length in (delta.shape[1] * (value is not None), delta.shape[1])
        ]
        parts = torch.zeros((PARTS, sum(lengths)), device=pairs[0][0].device)
        begin = 0
        for delta, value in pairs:
            begin += _add_up(delta, value, points, parts, begin)
        products, deltas = (parts.sum(0).split(lengths)[which::2] for which in (0, 1))
        return [
            (None if value is None else product, summed)
            for (_, value), product, summed in zip(pairs, products, deltas, strict=True)
        ]

    def weights(self, convolutions: Sequence[Scaled], dtype: torch.dtype) -> list[Tensor]:
        flat, scales, plan = _flat(convolutions)
        out = torch.empty(plan.length, dtype=dtype, device=flat.device)
        _scale[(len(plan.table),)](flat, scales, plan.table, out, BLOCK=BLOCK, **_OPTIONS)
        return _slots(convolutions, plan, out)

    def weight_gradients(
        self, convolutions: Sequence[Scaled], gradients: Sequence[Tensor]
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        flat, scales, plan = _flat(convolutions)
        come = torch.cat([_in_order(g, c.weight) for g, c in zip(gradients, convolutions, strict=True)])
        to_weight, to_scale = flat.new_empty(plan.length), torch.empty_like(scales)
        _scale_back[(len(plan.table),)](come, flat, scales, plan.table, to_weight, to_scale, BLOCK=BLOCK, **_OPTIONS)
        yield from zip((c.weight for c in convolutions), _slots(convolutions, plan, to_weight), strict=True)
        owners = [c.scale for c in convolutions if c.scale is not None]
        yield from zip(owners, to_scale[: sum(map(len, owners))].split([len(s) for s in owners]), strict=True)


def _send(
    value: Tensor,
    out: Tensor,
    *,
    plus: Tensor | None = None,
    weight: Tensor | None = None,
    shift: Tensor | None = None,
    total: Tensor | None = None,
    gate: tl.constexpr,
) -> None:
    rows, width = _table_of(out, len(out))
    plus = None if plus is None else _channels_last(plus)
    assert total is None or total.is_contiguous(memory_format=torch.channels_last)
    _forward[_grid(rows, width)](
        _channels_last(value), plus, weight, shift, total, out, rows, width, out.shape[1],
        GATE=gate.value, ROWS=ROWS, LANES=LANES, **_OPTIONS,
    )  # fmt: skip


def _take_back(
    gradient: Tensor,
    out: Tensor,
    weight: Tensor | None = None,
    onto: Tensor | None = None,
    delta: Tensor | None = None,
    to: Tensor | None = None,
) -> None:
    rows, width = _table_of(out, len(out))
    onto = None if onto is None else _channels_last(onto)
    _backward[_grid(rows, width)](
        _channels_last(gradient), out, weight, onto, delta, to, rows, width, out.shape[1],
        ROWS=ROWS, LANES=LANES, **_OPTIONS,
    )  # fmt: skip


def _add_up(delta: Tensor, value: Tensor | None, points: int, parts: Tensor, begin: int) -> int:
    """Fill the columns of `parts` that begin at `begin`; returns how many."""
    delta = _channels_last(delta)
    channels, pixels = delta.shape[1], delta.shape[2] * delta.shape[3]
    rows, width = _table_of(delta, len(delta), points)
    side_by_side = width // channels
    tiles, blocks = triton.cdiv(rows, SUM_ROWS), triton.cdiv(width, LANES)
    product_at, delta_at = (begin, begin) if value is None else (begin, begin + channels)
    _sums[(min(tiles, PARTS // side_by_side), blocks)](
        delta, None if value is None else _channels_last(value), parts,
        rows, points * pixels // side_by_side, width, channels, parts.shape[1], product_at, delta_at,
        ROWS=SUM_ROWS, LANES=LANES, num_warps=SUM_WARPS, **_OPTIONS,
    )  # fmt: skip
    return delta_at + channels - begin


def _table_of(images: Tensor, *counts: int) -> tuple[int, int]:
    """Rows and width of the table that images are to a kernel; so many first images are always whole rows."""
    assert images.is_contiguous(memory_format=torch.channels_last)
    channels, pixels = images.shape[1], images.shape[2] * images.shape[3]
    common = math.gcd(*counts) * pixels
    together = next(n for n in range(max(1, LANES // channels), 0, -1) if common % n == 0)
    return len(images) * pixels // together, together * channels


def _grid(rows: int, width: int) -> tuple[int, int]:
    return triton.cdiv(rows, ROWS), triton.cdiv(width, LANES)


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


class _Plan(NamedTuple):
    table: Tensor  # (channels of all outputs, 4), as `_channel` reads it
    length: int  # of all slots
    slots: tuple[int, ...]  # where the weights of each convolution begin


def _flat(convolutions: Sequence[Scaled]) -> tuple[Tensor, Tensor, _Plan]:
    """All weights one after the other, all scales, and what the kernels must know about them."""
    weights = [c.weight.detach() for c in convolutions]
    shapes = tuple((len(c.weight), c.weight[0].numel(), c.scale is not None) for c in convolutions)
    scales = [c.scale.detach() for c in convolutions if c.scale is not None]
    flat = torch.cat([_in_order(weight, weight) for weight in weights])
    return flat, torch.cat(scales) if scales else flat[:1], _plan(shapes, flat.device)


@lru_cache(maxsize=16)
def _plan(shapes: tuple[tuple[int, int, bool], ...], device: torch.device) -> _Plan:
    """Made once: sending it to a device again would make the host wait, and cannot be recorded."""
    table, slots, begin, slot, at = [], [], 0, 0, 0
    for channels, count, scaled in shapes:
        table += [(begin + n * count, count, slot + n * count, at + n if scaled else -1) for n in range(channels)]
        slots.append(slot)
        begin, at = begin + channels * count, at + channels * scaled
        slot += triton.cdiv(channels * count, SLOT) * SLOT
    return _Plan(torch.tensor(table, dtype=torch.int32).to(device), slot, tuple(slots))


def _slots(convolutions: Sequence[Scaled], plan: _Plan, flat: Tensor) -> list[Tensor]:
    """Each convolution's part of `flat`, laid out as its parameter is, even in dimensions of size 1."""
    weights = [c.weight for c in convolutions]
    return [flat.as_strided(w.shape, w.stride(), slot) for w, slot in zip(weights, plan.slots, strict=True)]


def _in_order(tensor: Tensor, like: Tensor) -> Tensor:
    """Its numbers, in the order in which those of `like` lie in memory."""
    pairs = zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    if any(size > 1 and mine != theirs for size, mine, theirs in pairs):
        tensor = torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))
