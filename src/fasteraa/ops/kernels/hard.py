"""Twins of the families' hard forwards, for a uint8 batch in which every image drew its own operation.

Three kernels, none of which lets the host wait:

- `_prepare`, once for all stages: what was drawn -> a record of eight whole and four real numbers per image and stage;
- `_fill_tables`, once per stage: the 256-entry table of each image whose new levels depend on the old ones alone; only
  images that drew auto_contrast, equalize or contrast are read for it;
- `_apply`, once per stage: read a tile of an image, do what its record says, write it.

Every sum and product is rounded as the torch twins round it: whole numbers where those are exact, and elsewhere the
same operations in the same order, never contracted into fused ones (`enable_fp_fusion=False`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fasteraa.images import fill_for
from fasteraa.ops import blend, erase, forward, tone, warp
from fasteraa.ops.declare import Op
from fasteraa.ops.forward import Spans

# codes: what an image drew. Those up to CONTRAST are a table.
NOTHING, SOLARIZE, POSTERIZE, INVERT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
BRIGHTNESS, AUTO_CONTRAST, EQUALIZE, CONTRAST = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10), tl.constexpr(11)
ROTATE, FLIP, COLOR, SHARPNESS = tl.constexpr(12), tl.constexpr(13), tl.constexpr(14), tl.constexpr(15)
SAMPLE_PAIRING, CUTOUT = tl.constexpr(16), tl.constexpr(17)
# a warp's code becomes one of these in the record: in fixed point, or on whole pixels where nothing turns
TURN, SHIFT = tl.constexpr(18), tl.constexpr(19)

CODES: dict[Op, tl.constexpr] = {
    tone.solarize: SOLARIZE,
    tone.posterize: POSTERIZE,
    tone.invert: INVERT,
    tone.auto_contrast: AUTO_CONTRAST,
    tone.equalize: EQUALIZE,
    blend.brightness: BRIGHTNESS,
    blend.contrast: CONTRAST,
    blend.color: COLOR,
    blend.sharpness: SHARPNESS,
    blend.sample_pairing: SAMPLE_PAIRING,
    warp.shear_x: SHEAR_X,
    warp.shear_y: SHEAR_Y,
    warp.translate_x: TRANSLATE_X,
    warp.translate_y: TRANSLATE_Y,
    warp.rotate: ROTATE,
    warp.flip: FLIP,
    erase.cutout: CUTOUT,
}
# what a value is measured in: as it is, shares of a side, pixels that are counted
AS_IS, OF_WIDTH, OF_HEIGHT, COUNTED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
FINE = tl.constexpr(float(forward.FINE))
_TILE = 1024  # pixels of one program
_ITEMS = 64  # images x stages of one program of `_prepare`


# --- records ---------------------------------------------------------------------------------------------------------


@triton.jit
def _fixed(number):
    return tl.floor(number * 65536 + 0.5)


@triton.jit(do_not_specialize=["items", "images", "depth", "height", "width", "partners"])
def _prepare(
    op, magnitude, sign, hole, partner, codes, spans, whole, real,
    items, images, depth, height, width, partners,
    ITEMS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ok = item < items
    drawn = tl.load(op + item, mask=ok, other=-1)
    acts = drawn >= 0
    code = tl.load(codes + drawn, mask=acts, other=0)
    # the physical value, as `physical` reckons it: shares of a side in pixels
    span = spans + drawn * 4
    at_zero, extent = tl.load(span, mask=acts, other=0.0), tl.load(span + 1, mask=acts, other=0.0)
    signed, unit = tl.load(span + 2, mask=acts, other=0.0), tl.load(span + 3, mask=acts, other=0.0)
    wide, high = width.to(tl.float64), height.to(tl.float64)
    s = tl.where(signed > 0, tl.load(sign + item, mask=acts, other=1.0), 1.0)
    v = at_zero + s * tl.load(magnitude + item, mask=acts, other=0.0) * extent
    v *= tl.where(unit == OF_WIDTH, wide, tl.where(unit == OF_HEIGHT, high, 1.0))
    v = tl.where(unit == COUNTED, tl.floor(v * FINE + 0.5) / FINE, v)
    # warps: six coefficients, as the rows give them
    angle = tl.where(code == ROTATE, v, 0.0) * 0.017453292519943295
    cos, sin = tl.cos(angle), tl.sin(angle)
    x, y = wide / 2, high / 2
    turned = code == ROTATE
    a = tl.where(turned, cos, tl.where(code == FLIP, -1.0, 1.0))
    b = tl.where(turned, -sin, tl.where(code == SHEAR_X, v, 0.0))
    c = tl.where(turned, x - x * cos + y * sin, tl.where(code == TRANSLATE_X, v, 0.0))
    c = tl.where(code == FLIP, wide, c)
    d = tl.where(turned, sin, tl.where(code == SHEAR_Y, v, 0.0))
    e = tl.where(turned, cos, 1.0)
    f = tl.where(turned, y - x * sin - y * cos, tl.where(code == TRANSLATE_Y, v, 0.0))
    is_warp = (code >= SHEAR_X) & (code <= FLIP)
    turns = (b != 0) | (d != 0)
    kind = tl.where(is_warp, tl.where(turns, TURN, SHIFT), code)
    # cutout: corners, included; a box of size 0 has none
    cuts = code == CUTOUT
    extent = tl.where(cuts, v, 0.0)
    left = _corner(tl.load(hole + 2 * item, mask=acts, other=0.0) * wide - extent / 2)
    top = _corner(tl.load(hole + 2 * item + 1, mask=acts, other=0.0) * high - extent / 2)
    right, bottom = tl.minimum(left + extent, wide), tl.minimum(top + extent, high)
    kind = tl.where(cuts & (v <= 0), NOTHING, kind)
    other = tl.load(partner + item, mask=acts, other=0.0) * partners.to(tl.float64)
    # what is kept: records lie stage by stage
    record = (item % depth) * images + item // depth
    number = whole + record * 8
    tl.store(number, kind, mask=ok)
    first = tl.where(cuts, left, tl.where(code == SAMPLE_PAIRING, other, tl.where(turns, _fixed(a), 0.0)))
    tl.store(number + 1, first.to(tl.int32), mask=ok)
    tl.store(number + 2, tl.where(cuts, top, tl.where(turns, _fixed(b), 0.0)).to(tl.int32), mask=ok)
    x_start, y_start = _fixed(c + 0.5 * a + 0.5 * b), _fixed(f + 0.5 * d + 0.5 * e)
    tl.store(number + 3, tl.where(cuts, right, tl.where(turns, x_start, 0.0)).to(tl.int32), mask=ok)
    tl.store(number + 4, tl.where(cuts, bottom, tl.where(turns, _fixed(d), 0.0)).to(tl.int32), mask=ok)
    tl.store(number + 5, tl.where(turns, _fixed(e), 0.0).to(tl.int32), mask=ok)
    tl.store(number + 6, tl.where(turns, y_start, 0.0).to(tl.int32), mask=ok)
    shifts = is_warp & (turns == 0)
    number = real + record * 4
    tl.store(number, tl.where(shifts, c + 0.5 * a, v), mask=ok)
    tl.store(number + 1, a, mask=ok)
    tl.store(number + 2, f + 0.5 * e, mask=ok)
    tl.store(number + 3, e, mask=ok)


@triton.jit
def _corner(place):
    return tl.floor(tl.maximum(place, 0.0))


# --- tables ----------------------------------------------------------------------------------------------------------


@triton.jit
def _luma(red, green, blue):
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


@triton.jit
def _blend(start, end, v):
    """Pillow's blend of whole levels: float32, one rounding per operation, clipped, truncated."""
    mixed = (end - start).to(tl.float32) * v + start.to(tl.float32)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)


@triton.jit
def _mean_grey(image, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of the grey image, to the nearest level."""
    sums = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        ok = place < pixels
        grey = tl.load(image + place, mask=ok, other=0).to(tl.int32)
        if CHANNELS == 3:
            green = tl.load(image + pixels + place, mask=ok, other=0).to(tl.int32)
            blue = tl.load(image + 2 * pixels + place, mask=ok, other=0).to(tl.int32)
            grey = _luma(grey, green, blue)  # 0 where there is no pixel
        sums += grey
    total = tl.sum(sums.to(tl.int64))
    return ((2 * total + pixels) // (2 * pixels)).to(tl.int32)


@triton.jit
def _extremes(plane, pixels, BLOCK: tl.constexpr):
    low, high = tl.full((BLOCK,), 255, tl.int32), tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        ok = place < pixels
        level = tl.load(plane + place, mask=ok, other=0).to(tl.int32)
        low, high = tl.minimum(low, tl.where(ok, level, 255)), tl.maximum(high, level)
    return tl.min(low), tl.max(high)


@triton.jit
def _equalized(plane, level, pixels, BLOCK: tl.constexpr):
    counts = tl.zeros((256,), tl.int32)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(plane + place, mask=place < pixels, other=0).to(tl.int32), 256)
    beyond = (pixels + BLOCK - 1) // BLOCK * BLOCK - pixels  # counted as level 0, and no pixels
    counts -= tl.where(level == 0, beyond, 0)
    highest = tl.max(tl.where(counts > 0, level, 0))
    step = (pixels - tl.sum(tl.where(level == highest, counts, 0))) // 255
    before = tl.cumsum(counts, 0) - counts
    spread = (step // 2 + before) // tl.maximum(step, 1)
    return tl.where(step > 0, tl.minimum(spread, 255), level)


@triton.jit(do_not_specialize=["stage", "images"])
def _fill_tables(source, whole, real, tables, stage, images, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    image, channel = program // CHANNELS, program % CHANNELS
    record = stage * images + image
    code = tl.load(whole + record * 8)
    if (code >= SOLARIZE) & (code <= CONTRAST):
        v = tl.load(real + record * 4)
        level = tl.arange(0, 256)
        base = source + image.to(tl.int64) * (CHANNELS * pixels)
        plane = base + channel * pixels
        new = 255 - level
        if code == SOLARIZE:
            new = tl.where(level.to(tl.float64) < v, level, new)
        elif code == POSTERIZE:
            lost = tl.minimum(tl.maximum(8 - tl.floor(v), 0.0), 7.0).to(tl.int32)
            new = (level >> lost) << lost
        elif code == BRIGHTNESS:
            new = _blend(tl.zeros((256,), tl.int32), level, v.to(tl.float32))
        elif code == CONTRAST:
            new = _blend(_mean_grey(base, pixels, CHANNELS, BLOCK), level, v.to(tl.float32))
        elif code == AUTO_CONTRAST:
            low, high = _extremes(plane, pixels, BLOCK)
            scale = 255.0 / tl.maximum(high - low, 1).to(tl.float64)
            stretched = level.to(tl.float64) * scale - low.to(tl.float64) * scale
            stretched = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
            new = tl.where(high > low, stretched, level)
        elif code == EQUALIZE:
            new = _equalized(plane, level, pixels, BLOCK)
        tl.store(tables + program.to(tl.int64) * 256 + level, new.to(tl.uint8))


# --- pixels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _pick(c: tl.constexpr, zero, one, two):
    return zero if c == 0 else one if c == 1 else two


@triton.jit
def _write(target, place, level, ok, normal, c: tl.constexpr, NORMAL: tl.constexpr):
    """A level as it is, or the number that stands for it in its channel."""
    if NORMAL:
        tl.store(target + place, tl.load(normal + c * 256 + level.to(tl.int32)), mask=ok)
    else:
        tl.store(target + place, level.to(tl.uint8), mask=ok)


@triton.jit
def _gather(
    source, target, y, x, here, ok, height, width, fill0, fill1, fill2, normal,
    CHANNELS: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    """Each pixel from (y, x), or the fill colour where that lies outside."""
    inside = ok & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    place = tl.where(inside, y * width + x, 0)
    for c in tl.static_range(CHANNELS):
        level = tl.load(source + c * height * width + place, mask=inside, other=0).to(tl.int32)
        level = tl.where(inside, level, _pick(c, fill0, fill1, fill2))
        _write(target + c * height * width, here, level, ok, normal, c, NORMAL)


@triton.jit
def _smooth(plane, centre, y, x, here, height, width):
    """Pillow's SMOOTH filter: 3x3 with a centre of 5, sum 13, the outermost pixels as they were."""
    inner = (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
    total = 4 * centre
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            total += tl.load(plane + here + dy * width + dx, mask=inner, other=0).to(tl.int32)
    return tl.where(inner, (2 * total + 13) // 26, centre)


# what changes from call to call and must not lead to a compilation of its own
_ANY = ["stage", "images", "height", "columns", "tiles", "fill0", "fill1", "fill2", "hole0", "hole1", "hole2"]


@triton.jit(do_not_specialize=_ANY)
def _apply(
    source, target, partners, whole, real, tables, normal, stage, images, height, width, columns, tiles,
    fill0, fill1, fill2, hole0, hole1, hole2,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    image, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    y = (tile // columns) * ROWS + tl.arange(0, ROWS)[:, None]
    x = (tile % columns) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    ok = (y < height) & (x < width)
    here = y * width + x
    pixels = height * width
    record = stage * images + image
    number = whole + record * 8
    kind = tl.load(number)
    v = tl.load(real + record * 4)
    base = image.to(tl.int64) * (CHANNELS * pixels)
    source += base
    target += base
    if kind == TURN:
        row_x = tl.load(number + 2) * y + tl.load(number + 3)
        row_y = tl.load(number + 5) * y + tl.load(number + 6)
        from_x, from_y = (tl.load(number + 1) * x + row_x) >> 16, (tl.load(number + 4) * x + row_y) >> 16
        _gather(source, target, from_y, from_x, here, ok, height, width, fill0, fill1, fill2, normal, CHANNELS, NORMAL)
    elif kind == SHIFT:
        # Pillow's other way, in doubles: near a whole pixel the rounding of the sum decides
        shift = real + record * 4
        from_x = tl.floor(v + tl.load(shift + 1) * x.to(tl.float64)).to(tl.int32)
        from_y = tl.floor(tl.load(shift + 2) + tl.load(shift + 3) * y.to(tl.float64)).to(tl.int32)
        _gather(source, target, from_y, from_x, here, ok, height, width, fill0, fill1, fill2, normal, CHANNELS, NORMAL)
    elif kind == NOTHING:
        for c in tl.static_range(CHANNELS):
            same = tl.load(source + c * pixels + here, mask=ok, other=0)
            _write(target + c * pixels, here, same, ok, normal, c, NORMAL)
    elif kind <= CONTRAST:
        table = tables + image.to(tl.int64) * (CHANNELS * 256)
        for c in tl.static_range(CHANNELS):
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            new = tl.load(table + c * 256 + level)
            _write(target + c * pixels, here, new, ok, normal, c, NORMAL)
    elif kind == CUTOUT:
        left, top = tl.load(number + 1), tl.load(number + 2)
        right, bottom = tl.load(number + 3), tl.load(number + 4)
        cut = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        for c in tl.static_range(CHANNELS):
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            level = tl.where(cut, _pick(c, hole0, hole1, hole2), level)
            _write(target + c * pixels, here, level, ok, normal, c, NORMAL)
    elif kind == SAMPLE_PAIRING:
        partner = partners + tl.load(number + 1).to(tl.int64) * (CHANNELS * pixels)
        for c in tl.static_range(CHANNELS):
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            other = tl.load(partner + c * pixels + here, mask=ok, other=0).to(tl.int32)
            new = _blend(level, other, v.to(tl.float32))
            _write(target + c * pixels, here, new, ok, normal, c, NORMAL)
    elif kind == SHARPNESS:
        for c in tl.static_range(CHANNELS):
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            smooth = _smooth(source + c * pixels, level, y, x, here, height, width)
            new = _blend(smooth, level, v.to(tl.float32))
            _write(target + c * pixels, here, new, ok, normal, c, NORMAL)
    else:  # COLOR
        grey = tl.load(source + here, mask=ok, other=0).to(tl.int32)
        if CHANNELS == 3:
            green = tl.load(source + pixels + here, mask=ok, other=0).to(tl.int32)
            blue = tl.load(source + 2 * pixels + here, mask=ok, other=0).to(tl.int32)
            grey = _luma(grey, green, blue)
        for c in tl.static_range(CHANNELS):
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            new = _blend(grey, level, v.to(tl.float32))
            _write(target + c * pixels, here, new, ok, normal, c, NORMAL)


# --- the host's side -------------------------------------------------------------------------------------------------

INTERPRETED = not isinstance(_apply, triton.runtime.JITFunction)  # TRITON_INTERPRET=1: runs anywhere, slowly


@dataclass(frozen=True)
class Rules:
    """What the operations of a policy mean to the kernels: tensors on the device, an entry per operation."""

    codes: Tensor  # int32; 0 where there is no kernel
    spans: Tensor  # float64 (N, 4): value at zero, extent, signed or not, what it is measured in
    missing: tuple[int, ...]  # operations that have no kernel
    tables: bool  # is there an operation that needs one?


def rules_of(ops: Sequence[Op], spans: Spans, device: torch.device) -> Rules:
    codes = [CODES.get(row, NOTHING).value for row in ops]
    return Rules(
        torch.tensor(codes, dtype=torch.int32).to(device),
        torch.tensor([_span_of(row, spans) for row in ops], dtype=torch.float64).to(device),
        tuple(index for index, code in enumerate(codes) if code == NOTHING.value),
        any(0 < code <= CONTRAST.value for code in codes),
    )


_UNITS = {"width": OF_WIDTH, "height": OF_HEIGHT}


def _span_of(row: Op, spans: Spans) -> tuple[float, float, float, float]:
    span = spans.get(row.name, row.span)
    if span is None or row.span is None:
        return 0.0, 1.0, 0.0, 0.0  # the magnitude as it is
    measured = _UNITS.get(span.unit, AS_IS) if span.unit != "px" else COUNTED if row.discrete else AS_IS
    return span.at_zero, span.at_one - span.at_zero, float(row.signed), float(measured.value)


class Stages:
    """The stages of a drawn policy over one batch: contiguous uint8 (B, C, H, W), draws of shape (B, K)."""

    def __init__(
        self,
        batch: Tensor,
        rules: Rules,
        drawn: Sequence[Tensor],  # op, magnitude, sign, hole (B, K, 2), partner; contiguous
        partners: Tensor,
        fill: tuple[int, ...],
        hole_fill: tuple[int, ...],
    ):
        count, self.channels, self.height, self.width = batch.shape
        depth = drawn[0].shape[1]
        self.count, self.rules, self.partners = count, rules, partners
        self.colours = (*_three(self.channels, fill), *_three(self.channels, hole_fill))
        self.whole = torch.empty((depth, count, 8), dtype=torch.int32, device=batch.device)
        self.real = torch.empty((depth, count, 4), dtype=torch.float64, device=batch.device)
        size = count * self.channels * 256 if rules.tables else 1
        self.tables = torch.empty(size, dtype=torch.uint8, device=batch.device)
        items = count * depth
        if items:
            _prepare[(triton.cdiv(items, _ITEMS),)](
                *drawn, rules.codes, rules.spans, self.whole, self.real,
                items, count, depth, self.height, self.width, len(partners),
                ITEMS=_ITEMS, num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip

    def apply(self, stage: int, source: Tensor, normal: Tensor | None = None) -> Tensor:
        """One stage: a new batch. Images that drew an operation without a kernel are copied.

        With `normal`, float32 (C, 256), each level is written as the number that stands for it there.
        """
        target = torch.empty_like(source, dtype=source.dtype if normal is None else normal.dtype)
        pixels = self.height * self.width
        if self.rules.tables:
            block = min(4096, max(256, triton.next_power_of_2(pixels)))
            _fill_tables[(self.count * self.channels,)](
                source, self.whole, self.real, self.tables, stage, self.count, pixels,
                CHANNELS=self.channels, BLOCK=block, num_warps=4 if block <= 1024 else 8, enable_fp_fusion=False,
            )  # fmt: skip
        across = _tile_width(self.width)
        rows = _TILE // across
        columns = triton.cdiv(self.width, across)
        tiles = columns * triton.cdiv(self.height, rows)
        _apply[(self.count * tiles,)](
            source, target, self.partners, self.whole, self.real, self.tables,
            self.real if normal is None else normal, stage, self.count,
            self.height, self.width, columns, tiles, *self.colours,
            CHANNELS=self.channels, ROWS=rows, COLUMNS=across, NORMAL=normal is not None,
            num_warps=4 if normal is None else 8, enable_fp_fusion=False,
        )  # fmt: skip
        return target


def _three(channels: int, fill: tuple[int, ...]) -> tuple[int, int, int]:
    levels = fill_for(channels, fill)
    return (levels[0], levels[0], levels[0]) if channels == 1 else (levels[0], levels[1], levels[2])


def _tile_width(width: int) -> int:
    """The widest tile among those that hang over the least."""
    return min((128, 64, 32), key=lambda across: -(-width // across) * across)
