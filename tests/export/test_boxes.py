"""Boxes, points and masks through exporters that carry them, against what the pixels of painted images show."""

import numpy as np
import pytest

from fasteraa import Choice, Policy, Span, SubPolicy
from fasteraa.ops import OPS

A = pytest.importorskip("albumentations")

GEOMETRIC = [name for name, row in OPS.items() if row.geometric]
HEIGHT, WIDTH = 60, 84
PLACE = (34, 22, 48, 33)  # x1, y1, x2, y2: far enough from the border for a third of everything
FORMATS = ("pascal_voc", "coco", "yolo", "albumentations")


def policy_of(*stages):
    def choice(op, magnitude, sign):
        row = OPS[op]
        return (Choice(op, 1.0, magnitude if row.span else None, sign=sign if row.signed else None),)

    return Policy((SubPolicy(tuple(choice(*each) for each in stages)),))


def painted(place=PLACE):
    x1, y1, x2, y2 = place
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[y1:y2, x1:x2] = 255
    return image


def seen(mask):
    rows, columns = np.nonzero(mask)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], dtype=float)


def in_format(place, form):
    x1, y1, x2, y2 = place
    if form == "coco":
        return [x1, y1, x2 - x1, y2 - y1]
    sides = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    if form == "yolo":
        return (np.array([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]) / sides).tolist()
    return (np.array(place) / sides).tolist() if form == "albumentations" else list(place)


def corners(box, form):
    """The way back, written down a second time."""
    a, b, c, d = (float(number) for number in box)
    if form == "coco":
        return np.array([a, b, a + c, b + d])
    if form == "yolo":
        return np.array([(a - c / 2) * WIDTH, (b - d / 2) * HEIGHT, (a + c / 2) * WIDTH, (b + d / 2) * HEIGHT])
    return (
        np.array([a * WIDTH, b * HEIGHT, c * WIDTH, d * HEIGHT]) if form == "albumentations" else np.array([a, b, c, d])
    )


def composed(transform, form="pascal_voc", **settings):
    return A.Compose(
        [transform],
        bbox_params=A.BboxParams(form, label_fields=["names"], **settings),
        keypoint_params=A.KeypointParams("xy", remove_invisible=False),
        seed=1,
    )


@pytest.mark.parametrize("native", [False, True], ids=["exact", "native"])
@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_boxes_points_and_masks_are_where_the_pixels_are(op, sign, native):
    x1, y1, x2, y2 = PLACE
    middle = ((x1 + x2 - 1) / 2, (y1 + y2 - 1) / 2)
    for magnitude in (0.0, 0.2, 0.33):
        transform = policy_of((op, magnitude, sign)).to_albumentations(native=native)
        for form in FORMATS:
            out = composed(transform, form)(
                image=painted(), mask=painted()[..., 0], bboxes=[in_format(PLACE, form)], names=[1], keypoints=[middle]
            )
            assert np.array_equal(out["mask"], out["image"][..., 0])
            found = corners(out["bboxes"][0], form)
            assert found == pytest.approx(seen(out["mask"]), abs=1.01), (form, magnitude)
            rows, columns = np.nonzero(out["mask"])
            assert out["keypoints"][0] == pytest.approx([columns.mean(), rows.mean()], abs=0.6), magnitude


@pytest.mark.parametrize("op", GEOMETRIC)
def test_ours_is_torchvisions(op):
    """The same boxes as the transform that tests/policy/test_boxes.py holds to the pixels, once theirs has cut them."""
    import torch
    from torchvision import tv_tensors

    places = [PLACE, (0, 5, 20, 25), (60, 40, 84, 60), (0, 0, 84, 60)]
    for stages in (((op, 1.0, "+"),), ((op, 0.8, "-"), ("translate_x", 1.0, "+"), ("translate_x", 0.9, "-"))):
        policy = policy_of(*stages)
        out = composed(policy.to_albumentations())(image=painted(), bboxes=places, names=[0, 1, 2, 3], keypoints=[])
        boxes = tv_tensors.BoundingBoxes(places, format="XYXY", canvas_size=(HEIGHT, WIDTH), dtype=torch.float64)
        image = tv_tensors.Image(torch.from_numpy(painted()).permute(2, 0, 1))
        theirs = policy.to_torchvision()(image, boxes)[1].numpy()
        for box, name in zip(out["bboxes"], out["names"], strict=True):
            x1, y1, x2, y2 = box
            a, b, c, d = theirs[int(name)]
            # where the last stage turns a box out of the image, theirs cuts its upright hull, torchvision's the box
            assert np.all([x1 <= a + 1e-3, y1 <= b + 1e-3, x2 >= c - 1e-3, y2 >= d - 1e-3])
            if stages[-1][0] in ("flip", "translate_x", "translate_y"):
                assert list(box) == pytest.approx([a, b, c, d], abs=1e-3)
        gone = set(range(4)) - {int(name) for name in out["names"]}
        assert all((theirs[i, 2] - theirs[i, 0] < 1.01) or (theirs[i, 3] - theirs[i, 1] < 1.01) for i in gone)


def test_what_left_the_image_does_not_come_back():
    """0.45 of 84 columns, 38 pixels, go out and come back black."""
    there_and_back = policy_of(("translate_x", 1.0, "+"), ("translate_x", 1.0, "-")).to_albumentations()
    out = composed(there_and_back)(
        image=painted(), bboxes=[PLACE, (2, 5, 30, 20), (50, 5, 80, 20)], names=[0, 1, 2], keypoints=[]
    )
    assert out["names"] == [0, 2]
    assert list(out["bboxes"][0]) == pytest.approx(seen(out["image"][..., 0]).tolist())
    assert list(out["bboxes"][0]) == pytest.approx([38, 22, 48, 33])
    assert list(out["bboxes"][1]) == pytest.approx([50, 5, 80, 20])


def test_min_visibility_still_counts():
    out_by_a_half = policy_of(("translate_x", 1.0, "+")).to_albumentations()
    arguments = {"image": painted(), "bboxes": [(28, 5, 48, 20), (40, 5, 60, 20)], "names": [0, 1], "keypoints": []}
    assert composed(out_by_a_half)(**arguments)["names"] == [0, 1]
    assert composed(out_by_a_half, min_visibility=0.6)(**arguments)["names"] == [1]


@pytest.mark.parametrize("native", [False, True], ids=["exact", "native"])
def test_masks_get_another_number_from_outside(native, tmp_path):
    for op in ("rotate", "shear_x", "translate_y"):
        transform = policy_of((op, 0.7, "+")).to_albumentations(native=native, mask_fill=255)
        image = np.full((HEIGHT, WIDTH, 3), 200, np.uint8)
        A.save(transform, tmp_path / "t.json", data_format="json")
        for each in (transform, A.load(tmp_path / "t.json", data_format="json")):
            out = A.Compose([each])(image=image, mask=np.full((HEIGHT, WIDTH), 7, np.uint8))
            assert np.array_equal(out["mask"] == 255, out["image"][..., 0] == 0)
            assert np.array_equal(out["mask"] == 7, out["image"][..., 0] == 200)


def test_no_boxes_at_all():
    out = composed(policy_of(("rotate", 0.5, "+")).to_albumentations())(
        image=painted(), bboxes=[], names=[], keypoints=[]
    )
    assert len(out["bboxes"]) == 0


def test_a_box_that_only_touches_the_border_is_gone():
    """Shares of the sides in float32 are a little off, so a rest of 1e-7 pixels stayed, with labels and all."""
    kept = []
    for side in range(30, 100):
        policy = Policy(
            (SubPolicy(((Choice("translate_y", 1.0, 1.0, sign="+"),),)),), spans={"translate_y": Span(0, 20, "px")}
        )
        pipeline = A.Compose([policy.to_albumentations()], bbox_params=A.BboxParams("coco", label_fields=["names"]))
        out = pipeline(image=np.zeros((side, 50, 3), np.uint8), bboxes=[[7, 9, 17, 11]], names=["gone"])
        kept.extend(out["bboxes"])  # a list or an array
    assert kept == []
