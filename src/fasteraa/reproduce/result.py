"""What a reproduction comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fasteraa.evaluate.statistics import Estimate, estimate, paired
from fasteraa.reproduce.declare import Line, Table


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


@dataclass(frozen=True)
class Standing:
    """How a policy does over several data sets."""

    label: str
    rank: float  # mean over its data sets; equal errors share their ranks
    sets: int
    ahead: Mapping[str, int]  # rival -> data sets where it is significantly (p < 0.05, paired by seed) better
    behind: Mapping[str, int]


def standings(result: Reproduction, rivals: tuple[str, ...]) -> list[Standing]:
    """Over the data sets where something was measured; the best mean rank first."""
    by_data: dict[str, dict[str, Mapping[int, float]]] = {}
    for found in result.found:
        if found.values:
            by_data.setdefault(found.line.data, {})[found.line.label] = found.values
    labels = dict.fromkeys(label for measured in by_data.values() for label in measured)
    return sorted((_standing(label, by_data, rivals) for label in labels), key=lambda each: each.rank)


def _standing(
    label: str, by_data: Mapping[str, Mapping[str, Mapping[int, float]]], rivals: tuple[str, ...]
) -> Standing:
    ranks, ahead, behind = [], dict.fromkeys(rivals, 0), dict.fromkeys(rivals, 0)
    for measured in by_data.values():
        if label not in measured:
            continue
        mine = estimate(list(measured[label].values())).mean
        others = [estimate(list(values.values())).mean for name, values in measured.items() if name != label]
        ranks.append(1 + sum(other < mine for other in others) + sum(other == mine for other in others) / 2)
        for rival in rivals:
            seeds = sorted(measured[label].keys() & measured.get(rival, {}).keys())
            if rival != label and seeds:
                found = paired([measured[label][s] for s in seeds], [measured[rival][s] for s in seeds])
                ahead[rival] += found.significant and found.mean < 0
                behind[rival] += found.significant and found.mean > 0
    return Standing(label, sum(ranks) / len(ranks), len(ranks), ahead, behind)
