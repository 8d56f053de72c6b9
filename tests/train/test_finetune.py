"""Fine-tuning: the network's own normalisation and crop, AdamW with two rates, and options of the recipe."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fasteraa
from fasteraa.api import _load
from fasteraa.comparison.setup import set_up
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError
from fasteraa.methods.config import SearchConfig
from fasteraa.policy import Policy
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.recipe import fine_tuning, race_recipe
from fasteraa.selection.settings_file import settings_text
from fasteraa.train.device_batches import DeviceFeed, centre, mixed
from fasteraa.train.group import set_rates
from fasteraa.train.recipe import (
    TrainRecipe,
    check_body,
    finetune_recipe,
    finetuned_on,
    image_side,
    interpolation,
    with_settings,
)
from fasteraa.train.runner import Engine
from fasteraa.train.split import open_split
from fasteraa.train.trainer import train
from fasteraa.train.training import Training

LITE0 = "timm:tf_efficientnet_lite0"
CPU = torch.device("cpu")


@pytest.fixture
def photos():
    """Two kinds of images that a pretrained network tells apart: fine and coarse patterns."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 2
    coarse = torch.randint(256, (24, 3, 5, 5), generator=generator, dtype=torch.uint8)
    fine = torch.randint(256, (24, 3, 37, 37), generator=generator, dtype=torch.uint8)
    big = torch.nn.functional.interpolate(coarse, 37)
    images = torch.where(labels.view(-1, 1, 1, 1) == 0, big, fine)
    return ImageSet.of(images.contiguous(), labels, ("coarse", "fine"), "patterns")


@pytest.fixture
def recipe(lite0):
    return replace(finetune_recipe(LITE0, weights=str(lite0), side=32), epochs=2, batch_size=8, precision="float32")


def test_what_a_recipe_of_fine_tuning_is(lite0):
    recipe = finetune_recipe(LITE0, weights=str(lite0))
    assert (recipe.input_size, image_side(recipe), interpolation(recipe)) == (224, 256, "bicubic")
    assert recipe.fine_tunes
    assert (recipe.crop_kind, recipe.order, recipe.optimizer) == ("resized", "crop-first", "adamw")
    assert not TrainRecipe().fine_tunes
    assert image_side(TrainRecipe()) is None
    assert interpolation(TrainRecipe()) == "bilinear"


@pytest.mark.parametrize(
    ("images", "batch", "epochs"),
    [(66, 13, 60), (10, 10, 300), (17, 8, 150), (399, 15, 20), (400, 32, 25), (6000, 32, 20)],
)
def test_few_images_are_fine_tuned_on_for_as_many_steps(lite0, images, batch, epochs):
    recipe = finetuned_on(finetune_recipe(LITE0, weights=str(lite0)), images)
    assert (recipe.batch_size, recipe.epochs) == (batch, epochs)
    assert recipe.epochs * (images // batch) >= 300
    assert images - images // batch * batch <= 0.08 * images


def test_epochs_and_batches_that_were_given_stay(lite0, photos, tmp_path):
    def chosen(**options):
        recipe = race_recipe(photos.resized(37), "cpu", SearchConfig(size=32), RaceConfig(**weights, **options))
        return recipe.epochs, recipe.batch_size

    weights = {"network": LITE0, "weights": str(lite0)}
    assert chosen() == (300, 16)  # of 24 images, 16 of which train
    assert chosen(epochs=5) == chosen(train={"epochs": 5}) == (5, 16)
    assert chosen(train={"batch_size": 4}) == (75, 4)
    for given, expected in (({}, (150, 9)), ({"epochs": 3}, (3, 9)), ({"batch_size": 6}, (100, 6))):
        options = {**weights, "train": given, "size": 32, "held_out": 0.2}
        with set_up(photos, tmp_path / "run", Engine(device="cpu", jobs=1), **options) as setup:
            assert (setup.recipe.epochs, setup.recipe.batch_size) == expected


def test_an_optimiser_has_rates_of_its_own(lite0, photos):
    """What was given stays; so does what trains from scratch."""

    def rates(recipe, **settings):
        changed = with_settings(recipe, settings)
        return changed.learning_rate, changed.weight_decay

    recipe = finetune_recipe(LITE0, weights=str(lite0))
    assert rates(recipe, optimizer="sgd") == (0.01, 1e-4)
    assert rates(recipe, optimizer="sgd", learning_rate=0.5) == (0.5, 1e-4)
    assert rates(recipe, optimizer="adamw", mixup=0.1) == rates(recipe) == (2e-3, 0.05)
    assert rates(TrainRecipe(optimizer="adamw"), optimizer="sgd") == (0.1, 2e-4)
    assert rates(TrainRecipe(), optimizer="adamw") == (1e-3, 0.05)
    assert rates(TrainRecipe(), optimizer="adamw", learning_rate=0.5) == (0.5, 0.05)
    race = RaceConfig(network=LITE0, weights=str(lite0), train={"optimizer": "sgd", "weight_decay": 0.0})
    raced = fine_tuning(SearchConfig(size=32), race)
    assert (raced.learning_rate, raced.weight_decay, raced.momentum) == (0.01, 0.0, 0.9)
    scratch = race_recipe(photos, "cpu", SearchConfig(), RaceConfig(train={"optimizer": "adamw"}))
    assert (scratch.learning_rate, scratch.weight_decay) == (1e-3, 0.05)
    with pytest.raises(ConfigError, match="lion"):
        with_settings(recipe, {"optimizer": "lion"})


def test_weights_are_no_single_setting(lite0, photos, tmp_path):
    """They would be trained by the recipe of another training."""
    for settings, words in (
        ({"pretrained": True}, "pretrained cannot be set alone, got True: .* which --pretrained brings along"),
        ({"weights": "w.pt"}, "weights cannot be set alone, got 'w.pt': .* which --weights FILE brings along"),
    ):
        with pytest.raises(ConfigError, match=words):
            RaceConfig(network=LITE0, train=settings)
        with pytest.raises(ConfigError, match=words):
            fasteraa.compare(photos, "none", out=tmp_path / "run", network=LITE0, train=settings)
    assert with_settings(TrainRecipe(pretrained=True), {"pretrained": True}).pretrained
    assert "pretrained" not in settings_text(SearchConfig(), RaceConfig(), [], explain=True).partition("[train]")[2]


def test_keys_of_recipes_from_before_stay_as_they_were(lite0, tmp_path):
    assert TrainRecipe().key == "9defee23da67"
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(lite0.read_bytes())
    one, two = (finetune_recipe(LITE0, weights=str(path)) for path in (lite0, copy))
    assert one.key == two.key  # by what is in the file
    copy.write_bytes(b"other")
    assert finetune_recipe(LITE0, weights=str(copy)).key != one.key
    assert replace(one, mixup=0.2).key != one.key


def test_the_networks_own_normalisation_is_used(photos, recipe):
    training = Training(photos, Policy.named("none"), recipe, 0, CPU)
    assert training.feed.normalise.mean.flatten().tolist() == [0.5, 0.5, 0.5]
    scratch = Training(photos, Policy.named("none"), replace(recipe, weights=""), 0, CPU)
    assert scratch.feed.normalise.mean.flatten().tolist() != [0.5, 0.5, 0.5]


def test_batches_have_the_size_of_the_input_and_crop_comes_before_the_policy(photos, recipe, monkeypatch):
    seen = []
    from fasteraa.train import device_batches

    real = device_batches.augment

    def augment(policy, images, *rest, **options):
        seen.append(images.shape[-2:])
        return real(policy, images, *rest, **options)

    monkeypatch.setattr(device_batches, "augment", augment)
    feed = DeviceFeed(photos, Policy.named("trivialaugment-wide"), recipe, 0, CPU)
    assert {images.shape for images, _ in feed.epoch(0)} == {(8, 3, 32, 32)}
    assert set(seen) == {(32, 32)}
    seen.clear()
    first = DeviceFeed(photos, Policy.named("trivialaugment-wide"), replace(recipe, order="policy-first"), 0, CPU)
    list(first.epoch(0))
    assert set(seen) == {(37, 37)}


def test_images_in_memory_are_scaled_as_files_are(photos, lite0):
    """To the side that the input is cut from; and without weights to the size that is asked for."""
    race = RaceConfig(network=LITE0, weights=str(lite0))
    fine_tuned = _load(photos, SearchConfig(size=64), race, "cpu", None)
    assert (fine_tuned.size, fine_tuned.name) == ((74, 74), "patterns")
    assert _load(photos, SearchConfig(size=16, subset=8), None, "cpu", None).images.shape == (8, 3, 16, 16)
    assert _load(photos, SearchConfig(classes=2), None, "cpu", None).size == (37, 37)
    assert _load(photos, SearchConfig(), None, "cpu", None) is photos
    with pytest.raises(DataError, match="patterns holds images in memory: load them with groups"):
        _load(photos, SearchConfig(), RaceConfig(group_by="patient"), "cpu", None)
    with pytest.raises(DataError, match="patterns holds images in memory: load them with groups"):
        open_split(photos, held_out=0.2, group_by="patient")


def test_a_share_of_images_in_memory_keeps_their_groups_whole(photos):
    split = open_split(replace(photos, groups=np.arange(24) // 4), held_out=0.3)
    assert not set(split.train.groups) & set(split.held_out.groups)


def test_images_follow_the_input_size_of_the_recipe_that_trains(photos, lite0, tmp_path):
    options = {"network": LITE0, "weights": str(lite0), "train": {"input_size": 48, "epochs": 1}}
    with set_up(photos, tmp_path / "run", Engine(device="cpu", jobs=1), **options) as setup:
        assert setup.split.train.size == setup.split.held_out.size == (55, 55)


def test_images_smaller_than_the_input_are_refused(photos, tmp_path):
    """They would be enlarged in training alone."""
    recipe = TrainRecipe(network="small", input_size=40, epochs=1)
    words = r"input is 40 pixels \(input_size\), the images of patterns have 37x37: load them at 40 \(--size 40"
    with pytest.raises(ConfigError, match=words):
        Training(photos, Policy.named("none"), recipe, 0, CPU)
    with pytest.raises(ConfigError, match=words):
        Training(photos.resized(40), Policy.named("none"), recipe, 0, CPU).measure(photos)
    with pytest.raises(ConfigError, match="images of patterns have 32x32"):
        fasteraa.compare(photos, "none", out=tmp_path / "run", recipe=recipe, size=32)
    with pytest.raises(ConfigError, match=words):
        race_recipe(photos, "cpu", SearchConfig(), RaceConfig(train={"input_size": 40}))


def test_the_centre_is_what_is_measured():
    images = torch.arange(5 * 6).view(1, 1, 5, 6)
    assert centre(images, 3).flatten().tolist() == [7, 8, 9, 13, 14, 15, 19, 20, 21]
    assert centre(images, 0) is images
    assert centre(images, 9) is images


def test_head_and_body_have_rates_of_their_own(photos, recipe):
    training = Training(photos, Policy.named("none"), recipe, 0, CPU)
    set_rates([training], torch.tensor(training.rates_at(10**6, 1)))  # at the end of the cosine
    set_rates([training], torch.tensor(training.rates_at(1, 1)))
    rates = {id(p): float(group["lr"]) for group in training.optimiser.param_groups for p in group["params"]}
    head = rates[id(training.network.classifier.weight)]
    body = rates[id(training.network.body.conv_stem.weight)]
    assert body == pytest.approx(recipe.body_rate * head)
    assert isinstance(training.optimiser, torch.optim.AdamW)
    decays = {id(p): group["weight_decay"] for group in training.optimiser.param_groups for p in group["params"]}
    assert decays[id(training.network.classifier.bias)] == 0
    assert decays[id(training.network.classifier.weight)] == recipe.weight_decay


def test_a_linear_probe_leaves_the_body_alone(photos, recipe):
    training = Training(photos, Policy.named("none"), replace(recipe, freeze=True), 0, CPU)
    before = {name: tensor.clone() for name, tensor in training.network.state_dict().items()}
    set_rates([training], torch.tensor(training.rates_at(5, 5)))
    for batch in training.feed.epoch(0):
        training.step(*batch)
    changed = {name for name, tensor in training.network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}


def test_parts_of_a_batch_add_up_to_its_gradient(photos):
    recipe = TrainRecipe(network="small", batch_size=8, cutout=0, clip=0, precision="float32")
    gradients = []
    for parts in (1, 4):
        training = Training(photos, Policy.named("none"), replace(recipe, accumulate=parts), 0, CPU)
        training.network.eval()  # statistics of a batch are those of its parts otherwise
        images, labels = next(training.feed.epoch(0))
        training.step(images, labels)
        gradients.append([p.grad.clone() for p in training.network.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_the_mean_of_weights_is_what_is_measured(photos):
    recipe = TrainRecipe(network="small", batch_size=8, epochs=1, cutout=0, precision="float32", ema=0.5)
    training = Training(photos, Policy.named("none"), recipe, 0, CPU)
    start = training.network.classifier.weight.detach().clone()
    set_rates([training], torch.tensor(training.rates_at(10, 3)))
    training.step(*next(training.feed.epoch(0)))
    expected = 0.1 * start + 0.9 * training.network.classifier.weight.detach()
    assert torch.allclose(training.averaged.classifier.weight, expected, atol=1e-6)
    assert training.measure(photos) is not None
    assert training.forward is training.averaged
    trained = train(photos, photos, Policy.named("none"), recipe, device="cpu")
    assert not trained.network.classifier.weight.requires_grad  # the mean is what is kept, too


def test_the_mean_of_a_short_training_leaves_its_start_behind(photos):
    """The share of the past grows from 0.1 to the decay."""
    recipe = TrainRecipe(network="small", batch_size=8, cutout=0, precision="float32", ema=0.25)
    training = Training(photos, Policy.named("none"), recipe, 0, CPU)
    mean = training.averaged.classifier.weight.clone()
    set_rates([training], torch.tensor(training.rates_at(10, 3)))
    for share in (1 / 10, 2 / 11, 3 / 12, 0.25, 0.25):
        training.step(*next(training.feed.epoch(0)))
        mean = share * mean + (1 - share) * training.network.classifier.weight.detach()
        assert torch.allclose(training.averaged.classifier.weight, mean, atol=1e-6)
    assert any(tensor is training.steps_averaged for tensor in training.tensors())  # a captured step undoes its warm-up


@pytest.mark.parametrize("settings", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_mixed_batches_have_shares_of_classes(settings):
    recipe = TrainRecipe(**settings)
    images = torch.stack([torch.full((3, 16, 16), value, dtype=torch.uint8) for value in (0, 250)] * 4)
    labels = torch.tensor([0, 1] * 4)
    for seed in range(6):
        out, shares = mixed(images, labels, recipe, 2, torch.Generator().manual_seed(seed))
        assert shares.shape == (8, 2)
        assert torch.allclose(shares.sum(1), torch.ones(8))
        bright = out.float().mean((1, 2, 3)) / 250
        assert torch.allclose(bright, shares[:, 1], atol=0.01)  # as much of the label as of the image
    assert mixed(images, labels, TrainRecipe(), 2, torch.Generator())[1] is labels


def test_fine_tuning_learns_what_scratch_does_not(photos, recipe):
    tuned = train(photos, photos, Policy.named("none"), replace(recipe, epochs=8), device="cpu")
    assert tuned.error <= 10
    assert tuned.held_out_loss < 0.35


def test_a_resumed_fine_tuning_ends_with_the_same_weights(photos, recipe, tmp_path):
    from fasteraa.errors import OutOfTime

    recipe = replace(recipe, ema=0.9, epochs=3)  # the decay is still growing
    whole = train(photos, photos, Policy.named("none"), recipe, device="cpu")
    file = tmp_path / "run.pt"
    with pytest.raises(OutOfTime):
        train(photos, photos, Policy.named("none"), recipe, device="cpu", checkpoint=file, until=lambda: 0.0)
    resumed = train(photos, photos, Policy.named("none"), recipe, device="cpu", checkpoint=file)
    for one, other in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resumed.held_out_loss == whole.held_out_loss


def test_wrong_settings_are_named():
    for settings, message in (
        ({"optimizer": "lion"}, "unknown optimizer 'lion'"),
        ({"label_smoothing": 1.0}, "label_smoothing must be below 1"),
        ({"accumulate": 0}, "accumulate must be a number of at least 1"),
        ({"order": "last"}, "unknown order 'last'"),
    ):
        with pytest.raises(ConfigError, match=message):
            TrainRecipe(**settings)


def test_a_network_begins_with_one_of_its_weights_and_a_frozen_one_needs_some(photos, tmp_path):
    with pytest.raises(ConfigError, match="not both"):
        finetune_recipe(LITE0, pretrained=True, weights="w.pt")
    for options in ({"pretrained": True, "weights": "w.pt"}, {"train": {"freeze": True}}):
        with pytest.raises(ConfigError, match=r"not both|so the body needs weights"):
            fasteraa.compare(photos, "none", out=tmp_path / "run", network=LITE0, **options)
    assert check_body(TrainRecipe(freeze=True, pretrained=True)).freeze


def test_a_probe_computes_features_once_for_each_copy(photos, recipe):
    probe = replace(recipe, freeze=True, copies=2, epochs=5)
    training = Training(photos, Policy.named("trivialaugment-wide"), probe, 0, CPU)
    passed = []
    training.feed.features = lambda images: passed.append(len(images)) or training.features(images)
    for epoch in range(5):
        batches = list(training.feed.epoch(epoch))
        assert {batch.ndim for batch, _ in batches} == {2}
    assert len(passed) == 2 * training.feed.steps
    assert torch.equal(next(training.feed.epoch(0))[0], next(training.feed.epoch(4))[0])
    assert not torch.equal(next(training.feed.epoch(0))[0], next(training.feed.epoch(1))[0])


def test_a_probe_learns_the_head_that_is_measured(photos, recipe):
    probe = replace(recipe, freeze=True, copies=2, epochs=6, precision="float32")
    found = train(photos, photos, Policy.named("none"), probe, device="cpu")
    start = Training(photos, Policy.named("none"), probe, 0, CPU)
    assert not torch.equal(found.network.classifier.weight, start.network.classifier.weight)
    assert found.held_out_loss < start.measure(photos).loss
