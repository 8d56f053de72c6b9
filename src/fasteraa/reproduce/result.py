"""What a reproduction comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fasteraa.evaluate.statistics import Estimate, estimate
from fasteraa.reproduce.tables import Line, Table


@dataclass(frozen=True)
class Found:
    """A line of the paper, and what we measured."""

    line: Line
    values: Mapping[int, float]  # seed -> measured
    remark: str  # why there is no number of ours, or fewer than planned

    @property
    def ours(self) -> Estimate | None:
        """The mean over seeds with its interval; None if nothing was measured."""
        return estimate(list(self.values.values())) if self.values else None


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper with our numbers beside it."""

    table: Table
    found: tuple[Found, ...]
    runs: int  # planned for every number
    quick: bool
    remarks: tuple[str, ...]  # where this differs from the paper
    devices: tuple[str, ...]
