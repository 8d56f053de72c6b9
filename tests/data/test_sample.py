"""The embedded sample."""

from __future__ import annotations

import hashlib

import torch

from fasteraa.data import SAMPLE, load
from fasteraa.data.arrays import SAMPLE_FILE


def test_the_sample_is_balanced_grey_and_small():
    train, test = load(), load(split="test")
    assert train.counts() == (100,) * 10
    assert test.counts() == (200,) * 10
    assert train.images.shape == (1000, 3, 28, 28)
    assert torch.equal(train.images[:, 0], train.images[:, 2])
    assert train.classes[0] == "T-shirt/top"
    assert train.name == SAMPLE
    assert load(SAMPLE).fingerprint == train.fingerprint
    assert SAMPLE_FILE.stat().st_size < 1_500_000


def test_the_sample_never_changes():
    """tools/make_sample.py rewrites the very same bytes."""
    assert hashlib.sha256(SAMPLE_FILE.read_bytes()).hexdigest() == SHA256
    assert load().fingerprint.startswith(FINGERPRINT)


SHA256 = "59e33d33d25acf60fe223e3fd05a1471f6514a1bee0292b139ab4759f1fd4cc4"
FINGERPRINT = "636d0690"


def test_the_licence_travels_with_the_sample():
    assert "Zalando SE" in SAMPLE_FILE.with_name("SAMPLE_LICENSE.txt").read_text()


def test_printed_it_is_one_line_without_pixels():
    images = load(None, subset=20, size=(12, 16))
    assert repr(images) == "<ImageSet 'sample': 20 images of 10 classes at 16x12>"
