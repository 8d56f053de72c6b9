"""Sets that do not fit: names are listed, a subset is held and named, and a word is said now and then."""

import json
import os
import re
import time

import numpy as np
import pytest
import torch

from fasteraa.api import compare
from fasteraa.cli.search import _preset
from fasteraa.data import large, load, materialize
from fasteraa.data.resolve import open_source
from fasteraa.errors import DataError
from fasteraa.runtime.progress import Silent
from fasteraa.train.split import open_split

SYNSETS = [f"n{1440764 + 7 * i:08d}" for i in range(5)]


@pytest.fixture
def imagenet(tmp_path, paint):
    """ILSVRC's layout: class folders to train on, validation and test images flat."""
    root = tmp_path / "root" / "imagenet"
    for place, name in enumerate(SYNSETS):
        (root / "train" / name).mkdir(parents=True)
        for i in range(4):
            paint(10 * place + i, 12, 14).save(root / "train" / name / f"{name}_{i}.JPEG")
    for split in ("val", "test"):
        (root / split).mkdir()
        for i in range(1, 11):
            paint(100 + i, 12, 14).save(root / split / f"ILSVRC2012_{split}_{i:08d}.JPEG")
    return root


LABELS = [SYNSETS[i % 5] for i in range(10)]
IMAGES = [f"ILSVRC2012_val_{i:08d}" for i in range(1, 11)]
FILES = {
    "imagenet_2012_validation_synset_labels.txt": "\n".join(LABELS),
    "../LOC_val_solution.csv": "ImageId,PredictionString\n"
    + "\n".join(f"{image},{label} 1 2 3 4 " for image, label in reversed(list(zip(IMAGES, LABELS, strict=True)))),
    "val/val.txt": "\n".join(f"{image}.JPEG {i % 5}" for i, image in enumerate(IMAGES)),
    "val_map.txt": "\n".join(f"{image}.JPEG\t{label}" for image, label in zip(IMAGES, LABELS, strict=True)),
}


@pytest.mark.parametrize("file", FILES)
def test_imagenet_with_flat_validation_images(imagenet, file):
    (imagenet / file).write_text(FILES[file] + "\n")
    for source, root in (("imagenet", imagenet.parent), (imagenet, None)):
        opened = open_source(source, root)
        assert list(opened.splits) == ["train", "val"]  # test images have no labels
        held = opened.listing("test")
        assert held.classes == opened.listing("train").classes == tuple(SYNSETS)
        assert held.labels.tolist() == [i % 5 for i in range(10)]
        assert held.where(0).endswith("ILSVRC2012_val_00000001.JPEG")


def test_imagenet_as_kaggle_has_it(imagenet, tmp_path):
    inner = tmp_path / "kaggle" / "imagenet" / "ILSVRC" / "Data"
    inner.mkdir(parents=True)
    imagenet.rename(inner / "CLS-LOC")
    (tmp_path / "kaggle" / "imagenet" / "LOC_val_solution.csv").write_text(FILES["../LOC_val_solution.csv"])
    for source in ("imagenet", tmp_path / "kaggle" / "imagenet"):
        assert len(open_source(source, tmp_path / "kaggle").listing("val")) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"holds 10 images without class folders, and no file of their labels.*--held-out"),
        ("n01440764\n", "must have a label for each of 10 images, it has 1"),
        ("\n".join(map(str, range(1, 11))), "no folder of train/: '1'; numbers of the development kit are not"),
        ("ILSVRC2012_val_00000001 n01440764", "no label for 9 of 10 images, such as ILSVRC2012_val_00000002.JPEG"),
        ("\n".join(["n99999999"] * 10), "no folder of train/: 'n99999999'"),
    ],
)
def test_labels_that_do_not_fit(imagenet, text, said):
    if text is not None:
        (imagenet / "val_labels.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        open_source(imagenet).listing("val")
    assert len(open_source(imagenet).listing("train")) == 20  # a search needs no other images


def test_the_papers_recipe_by_name_and_by_layout(imagenet):
    for source in ("imagenet", str(imagenet)):
        settings, _ = _preset("paper", source)
        assert (settings["subset"], settings["classes"], settings["size"]) == (6000, 120, 224)


# --- holding a subset ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 30)
    monkeypatch.setattr(large, "_EVERY_S", 1e9)  # no word on the way, however slow the machine is
    for user in ("fasteraa.api", "fasteraa.comparison.setup"):
        monkeypatch.setattr(f"{user}.HELD", 12)


def test_images_that_are_enlarged_are_said(grow):
    root, said = grow({"a": 3, "b": 3}), []
    with large.reporting(said.append):
        side = load(root).size[0]
        load(root, size=side - 1)
        assert not said
        load(root, size=200)
        open_split(root, size=200)
    (line,) = set(said)
    assert re.fullmatch(r"pictures has images of \d+x\d+ \(the median\): they are enlarged to 200x200, which .*", line)


def test_a_large_set_is_cut_and_said(grow, small_limits):
    root, said = grow({"a": 40, "b": 20}), []
    with large.reporting(said.append):
        data = load(root, large=12, seed=3)
    assert data.counts() == (8, 4)
    assert torch.equal(data.images, load(root, subset=12, seed=3).images)
    assert said == [
        "pictures has 60 images: 12 of them are used and held in memory, drawn by class with seed 3; --subset takes "
        "another number (--subset 60 takes all)"
    ]
    assert len(load(root)) == 60  # who does not ask for it reads all
    assert len(load(root, large=12, subset=50)) == 50
    assert len(load(root, large=1)) == 8  # four of each class


def test_a_set_that_memory_does_not_hold_is_cut_as_well(grow, monkeypatch):
    """At the size that was asked for; who does not ask for a cut still gets an error."""
    root, said = grow({"a": 40, "b": 20}), []
    monkeypatch.setattr(materialize, "fits", lambda more: more <= 1.3 * 3 * 16 * 16 * 20)
    with large.reporting(said.append):
        assert len(load(root, large=12, size=16)) == 12
        assert len(load(root, large=12, size=8)) == 60  # these fit
    assert [line[:32] for line in said if "enlarged" not in line] == ["pictures has 60 images: 12 of th"]
    for options in ({}, {"large": 12, "subset": 60}, {"large": 30}, {"large": 100}):
        with pytest.raises(DataError, match="take a subset or a smaller size"):
            load(root, size=16, **options)


def test_arrays_are_not_cut(small_limits):
    images, labels = np.zeros((60, 4, 4, 3), np.uint8), np.arange(60) % 2
    assert len(load((images, labels), large=12)) == 60


def test_only_the_subset_is_read(grow, small_limits, monkeypatch):
    root, opened = grow({"train/a": 40, "train/b": 20, "test/a": 30, "test/b": 30}), set()
    real = __import__("fasteraa.data.image_folder", fromlist=["open_file"]).open_file
    monkeypatch.setattr("fasteraa.data.image_folder.open_file", lambda path: (opened.add(path), real(path))[1])
    monkeypatch.setattr("fasteraa.data.materialize._PROBES", 3)
    split = open_split(root, large=12, size=8)
    assert (len(split.train), len(split.held_out)) == (12, 6)
    assert len(opened) == 12 + 6
    assert (len(open_split(root, size=8).train), len(open_split(root, large=12, subset=50).train)) == (60, 50)


def test_compare_says_which(grow, small_limits, tmp_path):
    root, said = grow({"train/a": 40, "train/b": 20, "test/a": 30, "test/b": 30}), []
    progress = Silent()
    progress.say = said.append
    compare(root, "none", out=tmp_path / "out", seeds=1, minutes=0, progress=progress)
    assert said[0].startswith("pictures has 60 training images: 12 of them are used and held in memory")
    assert said[1] == "pictures: 6 of its 60 held-out images measure, drawn by class with seed 0"


def test_evaluate_says_which(grow, small_limits, fasteraa, tmp_path):
    root = grow({"train/a": 40, "train/b": 20, "test/a": 30, "test/b": 30})
    words = ["evaluate", root, "--epochs", 1, "--out", tmp_path / "out", "--device", "cpu"]
    assert fasteraa(*words)[1].startswith("pictures has 60 training images: 12 of them are used and held in memory")
    assert json.loads(fasteraa(*words, "--json")[1])["label"] == "none"


def test_search_says_which(grow, small_limits, fasteraa, tmp_path):
    root = grow({"a": 40, "b": 20})
    flags = ["--no-race", "--methods", "published", "--out", tmp_path / "run", "--device", "cpu"]
    code, said, _ = fasteraa("search", root, *flags)
    assert code == 0
    assert "pictures has 60 images: 12 of them are used and held in memory" in said


# --- a word now and then ---------------------------------------------------------------------------------------------


def test_listing_and_reading_tell_how_far_they_are(grow, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "_EVERY_S", 0)
    monkeypatch.setattr(large, "_CHUNK", 10)
    root, said = grow({"a": 15, "b": 15}), []
    with large.reporting(said.append):
        load(root)
    assert said[:3] == ["listing: 10 files", "listing: 20 files", "listing: 30 files"]
    assert said[-1] == "reading images: 30 of 30"
    table = tmp_path / "table.csv"
    table.write_text("path,label\n" + "".join(f"pictures/a/{i}.png,{i % 2}\n" for i in range(12)))
    with large.reporting(said.append):
        open_source(table)
    assert said[-1] == "listing: 10 rows"
    count = len(said)
    load(root)  # nobody listens
    assert len(said) == count


@pytest.mark.alone
def test_a_hundred_thousand_files_and_a_manifest_of_them(tmp_path, paint):
    """By hard links to a few real images: listed, fingerprinted and cut to a subset, and almost nothing is read.

    The paper's recipe, too: 6,000 images of 120 classes.
    """
    seeds = []
    for i in range(4):
        seeds.append(tmp_path / f"{i}.JPEG")
        paint(i, 40, 48).save(seeds[-1])
    names = [f"n{i:08d}" for i in range(125)]
    for name in names:
        folder = tmp_path / "imagenet" / "train" / name
        folder.mkdir(parents=True)
        for i in range(808):
            os.link(seeds[i % 4], folder / f"{name}_{i}.JPEG")
    table = tmp_path / "table.csv"
    rows = (f"imagenet/train/{name}/{name}_{i}.JPEG,{name}\n" for name in names for i in range(808))
    table.write_text("path,label\n" + "".join(rows))
    sets = []
    for source in (tmp_path / "imagenet", table):
        said: list[str] = []
        began = time.process_time()
        with large.reporting(said.append):
            sets.append(load(source, size=16, large=large.HELD))
        assert time.process_time() - began < 60
        assert any("has 101,000 images: 10,000 of them" in line for line in said)
    assert torch.equal(sets[0].labels, sets[1].labels)
    recipe, _ = _preset("paper", "imagenet")
    chosen = load("imagenet", data_root=tmp_path, size=16, subset=recipe["subset"], classes=recipe["classes"])
    assert chosen.counts() == (50,) * 120
    assert set(chosen.classes) < set(names)
