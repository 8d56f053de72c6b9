"""What can be done to an image: 17 operations in four families, each with a hard and a soft forward."""

from fasteraa.ops import warp as _warp  # isort: skip  (the order of the table)
from fasteraa.ops import tone as _tone  # isort: skip
from fasteraa.ops import blend as _blend  # isort: skip
from fasteraa.ops import erase as _erase  # isort: skip
from fasteraa.ops.declare import OPS, Context, Family, Op, Pair, Span, check_span, find, op, select
from fasteraa.ops.forward import NO_SPANS, Spans, hard, hard_pillow, physical, soft, soft_mixture, straight_through

__all__ = [
    "NO_SPANS",
    "OPS",
    "Context",
    "Family",
    "Op",
    "Pair",
    "Span",
    "Spans",
    "check_span",
    "find",
    "hard",
    "hard_pillow",
    "op",
    "physical",
    "select",
    "soft",
    "soft_mixture",
    "straight_through",
]
