"""Every method at the same cost: a minute on one GPU for each, then its policy trains the same network.

Beside the errors stand the costs of the published settings, extrapolated from what the searches and trainings of this
table took: `published_costs` says how.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fasteraa.errors import ConfigError
from fasteraa.methods import METHODS
from fasteraa.methods.config import paper_settings
from fasteraa.reproduce.schema import CHUNKED, Cost, Line, Search, Table, search_on
from fasteraa.runtime.documents import read_json

DATA, RECIPE = "reduced-cifar10", "cifar/wrn-40-2"
RACE_MINUTES = 3.0  # for a minute of each method
# method -> what the paper's first table calls it and says of CIFAR-10, in GPU hours
PUBLISHED: dict[str, tuple[str, float | None]] = {
    "autoaugment": ("AA", 5_000.0),
    "pba": ("PBA", 5.0),
    "fast-aa": ("Fast AA", 3.5),
    "faster-aa": ("Faster AA", 0.23),
    "dada": ("DADA", None),
    "randaugment": ("RandAugment", None),
}
_COST_NOTES = {"dada": "its own paper says 0.1", "randaugment": "trainings for its grid"}
RACED = ("faster-aa", "fast-aa", "pba", "autoaugment", "dada", "random", "randaugment")


def equal_budget(minutes: float, name: str, best_of: tuple[str, int] | None = None) -> Table:
    lines = [
        _line("none", "none"),
        _line("TrivialAugment (wide)", "trivialaugment-wide"),
        Line(
            data=DATA,
            recipe=RECIPE + CHUNKED,
            label="faster-aa --preset paper",
            policy=search_on("cifar10"),
            paper=None,
        ),
        *(_line(method, _search((method,), minutes)) for method in _available_methods()),
        _line("race of all", _search(_available_methods(), race_minutes=RACE_MINUTES * minutes)),
        *(
            Line(
                data=DATA,
                label=f"hours of {label} as published",
                policy=Cost(method, minutes),
                paper=hours,
                measure="hours",
                note=_COST_NOTES.get(method, ""),
            )
            for method, (label, hours) in PUBLISHED.items()
        ),
    ]
    words = "a GPU-minute" if minutes == 1 else f"{minutes:g} GPU-minutes"
    who = "Every method" if best_of is None else "The best methods"
    title = f"{who} with {words} on reduced CIFAR-10, and what it costs as published (extrapolated)"
    unit = "error %, or GPU hours where no network is trained"
    return Table(name=name, title=title, lines=tuple(lines), unit=unit, best_of=best_of)


def among_best(table: Table, out: Path) -> Table:
    """Of the methods with a budget only those that were best in the table before; ConfigError until that is there."""
    if table.best_of is None:
        return table
    before, count = table.best_of
    file = out / before / "table.json"
    lines = read_json(file)["lines"] if file.exists() else []
    errors = {
        line["label"]: line["ours"]["mean"] for line in lines if line["ours"] is not None and line["measure"] == "error"
    }
    contenders = [line.label for line in table.lines if _is_contender(line) and line.label in errors]
    if len(contenders) < count:
        raise ConfigError(
            f"{table.name} is for the {count} best methods of {before}, of which {len(contenders)} are finished in "
            f"{str(out)!r}: first fasteraa reproduce {before} --out {out}, or name methods with --only"
        )
    best = sorted(contenders, key=lambda label: errors[label])[:count]
    return replace(table, lines=tuple(line for line in table.lines if not _is_contender(line) or line.label in best))


def _is_contender(line: Line) -> bool:
    """One method with its minutes."""
    return isinstance(line.policy, Search) and line.policy.budgeted and len(line.policy.methods) == 1


def _line(label: str, policy: str | Search) -> Line:
    return Line(data=DATA, recipe=RECIPE, label=label, policy=policy, paper=None)


def _available_methods() -> tuple[str, ...]:
    return tuple(name for name in RACED if name in METHODS.names())


def _search(methods: tuple[str, ...], minutes: float = 0.0, race_minutes: float = 0.0) -> Search:
    """One for all seeds, of our default settings."""
    images = search_on("cifar10")
    return Search(
        source=images.source,
        images=images.images,
        settings={"critic": paper_settings()["critic"]},
        methods=methods,
        minutes=minutes,
        race_minutes=race_minutes,
        per_seed=False,
    )


EQUAL_BUDGET = (equal_budget(1, "equal-budget"), equal_budget(5, "equal-budget-5", ("equal-budget", 3)))
