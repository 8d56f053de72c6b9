"""Constants that hold what did well on other data are what `tools/defaults.py` makes of results/."""

import importlib.util
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fasteraa.data import load
from fasteraa.policy.named import EFFECTS

TOOL = Path(__file__).parents[2] / "tools" / "defaults.py"


@pytest.fixture(scope="module")
def defaults():
    spec = importlib.util.spec_from_file_location("defaults", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_effects_are_means_over_seven_sets(defaults):
    effects = defaults.effects()
    assert {len(by_set) for by_set in effects.values()} == {7}
    assert {op: round(float(np.mean(list(by_set.values()))), 1) for op, by_set in effects.items()} == EFFECTS


def test_drawn_policies_are_those_of_the_file(defaults):
    """So that the command which measures operations measures the same ones again."""
    rows = json.loads((defaults.RESULTS / "defaults" / "operations.json").read_text())["svhn"]["runs"]
    rows = [{key: row[key] for key in ("ops", "dose", "warps", "others")} for row in rows if "ops" in row]
    rng = Random("svhn 0")
    assert [defaults.draw(rng) for _ in rows] == rows


def test_operations_can_be_measured(defaults, tmp_path, monkeypatch):
    train, test = load(None, subset=40, size=8), load(None, split="test", subset=20, size=8)
    pixels = {"x_train": train.images.numpy(), "x_test": test.images.numpy()}
    np.savez(tmp_path / "few.npz", y_train=train.labels.numpy(), y_test=test.labels.numpy(), **pixels)
    monkeypatch.setattr(defaults, "LEAST_EPOCHS", 1)
    monkeypatch.setattr(defaults, "LEAST_STEPS", 1)
    monkeypatch.setattr(defaults, "NETWORK", "small")
    defaults.measure(tmp_path / "out.json", [f"few={tmp_path / 'few.npz'}"], [], count=2, jobs=1)
    monkeypatch.setattr(defaults, "RESULTS", tmp_path)
    (tmp_path / "defaults").mkdir()
    (tmp_path / "out.json").rename(tmp_path / "defaults" / "operations.json")
    assert {tuple(by_set) for by_set in defaults.effects().values()} == {("few",)}
