"""What parity cannot see of the tone family: the slopes that carry the image's gradient, and values between levels."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fasteraa.ops import OPS, hard, soft

TONE = [row for row in OPS.values() if row.family.name == "tone"]
LEVELS = torch.arange(40, 201).double()  # one pixel of each level, so low = 40 and high = 200
IMAGE = (LEVELS / 255).expand(1, 3, 1, -1)

# the slope of each curve at magnitude 0.5, by level
SLOPES = {
    "solarize": torch.where(LEVELS < 128, 1.0, -1.0),
    "posterize": torch.ones(161),
    "invert": -torch.ones(161),
    "auto_contrast": torch.full((161,), 255 / 160),
    "equalize": torch.ones(161),
}


@pytest.mark.parametrize("row", TONE, ids=lambda row: row.name)
def test_between_levels_the_curve_goes_on_with_its_slope(row):
    slope = SLOPES.get(row.name)  # a new row has none here: its gradient is still checked against its values
    at_level = soft(row, IMAGE, 0.5)
    for rest in (0.3, -0.45):
        off = IMAGE + rest / 255
        step = (soft(row, off, 0.5) - at_level) * 255 / rest
        if slope is not None:
            torch.testing.assert_close(step[0, 0, 0], slope.double(), rtol=0, atol=1e-9)
        x = off.clone().requires_grad_()
        soft(row, x, 0.5).sum().backward()
        torch.testing.assert_close(x.grad, step, rtol=0, atol=1e-9)  # the gradient is that slope


@pytest.mark.parametrize("row", TONE, ids=lambda row: row.name)
def test_a_flat_image(row):
    """One level in the whole image: nothing to stretch or to spread, and the gradient goes through."""
    x = torch.full((2, 3, 4, 4), 77.2 / 255, dtype=torch.float64, requires_grad=True)
    soft(row, x, 0.4).sum().backward()
    if row.name in SLOPES:
        assert x.grad.unique().tolist() == [-1.0 if row.name == "invert" else 1.0]
    assert x.grad.all()


def test_neighbouring_levels_are_stretched():
    image = torch.tensor([100, 101], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 4, 2)
    assert hard("auto_contrast", image)[0, 0, 0].tolist() == [0, 255]
    x = (image.double() / 255).requires_grad_()
    soft("auto_contrast", x).sum().backward()
    assert x.grad.unique().tolist() == [255.0]


def test_equalize_of_a_picture_whose_highest_level_is_there_once():
    """One of 256 pixels: a step is 255 / 255. With another level's pixels it were 0, and nothing would change."""
    levels = [*np.repeat(np.arange(10, 61), 5).tolist(), 200]
    picture = Image.fromarray(np.array(levels, np.uint8).reshape(16, 16))
    row = OPS["equalize"]
    quick = row.family.quick(row, picture, 0.0, None)
    assert quick.tobytes() == ImageOps.equalize(picture).tobytes() != picture.tobytes()
    batch = torch.tensor(levels, dtype=torch.uint8).view(1, 1, 16, 16)
    assert hard("equalize", batch).numpy().tobytes() == quick.tobytes()


def test_equalize_of_few_pixels_is_the_identity_and_of_255_is_not():
    few = torch.arange(0, 250, dtype=torch.uint8).view(1, 1, 1, 250)  # 249 pixels below the last level: step 0
    assert torch.equal(hard("equalize", few), few)
    many = torch.cat([few, few[..., :20]], 3)
    assert not torch.equal(hard("equalize", many), many)


def test_values_beyond_the_range_go_on_from_its_ends():
    x = torch.tensor([-0.5, 1.5], dtype=torch.float64).view(1, 1, 1, 2)
    assert soft("posterize", x, 0.0)[0, 0, 0].tolist() == pytest.approx([-0.5, 1.5])
    assert soft("invert", x)[0, 0, 0].tolist() == pytest.approx([1.5, -0.5])


def test_curves_end_at_the_range():
    """Equalize's table runs past 255 for small images; what is looked up must not."""
    image = torch.arange(0, 240, dtype=torch.uint8).repeat(2).view(1, 1, 20, 24)
    out = soft("equalize", image.double() / 255) * 255
    assert out.max() <= 255.0001
    torch.testing.assert_close(out.round(), hard("equalize", image).double(), rtol=0, atol=0.01)
