"""DALI: a Policy for `apply_auto_augment`, made of DALI's own operators, on its CPU and GPU backends.

DALI's ready-made augmentations round, fill and turn otherwise than Pillow, so these are written anew: levels in whole
numbers and float32 with truncation, geometry on Pillow's 16.16 grid of coefficients. They take HWC uint8 RGB images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali import math as dmath
from nvidia.dali.auto_aug.core import Policy as DaliPolicy
from nvidia.dali.auto_aug.core import augmentation, select

from fasteraa.export.embed import embed
from fasteraa.images import LUMA
from fasteraa.ops import Span, find
from fasteraa.policy.artifact import Choice, Policy, Stage, SubPolicy
from fasteraa.policy.draw import POSITIVE

Node = Any
Function = Callable[[Policy, Node, Node], Node]  # (policy, data, value in the operation's own unit)


def render(policy: Policy) -> Any:
    subs = [sub for sub in policy.sub_policies if sub.weight > 0]
    if len({sub.weight for sub in subs}) == 1:
        return DaliPolicy(_name(policy), 1, [_entries(policy, sub) for sub in subs])
    return DaliPolicy(_name(policy), 1, [[(_mixture(policy, subs), 1.0, None)]])


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "dali", "A Policy: apply_auto_augment(make(), images) in a pipeline with conditionals.")


def _name(policy: Policy) -> str:
    return f"{policy.name} {policy.hash[:19]}"


def _entries(policy: Policy, sub: SubPolicy) -> list[tuple[Any, float, None]]:
    found = [_stage(policy, stage) for stage in sub.stages]
    return [(made, p, None) for made, p in found if p > 0] or [
        (_augmentation("identity", lambda data: data), 1.0, None)
    ]


def _stage(policy: Policy, stage: Stage) -> tuple[Any, float]:
    """One augmentation that picks an operation by weight, and the probability that it does anything."""
    total = sum(choice.weight for choice in stage)
    acting = [choice for choice in stage if choice.weight * choice.probability > 0]
    shares = [choice.weight * choice.probability / total for choice in acting]
    functions = [_leaf(policy, choice) for choice in acting]
    name = "_or_".join(dict.fromkeys(choice.op for choice in acting))
    return _augmentation(name, _pick(functions, shares)), min(1.0, sum(shares))


def _augmentation(name: str, function: Callable[[Node], Node]) -> Any:
    def operation(data: Node, _: Any) -> Node:
        return function(data)

    return augmentation(operation, name=name)


def _mixture(policy: Policy, subs: list[SubPolicy]) -> Any:
    """DALI draws sub-policies evenly; unequal weights are drawn inside one augmentation."""
    runs = [_run(_entries(policy, sub)) for sub in subs]
    return _augmentation("weighted_sub_policies", _pick(runs, [sub.weight for sub in subs]))


def _run(entries: list[tuple[Any, float, None]]) -> Callable[[Node], Node]:
    def run(data: Node) -> Node:
        for made, p, _ in entries:
            if fn.random.uniform(range=[0, 1]) < p:
                data = made(data)
        return data

    return run


def _pick(functions: list[Callable[[Node], Node]], shares: list[float]) -> Callable[[Node], Node]:
    if len(functions) <= 1:
        return functions[0] if functions else (lambda data: data)
    chances = [share / sum(shares) for share in shares]

    def pick(data: Node) -> Node:
        return select(functions, fn.random.choice(len(functions), p=chances), data)

    return pick


def _leaf(policy: Policy, choice: Choice) -> Callable[[Node], Node]:
    function = _FUNCTIONS[choice.op]
    row, span, (low, high) = find(choice.op), policy.span(choice.op), choice.range
    if span is None or row.span is None:
        return lambda data: function(policy, data, None)
    positive = POSITIVE[choice.sign] if row.signed else 1.0
    if low == high and 0 < positive < 1:  # a value for each direction
        ends = [replace(choice, sign=sign) for sign in ("+", "-")]
        return _pick([_leaf(policy, end) for end in ends], [positive, 1 - positive])
    side = {"width": 1, "height": 0}.get(row.span.unit) if span.unit == "px" else None

    def leaf(data: Node) -> Node:
        value = _value(span, low, high, positive)
        return function(policy, data, value if side is None else _node(value) / _side(data, side))

    return leaf


def _value(span: Span, low: float, high: float, positive: float) -> Node:
    """The physical value: a number where nothing is left to chance."""
    if low == high:
        return span.value(low, 2 * positive - 1)
    magnitude = fn.random.uniform(range=[low, high], dtype=types.FLOAT64)
    step = _number(span.at_one - span.at_zero)
    if positive == 1.0:
        return magnitude * step + _number(span.at_zero)
    sign = _double(fn.random.choice([1, -1], p=[positive, 1 - positive]))
    return sign * magnitude * step + _number(span.at_zero)


def _number(number: float) -> Any:
    """A float in double precision: a bare one would make everything that it meets a float32."""
    return types.Constant(float(number), dtype=types.FLOAT64)


def _node(value: Node | float) -> Node:
    """A number as a node in double precision: the sum of three float32 numbers, which is what DALI's constants hold."""
    if not isinstance(value, int | float):
        return value
    parts, rest = [], float(value)
    for _ in range(3):
        parts.append(np.float32(rest))
        rest -= float(parts[-1])
    high, middle, low = (_double(types.Constant(np.array(part), device="cpu")) for part in parts)
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
    a, b, c, d, e, f = (_node(part) for part in coefficients)
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
    return _warp(policy, data, [1, 0, _whole(_node(v) * _side(data, 1)), 0, 1, 0])


def _translate_y(policy: Policy, data: Node, v: Node) -> Node:
    return _warp(policy, data, [1, 0, 0, 0, 1, _whole(_node(v) * _side(data, 0))])


def _rotate(policy: Policy, data: Node, v: Node) -> Node:
    cos, sin = _cos_sin(v)
    x, y = _side(data, 1) / _number(2), _side(data, 0) / _number(2)
    return _warp(policy, data, [cos, _number(0) - sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos])


def _cos_sin(degrees: Node | float) -> tuple[Node, Node]:
    """DALI's own have float32's precision, which is enough where the angle is drawn anyway."""
    if isinstance(degrees, int | float):
        return _node(math.cos(math.radians(degrees))), _node(math.sin(math.radians(degrees)))
    angle = degrees * _number(math.pi / 180)
    return _double(dmath.cos(angle)), _double(dmath.sin(angle))


def _flip(policy: Policy, data: Node, v: Node) -> Node:
    return fn.flip(data, horizontal=1, vertical=0)


# --- levels ----------------------------------------------------------------------------------------------------


def _solarize(policy: Policy, data: Node, v: Node) -> Node:
    below = data < fn.cast(dmath.ceil(_node(v)), dtype=types.INT32)
    return fn.cast(below * data + (below ^ True) * (types.Constant(255, dtype=types.UINT8) - data), dtype=types.UINT8)


def _posterize(policy: Policy, data: Node, v: Node) -> Node:
    bits = fn.cast(dmath.clamp(dmath.floor(_node(v)), 1, 8), dtype=types.INT32)
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
    return _levels(start + fn.cast(_node(v), dtype=types.FLOAT) * (end - start))


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
    side = _node(v) * width
    place = fn.random.uniform(range=[0, 1], shape=[2], dtype=types.FLOAT64)
    top = dmath.floor(dmath.max(place[1] * height - side / _number(2), _number(0)))
    left = dmath.floor(dmath.max(place[0] * width - side / _number(2), _number(0)))
    one = _number(1)
    lengths = fn.stack(dmath.floor(top + side) - top + one, dmath.floor(left + side) - left + one)
    painted = fn.cast(lengths * _double(side > 0), dtype=types.FLOAT)  # corners are included; no side, no pixel
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
