"""What a policy is made of: choices among operations, sub-policies of stages, a strength. Never imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from fasteraa.errors import PolicyError
from fasteraa.ops import Span, find
from fasteraa.runtime.documents import quoted

SIGNS = ("random", "+", "-")
MOST_PASSES = 8
_MOST = 1e100  # of weights and scales: sums and products of them stay finite
_LARGEST = 1e9  # end of a span: far beyond any image
_ROUNDED = 1e-8  # so far from 1 are rounded shares in sum, at most
Magnitude = float | tuple[float, float] | None


@dataclass(frozen=True)
class Choice:
    """One operation of a stage: drawn with `weight`, then applied with `probability`.

    `magnitude` is a unit number, a range to draw from uniformly, or None where the operation has none. `sign` says
    how a signed operation gets its direction; it is None for the others.
    """

    op: str
    probability: float = 1.0
    magnitude: Magnitude = None
    weight: float = 1.0
    sign: str | None = None

    def __post_init__(self) -> None:
        row = find(self.op)
        _check_unit("probability", self.probability, self.op)
        _check_weight(self.weight, f"op {self.op!r}")
        numbers = {"probability": tidy(self.probability), "weight": tidy(self.weight)}
        sign = self.sign or "random" if row.signed else self.sign
        if sign not in (SIGNS if row.signed else (None,)):
            choices = " or ".join(SIGNS) if row.signed else "absent: the operation has no direction"
            raise PolicyError(f"sign must be {choices}, got {quoted(self.sign)} for op {self.op!r}")
        self._set(sign=sign, magnitude=self._tidy_magnitude(has_magnitude=row.span is not None), **numbers)

    def _tidy_magnitude(self, has_magnitude: bool) -> Magnitude:
        if not has_magnitude:
            return None
        if self.magnitude is None:
            raise PolicyError(f"magnitude must be in [0, 1], got none for op {self.op!r}")
        if not isinstance(self.magnitude, tuple | list):
            _check_unit("magnitude", self.magnitude, self.op)
            return tidy(self.magnitude)
        if len(self.magnitude) != 2:
            raise PolicyError(
                f"a range of magnitudes must be [low, high], got {quoted(self.magnitude)} for op {self.op!r}"
            )
        for end in self.magnitude:
            _check_unit("magnitude", end, self.op)
        low, high = map(tidy, self.magnitude)
        if low > high:
            raise PolicyError(f"a range of magnitudes must be [low, high], got [{low}, {high}] for op {self.op!r}")
        return low if low == high else (low, high)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest magnitude."""
        if self.magnitude is None:
            return 0.0, 0.0
        return self.magnitude if isinstance(self.magnitude, tuple) else (self.magnitude, self.magnitude)


Stage = tuple[Choice, ...]


@dataclass(frozen=True)
class SubPolicy:
    """Stages that follow one another, each a set of choices of which one is drawn; itself drawn by `weight`.

    `during` is the part of a training in which it takes part, as shares of the training's length: (0.0, 0.25) is the
    first quarter. None is all of it.
    """

    stages: tuple[Stage, ...]
    weight: float = 1.0
    during: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_weight(self.weight, "a sub-policy")
        stages = tuple((stage,) if isinstance(stage, Choice) else tuple(stage) for stage in self.stages)
        for number, stage in enumerate(stages, 1):
            if not stage or not sum(choice.weight for choice in stage) > 0:
                raise PolicyError(f"a stage must hold an operation with a positive weight, stage {number} holds none")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "weight", tidy(self.weight))
        object.__setattr__(self, "during", _tidy_during(self.during))

    @property
    def interval(self) -> tuple[float, float]:
        """The part of a training in which it takes part, from and to."""
        return self.during or (0.0, 1.0)


def _tidy_during(during: Any) -> tuple[float, float] | None:
    if during is None:
        return None
    ends = tuple(during) if isinstance(during, tuple | list) else ()
    if len(ends) != 2 or not 0 <= _number(ends[0]) < _number(ends[1]) <= 1:
        raise PolicyError(f"during must be two shares of a training, 0 <= from < to <= 1, got {quoted(during)}")
    start, end = map(tidy, ends)
    if start == end:
        raise PolicyError(f"during must be a part of a training that is longer than a rounding, got {quoted(during)}")
    return None if (start, end) == (0.0, 1.0) else (start, end)


@dataclass(frozen=True)
class Strength:
    """How much of a policy is applied: set after it was found, stored with it, changing none of its operations.

    `passes[i]` is the share of images that pass through i sub-policies, each drawn again; `magnitude` and
    `probability` scale every magnitude and probability, which stay at most 1.
    """

    passes: tuple[float, ...] = (0.0, 1.0)
    magnitude: float = 1.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        passes = tuple(self.passes)
        if not 1 <= len(passes) <= MOST_PASSES + 1:
            raise PolicyError(
                f"passes must give the shares of 0 to {MOST_PASSES} sub-policies, got {len(passes)} of them"
            )
        for share in passes:
            _check_weight(share, "a number of passes")
        shares = [float(share) for share in passes]
        if not sum(shares) > 0:
            raise PolicyError(f"passes must hold a positive share, got {shares}")
        for name in ("magnitude", "probability"):
            scale = getattr(self, name)
            if not 0 <= _number(scale) <= _MOST:
                raise PolicyError(f"the scale of {name} must be a finite number of at least 0, got {quoted(scale)}")
            object.__setattr__(self, name, tidy(scale))
        object.__setattr__(self, "passes", _normal(shares))

    @property
    def plain(self) -> bool:
        """One sub-policy, as it stands."""
        return self == Strength()

    @property
    def most(self) -> int:
        """The largest number of sub-policies an image passes through."""
        return len(self.passes) - 1


def _normal(shares: list[float]) -> tuple[float, ...]:
    """In sum 1, each rounded, without zeros at the end.

    Shares that were rounded before are kept as they are: divided by their sum and rounded again they would be others,
    and a policy not the one that was saved.
    """
    total = math.fsum(shares)
    if abs(total - 1) > _ROUNDED:
        shares = [share / total for share in shares]
    rounded = [tidy(share) for share in shares]
    while not rounded[-1]:
        rounded.pop()
    return tuple(rounded)


def tidy(number: float) -> float:
    """Nine significant digits: enough to bring any float32 back, few enough to be the same on every machine."""
    return float(f"{float(number):.9g}") + 0.0  # zero has no sign


def _number(value: Any) -> float:
    """numpy's, too; not a number where it is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _check_unit(what: str, number: Any, op: str) -> None:
    if not 0 <= _number(number) <= 1:
        raise PolicyError(f"{what} must be in [0, 1], got {quoted(number)} for op {op!r}")


def _check_weight(weight: Any, where: str) -> None:
    if not 0 <= _number(weight) <= _MOST:
        raise PolicyError(f"weight must be a finite number of at least 0, got {quoted(weight)} for {where}")


def plain_span(op: str, span: Span) -> Span:
    """Its ends as numbers of Python, which a file gives back as they are."""
    for name in ("at_zero", "at_one"):
        number = getattr(span, name)
        if not abs(_number(number)) <= _LARGEST:
            raise PolicyError(
                f"{name} must be a number, at most {_LARGEST:g}, got {quoted(number)} in the span of {quoted(op)}"
            )
    return Span(_plain(span.at_zero), _plain(span.at_one), span.unit)


def _plain(number: Any) -> float:
    return int(number) if isinstance(number, Integral) else float(number)


def check_colour(what: str, colour: Any) -> tuple[int, int, int]:
    levels: tuple[Any, ...] = tuple(colour) if hasattr(colour, "__len__") and hasattr(colour, "__getitem__") else ()
    if len(levels) != 3 or not all(_is_level(level) for level in levels):
        raise PolicyError(f"{what} must be three levels in 0..255, got {quoted(colour)}")
    return int(levels[0]), int(levels[1]), int(levels[2])


def _is_level(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= 255
