"""How much of each data set the paper searches on (its table of data set sizes)."""

from __future__ import annotations

from dataclasses import dataclass

from fasteraa.errors import DataError, choices_hint


@dataclass(frozen=True)
class Recipe:
    """Arguments of `load`."""

    subset: int
    classes: int | None
    size: int


# What the paper searches on, by the name of the data set.
RECIPES = {
    "cifar10": Recipe(subset=4_000, classes=None, size=32),
    "cifar100": Recipe(subset=4_000, classes=None, size=32),
    "svhn": Recipe(subset=1_000, classes=None, size=32),
    # The paper gives no size for the search on ImageNet; 224 is what ResNet-50 is trained at.
    "imagenet": Recipe(subset=6_000, classes=120, size=224),
}


def recipe_for(name: str) -> Recipe:
    """The paper's recipe for a named data set."""
    if name not in RECIPES:
        raise DataError(f"the paper has no recipe for {name!r}; {choices_hint(name, RECIPES)}")
    return RECIPES[name]
