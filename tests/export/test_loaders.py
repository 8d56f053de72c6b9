"""Every export that single images go through, in the workers of a real loader: two workers, two epochs."""

import importlib
import pickle
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fasteraa import Policy
from fasteraa.export import write
from fasteraa.testing.ops import picture

TARGETS = ("torchvision", "timm", "albumentations", "python", "python, given")
UNIFORM = Policy.named("uniform")  # it has all operations, sample_pairing too
COUNT = 8


class Alike(Dataset):
    """One image again and again; numbers that depend on what was drawn."""

    def __init__(self, augment):
        self.augment = augment
        self.image = picture("noise", 16, 16)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self.augment(Image.fromarray(self.image))))


class Arrays:
    """albumentations takes arrays, by name."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        return self.transform(image=np.asarray(image))["image"]


def made(target, folder):
    if target == "torchvision":
        return UNIFORM.to_torchvision()
    if target in ("timm", "albumentations"):
        pytest.importorskip(target)
        return UNIFORM.to_timm() if target == "timm" else Arrays(UNIFORM.to_albumentations())
    write(UNIFORM, "python", folder / "exported_uniform.py")
    exported = importlib.import_module("exported_uniform")
    return exported.Augment(generator=random.Random(5) if "given" in target else None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "exported_uniform", raising=False)
    return tmp_path


def epochs(augment, method, seed=1):
    """What each worker gave in each epoch, as bytes."""
    torch.manual_seed(seed)
    loader = DataLoader(Alike(augment), COUNT // 2, num_workers=2, multiprocessing_context=method)
    return [batch.numpy().tobytes() for _ in range(2) for batch in loader]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("target", TARGETS)
def test_forked_workers(target, folder):
    found = epochs(made(target, folder), "fork")
    assert len(set(found)) == 4
    if target in ("torchvision", "timm", "python"):  # a seeded loader repeats itself
        assert found == epochs(made(target, folder), "fork")


@pytest.mark.alone
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("target", TARGETS)
def test_started_workers(target, method, folder):
    assert len(set(epochs(made(target, folder), method))) == 4


def test_what_a_started_worker_is_sent(folder, monkeypatch):
    """The same pickle for each worker and epoch, without starting any: seeds of workers are given by hand."""
    image = Image.fromarray(picture("noise", 16, 16))
    found = []
    for given in ("python", "python, given"):
        sent = pickle.dumps(made(given, folder))
        for seed in (11, 12, 21, 22):
            info = SimpleNamespace(seed=seed)
            monkeypatch.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
            random.seed(seed)  # as torch does it
            augment = pickle.loads(sent)
            assert augment.seen == []
            found.append(b"".join(augment(image).tobytes() for _ in range(6)))
    assert len(set(found)) == 8


def test_a_given_generator_repeats_itself(folder):
    for seeds in ((1, 1), (1, 2)):
        a, b = (epochs(made("python, given", folder), "fork", seed) for seed in seeds)
        assert (a == b) == (seeds == (1, 1))
    exported = importlib.import_module("exported_uniform")
    image = Image.fromarray(picture("noise", 16, 16))
    once, again, plain = (exported.Augment(generator=g) for g in (random.Random(3), random.Random(3), None))
    assert [once(image).tobytes() for _ in range(9)] == [again(image).tobytes() for _ in range(9)]
    random.seed(3)
    assert [plain(image).tobytes() for _ in range(9)] == [
        exported_image.tobytes() for exported_image in map(exported.Augment(generator=random.Random(3)), [image] * 9)
    ]


def _pooled(augment):
    return augment(Image.fromarray(picture("noise", 16, 16))).tobytes()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("target", ["python", "python, given"])
def test_processes_that_are_no_loader(target, folder):
    """Each task unpickles the same object; without torch's seeds the process tells them apart."""
    import multiprocessing

    augment = made(target, folder)
    found = set()
    for _ in range(2):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found |= set(pool.map(_pooled, [augment] * 12, chunksize=1))
    assert len(found) > 3
