"""Folders as people have them."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fasteraa
from fasteraa.data import load
from fasteraa.data.decode import open_file
from fasteraa.data.image_folder import check_beside
from fasteraa.data.labels import natural_sort
from fasteraa.errors import DataError
from fasteraa.train.split import open_split


def test_class_folders_are_classes_in_natural_order(grow, array_of):
    root = grow({"class10": 2, "class2": 3, "a": 1})
    loaded = load(root)
    assert loaded.classes == ("a", "class2", "class10")
    assert loaded.labels.tolist() == [0, 1, 1, 1, 2, 2]
    files = [root / name for name in ("a/0.png", "class2/0.png", "class2/1.png", "class2/2.png", "class10/0.png")]
    for image, file in zip(loaded.images, files, strict=False):
        assert (image.numpy() == array_of(Image.open(file))).all()
    assert (loaded.name, loaded.broken, loaded.size) == ("pictures", (), (8, 8))


def test_natural_order():
    assert natural_sort(["10", "9", "1"]) == ("1", "9", "10")
    assert natural_sort(["b", "a2", "a10", "A", "a2", "2a"]) == ("2a", "A", "a2", "a10", "b")
    assert natural_sort(["x01", "x1"]) == ("x01", "x1")


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_splits_are_found_under_their_usual_names(grow, val):
    root = grow({"train/cat": 3, "train/dog": 2, f"{val}/cat": 1, f"{val}/dog": 1})
    assert len(load(root)) == len(load(root, split="train")) == 5
    for split in ("val", "validation", "test"):  # test falls back on val
        assert len(load(root, split=split)) == 2


def test_test_is_preferred_to_val(grow):
    root = grow({"train/cat": 3, "val/cat": 2, "test/cat": 1})
    assert [len(load(root, split=split)) for split in ("train", "val", "test")] == [3, 2, 1]


def test_a_folder_without_splits_has_no_test(grow):
    with pytest.raises(DataError, match=r"no split 'test'; choices: train\..*test/ or val/.*ImageSet\.split"):
        load(grow({"cat": 2, "dog": 2}), split="test")


def test_a_class_may_be_called_train(grow):
    assert load(grow({"train": 2, "plane": 2})).classes == ("plane", "train")


def test_a_class_that_test_lacks_does_not_shift_the_labels(grow):
    root = grow({"train/a": 1, "train/b": 1, "train/c": 1, "test/a": 1, "test/c": 2})
    tested = load(root, split="test")
    assert tested.classes == ("a", "b", "c")
    assert tested.labels.tolist() == [0, 2, 2]


def test_a_class_that_train_lacks_is_an_error_in_train(grow):
    root = grow({"train/a": 1, "train/c": 1, "test/a": 1, "test/b": 1})
    assert load(root, split="test").labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="none for 'b' in split 'train'"):
        load(root)


def test_sub_folders_belong_to_their_class_and_links_are_followed(grow, tmp_path):
    root = grow({"cat/black/young": 2, "cat/white": 1, "dog": 1})
    elsewhere = grow({"x": 2}, name="elsewhere")
    (root / "dog" / "linked").symlink_to(elsewhere / "x")
    (root / "dog" / "linked.png").symlink_to(root / "cat" / "white" / "0.png")
    (root / "bird").symlink_to(elsewhere / "x")
    (root / "cat" / "loop").symlink_to(root / "cat")
    loaded = load(root)
    assert dict(zip(loaded.classes, loaded.counts(), strict=True)) == {"bird": 2, "cat": 3, "dog": 4}


def test_unicode_spaces_and_capital_endings(grow, paint):
    root = grow({"grüne Äpfel 🍏": 2, "日本 語": 1})
    paint(77).save(root / "日本 語" / "ein Bild.PNG")
    loaded = load(root)
    assert set(zip(loaded.classes, loaded.counts(), strict=True)) == {("grüne Äpfel 🍏", 2), ("日本 語", 2)}


def test_hidden_files_and_other_files_are_no_images(grow, paint):
    root = grow({"cat": 2, "dog": 2, ".git": 1, "__MACOSX": 1, "dog/.ipynb_checkpoints": 2})
    paint(78).save(root / "cat" / ".hidden.png")
    for name in ("Thumbs.db", "notes.txt", "no_ending"):
        (root / "cat" / name).write_text("no picture")
    assert load(root).counts() == (2, 2)


def test_an_empty_class_folder_is_an_error_unless_left_out(grow):
    root = grow({"cat": 2, "dog": 2, "empty": 0})
    with pytest.raises(DataError, match="none for 'empty' in split 'train'"):
        load(root)
    assert load(root, classes=["cat", "dog"]).classes == ("cat", "dog")


def test_loose_images_are_an_error_that_explains_the_layout(grow, tmp_path):
    with pytest.raises(DataError, match=r"holds 3 images but no class folders.*/CLASS/IMAGE"):
        load(grow({".": 3}))
    with pytest.raises(DataError, match=r"holds 2 images but no class folders"):
        load(grow({"train": 2}, name="flat_split"))
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match=r"holds no images \(0 other files\)"):
        load(tmp_path / "void")


def test_a_flat_validation_folder_is_only_an_error_when_asked_for(grow):
    root = grow({"train/cat": 2, "train/dog": 2, "val": 2})
    assert len(load(root)) == 4
    with pytest.raises(DataError, match="val holds 2 images but no class folders"):
        load(root, split="val")


def test_a_detection_layout_is_recognised(grow):
    with pytest.raises(DataError, match="detection or segmentation"):
        load(grow({"train/images": 2, "train/labels": 0}))


def test_one_class_is_allowed(grow):
    assert load(grow({"only": 3})).classes == ("only",)


def test_the_order_of_listing_and_the_place_do_not_matter(grow, tmp_path, monkeypatch):
    root = grow({"a": 5, "b": 4, "b/deep": 3})
    first = load(root)
    moved = shutil.copytree(root, tmp_path / "moved")

    class Reversed:
        def __init__(self, path):
            self.entries = sorted(scandir(path), key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *error):
            return None

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", Reversed)
    assert load(moved).fingerprint == first.fingerprint == load(root).fingerprint


def test_mixed_sizes_are_brought_to_one(grow, paint):
    root = grow({"a": 3}, 200, 170)
    paint(1, 1, 1).save(root / "a" / "dot.png")
    paint(1, 500, 190).save(root / "a" / "tall.png")
    assert load(root).size == (128, 128)
    assert load(root, size=20).size == (20, 20)
    assert load(root, size=(10, 30)).size == (10, 30)


def test_a_late_odd_size_cannot_break_the_stack(grow, paint):
    """The default size comes from at most 256 headers; an image that was not among them is fitted."""
    root = grow({"a": 600}, 2, 2)
    paint(1, 9, 5).save(root / "a" / "1.png")
    loaded = load(root)
    assert loaded.images.shape == (600, 3, 2, 2)


def test_exif_orientation_reaches_the_pixels(grow):
    root = grow({"a": 0})
    image = Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint32).reshape(16, 16, 3).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(root / "a" / "x.png", exif=exif)
    upright = np.asarray(image.transpose(Image.Transpose.ROTATE_270)).transpose(2, 0, 1)
    assert (load(root).images[0].numpy() == upright).all()
    assert (load(root, exif=False).images[0].numpy() != upright).any()


def test_classes_by_name_are_renumbered_in_the_source_order(grow):
    root = grow({"a": 1, "b": 2, "c": 3})
    loaded = load(root, classes=("c", "b"))
    assert loaded.classes == ("b", "c")
    assert loaded.labels.tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(DataError, match=r"unknown class 'bb'; did you mean 'b'\? choices: a, b, c"):
        load(root, classes=("bb",))


def test_a_number_of_classes_chooses_the_same_ones_in_every_split(grow):
    root = grow({f"{split}/c{i}": 1 for split in ("train", "val") for i in range(12)})
    chosen = [load(root, split=split, classes=4, seed=5).classes for split in ("train", "val")]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 4
    assert chosen[0] != load(root, classes=4, seed=6).classes


def test_a_subset_is_drawn_before_decoding(grow, monkeypatch):
    root = grow({"a": 30, "b": 10})
    whole = load(root)
    opened = []
    monkeypatch.setattr("fasteraa.data.image_folder.open_file", lambda path: opened.append(path) or open_file(path))
    part = load(root, subset=8, seed=2, size=8)
    assert len(opened) == 8
    assert part.counts() == (6, 2)
    assert part.fingerprint == whole.subset(8, seed=2).fingerprint
    assert part.fingerprint != load(root, subset=8, seed=3).fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subset": 9}, r"between 2 .* and 8 \(all images\), got 9"),
        ({"subset": 1}, r"between 2 \(the number of classes\)"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"size": 0}, "size must be positive"),
        ({"broken_budget": 2}, r"broken_budget must lie in \[0, 1\], got 2"),
        ({"background": (0, 0, 256)}, r"three levels in 0\.\.255"),
        ({"split": "trian"}, "no split 'trian'; choices: train"),
        ({"classes": 3}, r"between 1 and 2"),
        ({"size": 100_000}, "need 240.0 GB, this machine has"),
    ],
)
def test_impossible_arguments_are_refused(grow, arguments, message):
    with pytest.raises(DataError, match=message):
        load(grow({"a": 4, "b": 4}), **arguments)


@pytest.mark.parametrize("refused", ["pictures", "b"])
def test_a_folder_that_may_not_be_read_is_an_error_not_a_traceback(grow, monkeypatch, refused):
    scandir = os.scandir

    def guarded(path):
        if os.path.basename(path) == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    root = grow({"a": 1, "b": 1})
    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(DataError, match=r"pictures cannot be read: .*Permission denied"):
        load(root)


def test_an_interrupted_load_does_not_decode_the_rest(grow, monkeypatch):
    opened = []
    interrupted = threading.Event()
    first = sorted(f"{i}.png" for i in range(900))[:100]  # as the folder is read

    def slow_open(path):
        opened.append(path)
        if Path(path).name not in first:  # by its name: the first chunk must never wait, however late its thread is
            interrupted.wait(20)
        return open_file(path)

    def interrupt(done, total):
        interrupted.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("fasteraa.data.image_folder.open_file", slow_open)
    with pytest.raises(KeyboardInterrupt):
        load(grow({"a": 900}, 2, 2), size=2, progress=interrupt)
    assert len(opened) < 900


def test_progress_is_told(grow):
    calls = []
    load(grow({"a": 70}), size=4, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(32, 70), (64, 70), (70, 70)]


def test_links_that_lead_back_or_nowhere(grow):
    """A link to a parent must not bring the other classes' images into this one; a link to itself is no folder."""
    root = grow({"cat": 2, "dog": 3})
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "self").symlink_to("self")
    (root / "self").symlink_to("self")
    os.mkfifo(root / "dog" / "pipe.png")
    assert load(root).counts() == (2, 3)


def test_at_most(grow):
    root = grow({"cat": 6, "dog": 6, "owl": 6})
    assert load(root, at_most=9, seed=1).fingerprint == load(root, subset=9, seed=1).fingerprint
    assert load(root, at_most=99).fingerprint == load(root).fingerprint
    assert load(root, at_most=1).counts() == (1, 1, 1)


def test_a_lone_test_split_says_where_training_images_go(grow):
    with pytest.raises(
        DataError, match=r"has no split 'train'; choices: test. Put the images to learn from into train/"
    ):
        load(grow({"test/cat": 2, "test/dog": 2}))


@pytest.mark.parametrize(
    ("height", "width", "options", "size"),
    [
        (200, 180, {"largest": 32}, (32, 32)),
        (200, 180, {"largest": 64}, (64, 64)),
        (200, 180, {}, (128, 128)),
        (200, 180, {"largest": 32, "size": 48}, (48, 48)),
        (20, 28, {"largest": 32}, (20, 28)),
        (20, 40, {"largest": 32}, (32, 32)),
    ],
)
def test_images_may_be_asked_for_at_no_more_than_a_side(grow, height, width, options, size):
    assert load(grow({"a": 2, "b": 2}, height, width), **options).size == size


@pytest.mark.parametrize("out", ["runs/search", "."])
def test_nothing_is_written_below_class_folders(grow, out):
    """It would be a class the next time."""
    root = grow({"cats": 2, "dogs": 2})
    with pytest.raises(DataError, match="lies in the folder of the images, where it would be taken for a class"):
        check_beside(str(root), root / out)
    check_beside(str(root), root.parent / out / "elsewhere")
    check_beside(None, root / out)
    check_beside("fashion-mnist", root / out)
    for write in (lambda: fasteraa.search(str(root), out=root / out), lambda: open_split(root, folder=root / out)):
        with pytest.raises(DataError, match="lies in the folder of the images"):
            write()
    assert sorted(path.name for path in root.iterdir()) == ["cats", "dogs"]


def test_beside_splits_there_is_room(grow):
    root = grow({"train/cats": 2, "train/dogs": 2, "test/cats": 1, "test/dogs": 1})
    check_beside(str(root), root / "runs")
