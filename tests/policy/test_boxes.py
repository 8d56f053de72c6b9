"""Boxes, points and masks go where the pixels go: what is right is read from the pixels of painted images alone."""

import math

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from fasteraa.errors import ImageError
from fasteraa.ops import OPS
from fasteraa.ops.warp import cut_at_border
from fasteraa.policy import Choice, Policy, SubPolicy

GEOMETRIC = [name for name, row in OPS.items() if row.geometric]
MAGNITUDES = (0.0, 0.17, 0.5, 0.83, 1.0)
SIZES = ((60, 60), (48, 91), (101, 37))
FORMATS = ("XYXY", "XYWH", "CXCYWH")


def stage(op, magnitude, sign):
    row = OPS[op]
    return (Choice(op, 1.0, magnitude if row.span else None, sign=sign if row.signed else None),)


def policy_of(*stages):
    return Policy((SubPolicy(tuple(stage(*each) for each in stages)),))


def rectangles(height, width):
    """Inside, at each border, in corners, thin, and the whole image; x1, y1, x2, y2."""
    third, half = width // 3, height // 2
    return [
        (third, half - 8, third + 11, half + 5),
        (0, 5, 12, 20),
        (width - 9, half, width, half + 14),
        (third, 0, third + 10, 9),
        (third, height - 10, third + 13, height),
        (0, 0, 8, 8),
        (width - 8, height - 8, width, height),
        (4, 10, width - 4, 16),
        (0, 0, width, height),
    ]


def painted(rectangle, height, width):
    x1, y1, x2, y2 = rectangle
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 255
    return image


def seen(image):
    """The box of the painted pixels; None if none is left."""
    ys, xs = image.nonzero(as_tuple=True)
    if not len(xs):
        return None
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], dtype=float)


def slack(stages):
    """By how many pixels a hull may stand out: one by the sampling, and where the border cuts a slanting side into a
    wedge, the part of its tip that is thinner than a pixel.
    """
    slope_of = {"rotate": lambda m: math.tan(math.radians(30 * m)), "shear_x": lambda m: 0.3 * m}
    slope_of["shear_y"] = slope_of["shear_x"]
    slopes = [slope_of[op](magnitude) for op, magnitude, _ in stages if op in slope_of]
    slanting = [slope for slope in slopes if slope]
    return 1.01 + len(slanting) * (1 / min(slanting) if slanting else 0)


def assert_right(box, image, within):
    pixels = seen(image)
    if pixels is None:
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert area <= within**2
        return
    assert (box[:2] <= pixels[:2] + 1.01).all()
    assert (box[2:] >= pixels[2:] - 1.01).all()  # it holds all pixels
    assert (pixels[:2] - box[:2] <= within).all()
    assert (box[2:] - pixels[2:] <= within).all()  # and not much else


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
@pytest.mark.parametrize("form", FORMATS)
def test_boxes_at_every_magnitude_size_and_place(op, sign, form):
    for magnitude in MAGNITUDES:
        for height, width in SIZES:
            transform = policy_of((op, magnitude, sign)).transform()
            for rectangle in rectangles(height, width):
                boxes = tv_tensors.BoundingBoxes([rectangle], format="XYXY", canvas_size=(height, width)).double()
                given = v2.ConvertBoundingBoxFormat(form)(tv_tensors.wrap(boxes, like=_like(height, width)))
                image, moved = transform(tv_tensors.Image(painted(rectangle, height, width)), given)
                assert moved.format.name == form
                box = v2.ConvertBoundingBoxFormat("XYXY")(moved)[0].numpy()
                assert (box >= -1e-9).all()
                assert (box <= np.add([width, height, width, height], 1e-9)).all()
                assert_right(box, image[0], slack([(op, magnitude, sign)]))


def _like(height, width):
    return tv_tensors.BoundingBoxes(torch.zeros(1, 4).double(), format="XYXY", canvas_size=(height, width))


def test_whole_pixels_stay_whole():
    """Flips and shifts move whole pixels, so there the box is that of the pixels to the last digit."""
    for op in ("flip", "translate_x", "translate_y"):
        for sign in "+-":
            for magnitude in MAGNITUDES:
                for height, width in SIZES:
                    transform = policy_of((op, magnitude, sign)).transform()
                    for rectangle in rectangles(height, width):
                        for dtype in (torch.int64, torch.float32):
                            boxes = tv_tensors.BoundingBoxes(
                                [rectangle], format="XYXY", canvas_size=(height, width), dtype=dtype
                            )
                            image, moved = transform(tv_tensors.Image(painted(rectangle, height, width)), boxes)
                            assert moved.dtype == dtype
                            pixels = seen(image[0])
                            if pixels is None:
                                assert (moved[0, 2] - moved[0, 0]) * (moved[0, 3] - moved[0, 1]) == 0
                            else:
                                assert moved[0].tolist() == pixels.tolist()


TWO = [
    (("translate_x", 1.0, "+"), ("translate_x", 1.0, "-")),
    (("translate_y", 0.8, "-"), ("translate_y", 0.6, "+")),
    (("rotate", 1.0, "+"), ("rotate", 1.0, "-")),
    (("shear_x", 0.9, "+"), ("flip", None, "+"), ("shear_x", 0.9, "+")),
    (("shear_y", 1.0, "-"), ("translate_y", 0.7, "-"), ("rotate", 0.5, "+")),
    (("translate_x", 0.9, "-"), ("invert", None, "+"), ("rotate", 0.7, "-")),
]


@pytest.mark.parametrize("stages", TWO, ids=lambda stages: "-".join(each[0] for each in stages))
def test_what_left_the_image_does_not_come_back(stages):
    lost = 0
    for height, width in SIZES:
        policy = policy_of(*stages)
        for rectangle in rectangles(height, width):
            boxes = tv_tensors.BoundingBoxes(
                [rectangle], format="XYXY", canvas_size=(height, width), dtype=torch.float64
            )
            mask = tv_tensors.Mask(painted(rectangle, height, width)[:1])
            _, marked, moved = policy.transform()(tv_tensors.Image(painted(rectangle, height, width)), mask, boxes)
            assert_right(moved[0].numpy(), marked[0], slack(stages))
            lost += int(marked.sum()) < int(mask.sum())
    assert lost > 5


def test_a_shift_there_and_back_leaves_what_was_not_lost():
    """By hand: 45 of 100 columns go out to the left and come back black."""
    policy = policy_of(("translate_x", 1.0, "+"), ("translate_x", 1.0, "-"))
    rows = [[30, 10, 60, 20], [0, 10, 40, 20], [50, 10, 100, 20]]
    boxes = tv_tensors.BoundingBoxes(rows, format="XYXY", canvas_size=(50, 100))
    _, moved = policy.transform()(tv_tensors.Image(torch.zeros(3, 50, 100, dtype=torch.uint8)), boxes)
    assert moved.tolist()[0] == [45, 10, 60, 20]
    assert moved.tolist()[2] == [50, 10, 100, 20]
    (x1, y1, x2, y2) = moved.tolist()[1]
    assert (x2 - x1) * (y2 - y1) == 0
    kept = v2.SanitizeBoundingBoxes(labels_getter=None)({"boxes": moved})["boxes"]
    assert kept.tolist() == [moved.tolist()[0], moved.tolist()[2]]


@pytest.mark.parametrize("form", FORMATS)
def test_whole_numbers_in_every_format(form):
    """Even widths and heights, whose centres are whole."""
    rectangle = (20, 12, 34, 30)
    boxes = v2.ConvertBoundingBoxFormat(form)(
        tv_tensors.BoundingBoxes([rectangle], format="XYXY", canvas_size=(48, 60))
    )
    for each in (("flip", None, "+"), ("translate_x", 0.5, "-"), ("translate_y", 0.25, "+")):
        image, moved = policy_of(each).transform()(tv_tensors.Image(painted(rectangle, 48, 60)), boxes)
        assert moved.dtype == torch.int64
        assert v2.ConvertBoundingBoxFormat("XYXY")(moved)[0].tolist() == seen(image[0]).tolist()


def test_clamping_modes_are_respected():
    if not hasattr(_like(8, 8), "clamping_mode"):
        pytest.skip("torchvision without clamping modes")
    image = tv_tensors.Image(torch.zeros(3, 40, 40, dtype=torch.uint8))
    for mode, expected in (
        (None, [-18.0, 5.0, 2.0, 9.0]),
        ("hard", [0.0, 5.0, 2.0, 9.0]),
        ("soft", [0.0, 5.0, 2.0, 9.0]),
    ):
        boxes = tv_tensors.BoundingBoxes([[0.0, 5, 20, 9]], format="XYXY", canvas_size=(40, 40), clamping_mode=mode)
        _, moved = policy_of(("translate_x", 1.0, "+")).transform()(image, boxes)
        assert moved.clamping_mode == mode
        assert moved[0].tolist() == expected


def test_many_boxes_none_and_one_partly_outside():
    image = tv_tensors.Image(torch.zeros(3, 40, 40, dtype=torch.uint8))
    none = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYWH", canvas_size=(40, 40))
    assert policy_of(("rotate", 0.7, "+")).transform()(image, none)[1].shape == (0, 4)
    boxes = tv_tensors.BoundingBoxes([[-6.0, 4, 10, 9], [2, 2, 5, 5]], format="XYXY", canvas_size=(40, 40))
    moved = policy_of(("flip", None, "+")).transform()(image, boxes)[1]
    assert moved.tolist() == [[30, 4, 40, 9], [35, 2, 38, 5]]


@pytest.mark.parametrize(("form", "width"), [("XYWHR", 5), ("CXCYWHR", 5), ("XYXYXYXY", 8)])
def test_rotated_boxes_are_refused_whatever_is_drawn(form, width):
    if not hasattr(tv_tensors.BoundingBoxFormat, form):
        pytest.skip("torchvision without rotated boxes")
    boxes = tv_tensors.BoundingBoxes(torch.ones(1, width), format=form, canvas_size=(20, 20))
    image = tv_tensors.Image(torch.zeros(3, 20, 20, dtype=torch.uint8))
    for op in ("rotate", "invert"):
        with pytest.raises(ImageError, match=f"rotated boxes cannot follow a policy, got the format {form}"):
            policy_of((op, 0.5, "+")).transform()(image, boxes)


# --- points -------------------------------------------------------------------------------------------------------


def dots(height, width):
    return [(4, 5), (width // 2, height // 2), (width - 6, 7), (9, height - 8), (width - 5, height - 5)]


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_points_are_where_the_dots_are(op, sign):
    checked = 0
    for magnitude in MAGNITUDES:
        for height, width in SIZES:
            policy = policy_of((op, magnitude, sign), ("flip", None, "+"))
            for x, y in dots(height, width):
                image = torch.zeros(3, height, width, dtype=torch.uint8)
                image[:, y - 2 : y + 3, x - 2 : x + 3] = 255
                points = tv_tensors.KeyPoints([[x, y]], canvas_size=(height, width), dtype=torch.float64)
                whole = tv_tensors.KeyPoints([[[x, y]]], canvas_size=(height, width))
                out, moved = policy.transform()(tv_tensors.Image(image), points)
                _, rounded = policy.transform()(tv_tensors.Image(image), whole)
                assert rounded.dtype == torch.int64
                assert rounded.shape == (1, 1, 2)
                assert (rounded[0].double() - moved).abs().max() <= 0.5
                pixels = seen(out[0])
                near_border = pixels is None or pixels.min() <= 0 or pixels[2] >= width or pixels[3] >= height
                if near_border:  # a part of the dot is missing, so its middle says nothing
                    continue
                ys, xs = out[0].nonzero(as_tuple=True)
                assert moved[0].tolist() == pytest.approx(
                    [float(xs.double().mean()), float(ys.double().mean())], abs=0.5
                )
                checked += 1
    assert checked > 30


# --- video and masks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", GEOMETRIC)
def test_a_film_with_its_boxes_masks_and_points(op):
    """All frames move alike, and what belongs to them too."""
    height, width = 48, 60
    frames = torch.stack([painted((20 + t, 14, 31 + t, 30), height, width) for t in range(4)])
    boxes = tv_tensors.BoundingBoxes(
        [[20.0 + t, 14, 31 + t, 30] for t in range(4)], format="XYXY", canvas_size=(height, width)
    )
    points = tv_tensors.KeyPoints([[25.0 + t, 21.5] for t in range(4)], canvas_size=(height, width))
    policy = policy_of((op, 0.4, "+"), ("brightness", 0.0, "+"))
    film, masks, moved, places = policy.transform()(
        tv_tensors.Video(frames), tv_tensors.Mask(frames[:, 0]), boxes, points
    )
    assert torch.equal(film[:, 0], masks)
    for frame, box, place in zip(film, moved, places, strict=True):
        assert_right(box.numpy(), frame[0], 1.01)
        ys, xs = frame[0].nonzero(as_tuple=True)
        assert place.tolist() == pytest.approx([float(xs.double().mean()), float(ys.double().mean())], abs=0.5)


@pytest.mark.parametrize("op", GEOMETRIC)
def test_masks_get_another_number_from_outside(op):
    """Where the image shows its fill colour and nothing else does, the mask holds mask_fill."""
    image = torch.full((3, 30, 40), 200, dtype=torch.uint8)
    mask = tv_tensors.Mask(torch.full((30, 40), 7, dtype=torch.uint8))
    transform = policy_of((op, 0.8, "+")).transform(mask_fill=255)
    out, moved = transform(tv_tensors.Image(image), mask)
    assert torch.equal(moved == 255, out[0] == 0)
    assert torch.equal(moved == 7, out[0] == 200)
    batch, masks = transform(image.expand(3, -1, -1, -1).clone(), tv_tensors.Mask(mask.expand(3, -1, -1).clone()))
    assert torch.equal(batch[1], out)
    assert torch.equal(masks[2], moved)


def test_cutting_at_the_border():
    def area(points):
        x, y = points.unbind(1)
        return 0.5 * abs(float((x * y.roll(-1) - y * x.roll(-1)).sum())) if len(points) else 0.0

    square = torch.tensor([[-1.0, -1], [3, -1], [3, 3], [-1, 3]], dtype=torch.float64)
    assert area(cut_at_border(square, 10, 8)) == 9
    assert area(cut_at_border(square, 2, 8)) == 6
    diamond = torch.tensor([[5.0, -2], [10, 3], [5, 8], [0, 3]], dtype=torch.float64)
    assert area(cut_at_border(diamond, 10, 20)) == 50 - 4
    assert torch.equal(cut_at_border(square + 1, 10, 10), square + 1)
    assert len(cut_at_border(square - 3, 10, 10)) == 0  # it touches the corner from outside
    assert area(cut_at_border(square * 100, 10, 8)) == 80
