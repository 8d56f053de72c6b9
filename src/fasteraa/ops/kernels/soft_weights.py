"""Twin of what a soft policy does before it looks at pixels: shares, gates and physical values, and their gradients.

A stage's outcome is a record (B, 2 N + 1): the weight of each operation (its share times its gate), its magnitude, and
at last how much of the image stays as it is. Sums and exponentials are made in float64, which costs nothing for so
few numbers; physical values in float32, rounded as plain torch rounds them, because thresholds and boxes hang on them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from fasteraa.ops.kernels.hard import COUNTED, FINE, OF_HEIGHT, OF_WIDTH

# beside the value of each operation and its slope: cosine and sine of the turn, the corners of the box, included
EXTRAS = tl.constexpr(6)
_CHUNK = 32  # images that a program of `_weigh_back` looks at together


@triton.jit
def _shares(choice, lane, ok, TEMPERATURE: tl.constexpr):
    """softmax(w / eta) over the operations."""
    scaled = tl.load(choice + lane, mask=ok, other=-float("inf")).to(tl.float64) / TEMPERATURE
    power = tl.where(ok, tl.exp(tl.where(ok, scaled - tl.max(scaled), 0.0)), 0.0)
    return power / tl.sum(power)


@triton.jit
def _inner(probability, lane, ok, EDGE: tl.constexpr):
    """Probabilities squeezed into the open interval."""
    p = tl.load(probability + lane, mask=ok, other=0.5).to(tl.float64)
    return EDGE + (1 - 2 * EDGE) * tl.minimum(tl.maximum(p, 0.0), 1.0)


@triton.jit
def _gates(inner, uniform, TEMPERATURE: tl.constexpr, TINY: tl.constexpr):
    """sigmoid((logit p + logit u) / lambda)."""
    u = tl.minimum(tl.maximum(uniform.to(tl.float64), TINY), 1 - TINY)
    logits = tl.log(inner / (1 - inner)) + tl.log(u / (1 - u))
    return 1 / (1 + tl.exp(-logits / TEMPERATURE))


_ANY = ["stage", "stages", "images", "count", "height", "width"]


@triton.jit(do_not_specialize=_ANY)
def _weigh(
    choice, probability, magnitude, sub_policy, uniform, sign, hole, spans, record, values,
    stage, stages, images, count, height, width,
    CHOICE: tl.constexpr, GATE: tl.constexpr, EDGE: tl.constexpr, TINY: tl.constexpr,
    ROTATE: tl.constexpr, CUTOUT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    lane = tl.arange(0, LANES)
    ok = lane < count
    row = (tl.load(sub_policy + image).to(tl.int32) * stages + stage) * count
    drawn = (stage * images + image) * count + lane
    share = _shares(choice + row, lane, ok, CHOICE)
    gate = _gates(_inner(probability + row, lane, ok, EDGE), tl.load(uniform + drawn, mask=ok, other=0.5), GATE, TINY)
    raw = tl.load(magnitude + row + lane, mask=ok, other=0.0)
    unit = raw + (tl.minimum(tl.maximum(raw, 0.0), 1.0) - raw)
    out = record + image * (2 * count + 1)
    tl.store(out + lane, (share * gate).to(tl.float32), mask=ok)
    tl.store(out + count + lane, unit, mask=ok)
    tl.store(out + 2 * count, tl.sum(tl.where(ok, share * (1 - gate), 0.0)).to(tl.float32))
    # the physical value, as `physical` calculates it, and its derivative
    span = spans + lane * 4
    at_zero = tl.load(span, mask=ok, other=0.0).to(tl.float32)
    extent = tl.load(span + 1, mask=ok, other=0.0).to(tl.float32)
    signed, measured = tl.load(span + 2, mask=ok, other=0.0), tl.load(span + 3, mask=ok, other=0.0)
    s = tl.where(signed > 0, tl.load(sign + drawn, mask=ok, other=1.0).to(tl.float32), 1.0)
    side = tl.where(measured == OF_WIDTH, width, tl.where(measured == OF_HEIGHT, height, 1)).to(tl.float32)
    v = (at_zero + s * unit * extent) * side
    v = tl.where(measured == COUNTED, tl.floor(v * FINE + 0.5) / FINE, v)
    out = values + image * (2 * count + EXTRAS)
    tl.store(out + lane, v, mask=ok)
    tl.store(out + count + lane, s * extent * side, mask=ok)
    if ROTATE >= 0:
        angle = tl.sum(tl.where(lane == ROTATE, v, 0.0)).to(tl.float64) * 0.017453292519943295
        tl.store(out + 2 * count, tl.cos(angle).to(tl.float32))
        tl.store(out + 2 * count + 1, tl.sin(angle).to(tl.float32))
    if CUTOUT >= 0:
        size = tl.sum(tl.where(lane == CUTOUT, v, 0.0)).to(tl.float64)
        place = hole + (stage * images + image) * 2
        wide, high = width.to(tl.float64), height.to(tl.float64)
        left = tl.floor(tl.maximum(tl.load(place).to(tl.float64) * wide - size / 2, 0.0))
        top = tl.floor(tl.maximum(tl.load(place + 1).to(tl.float64) * high - size / 2, 0.0))
        right = tl.where(size > 0, tl.floor(tl.minimum(left + size, wide)), -1.0)  # a box of size 0 has no pixels
        bottom = tl.floor(tl.minimum(top + size, high))
        tl.store(out + 2 * count + 2, left.to(tl.float32))
        tl.store(out + 2 * count + 3, top.to(tl.float32))
        tl.store(out + 2 * count + 4, right.to(tl.float32))
        tl.store(out + 2 * count + 5, bottom.to(tl.float32))


@triton.jit(do_not_specialize=_ANY)
def _weigh_back(
    choice, probability, sub_policy, uniform, gradient, to_choice, to_probability, to_magnitude,
    stage, stages, images, count,
    CHOICE: tl.constexpr, GATE: tl.constexpr, EDGE: tl.constexpr, TINY: tl.constexpr,
    LANES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One sub-policy: the sums over the images that drew it, in their order."""
    sub = tl.program_id(0)
    lane = tl.arange(0, LANES)
    ok = lane < count
    row = (sub * stages + stage) * count
    share, inner = _shares(choice + row, lane, ok, CHOICE), _inner(probability + row, lane, ok, EDGE)
    by_share, by_logit = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
    by_magnitude = tl.zeros((LANES,), tl.float64)
    for first in range(0, images, CHUNK):
        image = first + tl.arange(0, CHUNK)
        mine = tl.load(sub_policy + image, mask=image < images, other=-1) == sub
        both = mine[:, None] & ok[None, :]
        come = gradient + image[:, None] * (2 * count + 1) + lane[None, :]
        by_weight = tl.load(come, mask=both, other=0.0).to(tl.float64)
        by_kept = tl.load(gradient + image * (2 * count + 1) + 2 * count, mask=mine, other=0.0).to(tl.float64)[:, None]
        drawn = (stage * images + image)[:, None] * count + lane[None, :]
        gate = _gates(inner[None, :], tl.load(uniform + drawn, mask=both, other=0.5), GATE, TINY)
        by_share += tl.sum(by_weight * gate + by_kept * (1 - gate), 0)
        by_logit += tl.sum((by_weight - by_kept) * (gate * (1 - gate)), 0)
        by_magnitude += tl.sum(tl.load(come + count, mask=both, other=0.0).to(tl.float64), 0)
    by_choice = share * (by_share - tl.sum(tl.where(ok, share * by_share, 0.0))) / CHOICE
    by_probability = by_logit * share * ((1 - 2 * EDGE) / GATE) / (inner * (1 - inner))
    tl.store(to_choice + row + lane, by_choice.to(tl.float32), mask=ok)
    tl.store(to_probability + row + lane, by_probability.to(tl.float32), mask=ok)
    tl.store(to_magnitude + row + lane, by_magnitude.to(tl.float32), mask=ok)


class Weigh(torch.autograd.Function):
    """choice, probability, magnitude [L, K, N] and a draw -> a record of each stage, and the values that go with it."""

    @staticmethod
    def forward(
        ctx: Any,
        choice: Tensor,
        probability: Tensor,
        magnitude: Tensor,
        drawn: tuple[Tensor, Tensor, Tensor, Tensor],  # sub_policy (B,), gate and sign (K, B, N), hole (K, B, 2)
        spans: Tensor,
        size: tuple[int, int],
        columns: dict[str, int],
        settings: dict[str, float],  # CHOICE, GATE, EDGE, TINY
    ) -> tuple[Tensor, ...]:
        sub_policy, uniform, sign, hole = drawn
        _, stages, count = choice.shape
        images, lanes = len(sub_policy), max(16, triton.next_power_of_2(count))
        records = [torch.empty((images, 2 * count + 1), device=choice.device) for _ in range(stages)]
        values = [torch.empty((images, 2 * count + EXTRAS.value), device=choice.device) for _ in range(stages)]
        for k in range(stages):
            _weigh[(images,)](
                choice, probability, magnitude, sub_policy, uniform, sign, hole, spans, records[k], values[k],
                k, stages, images, count, *size,
                **settings, ROTATE=columns["ROTATE"], CUTOUT=columns["CUTOUT"], LANES=lanes,
                num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
        ctx.save_for_backward(choice, probability, sub_policy, uniform)
        ctx.settings, ctx.lanes = settings, lanes
        ctx.mark_non_differentiable(*values)
        ctx.set_materialize_grads(False)
        return *records, *values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        choice, probability, sub_policy, uniform = ctx.saved_tensors
        subs, stages, count = choice.shape
        outputs = [torch.empty_like(choice) for _ in range(3)]
        for k in range(stages):
            come = gradients[k]
            come = torch.zeros(len(sub_policy), 2 * count + 1, device=choice.device) if come is None else come
            _weigh_back[(subs,)](
                choice, probability, sub_policy, uniform, come.contiguous(), *outputs,
                k, stages, len(sub_policy), count,
                **ctx.settings, LANES=ctx.lanes, CHUNK=_CHUNK, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        return *outputs, None, None, None, None, None
