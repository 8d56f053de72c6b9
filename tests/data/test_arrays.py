"""Arrays in files and in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fasteraa.data import load
from fasteraa.errors import DataError


def noise(*shape, seed=0):
    return np.random.RandomState(seed).randint(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (noise(4, 6, 5), lambda x: np.repeat(x[:, None], 3, axis=1)),
        (noise(4, 6, 5, 1), lambda x: np.repeat(x.transpose(0, 3, 1, 2), 3, axis=1)),
        (noise(4, 6, 5, 3), lambda x: x.transpose(0, 3, 1, 2)),
        (noise(4, 3, 5, 3), lambda x: x.transpose(0, 3, 1, 2)),
        (noise(4, 3, 6, 5), lambda x: x),
        (noise(4, 1, 6, 5), lambda x: np.repeat(x, 3, axis=1)),
    ],
    ids=["NHW", "NHW1", "NHW3", "N3W3", "N3HW", "N1HW"],
)
def test_every_layout_gives_the_same_pixels(tmp_path, stored, expected):
    labels = np.array([1, 0, 1, 0])
    np.savez(tmp_path / "a.npz", images=stored, labels=labels)
    from_file, from_arrays = load(tmp_path / "a.npz"), load((stored, labels))
    from_tensors = load((torch.from_numpy(stored), torch.from_numpy(labels)))
    assert (from_file.images.numpy() == expected(stored)).all()
    assert from_file.fingerprint == from_arrays.fingerprint == from_tensors.fingerprint
    assert from_file.labels.tolist() == [1, 0, 1, 0]
    assert from_file.name == "a"


def test_alpha_is_composited():
    images = np.zeros((2, 2, 2, 4), dtype=np.uint8)
    assert (load((images, [0, 1])).images == 255).all()


@pytest.mark.parametrize("keys", ["x_{}/y_{}", "{}_images/{}_labels"])
def test_splits_under_the_usual_keys(tmp_path, keys):
    x, y = keys.split("/")
    arrays = {}
    for split, n in (("train", 4), ("val", 2), ("test", 3)):
        arrays |= {x.format(split): noise(n, 4, 4), y.format(split): np.arange(n).reshape(n, 1) + (split == "test")}
    np.savez(tmp_path / "a.npz", **arrays)
    train, val, test = (load(tmp_path / "a.npz", split=split) for split in ("train", "val", "test"))
    assert [len(s) for s in (train, val, test)] == [4, 2, 3]
    assert train.classes == test.classes == ("0", "1", "2", "3")
    assert test.labels.tolist() == [1, 2, 3]


def test_labels_that_are_no_places_are_names(tmp_path):
    loaded = load((noise(3, 4, 4), np.array([10, 9, 10])))
    assert (loaded.classes, loaded.labels.tolist()) == (("9", "10"), [1, 0, 1])
    loaded = load((noise(3, 4, 4), ["dog", "cat", "dog"]))
    assert (loaded.classes, loaded.labels.tolist()) == (("cat", "dog"), [1, 0, 1])


def test_class_names_in_the_file_are_used_by_place(tmp_path):
    np.savez(tmp_path / "a.npz", images=noise(3, 4, 4), labels=[0, 1, 1], classes=["1", "0", "never"])
    loaded = load(tmp_path / "a.npz")
    assert (loaded.classes, loaded.labels.tolist()) == (("1", "0", "never"), [0, 1, 1])
    np.savez(tmp_path / "b.npz", images=noise(3, 4, 4), labels=[0, 1, 2], label_names=["a", "b"])
    with pytest.raises(DataError, match=r"0\.\.1, got 0\.\.2"):
        load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=noise(2, 4, 4), labels=["a", "z"], classes=["a", "b"])
    with pytest.raises(DataError, match="label 'z' is not among the 2 named classes"):
        load(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": noise(3, 4, 4).astype(np.float32), "labels": [0, 1, 0]}, "must be uint8, got float32 .*by 255"),
        ({"images": noise(3, 4, 4).astype(np.uint16), "labels": [0, 1, 0]}, "must be uint8, got uint16"),
        ({"images": noise(3, 4, 4), "labels": [0, 1]}, "one label per image, got 3 images, 2 labels"),
        ({"images": noise(3, 4), "labels": [0, 1, 0]}, r"got \(3, 4\)"),
        ({"images": noise(3, 5, 5, 2), "labels": [0, 1, 0]}, r"got \(3, 5, 5, 2\)"),
        ({"images": noise(0, 4, 4), "labels": np.zeros(0, int)}, r"got \(0, 4, 4\)"),
        ({"images": noise(3, 4, 4), "labels": np.eye(3, dtype=int)}, r"\(3, 3\).*argmax"),
        ({"images": noise(3, 4, 4), "labels": [0.5, 1, 0]}, "whole numbers or text .*got float64"),
        ({"images": noise(3, 4, 4), "labels": [-1, 1, 0]}, "must not be negative"),
        ({"pictures": noise(3, 4, 4), "labels": [0, 1, 0]}, "no images with labels; found keys: labels, pictures"),
        ({"images": np.array([None, 1], dtype=object), "labels": [0, 1]}, "Python objects, which are never loaded"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.npz")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", images=noise(30, 8, 8), labels=np.zeros(30, int))
    np.save(tmp_path / "one.npy", noise(3, 4, 4))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(DataError, match=r"one.npz is not an .npz file: numpy.savez\("):
        load(tmp_path / "one.npz")
    for name, data in {"text": b"hello", "empty": b"", "cut": (tmp_path / "whole.npz").read_bytes()[:900]}.items():
        (tmp_path / f"{name}.npz").write_bytes(data)
        with pytest.raises(DataError, match=f"{name}.npz is not an .npz file"):
            load(tmp_path / f"{name}.npz")


def test_an_image_set_is_a_source_again():
    first = load((noise(40, 5, 5, 3), np.arange(40) % 4))
    assert load(first).fingerprint == first.fingerprint
    assert load(first, subset=8, seed=1).fingerprint == first.subset(8, seed=1).fingerprint
    assert load(first, classes=["1", "3"]).counts() == (10, 10)
    assert load(first, size=7).size == (7, 7)
