"""Broken files: skipped and listed within the budget, an error beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fasteraa.data import load
from fasteraa.data.materialize import allowed_broken
from fasteraa.errors import DataError


@pytest.mark.parametrize(
    ("count", "budget", "allowed"),
    [(1, 0.01, 1), (100, 0.01, 1), (199, 0.01, 1), (200, 0.01, 2), (700, 0.01, 7), (100, 0.29, 29), (100, 0, 0)],
)
def test_the_budget_in_whole_files(count, budget, allowed):
    assert allowed_broken(count, budget) == allowed


def spoil(root, *names):
    for name in names:
        (root / name).write_bytes((root / name).read_bytes()[:60])


def test_one_broken_file_is_skipped_and_listed(grow):
    root = grow({"a": 3, "b": 3})
    kept = load(root, classes=["b"]).fingerprint
    spoil(root, "a/1.png")
    loaded = load(root)
    assert loaded.counts() == (2, 3)
    assert [item.path for item in loaded.broken] == [str(root / "a" / "1.png")]
    assert "truncated" in loaded.broken[0].reason
    assert load(root, classes=["b"]).fingerprint == kept
    assert len(load(root, classes=["b"]).broken) == 0
    spoil(root, "b/2.png")
    assert [item.path for item in load(root, classes=["b"]).broken] == [str(root / "b" / "2.png")]


def test_beyond_the_budget_is_an_error_with_paths_and_reasons(grow):
    root = grow({"a": 10, "b": 10})
    spoil(root, *(f"a/{i}.png" for i in range(7)))
    with pytest.raises(
        DataError, match=r"7 of 20 images of pictures are broken, the budget allows 1: .*a/0\.png \(OSError"
    ) as e:
        load(root)
    assert "and 2 more" in str(e.value)
    assert len(load(root, broken_budget=0.35)) == 13
    with pytest.raises(DataError, match="allows 6"):
        load(root, broken_budget=0.34)


def test_a_budget_of_zero_allows_none(grow):
    root = grow({"a": 10, "b": 10})
    spoil(root, "a/0.png")
    with pytest.raises(DataError, match=r"1 of 20 .* allows 0"):
        load(root, broken_budget=0)


def test_a_link_to_nowhere_is_broken(grow, tmp_path):
    root = grow({"a": 2, "b": 2})
    (root / "a" / "gone.jpg").symlink_to(tmp_path / "nothing.jpg")
    assert [item.reason for item in load(root).broken] == ["no such file"]


def test_a_class_with_nothing_readable_is_an_error(grow):
    root = grow({"a": 1, "b": 5})
    spoil(root, "a/0.png")
    with pytest.raises(DataError, match="no readable image is left of class 'a'"):
        load(root)


def test_nothing_readable_is_an_error_not_a_crash(grow):
    root = grow({"a": 2, "b": 2})
    spoil(root, "a/0.png", "a/1.png", "b/0.png", "b/1.png")
    with pytest.raises(DataError, match="4 of 4 images"):
        load(root)


def test_a_subset_replaces_a_broken_file_by_another_of_its_class(grow):
    root = grow({"a": 20, "b": 20})
    before = load(root, subset=10)
    files = sorted((root / "a").iterdir(), key=str)
    chosen = [file for file, kept in zip(files, _kept(root, before, "a"), strict=True) if kept]
    spoil(root, f"a/{chosen[0].name}", f"a/{chosen[1].name}")
    after = load(root, subset=10, broken_budget=0.2)
    assert after.counts() == before.counts() == (5, 5)
    assert len(after.broken) == 2
    assert {str(chosen[0]), str(chosen[1])} == {item.path for item in after.broken}
    assert sum(_kept(root, after, "a", skip=chosen[:2])) == 5
    assert load(root, subset=10, broken_budget=0.2).fingerprint == after.fingerprint
    whole = [image.numpy().tobytes() for image in load(root, broken_budget=0.2).images]
    places = [whole.index(image.numpy().tobytes()) for image in after.images]
    assert places == sorted(places)  # replacements stand where the source has them
    with pytest.raises(DataError, match=r"2 of 10 .* allows 1"):
        load(root, subset=10)


def _kept(root, loaded, name, skip=()):
    """For each file of a class whether its pixels are in the set."""
    rows = {image.numpy().tobytes() for image in loaded.images}
    files = [file for file in sorted((root / name).iterdir(), key=str) if file not in skip]
    return [np.asarray(Image.open(file)).transpose(2, 0, 1).tobytes() in rows for file in files]


def test_a_subset_whose_class_has_no_reserve_falls_short(grow):
    root = grow({"a": 3, "b": 3})
    spoil(root, "a/2.png")
    assert load(root, subset=6).counts() == (2, 3)
