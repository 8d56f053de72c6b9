"""A stage of a soft policy over a whole batch, by Triton kernels: twins of the families' soft forwards and gradients.

Forward, for each stage: `_survey` takes the statistics of each image, `_mix` writes the mixture of all operations.
Backward: `_moments` goes over the pixels once and sums up what weights and magnitudes get, tile by tile; `_finish`
adds the tiles of each image; `_spread` gives the image what comes from other places than its own pixel. `Weigh` stands
before them all and turns the policy's parameters into weights.

Plain torch is the definition. What the kernels do otherwise, to save work, changes rounding alone:

- curves are evaluated at each pixel's level, so only equalize needs a table;
- shears and shifts move along one axis and see two pixels, a turn sees four;
- the gradient of a warp is gathered, not scattered: each source pixel asks which output pixels looked at it.

Nothing is added up by several programs at once: the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fasteraa.images import fill_for
from fasteraa.ops import blend, erase, tone, warp
from fasteraa.ops.declare import Context, Op, Span
from fasteraa.ops.forward import Spans, soft_mixture
from fasteraa.ops.kernels.hard import _span_of
from fasteraa.ops.kernels.soft_backward import ABSENT, NONE, STRAIGHT, SUMS, TRUE, _finish, _moments, _spread
from fasteraa.ops.kernels.soft_forward import _mix, _survey
from fasteraa.ops.kernels.soft_weights import Weigh

# the kernels' names of the operations they know; each gets the operation's column in the policy, or -1
TWINS: dict[str, Op] = {
    "SHEAR_X": warp.shear_x,
    "SHEAR_Y": warp.shear_y,
    "TRANSLATE_X": warp.translate_x,
    "TRANSLATE_Y": warp.translate_y,
    "ROTATE": warp.rotate,
    "FLIP": warp.flip,
    "SOLARIZE": tone.solarize,
    "POSTERIZE": tone.posterize,
    "INVERT": tone.invert,
    "AUTO_CONTRAST": tone.auto_contrast,
    "EQUALIZE": tone.equalize,
    "CONTRAST": blend.contrast,
    "COLOR": blend.color,
    "BRIGHTNESS": blend.brightness,
    "SHARPNESS": blend.sharpness,
    "SAMPLE_PAIRING": blend.sample_pairing,
    "CUTOUT": erase.cutout,
}
_TILE, _WARPS_OF_TILE = 128, 4  # pixels of a program, all channels; and warps of threads
_TILES = 16  # tiles that `_finish` adds at once

INTERPRETED = not isinstance(_mix, triton.runtime.JITFunction)  # TRITON_INTERPRET=1: runs anywhere, slowly
_WARPS = ("SHEAR_X", "SHEAR_Y", "TRANSLATE_X", "TRANSLATE_Y", "ROTATE", "FLIP")
_SURVEYED = ("AUTO_CONTRAST", "EQUALIZE", "CONTRAST")
_SPREAD = (*_WARPS, "CONTRAST", "SHARPNESS")


@dataclass(frozen=True)
class Rules:
    """What a policy's operations mean to the kernels."""

    columns: dict[str, int]  # of TWINS; -1 for those that are not in the policy
    missing: tuple[int, ...]  # operations that have no kernel
    spans: Tensor  # float64 (N, 4) as in the hard kernels
    kinds: Tensor  # int32 (N,)

    def some(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self.columns[name] for name in names}


def rules_of(ops: Sequence[Op], spans: Spans, device: torch.device) -> Rules:
    """Made once for a device: sending it there again would make the host wait, and cannot be captured."""
    return _rules_of(tuple(ops), tuple(sorted(spans.items())), device)


@lru_cache(maxsize=64)
def _rules_of(ops: tuple[Op, ...], spans: tuple[tuple[str, Span], ...], device: torch.device) -> Rules:
    columns = {name: ops.index(row) if row in ops else -1 for name, row in TWINS.items()}
    with_twin = set(TWINS.values())
    kinds = [_kind(row) if row in with_twin else ABSENT.value for row in ops]
    return Rules(
        columns,
        tuple(n for n, row in enumerate(ops) if row not in with_twin),
        torch.tensor([_span_of(row, dict(spans)) for row in ops], dtype=torch.float64).to(device),
        torch.tensor(kinds, dtype=torch.int32).to(device),
    )


@cache
def _ends_pass() -> bool:
    """Does a gradient pass through torch's clamp at its very ends? From version to version it did or did not."""
    with torch.inference_mode(False), torch.enable_grad():
        end = torch.zeros((), requires_grad=True)
        (gradient,) = torch.autograd.grad(end.clamp(0, 1), end)
    return bool(gradient)


def _kind(row: Op) -> int:
    kinds = {"none": NONE, "true": TRUE, "straight-through": STRAIGHT}
    return int(kinds[row.gradient].value)


class _Stage(torch.autograd.Function):
    """One stage: images (B, C, H, W) and the record of `Weigh` -> images. All tensors float32 and contiguous."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        record: Tensor,
        originals: Tensor,
        values: Tensor,
        partner: Tensor,
        stage: int,
        rules: Rules,
        colours: tuple[float, ...],
    ) -> Tensor:
        count, channels, height, width = images.shape
        seen = _surveyed(images, rules)
        target = torch.empty_like(images)
        tiles = triton.cdiv(height * width, _TILE)
        ctx.numbers = (stage, count, record.shape[1] // 2, height, width, tiles, *colours)
        ctx.shape = {"CHANNELS": channels, "LANES": triton.next_power_of_2(channels), "TILE": _TILE}
        _mix[(count * tiles,)](
            images, originals, partner, record, values, *seen, target,
            *ctx.numbers, **rules.columns, **ctx.shape, num_warps=_WARPS_OF_TILE, enable_fp_fusion=False,
        )  # fmt: skip
        ctx.save_for_backward(images, originals, partner, record, values, *seen)
        ctx.rules, ctx.ends = rules, _ends_pass()
        return target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, come: Tensor) -> tuple[Tensor | None, ...]:
        images, originals, partner, record, values, *seen = ctx.saved_tensors
        come, rules = come.contiguous(), ctx.rules
        for_image, _, for_partner, *_ = ctx.needs_input_grad
        for_partner = for_partner and rules.columns["SAMPLE_PAIRING"] >= 0
        _, batch, count, height, width, tiles, *_ = ctx.numbers
        sums = images.new_empty((batch * tiles, 2 * count + SUMS.value), dtype=torch.float64)
        to_image = torch.empty_like(images) if for_image else come  # where nothing is asked for, nothing is written
        to_smooth = torch.empty_like(images) if for_image and rules.columns["SHARPNESS"] >= 0 else come
        to_partner = torch.empty_like(images) if for_partner else come
        _moments[(batch * tiles,)](
            images, originals, partner, record, values, *seen, come, sums, to_image, to_smooth, to_partner,
            *ctx.numbers, **rules.columns, IMAGE=for_image, PARTNER=for_partner, ENDS=ctx.ends, **ctx.shape,
            num_warps=_WARPS_OF_TILE, enable_fp_fusion=False,
        )  # fmt: skip
        to_record, to_mean = torch.empty_like(record), images.new_empty(batch)
        lanes = max(16, triton.next_power_of_2(count))
        _finish[(batch,)](
            sums, record, values, rules.kinds, to_record, to_mean, count, tiles,
            CONTRAST=rules.columns["CONTRAST"], LANES=lanes, TILES=_TILES, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        if for_image:
            _spread[(batch * tiles,)](
                record, values, come, to_image, to_smooth, to_mean, count, height, width, tiles,
                **rules.some(_SPREAD), **ctx.shape, num_warps=_WARPS_OF_TILE, enable_fp_fusion=False,
            )  # fmt: skip
        by_original = None
        if for_partner:  # as torch does it for originals[partner], in a fixed order
            by_original = torch.zeros_like(originals).index_put_((partner[ctx.numbers[0]],), to_partner, True)
        return to_image if for_image else None, to_record, by_original, None, None, None, None, None


def _surveyed(images: Tensor, rules: Rules) -> tuple[Tensor, Tensor, Tensor]:
    """Equalize's curves (B, C, 256), auto_contrast's lowest levels and scales (B, C, 2), mean greys (B,)."""
    count, channels, height, width = images.shape
    columns = rules.some(_SURVEYED)
    tables = images.new_empty((count, channels, 256) if columns["EQUALIZE"] >= 0 else 1)
    ranges, means = images.new_empty((count, channels, 2)), images.new_empty(count)
    if max(columns.values()) >= 0:
        block = min(4096, max(256, triton.next_power_of_2(height * width)))
        _survey[(count * channels,)](
            images, tables, ranges, means, height * width,
            **columns, CHANNELS=channels, BLOCK=block, num_warps=4 if block <= 1024 else 8, enable_fp_fusion=False,
        )  # fmt: skip
    return tables, ranges, means


class Drawn(Protocol):
    """The chance in a soft forward: `policy.soft.SoftDraw`."""

    @property
    def sub_policy(self) -> Tensor: ...
    @property
    def gate(self) -> Tensor: ...
    @property
    def sign(self) -> Tensor: ...
    @property
    def hole(self) -> Tensor: ...
    @property
    def partner(self) -> Tensor: ...


def soft_stages(
    images: Tensor,
    parameters: tuple[Tensor, Tensor, Tensor],  # choice, probability, magnitude [L, K, N]
    drawn: Drawn,
    originals: Tensor,  # the batch that partners are taken from: the images, or what they are a part of
    ops: Sequence[Op],
    spans: Spans,
    fill: tuple[int, ...],
    *,
    choice_temperature: float,
    gate_temperature: float,
    edge: float,
) -> Tensor:
    """All stages of a soft policy. An operation without a twin is done in plain torch and mixed in."""
    rules = rules_of(ops, spans, images.device)
    draws = tuple(each.contiguous() for each in (drawn.sub_policy, drawn.gate, drawn.sign, drawn.hole))
    tiny = torch.finfo(drawn.gate.dtype).eps
    settings = {"CHOICE": choice_temperature, "GATE": gate_temperature, "EDGE": edge, "TINY": tiny}
    contiguous = (each.contiguous() for each in parameters)
    weighed = Weigh.apply(*contiguous, draws, rules.spans, tuple(images.shape[2:]), rules.columns, settings)
    stages = len(weighed) // 2
    colours = _colours(images.shape[1], fill) + _colours(images.shape[1], Context.hole_fill)
    images, originals, partner = images.contiguous(), originals.contiguous(), drawn.partner.contiguous()
    for k in range(stages):
        record, values = weighed[k], weighed[stages + k]
        out = _Stage.apply(images, record, originals, values, partner, k, rules, colours)
        if rules.missing:
            out = out + _in_plain_torch(rules.missing, ops, images, record, originals, drawn, k, fill, spans)
        images = out
    return images


def _in_plain_torch(
    members: Sequence[int], ops: Sequence[Op], images: Tensor, record: Tensor, originals: Tensor, drawn: Drawn,
    k: int, fill: tuple[int, ...], spans: Spans,
) -> Tensor:  # fmt: skip
    def columns(table: Tensor, start: int = 0) -> Tensor:
        return torch.stack([table[:, start + n] for n in members], 1)

    context = Context(originals[drawn.partner[k]], drawn.hole[k], fill=fill)
    weight, magnitude, sign = columns(record), columns(record, len(ops)), columns(drawn.sign[k])
    return soft_mixture([ops[n] for n in members], images, magnitude, sign.to(images.dtype), weight, context, spans)


def _colours(channels: int, fill: tuple[int, ...]) -> tuple[float, float, float]:
    levels = [level / 255 for level in fill_for(channels, fill)]
    return (levels[0], levels[0], levels[0]) if channels == 1 else (levels[0], levels[1], levels[2])
