"""Twin of `Plan.decode`: uniform numbers in, what to do to each image and stage out, in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

ITEMS = 64  # images x stages in a program: few, so that a small batch still spreads over the device


@triton.jit
def decoded(
    uniform, sub_edges, edges, option_op, probability, low, high, positive, pass_edges,
    item, ok, subs, depth, stages, choices, width, counts, lead,
    ITEMS: tl.constexpr,
):  # fmt: skip
    """What some images do in some of their stages: op, magnitude, sign, hole (x and y), partner."""
    image, stage = item // depth, item % depth
    turn, stage = stage // stages, stage % stages  # which pass, and which stage of it
    row = uniform + image.to(tl.int64) * width
    block = row + lead + turn * (1 + 7 * stages)
    u = block + 1 + 7 * stage
    # how many right edges were passed; the last one is 1 and never is
    u_sub, u_count = tl.load(block, mask=ok, other=0.0), tl.load(row, mask=ok, other=0.0)
    sub, passes = tl.zeros((ITEMS,), tl.int32), tl.zeros((ITEMS,), tl.int32)
    for index in range(subs):
        sub += (u_sub >= tl.load(sub_edges + index)).to(tl.int32)
    for index in range(counts):
        passes += (u_count >= tl.load(pass_edges + index)).to(tl.int32)
    first = (sub * stages + stage) * choices
    u_choice = tl.load(u, mask=ok, other=0.0)
    choice = tl.zeros((ITEMS,), tl.int32)
    for index in range(choices):
        choice += (u_choice >= tl.load(edges + first + index, mask=ok, other=1.0)).to(tl.int32)
    at = first + choice
    acts = (turn < passes) & (tl.load(u + 1, mask=ok, other=0.0) < tl.load(probability + at, mask=ok, other=0.0))
    op = tl.where(acts & ok, tl.load(option_op + at, mask=ok, other=0), -1)
    start, end = tl.load(low + at, mask=ok, other=0.0), tl.load(high + at, mask=ok, other=0.0)
    magnitude = start + tl.load(u + 2, mask=ok, other=0.0) * (end - start)
    plus = tl.load(u + 3, mask=ok, other=0.0) < tl.load(positive + at, mask=ok, other=0.0)
    sign = tl.where(plus, 1.0, -1.0).to(tl.float64)
    hole_x, hole_y = tl.load(u + 4, mask=ok, other=0.0), tl.load(u + 5, mask=ok, other=0.0)
    return op, magnitude, sign, hole_x, hole_y, tl.load(u + 6, mask=ok, other=0.0)


# what differs from policy to policy and must not lead to a compilation of its own
_ANY = ["items", "subs", "depth", "stages", "choices", "width", "counts", "lead"]


@triton.jit(do_not_specialize=_ANY)
def _decode(
    uniform, sub_edges, edges, option_op, probability, low, high, positive, pass_edges,
    op, magnitude, sign, hole, partner,
    items, subs, depth, stages, choices, width, counts, lead,
    ITEMS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ok = item < items
    its_op, its_magnitude, its_sign, hole_x, hole_y, its_partner = decoded(
        uniform, sub_edges, edges, option_op, probability, low, high, positive, pass_edges,
        item, ok, subs, depth, stages, choices, width, counts, lead, ITEMS,
    )  # fmt: skip
    tl.store(op + item, its_op, mask=ok)
    tl.store(magnitude + item, its_magnitude, mask=ok)
    tl.store(sign + item, its_sign, mask=ok)
    tl.store(hole + 2 * item, hole_x, mask=ok)
    tl.store(hole + 2 * item + 1, hole_y, mask=ok)
    tl.store(partner + item, its_partner, mask=ok)


_NAMES = ("sub_edges", "edges", "op", "probability", "low", "high", "positive", "pass_edges")


@dataclass(frozen=True)
class Decoder:
    """The arrays of a plan on one device, in the order of the kernels' parameters, and its numbers."""

    arrays: tuple[Tensor, ...]
    numbers: tuple[int, int, int, int, int, int, int]  # from `subs` to `lead`
    depth: int  # stages of an image, over all its passes


def decoder_of(arrays: Mapping[str, Tensor], most: int, single: bool) -> Decoder:
    """An image takes at most `most` passes; unless always a single one, the number before theirs says how many."""
    subs, stages, choices = arrays["edges"].shape
    depth, lead = stages * most, 0 if single else 1
    width = lead + (1 + 7 * stages) * most
    numbers = (subs, depth, stages, choices, width, arrays["pass_edges"].shape[0], lead)
    return Decoder(tuple(arrays[name] for name in _NAMES), numbers, depth)


def decode(uniform: Tensor, decoder: Decoder) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Uniform numbers of each image -> op, magnitude, sign, hole, partner."""
    shape = (uniform.shape[0], decoder.depth)
    op = torch.empty(shape, dtype=torch.int64, device=uniform.device)
    magnitude, sign, partner = (torch.empty_like(op, dtype=torch.float64) for _ in range(3))
    hole = torch.empty((*shape, 2), dtype=torch.float64, device=uniform.device)
    items = shape[0] * shape[1]
    if items:
        with torch.cuda.device_of(uniform):  # Triton launches on the current one
            _decode[(-(-items // ITEMS),)](  # Triton's own rounding takes microseconds
                uniform.contiguous(), *decoder.arrays, op, magnitude, sign, hole, partner, items, *decoder.numbers,
                ITEMS=ITEMS, num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip
    return op, magnitude, sign, hole, partner
