"""A reproduction as a plot: our runs and their mean beside the paper's number."""

from __future__ import annotations

from collections.abc import Sequence

from fasteraa.report.svg import Scale, dot, drawing, error_bar, line, short, text, x_axis, y_axis
from fasteraa.reproduce.result import LineResult, Reproduction

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP = 860, 380, 40, 22, 34
_RUN, _MEAN, _PAPER = ("dot faint", 2.5), ("mean", 4.0), ("ring", 5.0)  # class and radius


def to_svg(result: Reproduction) -> str:
    """Our mean as a dark dot with its interval, our runs as pale ones, the paper's number as a ring."""
    shown = [row for row in _of_one_unit(result) if row.values or _paper(row) is not None]
    if not any(map(_numbers, shown)):
        nothing = text(20, 40, "nothing was run, and the paper has no numbers")
        return drawing(_WIDTH, 60, [nothing], result.table.title)
    return _curve(result, shown) if result.table.axis else _dots(result, shown)


def _of_one_unit(result: Reproduction) -> list[LineResult]:
    """One scale has one unit: hours beside errors are left to the table."""
    alone = {row.line.measure for row in result.lines} == {"hours"}
    return [row for row in result.lines if alone or row.line.measure != "hours"]


def _numbers(row: LineResult) -> list[float]:
    """All that the plot has to have room for."""
    paper = _paper(row)
    return [*row.values.values(), *_interval(row), *([] if paper is None else [paper])]


def _paper(row: LineResult) -> float | None:
    """Its number, where it is one of the same thing."""
    return row.line.paper if row.comparable else None


def _interval(row: LineResult) -> list[float]:
    """Its ends. That of two runs is 13 times as wide as they lie apart, and dwarfs the plot: left out."""
    ours = row.ours
    return [] if ours is None or ours.n < 3 else [ours.mean - ours.half, ours.mean + ours.half]


def _scale(rows: Sequence[LineResult], start: float, end: float, logarithmic: bool) -> Scale:
    numbers = [number for row in rows for number in _numbers(row)]
    return (Scale.powers if logarithmic else Scale.around)(numbers, start, end)


def _dots(result: Reproduction, shown: Sequence[LineResult]) -> str:
    """A row for every number. Policies on several data sets: a scale for each set, the fewest errors first."""
    if not result.table.ranked:
        rows = [(_name(row), row) for row in shown]
        marks, height = _panel(rows, _TOP, result.table.logarithmic)
    else:
        marks, height = [], float(_TOP)
        for data in dict.fromkeys(row.line.data for row in shown):
            here = sorted((row for row in shown if row.line.data == data), key=_middle)
            marks.append(text(_LEFT - 10, height + 16, f"{data}, {here[0].network}", "name title"))
            more, height = _panel([(row.line.label, row) for row in here], height + _LINE)
            marks += more
    marks.append(text((_LEFT + _WIDTH - _RIGHT) / 2, height + 10, result.table.unit, "tick"))
    return drawing(_WIDTH, height + 16, [*_legend(result), *marks], result.table.title)


def _middle(row: LineResult) -> float:
    return row.ours.mean if row.ours is not None else max(_numbers(row))


def _name(row: LineResult) -> str:
    return ", ".join(part for part in (row.line.data, row.network, row.label) if part)


def _panel(rows: Sequence[tuple[str, LineResult]], top: float, logarithmic: bool = False) -> tuple[list[str], float]:
    """Rows under each other on one scale, and where they end."""
    bottom = top + _LINE * len(rows) + 6
    x = _scale([row for _, row in rows], _LEFT, _WIDTH - _RIGHT, logarithmic)
    marks = x_axis(x, top, bottom)
    for number, (name, row) in enumerate(rows):
        y = top + _LINE * (number + 0.5)
        if row.ours is not None and not _interval(row):
            name += f" (n = {row.ours.n})"
        marks.append(text(_LEFT - 10, y + 4, short(name, 60), "name"))
        if ends := _interval(row):
            marks.append(error_bar(x, y, *ends))
        marks += [dot(x(value), y, radius, kind) for value, kind, radius in _dots_of(row)]
    return marks, bottom + 24


def _curve(result: Reproduction, shown: Sequence[LineResult]) -> str:
    """Errors over the number of sub-policies or operations; every value has the same room."""
    left, right, bottom = 70, _WIDTH - 40, 270
    y = _scale(shown, bottom, _TOP, result.table.logarithmic)
    values = [row.line.x for row in result.lines if row.line.x is not None]
    at = {value: left + (right - left) * (index + 0.5) / len(values) for index, value in enumerate(values)}
    marks = [*_legend(result), *y_axis(y, left, right)]
    marks += [text(at[value], bottom + 18, f"{result.table.axis} {value:g}", "tick") for value in values]
    points = [(at[row.line.x], y(row.ours.mean)) for row in shown if row.ours and row.line.x is not None]
    if len(points) > 1:
        marks.append(line(points))
    for row in shown:
        if row.line.x is not None:
            x = at[row.line.x]
            if ends := _interval(row):
                marks.append(error_bar(y, x, *ends, upwards=True))
            marks += [dot(x, y(value), radius, kind) for value, kind, radius in _dots_of(row)]
    marks.append(text(18, (_TOP + bottom) / 2, result.table.unit, "tick", upwards=True))
    return drawing(_WIDTH, bottom + 28, marks, result.table.title)


def _dots_of(row: LineResult) -> list[tuple[float, str, float]]:
    """Number, class and radius of each."""
    dots = [(value, *_RUN) for value in row.values.values()]
    if (paper := _paper(row)) is not None:
        dots.append((paper, *_PAPER))
    return [*dots, (row.ours.mean, *_MEAN)] if row.ours is not None else dots


def _legend(result: Reproduction) -> list[str]:
    rows = _of_one_unit(result)
    ours = "our mean" + (", 95% interval" if any(map(_interval, rows)) else "")
    items = [(_MEAN, ours), (_RUN, "a run of ours")]
    if any(_paper(row) is not None for row in rows):
        items.append((_PAPER, "the paper"))
    marks, x = [], 20
    for (kind, radius), words in items:
        marks += [dot(x, 16, radius, kind), text(x + 12, 20, words)]
        x += 30 + 7 * len(words)
    return [*marks, text(x, 20, "QUICK: the numbers mean nothing")] if result.quick else marks
