"""The report on a source before it is used."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import fasteraa
from fasteraa.data import check
from fasteraa.data.requirements import LEAST_IMAGES
from fasteraa.errors import DataError
from fasteraa.methods.config import LEAST_BATCH
from fasteraa.train.split import open_split


@pytest.fixture
def messy(grow, paint):
    root = grow({"train/cat": 4, "train/dog": 3, "val/cat": 2, "val/dog": 2, "train/fox": 0})
    paint(500, 20, 30).convert("L").save(root / "train" / "dog" / "grey.png")
    (root / "train" / "cat" / "cut.png").write_bytes((root / "train" / "cat" / "0.png").read_bytes()[:70])
    (root / "train" / "cat" / "note.txt").write_text("hello")
    (root / "val" / "dog" / "copy.bmp").write_bytes(b"")
    Image.open(root / "train" / "cat" / "1.png").save(root / "val" / "dog" / "copy.bmp")  # other bytes, same pixels
    Image.open(root / "train" / "cat" / "0.png").save(root / "train" / "cat" / "again.tiff")
    return root


def test_everything_is_reported(messy):
    report = check(messy)
    assert [(s.split, s.per_class) for s in report.splits] == [
        ("train", (("cat", 6), ("dog", 4), ("fox", 0))),
        ("val", (("cat", 2), ("dog", 3), ("fox", 0))),
    ]
    assert report.total == 15
    assert report.sizes == (((8, 8), 13), ((20, 30), 1))
    assert report.modes == (("RGB", 13), ("L", 1))
    assert [(item.path, item.reason[:7]) for item in report.broken] == [(f"{messy}/train/cat/cut.png", "OSError")]
    assert report.ignored == 1
    assert report.default_size == (32, 32)
    assert not report.ok


def test_duplicates_are_told_apart(messy):
    worst, harmless = check(messy).duplicates
    assert [image.path for image in worst.images] == [f"{messy}/train/cat/1.png", f"{messy}/val/dog/copy.bmp"]
    assert (worst.across_classes, worst.across_splits) == (True, True)
    assert [image.path for image in harmless.images] == [f"{messy}/train/cat/0.png", f"{messy}/train/cat/again.tiff"]
    assert (harmless.across_classes, harmless.across_splits) == (False, False)


def test_the_text(messy):
    lines = check(messy).lines()
    assert lines[0] == "pictures: 15 images, 3 classes, 1 broken"
    assert "train: 10 images, 0 to 6 per class (cat 6, dog 4, fox 0)" in lines
    assert "  WITHOUT IMAGES: fox" in lines
    assert (
        "sizes: 8x8 (13), 30x20 (1); shorter side 8 to 20, median 8; a search takes them at 32x32 if no size is given"
        in lines
    )
    assert "modes: RGB 13, L 1" in lines
    assert f"  across CLASSES and SPLITS: {messy}/train/cat/1.png = {messy}/val/dog/copy.bmp" in lines
    assert f"  {messy}/train/cat/0.png = {messy}/train/cat/again.tiff" in lines
    assert any(line.startswith(f"  {messy}/train/cat/cut.png: OSError") for line in lines)
    assert "ignored: 1 files that are no images or lie beside the class folders" in lines


def test_a_clean_source_is_ok(grow):
    report = check(grow({"a": 3, "b": 3}))
    assert report.ok
    assert "duplicates (same pixels): none" in report.lines()
    assert report.default_size == (8, 8)


def test_an_empty_class_is_not_ok(grow):
    assert not check(grow({"a": 3, "b": 0})).ok


@pytest.mark.parametrize("flaw", ["class", "split"])
def test_a_duplicate_across_classes_or_splits_is_not_ok(grow, flaw):
    root = grow({"train/a": 2, "train/b": 2, "val/a": 2, "val/b": 2})
    target = root / ("train/b/0.png" if flaw == "class" else "val/a/0.png")
    target.write_bytes((root / "train" / "a" / "1.png").read_bytes())
    report = check(root)
    assert not report.ok
    assert (report.duplicates[0].across_classes, report.duplicates[0].across_splits) == (
        flaw == "class",
        flaw == "split",
    )


def test_equal_bytes_of_another_shape_are_no_duplicate():
    images = [np.zeros((2, 8, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)]
    assert check([(image, 0) for image in images]).duplicates == ()


def test_the_same_picture_in_another_mode_is_a_duplicate(grow, paint):
    root = grow({"a": 1})
    grey = paint(3).convert("L")
    grey.save(root / "a" / "grey.png")
    grey.convert("RGB").save(root / "a" / "colour.png")
    assert [len(group.images) for group in check(root).duplicates] == [2]


def test_a_split_that_cannot_be_listed_is_noted(grow):
    report = check(grow({"train/a": 1, "train/b": 1, "val": 2}))
    assert [split.split for split in report.splits] == ["train"]
    assert "val holds 2 images but no class folders" in report.notes[0]
    assert not report.ok
    with pytest.raises(DataError, match=r"cifar10 .*not there"):
        check("cifar10", data_root="/nowhere")


def test_long_lists_are_cut(grow):
    root = grow({f"c{i:02d}": 1 + (i == 14) for i in range(15)})
    for file in root.glob("*/*.png"):
        file.write_bytes(b"")
    lines = check(root).lines()
    assert "sizes: no readable image" in lines
    assert "  and 6 more" in lines
    assert any(line.endswith("c09 1, and 5 more)") for line in lines)


def test_the_sample():
    report = check()
    assert [split.total for split in report.splits] == [1000, 2000]
    assert report.modes == (("L", 3000),)


def test_the_size_of_a_search_without_a_gpu(grow):
    (line,) = [line for line in check(grow({"a": 1, "b": 1}, 200, 180)).lines() if line.startswith("sizes:")]
    assert line.endswith("a search takes them at 128x128 if no size is given (on a CPU at 32x32)")


def test_folders_beside_the_splits_are_named(grow):
    root = grow({"train/cat": 2, "train/dog": 2, "val/cat": 1, "valid/dog": 1, "masks_old": 1, "notes": 0})
    report = check(root)
    assert report.aside == ("masks_old", "notes", "val")
    assert report.total == 5
    assert "left aside, beside the splits: masks_old, notes, val" in report.lines()
    assert report.to_dict()["aside"] == ["masks_old", "notes", "val"]
    assert check(root / "train").aside == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"cat": 4, "dog": 4}, []),
        ({"cat": 2, "dog": 1}, ["search", "at least 4 images", "compare", "has one of 'dog'"]),
        ({"train/cat": 4, "train/dog": 1, "val/cat": 1, "val/dog": 1}, []),
        ({"cat": 4, "dog": 1}, ["compare", "has one of 'dog'"]),
        ({"cat": 4}, ["compare", "needs two classes; pictures has one"]),
        ({"cat": 4, "dog": 0}, ["search", "has none for 'dog'", "compare", "has none for 'dog'"]),
        ({"val/cat": 4, "val/dog": 4}, ["search and fasteraa compare", "has no split 'train'"]),
    ],
)
def test_what_a_search_or_a_comparison_would_refuse_is_said(grow, content, said):
    root = grow(content)
    report = check(root)
    assert report.ok == (not said)
    refused = [line for line in report.lines() if "will refuse them" in line]
    for part in said:
        assert part in " ".join(refused)
    for who, run in (
        ("search", lambda: fasteraa.search(root, race=False, methods="faster-aa", device="cpu", minutes=0)),
        ("compare", lambda: open_split(root, folder=root.parent / "out")),
    ):
        if any(f"fasteraa {who} " in line for line in refused):
            with pytest.raises(DataError) as error:
                run()
            assert any(line.endswith(str(error.value)) for line in refused)
        else:
            run()


def test_broken_files_that_a_search_refuses(grow):
    root = grow({"cat": 4, "dog": 1, "fox": 4})
    (root / "dog" / "0.png").write_bytes(b"no picture")
    assert "no readable image is left of class 'dog'" in check(root).refusals[0]
    for name in ("0.png", "1.png"):
        (root / "cat" / name).write_bytes(b"no picture")
    assert "3 of 9 images of pictures are broken, the budget allows 1" in check(root).refusals[0]


def test_what_fills_the_smallest_batch_is_enough():
    assert LEAST_IMAGES == LEAST_BATCH
