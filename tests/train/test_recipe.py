"""The settings of the paper, and the learning rate of every step."""

import math

import pytest

from fasteraa.errors import ConfigError
from fasteraa.nets import NAMES
from fasteraa.train.recipe import PAPER, TrainRecipe, choose_recipe, default_recipe, paper_recipe


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cifar/wrn-40-2", (200, 128, 0.1, 2e-4, 16)),
        ("cifar/wrn-28-10", (200, 128, 0.1, 5e-4, 16)),
        ("cifar/shake-shake-26-2x32d", (1800, 128, 0.01, 1e-3, 16)),
        ("cifar/shake-shake-26-2x96d", (1800, 128, 0.01, 1e-3, 16)),
        ("cifar/shake-shake-26-2x112d", (1800, 128, 0.01, 1e-3, 16)),
        ("svhn/wrn-28-10", (200, 128, 0.01, 5e-4, 20)),
        ("imagenet/resnet-50", (270, 256, 0.1, 1e-4, 0)),
        ("imagenet/resnet-50-200", (200, 256, 0.1, 1e-4, 0)),
    ],
)
def test_the_papers_settings(name, values):
    r = paper_recipe(name)
    assert (r.epochs, r.batch_size, r.learning_rate, r.weight_decay, r.cutout) == values
    assert (r.momentum, r.warmup, r.clip, r.flip) == (0.9, 5, 0 if name.startswith("imagenet") else 5, True)
    assert r.network == name.split("/")[1].removesuffix("-200")
    assert r.crop_kind == ("resized" if name.startswith("imagenet") else "pad")
    assert r.crop == 0.125


def test_every_recipe_names_a_network_of_ours_and_none_is_alike():
    assert {recipe.network for recipe in PAPER.values()} <= set(NAMES)
    assert len({recipe.key for recipe in PAPER.values()}) == len(PAPER)


OTHER = {
    "network": "small", "epochs": 3, "batch_size": 7, "learning_rate": 0.2, "weight_decay": 0.0, "momentum": 0.5,
    "warmup": 1, "clip": 0, "cutout": 3, "crop": 0.5, "crop_kind": "resized", "flip": False, "precision": "float32",
    "pretrained": True, "input_size": 32, "order": "crop-first", "optimizer": "adamw", "body_rate": 0.5,
    "label_smoothing": 0.1, "mixup": 0.2, "cutmix": 1.0, "ema": 0.9, "accumulate": 2, "freeze": True, "chunk_size": 16,
    "copies": 3,
}  # fmt: skip


def test_the_key_knows_every_setting(tmp_path):
    base = TrainRecipe()
    files = [tmp_path / name for name in ("a.pt", "b.pt", "copy-of-a.pt")]
    for file in files:
        file.write_bytes(b"b" if file is files[1] else b"a")
    assert {*OTHER, "weights"} == set(vars(base))
    keys = {TrainRecipe(**{name: value}).key for name, value in OTHER.items()}
    weights = [TrainRecipe(weights=str(file)).key for file in files]
    assert len({base.key, *keys, *weights[:2]}) == len(OTHER) + 3
    assert weights[2] == weights[0]  # what is in a file counts, not its name
    assert TrainRecipe().key == base.key


def test_keys_of_before_are_kept():
    """Runs of version 0.1 are found again: a setting that is new counts only where it is not the default."""
    assert TrainRecipe().key == "9defee23da67"
    assert TrainRecipe(network="small", epochs=3).key == "856dcc4877b3"


def test_the_learning_rate_rises_linearly_and_falls_by_half_a_cosine():
    recipe = TrainRecipe(epochs=10, warmup=2, learning_rate=0.4)
    rates = [recipe.rate(step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([0.04 * n for n in range(1, 11)])
    assert max(rates) == pytest.approx(0.4)
    assert rates[10] == pytest.approx(0.4)
    assert rates[30] == pytest.approx(0.2)  # half way down
    assert rates[20] == pytest.approx(0.2 * (1 + math.cos(math.pi / 4)))
    assert 0 < rates[-1] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (1, 3), (3, 7), (4, 5)])
def test_a_short_run_still_comes_down(epochs, steps):
    """The warm-up takes at most half of it, and never overshoots."""
    recipe = TrainRecipe(epochs=epochs, warmup=5)
    rates = [recipe.rate(step, steps) for step in range(epochs * steps)]
    assert max(rates) <= recipe.learning_rate
    assert max(rates) == pytest.approx(recipe.learning_rate)
    if len(rates) > 5:
        assert rates[-1] < 0.2 * recipe.learning_rate
    assert TrainRecipe(epochs=2, warmup=0).rate(0, 3) == pytest.approx(0.1)


def test_defaults_for_anybodys_images():
    assert default_recipe("wrn-40-2", 32) == PAPER["cifar/wrn-40-2"]
    assert default_recipe("wrn-40-2", 64).cutout == 32
    assert (default_recipe("small", 28).network, default_recipe("small", 28).cutout) == ("small", 0)
    assert default_recipe("timm:resnet18", 64).network == "timm:resnet18"


def test_recipes_by_device_images_and_size():
    assert choose_recipe(64, 8, "cpu").network == "small"
    assert choose_recipe(64, 8, "cpu", "wrn-40-2").cutout == 4  # half of 8


@pytest.mark.parametrize(("images", "epochs"), [(5000, 40), (1000, 40), (500, 80), (64, 240)])
def test_the_small_network_makes_as_many_steps_with_few_images(images, epochs):
    assert choose_recipe(images, 8, "cpu").epochs == epochs
    assert choose_recipe(images, 8, "cpu", "wrn-40-2").epochs == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must be a number of at least 1, got 0"),
        ({"batch_size": 1}, "batch_size must be a number of at least 2, got 1"),
        ({"clip": -1}, "clip must be a number of at least 0, got -1"),
        ({"learning_rate": 0}, "learning_rate must be a positive number, got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be a positive number, got nan"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"flip": "no"}, "flip must be true or false, got 'no'"),
        ({"weight_decay": True}, "weight_decay must be a number, got True"),
        ({"crop": 1.0}, "crop must be below 1, got 1"),
        ({"precision": "bf16"}, "unknown precision 'bf16': .*bfloat16"),
        ({"crop_kind": "resize"}, "did you mean 'resized'"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainRecipe(**settings)
    with pytest.raises(ConfigError, match="did you mean 'cifar/wrn-40-2'"):
        paper_recipe("cifar/wrn-40-3")
