"""The examples run, on tiny data, and train."""

import importlib.util
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fasteraa
from fasteraa.policy.named import named
from fasteraa.train.command import Command

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
    "race_timm": ["timm"],
    "race_detection": [],
    "race_segmentation": [],
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


# --- trainings that a race judges by -------------------------------------------------------------------------------


def photos(folder):
    rng = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 8)):
        for index in range(count):
            place = folder / split / ("left" if index % 2 else "right")
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 60, (40, 40, 3), dtype=np.uint8)
            pixels[:, :, index % 2] += 180
            Image.fromarray(pixels).save(place / f"{index}.png")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves image files open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_race_timm_repeats_itself_also_with_fewer_images_than_a_batch(tmp_path):
    photos(tmp_path)
    named("randaugment-m9").save(tmp_path / "policy.json")
    text = (tmp_path / "policy.json").read_text().replace("randaugment-m9", "rand-m9-mstd0.5")  # timm's own
    (tmp_path / "policy.json").write_text(text)
    words = ["--model", "test_resnet", "--epochs", "1", "--batch-size", "17", "--size", "32", "--out", str(tmp_path)]
    draws = []
    for _ in range(2):
        example("race_timm").main([str(tmp_path), *words, "--aug", str(tmp_path / "policy.json")])
        draws.append((random.random(), np.random.random(), torch.rand(1).item()))
    assert draws[0] == draws[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves image files open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_race_timm(tmp_path):
    photos(tmp_path / "photos")
    words = ["--model", "test_resnet", "--epochs", "12", "--batch-size", "8", "--size", "32", "--lr", "0.005"]
    steps = {}

    def train(policy, seed, out):
        """As the command would, with the policy in a file."""
        policy.save(out / "policy.json")
        more = ["--aug", str(out / "policy.json"), "--seed", str(seed), "--out", str(out)]
        epochs = ["--epochs", "12" if policy.name == "none" else "1"]
        error, steps[policy.name] = example("race_timm").main([str(tmp_path / "photos"), *words, *more, *epochs])
        assert json.loads((out / "score.json").read_text()) == {"score": error}
        return error

    names = "none,randaugment-m9,rand-m9-mstd0.5-inc1=randaugment-m9"
    result = fasteraa.race(names, train=train, seeds=1, out=tmp_path / "run")
    assert next(row for row in result.table if row.label == "none").score < 0.3
    kinds = {name: {type(step).__name__ for step in transform.transforms} for name, transform in steps.items()}
    assert kinds["rand-m9-mstd0.5-inc1"] - kinds["none"] == {"RandAugment"}  # timm's own
    assert "RandAugment" not in kinds["randaugment-m9"]


def test_race_detection(capsys):
    quick = ["--images", "24", "--epochs", "1", "--aug", "uniform"]
    score = example("race_detection").main(quick)
    assert 0 <= score <= 1
    assert capsys.readouterr().out == f"score: {score}\n"


def test_race_segmentation_through_a_race(tmp_path):
    """Two fields of colour, as their masks say; the example is a command, and judges."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for kind in ("images", "masks"):
            (tmp_path / "scenes" / split / kind).mkdir(parents=True)
        for index in range(count):
            mask = np.zeros((32, 32), dtype=np.uint8)
            mask[:, int(rng.integers(8, 24)) :] = 1
            pixels = np.where(mask[..., None] == 1, (200, 40, 40), (40, 40, 200)) + rng.integers(0, 40, (32, 32, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "scenes" / split / "images" / f"{index}.png")
            Image.fromarray(mask).save(tmp_path / "scenes" / split / "masks" / f"{index}.png")
    script, quick = str(FOLDER / "race_segmentation.py"), ("--size", "32", "--epochs", "2")
    words = (sys.executable, script, str(tmp_path / "scenes"), *quick, "--aug", "{policy}", "--seed", "{seed}")
    command = Command(words, lambda policy, file: policy.save(file))
    result = fasteraa.race("none", train=command, seeds=1, maximize=True, out=tmp_path / "run")
    assert result.table[0].score > 0.4
