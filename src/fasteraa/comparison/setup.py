"""What `compare` and `evaluate` train: the images, the recipe that every policy gets, and the runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fasteraa._version import __version__
from fasteraa.data.decode import CPU_SIDE
from fasteraa.data.large import HELD, tell
from fasteraa.errors import ConfigError
from fasteraa.runtime.device import device_name, find_device, first_device
from fasteraa.runtime.ranks import ALONE, Ranks, launched, open_ranks, rank_device
from fasteraa.train.recipe import (
    TrainRecipe,
    check_body,
    check_input,
    check_network,
    choose_recipe,
    epochs_words,
    finetune_recipe,
    finetuned_on,
    image_side,
    interpolation,
    with_settings,
)
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Engine, Runner, make_runner
from fasteraa.train.split import Split, open_split


@dataclass(frozen=True)
class Setup:
    """Ready to train."""

    runner: Runner
    split: Split
    recipe: TrainRecipe
    device: str
    ranks: Ranks = ALONE  # of torchrun, which share every training; the first alone writes and says something

    def train_along(self) -> Any:
        """For all ranks but the first, which `tell_end` of what it returns."""
        from fasteraa.train.runner.shared import train_along

        return train_along(self.ranks, self.split, self.device)

    def tell_end(self, result: Any) -> None:
        from fasteraa.train.runner.shared import tell_end

        tell_end(self.ranks, result)

    def words(self, count: int) -> str:
        """What comes, when there are so many runs."""
        (height, width), train = self.split.train.size, self.split.train
        what = f"{count} run{'s' * (count != 1)} of {self.recipe.network_words} for {epochs_words(self.recipe.epochs)}"
        return (
            f"{train.name}: {len(train)} images at {height}x{width}, {what} on {device_name(self.device)}; measured "
            f"on {len(self.split.held_out)} images ({self.split.name})"
        )


@contextmanager
def set_up(
    source: Any,
    folder: Path,
    trainer: Engine,
    *,
    recipe: TrainRecipe | None = None,
    network: str = "auto",
    pretrained: bool = False,
    weights: str = "",
    train: Mapping[str, Any] | None = None,
    command: str | None = None,
    **data: Any,
) -> Iterator[Setup]:
    """`network` is for where there is no `recipe`; `train` changes settings of either. `data` goes to `open_split`."""
    if recipe is not None:
        check_network(recipe, network)
    check_shareable(trainer)
    trainer.check()
    device = rank_device(first_device(trainer.device, trainer.devices))
    cache = RunCache(folder)
    with open_ranks(find_device(device)) as ranks, _runner(trainer, cache, command, ranks, device) as runner:
        if ranks.joined:
            tell(f"{ranks.words()} share every batch of each training")
        finetuning, data = open_finetuning(network, pretrained, weights, train or {}, data)
        recipe = finetuning or recipe
        largest = CPU_SIDE if find_device(device).type == "cpu" else None  # as a search has it
        split = open_split(source, folder=folder, large=HELD, **{"largest": largest, **data})
        if recipe is None:
            recipe = choose_recipe(len(split.train), min(split.train.size), device, network)
            check_network_builds(recipe.network, min(split.train.size), False, "")
        if finetuning is not None:
            recipe = finetuned_on(recipe, len(split.train), train or {})
        recipe = check_body(with_settings(recipe, train or {}))
        check_input(recipe, split.train.size, split.train.name)
        ranks.check_alike(_facts(recipe, split))
        ranks.check_shares(min(recipe.batch_size, len(split.train)), recipe.accumulate)
        if ranks.is_first:
            cache.open()
        yield Setup(runner, split, recipe, device, ranks)


def _runner(trainer: Engine, cache: RunCache, command: str | None, ranks: Ranks, device: str) -> Runner:
    if ranks.joined:
        from fasteraa.train.runner.shared import SharedRunner

        return SharedRunner(cache, ranks, device, command)
    return make_runner(trainer.name, cache, **trainer.settings, command=command)


def check_shareable(trainer: Engine) -> None:
    """Under torchrun there is one engine: the ranks."""
    given = {"--engine": trainer.name != "local" and trainer.name, "--devices": trainer.devices, "--jobs": trainer.jobs}
    if launched() and (wrong := [f"{flag} {value}" for flag, value in given.items() if value]):
        raise ConfigError(
            f"torchrun's ranks share every training, a GPU each, so {wrong[0]} has no place: leave it out, or start "
            "the command without torchrun"
        )


def _facts(recipe: TrainRecipe, split: Split) -> dict[str, object]:
    """What all ranks must have in common; what is trained is for the first to say."""
    train, held_out = split.fingerprints
    versions = {"version of fasteraa": __version__, "version of torch": torch.__version__}
    weights = {"content of weights": recipe.key} if recipe.weights else {}
    return {**versions, **recipe.plain(), **weights, "training images": train, "held-out images": held_out}


def check_network_builds(network: str, size: int | None, pretrained: bool, weights: str) -> None:
    """Once, without images: weights that do not fit, unknown names and sizes are noticed here."""
    from fasteraa.nets import build
    from fasteraa.nets.timm import PREFIX, check_size
    from fasteraa.runtime.seeds import seeded

    with seeded(0):
        made = build(network, 2, size, pretrained=pretrained, weights=weights or None)
    if size is not None and network.startswith(PREFIX):
        check_size(made, network, size)


def open_finetuning(
    network: str, pretrained: bool, weights: str, train: Mapping[str, Any], data: Mapping[str, Any]
) -> tuple[TrainRecipe | None, dict[str, Any]]:
    """The recipe that begins with weights and how its images are read; None and the same where none are asked for."""
    if not (pretrained or weights):
        return None, dict(data)
    recipe = finetune_recipe(network, pretrained=pretrained, weights=weights, side=data.get("size"))
    recipe = with_settings(recipe, train)
    check_network_builds(network, recipe.input_size or None, pretrained, weights)
    return recipe, {**data, "size": image_side(recipe), "interpolation": interpolation(recipe)}
