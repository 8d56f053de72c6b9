"""Twins of the families' hard forwards, for a uint8 batch in which every image drew its own operation.

Four kernels, none of which lets the host wait:

- `_prepare`, once for all stages: what was drawn -> a record of eight whole and four real numbers per image and stage;
  or `_draw`, which also decodes the draw;
- `_count`, once per stage for large images: how often each level occurs in a part of an image that drew auto_contrast,
  equalize or contrast. Parts are added later, as whole numbers, so their order does not matter;
- `_fill_tables`, once per stage: the 256-entry table of each image whose new levels depend on the old ones alone; it
  reads those three operations' images itself where they are small;
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
from fasteraa.ops.kernels.draw import ITEMS, Decoder, decoded


class _Named(tl.constexpr):  # type: ignore[misc]
    """A number that kernels know by its name. Triton compares all of them at every launch, to see whether one was
    changed, and its own comparison takes ten times as long: 40 microseconds of a call that applies two stages.
    """

    def __ne__(self, other: object) -> bool:
        different: bool = self.value != getattr(other, "value", other)
        return different


# codes: what an image drew. Those up to CONTRAST are a table.
NOTHING, SOLARIZE, POSTERIZE, INVERT = _Named(0), _Named(1), _Named(2), _Named(3)
BRIGHTNESS, AUTO_CONTRAST, EQUALIZE, CONTRAST = _Named(4), _Named(5), _Named(6), _Named(7)
SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = _Named(8), _Named(9), _Named(10), _Named(11)
ROTATE, FLIP, COLOR, SHARPNESS = _Named(12), _Named(13), _Named(14), _Named(15)
SAMPLE_PAIRING, CUTOUT = _Named(16), _Named(17)
# a warp's code becomes one of these in the record: in fixed point, or on whole pixels where nothing turns
TURN, SHIFT = _Named(18), _Named(19)

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
AS_IS, OF_WIDTH, OF_HEIGHT, COUNTED = _Named(0), _Named(1), _Named(2), _Named(3)
FINE = _Named(float(forward.FINE))
_TILE = 1024  # pixels of one program
_BLOCK = 2048  # pixels that a program counts at once: with more, too few programs share a processor
_PART = 4096  # pixels of a part of an image; smaller images are counted as a whole
_PARTS = 64  # at most, so that the sum of a part of the largest image fits into 31 bits


# --- records ---------------------------------------------------------------------------------------------------------


@triton.jit
def _fixed(number):
    return tl.floor(number * 65536 + 0.5)


@triton.jit
def _record(
    drawn, magnitude, sign, hole_x, hole_y, partner, codes, spans, whole, real,
    item, ok, images, depth, height, width, partners,
):  # fmt: skip
    """What a draw says, in numbers that the other kernels need not take into account."""
    acts = drawn >= 0
    code = tl.load(codes + drawn, mask=acts, other=0)
    # the physical value, as `physical` calculates it: shares of a side in pixels
    span = spans + drawn * 4
    at_zero, extent = tl.load(span, mask=acts, other=0.0), tl.load(span + 1, mask=acts, other=0.0)
    signed, unit = tl.load(span + 2, mask=acts, other=0.0), tl.load(span + 3, mask=acts, other=0.0)
    wide, high = width.to(tl.float64), height.to(tl.float64)
    s = tl.where(signed > 0, sign, 1.0)
    v = at_zero + s * magnitude * extent
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
    left = _corner(hole_x * wide - extent / 2)
    top = _corner(hole_y * high - extent / 2)
    right, bottom = tl.minimum(left + extent, wide), tl.minimum(top + extent, high)
    kind = tl.where(cuts & (v <= 0), NOTHING, kind)
    other = partner * partners.to(tl.float64)
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


@triton.jit(do_not_specialize=["items", "images", "depth", "height", "width", "partners"])
def _prepare(
    op, magnitude, sign, hole, partner, codes, spans, whole, real,
    items, images, depth, height, width, partners,
    ITEMS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ok = item < items
    _record(
        tl.load(op + item, mask=ok, other=-1),
        tl.load(magnitude + item, mask=ok, other=0.0),
        tl.load(sign + item, mask=ok, other=1.0),
        tl.load(hole + 2 * item, mask=ok, other=0.0),
        tl.load(hole + 2 * item + 1, mask=ok, other=0.0),
        tl.load(partner + item, mask=ok, other=0.0),
        codes, spans, whole, real, item, ok, images, depth, height, width, partners,
    )  # fmt: skip


_DRAWN = ["items", "subs", "depth", "stages", "choices", "numbers", "counts", "lead"]


@triton.jit(do_not_specialize=[*_DRAWN, "images", "height", "width", "partners"])
def _draw(
    uniform, sub_edges, edges, option_op, probability, low, high, positive, pass_edges,
    codes, spans, whole, real,
    items, subs, depth, stages, choices, numbers, counts, lead, images, height, width, partners,
    ITEMS: tl.constexpr,
):  # fmt: skip
    """Uniform numbers -> records, without the draw between them that `_prepare` takes."""
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ok = item < items
    op, magnitude, sign, hole_x, hole_y, partner = decoded(
        uniform, sub_edges, edges, option_op, probability, low, high, positive, pass_edges,
        item, ok, subs, depth, stages, choices, numbers, counts, lead, ITEMS,
    )  # fmt: skip
    _record(
        op, magnitude, sign, hole_x, hole_y, partner, codes, spans, whole, real,
        item, ok, images, depth, height, width, partners,
    )  # fmt: skip


# --- tables ----------------------------------------------------------------------------------------------------------


@triton.jit
def _levels(image, place, pixels, ok, CHANNELS: tl.constexpr):
    """The levels of all channels, 0 where there is no pixel; one channel stands for three.

    A load does not overtake a store, so all are asked for before anything is written: one wait for memory, not three.
    """
    one = tl.load(image + place, mask=ok, other=0).to(tl.int32)
    two, three = one, one
    if CHANNELS == 3:
        two = tl.load(image + pixels + place, mask=ok, other=0).to(tl.int32)
        three = tl.load(image + 2 * pixels + place, mask=ok, other=0).to(tl.int32)
    return one, two, three


@triton.jit
def _grey(one, two, three, CHANNELS: tl.constexpr):
    if CHANNELS == 3:
        one = (19595 * one + 38470 * two + 7471 * three + 32768) >> 16
    return one


@triton.jit
def _blend(start, end, v):
    """Pillow's blend of whole levels: float32, one rounding per operation, clipped, truncated."""
    mixed = (end - start).to(tl.float32) * v + start.to(tl.float32)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)


@triton.jit
def _grey_sum(image, start, stop, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    sums = tl.zeros((BLOCK,), tl.int32)
    for first in range(start, stop, BLOCK):
        place = first + tl.arange(0, BLOCK)
        one, two, three = _levels(image, place, pixels, place < stop, CHANNELS)
        sums += _grey(one, two, three, CHANNELS)  # 0 where there is no pixel
    return tl.sum(sums)


@triton.jit
def _extremes(plane, start, stop, BLOCK: tl.constexpr):
    low, high = tl.full((BLOCK,), 255, tl.int32), tl.zeros((BLOCK,), tl.int32)
    for first in range(start, stop, BLOCK):
        place = first + tl.arange(0, BLOCK)
        ok = place < stop
        level = tl.load(plane + place, mask=ok, other=0).to(tl.int32)
        low, high = tl.minimum(low, tl.where(ok, level, 255)), tl.maximum(high, level)
    return tl.min(low), tl.max(high)


@triton.jit
def _histogram(plane, start, stop, BLOCK: tl.constexpr):
    counts = tl.zeros((256,), tl.int32)
    for first in range(start, stop, BLOCK):
        place = first + tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(plane + place, mask=place < stop, other=0).to(tl.int32), 256)
    beyond = (stop - start + BLOCK - 1) // BLOCK * BLOCK - (stop - start)  # counted as level 0, and no pixels
    return counts - tl.where(tl.arange(0, 256) == 0, beyond, 0)


@triton.jit
def _counts(code, image, channel, start, stop, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """What a table depends on, as counts of the 256 levels among some of the pixels; counts of parts can be added.

    equalize: all pixels of the channel; auto_contrast: its lowest and its highest level alone; contrast: the sum of the
    grey image, as so many pixels of level 1.
    """
    level = tl.arange(0, 256)
    if code == EQUALIZE:
        counts = _histogram(image + channel * pixels, start, stop, BLOCK)
    elif code == AUTO_CONTRAST:
        low, high = _extremes(image + channel * pixels, start, stop, BLOCK)
        counts = ((level == low) | (level == high)).to(tl.int32)
    else:
        counts = tl.where(level == 1, _grey_sum(image, start, stop, pixels, CHANNELS, BLOCK), 0)
    return counts


@triton.jit(do_not_specialize=["stage", "images", "size", "parts"])
def _count(
    source, whole, counted, stage, images, pixels, size, parts, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The counts of one part of one channel: `size` pixels."""
    program = tl.program_id(0)
    plane, part = program // parts, program % parts
    image, channel = plane // CHANNELS, plane % CHANNELS
    code = tl.load(whole + (stage * images + image) * 8)
    # a grey image has one channel
    if ((code >= AUTO_CONTRAST) & (code < CONTRAST)) | ((code == CONTRAST) & (channel == 0)):
        base = source + image.to(tl.int64) * (CHANNELS * pixels)
        start = part * size
        counts = _counts(code, base, channel, start, tl.minimum(start + size, pixels), pixels, CHANNELS, BLOCK)
        tl.store(counted + program.to(tl.int64) * 256 + tl.arange(0, 256), counts)


@triton.jit
def _added(counted, parts):
    counts = tl.zeros((256,), tl.int64)
    for first in range(0, parts, 8):
        part = first + tl.arange(0, 8)[:, None]
        some = tl.load(counted + part * 256 + tl.arange(0, 256)[None, :], mask=part < parts, other=0)
        counts += tl.sum(some.to(tl.int64), 0)
    return counts


@triton.jit
def _contrasted(counts, level, pixels, v):
    """Away from the mean of the grey image, which is rounded to a level."""
    total = tl.sum(level.to(tl.int64) * counts)
    return _blend(((2 * total + pixels) // (2 * pixels)).to(tl.int32), level, v.to(tl.float32))


@triton.jit
def _stretched(counts, level):
    low, high = tl.min(tl.where(counts > 0, level, 255)), tl.max(tl.where(counts > 0, level, 0))
    scale = 255.0 / tl.maximum(high - low, 1).to(tl.float64)
    stretched = level.to(tl.float64) * scale - low.to(tl.float64) * scale
    stretched = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
    return tl.where(high > low, stretched, level)


@triton.jit
def _equalized(counts, level, pixels):
    counts = counts.to(tl.int32)
    highest = tl.max(tl.where(counts > 0, level, 0))
    step = (pixels - tl.sum(tl.where(level == highest, counts, 0))) // 255
    before = tl.cumsum(counts, 0) - counts
    spread = (step // 2 + before) // tl.maximum(step, 1)
    return tl.where(step > 0, tl.minimum(spread, 255), level)


@triton.jit(do_not_specialize=["stage", "images", "parts"])
def _fill_tables(
    source, whole, real, counted, tables, stage, images, pixels, parts,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    image, channel = program // CHANNELS, program % CHANNELS
    record = stage * images + image
    code = tl.load(whole + record * 8)
    if (code >= SOLARIZE) & (code <= CONTRAST):
        v = tl.load(real + record * 4)
        level = tl.arange(0, 256)
        new = 255 - level
        if code == SOLARIZE:
            new = tl.where(level.to(tl.float64) < v, level, new)
        elif code == POSTERIZE:
            lost = tl.minimum(tl.maximum(8 - tl.floor(v), 0.0), 7.0).to(tl.int32)
            new = (level >> lost) << lost
        elif code == BRIGHTNESS:
            new = _blend(tl.zeros((256,), tl.int32), level, v.to(tl.float32))
        elif code >= AUTO_CONTRAST:
            if SPLIT:
                plane = image * CHANNELS + tl.where(code == CONTRAST, 0, channel)
                counts = _added(counted + plane.to(tl.int64) * 256 * parts, parts)
            else:
                base = source + image.to(tl.int64) * (CHANNELS * pixels)
                counts = _counts(code, base, channel, 0, pixels, pixels, CHANNELS, BLOCK).to(tl.int64)
            if code == CONTRAST:
                new = _contrasted(counts, level, pixels, v)
            elif code == AUTO_CONTRAST:
                new = _stretched(counts, level)
            else:
                new = _equalized(counts, level, pixels)
        tl.store(tables + program.to(tl.int64) * 256 + level, new.to(tl.uint8))


# --- pixels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _look_up(table, one, two, three, CHANNELS: tl.constexpr):
    new_one = tl.load(table + one)
    new_two, new_three = new_one, new_one
    if CHANNELS == 3:
        new_two, new_three = tl.load(table + 256 + two), tl.load(table + 512 + three)
    return new_one, new_two, new_three


@triton.jit
def _write(target, place, pixels, ok, one, two, three, normal, CHANNELS: tl.constexpr, NORMAL: tl.constexpr):
    """Levels as they are, or the numbers that stand for them in their channels."""
    if NORMAL:
        one, two, three = _look_up(normal, one.to(tl.int32), two.to(tl.int32), three.to(tl.int32), CHANNELS)
    else:
        one, two, three = one.to(tl.uint8), two.to(tl.uint8), three.to(tl.uint8)
    tl.store(target + place, one, mask=ok)
    if CHANNELS == 3:
        tl.store(target + pixels + place, two, mask=ok)
        tl.store(target + 2 * pixels + place, three, mask=ok)


@triton.jit
def _smooth(plane, centre, y, x, here, height, width):
    """Pillow's SMOOTH filter: 3x3 with a centre of 5, sum 13, the outermost pixels as they were."""
    inner = (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
    total = 4 * centre
    for row in range(3):  # a loop, not unrolled: 72 levels at once would take the registers of all operations
        for dx in tl.static_range(-1, 2):
            total += tl.load(plane + here + (row - 1) * width + dx, mask=inner, other=0).to(tl.int32)
    return tl.where(inner, (2 * total + 13) // 26, centre)


@triton.jit
def _move(source, kind, number, shift, y, x, ok, height, width, pixels, fill0, fill1, fill2, CHANNELS: tl.constexpr):
    """Each pixel from elsewhere, or the fill colour where that lies outside."""
    if kind == TURN:
        row_x = tl.load(number + 2) * y + tl.load(number + 3)
        row_y = tl.load(number + 5) * y + tl.load(number + 6)
        from_x, from_y = (tl.load(number + 1) * x + row_x) >> 16, (tl.load(number + 4) * x + row_y) >> 16
    else:
        # Pillow's other way, in doubles: near a whole pixel the rounding of the sum decides
        from_x = tl.floor(tl.load(shift) + tl.load(shift + 1) * x.to(tl.float64)).to(tl.int32)
        from_y = tl.floor(tl.load(shift + 2) + tl.load(shift + 3) * y.to(tl.float64)).to(tl.int32)
        from_x, from_y = tl.broadcast(from_x, from_y)
    inside = ok & (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    place = tl.where(inside, from_y * width + from_x, 0)
    one, two, three = _levels(source, place, pixels, inside, CHANNELS)
    if CHANNELS == 3:
        # in one number, so that they change threads together: each on its own would wait for the one before
        colours = tl.where(inside, one | (two << 8) | (three << 16), fill0 | (fill1 << 8) | (fill2 << 16))
        one, two, three = colours & 255, (colours >> 8) & 255, colours >> 16
    else:
        one = tl.where(inside, one, fill0)
        two, three = one, one
    return one, two, three


@triton.jit
def _cut_out(number, y, x, one, two, three, hole0, hole1, hole2):
    left, top = tl.load(number + 1), tl.load(number + 2)
    right, bottom = tl.load(number + 3), tl.load(number + 4)
    cut = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    return tl.where(cut, hole0, one), tl.where(cut, hole1, two), tl.where(cut, hole2, three)


@triton.jit
def _in_squares(
    source, target, number, shift, normal, kind, tile, height, width, pixels, columns,
    fill0, fill1, fill2, hole0, hole1, hole2,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    """Where a pixel's place or its neighbours matter."""
    y = (tile // columns) * ROWS + tl.arange(0, ROWS)[:, None]
    x = (tile % columns) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    ok = (y < height) & (x < width)
    here = y * width + x
    if kind == SHARPNESS:
        v = tl.load(shift).to(tl.float32)
        for c in tl.static_range(CHANNELS):  # one after the other: nine neighbours of three would take all registers
            level = tl.load(source + c * pixels + here, mask=ok, other=0).to(tl.int32)
            new = _blend(_smooth(source + c * pixels, level, y, x, here, height, width), level, v)
            _write(target + c * pixels, here, pixels, ok, new, new, new, normal + c * 256, 1, NORMAL)
    elif kind == CUTOUT:
        one, two, three = _levels(source, here, pixels, ok, CHANNELS)
        one, two, three = _cut_out(number, y, x, one, two, three, hole0, hole1, hole2)
        _write(target, here, pixels, ok, one, two, three, normal, CHANNELS, NORMAL)
    else:
        one, two, three = _move(
            source, kind, number, shift, y, x, ok, height, width, pixels, fill0, fill1, fill2, CHANNELS
        )
        _write(target, here, pixels, ok, one, two, three, normal, CHANNELS, NORMAL)


@triton.jit
def _in_rows(
    source, target, partners, number, real, table, normal, kind, tile, pixels,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    """Where only the levels at a pixel matter: as many pixels as a square has, one after the other."""
    place = tile * SIZE + tl.arange(0, SIZE)
    ok = place < pixels
    one, two, three = _levels(source, place, pixels, ok, CHANNELS)
    if kind > CONTRAST:
        v = tl.load(real).to(tl.float32)
        if kind == SAMPLE_PAIRING:
            partner = partners + tl.load(number + 1).to(tl.int64) * (CHANNELS * pixels)
            other_one, other_two, other_three = _levels(partner, place, pixels, ok, CHANNELS)
            one, two, three = _blend(one, other_one, v), _blend(two, other_two, v), _blend(three, other_three, v)
        else:  # COLOR
            grey = _grey(one, two, three, CHANNELS)
            one, two, three = _blend(grey, one, v), _blend(grey, two, v), _blend(grey, three, v)
    elif kind != NOTHING:
        new_one, new_two, new_three = _look_up(table, one, two, three, CHANNELS)
        one, two, three = new_one.to(tl.int32), new_two.to(tl.int32), new_three.to(tl.int32)
    _write(target, place, pixels, ok, one, two, three, normal, CHANNELS, NORMAL)


# what changes from call to call and must not lead to a compilation of its own
_ANY = ["stage", "images", "height", "columns", "tiles", "fill0", "fill1", "fill2", "hole0", "hole1", "hole2"]


@triton.jit(do_not_specialize=_ANY)
def _apply(
    source, target, partners, whole, real, tables, normal, stage, images, height, width, pixels, columns, tiles,
    fill0, fill1, fill2, hole0, hole1, hole2,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    """One tile of one image. Squares that cover an image are never fewer than the rows that fill it."""
    image, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    record = stage * images + image
    whole += record * 8
    real += record * 4
    kind = tl.load(whole)
    base = image.to(tl.int64) * (CHANNELS * pixels)
    if (kind >= TURN) | (kind == CUTOUT) | (kind == SHARPNESS):
        _in_squares(
            source + base, target + base, whole, real, normal, kind, tile, height, width, pixels, columns,
            fill0, fill1, fill2, hole0, hole1, hole2, CHANNELS, ROWS, COLUMNS, NORMAL,
        )  # fmt: skip
    else:
        table = tables + image.to(tl.int64) * (CHANNELS * 256)
        _in_rows(
            source + base, target + base, partners, whole, real, table, normal, kind, tile, pixels,
            CHANNELS, ROWS * COLUMNS, NORMAL,
        )  # fmt: skip


# --- the host's side -------------------------------------------------------------------------------------------------

INTERPRETED = not isinstance(_apply, triton.runtime.JITFunction)  # TRITON_INTERPRET=1: runs anywhere, slowly


@dataclass(frozen=True)
class Rules:
    """What the operations of a policy mean to the kernels: tensors on the device, an entry per operation."""

    codes: Tensor  # int32; 0 where there is no kernel
    spans: Tensor  # float64 (N, 4): value at zero, extent, signed or not, what it is measured in
    missing: tuple[int, ...]  # operations that have no kernel
    tables: bool  # is there an operation that needs one?
    counted: bool  # is there one whose table depends on the image?


def rules_of(ops: Sequence[Op], spans: Spans, device: torch.device) -> Rules:
    codes = [CODES.get(row, NOTHING).value for row in ops]
    return Rules(
        torch.tensor(codes, dtype=torch.int32).to(device),
        torch.tensor([_span_of(row, spans) for row in ops], dtype=torch.float64).to(device),
        tuple(index for index, code in enumerate(codes) if code == NOTHING.value),
        any(0 < code <= CONTRAST.value for code in codes),
        any(AUTO_CONTRAST.value <= code <= CONTRAST.value for code in codes),
    )


_UNITS = {"width": OF_WIDTH, "height": OF_HEIGHT}


def _span_of(row: Op, spans: Spans) -> tuple[float, float, float, float]:
    span = spans.get(row.name, row.span)
    if span is None or row.span is None:
        return 0.0, 1.0, 0.0, 0.0  # the magnitude as it is
    measured = _UNITS.get(span.unit, AS_IS) if span.unit != "px" else COUNTED if row.discrete else AS_IS
    return span.at_zero, span.at_one - span.at_zero, float(row.signed), float(measured.value)


class Stages:
    """The stages of a policy over one batch: contiguous uint8 (B, C, H, W). First `prepare` or `draw`."""

    def __init__(
        self,
        batch: Tensor,
        rules: Rules,
        depth: int,
        partners: Tensor,
        fill: tuple[int, ...],
        hole_fill: tuple[int, ...],
    ):
        count, self.channels, self.height, self.width = batch.shape
        device = batch.device
        self.count, self.rules, self.partners = count, rules, partners
        self.colours = (*_three(self.channels, fill), *_three(self.channels, hole_fill))
        self.whole = torch.empty((depth, count, 8), dtype=torch.int32, device=device)
        self.real = torch.empty((depth, count, 4), dtype=torch.float64, device=device)
        if rules.tables:
            self.block, self.size, self.parts = _parts(self.height * self.width)
            self.tables = torch.empty(count * self.channels * 256, dtype=torch.uint8, device=device)
            self.counted = self.whole
            self.split = rules.counted and self.parts > 1
            if self.split:
                self.counted = torch.empty(self.parts * self.tables.numel(), dtype=torch.int32, device=device)
        else:
            self.tables = batch  # never read
        self.depth, self.items = depth, count * depth

    def prepare(self, drawn: Sequence[Tensor]) -> None:
        """op, magnitude, sign, hole (B, K, 2), partner; contiguous (B, K)."""
        if self.items:
            _prepare[(-(-self.items // ITEMS),)](
                *drawn, self.rules.codes, self.rules.spans, self.whole, self.real,
                self.items, self.count, self.depth, self.height, self.width, self.partners.shape[0],
                ITEMS=ITEMS, num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip

    def draw(self, uniform: Tensor, decoder: Decoder) -> None:
        """Uniform numbers, contiguous, as the decoder wants them."""
        if self.items:
            _draw[(-(-self.items // ITEMS),)](
                uniform, *decoder.arrays, self.rules.codes, self.rules.spans, self.whole, self.real,
                self.items, *decoder.numbers, self.count, self.height, self.width, self.partners.shape[0],
                ITEMS=ITEMS, num_warps=2, enable_fp_fusion=False,
            )  # fmt: skip

    def apply(self, stage: int, source: Tensor, normal: Tensor | None = None) -> Tensor:
        """One stage: a new batch. Images that drew an operation without a kernel are copied.

        With `normal`, float32 (C, 256), each level is written as the number that stands for it there.
        """
        target = torch.empty_like(source, dtype=source.dtype if normal is None else normal.dtype)
        if self.rules.tables:
            self._fill_tables(stage, source)
        across = _tile_width(self.width)
        rows = _TILE // across
        columns = -(-self.width // across)
        tiles = columns * -(-self.height // rows)
        _apply[(self.count * tiles,)](
            source, target, self.partners, self.whole, self.real, self.tables,
            self.real if normal is None else normal, stage, self.count,
            self.height, self.width, self.height * self.width, columns, tiles, *self.colours,
            CHANNELS=self.channels, ROWS=rows, COLUMNS=across, NORMAL=normal is not None,
            num_warps=4 if normal is None else 8, enable_fp_fusion=False,
        )  # fmt: skip
        return target

    def _fill_tables(self, stage: int, source: Tensor) -> None:
        planes, pixels = self.count * self.channels, self.height * self.width
        if self.split:
            _count[(planes * self.parts,)](
                source, self.whole, self.counted, stage, self.count, pixels, self.size, self.parts,
                CHANNELS=self.channels, BLOCK=self.block, num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
        _fill_tables[(planes,)](
            source, self.whole, self.real, self.counted, self.tables, stage, self.count, pixels, self.parts,
            CHANNELS=self.channels, BLOCK=self.block, SPLIT=self.split,
            num_warps=8 if self.block > 1024 and not self.split else 4, enable_fp_fusion=False,
        )  # fmt: skip


def _parts(pixels: int) -> tuple[int, int, int]:
    """Pixels that a program counts at once, pixels of a part, and how many parts there are."""
    if pixels <= _PART:
        return max(256, 1 << (pixels - 1).bit_length()), pixels, 1
    size = _PART * -(-pixels // (_PART * _PARTS))
    return _BLOCK, size, -(-pixels // size)


def _three(channels: int, fill: tuple[int, ...]) -> tuple[int, int, int]:
    levels = fill_for(channels, fill)
    return (levels[0], levels[0], levels[0]) if channels == 1 else (levels[0], levels[1], levels[2])


def _tile_width(width: int) -> int:
    """The widest tile among those that hang over the least."""
    return min((128, 64, 32), key=lambda across: -(-width // across) * across)
