"""The learning rate of each policy from a small grid, for all in the same way, on held-out training images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fasteraa.comparison.contenders import Contender
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Runner, Say
from fasteraa.train.split import Split
from fasteraa.train.tune import tuned


def tuned_each(
    runner: Runner, split: Split, recipe: TrainRecipe, contenders: Sequence[Contender], say: Say, seed: int = 0
) -> list[Contender]:
    """Every contender with the rate that is best for its policy, of several for the first."""
    rates = {}
    for each in contenders:
        best = tuned(runner, split, recipe, _naming(each.label, say), seed, policy=each.policy(0))
        rates[each.label] = best.learning_rate
    return [replace(each, learning_rate=rates[each.label]) for each in contenders]


def _naming(label: str, say: Say) -> Say:
    """Lines that begin with the label."""
    return lambda text: say(f"{label}: {text}")
