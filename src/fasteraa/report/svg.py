"""Plots as SVG. A plot is a list of marks on scales; `drawing` makes a file or a part of a page of them.

Marks carry a class and no colour: a file has `STYLE`, which knows light and dark, and a page has its own style. All
text is escaped.

>>> x = Scale.around([10.0, 12.5], start=40, end=300)
>>> marks = [*x_axis(x, top=10, bottom=50), error_bar(x, 30, 10.4, 12.1), dot(x(11.2), 30)]
>>> file = drawing(340, 80, marks, label="errors")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_NAMESPACE = "http://www.w3.org/2000/svg"
Point = tuple[float, float]  # pixels from the left and from the top
_ARROW = 6  # pixels

_COLOURS = {  # class -> what it draws: light, dark
    "text": ("fill", "#222", "#e6e8ea"),
    ".tick": ("fill", "#59636e", "#a3abb4"),
    ".grid": ("stroke", "#dde1e5", "#353a41"),
    ".paper": ("fill", "#fff", "#15171a"),
    ".bar,.dot": ("fill", "#0b5cad", "#7ab8ff"),
    ".interval,.line": ("stroke", "#0b5cad", "#7ab8ff"),
    ".mean": ("fill", "#0a3a6b", "#cfe4ff"),
    ".ring": ("stroke", "#b1470c", "#ffab70"),
}
STYLE = (
    "text{font:12px system-ui,sans-serif}.tick{text-anchor:middle}.left,.name{text-anchor:end}.title{font-weight:bold}"
    ".interval{fill:none;stroke-width:3;opacity:.4}.line,.ring{fill:none;stroke-width:2}.faint{opacity:.45}"
    + "".join(f"{name}{{{kind}:{light}}}" for name, (kind, light, _) in _COLOURS.items())
    + "@media(prefers-color-scheme:dark){"
    + "".join(f"{name}{{{kind}:{dark}}}" for name, (kind, _, dark) in _COLOURS.items())
    + "}"
)


# --- scales ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """From a number to a place between two pixels; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def around(cls, numbers: Sequence[float], start: float, end: float, room: float = 0.1) -> Scale:
        """For numbers that are not negative, with some room on both sides; numbers that hardly differ stay together."""
        spread = max(max(numbers) - min(numbers), 0.5)
        return cls(max(min(numbers) - room * spread, 0.0), max(numbers) + room * spread, start, end)

    @classmethod
    def powers(cls, numbers: Sequence[float], start: float, end: float) -> Scale:
        """Logarithmic, from one power of ten to another."""
        exponents = [math.log10(number) for number in numbers if number > 0] or [0.0]
        low = math.floor(min(exponents))
        return cls(10.0**low, 10.0 ** max(math.ceil(max(exponents)), low + 1), start, end, logarithmic=True)

    def __call__(self, number: float) -> float:
        if self.logarithmic:
            low, high, number = math.log10(self.low), math.log10(self.high), math.log10(max(number, self.low))
        else:
            low, high = self.low, self.high
        share = (number - low) / (high - low) if high > low else 0.5
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """The numbers to write beside the axis."""
        if not self.logarithmic:
            return ticks(self.low, self.high)
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        return [10.0**power for power in range(first, last + 1)]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two: at most eight of them."""
    exponent = math.floor(math.log10((high - low) / 4))
    step = 10**exponent
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 7)
    first = math.ceil(low / step)
    return [round(number * step, max(6, -exponent)) for number in range(first, math.floor(high / step) + 1)]


# --- marks -----------------------------------------------------------------------------------------------------------


def _element(tag: str, content: str = "", /, **attributes: str | float | None) -> str:
    """`content` is SVG. `kind` is the class, `aria_label` is `aria-label`, and what is None is left out."""
    names = {name: "class" if name == "kind" else name.replace("_", "-") for name in attributes}
    written = "".join(f' {names[name]}="{escape(_plain(v))}"' for name, v in attributes.items() if v is not None)
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _title(words: str) -> str:
    return _element("title", escape(words)) if words else ""


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):.10g}"


def text(x: float, y: float, words: str, kind: str | None = None, *, upwards: bool = False) -> str:
    """`kind`: tick (centred), name and left (they end at x), title; `upwards` is read from the bottom to the top."""
    if upwards:
        return _element("text", escape(words), kind=kind, transform=f"translate({x:g} {y:g}) rotate(-90)")
    return _element("text", escape(words), kind=kind, x=x, y=y)


def dot(x: float, y: float, radius: float = 4, kind: str = "dot", title: str = "") -> str:
    """`kind` ring is empty inside."""
    return _element("circle", _title(title), kind=kind, cx=x, cy=y, r=radius)


def bar(x: float, y: float, width: float, height: float, kind: str = "bar") -> str:
    return _element("rect", kind=kind, x=x, y=y, width=width, height=height)


def line(points: Sequence[Point], kind: str = "line", title: str = "") -> str:
    """A single point is a dot."""
    if len(points) == 1:
        return dot(*points[0], kind=kind.replace("line", "dot"), title=title)
    path = " ".join(f"{_plain(x)},{_plain(y)}" for x, y in points)
    return _element("polyline", _title(title), kind=kind, points=path)


def error_bar(scale: Scale, at: float, low: float, high: float, *, upwards: bool = False) -> str:
    """From one end of an interval to the other; `at` is its place on the other axis. An end outside has an arrow."""
    ends = scale(low), scale(high)
    inwards = math.copysign(_ARROW, scale.end - scale.start)
    tips = [(ends[0], inwards)] * (low < scale.low) + [(ends[1], -inwards)] * (high > scale.high)
    arrows = [[(tip + back, at - _ARROW), (tip, at), (tip + back, at + _ARROW)] for tip, back in tips]
    marks = [line([(y, x) for x, y in points] if upwards else points, "interval") for points in arrows]
    if upwards:
        return "".join([_element("line", kind="interval", x1=at, x2=at, y1=ends[0], y2=ends[1]), *marks])
    return "".join([_element("line", kind="interval", x1=ends[0], x2=ends[1], y1=at, y2=at), *marks])


def x_axis(scale: Scale, top: float, bottom: float) -> list[str]:
    """Lines from top to bottom, and numbers under them."""
    marks = []
    for tick in scale.ticks:
        x = scale(tick)
        marks += [_grid(x, x, top, bottom), text(x, bottom + 16, f"{tick:g}", "tick")]
    return marks


def y_axis(scale: Scale, left: float, right: float, gap: float = 6) -> list[str]:
    """Lines from left to right, and numbers beside them."""
    marks = []
    for tick in scale.ticks:
        y = scale(tick)
        marks += [_grid(left, right, y, y), text(left - gap, y + 4, f"{tick:g}", "left tick")]
    return marks


def _grid(x1: float, x2: float, y1: float, y2: float) -> str:
    return _element("line", kind="grid", x1=x1, x2=x2, y1=y1, y2=y2)


def drawing(width: float, height: float, marks: Iterable[str], label: str, kind: str | None = None) -> str:
    """A file that can be looked at by itself; with a class, a part of a page, which has colours for it."""
    box = f"0 0 {width:g} {height:g}"
    content = "".join(marks)
    if kind is not None:
        return _element("svg", content, kind=kind, viewBox=box, role="img", aria_label=label)
    paper = f"<style>{STYLE}</style>" + bar(0, 0, width, height, "paper")
    file = _element(
        "svg", paper + content, xmlns=_NAMESPACE, viewBox=box, width=width, height=height, role="img", aria_label=label
    )
    return file + "\n"


def short(label: str, most: int = 28) -> str:
    """The end of a long path says more than its beginning."""
    return label if len(label) <= most else "..." + label[3 - most :]
