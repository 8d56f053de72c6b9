"""Groups of images are never split between training and held-out images."""

import csv
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fasteraa.data import load
from fasteraa.data.groups import group_cut, group_folds
from fasteraa.data.large import reporting
from fasteraa.data.load import load_validation
from fasteraa.errors import ConfigError, DataError
from fasteraa.train.split import fold_splits, open_split

PATIENT = r"^(p\d+)_"


@pytest.fixture
def scans(tmp_path):
    """Two classes, twelve patients of two to four images each, some with images of both; validation images."""
    rng = np.random.default_rng(0)
    rows = []
    for part, patients in (("train", range(12)), ("val", range(20, 24))):
        for patient in patients:
            for number in range(2 + patient % 3):
                label = "ill" if (patient + (number == 3)) % 2 else "well"
                place = tmp_path / "scans" / part / label
                place.mkdir(parents=True, exist_ok=True)
                name = f"p{patient}_{number}.png"
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / name)
                rows.append((f"scans/{part}/{label}/{name}", label, part, f"patient {patient}"))
    with open(tmp_path / "scans.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split", "patient"), *rows])
    return tmp_path


def test_folds_keep_groups_whole_and_classes_even(scans):
    data = load(scans / "scans", group_by=PATIENT)
    splits = fold_splits(data, 3, 0)
    held_out = [set(split.held_out.groups.tolist()) for split in splits]
    assert set().union(*held_out) == set(range(12))
    assert sum(map(len, held_out)) == 12
    for split in splits:
        assert not set(split.train.groups.tolist()) & set(split.held_out.groups.tolist())
        assert min(split.train.counts()) > 0
        assert all(
            abs(3 * part - whole) <= 9 for part, whole in zip(split.held_out.counts(), data.counts(), strict=True)
        )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_a_share_is_held_out_by_groups(scans, share):
    split = open_split(scans / "scans", held_out=share, group_by=PATIENT)
    mine, theirs = set(split.train.groups.tolist()), set(split.held_out.groups.tolist())
    assert not mine & theirs
    assert len(theirs) == pytest.approx(12 * share, abs=2)
    first, rest = split.train.split(0.75, 0) if share < 0.5 else (split.train, split.held_out)
    assert not set(first.groups.tolist()) & set(rest.groups.tolist())


def test_a_search_leaves_out_what_a_comparison_holds_out(scans):
    data = load(scans / "scans", held_out=0.2, group_by=PATIENT)
    assert data.fingerprint == open_split(scans / "scans", held_out=0.2, group_by=PATIENT).train.fingerprint


def test_a_column_of_a_manifest_names_groups(scans):
    data = load(scans / "scans.csv", group_by="patient")
    assert len(set(data.groups.tolist())) == 12
    by_name = load(scans / "scans.csv", group_by=PATIENT)
    pairs = set(zip(data.groups.tolist(), by_name.groups.tolist(), strict=True))
    assert len(pairs) == 12
    assert load(scans / "scans.csv", group_by="patient", subset=6).groups.shape == (6,)


def test_a_group_with_all_of_a_class_stays_in_training():
    labels, groups = np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 1, 2, 3, 3])
    assert group_folds(labels, 2, groups, 3, 0)[4:].tolist() == [-1, -1]
    first, rest = group_cut(labels, 2, groups, 0.75, 0)
    assert {4, 5} <= set(first.tolist())
    assert len(rest)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (r"^q(\d+)", r"matches no part of 'p\d+_\d.png' in scans"),
        ("(", "takes a column of a manifest or a pattern, got '\\('"),
        ("(" * 5000, "takes a column of a manifest or a pattern, got .*recursion"),
        ("a{99999999999999999999}", "takes a column of a manifest or a pattern, got 'a{9+}'"),
        ("png", "are of one group by 'png'"),
        (r"p\d+_\d", "is a group of its own"),
    ],
)
def test_wrong_groups(scans, by, message):
    with pytest.raises(DataError, match=message):
        load(scans / "scans", group_by=by)


def test_too_few_groups():
    with pytest.raises(DataError, match="3 parts need 3 groups that can be held out, got 2"):
        group_folds(np.array([0, 0, 0, 1, 1, 1]), 2, np.array([0, 0, 1, 0, 1, 1]), 3, 0)


def test_validation_images_measure(scans):
    whole = scans / "scans"
    split = open_split(whole, validation="val")
    assert (split.name, split.measured_on, len(split.held_out)) == ("validation images", "val", 13)
    other = open_split(whole / "train", validation=str(whole / "val"))
    assert other.held_out.fingerprint == split.held_out.fingerprint
    with pytest.raises(ConfigError, match="held-out share or on validation images"):
        open_split(whole, validation="val", held_out=0.2)
    with pytest.raises(DataError, match="--validation: scans has no split 'test' to judge by; choices: val"):
        open_split(whole, validation="test")
    with pytest.raises(DataError, match="must be others than those that train, got 'training'; choices: val"):
        open_split(whole, validation="training")
    with pytest.raises(DataError, match=r"--validation must be a split of scans \(val\) or a folder of images: 'vall'"):
        open_split(whole, validation="vall")
    (whole / "val" / "odd").mkdir()
    Image.new("RGB", (8, 8)).save(whole / "val" / "odd" / "1.png")
    with pytest.raises(DataError, match="the validation images have classes that the training images lack: odd"):
        open_split(whole / "train", validation=str(whole / "val"))


def test_groups_on_both_sides_are_refused_where_they_judge_and_told_where_they_test(scans):
    """By their names: numbers of groups begin anew in every split."""
    whole, said = scans / "scans", []
    by_name = {"data_root": None, "interpolation": "bilinear", "group_by": PATIENT}
    assert len(load_validation(whole, "val", load(whole), **by_name)) == 13
    with reporting(said.append):
        open_split(whole, group_by=PATIENT)
    assert said == []
    shutil.copy(whole / "train" / "well" / "p4_0.png", whole / "val" / "well" / "p4_9.png")
    words = r"1 of them, such as 'p4', has images among the training images and among scans/val"
    with pytest.raises(DataError, match=words + ": move the images of each to one side"):
        open_split(whole, validation="val", group_by=PATIENT)
    with pytest.raises(DataError, match=words):
        load_validation(whole, "val", load(whole), **by_name)
    with reporting(said.append):
        open_split(whole, group_by=PATIENT)
        open_split(whole)
        open_split(whole, group_by=PATIENT, held_out=0.2)
    (line,) = said
    assert re.search(words + ", which flatters all policies", line)
    (whole / "val" / "well" / "p4_9.png").rename(whole / "val" / "well" / "nobody.png")
    with reporting(said.append):
        open_split(whole, group_by=PATIENT, validation="val")
    assert "whether groups lie on both sides is not known" in said[1]


def test_images_that_train_do_not_judge(scans, monkeypatch):
    """Whichever way they are named; also those of a manifest, and of one file of arrays."""
    whole, refused = scans / "scans", "must be others than those that train"
    (scans / "link").symlink_to(whole / "train", target_is_directory=True)
    for source, judge in (
        (whole, whole / "train"),
        (whole / "train", whole / "train"),
        (whole, scans / "link"),
        (scans / "scans.csv", whole / "train"),
        (whole / "val", scans / "scans.csv"),  # its split val
    ):
        with pytest.raises(DataError, match=refused):
            open_split(source, validation=str(judge))
    monkeypatch.chdir(scans)
    data = load("scans")
    with pytest.raises(DataError, match=refused):
        load_validation("scans", "scans/../scans/train", data, data_root=None, interpolation="bilinear")
    assert len(load_validation("scans", "scans", data, data_root=None, interpolation="bilinear")) == 13  # its split val
    np.savez("arrays.npz", x_train=data.images.permute(0, 2, 3, 1).numpy(), y_train=data.labels.numpy())
    with pytest.raises(DataError, match=refused):
        open_split("arrays.npz", validation="./arrays.npz")
