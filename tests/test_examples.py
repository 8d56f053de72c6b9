"""The examples run, on tiny data, and train."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it when it is imported
FOLDER = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {
    "plain_pytorch": [],
    "timm_training": ["timm"],
    "lightning_training": ["lightning"],
    "hf_datasets_trainer": ["datasets", "transformers", "accelerate"],
    "albumentations_pipeline": ["albumentations"],
    "gpu_batch": ["kornia"],
    "keras_layer": ["keras"],
    "dali_pipeline": ["nvidia.dali"],
    "standalone_file": [],
}


def example(name):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


def test_plain_pytorch():
    losses = example("plain_pytorch").main(count=300, epochs=4)
    assert sum(losses[-6:]) < sum(losses[:6])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves image files open
def test_timm(tmp_path):
    losses = example("timm_training").main(folder=tmp_path, count=60)
    assert len(losses) == 3


# other people's warnings, not about the policy
@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    trainer = example("lightning_training").main(
        count=100, epochs=2, accelerator="cpu", default_root_dir=tmp_path, enable_progress_bar=False
    )
    assert trainer.global_step == 4


@pytest.mark.filterwarnings("ignore")
def test_hf_trainer(tmp_path):
    out = example("hf_datasets_trainer").main(count=40, steps=2, folder=str(tmp_path))
    assert out.global_step == 2
    assert out.training_loss > 0


def test_albumentations(capsys):
    *outs, native = example("albumentations_pipeline").main()
    assert [out["image"].shape for out in outs] == [(28, 28, 3)] * 10
    assert all(out["mask"].shape == (28, 28) for out in outs)
    assert native["image"].shape == (28, 28, 3)
    assert "brightness: exact" in capsys.readouterr().out


def test_gpu_batch():
    augmented, floats, masks = example("gpu_batch").main(count=40)
    assert augmented.dtype == torch.uint8
    assert augmented.shape == floats.shape == (40, 3, 28, 28)
    assert masks.shape == (40, 1, 28, 28)


@pytest.mark.filterwarnings("ignore")  # Keras and torch have words for each other
def test_keras():
    model, losses = example("keras_layer").main(count=100, epochs=2)
    assert len(losses) == 2
    images = np.zeros((3, 28, 28, 3), np.uint8)
    assert model(images, training=False).shape == (3, 10)


def test_dali():
    before, after = example("dali_pipeline").main(count=20)
    assert [image.shape for image in after] == [(28, 28, 3)] * 20
    assert any((one != other).any() for one, other in zip(before, after, strict=True))


def test_standalone_file():
    before, after = example("standalone_file").main()
    assert [image.size for image in after] == [(28, 28)] * 10
    assert any(one != other for one, other in zip(before, after, strict=True))
