"""How good a policy is: train with it, compare it with others, see what hurts."""

from __future__ import annotations

from fasteraa.evaluate.compare import Comparison, Contender, Row, compare
from fasteraa.evaluate.recipe import PAPER, TrainRecipe, default_recipe, paper_recipe
from fasteraa.evaluate.trainer import Trained, train

__all__ = [
    "PAPER",
    "Comparison",
    "Contender",
    "Row",
    "TrainRecipe",
    "Trained",
    "compare",
    "default_recipe",
    "paper_recipe",
    "train",
]
