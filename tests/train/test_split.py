"""Which images train and which measure: test images where there are some, a held-out share, folds."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fasteraa.comparison import setup
from fasteraa.data import ImageSet, load
from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Source
from fasteraa.errors import ConfigError, DataError
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Engine
from fasteraa.train.split import Split, _test_listing, fold_splits, open_split


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def arrays(count, classes, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.array([classes[index % len(classes)] for index in range(count)])
    return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8), labels


def pixels(data):
    return {bytes(image.numpy()) for image in data.images}


def test_test_images_where_there_are_some(tmp_path):
    (x, y), (tx, ty) = arrays(20, "ab"), arrays(6, "ba", 1)
    source = save(tmp_path / "d.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    split = open_split(source)
    assert (len(split.train), len(split.held_out), split.name, split.share) == (20, 6, "test images", 0.0)
    chosen = open_split(source, held_out=0.25)
    assert (len(chosen.train), len(chosen.held_out), chosen.name) == (15, 5, "25% of the training images")
    some = open_split(source, subset=4)
    assert (len(some.train), len(some.held_out)) == (4, 6)


def test_a_fifth_is_held_out_where_there_are_none(tmp_path):
    x, y = arrays(50, "ab")
    source = save(tmp_path / "d.npz", images=x, labels=y)
    split = open_split(source)
    assert (len(split.train), len(split.held_out), split.name) == (40, 10, "20% of the training images")
    assert split.held_out.counts() == (5, 5)
    assert not pixels(split.train) & pixels(split.held_out)
    assert open_split(source).train.fingerprint == split.train.fingerprint
    assert open_split(source, seed=1).train.fingerprint != split.train.fingerprint
    few = open_split(source, subset=8)
    assert (len(few.train), few.held_out.fingerprint) == (8, split.held_out.fingerprint)


def test_images_that_are_trained_and_measured_on_are_counted(tmp_path):
    (x, y), (tx, ty) = arrays(20, "ab"), arrays(6, "ab", 1)
    tx[[1, 4]] = x[7]
    source = save(tmp_path / "d.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    split = open_split(source)
    assert split.overlap_count == 2
    (warning,) = split.warnings
    assert warning.startswith("2 of the 6 held-out images are among the training images, too (the same pixels)")
    few = open_split(source, subset=2)
    assert (few.overlap_count, few.warnings) == (0, [])  # that image is not trained on
    assert replace(few, train=LazyImageSet.of(open_source(source).listing("train"), "d", (8, 8))).overlap_count == 0


def test_a_search_can_leave_to_a_comparison_what_that_holds_out(tmp_path):
    """The same images, whatever is broken among them and however many are searched on."""
    x, y = arrays(50, "ab")
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        file = tmp_path / "photos" / str(label) / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    file.write_bytes(b"no image")
    split = open_split(tmp_path / "photos")
    assert split.share == 0.2
    assert split.warnings[0].startswith(f"left out, could not be read: {file} (")
    searched = load(tmp_path / "photos", held_out=0.2)
    assert searched.fingerprint == split.train.fingerprint
    assert len(pixels(split.held_out) | pixels(searched)) == 49
    for less in (load(tmp_path / "photos", held_out=0.3), load(tmp_path / "photos", held_out=0.2, subset=20, seed=3)):
        assert not pixels(less) & pixels(split.held_out)
    assert pixels(load(tmp_path / "photos")) & pixels(split.held_out)
    with pytest.raises(DataError, match=r"the held-out share must lie between 0 and 1, got -0\.5"):
        load(tmp_path / "photos", held_out=-0.5)


def folders(tmp_path, splits):
    for number, (split, names) in enumerate(splits.items()):
        for name in names:
            place = tmp_path / "pictures" / split / name
            place.mkdir(parents=True)
            for index in range(3):
                Image.new("RGB", (8, 8), (10 * number, ord(name), index)).save(place / f"{index}.png")
    return tmp_path / "pictures"


def open_listing(path):
    return open_source(path).listing("train")


def test_classes_of_test_images_are_matched_by_name(tmp_path):
    """An .npz with test labels alone of 'b' and 'c', numbered among themselves, still means b and c."""
    train, test = (open_listing(folders(tmp_path / n, {"train": names})) for n, names in (("1", "abc"), ("2", "bc")))
    source = Source("both", {"train": lambda: train, "test": lambda: test})
    matched = _test_listing(source, train.classes)
    assert matched.classes == ("a", "b", "c")
    assert matched.labels.tolist() == [1, 1, 1, 2, 2, 2]


def test_unknown_classes_of_test_images_are_named(tmp_path):
    train, test = (open_listing(folders(tmp_path / n, {"train": names})) for n, names in (("1", "ab"), ("2", "bc")))
    source = Source("both", {"train": lambda: train, "test": lambda: test})
    with pytest.raises(DataError, match="classes that the training images lack: c"):
        _test_listing(source, train.classes)


def test_the_held_out_share_is_told_as_it_came_out():
    x, y = np.zeros((50, 8, 8, 3), np.uint8), np.arange(50) % 10
    split = open_split((x, y), held_out=0.001)
    assert (len(split.held_out), split.name) == (10, "20% of the training images")
    x, y = np.zeros((400, 8, 8, 3), np.uint8), np.arange(400) % 2
    assert open_split((x, y), held_out=0.005).name == "0.5% of the training images"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0] * 10, "that needs two classes; pictures has one"),
        ([0] * 5 + [1] * 5 + [2], "a class needs two images; pictures has one of '2'"),
    ],
)
def test_classes_that_cannot_be_told_apart_or_held_out(tmp_path, labels, words):
    np.savez(tmp_path / "pictures.npz", x_train=np.zeros((len(labels), 8, 8, 3), np.uint8), y_train=labels)
    with pytest.raises(DataError, match=words):
        open_split(str(tmp_path / "pictures.npz"))


def test_wrong_data_settings(tmp_path):
    x, y = arrays(20, "ab")
    source = save(tmp_path / "d.npz", images=x, labels=y)
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match=rf"held-out share must be in \(0, 1\), got {share}"):
            open_split(source, held_out=share)
    with pytest.raises(DataError, match="subset must lie between"):
        open_split(source, subset=99)
    photos = folders(tmp_path, {"train": "ab"}) / "train"
    with pytest.raises(DataError, match="run' lies in the folder of the images, where it would be taken for a class"):
        open_split(photos, folder=photos / "run")


# --- folds -----------------------------------------------------------------------------------------------------------


def numbered(labels, side=8):
    """Images that differ, with these labels."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (len(labels), 3, side, side), dtype=np.uint8)
    classes = tuple(f"c{number}" for number in range(max(labels) + 1))
    return ImageSet.of(torch.from_numpy(images), torch.tensor(labels), classes, "numbered")


def test_each_image_is_held_out_once():
    data = numbered([number % 2 for number in range(23)])
    seen = []
    for rest, part in data.folds(5, seed=3):
        assert len(rest) + len(part) == 23
        assert set(part.labels.tolist()) == {0, 1}
        seen += [image.numpy().tobytes() for image in part.images]
    assert sorted(seen) == sorted(image.numpy().tobytes() for image in data.images)


@pytest.mark.parametrize(
    ("labels", "folds", "held_out"),
    [
        ([0] * 20 + [1] * 20, 3, 40),
        ([0] * 37 + [1] * 2 + [2], 3, 39),  # two classes of few: the lone image is always trained on
        ([number // 2 for number in range(2000)], 3, 2000),  # 1,000 classes of two
        ([0, 0, 1], 2, 2),
        ([0, 0, 1, 1], 3, 4),
    ],
)
def test_what_is_held_out_is_of_a_class_that_is_trained_on(labels, folds, held_out):
    splits = fold_splits(numbered(labels), 3, 0)
    assert [split.name for split in splits] == ["fold 1", "fold 2", "fold 3"][:folds]
    seen = []
    for split in splits:
        assert set(split.train.labels.tolist()) == set(labels)
        assert len(split.train) + len(split.held_out) == len(labels)
        held = pixels(split.held_out)
        assert held
        assert not pixels(split.train) & held
        seen += held
    assert len(seen) == len(set(seen)) == held_out
    sizes = [len(split.held_out) for split in splits]
    assert max(sizes) - min(sizes) <= 1


def test_folds_need_images_to_hold_out():
    with pytest.raises(DataError, match="whose class has others, got 4 folds of 3 such images"):
        list(numbered([0, 0, 0, 1]).folds(4, seed=0))


@pytest.mark.parametrize(("device", "side"), [("cpu", 32), ("cuda", 128)])
def test_a_comparison_has_the_side_of_a_search(tmp_path, monkeypatch, device, side):
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (200, 180), (40 * number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    monkeypatch.setattr(setup, "find_device", torch.device)
    monkeypatch.setattr(setup, "first_device", lambda device, devices: device)
    monkeypatch.setattr(
        setup, "make_runner", lambda *a, **k: nullcontext(SimpleNamespace(cache=RunCache(tmp_path / "c")))
    )
    recipe = TrainRecipe(network="small", cutout=0)
    with setup.set_up(tmp_path / "images", tmp_path / "c", Engine(device=device), recipe=recipe) as found:
        assert found.split.train.size == (side, side)
    with setup.set_up(tmp_path / "images", tmp_path / "c", Engine(device=device), recipe=recipe, size=40) as found:
        assert found.split.train.size == (40, 40)


def test_images_move_to_a_device_and_stay_the_same_set(monkeypatch):
    """As in the process of each of several GPUs; torch's device without memory stands in for one."""
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).to(torch.uint8)
    data = ImageSet.of(images, torch.tensor([0, 1]), ("a", "b"), "two")
    monkeypatch.setattr("fasteraa.train.split.image_device", lambda images, device: torch.device("meta"))
    split = Split(data, data, "test images")
    there = split.on(torch.device("cuda"))
    assert there.train.images.device.type == there.held_out.images.device.type == "meta"
    assert there.fingerprints == split.fingerprints
    assert len(there.train) == 2
    assert data.images.device.type == "cpu"
    assert split.on(torch.device("cpu")) is split
