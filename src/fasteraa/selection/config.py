"""The settings of a race: its budget, and the training that judges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.settings import Settings, setting, toml_value

if TYPE_CHECKING:
    from fasteraa.data import ImageSet
    from fasteraa.train.recipe import TrainRecipe

_QUICK_NETWORK = "wrn-16-2"  # on a GPU: many epochs tell more than a large network
_QUICK_SIDE = 128  # up to which it is quick; above, the network for CPUs takes its place
_GPU_EPOCHS = 200  # where the budget allows; the recipe of the small network is one for CPUs
_GPU_STEPS = 1_200  # the same
_MANY_IMAGES = 2_000  # from which on batches are twice as large


@dataclass(frozen=True, kw_only=True)
class RaceConfig(Settings):
    """How a search ends. `about` of each field is its help on the command line."""

    minutes: float = setting(1.5, "What the race may take, trainings of methods included.", above=0)
    trainings: int | None = setting(
        None, "A number of trainings instead of minutes: then the same seed gives the same policy.", least=2
    )
    network: str | None = setting(None, "What is trained: the network that you will train, if it is a small one.")
    pretrained: bool = setting(False, "Fine-tune timm's own weights of the network (--network timm:NAME).")
    weights: str = setting("", "Fine-tune the weights in this file (.safetensors, or a state dict of torch.save).")
    epochs: int | None = setting(None, "How long a training is at most: as long as yours will be.", least=1)
    train: Mapping[str, Any] = field(default_factory=dict, metadata={"about": "Other settings of the training."})

    @property
    def fine_tunes(self) -> bool:
        """Whether the training begins with weights of another task."""
        return self.pretrained or bool(self.weights)

    def _converted(self, name: str, value: Any) -> Any:
        if name != "train":
            return super()._converted(name, value)
        if not isinstance(value, Mapping):
            raise ConfigError(f"train must be a table of settings, got {value!r}")
        from fasteraa.train.recipe import TrainRecipe

        TrainRecipe.make(value)  # a wrong name or value is noticed here
        return dict(value)


def race_recipe(data: ImageSet, device: str, config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """That of the training which is to come, where `network` and `epochs` say so, with the search's crop and flip.

    Otherwise of a network that is trained for many epochs within the time of a race.
    """
    from fasteraa.runtime.device import find_device
    from fasteraa.train.recipe import choose_recipe

    if race.fine_tunes:
        return fine_tuning(config, race)
    on_cpu, side = find_device(device).type == "cpu", min(data.size)
    quick = "small" if on_cpu or side > _QUICK_SIDE else _QUICK_NETWORK
    recipe = choose_recipe(len(data), side, device, race.network or quick)
    if not on_cpu:
        if race.network is None:
            recipe = _in_large_batches(recipe, len(data))
        recipe = _long_enough(recipe, len(data))
    recipe = replace(recipe, epochs=race.epochs or recipe.epochs, cutout=0, crop=config.crop, flip=config.flip)
    return replace(recipe, **race.train)


def fine_tuning(config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """The training that is to come, as it is: crop and flip come with it, for every policy."""
    from fasteraa.train.recipe import finetune_recipe

    if race.network is None:
        raise ConfigError("--pretrained and --weights need the network that they are for: --network timm:NAME")
    recipe = finetune_recipe(race.network, pretrained=race.pretrained, weights=race.weights, side=config.size)
    return replace(recipe, epochs=race.epochs or recipe.epochs, flip=config.flip, **race.train)


def _long_enough(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Few images make few steps of an epoch: more epochs."""
    from fasteraa.methods.task import FOLDS

    steps = max(images * (FOLDS - 1) // FOLDS // recipe.batch_size, 1)
    return replace(recipe, epochs=max(recipe.epochs, _GPU_EPOCHS, math.ceil(_GPU_STEPS / steps)))


def _in_large_batches(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Where there are many images, which a GPU gets through faster that way."""
    if images < _MANY_IMAGES:
        return recipe
    return replace(recipe, batch_size=2 * recipe.batch_size, learning_rate=2 * recipe.learning_rate)


def write_settings(folder: RunFolder, config: SearchConfig, race: RaceConfig | None, methods: Sequence[str]) -> None:
    """config.toml: from here on the folder holds a run."""
    text = (
        config.toml("search")
        + "\n"
        + f"[run]\nmethods = {toml_value(list(methods))}\nrace = {toml_value(race is not None)}\n"
    )
    if race is not None:
        text += "\n" + replace(race, train={}).toml("race")
        rows = "".join(f"{name} = {toml_value(value)}\n" for name, value in race.train.items())
        text += f"\n[train]\n{rows}" if rows else ""
    folder.write_config(text)
