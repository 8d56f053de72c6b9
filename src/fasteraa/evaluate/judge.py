"""The network that judges operations: trained without a policy, kept beside the cells."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteraa.errors import RunError
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.compare import Contender, cells_of, run_cell, why_diverged
from fasteraa.evaluate.harm import Judge
from fasteraa.evaluate.listed import Images, ListedSet
from fasteraa.evaluate.loader import MEASURED
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.nets import build
from fasteraa.policy.named import named
from fasteraa.search.run import find_device
from fasteraa.search.step import Normalise

_MOST = {"cpu": 1_000, "cuda": 5_000}  # held-out images that are judged: enough for intervals of a point or two


def judge_of(arena: Arena, recipe: TrainRecipe) -> Judge:
    """Train `none` with seed 0 (or load it, if that was done before) and let it judge the held-out images."""
    (cell,) = cells_of([Contender("none", (named("none"),))], recipe, [0])
    file = arena.folder / "networks" / f"none-0-{cell.key(arena.data, arena.held_out)}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        if why := why_diverged(run_cell(arena, cell, keep_network=file)):
            raise RunError(f"there is no network to judge operations with, none, seed 0: {why}")
    device = find_device(arena.device)
    network = build(recipe.network, len(arena.data.classes), min(arena.data.size))
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:
        raise RunError(f"the network {str(file)!r} cannot be read: remove it to train it again") from error
    network = network.to(device).eval()
    normalise = Normalise.of(_images(arena.data)).to(device)

    def guess(images: Tensor) -> Tensor:
        logits: Tensor = network(normalise(images.float() / 255))
        return logits.argmax(1)

    most = _MOST.get(device.type, 1_000)
    judged = arena.held_out.subset(most, 0) if len(arena.held_out) > most else arena.held_out
    judged = judged.decoded() if isinstance(judged, ListedSet) else judged
    return Judge(guess, judged.images.to(device), judged.labels.to(device))


def _images(data: Images) -> Tensor:
    """What a feed takes mean and spread from."""
    return data.sample(MEASURED) if isinstance(data, ListedSet) else data.images
