"""Curves as inline SVG: colours come from the page's style, so they follow its theme."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fasteraa.report.comparison import ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 200, 44, 12, 10, 30
_LETTER, _GAP = 7.7, 6  # the widest that a digit of the axis is drawn, and what stands between it and the grid
Series = tuple[str, Sequence[tuple[float, float]]]  # a name, and (epoch, value)


def chart(label: str, series: Sequence[Series]) -> Markup:
    """Lines over epochs; a single epoch is a dot."""
    points = [point for _, line in series for point in line]
    if not points:
        return Markup("")
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points))
    high = high + 0.06 * (high - low) if high > low else low + 1.0

    labels = {tick: f"{tick:g}" for tick in ticks(low, high)}
    left = max(_LEFT, _GAP + _LETTER * max(map(len, labels.values()), default=0))

    def x(value: float) -> float:
        share = (value - first) / (last - first) if last > first else 0.5
        return round(left + share * (_WIDTH - left - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    marks = [_grid(left, y(tick), text) for tick, text in labels.items()]
    shown = sorted({int(tick) for tick in ticks(first, last)} if last - first > 1 else {int(first), int(last)})
    marks += [_below(x(tick), str(tick)) for tick in shown if first <= tick <= last]
    for number, (name, line) in enumerate(series):
        marks.append(_line(number, name, [(x(at), y(value)) for at, value in line]))
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, Markup("").join(marks)
    )


def _grid(left: float, y: float, text: str) -> Markup:
    line = Markup('<line class="grid" x1="{:g}" x2="{}" y1="{}" y2="{}"/>').format(left, _WIDTH - _RIGHT, y, y)
    return line + Markup('<text class="left" x="{:g}" y="{}">{}</text>').format(left - _GAP, y + 4, text)


def _below(x: float, text: str) -> Markup:
    return Markup('<text class="below" x="{}" y="{}">{}</text>').format(x, _HEIGHT - 10, text)


def _line(number: int, name: str, places: Sequence[tuple[float, float]]) -> Markup:
    title = Markup("<title>{}</title>").format(name)
    if len(places) == 1:
        return Markup('<circle class="dot s{}" cx="{}" cy="{}" r="4">{}</circle>').format(number, *places[0], title)
    path = " ".join(f"{x},{y}" for x, y in places)
    return Markup('<polyline class="line s{}" points="{}">{}</polyline>').format(number, path, title)


def spark(values: Sequence[float], most: float) -> Markup:
    """A curve without axes, in a row of a table; `most` is the top for all rows."""
    if len(values) < 2 or most <= 0:
        return Markup("")
    step = 100 / (len(values) - 1)
    path = " ".join(f"{number * step:.1f},{25 - 23 * value / most:.1f}" for number, value in enumerate(values))
    return Markup('<svg class="spark" viewBox="0 0 100 26" preserveAspectRatio="none" aria-hidden="true">'
                  '<polyline class="line s0" points="{}"/></svg>').format(path)  # fmt: skip
