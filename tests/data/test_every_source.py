"""One file over all kinds of sources: the checks that come with the package, and that each of them can fail."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import TensorDataset

from fasteraa.data.resolve import open_source
from fasteraa.data.source import Listing, Source
from fasteraa.errors import SplitError
from fasteraa.testing.sources import check_source

from .test_masks import numbers, picture_of
from .test_shards import write_shard
from .test_table import write_csv


def folder(grow, paint, name):
    return grow({"train/ant": 3, "train/bee": 2, "val/bee": 2}, name=name)


def manifest(grow, paint, name):
    root = grow({"ant": 3, "bee": 2}, name=name)
    files = sorted(file.relative_to(root) for file in root.rglob("*.png"))
    write_csv(root / "all.csv", [(file, file.parent, "train" if n else "test") for n, file in enumerate(files)])
    return root / "all.csv"


def shards(grow, paint, name):
    root = grow({"shards": 0}, name=name)
    pictures = [[(f"{n}.png", paint(n)), (f"{n}.cls", b"%d" % (n % 2))] for n in range(5)]
    write_shard(root / "one.tar", [member for each in pictures for member in each])
    return root / "one.tar"


def npz(grow, paint, name):
    file = grow({"arrays": 0}, name=name) / "all.npz"
    images = np.stack([np.asarray(paint(n)) for n in range(6)])
    np.savez(file, x_train=images[:4], y_train=[0, 1, 0, 1], x_test=images[4:], y_test=[0, 1])
    return file


def arrays(grow, paint, name):
    return np.stack([np.asarray(paint(n)) for n in range(4)]), np.arange(4) % 2


def dataset(grow, paint, name):
    import torch

    images, labels = arrays(grow, paint, name)
    return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))


def hugging_face(grow, paint, name):
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    datasets = pytest.importorskip("datasets")
    rows = {"image": [paint(n) for n in range(4)], "label": ["ant", "bee"] * 2}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    return datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, features=features)})


def images_and_masks(grow, paint, name):
    root = grow({"images": 0, "masks": 0}, name=name)
    for seed in range(3):
        Image.fromarray(picture_of(numbers(seed))).save(root / "images" / f"{seed}.png")
        Image.fromarray(numbers(seed)).save(root / "masks" / f"{seed}.png")
    return root


KINDS = (folder, manifest, shards, npz, arrays, dataset, hugging_face, images_and_masks)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_source(kind, grow, paint):
    source = kind(grow, paint, "pictures")
    check_source(partial(open_source, source))


def test_the_embedded_sample():
    check_source(partial(open_source, None))


@pytest.mark.parametrize("kind", [folder, manifest], ids=lambda kind: kind.__name__)
def test_an_unreadable_file(kind, grow, paint):
    source = kind(grow, paint, "pictures")
    root = source if source.is_dir() else source.parent
    victim = next(file for file in sorted(root.rglob("*.png")) if "ant" in file.parent.name and file.stem == "1")
    victim.write_bytes(victim.read_bytes()[:60])
    check_source(partial(open_source, folder(grow, paint, "sound")), broken=partial(open_source, source))


# --- sources with one mistake each -----------------------------------------------------------------------------------


def plain(**changes):
    """A source without a mistake, and with one in its listing."""
    images = [Image.fromarray(np.full((8, 8, 3), 20 * n, np.uint8)) for n in range(6)]
    listing = Listing(("ant", "bee"), np.arange(6) % 2, lambda n: images[n], lambda n: f"image {n}")
    return Source("mine", {"train": lambda: replace(listing, **changes)})


def unreadable(error=OSError, **changes):
    def read(place):
        if place == 2:
            raise error("cut off")
        return Image.new("RGB", (8, 8))

    return plain(read=read, **changes)


def test_a_source_of_a_plug_in():
    check_source(plain, broken=unreadable)


class Silent(Source):
    def listing(self, split):
        if split not in self.splits:
            raise SplitError("no such split")
        return super().listing(split)


class Anything(Source):
    def listing(self, split):
        return self.splits["train"]()


clock = count()


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (lambda: [], "got a list"),
        (lambda: Source(" ", plain().splits), "a source has a name"),
        (lambda: Source("mine", {}), "at least one split"),
        (
            lambda: Source("mine", {"train": plain().listing("train")}),
            "a function that lists it, got a Listing",
        ),
        (lambda: Silent("mine", plain().splits), "must name the choices, train is not there"),
        (lambda: Anything("mine", plain().splits), "a split that is not there must be a SplitError"),
        (lambda: Source("mine", {"train": lambda: [1]}), "must give a Listing, got a list"),
        (lambda: plain(labels=np.zeros(0, np.int64)), "has no images"),
        (lambda: plain(labels=[0, 1]), "labels must be an array, got a list"),
        (lambda: plain(labels=np.zeros((6, 1), np.int64)), r"one for each image, got \(6, 1\)"),
        (lambda: plain(labels=np.zeros(6, np.int32)), "labels must be int64, got int32"),
        (lambda: plain(labels=np.arange(6)), "must be numbers of its 2 classes, got 2"),
        (lambda: plain(labels=np.arange(6) % 2 - 1), "must be numbers of its 2 classes, got -1"),
        (lambda: plain(classes=("ant", "ant")), "names of classes must differ, got ant, ant"),
        (lambda: plain(classes=("ant", f"bee {next(clock)}")), "opened again, 'train' has other classes"),
        (lambda: plain(labels=np.roll(np.arange(6) % 2, next(clock))), "other labels, or another order"),
        (lambda: plain(where=lambda n: f"{n} {next(clock)}"), "names its images otherwise"),
        (lambda: plain(read=lambda n: np.zeros((8, 8, 3))), "must give a PIL image, got a ndarray"),
        (lambda: plain(read=lambda n: Image.new("RGB", (8, 8), (next(clock), 0, 0))), "is another image"),
        (lambda: plain(where=lambda n: n), "must name an image of 'train' in a word"),
    ],
)
def test_a_source_with_a_mistake_is_found_out(opened, words):
    with pytest.raises(AssertionError, match=words):
        check_source(opened)


def test_images_that_threads_mix_up():
    """A file that is open once, and read from where another thread left it."""
    import threading

    images = [Image.new("RGB", (8, 8), (40 * n, 0, 0)) for n in range(6)]
    main = threading.get_ident()
    mixed = plain(read=lambda n: images[n if threading.get_ident() == main else 0])
    with pytest.raises(AssertionError, match="say threads=False"):
        check_source(lambda: mixed)
    check_source(lambda: plain(read=mixed.listing("train").read, threads=False))


def test_a_reader_may_raise_anything():
    check_source(plain, broken=partial(unreadable, SystemError))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (plain, "must be a DataError where none is allowed"),
        (lambda: unreadable(where=lambda place: ""), "an image that was left out must be named"),
        (lambda: unreadable(where=lambda place: {}[place]), "an unreadable image ended with KeyError"),
    ],
)
def test_what_is_said_of_an_unreadable_image_is_checked(broken, words):
    with pytest.raises(AssertionError, match=words):
        check_source(plain, broken=broken)
