"""The training that judges policies in a race: the one that is to come, or one that a race has the time for."""

from __future__ import annotations

import math
from dataclasses import replace

from fasteraa.data import ImageSet
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.task import FOLDS
from fasteraa.runtime.device import find_device
from fasteraa.selection.config import RaceConfig
from fasteraa.train.recipe import (
    TrainRecipe,
    check_input,
    choose_recipe,
    finetune_recipe,
    finetuned_on,
    with_settings,
)

_QUICK_NETWORK = "wrn-16-2"  # on a GPU: many epochs tell more than a large network
_QUICK_SIDE = 128  # up to which it is quick; above, the network for CPUs takes its place
_GPU_EPOCHS = 200  # where the budget allows; the recipe of the small network is one for CPUs
_GPU_STEPS = 1_200  # the same
_CPU_EPOCHS = 100  # a policy for these does well after half and after twice as many: results/adapt
_COPIES = 4  # augmented, of every image, for a probe
_MANY_IMAGES = 2_000  # from which on batches are twice as large


def race_recipe(data: ImageSet, device: str, config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """That of the training which is to come, where `network` and `epochs` say so, with the search's crop and flip.

    Otherwise of a network that is trained for many epochs within the time of a race.
    """
    if race.fine_tunes:
        recipe = suiting(fine_tuning(config, race), _of_a_fold(len(data)), race)
    else:
        recipe = _from_scratch(data, device, config, race)
    check_input(recipe, data.size, data.name)
    return recipe


def suiting(recipe: TrainRecipe, images: int, race: RaceConfig) -> TrainRecipe:
    """A fine-tuning with epochs and batches that suit so many training images, where none are asked for."""
    if not recipe.fine_tunes:
        return recipe
    return finetuned_on(recipe, images, (*race.train, "epochs") if race.epochs else race.train)


def _of_a_fold(images: int) -> int:
    """Training images, where a fold of all is held out."""
    return max(images * (FOLDS - 1) // FOLDS, 1)


def _from_scratch(data: ImageSet, device: str, config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    on_cpu, side = find_device(device).type == "cpu", min(data.size)
    quick = "small" if on_cpu or side > _QUICK_SIDE else _QUICK_NETWORK
    recipe = choose_recipe(len(data), side, device, race.network or quick)
    if not on_cpu:
        if race.network is None:
            recipe = _in_large_batches(recipe, len(data))
        recipe = _long_enough(recipe, len(data))
    elif race.network is None:  # of the training to come nothing is known
        recipe = replace(recipe, epochs=max(recipe.epochs, _CPU_EPOCHS))
    recipe = replace(recipe, epochs=race.epochs or recipe.epochs, cutout=0, crop=config.crop, flip=config.flip)
    return with_settings(recipe, race.train)


def fine_tuning(config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """The training that is to come, as it is: crop and flip come with it, for every policy."""
    network = race.network or "auto"
    recipe = finetune_recipe(network, pretrained=race.pretrained, weights=race.weights, side=config.size)
    recipe = replace(recipe, epochs=race.epochs or recipe.epochs, flip=config.flip)
    recipe = with_settings(recipe, race.train)
    return probing(recipe) if race.judge == "probe" else recipe


def probing(recipe: TrainRecipe) -> TrainRecipe:
    """A head on the features of a few augmented copies: many times cheaper, and blind to what the body would learn."""
    return replace(recipe, freeze=True, copies=_COPIES, mixup=0.0, cutmix=0.0, accumulate=1)


def _long_enough(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Few images make few steps of an epoch: more epochs."""
    steps = max(_of_a_fold(images) // recipe.batch_size, 1)
    return replace(recipe, epochs=max(recipe.epochs, _GPU_EPOCHS, math.ceil(_GPU_STEPS / steps)))


def _in_large_batches(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Where there are many images, which a GPU gets through faster that way."""
    if images < _MANY_IMAGES:
        return recipe
    return replace(recipe, batch_size=2 * recipe.batch_size, learning_rate=2 * recipe.learning_rate)
