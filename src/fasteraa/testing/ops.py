"""What every operation must satisfy; each checker raises AssertionError, `parity` counts differing pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fasteraa.images import to_tensor
from fasteraa.ops import NO_SPANS, Context, Op, Pair, Spans, hard, hard_pillow, physical, soft

SIZES = ((32, 32), (1, 1), (2, 5), (3, 3), (47, 33), (28, 41), (64, 64), (130, 96))  # height, width
KINDS = ("noise", "smooth", "low-contrast", "constant", "two-valued", "neighbours", "greyscale")


@dataclass(frozen=True)
class Parity:
    differing: int
    pixels: int

    def __add__(self, other: Parity) -> Parity:
        return Parity(self.differing + other.differing, self.pixels + other.pixels)


def picture(kind: str, height: int, width: int, seed: int = 0) -> Any:
    """A uint8 array (H, W, 3), or (H, W) for greyscale."""
    rng = np.random.default_rng([seed, height, width, KINDS.index(kind)])
    y, x = np.mgrid[:height, :width]
    if kind == "smooth":
        ramps = [x / max(width - 1, 1), y / max(height - 1, 1), (x + y) / max(width + height - 2, 1)]
        return np.stack([np.round(255 * ramp) for ramp in ramps], -1).astype(np.uint8)
    if kind == "low-contrast":
        return rng.integers(100, 121, (height, width, 3), dtype=np.uint8)
    if kind == "constant":
        return np.broadcast_to(rng.integers(0, 256, 3, dtype=np.uint8), (height, width, 3)).copy()
    if kind == "neighbours":
        return rng.integers(100, 102, (height, width, 3), dtype=np.uint8)
    if kind == "two-valued":
        return np.where(rng.random((height, width, 3)) < 0.3, np.uint8(17), np.uint8(230))
    return rng.integers(0, 256, (height, width) if kind == "greyscale" else (height, width, 3), dtype=np.uint8)


def corpus(sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[tuple[Image.Image, Image.Image]]:
    """Pictures of every kind and size, each with a partner."""
    for height, width in sizes:
        for kind in KINDS:
            yield tuple(Image.fromarray(picture(kind, height, width, seed)) for seed in (0, 1))  # type: ignore[misc]


def parity(
    row: Op,
    magnitudes: int = 41,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    device: str = "cpu",
    spans: Spans = NO_SPANS,
) -> Parity:
    """Pixels in which a hard forward (batched, or for one Pillow image) differs from Pillow, over the corpus."""
    result = Parity(0, 0)
    for image, partner in corpus(sizes):
        result += _parity_of(row, image, partner, magnitudes, device, spans)
    return result


def _parity_of(row: Op, image: Image.Image, partner: Image.Image, magnitudes: int, device: str, spans: Spans) -> Parity:
    m, sign, hole = _settings(magnitudes)
    context = Context(
        to_tensor(partner).expand(len(m), -1, -1, -1).to(device), hole.to(device), (9, 200, 30), (7, 1, 99)
    )
    batch = to_tensor(image).expand(len(m), -1, -1, -1).to(device)
    out = hard(row, batch, m.to(device), sign.to(device), context, spans).cpu()
    differing = 0
    for index, (m_, sign_, place) in enumerate(zip(m.tolist(), sign.tolist(), hole.tolist(), strict=True)):
        pair = Pair(partner, tuple(place), context.fill, context.hole_fill)
        exact = to_tensor(row.pillow(image, physical(row, m_, sign_, *image.size, spans), pair))
        quick = to_tensor(hard_pillow(row, image, m_, sign_, pair, spans))
        differing += int((out[index] != exact).sum()) + int((quick != exact).sum())
    return Parity(differing, out.numel())


def _settings(magnitudes: int) -> tuple[Tensor, Tensor, Tensor]:
    """An even grid of magnitudes and as many random ones, alternating signs, random holes."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(magnitudes, generator=generator, dtype=torch.float64)
    m = torch.cat([torch.linspace(0, 1, magnitudes, dtype=torch.float64), random])
    sign = torch.where(torch.arange(len(m)) % 2 == 0, 1.0, -1.0).double()
    return m, sign, torch.rand(len(m), 2, generator=generator, dtype=torch.float64)


# --- properties ------------------------------------------------------------------------------------------------


def check_identity_at_zero(row: Op) -> None:
    """Magnitude 0 leaves any image alone, hard and soft."""
    for image, partner in corpus(((9, 7), (1, 1))):
        batch, other = to_tensor(image)[None], to_tensor(partner)[None]
        for sign in (1.0, -1.0):
            assert torch.equal(hard(row, batch, 0.0, sign, Context(other)), batch)
            off_grid = (batch.double() + 0.3 * torch.rand_like(batch, dtype=torch.float64)) / 256
            out = soft(row, off_grid, 0.0, sign, Context(other / 255))
            assert torch.allclose(out, off_grid, rtol=0, atol=1e-12)


def check_strength_grows(row: Op) -> None:
    """A larger magnitude never does less."""
    ramp = torch.arange(64 * 64, dtype=torch.float64).view(64, 64) / (64 * 64)
    texture = 6 * ((torch.arange(64)[:, None] // 3 + torch.arange(64) // 2) % 2)  # something to sharpen
    channels = torch.tensor([1.0, 0.8, 0.6]).view(1, 3, 1, 1)
    image = (20 + 200 * ramp * channels + texture).to(torch.uint8)
    context = Context(255 - image)
    for sign in (1.0, -1.0) if row.signed else (1.0,):
        steps = (hard(row, image, m, sign, context) for m in torch.linspace(0, 1, 5).tolist())
        moved = [float((step.double() - image).abs().sum()) for step in steps]
        assert moved[0] == 0
        assert moved[-1] > moved[1] > 0
        assert all(a <= b for a, b in pairwise(moved)), (row.name, sign, moved)


def check_batch_is_loop(row: Op) -> None:
    """A batch with a magnitude and a sign for each image is the same as one image after the other."""
    batch = torch.stack([to_tensor(Image.fromarray(picture(kind, 12, 17))) for kind in KINDS if kind != "greyscale"])
    before = batch.clone()
    count = len(batch)
    m, sign = torch.linspace(0.1, 1, count), torch.tensor([1.0, -1.0] * count)[:count]
    hole = torch.linspace(0.1, 0.9, 2 * count).view(count, 2)
    context = Context(batch.flip(0), hole)
    out = hard(row, batch, m, sign, context)
    for index in range(count):
        here = context.at(torch.tensor([index]))
        one = hard(row, batch[index], float(m[index]), float(sign[index]), here)
        assert torch.equal(one, out[index])
    assert torch.equal(batch, before)
    assert out.data_ptr() != batch.data_ptr()


def check_soft_is_hard(row: Op) -> None:
    """On images of whole levels both forwards agree: to the level, or to bilinear against nearest for warps."""
    ramp = torch.arange(24.0).view(1, 1, 1, 24) * 4 + torch.arange(20.0).view(1, 1, 20, 1) * 3
    batch = (ramp + torch.tensor([0.0, 30.0, 60.0]).view(1, 3, 1, 1)).to(torch.uint8)
    context = Context(255 - batch)
    for m in (0.0, 0.37, 0.8, 1.0):
        for sign in (1.0, -1.0):
            exact = hard(row, batch, m, sign, context).double()
            smooth = soft(row, batch.double() / 255, m, sign, replace(context, partner=(255 - batch) / 255)) * 255
            gap = (exact - smooth).abs()
            if row.geometric:  # within a pixel of the ramp (7 levels), except at the image's moving border
                gap = gap[:, :, 3:-3, 3:-3]
                assert float(gap.median()) <= 4
                assert float((gap > 7).double().mean()) < 0.2
            else:
                assert float(gap.max()) < 2.01, (row.name, m, sign, float(gap.max()))


def check_gradients(row: Op) -> None:
    """Magnitude and image gradients in float64 against finite differences, or against the declared estimator."""
    generator = torch.Generator().manual_seed(1)
    level = torch.randint(20, 235, (3, 3, 9, 8), generator=generator)
    off_grid = torch.rand(level.shape, generator=generator, dtype=torch.float64) * 0.6 - 0.3
    image = (level + off_grid) / 255  # away from half levels, where the nearest level jumps
    m = torch.tensor([0.23, 0.61, 0.87], dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    context = Context(image.roll(1, 0), torch.tensor([[0.3, 0.6], [0.5, 0.2], [0.8, 0.7]]))
    view = torch.rand(level.shape, generator=generator, dtype=torch.float64)

    def seen(x: Tensor, magnitude: Tensor) -> Tensor:
        return (soft(row, x, magnitude, sign, context) * view).sum((1, 2, 3))

    x, mu = image.clone().requires_grad_(), m.clone().requires_grad_()
    by_image, by_magnitude = torch.autograd.grad(seen(x, mu).sum(), (x, mu), allow_unused=True)
    assert by_image is not None, "the image must get a gradient"
    step = 1e-6
    direction = torch.rand(level.shape, generator=generator, dtype=torch.float64) - 0.5
    finite = (seen(image + step * direction, m) - seen(image - step * direction, m)) / (2 * step)
    torch.testing.assert_close((by_image * direction).sum((1, 2, 3)), finite, rtol=1e-5, atol=1e-7)
    if row.gradient == "true":
        finite = (seen(image, m + step) - seen(image, m - step)) / (2 * step)
        assert float(finite.abs().min()) > 1e-3
        torch.testing.assert_close(by_magnitude, finite, rtol=1e-5, atol=1e-7)
    elif row.gradient == "straight-through":  # every pixel's derivative is 1
        torch.testing.assert_close(by_magnitude, view.sum((1, 2, 3)))
    else:
        assert by_magnitude is None or not bool(by_magnitude.any())


CHECKS = (check_identity_at_zero, check_strength_grows, check_batch_is_loop, check_soft_is_hard, check_gradients)
