"""Images that stay in their files: the same batches whatever the number of workers, and broken files counted."""

import gc
import multiprocessing
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fasteraa.api import compare
from fasteraa.data import ImageSet, load
from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.data.resolve import open_source
from fasteraa.errors import DataError
from fasteraa.images import to_tensor
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named
from fasteraa.runtime.progress import Silent
from fasteraa.train import split as split_module
from fasteraa.train.device_batches import DeviceFeed
from fasteraa.train.split import fits_memory, open_split
from fasteraa.train.trainer import train
from fasteraa.train.worker_batches import LoaderFeed, _Partners, _Training, make_feed, plain_batches

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 + 8 pictures of two classes and various sizes; red stands for one class, blue for the other."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for channel, name in ((0, "red"), (2, "blue")):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 60, (20 + index, 30 - index % 5, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(root / split / name / f"{index:02}.png")
    return root


def listed(folder, split="train", size=16):
    return LazyImageSet.of(open_source(folder).listing(split), "pictures", (size, size))


def whole_epoch(feed, number=0):
    batches = list(feed.epoch(number))
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def feed_of(folder, recipe, policy="none", workers=0, seed=0, size=16):
    policy = named(policy) if isinstance(policy, str) else policy
    return LoaderFeed(listed(folder, size=size), policy, recipe, seed, CPU, workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_schedule_is_followed(folder, tiny, workers):
    """Red and blue, the first half of the training; then inverted, in files as in memory."""
    subs = [SubPolicy((), during=(0, 0.5)), SubPolicy(((Choice("invert"),),), during=(0.5, 1))]
    recipe, policy = replace(tiny, epochs=4, batch_size=8), Policy(tuple(subs))
    memory = load(folder, size=16)
    for feed in (feed_of(folder, recipe, policy, workers), DeviceFeed(memory, policy, recipe, 0, CPU)):
        for epoch in (3, 0, 1, 2):
            dark = float(whole_epoch(feed, epoch)[0][:, 1].float().mean()) < 100  # neither red nor blue is green
            assert dark == (epoch < 2)


@pytest.mark.parametrize("kind", ["pad", "resized"])
def test_workers_change_nothing(folder, tiny, kind):
    recipe = replace(tiny, batch_size=8, crop_kind=kind, flip=True, cutout=4, crop=0.125)
    policy = Policy((SubPolicy(((Choice("sample_pairing", 0.5, 1.0),), (Choice("rotate", 0.5, 1.0),))),), "mixed")
    alone, two = (feed_of(folder, recipe, policy, workers) for workers in (0, 2))
    before = torch.get_rng_state()
    for epoch in (0, 1):
        for one, other in zip(whole_epoch(alone, epoch), whole_epoch(two, epoch), strict=True):
            assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's generator was left alone
    assert not torch.equal(whole_epoch(alone, 0)[0], whole_epoch(alone, 1)[0])
    assert torch.equal(whole_epoch(alone, 1)[0], whole_epoch(alone, 1)[0])
    assert alone.steps == 3


def test_every_image_once_with_its_label_and_as_load_decodes_it(folder, tiny):
    images, labels = whole_epoch(feed_of(folder, replace(tiny, batch_size=8)))
    loaded = load(folder, size=16)
    assert labels.bincount().tolist() == [12, 12]
    expected = {bytes(image.numpy()): int(label) for image, label in zip(loaded.images, loaded.labels, strict=True)}
    found = {bytes(image.numpy()): int(label) for image, label in zip(images, labels, strict=True)}
    assert found == expected


@pytest.mark.parametrize("filter_", ["bilinear", "bicubic"])
def test_images_are_scaled_by_the_filter_that_was_asked_for(folder, tiny, filter_, monkeypatch):
    """In files as in memory: test images, training images and partners."""
    ask = {"size": 16, "interpolation": filter_}
    memory = open_split(folder, **ask)
    monkeypatch.setattr(split_module, "fits_memory", lambda *_: False)
    files = open_split(folder, **ask)
    assert isinstance(files.held_out, LazyImageSet)
    recipe = replace(tiny, batch_size=8, input_size=12)
    one, other = (
        torch.cat([images for images, _ in plain_batches(s.held_out, recipe, 4, CPU)]) for s in (memory, files)
    )
    assert torch.equal(one, other)
    images, _ = whole_epoch(LoaderFeed(files.train, named("none"), replace(tiny, batch_size=8), 0, CPU, 0))
    expected = {bytes(image.numpy()) for image in memory.train.images}
    assert {bytes(image.numpy()) for image in images} == expected
    assert bytes(to_tensor(_Partners(files.train, whole=False)[3]).numpy()) in expected
    crop = _Training(files.train, named("none"), replace(tiny, crop_kind="resized")).crop
    assert crop.interpolation.value == filter_


def test_the_policy_sees_the_whole_image_before_the_resized_crop(folder, tiny):
    sizes = []
    policy = Policy((SubPolicy(((Choice("invert", 1.0),),)),), "invert")
    feed = feed_of(folder, replace(tiny, batch_size=24, crop_kind="resized"), policy)
    dataset = feed.loader.dataset
    whole = dataset.policy

    def seen(image):
        sizes.append(image.size)
        return whole(image)

    seen.set_epoch = whole.set_epoch
    dataset.policy = seen
    inverted, _ = whole_epoch(feed)
    assert (inverted[:, 1].float().mean((1, 2)) > 190).all()
    assert len(sizes) == 24
    assert len(set(sizes)) > 10  # the sizes of the files, not of the crop
    assert inverted.shape == (24, 3, 16, 16)


def test_fine_tuning_crops_to_the_input_before_the_policy(folder, tiny):
    sizes = []
    policy = Policy((SubPolicy(((Choice("invert", 1.0),),)),), "invert")
    recipe = replace(tiny, batch_size=24, crop_kind="resized", order="crop-first", input_size=12, weights="w.pt")
    feed = feed_of(folder, replace(recipe, network="timm:tf_efficientnet_lite0"), policy)
    dataset = feed.loader.dataset
    whole = dataset.policy
    dataset.policy = lambda image: sizes.append(image.size) or whole(image)
    dataset.policy.set_epoch = whole.set_epoch
    inverted, _ = whole_epoch(feed)
    assert (inverted[:, 1].float().mean((1, 2)) > 190).all()
    assert set(sizes) == {(12, 12)}
    assert inverted.shape == (24, 3, 12, 12)
    assert feed.normalise.mean.flatten().tolist() == [0.5, 0.5, 0.5]  # of the network, not of the images
    ((measured, _),) = plain_batches(listed(folder, "val"), recipe, 8, CPU)
    assert torch.equal(measured, load(folder, split="val", size=16).images[:, :, 2:14, 2:14])  # the centre


@pytest.mark.parametrize(("order", "seen"), [("policy-first", 16), ("crop-first", 12)])
def test_files_and_memory_are_cut_to_the_input_in_the_same_order(folder, tiny, order, seen):
    """Zeros of the padded crop come after the policy, which inverts them where it is the last."""
    recipe = replace(tiny, batch_size=8, order=order, input_size=12)
    feeds = feed_of(folder, recipe), DeviceFeed(load(folder, size=16), named("none"), recipe, 0, CPU)
    one, other = ({bytes(image.numpy()) for image in whole_epoch(feed)[0]} for feed in feeds)
    assert one == other
    policy = Policy((SubPolicy(((Choice("invert"),), (Choice("sample_pairing", 0.2, 0.5),))),), "inverts")
    padded = replace(recipe, crop=0.5)
    feed = feed_of(folder, padded, policy)
    sizes, whole = [], feed.images.policy
    feed.images.policy = lambda image: sizes.append(image.size) or whole(image)
    feed.images.policy.set_epoch = whole.set_epoch
    for images, _ in (whole_epoch(feed), whole_epoch(DeviceFeed(load(folder, size=16), policy, padded, 0, CPU))):
        assert images.shape == (24, 3, 12, 12)
        assert bool((images == 0).any()) == (order == "policy-first")
    assert set(sizes) == {(seen, seen)}


def test_normalisation_is_that_of_the_decoded_images(folder, tiny):
    listed_feed = feed_of(folder, tiny)
    decoded = DeviceFeed(load(folder, size=16), named("none"), tiny, 0, CPU)
    torch.testing.assert_close(listed_feed.normalise.mean, decoded.normalise.mean)
    torch.testing.assert_close(listed_feed.normalise.std, decoded.normalise.std)


def test_test_images_in_order_and_a_margin_where_crops_are_resized(folder, tiny):
    data = listed(folder, "val")
    plain = list(plain_batches(data, tiny, 3, CPU))
    assert [len(labels) for _, labels in plain] == [3, 3, 2]
    decoded = load(folder, split="val", size=16)
    assert torch.equal(torch.cat([images for images, _ in plain]), decoded.images)
    assert torch.equal(torch.cat([labels for _, labels in plain]), decoded.labels)
    (with_margin, _), *_ = plain_batches(data, replace(tiny, crop_kind="resized"), 8, CPU)
    larger = load(folder, split="val", size=18).images  # 16 * 256 / 224
    assert torch.equal(with_margin, larger[:, :, 1:17, 1:17])


def test_training_reads_from_files_and_learns(folder, tiny):
    recipe = replace(tiny, epochs=6, batch_size=8)
    trained = train(listed(folder), listed(folder, "val"), named("none"), recipe, device="cpu")
    assert trained.error == 0
    assert trained.provenance["data"]["images"] == 24


def test_processes_that_read_end_with_the_training(folder, tiny, monkeypatch):
    """Were they left to Python's collector, it might come across them in the fork of another training."""
    monkeypatch.setattr("fasteraa.train.worker_batches.worker_count", lambda: 1)
    gc.collect()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        train(listed(folder), listed(folder, "val"), named("none"), replace(tiny, epochs=1, batch_size=8), device="cpu")
        assert set(multiprocessing.active_children()) == before
    finally:
        gc.enable()


def test_what_fits_is_decoded_and_what_does_not_is_listed(folder, tiny, monkeypatch):
    split = open_split(folder, size=16)
    assert isinstance(split.train, ImageSet)
    assert isinstance(make_feed(split.train, named("none"), tiny, 0, CPU), DeviceFeed)
    need = 32 * 3 * 16 * 16  # 24 + 8 images
    monkeypatch.setattr(split_module, "_memory", lambda: 2 * need)
    assert isinstance(open_split(folder, size=16).train, ImageSet)
    monkeypatch.setattr(split_module, "_memory", lambda: 2 * need - 2)
    assert not fits_memory(32, (16, 16))
    large = open_split(folder, size=16)
    assert isinstance(large.train, LazyImageSet)
    assert isinstance(large.held_out, LazyImageSet)
    assert isinstance(make_feed(large.train, named("none"), tiny, 0, CPU), LoaderFeed)
    assert isinstance(open_split(folder, size=16, subset=8).train, ImageSet)
    part = open_split(folder / "train", size=24)
    assert (len(part.train), len(part.held_out), part.name) == (19, 5, "20.8% of the training images")


def test_compare_on_listed_images(folder, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(split_module, "_memory", lambda: 100)
    monkeypatch.setattr("fasteraa.train.worker_batches.worker_count", lambda: 0)
    recipe = replace(tiny, epochs=1, batch_size=8, crop_kind="resized")
    said = []
    found = compare(
        folder,
        "none,flip=uniform",
        out=tmp_path,
        seeds=1,
        recipe=recipe,
        device="cpu",
        size=16,
        jobs=2,
        progress=Said(said),
    )
    assert [row.error.n for row in found.rows] == [1, 1]
    assert said[0].startswith(f"{folder.name}: 24 images at 16x16, 2 runs of the small network for 1 epoch")
    assert said[0].endswith(" on CPU; measured on 8 images (test images)")
    assert [line.split(":")[0] for line in said[2:]] == ["1/2 none, seed 0", "2/2 flip, seed 0"]


class Said(Silent):
    """Progress as a list of lines."""

    def __init__(self, lines):
        self.say = lines.append


def test_fingerprints_know_files_labels_and_pixels(folder):
    whole = listed(folder)
    assert whole.fingerprint == listed(folder).fingerprint
    assert whole.fingerprint != listed(folder, size=12).fingerprint
    part = whole.subset(18, 0)
    assert len({whole.fingerprint, part.fingerprint, listed(folder, "val").fingerprint}) == 3
    assert whole.subset(6, 0).fingerprint == whole.subset(6, 0).fingerprint
    decoded = whole.subset(6, 0).decoded()
    assert decoded.fingerprint == load(folder, size=16, subset=6, seed=0).fingerprint
    assert part.subset(4, 0).decoded().fingerprint == part.decoded().subset(4, 0).fingerprint  # a part of a part


def test_a_set_that_moved_is_the_same_and_one_with_renamed_files_is_not(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    assert listed(tmp_path / "moved").fingerprint == listed(folder).fingerprint
    (tmp_path / "moved" / "train" / "red" / "11.png").rename(tmp_path / "moved" / "train" / "red" / "12.png")
    assert listed(tmp_path / "moved").fingerprint != listed(folder).fingerprint


@pytest.fixture
def damaged(tmp_path):
    """100 pictures, of which some are cut off."""

    def make(broken):
        rng = np.random.default_rng(0)
        for name in ("a", "b"):
            (tmp_path / "train" / name).mkdir(parents=True)
            for index in range(50):
                place = tmp_path / "train" / name / f"{index:02}.png"
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place)
                if name == "a" and index in broken:
                    place.write_bytes(place.read_bytes()[:50])
        return tmp_path

    return make


def test_a_broken_image_is_replaced_by_its_neighbour(damaged, tiny):
    feed = feed_of(damaged({49}), replace(tiny, batch_size=20), workers=2, size=8)
    _, labels = whole_epoch(feed)
    assert labels.bincount().tolist() == [49, 51]  # the neighbour is of the other class, and keeps its own label
    assert feed.broken == {49}
    held_out = listed(feed.data.where(0).rsplit("/train", 1)[0], size=8)
    assert sum(len(labels) for _, labels in plain_batches(held_out, tiny, 64, CPU)) == 99


def test_too_many_broken_images_are_named(damaged, tiny):
    root = damaged({3, 4})
    with pytest.raises(DataError, match=r"2 of 100 images .* budget allows 1: .*03\.png .*04\.png"):
        whole_epoch(feed_of(root, replace(tiny, batch_size=20), workers=2, size=8))
    with pytest.raises(DataError, match="2 of 100 images"):
        list(plain_batches(listed(root, size=8), tiny, 64, CPU))
