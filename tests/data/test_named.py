"""Public data sets in their official layout, made on the spot."""

from __future__ import annotations

import gzip
import inspect
import pickle
import struct
from dataclasses import asdict

import numpy as np
import pytest

from fasteraa.data import NAMES, RECIPES, check, load, recipe_for
from fasteraa.errors import DataError


def noise(*shape, seed=0):
    return np.random.RandomState(seed).randint(0, 256, shape, dtype=np.uint8)


def write_cifar(root, folder, files, label_key, meta):
    (root / folder).mkdir()
    for seed, name in enumerate(files):
        content = {"data": noise(20, 3072, seed=seed), label_key: [i % 10 for i in range(20)]}
        (root / folder / name).write_bytes(pickle.dumps(content))
    (root / folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"name{i}" for i in range(10)]}))


@pytest.fixture
def trusted(monkeypatch):
    """Our stand-ins have other md5 sums than the official files."""
    from torchvision import datasets

    for name in ("CIFAR10", "CIFAR100", "SVHN", "STL10"):
        monkeypatch.setattr(getattr(datasets, name), "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *arguments: True)


def test_cifar(tmp_path, trusted):
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    write_cifar(tmp_path, "cifar-10-batches-py", batches, "labels", ("batches.meta", "label_names"))
    write_cifar(tmp_path, "cifar-100-python", ["train", "test"], "fine_labels", ("meta", "fine_label_names"))
    train, test = (load("cifar10", data_root=tmp_path, split=split) for split in ("train", "test"))
    assert train.images.shape == (100, 3, 32, 32)
    assert (test.images.numpy() == noise(20, 3072, seed=5).reshape(20, 3, 32, 32)).all()
    assert test.labels.tolist() == [i % 10 for i in range(20)]
    assert train.classes == tuple(f"name{i}" for i in range(10))
    hundred = load("cifar100", data_root=tmp_path, split="test")
    assert (hundred.images.numpy() == noise(20, 3072, seed=1).reshape(20, 3, 32, 32)).all()
    assert (train.name, hundred.name) == ("cifar10", "cifar100")


def test_cifar_with_other_bytes_is_refused_before_it_is_unpickled(tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-py", ["data_batch_1"], "labels", ("batches.meta", "label_names"))
    with pytest.raises(DataError, match=r"cifar10 .*is not there or damaged"):
        load("cifar10", data_root=tmp_path)


def test_svhn_and_its_extra_split(tmp_path, trusted):
    savemat = pytest.importorskip("scipy.io").savemat
    for seed, split in enumerate(("train", "test", "extra")):
        labels = np.arange(1, 11).reshape(10, 1)
        savemat(tmp_path / f"{split}_32x32.mat", {"X": noise(32, 32, 3, 10, seed=seed), "y": labels})
    both = load("svhn", data_root=tmp_path, split="train+extra")
    assert both.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    assert (both.images[3].numpy() == noise(32, 32, 3, 10, seed=0)[..., 3].transpose(2, 0, 1)).all()
    assert (both.images[13].numpy() == noise(32, 32, 3, 10, seed=2)[..., 3].transpose(2, 0, 1)).all()
    assert both.classes == tuple("0123456789")
    assert [len(load("svhn", data_root=tmp_path, split=s)) for s in ("train", "test", "extra")] == [10, 10, 10]
    report = check("svhn", data_root=tmp_path)
    assert [split.split for split in report.splits] == ["train", "test", "extra"]
    assert report.duplicates == ()


def write_idx(root, prefix, images, labels):
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *images.shape) + images.tobytes())
    (root / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_and_fashion_mnist(tmp_path, name, folder):
    for seed, prefix in enumerate(("train", "t10k")):
        write_idx(tmp_path / folder / "raw", prefix, noise(20, 28, 28, seed=seed), np.arange(20, dtype=np.uint8) % 10)
    test = load(name, data_root=tmp_path, split="test")
    assert (test.images.numpy() == noise(20, 28, 28, seed=1)[:, None]).all()
    assert test.labels.tolist() == [i % 10 for i in range(20)]
    assert len(test.classes) == 10


def test_stl10(tmp_path, trusted):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}_X.bin").write_bytes(noise(10, 3, 96, 96).tobytes())
        (folder / f"{split}_y.bin").write_bytes(np.arange(1, 11, dtype=np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"n{i}" for i in range(10)))
    loaded = load("stl10", data_root=tmp_path, size=96)
    assert loaded.labels.tolist() == list(range(10))
    assert (loaded.images.numpy() == noise(10, 3, 96, 96).transpose(0, 1, 3, 2)).all()  # the file is column by column
    assert loaded.classes == tuple(f"n{i}" for i in range(10))


def test_imagenet_is_read_as_folders(grow):
    root = grow({f"imagenet/{split}/n0{i}": 3 for split in ("train", "val") for i in range(5)}, name="root")
    loaded = load("imagenet", data_root=root, classes=3, subset=6, size=8, seed=1)
    assert (loaded.name, len(loaded.classes), len(loaded)) == ("imagenet", 3, 6)
    assert load("imagenet", data_root=root, classes=3, seed=1, split="test").classes == loaded.classes


def test_a_missing_set_says_where_it_looked_and_where_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(
        DataError, match=f"expected cifar-10-batches-py/ under {tmp_path}, .*--data-root.*https.*not found or"
    ):
        load("cifar10", data_root=tmp_path)
    # once, not for each split, and without torchvision's download=True
    with pytest.raises(DataError, match=r"^cifar10 .*not found or corrupted\.$"):
        check("cifar10", data_root=tmp_path)
    with pytest.raises(DataError, match=f"imagenet is not at {tmp_path}/imagenet/train; expected"):
        load("imagenet", data_root=tmp_path)
    monkeypatch.setenv("FASTERAA_DATA_ROOT", str(tmp_path / "there"))
    with pytest.raises(DataError, match=f"expected MNIST/raw/ under {tmp_path}/there"):
        load("mnist")


def test_any_torchvision_class(tmp_path, grow):
    root = grow({f"eurosat/2750/{name}": 2 for name in ("Forest", "River")}, name="root")
    loaded = load("torchvision:EuroSAT", data_root=root)
    assert (loaded.name, loaded.classes, loaded.labels.tolist()) == ("eurosat", ("Forest", "River"), [0, 0, 1, 1])
    raw = tmp_path / "KMNIST" / "raw"
    for seed, prefix in enumerate(("train", "t10k")):
        write_idx(raw, prefix, noise(10, 28, 28, seed=seed), np.arange(10, dtype=np.uint8))
    test = load("torchvision:KMNIST", data_root=tmp_path, split="test")
    assert (test.images.numpy() == noise(10, 28, 28, seed=1)[:, None]).all()


def test_a_torchvision_class_with_a_split_word(tmp_path, monkeypatch):
    from PIL import Image
    from torchvision import datasets

    class Pets(datasets.VisionDataset):
        classes = ("cat", "dog")
        targets = (0, 1)

        def __init__(self, root, split="trainval", download=False):
            if split not in ("trainval", "test"):
                raise ValueError(f"Unknown value '{split}' for argument split. Valid values are trainval, test.")
            super().__init__(root)
            self.grey = {"trainval": 10, "test": 20}[split]

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return Image.new("RGB", (4, 4), (self.grey,) * 3), i

    monkeypatch.setattr(datasets, "OxfordIIITPet", Pets)
    source = "torchvision:OxfordIIITPet"
    assert load(source, data_root=tmp_path).images.unique().tolist() == [10]
    assert load(source, data_root=tmp_path, split="test").images.unique().tolist() == [20]
    with pytest.raises(DataError, match=r"no such split: Unknown value .*Valid values are trainval, test"):
        load(source, data_root=tmp_path, split="val")


def test_torchvision_classes_that_cannot_be_named_alone(tmp_path):
    with pytest.raises(DataError, match=r"no data set 'CIFAR11'; did you mean 'CIFAR10'\?"):
        load("torchvision:CIFAR11", data_root=tmp_path)
    with pytest.raises(DataError, match="EMNIST needs the arguments split; build the object in Python"):
        load("torchvision:EMNIST", data_root=tmp_path)
    with pytest.raises(DataError, match=r"torchvision:EuroSAT under .* is not there or damaged"):
        load("torchvision:EuroSAT", data_root=tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cifar", r"neither a file or folder nor a known data set; did you mean 'cifar10'\? choices: sample, cifar10"),
        ("fashon-mnist", "did you mean 'fashion-mnist'"),
        ("some/where", "no such file or folder: some/where"),
        ("where.csv", "no such file or folder: where.csv"),
        ("", "source must not be empty"),
    ],
)
def test_an_unknown_source_gets_the_nearest_name(source, message):
    with pytest.raises(DataError, match=message):
        load(source)


def test_a_file_without_a_reader_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match=r"no reader for .*a\.gz; a source is a folder, a manifest"):
        load(tmp_path / "a.gz")


def test_the_papers_recipes():
    assert {name: (r.subset, r.classes) for name, r in RECIPES.items()} == {
        "cifar10": (4000, None),
        "cifar100": (4000, None),
        "svhn": (1000, None),
        "imagenet": (6000, 120),
    }
    assert set(RECIPES) <= set(NAMES)
    assert recipe_for("svhn").size == 32
    assert set(asdict(recipe_for("svhn"))) <= set(inspect.signature(load).parameters)
    with pytest.raises(DataError, match="no recipe for 'cifar-10'; did you mean 'cifar10'"):
        recipe_for("cifar-10")
