"""Twin of `Plan.decode`: uniform numbers in, what to do to each image and stage out, in one kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

_ITEMS = 64  # images x stages in a program: few, so that a small batch still spreads over the device


@triton.jit(do_not_specialize=["items", "subs", "depth", "options", "width"])
def _decode(
    uniform, sub_edges, edges, option_op, probability, low, high, positive,
    op, magnitude, sign, hole, partner,
    items, subs, depth, options, width,
    ITEMS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ok = item < items
    image, stage = item // depth, item % depth
    row = uniform + image.to(tl.int64) * width
    u = row + 1 + 7 * stage
    # how many right edges were passed; the last one is 1 and never is
    u_sub = tl.load(row, mask=ok, other=0.0)
    sub = tl.zeros((ITEMS,), tl.int32)
    for index in range(subs):
        sub += (u_sub >= tl.load(sub_edges + index)).to(tl.int32)
    first = (sub * depth + stage) * options
    u_choice = tl.load(u, mask=ok, other=0.0)
    choice = tl.zeros((ITEMS,), tl.int32)
    for index in range(options):
        choice += (u_choice >= tl.load(edges + first + index, mask=ok, other=1.0)).to(tl.int32)
    at = first + choice
    acts = tl.load(u + 1, mask=ok, other=0.0) < tl.load(probability + at, mask=ok, other=0.0)
    tl.store(op + item, tl.where(acts, tl.load(option_op + at, mask=ok, other=0), -1), mask=ok)
    start, end = tl.load(low + at, mask=ok, other=0.0), tl.load(high + at, mask=ok, other=0.0)
    tl.store(magnitude + item, start + tl.load(u + 2, mask=ok, other=0.0) * (end - start), mask=ok)
    plus = tl.load(u + 3, mask=ok, other=0.0) < tl.load(positive + at, mask=ok, other=0.0)
    tl.store(sign + item, tl.where(plus, 1.0, -1.0).to(tl.float64), mask=ok)
    tl.store(hole + 2 * item, tl.load(u + 4, mask=ok, other=0.0), mask=ok)
    tl.store(hole + 2 * item + 1, tl.load(u + 5, mask=ok, other=0.0), mask=ok)
    tl.store(partner + item, tl.load(u + 6, mask=ok, other=0.0), mask=ok)


def decode(uniform: Tensor, arrays: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """uniform (B, 1 + 7 K) and the arrays of a plan on one device -> op, magnitude, sign, hole, partner."""
    subs, depth, options = arrays["edges"].shape
    shape = (len(uniform), depth)
    op = torch.empty(shape, dtype=torch.int64, device=uniform.device)
    magnitude, sign, partner = (torch.empty_like(op, dtype=torch.float64) for _ in range(3))
    hole = torch.empty((*shape, 2), dtype=torch.float64, device=uniform.device)
    items = op.numel()
    if items:
        names = ("sub_edges", "edges", "op", "probability", "low", "high", "positive")
        _decode[(triton.cdiv(items, _ITEMS),)](
            uniform, *(arrays[name] for name in names), op, magnitude, sign, hole, partner,
            items, subs, depth, options, uniform.shape[1], ITEMS=_ITEMS, num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return op, magnitude, sign, hole, partner
