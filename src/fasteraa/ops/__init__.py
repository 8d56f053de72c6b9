"""What can be done to an image: 17 operations in four families, each with a hard and a soft forward."""

from fasteraa.ops import warp, tone, blend, erase  # noqa: F401, I001  (in the order of the table)
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
