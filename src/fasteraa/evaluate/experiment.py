"""Before a race: short trainings that tell which operations help on these images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.compare import Cell, read_cell, why_diverged
from fasteraa.evaluate.effects import Effects, drawn, fit
from fasteraa.evaluate.recipe import TrainRecipe

FEWEST, MOST = 18, 54  # trainings; fewer tell too little, more are better spent on the race
_SHARE = 0.5  # of the time that there is


def affordable(seconds: float, epoch: float, wanted: int, most: int, folds: int) -> tuple[int, int]:
    """Trainings and their epochs, when a run's epoch costs `epoch` seconds; none if fewer epochs than wanted are left.

    Each fold has as many.
    """
    runs = math.floor(_SHARE * seconds / (wanted * max(epoch, 1e-9)))
    runs = min(runs, MOST) // folds * folds
    if runs < FEWEST:
        return 0, 0
    return runs, min(most, math.floor(_SHARE * seconds / (runs * max(epoch, 1e-9))))


def cells_of_experiment(
    arenas: Sequence[Arena], ops: Sequence[str], recipe: TrainRecipe, count: int, seed: int
) -> list[tuple[Arena, Cell]]:
    """Policies drawn at random, as many on each fold.

    Of few operations there are few policies: one that a fold had before has another seed, else it would be the same
    training, counted twice.
    """
    runs, had = [], Counter[tuple[str, int]]()
    for number, policy in enumerate(drawn(count, ops, seed)):
        fold = number % len(arenas)
        start = seed + fold + len(arenas) * had[policy.hash, fold]
        had[policy.hash, fold] += 1
        runs.append((arenas[fold], Cell(f"drawn {number}", policy, recipe, start)))
    return runs


_Record = tuple[Arena, Cell, dict[str, Any] | None]


def read_experiment(
    runs: Sequence[tuple[Arena, Cell]], ops: Sequence[str]
) -> tuple[Effects, dict[str, Effects]] | None:
    """By all trainings, and for each fold by those on the others; None if most of either diverged."""
    records = [(arena, cell, read_cell(arena, cell)) for arena, cell in runs]
    effects = _effects(records, ops)
    folds = dict.fromkeys(arena.held_out_from for arena, _ in runs)
    without = {fold: _effects([each for each in records if each[0].held_out_from != fold], ops) for fold in folds}
    known = {fold: each for fold, each in without.items() if each is not None}
    return None if effects is None or len(known) < len(folds) else (effects, known)


def _effects(records: Sequence[_Record], ops: Sequence[str]) -> Effects | None:
    sound = [(arena, cell, record) for arena, cell, record in records if record and not why_diverged(record)]
    if 2 * len(sound) < len(records):
        return None
    return fit(
        [cell.policy for _, cell, _ in sound],
        # what is less than one image of all adds is luck: where there are no errors, logarithms would make much of it
        [max(record["held_out_loss"], 1 / len(arena.held_out)) for arena, _, record in sound],
        [arena.held_out_from for arena, _, _ in sound],
        ops,
    )
