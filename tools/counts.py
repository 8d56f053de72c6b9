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
ON_GPU, ON_CORES = "searched on a GPU", "searched on two cores"
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
        (
            "[twelve cuts](../results/unseen/README.md#twelve-cuts-of-usual-sets) of usual sets, two CPU cores",
            _independent(),
        ),
        ("[eight usual ones](../results/quality/README.md), a GPU; the prior was set from seven of them", _quality()),
        ("[thirteen of other kinds](../results/unseen/README.md), a GPU; races short of time", _zoo(ON_GPU)),
        ("the same thirteen, two CPU cores", _zoo(ON_CORES)),
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


def _independent() -> Iterator[Errors]:
    for each in _read("unseen", "independent.json")["sets"].values():
        yield [each["errors"][label] for label in (ON_CORES, NONE, TRIVIAL)]


def _zoo(how: str) -> Iterator[Errors]:
    for each in _read("unseen", "zoo.json")["sets"].values():
        by_label: dict[str, BySeed] = {}
        for row in each["rows"]:
            by_label.setdefault(row["label"], {})[row["seed"]] = row["error"]
        yield [by_label[label] for label in (how, NONE, TRIVIAL)]


def _fine_tunings() -> Iterator[Errors]:
    for each in _read("finetune", "table.json").values():
        yield [each["table"][label]["errors"] for label in ("raced", NONE, TRIVIAL)]
