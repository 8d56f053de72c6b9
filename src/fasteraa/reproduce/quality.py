"""Does it help? The table that decides what the defaults are: every way to get a policy, on several kinds of data.

The searches and the race see the training images of the line alone, which are those the network is trained on.
"""

from __future__ import annotations

from typing import Any

from fasteraa.reproduce.schema import DATA, NORM_FREE, OURS, Line, Search, Table, find_recipe

RACED = "search and race"
MINUTES = 1.5  # of the race

# data set -> (recipe, AutoAugment's policy for it)
_SETS = {
    "reduced-cifar10": ("cifar/wrn-28-10", "autoaugment-cifar10"),
    "reduced-cifar100": ("cifar/wrn-40-2", "autoaugment-cifar10"),
    "reduced-svhn": ("svhn-1000/wrn-40-2", "autoaugment-svhn"),
    "fashion-300": ("fashion-300/wrn-16-2", None),
    "fashion-1000": ("fashion-1000/wrn-16-2", None),
    "fashion-4000": ("fashion-4000/wrn-16-2", None),
    "imagenette-1000": ("photos/wrn-16-4", "autoaugment-imagenet"),
    "ants-and-bees": ("photos/wrn-16-4", "autoaugment-imagenet"),
}
_PAPER = {
    ("reduced-cifar10", "none"): 24.3,
    ("reduced-cifar10", "cutout"): 22.5,
    ("reduced-cifar10", "AutoAugment"): 14.1,
}


def _search(data: str, recipe: str, race_minutes: float = 0.0, **settings: Any) -> Search:
    images, flip = DATA[data], find_recipe(recipe).flip
    settings |= {"critic": "wrn-40-2"} | ({} if flip else {"flip": False})  # as the network is trained
    if (images.subset or 0) <= 1_000:
        settings |= {"batch_size": 64}  # few images
    return Search(
        source=images.source, images=images.subset, size=images.size, settings=settings, race_minutes=race_minutes
    )


def _lines(data: str, recipe: str, autoaugment: str | None) -> list[Line]:
    policies: dict[str, str | Search] = {
        "none": "none",
        "cutout": "cutout",
        "RandAugment (2, 14)": "randaugment(2,14)",
        "TrivialAugment (wide)": "trivialaugment-wide",
        "uniform": "uniform",
        "random": "random",
        NORM_FREE: _search(data, recipe, objective="paper"),
        f"{OURS}, floor on diversity": _search(data, recipe, objective="diverse"),
        RACED: _search(data, recipe, race_minutes=MINUTES),
    }
    if autoaugment is not None:
        policies["AutoAugment"] = autoaugment
    return [
        Line(data=data, recipe=recipe, label=label, policy=policy, paper=_PAPER.get((data, label)))
        for label, policy in policies.items()
    ]


QUALITY = Table(
    name="quality",
    title="What helps on which data",
    lines=tuple(line for data, (recipe, policy) in _SETS.items() for line in _lines(data, recipe, policy)),
    ranked=True,
)
