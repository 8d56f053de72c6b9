"""Curves and bars inside the page: colours come from its style, so they follow its theme."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fasteraa.report.svg import Scale, bar, drawing, line, text, ticks, y_axis

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 200, 44, 12, 10, 30
_LETTER, _GAP = 7.7, 6  # the widest that a digit of the axis is drawn, and what stands between it and the grid
Series = tuple[str, Sequence[tuple[float, float]]]  # a name, and (epoch, value)


def chart(label: str, series: Sequence[Series]) -> Markup:
    """Lines over epochs; a single epoch is a dot."""
    points = [point for _, curve in series for point in curve]
    if not points:
        return Markup("")
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points))
    high = high + 0.06 * (high - low) if high > low else low + 1.0
    y = Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    left = max(_LEFT, _GAP + _LETTER * max((len(f"{tick:g}") for tick in y.ticks), default=0))
    x = Scale(first, last, left, _WIDTH - _RIGHT)
    epochs = sorted({int(tick) for tick in ticks(first, last)} if last - first > 1 else {int(first), int(last)})
    marks = y_axis(y, left, _WIDTH - _RIGHT, _GAP)
    marks += [text(x(epoch), _HEIGHT - 10, str(epoch), "tick") for epoch in epochs if first <= epoch <= last]
    for number, (name, curve) in enumerate(series):
        marks.append(line([(x(epoch), y(value)) for epoch, value in curve], f"line s{number}", name))
    return Markup(drawing(_WIDTH, _HEIGHT, marks, label, "chart"))


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
