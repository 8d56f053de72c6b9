import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from fasteraa.api import apply


@pytest.fixture
def photos(tmp_path):
    """Two classes of images of two sizes, PNG and JPEG."""
    rng = np.random.default_rng(0)
    root = tmp_path / "photos"
    for name in ("cat", "golden retriever"):
        (root / name).mkdir(parents=True)
        for i in range(10):
            size = (12, 16, 3) if i % 3 else (20, 14, 3)
            image = Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8))
            image.save(root / name / f"{name[:3]}.{i}.{'jpg' if i % 2 else 'png'}")
    return root


@pytest.fixture
def make(photos, tmp_path):
    """`fasteraa.apply` on the photos with small shards, in silence."""

    def run(out="out", **settings):
        given = {"copies": 2, "shard_size": 8, "device": "cpu", "workers": 1, "say": lambda line: None, **settings}
        return apply(
            given.pop("source", photos), given.pop("policy", "trivialaugment-wide"), out=tmp_path / out, **given
        )

    return run


def content(folder):
    """Every file of a folder but the lock, with its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def members(folder):
    """Every member of every shard, with its bytes."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for entry in tar:
                assert entry.name not in found
                found[entry.name] = tar.extractfile(entry).read()
    return found


def manifest(folder):
    return json.loads((folder / "apply.json").read_text())
