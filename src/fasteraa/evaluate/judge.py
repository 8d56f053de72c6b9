"""The network that judges operations: trained without a policy, kept beside the cells."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteraa.errors import RunError
from fasteraa.evaluate.compare import Arena, Contender, cells_of, run_group
from fasteraa.evaluate.harm import Judge
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
        run_group(arena, [cell], keep_network=file)
    device = find_device(arena.device)
    network = build(recipe.network, len(arena.data.classes), min(arena.data.size))
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:
        raise RunError(f"the network {str(file)!r} cannot be read ({error}): remove it to train it again") from error
    network = network.to(device).eval()
    normalise = Normalise.of(arena.data.images)
    normalise = Normalise(normalise.mean.to(device), normalise.std.to(device))

    def guess(images: Tensor) -> Tensor:
        logits: Tensor = network(normalise(images.float() / 255))
        return logits.argmax(1)

    most = _MOST.get(device.type, 1_000)
    judged = arena.held_out.subset(most, 0) if len(arena.held_out) > most else arena.held_out
    return Judge(guess, judged.images.to(device), judged.labels.to(device))
