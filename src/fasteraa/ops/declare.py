"""What an operation *is*: a rule, a span from unit magnitude to physical value, and a family that knows the mechanics.

A row is one function under `@op(...)`. Everything else (both forwards, tests, documentation, the search space) is
derived from the rows in `OPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fasteraa.errors import PolicyError, choices_hint
from fasteraa.runtime.documents import quoted

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

SIDES = ("width", "height")  # units that are fractions of a side; a span may give pixels, and rules always get pixels
Number = TypeVar("Number", float, "Tensor")


@dataclass(frozen=True)
class Span:
    """Where unit magnitudes 0 (leaves the image alone) and 1 lie in physical units."""

    at_zero: float
    at_one: float
    unit: str

    def value(self, magnitude: Number, sign: Number | float = 1.0) -> Number:
        """The physical value of a unit magnitude."""
        return self.at_zero + sign * magnitude * (self.at_one - self.at_zero)

    def magnitude(self, value: float) -> float:
        """The inverse of `value` for a positive sign."""
        return (value - self.at_zero) / (self.at_one - self.at_zero)


@dataclass(frozen=True)
class Context:
    """What an operation may need beside image and magnitude; all of it drawn beforehand, nothing random here."""

    partner: Tensor | None = None  # (B, C, H, W), for sample_pairing
    hole: Tensor | None = None  # (B, 2) in [0, 1): centre (x, y) of the cut-out box
    fill: tuple[int, ...] = (0, 0, 0)  # what warps bring in from outside
    hole_fill: tuple[int, ...] = (125, 123, 114)  # what cutout paints
    whole: bool = False  # images hold whole levels 0..255 and intermediate ones are rounded as Pillow rounds them

    def at(self, index: Tensor) -> Context:
        """The context of the images at `index`."""
        partner = None if self.partner is None else self.partner[index]
        hole = None if self.hole is None else self.hole[index]
        return replace(self, partner=partner, hole=hole)


@dataclass(frozen=True)
class Pair:
    """What a Pillow row gets besides image and value (the single-image twin of Context)."""

    partner: Image.Image | None
    hole: tuple[float, float]
    fill: tuple[int, ...]
    hole_fill: tuple[int, ...]


class Family(Protocol):
    """Mechanics shared by the rows of one module."""

    name: str

    def hard(self, op: Op, image: Tensor, value: Tensor, context: Context) -> Tensor:
        """uint8 (B, C, H, W), one physical value per image -> uint8, bit-exact to the row's Pillow twin."""

    def quick(self, op: Op, image: Image.Image, value: float, pair: Pair) -> Image.Image:
        """One Pillow image; the same as the row's Pillow twin, only faster where the family knows how."""

    def soft(self, ops: list[Op], image: Tensor, value: Tensor, weight: Tensor, context: Context) -> Tensor:
        """sum_n weight[:, n] * op_n(image; value[:, n]) on float images, differentiable in all three tensors."""


@dataclass(frozen=True, eq=False)
class Op:
    """One row of the table: everything that is known about an operation."""

    name: str
    family: Family
    rule: Callable[..., Any]
    span: Span | None  # None: the operation has no magnitude
    signed: bool
    discrete: bool
    pillow: Callable[..., Image.Image]
    doc: str

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return find, (self.name,)  # pickled by name: rules and Pillow twins are code, not data

    @property
    def gradient(self) -> str:
        """How the magnitude gets its gradient."""
        if self.span is None:
            return "none"
        return "straight-through" if self.discrete else "true"

    @property
    def geometric(self) -> bool:
        """Does it move pixels, so that masks, boxes and points must follow?"""
        return self.family.name == "warp"


OPS: dict[str, Op] = {}  # all operations by name, in the order of the table


def op(
    family: Family,
    span: Span | None,
    *,
    pillow: Callable[..., Image.Image],
    signed: bool = False,
    discrete: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Register the decorated rule as an operation. `pillow(image, value, pair)` is its exact definition."""

    def register(rule: Callable[..., Any]) -> Op:
        if rule.__name__ in OPS:
            raise ValueError(f"operation {rule.__name__!r} is declared twice")
        doc = " ".join((rule.__doc__ or "").split())
        OPS[rule.__name__] = Op(rule.__name__, family, rule, span, signed, discrete, pillow, doc)
        return OPS[rule.__name__]

    return register


def find(name: str) -> Op:
    """The operation of that name."""
    if name not in OPS:
        raise PolicyError(f"unknown operation {quoted(name, 80)}: {choices_hint(name, OPS)}")
    return OPS[name]


def select(names: Iterable[str] | None) -> list[Op]:
    """The rows with these names in the order of the table; all of them for None."""
    if names is None:
        return list(OPS.values())
    chosen = [find(name).name for name in names]
    if not chosen:
        raise PolicyError(f"no operation was chosen; choices: {', '.join(OPS)}")
    if len(set(chosen)) < len(chosen):
        raise PolicyError(f"an operation was chosen twice: {', '.join(chosen)}")
    return [row for name, row in OPS.items() if name in chosen]


def check_span(row: Op, span: Span) -> Span:
    """A widened span must keep the unit (or give a side in pixels) and leave the image alone at zero."""
    if row.span is None:
        raise PolicyError(f"operation {row.name!r} has no magnitude, so its span cannot be changed")
    units = (row.span.unit, "px") if row.span.unit in SIDES else (row.span.unit,)
    if span.unit not in units:
        raise PolicyError(f"the span of {row.name!r} must have the unit {' or '.join(units)}, got {span.unit!r}")
    if span.at_zero != row.span.at_zero:
        raise PolicyError(
            f"the span of {row.name!r} must start at {row.span.at_zero:g}, where it leaves the image alone, "
            f"got {span.at_zero:g}"
        )
    if not abs(span.at_one) < float("inf") or span.at_one == span.at_zero:
        raise PolicyError(f"the span of {row.name!r} must end at another finite value, got {span.at_one:g}")
    return span
