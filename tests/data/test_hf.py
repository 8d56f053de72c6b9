"""Hugging Face data sets, made and saved on the spot, without a network."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from PIL import Image

from fasteraa.data import load
from fasteraa.errors import DataError

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def make(pictures, labels, feature):
    features = datasets.Features({"id": datasets.Value("int64"), "img": datasets.Image(), "label": feature})
    rows = {"id": list(range(len(labels))), "img": pictures, "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture
def saved(tmp_path, paint):
    names = datasets.ClassLabel(names=["cat", "dog", "emu"])
    parts = {
        "train": make([paint(i) for i in range(4)], [0, 1, 1, 0], names),
        "validation": make([paint(9)], [1], names),
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_dictionary_of_splits(saved, paint, array_of):
    train, test = load(f"hf:{saved}"), load(f"hf:{saved}", split="test")
    assert (train.classes, train.labels.tolist()) == (("cat", "dog", "emu"), [0, 1, 1, 0])
    assert (train.images[2].numpy() == array_of(paint(2))).all()
    assert test.labels.tolist() == [1]
    assert (test.images[0].numpy() == array_of(paint(9))).all()
    assert train.name == "saved"
    assert load(saved).fingerprint == train.fingerprint  # the folder is recognised without the prefix


def test_a_split_in_the_name_is_all_there_is(saved):
    assert load(f"hf:{saved}:validation").labels.tolist() == [1]
    with pytest.raises(DataError, match="no split 'test'; choices: train"):
        load(f"hf:{saved}:validation", split="test")
    with pytest.raises(DataError, match="no split 'nope'; choices: train, validation"):
        load(f"hf:{saved}:nope")


def test_a_folder_may_have_a_colon_in_its_name(saved):
    renamed = saved.rename(saved.with_name("a:b"))
    assert len(load(f"hf:{renamed}")) == 4


def test_an_object_and_text_labels(tmp_path, paint):
    whole = make([paint(i) for i in range(3)], ["dog", "cat", "dog"], datasets.Value("string"))
    loaded = load(whole)
    assert (loaded.classes, loaded.labels.tolist()) == (("cat", "dog"), [1, 0, 1])
    whole.save_to_disk(tmp_path / "one")
    assert load(tmp_path / "one").fingerprint == loaded.fingerprint


def test_an_image_folder(grow):
    root = grow({"train/cat": 3, "train/dog": 2, "test/cat": 1, "test/dog": 1})
    assert load(f"hf:{root}").fingerprint == load(root).fingerprint
    assert len(load(f"hf:{root}", split="test")) == 2


def test_images_go_through_our_own_decoder(paint):
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    loaded = load(make([paint(0), clear], [0, 1], datasets.ClassLabel(names=["a", "b"])))
    assert (loaded.images[1] == 255).all()


def test_a_broken_image_is_listed(paint):
    cells = [paint(0), paint(1), {"bytes": b"junk", "path": None}]
    loaded = load(make(cells, [0, 1, 1], datasets.ClassLabel(names=["a", "b"])))
    assert [(item.path, item.reason) for item in loaded.broken] == [("hf[2]", "not an image that this Pillow can read")]


def test_what_cannot_be_used_is_refused(tmp_path, paint):
    with pytest.raises(DataError, match="needs an image column and a column 'label'; found"):
        load(datasets.Dataset.from_dict({"text": ["a"], "label": [0]}))
    with pytest.raises(DataError, match=r"0\.\.0, got -1\.\.0"):
        load(make([paint(0), paint(1)], [0, None], datasets.ClassLabel(names=["a"])))
    with pytest.raises(DataError, match="'nobody/nothing' could not be loaded"):
        load("hf:nobody/nothing")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"fasteraa\[hf\]"):
        load("hf:cifar10")


def test_a_users_own_module_called_datasets_is_no_hugging_face(paint):
    class Mine:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return np.full((4, 4, 3), i, np.uint8), i

    Mine.__module__ = "datasets"
    assert load(Mine()).images[1].unique().tolist() == [1]
