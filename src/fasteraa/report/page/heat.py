"""The heat map: operations by stages of sub-policies, before and after the gradient search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fasteraa.ops import OPS
from fasteraa.policy.describe import describe_choice
from fasteraa.policy.policy import Choice, Policy

MEASURES = {
    "chosen": "How often the stage chooses it",
    "probability": "Probability once chosen",
    "magnitude": "Magnitude",
    "applied": "How often it is applied",
}


@dataclass(frozen=True)
class _Cell:
    """One operation in one stage: shares of choosing it, its probability, its magnitude; None where it is not there."""

    chosen: float
    probability: float
    magnitude: float | None
    words: str

    @property
    def applied(self) -> float:
        return self.chosen * self.probability


def heat_map(start: Policy | None, end: Policy | None) -> dict[str, Any] | None:
    """Operations by stages of sub-policies, before and after."""
    if end is None:
        return None
    sides = {"after": end} if start is None else {"before": start, "after": end}
    grids = {side: _grid(policy) for side, policy in sides.items()}
    columns = sorted({place for grid in grids.values() for place, _ in grid})
    used = {op for grid in grids.values() for _, op in grid}
    ops = [op for op in OPS if op in used]
    spots = [(place, op) for op in ops for place in columns]
    values = {
        side: {name: [_rounded(getattr(grid.get(s), name, None)) for s in spots] for name in MEASURES}
        for side, grid in grids.items()
    }
    words = {side: [grid[s].words if s in grid else "" for s in spots] for side, grid in grids.items()}
    most = max((sub for sub, _ in columns), default=0)
    return {
        "ops": ops,
        "columns": columns,
        "subs": [sum(sub == number for sub, _ in columns) for number in range(1, most + 1)],
        "values": values,
        "words": words,
        "sides": list(sides),
        "measures": MEASURES,
        "shown": values["after"]["chosen"],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _grid(policy: Policy) -> dict[tuple[tuple[int, int], str], _Cell]:
    """((sub-policy, stage), operation) -> what the policy does there."""
    grid: dict[tuple[tuple[int, int], str], _Cell] = {}
    for number, sub in enumerate(policy.sub_policies, 1):
        for k, stage in enumerate(sub.stages, 1):
            total = sum(choice.weight for choice in stage)
            for op in dict.fromkeys(choice.op for choice in stage):
                same = [choice for choice in stage if choice.op == op]
                grid[(number, k), op] = _cell(policy, same, total)
    return grid


def _cell(policy: Policy, same: Sequence[Choice], total: float) -> _Cell:
    """An operation may stand several times in a stage, at several magnitudes: their mean by weight."""
    weight = sum(choice.weight for choice in same)
    shares = [choice.weight / weight if weight else 1 / len(same) for choice in same]
    middles = [None if choice.magnitude is None else sum(choice.range) / 2 for choice in same]
    magnitude = None if None in middles else sum(s * m for s, m in zip(shares, middles, strict=True) if m is not None)
    words = describe_choice(policy, same[0]) + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    probability = sum(share * choice.probability for share, choice in zip(shares, same, strict=True))
    return _Cell(weight / total, probability, magnitude, f"chosen {weight / total:.0%}, {words}")
