"""python: a standalone file. It is the source of `_standalone.py`, which is tested like any other, with the policy."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from pprint import pformat
from typing import Any

from fasteraa._version import __version__
from fasteraa.export.embed import title
from fasteraa.export.fidelity import lines
from fasteraa.ops import find
from fasteraa.ops.declare import SIDES
from fasteraa.policy.artifact import Choice, Policy
from fasteraa.policy.draw import POSITIVE


def render(policy: Policy) -> str:
    source = files("fasteraa.export").joinpath("_standalone.py").read_text(encoding="utf-8")
    head = "\n".join([f"{title(policy)}, written by fasteraa {__version__}.", "", *lines(policy, "python")])
    literal = pformat(_content(policy), width=118, sort_dicts=False)
    return source.replace("TITLE", head, 1).replace("POLICY: dict = {}", f"POLICY = {literal}", 1)


def text(policy: Policy, path: Path) -> str:
    return render(policy)


def _content(policy: Policy) -> dict[str, Any]:
    """Only what can happen: (weight, stages), where a stage holds (weight, op, probability, low, high, positive)."""
    subs = [
        (sub.weight, [[_option(choice) for choice in stage if choice.weight > 0] for stage in sub.stages])
        for sub in policy.sub_policies
        if sub.weight > 0
    ]
    spans = {op: _span(policy, op) for op in policy.ops if find(op).span is not None}
    return {"fill": policy.fill, "hole_fill": policy.hole_fill, "spans": spans, "sub_policies": subs}


def _option(choice: Choice) -> tuple[Any, ...]:
    return (choice.weight, choice.op, choice.probability, *choice.range, POSITIVE[choice.sign])


def _span(policy: Policy, op: str) -> tuple[float, float, str]:
    """The ends, and the unit as far as the file needs it: a side that is a share of the image, or whole pixels."""
    span, row = policy.span(op), find(op)
    assert span is not None
    if span.unit in SIDES:
        return span.at_zero, span.at_one, span.unit
    return span.at_zero, span.at_one, "whole px" if span.unit == "px" and row.discrete else ""
