"""The network that judges operations: trained without a policy, kept beside the cells."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from torch import Tensor

from fasteraa.errors import RunError, Stopped
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.compare import Cell, Contender, cells_of, run_cell, why_diverged
from fasteraa.evaluate.harm import Judge
from fasteraa.evaluate.listed import Images, ListedSet
from fasteraa.evaluate.loader import MEASURED
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.trainer import Until
from fasteraa.nets import build
from fasteraa.policy.named import named
from fasteraa.search.folder import named_trouble
from fasteraa.search.run import find_device
from fasteraa.search.step import Normalise

_MOST = {"cpu": 1_000, "cuda": 5_000}  # held-out images that are judged: enough for intervals of a point or two


def judge_of(arena: Arena, recipe: TrainRecipe, until: Until | None = None) -> Judge:
    """Train `none` with seed 0 (or load it, if that was done before) and let it judge the held-out images.

    OutOfTime if the moment `until` (time.time()) comes before the network is trained; it goes on next time.
    """
    (cell,) = cells_of([Contender("none", (named("none"),))], recipe, [0])
    file = arena.folder / "networks" / f"none-0-{cell.key(arena.data, arena.held_out)}.pt"
    if not file.exists():
        _train(arena, cell, file, until)
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


def _train(arena: Arena, cell: Cell, file: Path, until: Until | None) -> None:
    with named_trouble(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    try:
        record = run_cell(arena, cell, keep_network=file, until=until)
    except KeyboardInterrupt as error:
        raise Stopped(
            "stopped while a network was trained that judges operations: give the same command again to go on",
            next(iter(error.args), signal.SIGINT),
        ) from None
    if why := why_diverged(record):
        raise RunError(f"there is no network to judge operations with, none, seed 0: {why}")


def _images(data: Images) -> Tensor:
    """What a feed takes mean and spread from."""
    return data.sample(MEASURED) if isinstance(data, ListedSet) else data.images
