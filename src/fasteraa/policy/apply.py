"""The hard forward: do what was drawn, exactly, to Pillow images, tensors, masks, boxes and points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Generator, Tensor

from fasteraa.errors import ImageError
from fasteraa.images import check_batch, join_alpha, split_alpha
from fasteraa.ops import Context, Op, Pair, hard_pillow, physical
from fasteraa.ops.kernels import available, choose
from fasteraa.ops.tone import look_up
from fasteraa.ops.warp import LARGEST_SIDE, cut_at_border, move_points, nearest, scales, warp
from fasteraa.policy.draw import Deed, Draw, Plan, plan_of
from fasteraa.policy.no_compile import eager
from fasteraa.policy.policy import Policy

if TYPE_CHECKING:
    from fasteraa.ops.kernels.hard import Rules

Normal = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel
_CACHED = 2**19  # values treated at once on a CPU: more leave its cache, fewer make more calls


@eager
def augment(
    policy: Policy,
    batch: Tensor,
    generator: Generator | None = None,
    pool: Tensor | None = None,
    *,
    kernels: bool | None = None,
    normalise: Normal | None = None,
    chunk: int = 1,
) -> Tensor:
    """Augment uint8 images (B, C, H, W), each with its own draw. Partners come from the pool, or from the batch.

    `kernels` and `normalise` as in `apply_draw`; images of a `chunk` share their sub-policy and its operations.
    Without a generator chance comes from the default one of the batch's device.
    """
    check_batch(batch, soft=False)
    normal = None if normalise is None else normal_levels(normalise, batch)
    if batch.numel() == 0:
        return batch if normal is None else batch.float()
    plan = plan_of(policy)
    if pool is not None:
        check_batch(pool, soft=False, what="the pool")
    pool = pool if plan.pairs else None  # one that lies elsewhere keeps kernels away, so only where it is needed
    kernels, partners = _choose(kernels, batch, pool), batch if pool is None else pool
    if kernels and not _rules(policy, plan, batch.device).missing:
        uniform = plan.uniform(len(batch), generator, batch.device, chunk)
        return _by_kernels(policy, plan, batch, uniform, partners, normal)
    draw = plan.draw(len(batch), generator, batch.device, kernels, chunk)
    return _do(policy, plan, batch, draw, partners, kernels, normal)


def apply_draw(
    policy: Policy,
    plan: Plan,
    batch: Tensor,
    draw: Draw,
    pool: Tensor | None = None,
    kernels: bool | None = None,
    normalise: Normal | None = None,
) -> Tensor:
    """Do what was drawn, stage by stage, by Triton kernels or in plain torch: the same bytes.

    `normalise`, a mean and a standard deviation for each channel in [0, 1], asks for float32 images,
    (level / 255 - mean) / deviation: the last kernel writes them, and they are the same to the bit on any device.

    Batches on a GPU where Triton works go through kernels; `kernels=False` asks for plain torch, and `kernels=True`
    for an error where it would have to be plain torch.
    """
    normal = None if normalise is None else normal_levels(normalise, batch)
    partners = batch if pool is None else pool
    return _do(policy, plan, batch, draw, partners, _choose(kernels, batch, pool), normal)


def _do(
    policy: Policy, plan: Plan, batch: Tensor, draw: Draw, partners: Tensor, kernels: bool, normal: Tensor | None
) -> Tensor:
    if kernels:
        return _by_kernels(policy, plan, batch, draw, partners, normal)
    out = _by_runs(policy, plan, batch, draw, partners)
    return out if normal is None else look_up(normal.expand(len(out), -1, -1), out)


def waits_for_nothing(policy: Policy, batch: Tensor, kernels: bool | None = None) -> bool:
    """Does `augment` do all of it on a GPU without asking for a result, so that a CUDA graph can hold it?"""
    if batch.numel() == 0 or not _choose(kernels, batch, None):
        return False
    return batch.is_cuda and not _rules(policy, plan_of(policy), batch.device).missing


def normal_levels(normalise: Normal, batch: Tensor) -> Tensor:
    """What each level of each channel becomes: float32 (C, 256) on the batch's device, rounded once."""
    try:
        mean, deviation = (tuple(map(float, part)) for part in normalise)
    except (TypeError, ValueError) as error:
        raise ImageError(f"normalise must be a mean and a deviation for each channel, got {normalise!r}") from error
    if not len(mean) == len(deviation) == batch.shape[1]:
        raise ImageError(
            f"normalise must give a mean and a deviation for each of {batch.shape[1]} channels, got {normalise}"
        )
    if not all(map(math.isfinite, mean)) or not all(0 < each < math.inf for each in deviation):
        raise ImageError(f"normalise must give finite means and positive deviations, got {mean} and {deviation}")
    return _normal_levels(mean, deviation, batch.device)


@lru_cache(maxsize=64)
def _normal_levels(mean: tuple[float, ...], deviation: tuple[float, ...], device: torch.device) -> Tensor:
    """Made once for a device: sending it there again would make the host wait."""
    level = torch.arange(256, dtype=torch.float64) / 255
    columns = [(level - m) / d for m, d in zip(mean, deviation, strict=True)]
    return torch.stack(columns).float().to(device)


def _choose(kernels: bool | None, batch: Tensor, pool: Tensor | None) -> bool:
    return choose(kernels, batch.device, lambda: _against_kernels(batch, pool))


def _against_kernels(batch: Tensor, pool: Tensor | None) -> str | None:
    if not available():
        return "Triton, which is not installed"
    if not batch.is_cuda and not _interpreted():
        return f"a batch on a GPU, got one on {batch.device.type}"
    if max(batch.shape[2:]) > LARGEST_SIDE:
        return f"sides of up to {LARGEST_SIDE} pixels, got {batch.shape[3]}x{batch.shape[2]}"
    if pool is not None and (pool.device != batch.device or pool.shape[1:] != batch.shape[1:]):
        return (
            f"a pool like the batch, {tuple(batch.shape[1:])} on {batch.device}, "
            f"got {tuple(pool.shape[1:])} on {pool.device}"
        )
    return None


def _interpreted() -> bool:
    from fasteraa.ops.kernels.hard import INTERPRETED

    return INTERPRETED


def _by_kernels(
    policy: Policy, plan: Plan, batch: Tensor, draw: Draw | Tensor, partners: Tensor, normal: Tensor | None
) -> Tensor:
    """A few kernels per stage for the whole batch; rows that have none are treated in plain torch.

    Without such rows the draw may also be the uniform numbers from which a kernel decodes it.
    """
    from fasteraa.ops.kernels.hard import Stages

    device = batch.device
    rules = _rules(policy, plan, device)
    with torch.cuda.device(device) if batch.is_cuda else nullcontext():
        out = batch.contiguous()
        stages = Stages(out, rules, plan.depth, partners.contiguous(), policy.fill, policy.hole_fill)
        if isinstance(draw, Tensor):
            stages.draw(draw.to(device), plan.decoder(device))
        else:
            columns = (draw.op, draw.magnitude, draw.sign, draw.hole, draw.partner)
            stages.prepare([column.to(device).contiguous() for column in columns])
        last = plan.depth - 1 if not rules.missing else None  # plain torch takes and gives levels
        for k in range(plan.depth):
            before, out = out, stages.apply(k, out, normal if k == last else None)
            for index in rules.missing:
                assert isinstance(draw, Draw)
                _put(policy, plan.ops[index], before, out, draw, k, draw.op[:, k] == index, partners)
    if normal is not None and out.dtype == torch.uint8:
        return look_up(normal.expand(len(out), -1, -1), out)
    return out if plan.depth else out.clone()


def _rules(policy: Policy, plan: Plan, device: torch.device) -> Rules:
    from fasteraa.ops.kernels.hard import rules_of

    return plan.cached(("rules", device), lambda: rules_of(plan.ops, policy.spans, device))


def _put(
    policy: Policy, row: Op, before: Tensor, out: Tensor, draw: Draw, k: int, drew: Tensor, partners: Tensor
) -> None:
    """One operation of one stage in plain torch, written into the images that drew it."""
    order = drew.nonzero().flatten()
    if len(order):
        stage, index = _Stage(draw, k, order, out.device), order.to(out.device)
        out[index] = _apply_run(policy, row, before[index], stage, slice(None), partners)


def _by_runs(policy: Policy, plan: Plan, batch: Tensor, draw: Draw, partners: Tensor) -> Tensor:
    """Stage by stage: take out the images that drew the same operation, treat them at once, put them back."""
    most = len(batch) if batch.is_cuda else max(1, _CACHED // batch[0].numel())
    out = batch.clone(memory_format=torch.contiguous_format)
    for k in range(plan.depth):
        drawn, order = draw.op[:, k].cpu().sort()
        runs = torch.bincount(drawn + 1, minlength=len(plan.ops) + 1).tolist()
        stage = _Stage(draw, k, order, batch.device)
        order = order.to(batch.device)
        end = runs[0]  # these drew nothing
        for row, length in zip(plan.ops, runs[1:], strict=True):
            start, end = end, end + length
            for first in range(start, end, most):
                run = slice(first, min(first + most, end))
                places = order[run]
                images = out.index_select(0, places)
                _put_back(out, places, _apply_run(policy, row, images, stage, run, partners))
    return out


def _put_back(out: Tensor, places: Tensor, images: Tensor) -> None:
    if out.device.type == "cpu":  # torch's own takes 20 times as long there
        out.numpy()[places.numpy()] = images.numpy()
    else:
        out.index_copy_(0, places, images)


class _Stage:
    """One stage of a draw, in the order in which its images are treated, on their device."""

    def __init__(self, draw: Draw, k: int, order: Tensor, device: torch.device):
        order = order.to(draw.op.device)
        columns = (draw.magnitude[:, k], draw.sign[:, k], draw.hole[:, k], draw.partner[:, k])
        self.magnitude, self.sign, self.hole, self.partner = (c.index_select(0, order).to(device) for c in columns)


def _apply_run(policy: Policy, row: Op, images: Tensor, stage: _Stage, run: slice, partners: Tensor) -> Tensor:
    value = physical(row, stage.magnitude[run], stage.sign[run], images.shape[3], images.shape[2], policy.spans)
    partner = None
    if row.name == "sample_pairing":
        index = (stage.partner[run] * len(partners)).long()
        partner = partners[index.to(partners.device)].to(images.device)
    return row.family.hard(row, images, value, Context(partner, stage.hole[run], policy.fill, policy.hole_fill))


PartnerOf = Callable[[Deed, Image.Image], Image.Image]


def apply_pillow(policy: Policy, image: Image.Image, deeds: Sequence[Deed], partner_of: PartnerOf) -> Image.Image:
    """The deeds through Pillow; alpha follows the geometry and nothing else."""
    colours, alpha = split_alpha(image)
    for deed in deeds:
        partner = partner_of(deed, colours) if deed.op.name == "sample_pairing" else None
        pair = Pair(partner, deed.hole, policy.fill, policy.hole_fill)
        colours = hard_pillow(deed.op, colours, deed.magnitude, deed.sign, pair, policy.spans)
        if alpha is not None and deed.op.geometric:
            clear = Pair(None, deed.hole, (0, 0, 0), (0, 0, 0))
            alpha = hard_pillow(deed.op, alpha, deed.magnitude, deed.sign, clear, policy.spans)
    return join_alpha(colours, alpha)


def warp_matrix(policy: Policy, deed: Deed, width: int, height: int) -> Tensor:
    """The six coefficients (1, 6) of a geometric deed."""
    value = physical(deed.op, deed.magnitude, deed.sign, width, height, policy.spans)
    return warp.matrix(deed.op, torch.tensor([value], dtype=torch.float64), width, height)


def apply_mask(policy: Policy, mask: Tensor, deeds: Sequence[Deed], fill: int = 0) -> Tensor:
    """Geometry alone, nearest, `fill` from outside; mask (..., H, W) of any type."""
    height, width = mask.shape[-2:]
    flat = mask.reshape(1, -1, height, width)
    for deed in deeds:
        if deed.op.geometric and mask.numel():
            matrix = warp_matrix(policy, deed, width, height).to(mask.device)
            flat = nearest(flat, matrix, fill, scales(deed.op))
    return flat.view(mask.shape)


def apply_masks(policy: Policy, plan: Plan, masks: Tensor, draw: Draw, fill: int = 0) -> Tensor:
    """Masks (B, ..., H, W) by the draw of their images."""
    moved = [apply_mask(policy, mask, plan.deeds(draw, index), fill) for index, mask in enumerate(masks)]
    return torch.stack(moved) if moved else masks


def apply_points(policy: Policy, points: Tensor, deeds: Sequence[Deed], width: int, height: int) -> Tensor:
    """Points (..., 2) in continuous coordinates follow the geometry; they may leave the image."""
    for deed in deeds:
        if deed.op.geometric:
            points = move_points(points, warp_matrix(policy, deed, width, height)[0])
    return points


def apply_boxes(
    policy: Policy, boxes: Tensor, deeds: Sequence[Deed], width: int, height: int, *, last: bool = True
) -> Tensor:
    """Boxes (N, 4) as x1, y1, x2, y2 follow the geometry: the upright hull of what is still seen of each.

    What one stage moves out of the image is black when the next moves it back, so a box is cut at the border after each
    of them; without `last` not after the last one. A box of which nothing is left has no area.
    """
    corners = torch.stack([boxes[:, [x, y]] for x, y in ((0, 1), (2, 1), (2, 3), (0, 3))], 1)
    shapes: list[Tensor] = [cut_at_border(corner, width, height) for corner in corners]
    moves = [warp_matrix(policy, deed, width, height)[0] for deed in deeds if deed.op.geometric]
    for number, matrix in enumerate(moves, 1):
        cut = last or number < len(moves)
        moved = [move_points(shape, matrix) for shape in shapes]
        shapes = [cut_at_border(shape, width, height) if cut else shape for shape in moved]
    whole = apply_points(policy, corners, deeds, width, height)
    hulls = [
        _hull(shape) if len(shape) else _gone(corner, width, height)
        for shape, corner in zip(shapes, whole, strict=True)
    ]
    return torch.stack(hulls) if hulls else boxes


def _hull(points: Tensor) -> Tensor:
    return torch.cat([points.amin(0), points.amax(0)])


def _gone(points: Tensor, width: int, height: int) -> Tensor:
    """Where the border is nearest, without area."""
    box = _hull(torch.minimum(points.clamp(min=0), points.new_tensor([width, height])))
    return box if (box[2:] == box[:2]).any() else torch.cat([box[:2], box[:2]])
