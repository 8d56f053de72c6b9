"""The gradients of a stage of a soft policy: by weights, by values, by the image, by partners."""

from __future__ import annotations

import triton
import triton.language as tl

from fasteraa.ops.kernels.soft_forward import (
    _ANY,
    _across,
    _at,
    _between,
    _clip,
    _down,
    _four,
    _is_inner,
    _luma,
    _nearest_level,
    _pick,
    _posterized,
    _smooth,
    _solarized,
    _split,
    _stretched,
    _turned,
)
from fasteraa.ops.kernels.soft_weights import EXTRAS

# how an operation's magnitude gets its gradient; ABSENT is one that has no twin
ABSENT, NONE, TRUE, STRAIGHT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
# beside two sums for each operation: what the kept image, straight-through magnitudes and the mean grey get
SUMS = tl.constexpr(3)
REACH = tl.constexpr(1.4143)  # more than sqrt(2): how far from its image, turned, a pixel is seen


@triton.jit
def _total(terms):
    """In float64: the gradient of a gate is a small difference of two such sums."""
    return tl.sum(terms.to(tl.float64))


@triton.jit
def _blend_back(start, end, v, w, come, sums, count, COLUMN: tl.constexpr, ENDS: tl.constexpr):
    """Sums of a blend; what reaches its clipped line, times the weight."""
    line = start + v * (end - start)
    tl.store(sums + COLUMN, _total(come * _clip(line)))
    free = (line >= 0.0) & (line <= 1.0) if ENDS else (line > 0.0) & (line < 1.0)
    push = tl.where(free, w * come, 0.0)
    tl.store(sums + count + COLUMN, _total(push * (end - start)))
    return push


@triton.jit
def _warp_back(seen, slope, w, come, sums, count, COLUMN: tl.constexpr):
    """Sums of a warp: `slope` is the derivative of each pixel by the value."""
    tl.store(sums + COLUMN, _total(come * seen))
    tl.store(sums + count + COLUMN, _total(come * slope) * w)


@triton.jit(do_not_specialize=_ANY)
def _moments(
    source, partners, partner, record, values, tables, ranges, means, gradient,
    sums, to_image, to_smooth, to_partner,
    stage, images, count, height, width, tiles, fill0, fill1, fill2, hole0, hole1, hole2,
    SHEAR_X: tl.constexpr, SHEAR_Y: tl.constexpr, TRANSLATE_X: tl.constexpr, TRANSLATE_Y: tl.constexpr,
    ROTATE: tl.constexpr, FLIP: tl.constexpr, SOLARIZE: tl.constexpr, POSTERIZE: tl.constexpr, INVERT: tl.constexpr,
    AUTO_CONTRAST: tl.constexpr, EQUALIZE: tl.constexpr, CONTRAST: tl.constexpr, COLOR: tl.constexpr,
    BRIGHTNESS: tl.constexpr, SHARPNESS: tl.constexpr, SAMPLE_PAIRING: tl.constexpr, CUTOUT: tl.constexpr,
    IMAGE: tl.constexpr, PARTNER: tl.constexpr, ENDS: tl.constexpr,
    CHANNELS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """For one tile of one image: the sums that weights and values get, and what each pixel gets from its own place.

    IMAGE and PARTNER: are the gradients of the image and of the partner asked for? ENDS: does a gradient pass where a
    line ends at exactly 0 or 1?
    """
    image, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    pixels = height * width
    channel, place = tl.arange(0, LANES)[:, None], tile * TILE + tl.arange(0, TILE)[None, :]
    within = place < pixels
    ok = (channel < CHANNELS) & within
    y, x = place // width, place % width
    across, down = x.to(tl.float32), y.to(tl.float32)
    first = image.to(tl.int64) * (CHANNELS * pixels)
    base = source + first
    planes = base + channel * pixels
    own = channel * pixels + place  # within the image
    here = tl.load(base + own, mask=ok, other=0.0)
    come = tl.load(gradient + first + own, mask=ok, other=0.0)  # 0 where there is no pixel: sums need no mask
    fill = _pick(channel, fill0, fill1, fill2)
    weight, value = record + image * (2 * count + 1), values + image * (2 * count + EXTRAS)
    sums += tl.program_id(0).to(tl.int64) * (2 * count + SUMS)
    tl.store(sums + 2 * count, _total(come * here))
    tl.store(sums + 2 * count + 1, _total(come))
    pull = tl.zeros_like(here) + tl.load(weight + 2 * count)  # times `come`: what the pixel gets
    if (SOLARIZE >= 0) or (POSTERIZE >= 0) or (INVERT >= 0) or (AUTO_CONTRAST >= 0) or (EQUALIZE >= 0):
        level = _nearest_level(here)
        whole = tl.full(here.shape, 255.0, tl.float32)
        rest = here - tl.math.div_rn(level, whole)
        if SOLARIZE >= 0:
            new, steep = _solarized(level, tl.load(value + SOLARIZE))
            tl.store(sums + SOLARIZE, _total(come * (tl.math.div_rn(new, whole) + steep * rest)))
            pull += tl.load(weight + SOLARIZE) * steep
        if POSTERIZE >= 0:
            new = _posterized(level, tl.load(value + POSTERIZE))
            tl.store(sums + POSTERIZE, _total(come * (tl.math.div_rn(new, whole) + rest)))
            pull += tl.load(weight + POSTERIZE)
        if INVERT >= 0:
            tl.store(sums + INVERT, _total(come * (tl.math.div_rn(255.0 - level, whole) - rest)))
            pull -= tl.load(weight + INVERT)
        if AUTO_CONTRAST >= 0:
            stretch = ranges + (image * CHANNELS + channel) * 2
            scale = tl.load(stretch + 1, mask=channel < CHANNELS, other=0.0)
            new = _stretched(level, tl.load(stretch, mask=channel < CHANNELS, other=0.0), scale)
            tl.store(sums + AUTO_CONTRAST, _total(come * (tl.math.div_rn(new, whole) + scale * rest)))
            pull += tl.load(weight + AUTO_CONTRAST) * scale
        if EQUALIZE >= 0:
            table = tables + (image * CHANNELS + channel).to(tl.int64) * 256
            new = tl.load(table + level.to(tl.int32), mask=ok, other=0.0)
            tl.store(sums + EQUALIZE, _total(come * (tl.math.div_rn(new, whole) + rest)))
            pull += tl.load(weight + EQUALIZE)
    if CUTOUT >= 0:
        box = value + 2 * count + 2
        cut = (across >= tl.load(box)) & (across <= tl.load(box + 2))
        cut = cut & (down >= tl.load(box + 1)) & (down <= tl.load(box + 3))
        tl.store(sums + CUTOUT, _total(come * tl.where(cut, _pick(channel, hole0, hole1, hole2), here)))
        pull += tl.where(cut, 0.0, tl.load(weight + CUTOUT))
    to_own = pull * come
    if CONTRAST >= 0:
        v = tl.load(value + CONTRAST)
        push = _blend_back(
            tl.load(means + image), here, v, tl.load(weight + CONTRAST), come, sums, count, CONTRAST, ENDS
        )
        tl.store(sums + 2 * count + 2, _total(push) * (1 - v))
        to_own += push * v
    if COLOR >= 0:
        v, w = tl.load(value + COLOR), tl.load(weight + COLOR)
        if CHANNELS == 3:
            grey = _luma(base, place, within, pixels)
            push = _blend_back(grey, here, v, w, come, sums, count, COLOR, ENDS)
            share = _pick(channel, 19595.0, 38470.0, 7471.0) / 65536.0
            to_own += push * v + (tl.sum(push, 0)[None, :] * (1 - v)) * share
        else:
            to_own += _blend_back(here, here, v, w, come, sums, count, COLOR, ENDS)
    if BRIGHTNESS >= 0:
        v = tl.load(value + BRIGHTNESS)
        push = _blend_back(
            tl.zeros_like(here), here, v, tl.load(weight + BRIGHTNESS), come, sums, count, BRIGHTNESS, ENDS
        )
        to_own += push * v
    if SHARPNESS >= 0:
        v = tl.load(value + SHARPNESS)
        start = _smooth(planes, here, place, ok & _is_inner(x, y, height, width), width)
        push = _blend_back(start, here, v, tl.load(weight + SHARPNESS), come, sums, count, SHARPNESS, ENDS)
        to_own += push * v
        if IMAGE:
            tl.store(to_smooth + first + own, push * (1 - v), mask=ok)
    if SAMPLE_PAIRING >= 0:
        v = tl.load(value + SAMPLE_PAIRING)
        other = tl.load(partner + stage * images + image).to(tl.int64)
        other = tl.load(partners + other * (CHANNELS * pixels) + own, mask=ok, other=0.0)
        push = _blend_back(here, other, v, tl.load(weight + SAMPLE_PAIRING), come, sums, count, SAMPLE_PAIRING, ENDS)
        to_own += push * (1 - v)
        if PARTNER:
            tl.store(to_partner + first + own, push * v, mask=ok)
    if IMAGE:
        tl.store(to_image + first + own, to_own, mask=ok)
    if SHEAR_X >= 0:
        v, arm = tl.load(value + SHEAR_X), down + 0.5
        near, far, part = _across(planes, y, across + v * arm, ok, fill, height, width)
        w = tl.load(weight + SHEAR_X)
        _warp_back(_between(near, far, part) + fill, (far - near) * arm, w, come, sums, count, SHEAR_X)
    if TRANSLATE_X >= 0:
        near, far, part = _across(planes, y, across + tl.load(value + TRANSLATE_X), ok, fill, height, width)
        w = tl.load(weight + TRANSLATE_X)
        _warp_back(_between(near, far, part) + fill, far - near, w, come, sums, count, TRANSLATE_X)
    if SHEAR_Y >= 0:
        v, arm = tl.load(value + SHEAR_Y), across + 0.5
        near, far, part = _down(planes, down + v * arm, x, ok, fill, height, width)
        w = tl.load(weight + SHEAR_Y)
        _warp_back(_between(near, far, part) + fill, (far - near) * arm, w, come, sums, count, SHEAR_Y)
    if TRANSLATE_Y >= 0:
        near, far, part = _down(planes, down + tl.load(value + TRANSLATE_Y), x, ok, fill, height, width)
        w = tl.load(weight + TRANSLATE_Y)
        _warp_back(_between(near, far, part) + fill, far - near, w, come, sums, count, TRANSLATE_Y)
    if ROTATE >= 0:
        turn = value + 2 * count
        to_x, to_y = _turned(across, down, tl.load(turn), tl.load(turn + 1), height, width)
        a, b, c, d, right, below = _four(planes, to_y, to_x, ok, fill, height, width)
        seen = _between(_between(a, b, right), _between(c, d, right), below) + fill
        # a point moves along the circle about the middle: by its distance from there, at a right angle
        from_x, from_y = to_x - 0.5 * (width - 1), to_y - 0.5 * (height - 1)
        slope = _between(c - a, d - b, right) * from_x - _between(b - a, d - c, below) * from_y
        w = tl.load(weight + ROTATE) * 0.017453292519943295
        _warp_back(seen, slope, w, come, sums, count, ROTATE)
    if FLIP >= 0:
        seen = _at(planes, y, width - 1 - x, ok, fill, height, width) + fill
        tl.store(sums + FLIP, _total(come * seen))


@triton.jit(do_not_specialize=["count", "tiles"])
def _finish(
    sums, record, values, kinds, to_record, to_mean, count, tiles,
    CONTRAST: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One image: the sums of its tiles, always in the same order; from values to magnitudes."""
    image = tl.program_id(0)
    lane, turn = tl.arange(0, LANES)[None, :], tl.arange(0, TILES)[:, None]
    kind = tl.load(kinds + lane, mask=lane < count, other=0)
    by_weight, by_value = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
    rest = tl.zeros((LANES,), tl.float64)
    sums += image.to(tl.int64) * tiles * (2 * count + SUMS)
    for start in range(0, tiles, TILES):
        tile = start + turn
        at, ok = sums + tile * (2 * count + SUMS) + lane, tile < tiles
        by_weight += tl.sum(tl.load(at, mask=ok & (kind != ABSENT), other=0.0), 0)
        by_value += tl.sum(tl.load(at + count, mask=ok & (kind == TRUE), other=0.0), 0)
        rest += tl.sum(tl.load(at + 2 * count, mask=ok & (lane < SUMS - (CONTRAST < 0)), other=0.0), 0)
    lane = tl.arange(0, LANES)
    ok = lane < count
    kind = tl.load(kinds + lane, mask=ok, other=0)
    idle, everything = tl.sum(tl.where(lane == 0, rest, 0.0)), tl.sum(tl.where(lane == 1, rest, 0.0))
    slope = tl.load(values + image * (2 * count + EXTRAS) + count + lane, mask=ok, other=0.0)
    weight = tl.load(record + image * (2 * count + 1) + lane, mask=ok, other=0.0)
    by_magnitude = tl.where(kind == TRUE, by_value * slope, tl.where(kind == STRAIGHT, weight * everything, 0.0))
    out = to_record + image * (2 * count + 1)
    tl.store(out + lane, by_weight.to(tl.float32), mask=ok)
    tl.store(out + count + lane, by_magnitude.to(tl.float32), mask=ok)
    tl.store(out + 2 * count, idle.to(tl.float32))
    if CONTRAST >= 0:
        tl.store(to_mean + image, tl.sum(tl.where(lane == 2, rest, 0.0)).to(tl.float32))


@triton.jit
def _tent(distance):
    return tl.maximum(1 - tl.abs(distance), 0.0)


@triton.jit
def _from_row(planes, y, across, shift, ok, height, width):
    """What the pixels of row y that looked `shift` to the right have for this one: two can have seen it."""
    start, _ = _split(across - shift, width)
    nothing = tl.zeros_like(across)
    gradient = _tent(start.to(tl.float32) + shift - across) * _at(planes, y, start, ok, nothing, height, width)
    start += 1
    return gradient + _tent(start.to(tl.float32) + shift - across) * _at(planes, y, start, ok, nothing, height, width)


@triton.jit
def _from_column(planes, x, down, shift, ok, height, width):
    start, _ = _split(down - shift, height)
    nothing = tl.zeros_like(down)
    gradient = _tent(start.to(tl.float32) + shift - down) * _at(planes, start, x, ok, nothing, height, width)
    start += 1
    return gradient + _tent(start.to(tl.float32) + shift - down) * _at(planes, start, x, ok, nothing, height, width)


@triton.jit
def _from_turn(planes, across, down, cos, sin, ok, height, width):
    """Turned back, a pixel's surroundings hold at most three by three that can have seen it."""
    middle_x, middle_y = _turned(across, down, cos, -sin, height, width)
    left, top = tl.ceil(middle_x - REACH), tl.ceil(middle_y - REACH)
    nothing = tl.zeros_like(across)
    gradient = tl.zeros(ok.shape, tl.float32)
    for dy in tl.static_range(3):
        for dx in tl.static_range(3):
            x, y = left + dx, top + dy
            to_x, to_y = _turned(x, y, cos, sin, height, width)
            share = _tent(to_x - across) * _tent(to_y - down)
            gradient += share * _at(planes, y.to(tl.int32), x.to(tl.int32), ok, nothing, height, width)
    return gradient


@triton.jit(do_not_specialize=_ANY)
def _spread(
    record, values, gradient, to_image, to_smooth, to_mean, count, height, width, tiles,
    SHEAR_X: tl.constexpr, SHEAR_Y: tl.constexpr, TRANSLATE_X: tl.constexpr, TRANSLATE_Y: tl.constexpr,
    ROTATE: tl.constexpr, FLIP: tl.constexpr, CONTRAST: tl.constexpr, SHARPNESS: tl.constexpr,
    CHANNELS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds to a pixel's gradient what comes from other places: warps, the smoothed image, the mean grey."""
    image, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    pixels = height * width
    channel, place = tl.arange(0, LANES)[:, None], tile * TILE + tl.arange(0, TILE)[None, :]
    ok = (channel < CHANNELS) & (place < pixels)
    y, x = place // width, place % width
    across, down = x.to(tl.float32), y.to(tl.float32)
    first = image.to(tl.int64) * (CHANNELS * pixels)
    planes = gradient + first + channel * pixels
    own = to_image + first + channel * pixels + place
    weight, value = record + image * (2 * count + 1), values + image * (2 * count + EXTRAS)
    own_gradient = tl.load(own, mask=ok, other=0.0)
    if CONTRAST >= 0:
        share = tl.load(to_mean + image) / pixels
        if CHANNELS == 3:
            own_gradient += share * (_pick(channel, 19595.0, 38470.0, 7471.0) / 65536.0)
        else:
            own_gradient += share
    if SHARPNESS >= 0:
        smooth = to_smooth + first + channel * pixels
        total = tl.zeros_like(own_gradient)
        for dy in tl.static_range(-1, 2):
            for dx in tl.static_range(-1, 2):
                inner = ok & _is_inner(x + dx, y + dy, height, width)
                total += tl.load(smooth + (place + dy * width + dx), mask=inner, other=0.0)
        alone = tl.load(smooth + place, mask=ok, other=0.0)
        inner = _is_inner(x, y, height, width)
        own_gradient += total / 13.0 + alone * tl.where(inner, 4.0 / 13.0, 1.0)
    if SHEAR_X >= 0:
        shift = tl.load(value + SHEAR_X) * (down + 0.5)
        own_gradient += tl.load(weight + SHEAR_X) * _from_row(planes, y, across, shift, ok, height, width)
    if TRANSLATE_X >= 0:
        shift = tl.load(value + TRANSLATE_X)
        own_gradient += tl.load(weight + TRANSLATE_X) * _from_row(planes, y, across, shift, ok, height, width)
    if SHEAR_Y >= 0:
        shift = tl.load(value + SHEAR_Y) * (across + 0.5)
        own_gradient += tl.load(weight + SHEAR_Y) * _from_column(planes, x, down, shift, ok, height, width)
    if TRANSLATE_Y >= 0:
        shift = tl.load(value + TRANSLATE_Y)
        own_gradient += tl.load(weight + TRANSLATE_Y) * _from_column(planes, x, down, shift, ok, height, width)
    if ROTATE >= 0:
        turn = value + 2 * count
        seen = _from_turn(planes, across, down, tl.load(turn), tl.load(turn + 1), ok, height, width)
        own_gradient += tl.load(weight + ROTATE) * seen
    if FLIP >= 0:
        mirrored = tl.load(planes + (y * width + (width - 1 - x)), mask=ok, other=0.0)
        own_gradient += tl.load(weight + FLIP) * mirrored
    tl.store(own, own_gradient, mask=ok)
