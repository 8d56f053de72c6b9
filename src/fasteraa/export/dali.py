"""DALI: a Policy for `apply_auto_augment`, made of DALI's own operators, on its CPU and GPU backends.

DALI's ready-made augmentations round, fill and turn otherwise than Pillow, so these are written for it: levels in whole
numbers and float32 with truncation, geometry on Pillow's 16.16 grid of coefficients. They take HWC uint8 RGB images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali import math as dmath
from nvidia.dali.auto_aug.core import Policy as DaliPolicy
from nvidia.dali.auto_aug.core import augmentation, select

from fasteraa.export.embed import embed
from fasteraa.export.fidelity import live
from fasteraa.images import LUMA
from fasteraa.ops import find
from fasteraa.ops.declare import SIDES
from fasteraa.policy.draw import POSITIVE
from fasteraa.policy.policy import Choice, Policy, SubPolicy

Node = Any
Function = Callable[[Policy, Node, Node], Node]  # (policy, data, value in the operation's own unit)


def render(policy: Policy) -> Any:
    """DALI draws one sub-policy, evenly, and gates each stage; unequal weights and any other number of passes are drawn
    inside one augmentation.

    A pipeline's size grows with the number of augmentations, so all stages share one: its magnitude bin is the row of a
    table that says which operations the stage chooses from, and how strong they are.
    """
    acting = live(policy)
    subs = acting.sub_policies
    plan = _Plan(acting, subs)
    if plan.rows == 0:
        entries: list[Any] = [[(_augmentation("identity", lambda data, row: data, 1), 1.0, 0)]]
    elif not acting.strength.plain:
        entries = [[(_augmentation("passes", plan.passes, plan.rows), 1.0, 0)]]
    elif len({sub.weight for sub in subs}) == 1:
        stage = _augmentation("stage", plan.stage, plan.rows)
        nothing = (_augmentation("identity", lambda data, row: data, plan.rows), 1.0, 0)
        entries = [[(stage, p, row) for p, row in sub if p > 0] or [nothing] for sub in plan.subs]
    else:
        entries = [[(_augmentation("weighted_sub_policies", plan.whole, plan.rows), 1.0, 0)]]
    return DaliPolicy(f"{policy.name} {policy.hash[:19]}", max(1, plan.rows), entries)


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "dali", "A Policy: apply_auto_augment(make(), images) in a pipeline with conditionals.")


def _augmentation(name: str, function: Callable[[Node, Node], Node], rows: int) -> Any:
    def operation(data: Node, row: Node) -> Node:
        return function(data, row)

    return augmentation(operation, mag_range=np.arange(rows, dtype=np.int32), name=name)


class _Plan:
    """A policy as tables: a row for each stage that can act, and in it an option for each of its operations."""

    def __init__(self, policy: Policy, subs: Sequence[SubPolicy]):
        self._policy = policy
        self._weights = [sub.weight / sum(sub.weight for sub in subs) for sub in subs]
        stages = [stage for sub in subs for stage in sub.stages]
        acting = [[choice for choice in stage if choice.weight * choice.probability > 0] for stage in stages]
        numbers = itertools.count()
        rows = [next(numbers) if options else 0 for options in acting]
        chances = [
            sum(c.weight * c.probability for c in o) / sum(c.weight for c in s)
            for o, s in zip(acting, stages, strict=True)
        ]
        places = iter(zip((min(1.0, chance) for chance in chances), rows, strict=True))
        self.subs = [[next(places) for _ in sub.stages] for sub in subs]  # (probability, row) of each stage
        self._table = [options for options in acting if options]
        self.rows = len(self._table)
        self._ops = list(dict.fromkeys(choice.op for options in self._table for choice in options))
        self._most = max((len(options) for options in self._table), default=1)

    def passes(self, data: Node, row: Node) -> Node:
        """As many sub-policies, each drawn again, as are drawn first."""
        shares = self._policy.strength.passes
        number = fn.random.choice(len(shares), p=list(shares))
        for k in range(len(shares) - 1):
            if number > k:
                data = self.whole(data, row)
        return data

    def whole(self, data: Node, _: Node) -> Node:
        """A sub-policy by weight, and its stages."""
        depth = max(len(sub) for sub in self.subs)
        padded = [[*sub, *[(0.0, 0)] * (depth - len(sub))] for sub in self.subs]
        drawn = fn.random.choice(len(self.subs), p=self._weights)
        for k in range(depth):
            probability = types.Constant(np.array([sub[k][0] for sub in padded], dtype=np.float32))[drawn]
            row = types.Constant(np.array([sub[k][1] for sub in padded], dtype=np.int32))[drawn]
            if fn.random.uniform(range=[0, 1]) < probability:
                data = self.stage(data, row)
        return data

    def stage(self, data: Node, row: Node) -> Node:
        """One of the row's operations by weight, at its strength, in its direction."""
        option = row * self._most + self._option(row)
        values = [[self._values(choice) for choice in options] for options in self._table]
        up_low, up_high, down_low, down_high = (
            _table([[value[end] for value in options] for options in values], self._most)[option] for end in range(4)
        )
        positive = [[POSITIVE[choice.sign] for choice in options] for options in self._table]
        up = _double(_chance() < _table(positive, self._most)[option])
        low, high = (up * a + (_number(1) - up) * b for a, b in ((up_low, down_low), (up_high, down_high)))
        value = low + _chance() * (high - low)
        index = [[self._ops.index(choice.op) for choice in options] for options in self._table]
        which = types.Constant(np.array(_padded(index, self._most), dtype=np.int32))[option]
        return select([self._function(op) for op in self._ops], which, data, value)

    def _option(self, row: Node) -> Node:
        """How many of the row's inner edges between shares a uniform number passes."""
        if self._most == 1:
            return types.Constant(np.int32(0))
        shares = [[choice.weight * choice.probability for choice in options] for options in self._table]
        inner = [[edge / sum(row) for edge in itertools.accumulate(row)][:-1] for row in shares]
        padded = [[*edges, *[2.0] * (self._most - 1 - len(edges))] for edges in inner]  # never passed
        edges = types.Constant(np.array(padded, dtype=np.float32))[row]
        return fn.reductions.sum(fn.cast(fn.cast(_chance(), dtype=types.FLOAT) >= edges, dtype=types.INT32))

    def _values(self, choice: Choice) -> tuple[float, float, float, float]:
        """Lowest and highest magnitude, in one direction and in the other."""
        span = self._policy.span(choice.op)
        if span is None:
            return 0.0, 0.0, 0.0, 0.0
        low, high = choice.range
        turn = -1.0 if find(choice.op).signed else 1.0
        return span.value(low), span.value(high), span.value(low, turn), span.value(high, turn)

    def _function(self, op: str) -> Callable[[Node, Node], Node]:
        """The operation, given its value in its own unit; sides are in pixels."""
        function, span, discrete = _FUNCTIONS[op], self._policy.span(op), find(op).discrete
        unit = span.unit if span is not None else ""

        def apply(data: Node, value: Node) -> Node:
            if unit in SIDES:
                value = value * _side(data, 1 if unit == "width" else 0)
            elif unit == "px" and discrete:  # whole pixels stay whole
                value = _whole(value * _number(2**20)) / _number(2**20)
            return function(self._policy, data, value)

        return apply


def _padded(rows: list[list[Any]], width: int) -> list[Any]:
    return [number for row in rows for number in [*row, *[row[-1]] * (width - len(row))]]


def _table(rows: list[list[float]], width: int) -> Node:
    return _node(np.array(_padded(rows, width), dtype=np.float64))


def _chance() -> Node:
    return fn.random.uniform(range=[0, 1], dtype=types.FLOAT64)


def _number(number: float) -> Any:
    """A float in double precision: a bare one would make everything that it touches a float32."""
    return types.Constant(float(number), dtype=types.FLOAT64)


def _node(value: Any) -> Node:
    """Numbers as a node in double precision: the sum of three float32 numbers, which is what DALI's constants hold."""
    parts, rest = [], np.asarray(value, dtype=np.float64)
    for _ in range(3):
        parts.append(rest.astype(np.float32))
        rest = rest - parts[-1]
    high, middle, low = (_double(types.Constant(part, device="cpu")) for part in parts)
    return high + (middle + low)


def _double(node: Node) -> Node:
    return fn.cast(node, dtype=types.FLOAT64)


def _side(data: Node, axis: int) -> Node:
    return _double(data.shape()[axis])


def _levels(node: Node) -> Node:
    """Clip and cut off, as Pillow does."""
    return fn.cast(dmath.floor(dmath.clamp(node, 0, 255)), dtype=types.UINT8)


def _whole(node: Node) -> Node:
    """The nearest whole number, halves upwards."""
    return dmath.floor(node + _number(0.5))


# --- geometry --------------------------------------------------------------------------------------------------


def _warp(policy: Policy, data: Node, coefficients: list[Node]) -> Node:
    """Where each output pixel looks: coefficients on the 1/65536 grid, which float32 holds up to 128 pixels."""
    half = _number(0.5)
    a, b, c, d, e, f = (_node(part) if isinstance(part, int) else part for part in coefficients)
    a, b, c, d, e, f = (_fixed(n) for n in (a, b, c + half * a + half * b, d, e, f + half * d + half * e))
    grid = fn.stack(a, b, c - half * a - half * b, d, e, f - half * d - half * e)
    matrix = fn.reshape(fn.cast(grid, dtype=types.FLOAT), shape=[2, 3])
    if len(set(policy.fill)) == 1:
        return _look_up(data, matrix, policy.fill[0])
    outside = types.Constant(1, dtype=types.UINT8) - _look_up(
        data * 0 + types.Constant(1, dtype=types.UINT8), matrix, 0
    )
    colour = types.Constant(np.array(policy.fill, dtype=np.uint8))  # DALI fills with one level for all channels
    return _look_up(data, matrix, 0) + fn.cast(outside * colour, dtype=types.UINT8)


def _look_up(data: Node, matrix: Node, fill: int) -> Node:
    return fn.warp_affine(data, matrix=matrix, fill_value=fill, interp_type=types.INTERP_NN, inverse_map=True)


def _fixed(number: Node) -> Node:
    return _whole(number * _number(65536)) / _number(65536)


def _shear_x(policy: Policy, data: Node, v: Node) -> Node:
    return _warp(policy, data, [1, v, 0, 0, 1, 0])


def _shear_y(policy: Policy, data: Node, v: Node) -> Node:
    return _warp(policy, data, [1, 0, 0, v, 1, 0])


def _translate_x(policy: Policy, data: Node, v: Node) -> Node:
    return _warp(policy, data, [1, 0, _whole(v), 0, 1, 0])


def _translate_y(policy: Policy, data: Node, v: Node) -> Node:
    return _warp(policy, data, [1, 0, 0, 0, 1, _whole(v)])


def _rotate(policy: Policy, data: Node, v: Node) -> Node:
    cos, sin = _cos_sin(v)
    x, y = _side(data, 1) / _number(2), _side(data, 0) / _number(2)
    return _warp(policy, data, [cos, _number(0) - sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos])


def _cos_sin(degrees: Node) -> tuple[Node, Node]:
    """In double precision, which DALI's own do not have: the series for an eighth of the angle, doubled three times."""
    t = degrees * _node(math.pi / 180 / 8)
    square = t * t
    one, sin, cos = _number(1), _number(1), _number(1)
    for n in range(14, 1, -2):
        cos = one - square * cos / _number(n * (n - 1))
        sin = one - square * sin / _number(n * (n + 1))
    sin = sin * t
    for _ in range(3):
        sin, cos = _number(2) * sin * cos, one - _number(2) * sin * sin
    return cos, sin


def _flip(policy: Policy, data: Node, v: Node) -> Node:
    return fn.flip(data, horizontal=1, vertical=0)


# --- levels ----------------------------------------------------------------------------------------------------


def _solarize(policy: Policy, data: Node, v: Node) -> Node:
    below = data < fn.cast(dmath.ceil(v), dtype=types.INT32)
    return fn.cast(below * data + (below ^ True) * (types.Constant(255, dtype=types.UINT8) - data), dtype=types.UINT8)


def _posterize(policy: Policy, data: Node, v: Node) -> Node:
    bits = fn.cast(dmath.clamp(dmath.floor(v), 1, 8), dtype=types.INT32)
    masks = types.Constant(np.array([256 - 2 ** (8 - bit) for bit in range(9)], dtype=np.int32))
    return fn.cast(fn.cast(data, dtype=types.INT32) & masks[bits], dtype=types.UINT8)


def _invert(policy: Policy, data: Node, v: Node) -> Node:
    return types.Constant(255, dtype=types.UINT8) - data


def _auto_contrast(policy: Policy, data: Node, v: Node) -> Node:
    low = _double(fn.reductions.min(data, axis_names="HW", keep_dims=True))
    span = _double(fn.reductions.max(data, axis_names="HW", keep_dims=True)) - low
    flat = _double(span == 0)
    spread = _number(1) - flat
    scale = spread * (_number(255) / (span + flat)) + flat
    return _levels(_double(data) * scale - spread * low * scale)


def _equalize(policy: Policy, data: Node, v: Node) -> Node:
    return fn.equalize(data)


# --- blends ----------------------------------------------------------------------------------------------------


def _blend(start: Node, data: Node, v: Node) -> Node:
    """float32, one rounding per operation and truncation, as Pillow's C code does it."""
    end = fn.cast(data, dtype=types.FLOAT)
    start = fn.cast(start, dtype=types.FLOAT)
    return _levels(start + fn.cast(v, dtype=types.FLOAT) * (end - start))


def _grey(data: Node) -> Node:
    """(H, W, 1), int32."""
    weights = types.Constant(np.array(LUMA, dtype=np.int32))
    total = fn.reductions.sum(fn.cast(data, dtype=types.INT32) * weights, axes=2, keep_dims=True, dtype=types.INT32)
    return (total + 32768) // 65536


def _brightness(policy: Policy, data: Node, v: Node) -> Node:
    return _blend(types.Constant(np.float32(0)), data, v)


def _color(policy: Policy, data: Node, v: Node) -> Node:
    return _blend(_grey(data), data, v)


def _contrast(policy: Policy, data: Node, v: Node) -> Node:
    grey = _grey(data)
    total = _double(fn.reductions.sum(grey, dtype=types.INT64, keep_dims=True))
    count = _side(data, 0) * _side(data, 1)
    return _blend(dmath.floor((_number(2) * total + count) / (_number(2) * count)), data, v)


def _sharpness(policy: Policy, data: Node, v: Node) -> Node:
    """Pillow smooths the inside and leaves the outermost pixels as they were."""
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], dtype=np.float32)
    weights = types.Constant(kernel, device=data.device)
    exact = fn.cast(data, dtype=types.FLOAT)
    smooth = dmath.floor((2.0 * fn.filter(exact, weights) + 13.0) / 26.0)
    inside = fn.erase(
        exact * 0.0,
        anchor=[1.0, 1.0],
        shape=fn.cast(data.shape()[:2] - 2, dtype=types.FLOAT),
        axes=[0, 1],
        fill_value=1.0,
    )
    return _blend(inside * smooth + (1.0 - inside) * exact, data, v)


def _cutout(policy: Policy, data: Node, v: Node) -> Node:
    height, width = _side(data, 0), _side(data, 1)
    place = fn.random.uniform(range=[0, 1], shape=[2], dtype=types.FLOAT64)
    top = dmath.floor(dmath.max(place[1] * height - v / _number(2), _number(0)))
    left = dmath.floor(dmath.max(place[0] * width - v / _number(2), _number(0)))
    one = _number(1)
    lengths = fn.stack(dmath.floor(top + v) - top + one, dmath.floor(left + v) - left + one)
    painted = fn.cast(lengths * _double(v > 0), dtype=types.FLOAT)  # corners are included; no side, no pixel
    anchor = fn.cast(fn.stack(top, left), dtype=types.FLOAT)
    return fn.erase(data, anchor=anchor, shape=painted, axes=[0, 1], fill_value=list(map(float, policy.hole_fill)))


_FUNCTIONS: dict[str, Function] = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "flip": _flip,
    "solarize": _solarize,
    "posterize": _posterize,
    "invert": _invert,
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "contrast": _contrast,
    "color": _color,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "cutout": _cutout,
}
