"""The pixels of a stage of a soft policy: statistics of each image, then the mixture of all operations.

A kernel gets the column of each operation in the policy, or -1 for one that is not there; what is not there is left
out when the kernel is compiled. Images are float32 (B, C, H, W); a program has a tile of one image, all channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fasteraa.ops.kernels.soft_weights import EXTRAS

# --- what all kernels share ------------------------------------------------------------------------------------------


@triton.jit
def _nearest_level(image):
    """round(255 x), halves to even, in 0..255: adding 1.5 * 2**23 leaves no place for a fraction."""
    scaled = tl.minimum(tl.maximum(image * 255.0, 0.0), 255.0)
    return (scaled + 12582912.0) - 12582912.0


@triton.jit
def _pick(channel, zero, one, two):
    return tl.where(channel == 0, zero, tl.where(channel == 1, one, two))


@triton.jit
def _at(planes, y, x, ok, fill, height, width):
    """The image less the fill colour at whole places, zero outside."""
    inside = ok & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return tl.load(planes + (y * width + x), mask=inside, other=0.0) - tl.where(inside, fill, 0.0)


@triton.jit
def _split(place, size):
    """A coordinate's pixel and what lies beyond it. From two pixels outside on, nothing is seen."""
    place = tl.minimum(tl.maximum(place, -2.0), size + 1.0)
    whole = tl.floor(place)
    return whole.to(tl.int32), place - whole


@triton.jit
def _across(planes, y, place, ok, fill, height, width):
    """The two pixels of row y around a place, and how far it lies from the first to the second."""
    x, part = _split(place, width)
    near = _at(planes, y, x, ok, fill, height, width)
    return near, _at(planes, y, x + 1, ok, fill, height, width), part


@triton.jit
def _down(planes, place, x, ok, fill, height, width):
    """The same along column x."""
    y, part = _split(place, height)
    near = _at(planes, y, x, ok, fill, height, width)
    return near, _at(planes, y + 1, x, ok, fill, height, width), part


@triton.jit
def _between(near, far, part):
    return near * (1 - part) + far * part


@triton.jit
def _turned(x, y, cos, sin, height, width):
    """Where the pixel (x, y) of a turned image looks, in pixels. Centres are where coordinates are whole."""
    middle_x, middle_y = 0.5 * (width - 1), 0.5 * (height - 1)
    across, down = x - middle_x, y - middle_y
    return (cos * across - sin * down) + middle_x, (sin * across + cos * down) + middle_y


@triton.jit
def _four(planes, place_y, place_x, ok, fill, height, width):
    x, right = _split(place_x, width)
    y, below = _split(place_y, height)
    a = _at(planes, y, x, ok, fill, height, width)
    b = _at(planes, y, x + 1, ok, fill, height, width)
    c = _at(planes, y + 1, x, ok, fill, height, width)
    d = _at(planes, y + 1, x + 1, ok, fill, height, width)
    return a, b, c, d, right, below


@triton.jit
def _solarized(level, v):
    below = level < v
    return tl.where(below, level, 255.0 - level), tl.where(below, 1.0, -1.0)


@triton.jit
def _posterized(level, v):
    lost = tl.minimum(tl.maximum(8 - tl.floor(v), 0.0), 7.0).to(tl.int32)
    return ((level.to(tl.int32) >> lost) << lost).to(tl.float32)


@triton.jit
def _stretched(level, low, scale):
    return tl.minimum(tl.maximum((level - low) * scale, 0.0), 255.0)


@triton.jit
def _clip(image):
    return tl.minimum(tl.maximum(image, 0.0), 1.0)


@triton.jit
def _luma(base, place, ok, pixels):
    red = tl.load(base + place, mask=ok, other=0.0)
    green = tl.load(base + pixels + place, mask=ok, other=0.0)
    blue = tl.load(base + 2 * pixels + place, mask=ok, other=0.0)
    return (19595.0 * red + 38470.0 * green + 7471.0 * blue) / 65536.0


@triton.jit
def _smooth(planes, here, place, inner, width):
    """Pillow's SMOOTH filter, summed in the order of the torch twin; the outermost pixels as they were."""
    total = tl.zeros_like(here)
    for dx in tl.static_range(-1, 2):
        above = tl.load(planes + (place - width + dx), mask=inner, other=0.0)
        row = tl.load(planes + (place + dx), mask=inner, other=0.0)
        below = tl.load(planes + (place + width + dx), mask=inner, other=0.0)
        total += above + row + below
    return tl.where(inner, tl.math.div_rn(total + 4.0 * here, tl.full(here.shape, 13.0, tl.float32)), here)


@triton.jit
def _is_inner(x, y, height, width):
    return (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)


# --- statistics ------------------------------------------------------------------------------------------------------


@triton.jit
def _counts(plane, pixels, level, BLOCK: tl.constexpr):
    counts = tl.zeros((256,), tl.int32)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        seen = tl.load(plane + place, mask=place < pixels, other=0.0)
        counts += tl.histogram(_nearest_level(seen).to(tl.int32), 256)
    beyond = (pixels + BLOCK - 1) // BLOCK * BLOCK - pixels  # counted as level 0, and no pixels
    return counts - tl.where(level == 0, beyond, 0)


@triton.jit
def _mean_grey(base, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        if CHANNELS == 3:
            grey = _luma(base, place, place < pixels, pixels)
        else:
            grey = tl.load(base + place, mask=place < pixels, other=0.0)
        sums += grey.to(tl.float64)
    return (tl.sum(sums) / pixels).to(tl.float32)


@triton.jit(do_not_specialize=["pixels"])
def _survey(
    source, tables, ranges, means, pixels,
    AUTO_CONTRAST: tl.constexpr, EQUALIZE: tl.constexpr, CONTRAST: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One channel of one image: equalize's curve, the lowest level and auto_contrast's scale, the mean grey."""
    program = tl.program_id(0)
    plane = source + program.to(tl.int64) * pixels
    level = tl.arange(0, 256)
    if (AUTO_CONTRAST >= 0) or (EQUALIZE >= 0):
        counts = _counts(plane, pixels, level, BLOCK)
        high = tl.max(tl.where(counts > 0, level, 0))
        low = tl.min(tl.where(counts > 0, level, 255))
        if AUTO_CONTRAST >= 0:
            flat = high == low
            scale = 255.0 / tl.where(flat, 255, high - low).to(tl.float64)
            tl.store(ranges + program * 2, tl.where(flat, 0, low).to(tl.float32))
            tl.store(ranges + program * 2 + 1, scale.to(tl.float32))
        if EQUALIZE >= 0:
            step = (pixels - tl.sum(tl.where(level == high, counts, 0))) // 255
            before = tl.cumsum(counts, 0) - counts
            spread = tl.minimum((step // 2 + before) // tl.maximum(step, 1), 255)
            new = tl.where(step > 0, spread, level)
            tl.store(tables + program.to(tl.int64) * 256 + level, new.to(tl.float32))
    if CONTRAST >= 0:  # noqa: SIM102  (decided when it is compiled)
        if program % CHANNELS == 0:
            tl.store(means + program // CHANNELS, _mean_grey(plane, pixels, CHANNELS, BLOCK))


# --- forward ---------------------------------------------------------------------------------------------------------

# what changes from call to call and must not lead to a compilation of its own
_ANY = [
    "stage", "images", "count", "height", "width", "tiles",
    "fill0", "fill1", "fill2", "hole0", "hole1", "hole2",
]  # fmt: skip


@triton.jit(do_not_specialize=_ANY)
def _mix(
    source, partners, partner, record, values, tables, ranges, means, target,
    stage, images, count, height, width, tiles, fill0, fill1, fill2, hole0, hole1, hole2,
    SHEAR_X: tl.constexpr, SHEAR_Y: tl.constexpr, TRANSLATE_X: tl.constexpr, TRANSLATE_Y: tl.constexpr,
    ROTATE: tl.constexpr, FLIP: tl.constexpr, SOLARIZE: tl.constexpr, POSTERIZE: tl.constexpr, INVERT: tl.constexpr,
    AUTO_CONTRAST: tl.constexpr, EQUALIZE: tl.constexpr, CONTRAST: tl.constexpr, COLOR: tl.constexpr,
    BRIGHTNESS: tl.constexpr, SHARPNESS: tl.constexpr, SAMPLE_PAIRING: tl.constexpr, CUTOUT: tl.constexpr,
    CHANNELS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """sum_n weight_n * op_n(image) + kept * image, for one tile of one image."""
    image, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    pixels = height * width
    channel, place = tl.arange(0, LANES)[:, None], tile * TILE + tl.arange(0, TILE)[None, :]
    within = place < pixels
    ok = (channel < CHANNELS) & within
    y, x = place // width, place % width
    across, down = x.to(tl.float32), y.to(tl.float32)
    base = source + image.to(tl.int64) * (CHANNELS * pixels)
    planes = base + channel * pixels
    here = tl.load(planes + place, mask=ok, other=0.0)
    fill = _pick(channel, fill0, fill1, fill2)
    weight, value = record + image * (2 * count + 1), values + image * (2 * count + EXTRAS)
    out = tl.load(weight + 2 * count) * here
    if (SOLARIZE >= 0) or (POSTERIZE >= 0) or (INVERT >= 0) or (AUTO_CONTRAST >= 0) or (EQUALIZE >= 0):
        level = _nearest_level(here)
        curve, slope = tl.zeros_like(here), tl.zeros_like(here)
        if SOLARIZE >= 0:
            w = tl.load(weight + SOLARIZE)
            new, steep = _solarized(level, tl.load(value + SOLARIZE))
            curve += w * new
            slope += w * steep
        if POSTERIZE >= 0:
            w = tl.load(weight + POSTERIZE)
            curve += w * _posterized(level, tl.load(value + POSTERIZE))
            slope += w
        if INVERT >= 0:
            w = tl.load(weight + INVERT)
            curve += w * (255.0 - level)
            slope -= w
        if AUTO_CONTRAST >= 0:
            w = tl.load(weight + AUTO_CONTRAST)
            stretch = ranges + (image * CHANNELS + channel) * 2
            scale = tl.load(stretch + 1, mask=channel < CHANNELS, other=0.0)
            curve += w * _stretched(level, tl.load(stretch, mask=channel < CHANNELS, other=0.0), scale)
            slope += w * scale
        if EQUALIZE >= 0:
            w = tl.load(weight + EQUALIZE)
            table = tables + (image * CHANNELS + channel).to(tl.int64) * 256
            curve += w * tl.load(table + level.to(tl.int32), mask=ok, other=0.0)
            slope += w
        whole = tl.full(here.shape, 255.0, tl.float32)
        out += tl.math.div_rn(curve, whole) + slope * (here - tl.math.div_rn(level, whole))
    if CONTRAST >= 0:
        start = tl.load(means + image)
        out += tl.load(weight + CONTRAST) * _clip(start + tl.load(value + CONTRAST) * (here - start))
    if COLOR >= 0:
        grey = here
        if CHANNELS == 3:
            grey = _luma(base, place, within, pixels)
        out += tl.load(weight + COLOR) * _clip(grey + tl.load(value + COLOR) * (here - grey))
    if BRIGHTNESS >= 0:
        out += tl.load(weight + BRIGHTNESS) * _clip(tl.load(value + BRIGHTNESS) * here)
    if SHARPNESS >= 0:
        start = _smooth(planes, here, place, ok & _is_inner(x, y, height, width), width)
        out += tl.load(weight + SHARPNESS) * _clip(start + tl.load(value + SHARPNESS) * (here - start))
    if SAMPLE_PAIRING >= 0:
        other = tl.load(partner + stage * images + image).to(tl.int64)
        other = tl.load(partners + other * (CHANNELS * pixels) + channel * pixels + place, mask=ok, other=0.0)
        out += tl.load(weight + SAMPLE_PAIRING) * _clip(here + tl.load(value + SAMPLE_PAIRING) * (other - here))
    if CUTOUT >= 0:
        box = value + 2 * count + 2
        cut = (across >= tl.load(box)) & (across <= tl.load(box + 2))
        cut = cut & (down >= tl.load(box + 1)) & (down <= tl.load(box + 3))
        out += tl.load(weight + CUTOUT) * tl.where(cut, _pick(channel, hole0, hole1, hole2), here)
    if SHEAR_X >= 0:
        to = across + tl.load(value + SHEAR_X) * (down + 0.5)
        near, far, part = _across(planes, y, to, ok, fill, height, width)
        out += tl.load(weight + SHEAR_X) * (_between(near, far, part) + fill)
    if TRANSLATE_X >= 0:
        near, far, part = _across(planes, y, across + tl.load(value + TRANSLATE_X), ok, fill, height, width)
        out += tl.load(weight + TRANSLATE_X) * (_between(near, far, part) + fill)
    if SHEAR_Y >= 0:
        to = down + tl.load(value + SHEAR_Y) * (across + 0.5)
        near, far, part = _down(planes, to, x, ok, fill, height, width)
        out += tl.load(weight + SHEAR_Y) * (_between(near, far, part) + fill)
    if TRANSLATE_Y >= 0:
        near, far, part = _down(planes, down + tl.load(value + TRANSLATE_Y), x, ok, fill, height, width)
        out += tl.load(weight + TRANSLATE_Y) * (_between(near, far, part) + fill)
    if ROTATE >= 0:
        turn = value + 2 * count
        to_x, to_y = _turned(across, down, tl.load(turn), tl.load(turn + 1), height, width)
        a, b, c, d, right, below = _four(planes, to_y, to_x, ok, fill, height, width)
        seen = _between(_between(a, b, right), _between(c, d, right), below)
        out += tl.load(weight + ROTATE) * (seen + fill)
    if FLIP >= 0:
        out += tl.load(weight + FLIP) * (_at(planes, y, width - 1 - x, ok, fill, height, width) + fill)
    tl.store(target + image.to(tl.int64) * (CHANNELS * pixels) + channel * pixels + place, out, mask=ok)
