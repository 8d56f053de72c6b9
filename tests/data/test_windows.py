"""Images of more than 8 bits are scaled by the range of the data set, or by a window that is given."""

import json

import numpy as np
import pytest
from PIL import Image

from fasteraa.data import load
from fasteraa.data.check import check
from fasteraa.errors import ConfigError, DataError


@pytest.fixture
def scans(tmp_path):
    """12 bits in 16: levels from 100 to 1,099."""
    for name, first in (("a", 100), ("b", 600)):
        (tmp_path / name).mkdir()
        for number in range(2):
            levels = np.linspace(first, first + 499, 16 * 16).round().astype(np.uint16).reshape(16, 16)
            Image.fromarray(levels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_levels_are_scaled_by_the_range_of_all_images(scans):
    data = load(scans, size=16)
    assert data.window == (100, 1099)
    assert (int(data.images.min()), int(data.images.max())) == (0, 255)
    assert len(data.images.unique()) > 200  # of 1,000 levels, not of 5
    assert data.images[data.labels == 0].max() < 140  # one scale for all: images do not get one each


def test_a_check_tells_the_levels_in_json_too(scans):
    told = json.loads(json.dumps(check(scans).to_dict()))
    assert told["deep"] == {"images": 4, "levels": [100, 1099], "most": [100, 1099], "window": [100, 1099]}
    assert check().to_dict()["deep"] is None


def test_a_window_that_is_given(scans):
    data = load(scans, size=16, window=(0, 4095))
    assert data.window == (0, 4095)
    assert 60 <= int(data.images.max()) <= 70
    narrow = load(scans, size=16, window=(300, 400))
    assert set(narrow.images.unique().tolist()) >= {0, 255}  # beyond it all is black or white


def test_windows_that_are_none(scans, tmp_path):
    with pytest.raises((ConfigError, DataError)):
        load(scans, size=16, window=(5, 5))
    eight = tmp_path / "eight"
    for name in "ab":
        (eight / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(eight / name / "0.png")
    assert load(eight, size=8).window is None
    with pytest.raises(DataError, match="more than 8 bits"):
        load(eight, size=8, window=(0, 100))
