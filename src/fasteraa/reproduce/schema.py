"""What a table is: lines, each one number, with what was measured elsewhere and how to do it again.

The policy of a line is a name, a search to make, or None where the paper quotes a system that is not searched for it.
`paper` is None where the paper has no number: in its figures, and for what we add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fasteraa.data import RECIPES
from fasteraa.methods.config import TRAIN_CHUNK, paper_settings
from fasteraa.train.recipe import PAPER, TrainRecipe

OURS = "Faster AA"
NORM_FREE = f"{OURS}, norm-free critic"  # the paper's objective with our critic and a draw for each image


def paper_search(source: str = "cifar10") -> Mapping[str, Any]:
    """The paper's settings, but for cutout, which reaches half of the side as by default (the paper: a fifth).

    Committed searches were made so, and are found by their settings.
    """
    return MappingProxyType({name: value for name, value in paper_settings(source).items() if name != "spans"})


FULL = paper_search()


@dataclass(frozen=True)
class DataSet:
    """What networks are trained on."""

    source: str  # a named set
    classes: int
    split: str = "train"
    subset: int | None = None
    size: int | None = None
    whole: int | None = None  # images of that split, where all of them are meant and the paper has numbers

    @property
    def images(self) -> int | None:
        """How many are to be trained on, as far as that is known."""
        return self.subset or self.whole


DATA = {
    "cifar10": DataSet("cifar10", 10, whole=50_000),
    "cifar100": DataSet("cifar100", 100, whole=50_000),
    "svhn": DataSet("svhn", 10, "train+extra", whole=604_388),
    "reduced-cifar10": DataSet("cifar10", 10, subset=4_000),
    "imagenet": DataSet("imagenet", 1_000, size=224, whole=1_281_167),
    "reduced-cifar100": DataSet("cifar100", 100, subset=4_000),
    "reduced-svhn": DataSet("svhn", 10, subset=1_000),
    **{f"fashion-{count}": DataSet("fashion-mnist", 10, subset=count) for count in (300, 1_000, 4_000)},
    "imagenette-1000": DataSet("imagenette", 10, subset=1_000, size=64),
    "ants-and-bees": DataSet("ants-and-bees", 2, size=64),
}


@dataclass(frozen=True, kw_only=True)
class Search:
    """A policy to find, one for every seed, all on the same images."""

    source: str  # a named set
    images: int | None = None  # all of them by default
    classes: int | None = None
    size: int | None = None
    settings: Mapping[str, Any] = field(
        default_factory=lambda: FULL
    )  # of SearchConfig, where they are not its defaults
    methods: tuple[str, ...] = ("faster-aa",)
    minutes: float = 0.0  # what the methods may take; 0 for as long as they need
    per_seed: bool = True  # False: one search, with whose policy every seed trains
    keep: int | None = None  # train with so many of the sub-policies, drawn by the seed
    race_minutes: float = 0.0  # of the race after the search; 0 for none

    @property
    def planned(self) -> int | None:
        """How many images are to be searched on, as far as that is known."""
        return self.images or (DATA[self.source].whole if self.source in DATA else None)

    @property
    def budgeted(self) -> bool:
        """Whether methods are asked as `fasteraa search` asks them, with a budget, and one answer is kept."""
        return not self.per_seed


@dataclass(frozen=True)
class Cost:
    """What a method costs as published, extrapolated from the searches of the table with so many minutes."""

    method: str
    minutes: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One number of the paper."""

    data: str  # of DATA
    policy: str | Search | Cost | None
    label: str
    paper: float | None
    recipe: str = ""  # of find_recipe; empty where the search itself is measured
    measure: str = "error"  # or error_top5, or hours (of the search)
    x: float | None = None  # place in a figure
    note: str = ""

    @property
    def network(self) -> str:
        """The network that the recipe trains."""
        return find_recipe(self.recipe).network if self.recipe else ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure, as data."""

    name: str
    title: str
    lines: tuple[Line, ...]
    unit: str = "error %"
    axis: str = ""  # of a figure
    logarithmic: bool = False
    beside: tuple[str, ...] = ()  # other tables that belong to it, in the order in which they are made
    best_of: tuple[str, int] | None = None  # of the methods with a budget only so many: the best in another table
    ranked: bool = False  # the same policies on several data sets: say which is better


def search_on(source: str, **settings: Any) -> Search:
    """The paper's search on a data set: its number of images, L = 10, K = 2, unless said otherwise."""
    subset = RECIPES[source]
    size = subset.size if source == "imagenet" else None
    return Search(
        source=source,
        images=subset.subset,
        classes=subset.classes,
        size=size,
        settings=MappingProxyType({**paper_search(source), **settings}),
    )


def _small_set(**settings: Any) -> TrainRecipe:
    """Few images: small batches, no cutout beside the policy. Ours; the weight decay is WRN-28-10's."""
    defaults = {"network": "wrn-16-2", "batch_size": 64, "learning_rate": 0.05, "weight_decay": 5e-4, "cutout": 0}
    return TrainRecipe(**{**defaults, **settings})


# for the sets that the paper does not have
OWN_RECIPES: dict[str, TrainRecipe] = {
    "fashion-300/wrn-16-2": _small_set(epochs=240),
    "fashion-1000/wrn-16-2": _small_set(epochs=100),
    "fashion-4000/wrn-16-2": _small_set(epochs=60),
    # the paper's learning rate of 0.01 is for 600,000 images: in 200 epochs of 1,000 it got down to 50% errors
    "svhn-1000/wrn-40-2": _small_set(network="wrn-40-2", epochs=200, flip=False),
    "photos/wrn-16-4": _small_set(network="wrn-16-4", epochs=200),
}


CHUNKED = "/chunks"  # at the end of a recipe's name: as the paper trains with policies of its own search


def with_norm_free_critic(table: Table) -> Table:
    """With our critic in the paper's search: without batch norm, and every image draws for itself, in training too."""
    return replace(table, title=f"{table.title}, norm-free critic", lines=tuple(map(_norm_free, table.lines)))


def _norm_free(line: Line) -> Line:
    if not isinstance(line.policy, Search) or line.policy.settings.get("critic_norm") != "batch":
        return line
    ours = MappingProxyType({**line.policy.settings, "critic_norm": "none", "chunk_size": 1})
    label = line.label if NORM_FREE in line.label else line.label.replace(OURS, NORM_FREE, 1)
    policy = replace(line.policy, settings=ours)
    return replace(line, policy=policy, label=label, recipe=line.recipe.removesuffix(CHUNKED))


def find_recipe(name: str) -> TrainRecipe:
    plain = name.removesuffix(CHUNKED)
    recipe = OWN_RECIPES[plain] if plain in OWN_RECIPES else PAPER[plain]
    return recipe if plain == name else replace(recipe, chunk_size=TRAIN_CHUNK)
