"""Batch norm, ReLU and residual of wide networks in Triton: two passes over memory in either direction.

Images are channels-last bfloat16, to a kernel a table of pixels and channels. A program goes over many pixels of a few
channels, whose numbers it needs only once. Sums are float32, have two stages and a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS, COLUMNS = 64, 64  # pixels and channels of a tile
PARTS, SUM_PARTS = 264, 132  # programs that share the pixels
LINES, LINE_COLUMNS = 256, 8  # the same of a tile of parts
_TILE = {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": 4, "enable_fp_fusion": True}
_LINE_TILE = {"LINES": LINES, "COLUMNS": LINE_COLUMNS, "num_warps": 8, "enable_fp_fusion": True}


@triton.jit
def _columns(channels, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return column, column < channels


@triton.jit
def _place(tile, column, pixels, channels, ROWS: tl.constexpr):
    row = tile * ROWS + tl.arange(0, ROWS)
    return row.to(tl.int64)[:, None] * channels + column[None, :], (row < pixels)[:, None] & (column < channels)[
        None, :
    ]


@triton.jit
def _store_sums(parts, first, second, column, channels, ok):
    place = parts + tl.program_id(0) * 2 * channels + column
    tl.store(place, tl.sum(first, 0), mask=ok)
    tl.store(place + channels, tl.sum(second, 0), mask=ok)


@triton.jit
def _sums(value, parts, pixels, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of the numbers and of their squares."""
    column, real = _columns(channels, COLUMNS)
    first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, ROWS), tl.num_programs(0)):
        place, ok = _place(tile, column, pixels, channels, ROWS)
        x = tl.load(value + place, mask=ok, other=0.0).to(tl.float32)
        first += x
        second += x * x
    _store_sums(parts, first, second, column, channels, real)


@triton.jit
def _act(value, scale, shift, out, pixels, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out := relu(scale * value + shift)"""
    column, real = _columns(channels, COLUMNS)
    slope = tl.load(scale + column, mask=real, other=0.0)[None, :]
    height = tl.load(shift + column, mask=real, other=0.0)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(pixels, ROWS), tl.num_programs(0)):
        place, ok = _place(tile, column, pixels, channels, ROWS)
        x = tl.load(value + place, mask=ok, other=0.0).to(tl.float32) * slope + height
        tl.store(out + place, tl.where(x < 0, 0.0, x).to(tl.bfloat16), mask=ok)


@triton.jit
def _back_sums(gradient, value, scale, shift, parts, pixels, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of the gradients before the ReLU, and of their products with `value`."""
    column, real = _columns(channels, COLUMNS)
    slope = tl.load(scale + column, mask=real, other=0.0)[None, :]
    height = tl.load(shift + column, mask=real, other=0.0)[None, :]
    first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, ROWS), tl.num_programs(0)):
        place, ok = _place(tile, column, pixels, channels, ROWS)
        x = tl.load(value + place, mask=ok, other=0.0).to(tl.float32)
        g = tl.load(gradient + place, mask=ok, other=0.0).to(tl.float32)
        g = tl.where(x * slope + height > 0, g, 0.0)
        first += g
        second += g * x
    _store_sums(parts, first, second, column, channels, real)


@triton.jit
def _back(
    gradient, value, scale, shift, constant, linear, plus, out, pixels, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out := scale * (gradient before the ReLU) + constant + linear * value + plus"""
    column, real = _columns(channels, COLUMNS)
    slope = tl.load(scale + column, mask=real, other=0.0)[None, :]
    height = tl.load(shift + column, mask=real, other=0.0)[None, :]
    level = tl.load(constant + column, mask=real, other=0.0)[None, :]
    rise = tl.load(linear + column, mask=real, other=0.0)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(pixels, ROWS), tl.num_programs(0)):
        place, ok = _place(tile, column, pixels, channels, ROWS)
        x = tl.load(value + place, mask=ok, other=0.0).to(tl.float32)
        g = tl.load(gradient + place, mask=ok, other=0.0).to(tl.float32)
        g = tl.where(x * slope + height > 0, g, 0.0) * slope + level + rise * x
        if plus is not None:
            g += tl.load(plus + place, mask=ok, other=0.0).to(tl.float32)
        tl.store(out + place, g.to(tl.bfloat16), mask=ok)


@triton.jit
def _added(parts, count, column, ok, channels, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """Both sums of these columns over all parts."""
    first, second = tl.zeros((LINES, COLUMNS), tl.float32), tl.zeros((LINES, COLUMNS), tl.float32)
    for begin in range(0, count, LINES):
        line = begin + tl.arange(0, LINES)
        place = parts + line[:, None] * 2 * channels + column[None, :]
        there = (line < count)[:, None] & ok[None, :]
        first += tl.load(place, mask=there, other=0.0)
        second += tl.load(place + channels, mask=there, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _scales(
    parts, weight, bias, running_mean, running_var, mean, rstd, scale, shift, count, pixels, momentum, eps, channels,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """From the sums: what norms each channel, and the running statistics."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < channels
    first, second = _added(parts, count, column, ok, channels, LINES, COLUMNS)
    middle = first / pixels
    var = tl.maximum(second / pixels - middle * middle, 0.0)
    inverse = 1 / tl.sqrt(var + eps)
    slope = tl.load(weight + column, mask=ok) * inverse
    tl.store(mean + column, middle, mask=ok)
    tl.store(rstd + column, inverse, mask=ok)
    tl.store(scale + column, slope, mask=ok)
    tl.store(shift + column, tl.load(bias + column, mask=ok) - middle * slope, mask=ok)
    before = tl.load(running_mean + column, mask=ok)
    tl.store(running_mean + column, before + momentum * (middle - before), mask=ok)
    before = tl.load(running_var + column, mask=ok)
    tl.store(running_var + column, before + momentum * (var * (pixels / (pixels - 1)) - before), mask=ok)


@triton.jit
def _back_scales(
    parts, mean, rstd, scale, constant, linear, to_weight, to_bias, count, pixels, channels,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """From the sums: gradients of weight and bias, and what the statistics' own gradients add to each pixel's."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < channels
    first, second = _added(parts, count, column, ok, channels, LINES, COLUMNS)
    middle, inverse = tl.load(mean + column, mask=ok), tl.load(rstd + column, mask=ok)
    slope = tl.load(scale + column, mask=ok)
    along = inverse * (second - middle * first)
    rise = -slope * inverse * along / pixels
    tl.store(to_weight + column, along, mask=ok)
    tl.store(to_bias + column, first, mask=ok)
    tl.store(linear + column, rise, mask=ok)
    tl.store(constant + column, -slope * first / pixels - rise * middle, mask=ok)


class Norm(NamedTuple):
    """What norms the channels of a batch: scale * value + shift."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    rstd: Tensor


def sums(value: Tensor) -> Tensor:
    """(parts, 2, channels): sums of the numbers of each channel and of their squares."""
    return _summed(_sums, value)


def statistics(layer: nn.BatchNorm2d, parts: Tensor, pixels: int) -> Norm:
    """From the sums over a batch; running statistics take it into account."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    channels = layer.num_features
    found = Norm(*torch.empty(4, channels, device=parts.device))
    _scales[(triton.cdiv(channels, LINE_COLUMNS),)](
        parts, layer.weight, layer.bias, layer.running_mean, layer.running_var,
        found.mean, found.rstd, found.scale, found.shift, len(parts), pixels, layer.momentum, layer.eps, channels,
        **_LINE_TILE,
    )  # fmt: skip
    return found


def act(value: Tensor, by: Norm) -> Tensor:
    """relu(scale * value + shift)"""
    out = torch.empty_like(value)
    pixels, channels = _size(value)
    _act[_grid(pixels, channels, PARTS)](value, by.scale, by.shift, out, pixels, channels, **_TILE)
    return out


def act_back(gradient: Tensor, value: Tensor, by: Norm, plus: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of `act`: that of `value`, with `plus` added, and those of the layer's weight and bias."""
    pixels, channels = _size(value)
    parts = _summed(_back_sums, gradient, value, by.scale, by.shift)
    constant, linear, to_weight, to_bias = torch.empty(4, channels, device=value.device)
    _back_scales[(triton.cdiv(channels, LINE_COLUMNS),)](
        parts, by.mean, by.rstd, by.scale, constant, linear, to_weight, to_bias, len(parts), pixels, channels,
        **_LINE_TILE,
    )  # fmt: skip
    out = torch.empty_like(value)
    _back[_grid(pixels, channels, PARTS)](
        gradient, value, by.scale, by.shift, constant, linear, plus, out, pixels, channels, **_TILE
    )
    return out, to_weight, to_bias


def _summed(kernel: Any, images: Tensor, *others: Tensor | None) -> Tensor:
    pixels, channels = _size(images)
    grid = _grid(pixels, channels, SUM_PARTS)
    parts = torch.empty(grid[0], 2, channels, device=images.device)
    kernel[grid](images, *others, parts, pixels, channels, **_TILE)
    return parts


def _size(images: Tensor) -> tuple[int, int]:
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype == torch.bfloat16
    return images.numel() // images.shape[1], images.shape[1]


def _grid(pixels: int, channels: int, parts: int) -> tuple[int, int]:
    return min(parts, triton.cdiv(pixels, ROWS)), triton.cdiv(channels, COLUMNS)
