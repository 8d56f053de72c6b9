"""Networks that are kept: weights come back, a flipped bit is noticed, a full disk names the file."""

import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import RunError
from fasteraa.policy import Policy
from fasteraa.train.guess import load_logits
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Split
from fasteraa.train.trainer import save_network
from fasteraa.train.training import make_network


@pytest.fixture
def job():
    data = ImageSet.of(torch.zeros(4, 3, 12, 12, dtype=torch.uint8), torch.arange(4) % 2, ("a", "b"), "black")
    recipe = TrainRecipe(network="small", epochs=1, batch_size=2, cutout=0)
    return TrainJob("none", Policy.named("none"), recipe, 0, Split(data, data, "itself"))


def kept(job, path):
    torch.manual_seed(3)
    network = make_network(job.recipe, 2, 12)
    save_network(path, SimpleNamespace(network=network, provenance={}))
    return network.eval()


def test_weights_come_back_and_flipped_bits_do_not(job, tmp_path):
    file = tmp_path / "a.pt"
    network = kept(job, file)
    cpu = torch.device("cpu")
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    found = load_logits(file, job, cpu)(job.split.train.images)
    assert found.shape == (4, 2)
    torch.save(weights, tmp_path / "old.pt")  # as earlier versions kept it
    assert torch.equal(load_logits(tmp_path / "old.pt", job, cpu)(job.split.train.images), found)
    content = file.read_bytes()
    for place in range(64, len(content) - 100, len(content) // 20):
        file.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        with pytest.raises(RunError, match="is damaged"):
            load_logits(file, job, cpu)
    with pytest.raises(RunError, match="is missing"):
        load_logits(tmp_path / "none.pt", job, cpu)
    file.write_bytes(content)
    with pytest.raises(RunError, match="is of another run"):
        load_logits(file, replace(job, recipe=replace(job.recipe, network="wrn-10-1")), cpu)


def test_a_full_disk_names_the_file(job, tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"a\.pt' could not be written: "):
        kept(job, tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []
