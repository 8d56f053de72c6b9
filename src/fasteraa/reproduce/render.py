"""A reproduction as Markdown, JSON and a plot: the paper's number, ours, and what was not run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from fasteraa.report.comparison import difference, markdown_row
from fasteraa.reproduce.plot import to_svg
from fasteraa.reproduce.result import LineResult, Reproduction, ranks_by_set, standings
from fasteraa.reproduce.schema import Cost, Search
from fasteraa.runtime.documents import plain
from fasteraa.runtime.files import write_atomic
from fasteraa.train.statistics import Estimate

COLUMNS = ["data", "network", "policy", "paper", "ours", "n", "remark"]
RIVALS = ("none", "TrivialAugment (wide)")  # what a ranked table compares with


def rows_of(result: Reproduction) -> tuple[list[str], list[list[str]]]:
    """Columns and rows. A ranked table leaves out data sets of which nothing was run, and ranks policies on others."""
    if not result.table.ranked:
        return COLUMNS, [cells(row) for row in result.lines]
    by_data = ranks_by_set(result, RIVALS)
    columns = [*COLUMNS[:-1], "rank", *(f"against {rival}" for rival in RIVALS), COLUMNS[-1]]
    rows = []
    for row in result.lines:
        if row.line.data in by_data:
            *start, remark = cells(row)
            place = by_data[row.line.data].get(row.line.label)
            rank = "-" if place is None else f"{place.rank:g}"
            against = [difference(place.against.get(rival), len(row.values)) if place else "-" for rival in RIVALS]
            rows.append([*start, rank, *against, remark])
    return columns, rows


def cells(row: LineResult) -> list[str]:
    line, ours = row.line, row.ours
    return [
        line.data,
        row.network or "-",
        row.label,
        "-" if line.paper is None else f"{line.paper:g}",
        "-" if ours is None else _with_interval(ours),
        "-" if ours is None else str(ours.n),
        row.remark,
    ]


def _with_interval(ours: Estimate) -> str:
    return _number(ours.mean) + (f" ± {_number(ours.half)}" if math.isfinite(ours.half) else "")


def _number(value: float) -> str:
    """Two digits after the point, a five rounded up as people do; small ones (hours) by their first two digits."""
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return str(Decimal(repr(round(value, 9))).quantize(Decimal("0.01"), ROUND_HALF_UP))


def caption(result: Reproduction) -> str:
    words = [f"{result.table.title}; {result.table.unit}."]
    if result.quick:
        words.append(
            "QUICK: a few tiny images of the embedded sample, one epoch of a small network. It shows that the recipe "
            "runs; its numbers mean nothing beside the paper's."
        )
    planned = (
        "one run for every number"
        if result.runs == 1
        else f"mean over seeds and its 95% interval (Student), {result.runs} runs planned for every number"
    )
    words.append("; ".join([f"Ours: {planned}", *([", ".join(result.devices)] if result.devices else [])]) + ".")
    if result.table.unit.startswith("error"):
        words.append("Errors are those after the last epoch on the test images, where nothing else is said.")
    if result.table.ranked:
        words.append("Differences are in points, paired by seed.")
    return " ".join(words)


def remarks(result: Reproduction) -> list[str]:
    """Where this differs from what was planned, a sentence each."""
    return [f"{remark[:1].upper()}{remark[1:].rstrip('.')}." for remark in result.remarks]


def summary(result: Reproduction) -> str:
    """How much of it was run."""
    can_be_run = [row for row in result.lines if row.line.policy is not None]
    ours = [row for row in can_be_run if row.asked_for]
    full = sum(len(row.values) >= row.runs(result.runs) for row in ours)
    some = sum(0 < len(row.values) < row.runs(result.runs) for row in ours)
    unknown = sum(not row.known for row in ours)
    rest = len(ours) - full - some - unknown
    words = f"{full} of {len(ours)} numbers were measured in full, {some} in part, {rest} not at all"
    words += f"; {unknown} are unknown without the images." if unknown else "."
    if len(ours) < len(can_be_run):
        words += f" {len(can_be_run) - len(ours)} more were not asked for: --table-only without --only shows them, too."
    untouched = dict.fromkeys(row.line.data for row in ours if row.known)
    for row in ours:
        if row.values:
            untouched.pop(row.line.data, None)
    return words + (f" Nothing was run on {', '.join(untouched)}." if untouched and result.table.ranked else "")


def to_markdown(result: Reproduction) -> str:
    columns, rows = rows_of(result)
    lines = [markdown_row(columns), "|" + "---|" * len(columns), *(markdown_row(row) for row in rows)]
    page = f"{caption(result)}\n\n" + "\n".join(lines) + f"\n\n{summary(result)}\n"
    page += "".join(f"\n- {remark}" for remark in remarks(result)) + "\n" if result.remarks else ""
    return page + _standings_table(result) if result.table.ranked else page


def _standings_table(result: Reproduction) -> str:
    rows = standings(result, RIVALS)
    if not rows:
        return ""
    columns = ["policy", "mean rank", "data sets", *(f"better / worse than {rival}" for rival in RIVALS)]
    lines = [markdown_row(columns), "|" + "---|" * len(columns)]
    for row in rows:
        against = [f"{row.better[rival]} / {row.worse[rival]}" if rival != row.label else "-" for rival in RIVALS]
        lines.append(markdown_row([row.label, f"{row.rank:.2f}", str(row.sets), *against]))
    words = "Better and worse: data sets where a paired test over seeds gives p < 0.05, uncorrected for their number."
    return "\n" + "\n".join(lines) + f"\n\n{words}\n"


def to_dict(result: Reproduction) -> dict[str, Any]:
    return {
        "name": result.table.name,
        "title": result.table.title,
        "unit": result.table.unit,
        "quick": result.quick,
        "runs": result.runs,
        "remarks": list(result.remarks),
        "devices": list(result.devices),
        "lines": [_line(row) for row in result.lines],
        **({"standings": [asdict(row) for row in standings(result, RIVALS)]} if result.table.ranked else {}),
    }


def _line(row: LineResult) -> dict[str, Any]:
    line, policy = row.line, row.line.policy
    described = vars(policy) if isinstance(policy, Cost) else policy
    if isinstance(policy, Search):
        described = {**vars(policy), "settings": dict(policy.settings)}
    return {
        "data": line.data,
        "recipe": line.recipe,
        "network": row.stand_in or line.network,
        "label": line.label,
        "measure": line.measure,
        "policy": described,
        "paper": line.paper,
        "values": row.values,
        "ours": None if row.ours is None else asdict(row.ours),
        "comparable": row.comparable,
        "remark": row.remark,
    }


def publish(result: Reproduction, folder: Path) -> None:
    """table.md, table.json and table.svg; of a part of a table, files of another name."""
    write_atomic(folder / f"{result.file}.md", to_markdown(result))
    write_atomic(folder / f"{result.file}.json", json.dumps(plain(to_dict(result)), indent=1) + "\n")
    write_atomic(folder / f"{result.file}.svg", to_svg(result))
