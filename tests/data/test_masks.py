"""Images with masks: every source, modes and sizes of masks, what does not count, and what is wrong with them."""

from __future__ import annotations

import csv
import json
import os
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

from fasteraa.data import ImageSet, check, load
from fasteraa.data.masks import is_mask
from fasteraa.errors import DataError

HEIGHT, WIDTH = 20, 24


def numbers(seed, most=4, height=HEIGHT, width=WIDTH):
    return np.random.RandomState(seed).randint(0, most, (height, width), dtype=np.uint8)


def picture_of(mask):
    """An image from which its mask can be read again: red is 40 times the class."""
    return np.stack([mask * 40, 255 - mask * 40, np.full_like(mask, 7)], 2)


@pytest.fixture
def masked(tmp_path):
    """masked({'train': 3, 'val': 2}): images/ and masks/ of PNG files under each split ('' for none)."""

    def make(splits, name="scenes"):
        seed = 0
        for split, count in splits.items():
            for kind in ("images", "masks"):
                (tmp_path / name / split / kind).mkdir(parents=True)
            for i in range(count):
                mask = numbers(seed)
                seed += 1
                Image.fromarray(picture_of(mask)).save(tmp_path / name / split / "images" / f"{i:03}.png")
                Image.fromarray(mask).save(tmp_path / name / split / "masks" / f"{i:03}.png")
        return tmp_path / name

    return make


def assert_belong_together(data):
    """Each mask is the one its image was made from."""
    assert data.task == "segmentation"
    assert torch.equal(data.images[:, 0], data.masks * 40)


# --- sources ------------------------------------------------------------------------------------------------------


def test_masks_keep_their_size(masked, monkeypatch):
    """Small things would vanish from them."""
    scenes = masked({"": 3})
    assert load(scenes, largest=4).size == (HEIGHT, WIDTH)
    monkeypatch.setattr(import_module("fasteraa.data.check"), "CPU_SIDE", 4)  # the function has its name
    assert any(line.endswith("if no size is given") for line in check(scenes).lines())


def test_a_folder(masked):
    data = load(masked({"": 5}))
    assert data.images.shape == (5, 3, HEIGHT, WIDTH)
    assert data.classes == ("0", "1", "2", "3")
    assert data.masks.dtype == torch.uint8
    assert_belong_together(data)
    assert torch.equal(data.masks[3], torch.from_numpy(numbers(3)))


def test_a_folder_with_splits_names_and_other_endings(masked):
    root = masked({"train": 4, "val": 2})
    (root / "classes.txt").write_text("sky\nroad\ncar\ntree\npole\n")
    image = root / "train" / "images" / "001.png"
    Image.open(image).save(image.with_suffix(".bmp"))
    image.unlink()
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        data = load(root, split=split)
        assert len(data) == count
        assert data.classes == ("sky", "road", "car", "tree", "pole")
        assert_belong_together(data)


def test_sub_folders_of_a_masked_folder(masked):
    root = masked({"": 3})
    for kind in ("images", "masks"):
        (root / kind / "deep").mkdir()
        (root / kind / "001.png").rename(root / kind / "deep" / "000.png")  # the stem of another, elsewhere
    assert_belong_together(load(root))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_manifest(masked, kind):
    root = masked({"": 4})
    rows = [
        {"path": f"images/{i:03}.png", "mask": f"masks/{i:03}.png", "split": ["train", "val"][i == 3]} for i in range(4)
    ]
    file = root / f"list.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        with open(file, "w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0], delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    assert len(load(file)) == 3
    assert_belong_together(load(file))
    assert_belong_together(load(file, split="val"))


def test_arrays(tmp_path):
    masks = np.stack([numbers(seed) for seed in range(6)])
    images = np.stack([picture_of(mask) for mask in masks])
    np.savez(tmp_path / "a.npz", images=images, masks=masks, classes=["a", "b", "c", "d"])
    np.savez(tmp_path / "b.npz", train_images=images, train_masks=masks[..., None], val_images=images, val_masks=masks)
    np.savez(tmp_path / "c.npz", x_train=images, y_train=masks.astype(np.int64)[:, None])
    for data in (
        load(tmp_path / "a.npz"),
        load(tmp_path / "b.npz"),
        load(tmp_path / "b.npz", split="val"),
        load(tmp_path / "c.npz"),
        load((images, masks)),
        load((torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks).long())),
    ):
        assert len(data) == 6
        assert_belong_together(data)
    assert load(tmp_path / "a.npz").classes == ("a", "b", "c", "d")
    again = load(load((images, masks)))
    assert_belong_together(again)
    with pytest.raises(DataError, match="one mask per image, got 6 images, 5 masks"):
        load((images, masks[:5]))


class Scenes:
    """Yields (image, mask), cut at random each time: image and mask must come from one reading."""

    def __init__(self, kind):
        self.kind = kind
        self.targets = [f"masks/{i}.png" for i in range(6)]  # as torchvision's own segmentation sets have them
        self.reads = np.random.RandomState(0)

    def __len__(self):
        return 6

    def __getitem__(self, i):
        mask = numbers(i)
        mask = mask[:, ::-1].copy() if self.reads.rand() < 0.5 else mask
        image = Image.fromarray(picture_of(mask))
        if self.kind == "pillow":
            palette = Image.fromarray(mask).convert("P")
            palette = Image.frombytes("P", (WIDTH, HEIGHT), mask.tobytes())
            palette.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0, 0, 0, 200])
            return image, palette
        return image, torch.from_numpy(mask).long()[None] if self.kind == "tensor" else mask.astype(np.int32)


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
def test_a_data_set_of_images_and_masks(kind):
    assert_belong_together(load(Scenes(kind)))
    assert len(load(Subset(Scenes(kind), [4, 1]))) == 2


def test_what_is_a_mask_and_what_a_label():
    for label in (3, "cat", torch.tensor(3), np.int64(2), np.array([1]), torch.zeros(5), np.zeros((1, 4)), None):
        assert not is_mask(label)
    for mask in (Image.new("L", (3, 4)), torch.zeros(3, 4), np.zeros((3, 4, 1)), torch.zeros(1, 3, 4)):
        assert is_mask(mask)


# --- pixels -------------------------------------------------------------------------------------------------------


def test_masks_keep_their_numbers_when_scaled(masked):
    data = load(masked({"": 3}), size=13)
    assert data.masks.shape == (3, 13, 13)
    assert set(data.masks.unique().tolist()) == {0, 1, 2, 3}


def test_scaled_masks_lie_where_the_images_do():
    """Halves of an image that is cut at its sides: the edge is in the same place in both."""
    mask = np.zeros((60, 100), np.uint8)
    mask[:, 50:] = 3
    for size in (30, 16, 7, (12, 24)):
        data = load((picture_of(mask)[None], mask[None]), size=size)
        dark = (data.images[0, 0] > 60).to(torch.uint8) * 3
        edge = data.masks[0] != dark
        assert int(edge.sum()) <= data.masks.shape[1]  # at most the column of the edge itself, which is blurred
        assert set(data.masks.unique().tolist()) == {0, 3}


def test_modes_of_masks(masked):
    root = masked({"": 4})
    mask = numbers(0, 2)
    places = [root / "masks" / f"{i:03}.png" for i in range(4)]
    Image.fromarray(mask.astype(bool)).save(places[0])
    palette = Image.frombytes("P", (WIDTH, HEIGHT), mask.tobytes())
    palette.putpalette([250, 250, 250, 1, 1, 1])
    palette.save(places[1])
    Image.fromarray(mask.astype(np.uint16)).save(places[2])
    Image.fromarray(mask).save(places[3])
    data = load(root)
    assert all(torch.equal(one, torch.from_numpy(mask)) for one in data.masks)


def test_what_does_not_count():
    masks = np.stack([numbers(seed) for seed in range(3)])
    masks[:, 0] = 255
    images = np.stack([picture_of(mask) for mask in masks])
    data = load((images, masks))
    assert data.classes == ("0", "1", "2", "3")
    assert (data.masks[:, 0] == 255).all()
    without = load((images, masks), ignore_index=3)
    assert without.classes == ("0", "1", "2")
    assert torch.equal(without.masks == 255, (data.masks == 255) | (data.masks == 3))
    with pytest.raises(DataError, match="hold nothing but 255"):
        load((images, np.full_like(masks, 255)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Image.new("RGB", (WIDTH, HEIGHT)), "got mode RGB: turn its colours into numbers"),
        (Image.new("L", (WIDTH, 9)), "the mask is 24x9, the image 24x20"),
        (Image.fromarray(np.full((HEIGHT, WIDTH), 300, np.uint16)), r"must lie in 0\.\.254 .*got 300\.\.300"),
    ],
)
def test_masks_that_cannot_be_used_are_listed(masked, value, reason):
    root = masked({"": 5})
    value.save(root / "masks" / "002.png")
    data = load(root)
    assert [item.path for item in data.broken] == [str(root / "images" / "002.png")]

    with pytest.raises(DataError, match=reason):
        load(root, broken_budget=0)
    assert_belong_together(data)


def test_negative_and_broken_numbers():
    masks = numbers(0)[None].astype(np.int64)
    image = picture_of(numbers(0))[None]
    for wrong, reason in ((masks - 1, r"got -1\.\.2"), (masks.astype(float), "whole number for every pixel")):
        with pytest.raises(DataError, match=reason):
            load((image, wrong), broken_budget=0)


def test_images_without_a_mask_and_masks_without_an_image(masked):
    root = masked({"": 6})
    (root / "masks" / "004.png").unlink()
    (root / "masks" / "extra.png").write_bytes((root / "masks" / "000.png").read_bytes())
    data = load(root)
    assert [item.reason for item in data.broken] == ["it has no mask of its name in masks/"]
    assert check(root).ignored == 1
    Image.open(root / "masks" / "000.png").save(root / "masks" / "000.bmp")
    with pytest.raises(DataError, match=r"must have one mask, '000' .* has .*000\.bmp and .*000\.png"):
        load(root)


def test_an_image_turned_by_exif_has_an_upright_mask(tmp_path):
    """Annotation tools show images upright, and so masks are."""
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    mask = numbers(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.fromarray(picture_of(mask)).transpose(Image.Transpose.ROTATE_90)
    lying.save(tmp_path / "images" / "a.png", exif=exif)
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    assert_belong_together(load(tmp_path))


# --- sets ---------------------------------------------------------------------------------------------------------


def test_parts_keep_masks_with_their_images(masked):
    data = load(masked({"": 8}))
    assert_belong_together(data.subset(5, 0))
    for part in data.split(0.5, 0):
        assert len(part) == 4
        assert_belong_together(part)
    assert_belong_together(load((data.images, data.masks), subset=3))


def test_the_fingerprint_knows_the_masks():
    data = load((np.stack([picture_of(numbers(0))]), numbers(0)[None]))
    other = ImageSet.of_masks(data.images, 3 - data.masks, data.classes, data.name)
    assert data.fingerprint != other.fingerprint
    with pytest.raises(DataError, match=r"masks must hold 0\.\.1 "):
        ImageSet.of_masks(data.images, data.masks, ("a", "b"), "x")
    with pytest.raises(DataError, match=r"masks must be uint8 of shape \(1, 20, 24\)"):
        ImageSet.of_masks(data.images, data.masks[:, 1:], data.classes, "x")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path,mask,label", "a.png,b.png,cat"], "labels or masks, got both"),
        (["path,mask", "a.png,"], "a mask must be non-empty text"),
    ],
)
def test_bad_manifests(tmp_path, lines, message):
    (tmp_path / "list.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        load(tmp_path / "list.csv")


def test_mixed_manifests(tmp_path):
    (tmp_path / "list.jsonl").write_text('{"path": "a.png", "mask": "b.png"}\n{"path": "a.png", "label": "cat"}\n')
    with pytest.raises(DataError, match="it has some of both"):
        load(tmp_path / "list.jsonl")


def test_other_refusals(masked):
    root = masked({"": 3})
    with pytest.raises(DataError, match="which images with masks lack"):
        load(root, classes=2)
    (root / "classes.txt").write_text("sky\nroad\n")
    with pytest.raises(DataError, match="names 2 classes, but its masks hold the number 3"):
        load(root)
    (root / "classes.txt").unlink()
    os.mkfifo(root / "classes.txt")
    with pytest.raises(DataError, match=r"classes\.txt' could not be read: it is a pipe"):
        load(root)


# --- the report ---------------------------------------------------------------------------------------------------


def test_check_says_what_the_masks_hold(masked):
    root = masked({"train": 4, "val": 2})
    (root / "classes.txt").write_text("sky\nroad\ncar\ntree\n")
    void = numbers(0)
    void[:, :6] = 255
    Image.fromarray(void).save(root / "train" / "masks" / "000.png")
    report = check(root)
    assert report.task == "segmentation"
    assert report.total == 6
    found = {each.number: each for each in report.in_masks}
    assert set(found) == {0, 1, 2, 3, 255}
    assert found[255].share == pytest.approx(0.25 / 6)
    assert found[255].images == 1
    assert sum(each.share for each in report.in_masks) == pytest.approx(1)
    told = {each["number"]: each for each in report.to_dict()["in_masks"]}
    assert {number: each["images"] for number, each in told.items()} == {n: each.images for n, each in found.items()}
    lines = report.lines()
    assert lines[0] == "scenes: 6 images, 4 classes, 0 broken"
    assert "task: semantic segmentation, by masks that hold" in lines
    assert any(line.startswith("  1 road: ") and line.endswith("in 6 images") for line in lines)
    assert "  255 not counted: 4.2% of the pixels, in 1 images" in lines
    assert "train: 4 images with masks" in lines
    assert report.ok


def test_check_warns_of_black_and_white_masks(masked):
    root = masked({"": 2})
    for i in range(2):
        Image.fromarray(numbers(i, 2) * 255).save(root / "masks" / f"{i:03}.png")
    assert any("ONE CLASS ALONE" in line for line in check(root).lines())


def test_masks_stay_with_their_images_when_some_are_held_out():
    masks = np.stack([np.full((8, 8), number % 3, dtype=np.uint8) for number in range(20)])
    images = np.stack([np.full((8, 8, 3), number, dtype=np.uint8) for number in range(20)])
    found = load((images, masks), held_out=0.2)
    labelled = load((images, np.zeros(20, dtype=np.int64)), held_out=0.2)  # the same images are left
    assert len(found) == 16
    assert found.masks is not None
    assert torch.equal(found.images, labelled.images)
    assert torch.equal(found.images[:, 0] % 3, found.masks)
