"""What a reproduction holds: our numbers, line by line, and how policies rank over several data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fasteraa.reproduce.schema import Cost, Line, Table
from fasteraa.train.statistics import Estimate, estimate, paired


@dataclass(frozen=True)
class LineResult:
    """A line of the paper, and what we measured."""

    line: Line
    values: Mapping[int, float]  # seed -> measured
    remark: str  # why there is no number of ours, or fewer than planned
    asked_for: bool = True  # False where `only` left it out: it may have been run before
    comparable: bool = True  # False where ours was trained on fewer images, or others, than the paper's
    stand_in: str = ""  # the network that made our number, where it is another than the line's
    known: bool = True  # False where what was run cannot be found, because the images are not there

    @property
    def ours(self) -> Estimate | None:
        """The mean over seeds with its interval; None if nothing was measured."""
        return estimate(list(self.values.values())) if self.values else None

    def runs(self, planned: int) -> int:
        """How many are needed: of what is extrapolated there is one."""
        return 1 if isinstance(self.line.policy, Cost) else planned

    @property
    def label(self) -> str:
        """That of the line, and which error it is of."""
        return f"{self.line.label} (top-5)" if self.line.measure == "error_top5" else self.line.label

    @property
    def network(self) -> str:
        """That of the line, and of our number."""
        return f"{self.line.network} (ours: {self.stand_in})" if self.stand_in else self.line.network


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper with our numbers beside it."""

    table: Table
    lines: tuple[LineResult, ...]
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
    better: Mapping[str, int]  # rival -> data sets where it is significantly (p < 0.05, paired by seed) better
    worse: Mapping[str, int]


@dataclass(frozen=True)
class RankOnSet:
    """How a policy does on one data set, beside the others there."""

    rank: float  # 1 is the fewest errors; equal errors share their ranks
    against: Mapping[str, Estimate]  # rival -> difference, paired by seed


Measured = Mapping[str, Mapping[int, float]]  # label -> seed -> error, of one data set


def ranks_by_set(result: Reproduction, rivals: tuple[str, ...]) -> dict[str, dict[str, RankOnSet]]:
    """Data set -> label -> rank, where something was measured."""
    by_data: dict[str, dict[str, Mapping[int, float]]] = {}
    for row in result.lines:
        if row.values:
            by_data.setdefault(row.line.data, {})[row.line.label] = row.values
    return {
        data: {label: _rank_on_set(label, measured, rivals) for label in measured} for data, measured in by_data.items()
    }


def standings(result: Reproduction, rivals: tuple[str, ...]) -> list[Standing]:
    """Over the data sets where something was measured; the best mean rank first."""
    by_set = list(ranks_by_set(result, rivals).values())
    labels = dict.fromkeys(label for on_set in by_set for label in on_set)
    rows = (_standing(label, [on_set[label] for on_set in by_set if label in on_set], rivals) for label in labels)
    return sorted(rows, key=lambda row: row.rank)


def _standing(label: str, ranked: Sequence[RankOnSet], rivals: tuple[str, ...]) -> Standing:
    better, worse = {}, {}
    for rival in rivals:
        differences = [on_set.against[rival] for on_set in ranked if rival in on_set.against]
        significant = [each.mean for each in differences if each.significant]
        better[rival], worse[rival] = sum(mean < 0 for mean in significant), sum(mean > 0 for mean in significant)
    return Standing(label, sum(on_set.rank for on_set in ranked) / len(ranked), len(ranked), better, worse)


def _rank_on_set(label: str, measured: Measured, rivals: tuple[str, ...]) -> RankOnSet:
    # equal errors in another order of seeds have means that differ in their last digit
    means = {name: round(estimate(list(values.values())).mean, 9) for name, values in measured.items()}
    mine, others = means[label], [mean for name, mean in means.items() if name != label]
    rank = 1 + sum(other < mine for other in others) + sum(other == mine for other in others) / 2
    against = {}
    for rival in rivals:
        seeds = sorted(measured[label].keys() & measured.get(rival, {}).keys())
        if rival != label and seeds:
            against[rival] = paired([measured[label][s] for s in seeds], [measured[rival][s] for s in seeds])
    return RankOnSet(rank, against)
