"""On how many sets of results/ a search is better than no augmentation and than TrivialAugment: for docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from fasteraa.cli.tables import markdown_table

RESULTS = Path(__file__).resolve().parent.parent / "results"
NONE, TRIVIAL = "none", "trivialaugment-wide"
BySeed = dict[str, float]
Errors = list[BySeed]  # of the search's policy, of none, of TrivialAugment
COLUMNS = [
    "sets, searched on",
    "better than none / the same / worse",
    "better than TrivialAugment / the same / worse",
    "n",
]


def table() -> str:
    rows = [
        ("[eight](../results/quality/README.md), a GPU; the prior was set from seven of them", _quality()),
        (
            "[twelve](../results/unseen/README.md#when-the-twelve-sets-were-drawn) that nothing was tuned on, a CPU",
            _unseen("errors-five-later-sets.json", "errors-seven-last-sets.json"),
        ),
        (
            "[thirteen](../results/unseen/README.md) of other kinds, a GPU; each left out of the prior",
            _zoo("searched on a GPU"),
        ),
        ("the same thirteen, two CPU cores", _zoo("searched on two cores")),
        (
            "[seven](../results/unseen/README.md#the-first-seven-sets) on a CPU, with an earlier race, fixed since",
            _unseen("errors.json"),
        ),
        ("[eight fine-tunings](../results/finetune/README.md), a GPU, a race without a prior", _fine_tunings()),
    ]
    return markdown_table(COLUMNS, [_row(words, list(sets)) for words, sets in rows])


def counts(sets: list[Errors], other: int) -> tuple[int, int, int]:
    """Sets where the mean error is lower, the same, higher than the other's: on the seeds that both have."""
    gaps = []
    for errors in sets:
        ours, theirs = errors[0], errors[other]
        gaps.append(round(fmean(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()), 6))
    return sum(gap < 0 for gap in gaps), gaps.count(0), sum(gap > 0 for gap in gaps)


def _row(words: str, sets: list[Errors]) -> list[str]:
    seeds = sorted({len(of) for errors in sets for of in errors})
    against = [" / ".join(map(str, counts(sets, other))) for other in (1, 2)]
    return [words, *against, str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"]


def _read(*parts: str) -> Any:
    return json.loads(RESULTS.joinpath(*parts).read_text(encoding="utf-8"))


def _quality() -> Iterator[Errors]:
    lines = _read("quality", "table.json")["lines"]
    values = {(line["data"], line["label"]): line["values"] for line in lines}
    for data in dict.fromkeys(line["data"] for line in lines):
        yield [values[data, label] for label in ("search and race", "none", "TrivialAugment (wide)")]


def _unseen(*files: str) -> Iterator[Errors]:
    """A set of errors.json has no search."""
    for each in (each for name in files for each in _read("unseen", name).values()):
        if each["chosen"]:
            yield [each["errors"][label] for label in (each["chosen"], NONE, TRIVIAL)]


def _zoo(how: str) -> Iterator[Errors]:
    for each in _read("unseen", "zoo.json")["sets"].values():
        by_label: dict[str, BySeed] = {}
        for row in each["rows"]:
            by_label.setdefault(row["label"], {})[row["seed"]] = row["error"]
        yield [by_label[label] for label in (how, NONE, TRIVIAL)]


def _fine_tunings() -> Iterator[Errors]:
    for each in _read("finetune", "table.json").values():
        yield [each["table"][label]["errors"] for label in ("raced", NONE, TRIVIAL)]
