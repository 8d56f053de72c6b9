"""What a reproduction comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fasteraa.reproduce.schema import Line, Table
from fasteraa.train.statistics import Estimate, estimate, paired


@dataclass(frozen=True)
class Found:
    """A line of the paper, and what we measured."""

    line: Line
    values: Mapping[int, float]  # seed -> measured
    remark: str  # why there is no number of ours, or fewer than planned
    asked_for: bool = True  # False where `only` left it out: it may have been run before
    comparable: bool = True  # False where ours was trained on fewer images, or others, than the paper's
    stand_in: str = ""  # the network that made our number, where it is another than the line's
    known: bool = True  # False where it cannot be told what was run, because the images are not there

    @property
    def ours(self) -> Estimate | None:
        """The mean over seeds with its interval; None if nothing was measured."""
        return estimate(list(self.values.values())) if self.values else None

    @property
    def network(self) -> str:
        """That of the line, and of our number."""
        return f"{self.line.network} (ours: {self.stand_in})" if self.stand_in else self.line.network


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper with our numbers beside it."""

    table: Table
    found: tuple[Found, ...]
    runs: int  # planned for every number
    quick: bool
    remarks: tuple[str, ...]  # where this differs from the paper
    devices: tuple[str, ...]
    file: str = "table"  # what its files are called


@dataclass(frozen=True)
class Standing:
    """How a policy does over several data sets."""

    label: str
    rank: float  # mean over its data sets; equal errors share their ranks
    sets: int
    ahead: Mapping[str, int]  # rival -> data sets where it is significantly (p < 0.05, paired by seed) better
    behind: Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """How a policy does on one data set, beside the others there."""

    rank: float  # 1 is the fewest errors; equal errors share their ranks
    against: Mapping[str, Estimate]  # rival -> difference, paired by seed


Measured = Mapping[str, Mapping[int, float]]  # label -> seed -> error, of one data set


def places(result: Reproduction, rivals: tuple[str, ...]) -> dict[str, dict[str, Place]]:
    """Data set -> label -> place, where something was measured."""
    by_data: dict[str, dict[str, Mapping[int, float]]] = {}
    for found in result.found:
        if found.values:
            by_data.setdefault(found.line.data, {})[found.line.label] = found.values
    return {data: {label: _place(label, measured, rivals) for label in measured} for data, measured in by_data.items()}


def standings(result: Reproduction, rivals: tuple[str, ...]) -> list[Standing]:
    """Over the data sets where something was measured; the best mean rank first."""
    found = list(places(result, rivals).values())
    labels = dict.fromkeys(label for on_set in found for label in on_set)
    standing = (_standing(label, [on_set[label] for on_set in found if label in on_set], rivals) for label in labels)
    return sorted(standing, key=lambda each: each.rank)


def _standing(label: str, found: Sequence[Place], rivals: tuple[str, ...]) -> Standing:
    clear = {rival: [p.against[rival].mean for p in found if rival in p.against and p.against[rival].significant]
             for rival in rivals}  # fmt: skip
    ahead = {rival: sum(mean < 0 for mean in means) for rival, means in clear.items()}
    behind = {rival: sum(mean > 0 for mean in means) for rival, means in clear.items()}
    return Standing(label, sum(each.rank for each in found) / len(found), len(found), ahead, behind)


def _place(label: str, measured: Measured, rivals: tuple[str, ...]) -> Place:
    # equal errors in another order of seeds have means that differ in their last digit
    means = {name: round(estimate(list(values.values())).mean, 9) for name, values in measured.items()}
    mine, others = means[label], [mean for name, mean in means.items() if name != label]
    rank = 1 + sum(other < mine for other in others) + sum(other == mine for other in others) / 2
    against = {}
    for rival in rivals:
        seeds = sorted(measured[label].keys() & measured.get(rival, {}).keys())
        if rival != label and seeds:
            against[rival] = paired([measured[label][s] for s in seeds], [measured[rival][s] for s in seeds])
    return Place(rank, against)
