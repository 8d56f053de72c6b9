"""One file over all operations: parity with Pillow and the properties that every row must have."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from fasteraa.errors import ImageError, PolicyError
from fasteraa.images import fill_for, luma, to_pillow, to_tensor
from fasteraa.ops import OPS, Context, Pair, Span, hard, hard_pillow, physical, soft, warp
from fasteraa.testing import ops as checks

ROWS = list(OPS.values())
MAGNITUDES = [row for row in ROWS if row.span is not None]
WIDE = {
    "shear_x": Span(0, 0.99, "slope"),
    "shear_y": Span(0, 0.99, "slope"),
    "translate_x": Span(0, 32, "px"),
    "translate_y": Span(0, 19, "px"),
    "rotate": Span(0, 180, "degree"),
    "solarize": Span(256, 0, "level"),
    "posterize": Span(8, 0, "bit"),
    **{name: Span(1, 2.5, "factor") for name in ("contrast", "color", "brightness", "sharpness")},
    "sample_pairing": Span(0, 1, "share"),
    "cutout": Span(0, 20, "px"),
}


def pytest_generate_tests(metafunc):
    rows = MAGNITUDES if "scaled" in metafunc.fixturenames else ROWS
    for name in ("row", "scaled"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, rows, ids=lambda row: row.name)


def test_equals_pillow(row):
    result = checks.parity(row, magnitudes=21)
    assert result.pixels > 100_000
    assert result.differing == 0


def test_equals_pillow_on_a_wider_span(scaled):
    result = checks.parity(scaled, magnitudes=9, sizes=((32, 32), (21, 34), (1, 1)), spans=WIDE)
    assert result.differing == 0


def test_leaves_the_image_alone_at_zero(scaled):
    checks.check_identity_at_zero(scaled)


def test_without_a_magnitude_nothing_happens(scaled):
    image = torch.randint(0, 256, (2, 3, 9, 8), dtype=torch.uint8)
    assert torch.equal(hard(scaled, image, context=Context(image.flip(0))), image)
    share = image.double() / 255
    torch.testing.assert_close(soft(scaled, share, context=Context(share.flip(0))), share, rtol=0, atol=1e-12)


def test_strength_grows(scaled):
    checks.check_strength_grows(scaled)


def test_batch_is_loop(row):
    checks.check_batch_is_loop(row)


def test_soft_is_hard_on_levels(row):
    checks.check_soft_is_hard(row)


def test_gradients(row):
    checks.check_gradients(row)


def test_changes_something_when_it_has_no_magnitude(row):
    if row.span is None:
        image = torch.randint(50, 200, (1, 3, 40, 40), dtype=torch.uint8)
        assert not torch.equal(hard(row, image), image)


@pytest.mark.gpu
def test_equals_pillow_on_the_gpu(row):
    assert checks.parity(row, magnitudes=21, device="cuda").differing == 0


def test_context_at_picks_images():
    context = Context(torch.arange(4).view(4, 1, 1, 1), torch.arange(8).view(4, 2))
    picked = context.at(torch.tensor([2]))
    assert picked.partner.item() == 2
    assert picked.hole.tolist() == [[4, 5]]


@pytest.mark.parametrize(("width", "height"), [(100, 3), (150, 2), (3, 200), (500, 1)])
@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
def test_shifts_within_an_ulp_of_a_half_pixel(name, width, height):
    """0.045 of 100 pixels is 4.5 but for an ulp: Pillow's sums decide which way it goes, and where along the row."""
    result = checks.Parity(0, 0)
    for sign in (1.0, -1.0):
        for m in (0.1, 0.2, 0.05, 0.3, 1 / 9, 7 / 30, 7 / 9, 0.9):
            image = Image.fromarray(checks.picture("noise", height, width))
            out = hard(name, to_tensor(image), m, sign)
            exact = to_tensor(hard_pillow(OPS[name], image, m, sign, Pair(None, (0, 0), (0, 0, 0), (0, 0, 0))))
            result += checks.Parity(int((out != exact).sum()), out.numel())
    assert result.differing == 0


def test_scaled_without_turning():
    """Pillow adds the scale up pixel by pixel; one multiplication rounds otherwise. No row does this yet."""
    scale = torch.cat([torch.linspace(-1.5, 1.5, 61, dtype=torch.float64), torch.tensor([0.1, 0.7, 1 / 3]).double()])
    matrix = torch.stack([torch.zeros_like(scale)] * 6, 1)
    matrix[:, 0], matrix[:, 4] = scale, scale.flip(0)
    matrix[:, 2], matrix[:, 5] = 48 * (1 - scale), 65 * (1 - scale.flip(0))
    image = Image.fromarray(checks.picture("noise", 130, 96))
    out = warp.nearest(to_tensor(image).expand(len(scale), -1, -1, -1), matrix, (9, 200, 30), scaled=True)
    for one, coefficients in zip(out, matrix.tolist(), strict=True):
        exact = image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=(9, 200, 30))
        assert torch.equal(one, to_tensor(exact))


def test_which_rows_scale():
    assert not any(warp.scales(row) for row in ROWS if row.name in ("rotate", "flip", "shear_x", "translate_y"))
    for rule in (lambda v, width, height: (v, 0, 0, 0, 1, 0), lambda v, width, height: (-1, 0, 0, 0, 2, 0)):
        assert warp.scales(replace(OPS["flip"], rule=rule))


def test_means_that_are_exact_halves():
    """Half black, half white: the mean is 127.5, which Pillow takes up."""
    for height, width in ((7, 14), (28, 28), (224, 224)):
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        image[:, : height // 2] = 255
        image[:, height // 2, : width // 2 if height % 2 else 0] = 255
        out = hard("contrast", image, 1.0, -1.0)
        exact = hard_pillow(OPS["contrast"], to_pillow(image), 1.0, -1.0, Pair(None, (0, 0), (0, 0, 0), (0, 0, 0)))
        assert torch.equal(out, to_tensor(exact))


def test_whole_pixels_stay_whole():
    """k of n pixels, for all k and n up to 1024 and whatever the image's side: not k less an ulp."""
    row = OPS["cutout"]
    for n in range(1, 1025):
        k = torch.arange(1, n + 1, dtype=torch.float64)
        spans = {"cutout": Span(0, n, "px")}
        assert torch.equal(physical(row, k / n, torch.ones_like(k), 49, 37, spans), k)
        assert physical(row, 1 / n, 1.0, 49, 37, spans) == 1
        assert physical(row, 1.0, 1.0, n, 37, {"cutout": Span(0, 7, "px")}) == 7


@pytest.mark.parametrize("width", [*range(1, 70), 1000, 1003])
def test_a_hole_in_pixels(width):
    """At the left end of a row, corners included: Pillow's rectangles paint one pixel more than their side."""
    for side in {1, 2, 3, width // 3, width} - {0}:
        image = torch.zeros(1, 1, width, dtype=torch.uint8)
        context = Context(hole=torch.zeros(1, 2, dtype=torch.float64), hole_fill=(9, 9, 9))
        out = hard("cutout", image, 1.0, context=context, spans={"cutout": Span(0, side, "px")})
        assert int(out.count_nonzero()) == min(width, side + 1)


def test_shifts_in_pixels():
    image = torch.arange(1, 50, dtype=torch.uint8).view(1, 1, 49)
    for shift in range(1, 49):
        out = hard("translate_x", image, shift / 49, spans={"translate_x": Span(0, 49, "px")})
        assert out.flatten().tolist() == [*range(1 + shift, 50), *[0] * shift]


def test_sides_beyond_fixed_point_are_refused():
    with pytest.raises(ImageError, match="sides of up to 16383"):
        hard("translate_x", torch.zeros(1, 1, 16384, dtype=torch.uint8), 0.5)
    row = (torch.arange(16383) % 251).to(torch.uint8)
    assert torch.equal(hard("flip", row.view(1, 1, -1), 1.0).flatten(), row.flip(0))


def test_one_grey_pixel_is_an_image():
    pixel = torch.full((1, 1, 1, 1), 40, dtype=torch.uint8)
    assert hard("invert", pixel).item() == 215
    assert soft("invert", pixel / 255.0).item() == pytest.approx(215 / 255)
    assert soft("invert", (pixel / 255.0)[0]).shape == (1, 1, 1)


# colours whose luma is within a 65536th of the next level, or far from black
COLOURS = [(9, 192, 36), (31, 214, 58), (51, 224, 33), (43, 95, 227), (228, 205, 35), (232, 240, 11), (9, 200, 30)]


@pytest.mark.parametrize("colour", COLOURS)
def test_grey_is_pillows(colour):
    level = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
    assert fill_for(1, colour) == (level,)
    assert luma(torch.tensor(colour, dtype=torch.float32).view(1, 3, 1, 1), whole=True).item() == level
    assert luma(torch.ones(1, 3, 1, 1), whole=False).item() == 1


def test_one_image_is_a_batch_of_one():
    image = torch.rand(3, 6, 7)
    for name in ("color", "rotate", "contrast"):
        assert torch.equal(soft(name, image, 0.7), soft(name, image[None], 0.7)[0])


@pytest.mark.parametrize("apply", [hard, soft])
def test_numbers_that_are_no_signs_or_have_another_shape_are_refused(apply):
    images = torch.zeros(2, 3, 4, 4) if apply is soft else torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    for sign in (-1.5, torch.tensor([-1.5, 1.0])):
        with pytest.raises(PolicyError, match=r"sign must be in \[-1, 1\], got"):
            apply("rotate", images, 0.5, sign)
    for magnitude in (torch.zeros(3), torch.zeros(2, 1), torch.zeros(1, 2), torch.zeros(1)):
        with pytest.raises(ImageError, match="magnitude must have one entry for each of 2 images"):
            apply("rotate", images, magnitude)
