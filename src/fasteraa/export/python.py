"""python: a standalone file. It is the source of `_standalone.py`, which is tested like any other, with the policy."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from pprint import pformat
from typing import Any

from fasteraa._version import __version__
from fasteraa.export.embed import title
from fasteraa.export.fidelity import lines, live
from fasteraa.ops import find
from fasteraa.ops.declare import SIDES
from fasteraa.policy.draw import POSITIVE
from fasteraa.policy.policy import Choice, Policy, SubPolicy


def render(policy: Policy) -> str:
    source = files("fasteraa.export").joinpath("_standalone.py").read_text(encoding="utf-8")
    head = "\n".join([f"{title(policy)}, written by fasteraa {__version__}.", "", *lines(policy, "python")])
    literal = pformat(_content(live(policy)), width=118, sort_dicts=False)
    with_policy = source.replace("POLICY: dict = {}", f"POLICY = {literal}", 1)
    return with_policy.replace("TITLE", head, 1)  # last: a name may hold anything


def text(policy: Policy, path: Path) -> str:
    return render(policy)


def _content(policy: Policy) -> dict[str, Any]:
    """Only what can happen: (share, number of passes), and (weight, stages) of each sub-policy, where a stage holds
    (weight, op, probability, low, high, positive). Of a policy with a schedule the parts: (end, sub-policies).
    """
    parts = [(part.end, [_sub(sub) for sub in part.policy.sub_policies]) for part in policy.parts]
    passes = [(share, number) for number, share in enumerate(policy.strength.passes) if share > 0]
    spans = {op: _span(policy, op) for op in policy.ops if find(op).span is not None}
    return {"fill": policy.fill, "hole_fill": policy.hole_fill, "spans": spans, "passes": passes, "parts": parts}


def _sub(sub: SubPolicy) -> tuple[Any, ...]:
    return (sub.weight, [[_option(choice) for choice in stage if choice.weight > 0] for stage in sub.stages])


def _option(choice: Choice) -> tuple[Any, ...]:
    return (choice.weight, choice.op, choice.probability, *choice.range, POSITIVE[choice.sign])


def _span(policy: Policy, op: str) -> tuple[float, float, str]:
    """The ends, and what remains to be done with a value: times a side of the image, or to a fine grid of pixels."""
    span, row = policy.span(op), find(op)
    assert span is not None
    counted = "pixels" if span.unit == "px" and row.discrete else ""
    return span.at_zero, span.at_one, span.unit if span.unit in SIDES else counted
