"""Where images come from: folders, manifests, named sets, arrays, shards, Hugging Face, Python objects, a sample."""

from __future__ import annotations

from fasteraa.data.check import CheckReport, Duplicate, SplitCount, check
from fasteraa.data.image_set import ImageSet
from fasteraa.data.load import load
from fasteraa.data.named import NAMES
from fasteraa.data.paper_subsets import RECIPES, Recipe, recipe_for
from fasteraa.data.resolve import SAMPLE
from fasteraa.data.source import Broken

__all__ = [
    "NAMES",
    "RECIPES",
    "SAMPLE",
    "Broken",
    "CheckReport",
    "Duplicate",
    "ImageSet",
    "Recipe",
    "SplitCount",
    "check",
    "load",
    "recipe_for",
]
