"""A reproduction as Markdown, JSON and a picture: the paper's number, ours, and what was not run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from pathlib import Path
from typing import Any

from fasteraa.report.comparison import difference, markdown_row, plain, short, ticks
from fasteraa.reproduce.result import Found, Reproduction, places, standings
from fasteraa.reproduce.schema import Search
from fasteraa.runtime.files import explain_os_error
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.train.statistics import Estimate

COLUMNS = ["data", "network", "policy", "paper", "ours", "n", "remark"]
RIVALS = ("none", "TrivialAugment (wide)")  # whom a ranked table compares with
_TOP5 = "top-5"


def rows_of(result: Reproduction) -> tuple[list[str], list[list[str]]]:
    """Columns and rows. A ranked table leaves out data sets of which nothing was run, and tells places on others."""
    if not result.table.ranked:
        return COLUMNS, [cells(found) for found in result.found]
    found = places(result, RIVALS)
    columns = [*COLUMNS[:-1], "rank", *(f"against {rival}" for rival in RIVALS), COLUMNS[-1]]
    rows = []
    for each in result.found:
        if each.line.data in found:
            *known, remark = cells(each)
            place = found[each.line.data].get(each.line.label)
            rank = "-" if place is None else f"{place.rank:g}"
            runs = len(each.values)
            against = [difference(place.against.get(rival), runs) if place else "-" for rival in RIVALS]
            rows.append([*known, rank, *against, remark])
    return columns, rows


def cells(found: Found) -> list[str]:
    line = found.line
    label = f"{line.label} ({_TOP5})" if line.measure == "error_top5" else line.label
    ours = found.ours
    return [
        line.data,
        found.network or "-",
        label,
        "-" if line.paper is None else f"{line.paper:g}",
        "-" if ours is None else _with_interval(ours),
        "-" if ours is None else str(ours.n),
        found.remark,
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
    can_be_run = [found for found in result.found if found.line.policy is not None]
    ours = [found for found in can_be_run if found.asked_for]
    full = sum(len(found.values) >= result.runs for found in ours)
    some = sum(0 < len(found.values) < result.runs for found in ours)
    untold = sum(not found.known for found in ours)
    rest = len(ours) - full - some - untold
    words = f"{full} of {len(ours)} numbers were measured in full, {some} in part, {rest} not at all"
    words += f"; of {untold} it cannot be told without the images." if untold else "."
    if len(ours) < len(can_be_run):
        words += f" {len(can_be_run) - len(ours)} more were not asked for: --table-only without --only shows them, too."
    untouched = dict.fromkeys(found.line.data for found in ours if found.known)
    for found in ours:
        if found.values:
            untouched.pop(found.line.data, None)
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
    columns = ["policy", "mean rank", "data sets", *(f"ahead of / behind {rival}" for rival in RIVALS)]
    lines = [markdown_row(columns), "|" + "---|" * len(columns)]
    for row in rows:
        against = [f"{row.ahead[rival]} / {row.behind[rival]}" if rival != row.label else "-" for rival in RIVALS]
        lines.append(markdown_row([row.label, f"{row.rank:.2f}", str(row.sets), *against]))
    words = "Ahead and behind: data sets where a paired test over seeds gives p < 0.05, uncorrected for their number."
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
        "lines": [_line(found) for found in result.found],
        **({"standings": [asdict(row) for row in standings(result, RIVALS)]} if result.table.ranked else {}),
    }


def _line(found: Found) -> dict[str, Any]:
    line, policy = found.line, found.line.policy
    described = {**vars(policy), "settings": dict(policy.settings)} if isinstance(policy, Search) else policy
    return {
        "data": line.data,
        "recipe": line.recipe,
        "network": found.stand_in or line.network,
        "label": line.label,
        "measure": line.measure,
        "policy": described,
        "paper": line.paper,
        "values": found.values,
        "ours": None if found.ours is None else asdict(found.ours),
        "comparable": found.comparable,
        "remark": found.remark,
    }


def publish(result: Reproduction, folder: Path) -> None:
    """table.md, table.json and table.svg; of a part of a table, files of another name."""
    with explain_os_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = RunFolder(folder)
    files.write(folder / f"{result.file}.md", to_markdown(result))
    files.write(folder / f"{result.file}.json", json.dumps(plain(to_dict(result)), indent=1) + "\n")
    files.write(folder / f"{result.file}.svg", to_svg(result))


# --- the picture -----------------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP = 860, 380, 40, 22, 34
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.tick{text-anchor:middle;fill:#666}.name{text-anchor:end}"
    ".title{font-weight:bold}.grid{stroke:#ddd}"
    ".bar{stroke:#2b6cb0;stroke-width:2}.ours{fill:#2b6cb0}.run{fill:#90b8dd}.curve{fill:none;stroke:#2b6cb0;stroke-width:1.5}"
    ".paper{fill:none;stroke:#c05621;stroke-width:2}"
)
Place = Callable[[float], float]


def to_svg(result: Reproduction) -> str:
    """Our mean as a blue dot with its interval, our runs as pale ones, the paper's as a red ring."""
    shown = [found for found in result.found if found.values or _paper(found) is not None]
    numbers = [n for found in shown for n in _numbers(found)]
    if not numbers:
        return _svg(60, ['<text x="20" y="40">nothing was run, and the paper has no numbers</text>'])
    return _curve(result, shown, numbers) if result.table.axis else _dots(result, shown)


def _numbers(found: Found) -> list[float]:
    """All that the picture has to have room for."""
    paper = _paper(found)
    return [*found.values.values(), *_interval(found), *([] if paper is None else [paper])]


def _paper(found: Found) -> float | None:
    """Its number, where it is one of the same thing."""
    return found.line.paper if found.comparable else None


def _interval(found: Found) -> list[float]:
    """Its ends. That of two runs is 13 times as wide as they lie apart, and dwarfs the picture: left out."""
    ours = found.ours
    return [] if ours is None or ours.n < 3 else [ours.mean - ours.half, ours.mean + ours.half]


def _svg(height: float, marks: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        + "".join(marks)
        + "</svg>\n"
    )


def _scale(numbers: Sequence[float], start: float, end: float, logarithmic: bool) -> tuple[Place, list[float]]:
    """Where a number lies between two places, and which numbers to write there."""
    if logarithmic:
        positive = [math.log10(n) for n in numbers if n > 0] or [0.0]
        low, high = math.floor(min(positive)), max(math.ceil(max(positive)), math.floor(min(positive)) + 1)
        marks = [10.0**power for power in range(low, high + 1)]
        return (lambda n: _between((math.log10(max(n, 10.0**low)) - low) / (high - low), start, end)), marks
    spread = max(max(numbers) - min(numbers), 0.5)
    bottom, top = max(min(numbers) - 0.1 * spread, 0.0), max(numbers) + 0.1 * spread
    return (lambda n: _between((n - bottom) / (top - bottom), start, end)), ticks(bottom, top)


def _between(share: float, start: float, end: float) -> float:
    return round(start + min(max(share, 0.0), 1.0) * (end - start), 1)


def _dots(result: Reproduction, shown: Sequence[Found]) -> str:
    """A line for every number. Policies on several data sets: a scale for each set, the fewest errors first."""
    if not result.table.ranked:
        rows = [(_name(found), found) for found in shown]
        marks, height = _panel(rows, _TOP, result.table.logarithmic)
    else:
        marks, height = [], _TOP
        for data in dict.fromkeys(found.line.data for found in shown):
            here = sorted((found for found in shown if found.line.data == data), key=_middle)
            title = escape(f"{data}, {here[0].network}")
            marks.append(f'<text class="name title" x="{_LEFT - 10}" y="{height + 16}">{title}</text>')
            more, height = _panel([(found.line.label, found) for found in here], height + _LINE)
            marks += more
    marks.append(f'<text class="tick" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{height + 10}">{result.table.unit}</text>')
    return _svg(height + 16, [_legend(result), *marks])


def _middle(found: Found) -> float:
    return found.ours.mean if found.ours is not None else max(_numbers(found))


def _name(found: Found) -> str:
    data, network, label, *_ = cells(found)
    return f"{data}, {label}" if network == "-" else f"{data}, {network}, {label}"


def _panel(rows: Sequence[tuple[str, Found]], top: float, logarithmic: bool = False) -> tuple[list[str], float]:
    """Lines under each other on one scale, and where they end."""
    bottom = top + _LINE * len(rows) + 6
    x, marked = _scale([n for _, found in rows for n in _numbers(found)], _LEFT, _WIDTH - _RIGHT, logarithmic)
    marks = []
    for tick in marked:
        marks.append(f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}"/>')
        marks.append(f'<text class="tick" x="{x(tick)}" y="{bottom + 16}">{tick:g}</text>')
    for number, (name, found) in enumerate(rows):
        y = top + _LINE * (number + 0.5)
        if found.ours is not None and not _interval(found):
            name += f" (n = {found.ours.n})"
        marks.append(f'<text class="name" x="{_LEFT - 10}" y="{y + 4}">{escape(short(name, 60))}</text>')
        marks += _pair(found, x, lambda n, y=y: y)  # type: ignore[misc]
    return marks, bottom + 24


def _curve(result: Reproduction, shown: Sequence[Found], numbers: Sequence[float]) -> str:
    """Errors over the number of sub-policies or operations; every value has the same room."""
    left, right, bottom = 70, _WIDTH - 40, 270
    y, marked = _scale(numbers, bottom, _TOP, result.table.logarithmic)
    places = [found.line.x for found in result.found if found.line.x is not None]

    def x(value: float) -> float:
        return _between((places.index(value) + 0.5) / len(places), left, right)

    marks = [_legend(result)]
    for tick in marked:
        marks.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>')
        marks.append(f'<text class="tick" x="{left - 24}" y="{y(tick) + 4}">{tick:g}</text>')
    marks += [f'<text class="tick" x="{x(v)}" y="{bottom + 18}">{result.table.axis} {v:g}</text>' for v in places]
    points = [(x(found.line.x), y(found.ours.mean)) for found in shown if found.ours and found.line.x is not None]
    if len(points) > 1:
        marks.append(f'<polyline class="curve" points="{" ".join(f"{a},{b}" for a, b in points)}"/>')
    for found in shown:
        if found.line.x is not None:
            marks += _pair(found, lambda n, at=found.line.x: x(at), y)  # type: ignore[misc]
    middle = f"translate(18 {(_TOP + bottom) / 2}) rotate(-90)"
    marks.append(f'<text class="tick" transform="{middle}">{result.table.unit}</text>')
    return _svg(bottom + 28, marks)


def _pair(found: Found, x: Place, y: Place) -> list[str]:
    marks, ours, paper = [], found.ours, _paper(found)
    if ends := _interval(found):
        low, high = ends
        marks.append(f'<line class="bar" x1="{x(low)}" x2="{x(high)}" y1="{y(low)}" y2="{y(high)}"/>')
    marks += [f'<circle class="run" cx="{x(n)}" cy="{y(n)}" r="2.5"/>' for n in found.values.values()]
    if paper is not None:
        marks.append(f'<circle class="paper" cx="{x(paper)}" cy="{y(paper)}" r="5"/>')
    if ours is not None:
        marks.append(f'<circle class="ours" cx="{x(ours.mean)}" cy="{y(ours.mean)}" r="4"/>')
    return marks


def _legend(result: Reproduction) -> str:
    quick = "  QUICK: the numbers mean nothing" if result.quick else ""
    ours = "our mean" + (", 95% interval" if any(_interval(found) for found in result.found) else "")
    items = [("ours", 4.0, ours), ("run", 2.5, "a run of ours")]
    if any(_paper(found) is not None for found in result.found):
        items.append(("paper", 5.0, "the paper"))
    marks, x = [], 20
    for kind, radius, words in items:
        marks.append(f'<circle class="{kind}" cx="{x}" cy="16" r="{radius}"/><text x="{x + 12}" y="20">{words}</text>')
        x += 30 + 7 * len(words)
    return "".join(marks) + f'<text x="{x}" y="20">{quick}</text>'
