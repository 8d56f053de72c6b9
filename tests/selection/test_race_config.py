"""The settings of a race: which network is trained for how long, and what is refused before anything runs."""

import tomllib
from dataclasses import replace

import pytest
import torch

from fasteraa.errors import ConfigError
from fasteraa.methods import make_methods
from fasteraa.methods.config import SearchConfig
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection import recipe as module
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.recipe import race_recipe
from fasteraa.selection.settings_file import write_settings
from fasteraa.train.recipe import TrainRecipe, choose_recipe

from .conftest import brightness_classes

CONFIG = SearchConfig()


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(module, "find_device", lambda name: torch.device("cuda"))


def test_a_cpu_races_the_small_network():
    recipe = race_recipe(brightness_classes(40), "cpu", CONFIG, RaceConfig())
    assert (recipe.network, recipe.cutout) == ("small", 0)


def test_crop_and_flip_are_those_of_the_search():
    recipe = race_recipe(brightness_classes(40), "cpu", SearchConfig(crop=0.0, flip=False), RaceConfig())
    assert (recipe.crop, recipe.flip) == (0.0, False)


def test_a_gpu_races_a_quick_network(gpu, monkeypatch):
    data = brightness_classes(40)
    assert race_recipe(data, "cpu", CONFIG, RaceConfig()).network == "wrn-16-2"
    monkeypatch.setattr(module, "_QUICK_SIDE", min(data.size) - 1)
    assert race_recipe(data, "cpu", CONFIG, RaceConfig()).network == "small"


@pytest.mark.parametrize(("images", "epochs"), [(4000, 200), (1000, 200), (300, 400), (60, 1200)])
def test_few_images_are_seen_more_often(images, epochs):
    """300 images: 200 of them are trained on, three batches of 64, so 400 epochs are 1,200 steps."""
    assert module._long_enough(TrainRecipe(epochs=100, batch_size=64), images).epochs == epochs


@pytest.mark.parametrize(("images", "batch", "rate"), [(2000, 128, 0.1), (1999, 64, 0.05)])
def test_many_images_are_seen_in_larger_batches(images, batch, rate):
    recipe = module._in_large_batches(TrainRecipe(batch_size=64, learning_rate=0.05), images)
    assert (recipe.batch_size, recipe.learning_rate) == (batch, rate)


def test_on_a_gpu_a_race_is_long_and_in_large_batches_unless_the_network_is_given(gpu, monkeypatch):
    monkeypatch.setattr(module, "_MANY_IMAGES", 40)
    data = brightness_classes(40)
    own = choose_recipe(40, 8, "cpu", "wrn-16-2")
    quick, given = (race_recipe(data, "cpu", CONFIG, RaceConfig(network=name)) for name in (None, "wrn-16-2"))
    assert (quick.batch_size, given.batch_size) == (2 * own.batch_size, own.batch_size)
    assert quick.epochs == given.epochs == 1200  # one step an epoch


def test_a_race_may_be_like_the_training_to_come():
    race = RaceConfig(network="wrn-10-1", epochs=7, train={"weight_decay": 0.5, "flip": False})
    recipe = race_recipe(brightness_classes(40), "cpu", CONFIG, race)
    assert (recipe.network, recipe.epochs, recipe.weight_decay, recipe.flip) == ("wrn-10-1", 7, 0.5, False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"minutes": 0}, "minutes must be a positive number, got 0"),
        ({"minutes": float("inf")}, "minutes must be a positive number, got inf"),
        ({"minutes": float("nan")}, "minutes must be a positive number, got nan"),
        ({"trainings": 1}, "trainings must be a number of at least 2, got 1"),
        ({"trainings": 2.5}, r"trainings must be .*whole number.*, got 2\.5"),
        ({"epochs": 0}, "epochs must be a number of at least 1, got 0"),
        ({"train": {"epoch": 3}}, "unknown setting 'epoch': did you mean 'epochs'"),
        ({"train": {"epochs": "many"}}, "epochs must be a whole number, got 'many'"),
        ({"train": [1]}, r"train must be a table of settings, got \[1\]"),
        ({"pretrained": True, "weights": "w.pt"}, "timm's own weights .* or with --weights w.pt: not both"),
        ({"judge": "probe"}, "judge = probe trains a head alone, so the body needs weights"),
        ({"train": {"freeze": True}}, "train.freeze trains a head alone, so the body needs weights"),
        ({"minute": 3}, "unknown setting 'minute': did you mean 'minutes'"),
    ],
)
def test_mistakes_are_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        RaceConfig.make(settings)


def test_settings_are_kept_as_they_were_given(tmp_path):
    race = RaceConfig(trainings=12, network="small", train={"weight_decay": 0.5, "precision": "float32"})
    for chosen in (race, None):
        write_settings(RunFolder(tmp_path), SearchConfig(seed=3), chosen, make_methods("published"))
        tables = tomllib.loads((tmp_path / "config.toml").read_text())
        assert tables["search"]["seed"] == 3
        assert tables["run"] == {"methods": ["published"], "race": chosen is not None}
    write_settings(RunFolder(tmp_path), SearchConfig(), race, make_methods("published"))
    tables = tomllib.loads((tmp_path / "config.toml").read_text())
    assert RaceConfig.make({**tables["race"], "train": tables["train"]}) == race
    assert replace(race, train={}) == RaceConfig.make(tables["race"])
