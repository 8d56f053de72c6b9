"""Curves of the page: the gradient search epoch by epoch, what methods tried, and how often operations are applied."""

from __future__ import annotations

import math
from itertools import accumulate, count
from typing import Any

from fasteraa.report.charts import Series, chart, spark
from fasteraa.report.page.facts import dig, time_words
from fasteraa.report.run_record import RunRecord
from fasteraa.report.summary import changes
from fasteraa.runtime.words import counted

_CHARTS: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Distance",
        "Between augmented images and originals, by the critic",
        "Wasserstein distance",
        (("distance", "distance"),),
    ),
    (
        "Classification losses",
        "Of the critic on originals, and on the policy's augmented images",
        "cross entropy",
        (("class_loss", "critic"), ("policy_class_loss", "policy")),
    ),
    ("Gradient penalty", "Of the critic", "penalty", (("penalty", "penalty"),)),
    (
        "Average parameter change",
        "Mean absolute change of the policy's parameters",
        "change",
        (("change", "in the epoch"), ("from_start", "since the start")),
    ),
)


def charts(run: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for title, about, unit, lines in _CHARTS:
        series: list[Series] = [
            (label, [(number, row[key]) for number, row in enumerate(run.metrics, 1) if key in row])
            for key, label in lines
        ]
        svg = chart(f"{title} by epoch", series, y_title=unit, smooth=True)
        if svg:
            legend = [label for label, _ in series] if len(series) > 1 else []
            shown.append({"title": title, "about": about, "svg": svg, "legend": legend})
    return shown


def tried_charts(run: RunRecord) -> list[dict[str, Any]]:
    """For each method the best score over what it cost, a line for each fold: a lower score is better."""
    tried, shown = dig(run.result, "tried"), []
    for label, rows in tried.items() if isinstance(tried, dict) else ():
        scores: dict[str, list[tuple[float, float]]] = {}
        known = [row for row in rows if _is_try(row)] if isinstance(rows, list) else []
        costs = [row[2] if len(row) > 2 else 0.0 for row in known]
        timed = sum(costs) > 0
        for row, cost in zip(known, accumulate(costs) if timed else count(1), strict=False):
            fold = scores.setdefault(str(row[0]), [])
            fold.append((cost, min([row[1], *(score for _, score in fold[-1:])])))
        axis = "seconds" if timed else "policies tried"
        svg = chart(f"best score of {label} by {axis}", list(scores.items()), axis, "best score")
        if svg:
            words = counted(len(known), "try", "tries") + (f", {time_words(sum(costs))}" if timed else "")
            shown.append({"title": label, "about": words, "svg": svg, "legend": list(scores)})
    return shown


def _is_try(row: Any) -> bool:
    """Fold, score and maybe seconds."""
    numbers = row[1:] if isinstance(row, list) and len(row) in (2, 3) else []
    return bool(numbers) and all(type(each) in (int, float) and math.isfinite(each) for each in numbers)


def mass_rows(run: RunRecord) -> list[dict[str, Any]]:
    """A row per operation, from the one that gained most to the one that lost most."""
    if run.masses:
        pairs = [(op, path[0], path[-1], path) for op, path in run.masses.items()]
        pairs.sort(key=lambda row: row[1] - row[2])
    elif run.start is not None and run.gradient is not None:
        pairs = [(op, before, after, ()) for op, before, after in changes(run.start, run.gradient)]
    else:
        return []
    most = max((value for *_, path in pairs for value in path), default=0.0)
    return [
        {"op": op, "before": before, "after": after, "change": after - before, "spark": spark(path, most)}
        for op, before, after, path in pairs
    ]
