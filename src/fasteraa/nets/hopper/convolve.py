"""3 x 3 convolutions in Gluon for GPUs of NVIDIA's Hopper generation, for networks whose widths are multiples of 160.

cuDNN has no tile that 160 channels fill: it calculates 192, and 1.5 times as long as needed where it adds up gradients
of weights. Here every program makes 256 x 160 numbers at a time, as 256 x 128 and 256 x 32 (Triton knows powers of two
alone): one warp fetches what the next steps need, zeros beyond the edges of the image included, two groups of four
warps multiply. Images and weights are bfloat16 and channels-last, sums are float32 and have a fixed order.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

WIDTH = 160  # channels of a tile
PIXELS = 256  # rows of a tile: pixels, or for gradients of weights (tap, channel)
CHANNELS = 32  # summed over in a step
SPAN = 64  # pixels summed over in a step, for gradients of weights
STAGES, SPAN_STAGES = 5, 4  # steps in flight
_MEANWHILE = gl.constexpr(8)  # steps into a tile after which the tile before has surely been written
_WIDE, _SLIM = gl.constexpr(128), gl.constexpr(32)  # a tile's channels in two parts
# Triton 3.6 and later ones have different names for the same
_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@builtin
def _viewed(slots, shape, layout, _semantic=None):
    """The same bytes as bfloat16 numbers of another shape."""
    shape = [getattr(side, "value", side) for side in shape]
    return _semantic.memdesc_reinterpret(slots, gl.bfloat16, shape, getattr(layout, "value", layout))


# --- outputs, and gradients of inputs --------------------------------------------------------------------------------


@gluon.jit
def _fetch(
    images, wide, slim, wide_other, slim_other, given,
    SIDE: gl.constexpr, TOGETHER: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, ACROSS: gl.constexpr,
    STEP: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr, OTHER: gl.constexpr,
):  # fmt: skip
    """For every tile, tap and piece of channels: the pixels that this tap sees, and its weights."""
    image_slots, wide_slots, slim_slots, full, empty, wide_tiles, slim_tiles, ready, free, tiles = given
    BANDS: gl.constexpr = SIDE // ROWS
    PIECES: gl.constexpr = DEPTH // STEP
    step = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        band = tile // ACROSS
        column = (tile % ACROSS) * 160
        image = (band // BANDS) * TOGETHER
        row = (band % BANDS) * ROWS
        for piece in range(9 * PIECES):
            tap = piece // PIECES
            channel = (piece % PIECES) * STEP
            slot = step % STAGES
            here = full.index(slot)
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(here, (256 + 160) * STEP * 2)
            seen = [image, row + tap // 3 - 1, tap % 3 - 1, channel]
            _load(images, seen, here, image_slots.index(slot))
            if BACK:  # what an output got from an input through one tap goes back through the opposite one
                place = (8 - tap) * (ACROSS * 160) + column
                _load(wide, [channel, place], here, wide_slots.index(slot))
                _load(slim, [channel, place + _WIDE], here, slim_slots.index(slot))
            else:
                _load(wide, [column, piece * STEP], here, wide_slots.index(slot))
                _load(slim, [column + _WIDE, piece * STEP], here, slim_slots.index(slot))
            if OTHER:
                if piece == 2 * _MEANWHILE:
                    mbarrier.wait(free, (turn & 1) ^ 1)
                    mbarrier.expect(ready, 256 * 160 * 2)
                    for part in gl.static_range(2):
                        pixel = band * 256 + part * 128
                        _load(wide_other, [pixel, column], ready, wide_tiles.index(part))
                        _load(slim_other, [pixel, column + _WIDE], ready, slim_tiles.index(part))
            step += 1
        turn += 1


@gluon.jit
def _finish(total, tile, sums, column, channels, OTHER: gl.constexpr, ACROSS: gl.constexpr):
    """Leave in `tile` what is to be written, and the two sums of each of its channels in `sums`."""
    if OTHER:
        total = total + tile.load(total.type.layout).to(gl.float32)
    half = total.to(gl.bfloat16)
    tile.store(half)
    if sums is not None:
        total = half.to(gl.float32)  # as whoever reads it
        column += gl.arange(0, total.shape[1], ACROSS)
        gl.store(sums + column, gl.sum(total, 0))
        gl.store(sums + channels + column, gl.sum(total * total, 0))


@gluon.jit
def _multiply(
    wide_out, slim_out, sums, given,
    DEPTH: gl.constexpr, ACROSS: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr,
    OTHER: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Half of every tile. While one group of warps writes its half, the other may be some steps into the next tile."""
    image_slots, wide_slots, slim_slots, full, empty, wide_tiles, slim_tiles, ready, free, tiles = given
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    slim: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    across1: gl.constexpr = gl.SliceLayout(0, wide)
    across2: gl.constexpr = gl.SliceLayout(0, slim)
    flat: gl.constexpr = gl.NVMMASharedLayout(2 * STEP, 16, 2)
    wide_tile = wide_tiles.index(PART)
    slim_tile = slim_tiles.index(PART)
    step = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        sum1 = gl.zeros((128, _WIDE), gl.float32, wide)
        sum2 = gl.zeros((128, _SLIM), gl.float32, slim)
        for piece in range(9 * DEPTH // STEP):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            pixels = _viewed(image_slots.index(slot), [256, STEP], flat).slice(PART * 128, 128, 0)
            if BACK:
                weights1 = wide_slots.index(slot)
                weights2 = slim_slots.index(slot)
            else:
                weights1 = wide_slots.index(slot).permute((1, 0))
                weights2 = slim_slots.index(slot).permute((1, 0))
            sum1 = warpgroup_mma(pixels, weights1, sum1, is_async=True)
            sum2 = warpgroup_mma(pixels, weights2, sum2, is_async=True)
            sum1, sum2 = warpgroup_mma_wait(2, (sum1, sum2))  # these two may go on; the step before is done
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=piece > 0)
            if OTHER:
                if piece == _MEANWHILE:
                    tma.store_wait(0)
                    mbarrier.arrive(free, count=1, pred=turn > 0)
            step += 1
        sum1, sum2 = warpgroup_mma_wait(0, (sum1, sum2))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        if OTHER:
            mbarrier.wait(ready, turn & 1)
        else:
            tma.store_wait(0)  # the tile before has left
        pixel = (tile // ACROSS) * 256 + PART * 128
        column = (tile % ACROSS) * 160
        place = sums
        if sums is not None:
            place += pixel // 128 * (2 * ACROSS * 160)
        _finish(sum2, slim_tile, place, column + _WIDE, ACROSS * 160, OTHER, across2)
        _finish(sum1, wide_tile, place, column, ACROSS * 160, OTHER, across1)
        fence_async_shared()
        _store(wide_out, [pixel, column], wide_tile)
        _store(slim_out, [pixel, column + _WIDE], slim_tile)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def _convolve(
    images, wide, slim, wide_other, slim_other, wide_out, slim_out, sums, tiles,
    SIDE: gl.constexpr, TOGETHER: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, ACROSS: gl.constexpr,
    STEP: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr, OTHER: gl.constexpr,
):  # fmt: skip
    image_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + images.block_type.shape, images.layout)
    wide_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + wide.block_type.shape, wide.layout)
    slim_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + slim.block_type.shape, slim.layout)
    wide_tiles = gl.allocate_shared_memory(gl.bfloat16, [2] + wide_out.block_type.shape, wide_out.layout)
    slim_tiles = gl.allocate_shared_memory(gl.bfloat16, [2] + slim_out.block_type.shape, slim_out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)
    given = (image_slots, wide_slots, slim_slots, full, empty, wide_tiles, slim_tiles, ready, free, tiles)
    gl.warp_specialize(
        [
            (_multiply, (wide_out, slim_out, sums, given, DEPTH, ACROSS, STEP, STAGES, BACK, OTHER, 0)),
            (_multiply, (wide_out, slim_out, sums, given, DEPTH, ACROSS, STEP, STAGES, BACK, OTHER, 1)),
            (
                _fetch,
                (
                    images,
                    wide,
                    slim,
                    wide_other,
                    slim_other,
                    given,
                    SIDE,
                    TOGETHER,
                    ROWS,
                    DEPTH,
                    ACROSS,
                    STEP,
                    STAGES,
                    BACK,
                    OTHER,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def convolve(
    images: Tensor, weights: Tensor, plus: Tensor | None = None, back: bool = False, summed: bool = False
) -> tuple[Tensor, Tensor | None]:
    """conv2d(images, weights, padding=1) + plus; summed: (parts, 2, channels) sums of it and of its squares.

    With `back`, the gradient of its images instead, from that of its outputs.
    """
    count, depth, height, width = images.shape
    channels = weights.shape[1 if back else 0]
    rows = min(height, PIXELS // width)
    across = channels // WIDTH
    flat = weights.permute(0, 2, 3, 1).reshape(len(weights), -1)  # a view: they are channels-last
    out = torch.empty(count, height, width, channels, device=images.device, dtype=images.dtype)
    table = out.view(-1, channels)
    other = table if plus is None else plus.permute(0, 2, 3, 1).view(-1, channels)
    blocks = [(CHANNELS, 128), (CHANNELS, 32)] if back else [(128, CHANNELS), (32, CHANNELS)]
    tiles = len(table) // PIXELS * across
    sums = torch.empty(len(table) // 128, 2, channels, device=images.device) if summed else None
    _convolve[(min(_processors(images.device), tiles),)](
        _described(images.permute(0, 2, 3, 1), PIXELS // (rows * width), rows, width, CHANNELS),
        *(_described(flat, *block) for block in blocks),
        *(_described(of, PIXELS // 2, columns) for of in (other, table) for columns in (128, 32)),
        sums,
        tiles,
        SIDE=height,
        TOGETHER=PIXELS // (rows * width),
        ROWS=rows,
        DEPTH=depth,
        ACROSS=across,
        STEP=CHANNELS,
        STAGES=STAGES,
        BACK=back,
        OTHER=plus is not None,
        **_OPTIONS,
    )
    return out.permute(0, 3, 1, 2), sums


# --- gradients of weights --------------------------------------------------------------------------------------------


@gluon.jit
def _share(steps, TALL: gl.constexpr, ACROSS: gl.constexpr):
    """Tile of this program, and its steps. Every tile is shared by several programs, whose sums are added up later."""
    number = gl.program_id(0)
    parts = gl.num_programs(0) // (TALL * ACROSS)
    part = number // (TALL * ACROSS)
    each = gl.cdiv(steps, parts)
    return number % TALL, (number // TALL) % ACROSS * 160, part, part * each, gl.minimum(part * each + each, steps)


@gluon.jit
def _fetch_pairs(
    images, wide, slim, given,
    SIDE: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, TALL: gl.constexpr, ACROSS: gl.constexpr,
    SPAN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The same pixels of gradients, and of images as eight (tap, 32 channels) see them."""
    image_slots, wide_slots, slim_slots, full, empty, steps = given
    BANDS: gl.constexpr = SIDE // ROWS
    PIECES: gl.constexpr = DEPTH // 32
    tall, column, _, begin, end = _share(steps, TALL, ACROSS)
    for step in range(begin, end):
        image = step // BANDS
        row = (step % BANDS) * ROWS
        slot = (step - begin) % STAGES
        here = full.index(slot)
        mbarrier.wait(empty.index(slot), (((step - begin) // STAGES) & 1) ^ 1)
        mbarrier.expect(here, (256 + 160) * SPAN * 2)
        _load(wide, [image, row, 0, column], here, wide_slots.index(slot))
        _load(slim, [image, row, 0, column + _WIDE], here, slim_slots.index(slot))
        for part in gl.static_range(2):
            units = _viewed(image_slots.index(slot * 2 + part), [4] + images.block_type.shape, images.layout)
            for unit in gl.static_range(4):
                piece = tall * 8 + part * 4 + unit
                tap = piece // PIECES
                seen = [image, row + tap // 3 - 1, tap % 3 - 1, (piece % PIECES) * 32]
                _load(images, seen, here, units.index(unit))


@gluon.jit
def _multiply_pairs(
    parts, given,
    DEPTH: gl.constexpr, CHANNELS: gl.constexpr, TALL: gl.constexpr, ACROSS: gl.constexpr, SPAN: gl.constexpr,
    STAGES: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    slim: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
    flat1: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    flat2: gl.constexpr = gl.NVMMASharedLayout(64, 16, 2)
    image_slots, wide_slots, slim_slots, full, empty, steps = given
    tall, column, share, begin, end = _share(steps, TALL, ACROSS)
    sum1 = gl.zeros((128, _WIDE), gl.float32, wide)
    sum2 = gl.zeros((128, _SLIM), gl.float32, slim)
    for step in range(begin, end):
        slot = (step - begin) % STAGES
        mbarrier.wait(full.index(slot), ((step - begin) // STAGES) & 1)
        seen = image_slots.index(slot * 2 + PART).permute((1, 0))
        gradients1 = _viewed(wide_slots.index(slot), [SPAN, _WIDE], flat1)
        gradients2 = _viewed(slim_slots.index(slot), [SPAN, _SLIM], flat2)
        sum1 = warpgroup_mma(seen, gradients1, sum1, is_async=True)
        sum2 = warpgroup_mma(seen, gradients2, sum2, is_async=True)
        sum1, sum2 = warpgroup_mma_wait(2, (sum1, sum2))
        mbarrier.arrive(empty.index((step - begin + STAGES - 1) % STAGES), count=1, pred=step > begin)
    sum1, sum2 = warpgroup_mma_wait(0, (sum1, sum2))
    base = parts + share * (9 * DEPTH) * CHANNELS + column
    row1 = tall * 256 + PART * 128 + gl.arange(0, 128, gl.SliceLayout(1, wide))
    row2 = tall * 256 + PART * 128 + gl.arange(0, 128, gl.SliceLayout(1, slim))
    column1 = gl.arange(0, _WIDE, gl.SliceLayout(0, wide))
    column2 = _WIDE + gl.arange(0, _SLIM, gl.SliceLayout(0, slim))
    gl.store(base + row1[:, None] * CHANNELS + column1[None, :], sum1, mask=(row1 < 9 * DEPTH)[:, None])
    gl.store(base + row2[:, None] * CHANNELS + column2[None, :], sum2, mask=(row2 < 9 * DEPTH)[:, None])


@gluon.jit
def _pair(
    images, wide, slim, parts, steps,
    SIDE: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, CHANNELS: gl.constexpr, TALL: gl.constexpr,
    ACROSS: gl.constexpr, SPAN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    flat: gl.constexpr = gl.NVMMASharedLayout(64, 16, 2)
    image_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, SPAN, 128], flat)
    wide_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + wide.block_type.shape, wide.layout)
    slim_slots = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + slim.block_type.shape, slim.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    given = (image_slots, wide_slots, slim_slots, full, empty, steps)
    gl.warp_specialize(
        [
            (_multiply_pairs, (parts, given, DEPTH, CHANNELS, TALL, ACROSS, SPAN, STAGES, 0)),
            (_multiply_pairs, (parts, given, DEPTH, CHANNELS, TALL, ACROSS, SPAN, STAGES, 1)),
            (_fetch_pairs, (images, wide, slim, given, SIDE, ROWS, DEPTH, TALL, ACROSS, SPAN, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


@triton.jit
def _gather(parts, out, count, TALL: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr):
    """out[channel, row] := sum of parts[:, row, channel]"""
    row = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    channel = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for part in range(count):
        total += tl.load(parts + part * TALL * CHANNELS + row[:, None] * CHANNELS + channel[None, :])
    tl.store(out + channel[:, None] * TALL + row[None, :], tl.trans(total))


def weight_gradient(images: Tensor, gradients: Tensor) -> Tensor:
    """Of the weights, in float32, from the inputs of the convolution and the gradients of its outputs."""
    count, depth, height, width = images.shape
    channels = gradients.shape[1]
    tall, across, rows = triton.cdiv(9 * depth, PIXELS), channels // WIDTH, SPAN // width
    programs = shares(gradients.shape[1], depth, images.device)
    parts = torch.empty(programs, 9 * depth, channels, device=images.device, dtype=torch.float32)
    gradients = gradients.permute(0, 2, 3, 1)
    _pair[(tall * across * programs,)](
        _described(images.permute(0, 2, 3, 1), 1, rows, width, 32),
        _described(gradients, 1, rows, width, 128),
        _described(gradients, 1, rows, width, 32),
        parts,
        count * height // rows,
        SIDE=height,
        ROWS=rows,
        DEPTH=depth,
        CHANNELS=channels,
        TALL=tall,
        ACROSS=across,
        SPAN=SPAN,
        STAGES=SPAN_STAGES,
        **_OPTIONS,
    )
    out = torch.empty(channels, 3, 3, depth, device=images.device, dtype=torch.float32)
    _gather[(9 * depth // 32, channels // 32)](
        parts, out, programs, TALL=9 * depth, CHANNELS=channels, SIDE=32, **_OPTIONS
    )
    return out.permute(0, 3, 1, 2)


def shares(channels: int, depth: int, device: torch.device) -> int:
    """Programs for each tile of the weights' gradient, as many as run at once."""
    return max(1, int(_processors(device) // (triton.cdiv(9 * depth, PIXELS) * (channels // WIDTH))))


def _described(table: Tensor, *block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
    return TensorDescriptor(table, list(table.shape), list(table.stride()), list(block), layout)


@lru_cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
