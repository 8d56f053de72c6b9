"""Subsets and splits of what is loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet, stratify
from fasteraa.errors import DataError


def images_of(counts: list[int]) -> ImageSet:
    """Every image is filled with its own number; the classes are mixed, not in blocks."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))]
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()
    return ImageSet.of(images, labels, tuple(f"c{i}" for i in range(len(counts))), "numbers")


def numbers(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([10, 10], 4, [2, 2]),
        ([50, 30, 20], 10, [5, 3, 2]),
        ([5, 3, 2], 4, [2, 1, 1]),
        ([6, 3, 1], 5, [3, 1, 1]),
        ([990, 10], 20, [19, 1]),  # proportion says 19.8 and 0.2: no class is lost
        ([1, 1, 1, 997], 4, [1, 1, 1, 1]),
        ([7, 0, 3], 10, [7, 0, 3]),
    ],
)
def test_quotas_keep_the_proportions(counts, total, expected):
    assert stratify.quotas(np.array(counts), total).tolist() == expected


def test_quotas_are_within_one_of_the_exact_share():
    rng = np.random.RandomState(1)
    for _ in range(200):
        counts = rng.randint(20, 100, rng.randint(2, 30))
        total = rng.randint(counts.sum() // 15, counts.sum() + 1)
        quota = stratify.quotas(counts, total)
        assert quota.sum() == total
        assert np.abs(quota - counts * total / counts.sum()).max() < 1


def test_subset_is_stratified_seeded_and_in_order():
    whole = images_of([60, 30, 10])
    part = whole.subset(50, seed=3)
    assert part.counts() == (30, 15, 5)
    assert numbers(part) == sorted(set(numbers(part)))
    assert (part.labels == whole.labels[numbers(part)]).all()
    assert part.classes == whole.classes
    assert part.fingerprint == whole.subset(50, seed=3).fingerprint
    assert part.fingerprint != whole.subset(50, seed=4).fingerprint
    assert part.fingerprint != whole.fingerprint


def test_a_subset_of_a_seed_does_not_change_between_versions():
    assert numbers(images_of([8, 8]).subset(6, seed=0)) == [1, 5, 6, 8, 10, 15]


def test_every_image_is_drawn_equally_often():
    drawn = np.zeros(20)
    for seed in range(400):
        drawn[numbers(images_of([10, 10]).subset(10, seed))] += 1
    assert abs(drawn - 200).max() < 50  # five standard deviations of Binomial(400, 1/2)


@pytest.mark.parametrize("count", [2, 101, 0, -1])
def test_an_impossible_subset_is_refused(count):
    with pytest.raises(DataError, match=rf"between 3 \(the number of classes\) and 100 \(all images\), got {count}"):
        images_of([60, 30, 10]).subset(count, seed=0)


def test_a_negative_seed_is_refused():
    with pytest.raises(DataError, match="seed must not be negative, got -3"):
        images_of([5, 5]).subset(4, seed=-3)


def test_split_divides_every_class():
    whole = images_of([60, 30, 10])
    first, rest = whole.split(0.8, seed=0)
    assert (first.counts(), rest.counts()) == ((48, 24, 8), (12, 6, 2))
    assert sorted(numbers(first) + numbers(rest)) == numbers(whole)
    assert numbers(first) != numbers(whole.split(0.8, seed=1)[0])
    assert numbers(first) == numbers(whole.split(0.8, seed=0)[0])


def test_split_leaves_no_class_out_of_either_part():
    for fraction in (0.01, 0.99):
        first, rest = images_of([90, 2]).split(fraction, seed=0)
        assert min(first.counts() + rest.counts()) >= 1


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 80])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(DataError, match=f"between 0 and 1, got {fraction}"):
        images_of([10, 10]).split(fraction, seed=0)


def test_one_image_cannot_be_in_both_parts():
    with pytest.raises(DataError, match="class number 1 has one"):
        images_of([10, 1]).split(0.5, seed=0)


def test_chosen_classes_depend_on_the_seed_and_keep_their_order():
    names = tuple(f"{i:03d}" for i in range(1000))
    chosen = stratify.choose_classes(names, 120, seed=0)
    assert len(set(chosen)) == 120
    assert list(chosen) == sorted(chosen)
    assert chosen == stratify.choose_classes(names, 120, seed=0)
    assert chosen != stratify.choose_classes(names, 120, seed=1)
    with pytest.raises(DataError, match="between 1 and 1000"):
        stratify.choose_classes(names, 1001, seed=0)


def test_the_fingerprint_covers_pixels_labels_and_class_names():
    base = images_of([4, 4])
    pixel, label = base.images.clone(), base.labels.clone()
    pixel[0, 0, 0, 0] += 1
    label[0] = 1 - label[0]
    others = [
        ImageSet.of(pixel, base.labels, base.classes, "x"),
        ImageSet.of(base.images, label, base.classes, "x"),
        ImageSet.of(base.images, base.labels, ("c0", "other"), "x"),
        ImageSet.of(base.images.reshape(8, 3, 1, 4), base.labels, base.classes, "x"),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert ImageSet.of(base.images, base.labels, base.classes, "another name").fingerprint == base.fingerprint


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "must be uint8"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"shape \(N, 3, H, W\)"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8).permute(0, 3, 1, 2), torch.zeros(2).long(), "contiguous"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3).long(), r"shape \(2,\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32), "must be int64"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 2]), r"0\.\.1, got 0\.\.2"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([-1, 0]), r"0\.\.1, got -1\.\.0"),
    ],
)
def test_an_image_set_refuses_what_is_none(images, labels, message):
    with pytest.raises(DataError, match=message):
        ImageSet.of(images, labels, ("a", "b"), "x")
