"""Curves and bars inside the page: colours come from its style, so they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from fasteraa.report.svg import Scale, bar, drawing, line, text, ticks, y_axis

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 216, 44, 12, 10, 44
_TITLE = 16  # the title of the vertical axis
_TICKS = 5  # under a row of a table, at most
_ARROW = 3  # percent of the width of a row
_LETTER, _GAP = 7.7, 6  # the widest that a digit of the axis is drawn, and what stands between it and the grid
Series = tuple[str, Sequence[tuple[float, float]]]  # a name, and (epoch, value)


def chart(
    label: str, series: Sequence[Series], x_title: str = "epoch", y_title: str = "", smooth: bool = False
) -> Markup:
    """Lines over epochs; a single epoch is a dot. `smooth` draws moving averages over faint measured lines."""
    points = [point for _, curve in series for point in curve]
    if not points:
        return Markup("")
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points))
    high = high + 0.06 * (high - low) if high > low else low + 1.0
    y = Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    left = _TITLE * bool(y_title) + max(_LEFT, _GAP + _LETTER * max((len(f"{tick:g}") for tick in y.ticks), default=0))
    x = Scale(first, last, left, _WIDTH - _RIGHT)
    epochs = sorted({int(tick) for tick in ticks(first, last)} if last - first > 1 else {int(first), int(last)})
    marks = y_axis(y, left, _WIDTH - _RIGHT, _GAP)
    marks += [text(x(epoch), _HEIGHT - _BOTTOM + 16, str(epoch), "tick") for epoch in epochs if first <= epoch <= last]
    marks.append(text((left + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_title, "tick"))
    if y_title:
        marks.append(text(12, (_TOP + _HEIGHT - _BOTTOM) / 2, y_title, "tick", upwards=True))
    for number, (name, curve) in enumerate(series):
        shown = smoothed(curve) if smooth else curve
        if shown != curve:
            marks.append(
                line([(x(epoch), y(value)) for epoch, value in curve], f"line s{number} faint", f"{name}, measured")
            )
        marks.append(line([(x(epoch), y(value)) for epoch, value in shown], f"line s{number}", name))
    return Markup(drawing(_WIDTH, _HEIGHT, marks, label, "chart"))


def smoothed(curve: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The average over a fifth of the curve around each point; a short curve stays as it is."""
    reach = len(curve) // 10
    if not reach:
        return curve
    around = [curve[max(0, at - reach) : at + reach + 1] for at in range(len(curve))]
    return [(x, sum(value for _, value in near) / len(near)) for (x, _), near in zip(curve, around, strict=True)]


class Forest:
    """Means with their intervals, a row of a table each, beside a line at zero; an interval of None is not drawn.

    The scale is that of `rows`; where another row leaves it, an arrow says so.
    """

    def __init__(self, rows: Sequence[tuple[float, float | None]]):
        ends = [mean + sign * (half or 0.0) for mean, half in rows for sign in (-1, 1)] or [0.0]
        low, high = min(0.0, *ends), max(0.0, *ends)
        room = 0.04 * (high - low) or 1.0
        self._scale = Scale(low - room, high + room, 0, 100)

    def row(self, mean: float, half: float | None, kind: str = "") -> Markup:
        """`kind` is good or bad: an interval on one side of zero."""
        x = self._scale
        low, high = mean - (half or 0.0), mean + (half or 0.0)
        marks = [line([(x(0), 0), (x(0), 26)], "zero")]
        if half is not None:
            marks.append(line([(x(low), 13), (x(high), 13)], f"reach {kind}".strip()))
        if x.low <= mean <= x.high:
            marks.append(line([(x(mean), 7), (x(mean), 19)], f"middle {kind}".strip()))
        for tip, beyond in ((0, low < x.low), (100, high > x.high)):
            if beyond:
                back = tip + math.copysign(_ARROW, 50 - tip)
                marks.append(line([(back, 5), (tip, 13), (back, 21)], f"arrow {kind}".strip()))
        return _in_row(marks, "row-interval")

    def axis(self) -> Markup:
        """Numbers under the rows, at their places."""
        inside = [tick for tick in self._scale.ticks if 4 <= self._scale(tick) <= 96]
        every = -(-len(inside) // _TICKS)
        zero = inside.index(0.0) if 0.0 in inside else 0
        ticks_ = inside[zero % every :: every] if every else []
        near = ticks_.index(0.0) % 2 if 0.0 in ticks_ else 0  # every second one is left out where there is little room
        kinds = ("" if number % 2 == near else ' class="minor"' for number in range(len(ticks_)))
        marks = (
            f'<span{kind} style="left:{self._scale(tick):g}%">{tick:g}</span>'
            for tick, kind in zip(ticks_, kinds, strict=True)
        )
        return Markup(f'<div class="axis" aria-hidden="true">{"".join(marks)}</div>')


def spark(values: Sequence[float], most: float) -> Markup:
    """A curve without axes, in a row of a table; `most` is the top for all rows."""
    if len(values) < 2 or most <= 0:
        return Markup("")
    x, y = Scale(0, len(values) - 1, 0, 100), Scale(0, most, 25, 2)
    return _in_row([line([(x(number), y(value)) for number, value in enumerate(values)], "line s0")], "spark")


def row_bar(value: float, most: float) -> Markup:
    """A bar in a row of a table; `most` is as wide as a bar can be."""
    return _in_row([bar(0, 3, Scale(0, most, 0, 100)(value), 20)], "row-bar") if most > 0 else Markup("")


def _in_row(marks: Sequence[str], kind: str) -> Markup:
    """As wide as its cell; the numbers beside it say the same."""
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 100 26" preserveAspectRatio="none" aria-hidden="true">{"".join(marks)}</svg>'
    )
