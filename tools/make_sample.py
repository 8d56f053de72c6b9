"""Make src/fasteraa/data/sample.npz, the embedded sample, from Fashion-MNIST. Running it again gives the same bytes.

apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb /tmp/fm
python tools/make_sample.py /tmp/fm/usr/share/datasets/fashion-mnist
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SEED = 0
TRAIN_PER_CLASS = 100
TEST_PER_CLASS = 200
TARGET = Path(__file__).parents[1] / "src" / "fasteraa" / "data" / "sample.npz"


def read_idx(file: Path, header: int) -> NDArray[np.uint8]:
    """The bytes behind the header of an IDX file (8 bytes for labels, 16 for images)."""
    return np.frombuffer(gzip.decompress(file.read_bytes()), dtype=np.uint8, offset=header)


def choose(labels: NDArray[np.uint8], per_class: int, stream: int) -> NDArray[np.int64]:
    """`per_class` indices of every class, ascending. Sorts raw PCG64 words, which numpy promises never to change."""
    words = np.random.PCG64(np.random.SeedSequence([SEED, stream])).random_raw(len(labels))
    order = np.argsort(words, kind="stable")
    return np.sort(np.concatenate([order[labels[order] == label][:per_class] for label in range(len(CLASSES))]))


def part(folder: Path, prefix: str, per_class: int, stream: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 8)
    index = choose(labels, per_class, stream)
    return images[index], labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds the four .gz files in IDX format")
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    train_images, train_labels = part(arguments.folder, "train", TRAIN_PER_CLASS, stream=0)
    test_images, test_labels = part(arguments.folder, "t10k", TEST_PER_CLASS, stream=1)
    np.savez_compressed(
        arguments.out,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        classes=np.array(CLASSES),
    )
    print(f"{arguments.out}: {len(train_images)} + {len(test_images)} images, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
