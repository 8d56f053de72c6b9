"""The table of a comparison: errors of every contender, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fasteraa.comparison.contenders import YARDSTICKS, Contender, jobs_of
from fasteraa.data.source import whole_and_split
from fasteraa.policy.named import named
from fasteraa.runtime.device import device_name
from fasteraa.train.job import Outcome
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split
from fasteraa.train.statistics import Estimate, estimate, paired


@dataclass(frozen=True)
class ComparisonRow:
    """What the runs of one contender tell."""

    label: str
    hashes: tuple[str, ...]
    errors: Mapping[int, float]  # seed -> % of the held-out images
    error: Estimate
    against: Mapping[str, Estimate]  # yardstick -> difference in points, paired by seed
    search_seconds: float | None
    train_seconds: float  # of a run; of runs side by side, their share
    learning_rate: float | None = None  # where each policy has one that was chosen for it


@dataclass(frozen=True)
class Comparison:
    """The table of `compare`, and what it was measured on."""

    data: str
    train_images: int
    held_out_images: int
    held_out_from: str
    recipe: TrainRecipe
    device: str  # where the runs were made
    rows: tuple[ComparisonRow, ...]
    missing: int  # cells that have not been run
    diverged: tuple[str, ...] = ()  # cells that diverged, and why
    seen: tuple[str, ...] = ()  # rows whose policy was found on images that errors are measured on
    missing_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # label -> seeds that have not been run
    absent: tuple[str, ...] = ()  # labels without a row: none of their runs came to an error
    overlap_count: int = 0  # held-out images that are among the training images, too
    metric: str = "error"  # what the rows hold: error or balanced-error in %, or loss

    def __repr__(self) -> str:
        runs = sum(len(row.errors) for row in self.rows)
        return f"<Comparison on {self.data}: {len(self.rows)} policies, {runs} runs, {self.missing} missing>"

    def __str__(self) -> str:
        width = max((len(row.label) for row in self.rows), default=0)
        lines = [f"{self.metric} on {self.held_out_images} images of {self.data} ({self.held_out_from})"]
        for row in sorted(self.rows, key=lambda row: row.error.mean):
            half = "" if math.isinf(row.error.half) else f" ± {row.error.half:.2f}"
            lines.append(f"  {row.label:{width}}  {row.error.mean:8.3f}{half}  {len(row.errors)} runs")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `comparison.json` holds them."""
        return asdict(self)


def tabulate(
    cache: RunCache,
    split: Split,
    contenders: Sequence[Contender],
    recipe: TrainRecipe,
    seeds: Sequence[int],
    device: str,
    metric: str = "error",
) -> Comparison:
    """From the runs that are there; differences are paired by seed, over the seeds that both have."""
    outcomes: dict[str, dict[int, Outcome]] = {contender.label: {} for contender in contenders}
    missing: dict[str, tuple[int, ...]] = {}
    diverged = []
    for job in jobs_of(contenders, recipe, seeds, split):
        outcome = cache.read(job)
        if outcome is None:
            missing[job.label] = (*missing.get(job.label, ()), job.seed)
        elif outcome.failed:
            diverged.append(f"{job} ({outcome.failed})")
        else:
            outcomes[job.label][job.seed] = outcome
    errors = {label: {seed: _value(each, metric) for seed, each in row.items()} for label, row in outcomes.items()}
    yardsticks = {name: label for name in YARDSTICKS if (label := _label_of(name, contenders)) is not None}
    rows = [_row(each, outcomes[each.label], errors, yardsticks) for each in contenders if outcomes[each.label]]
    devices = {str(r.record.get("device", "unknown device")) for row in outcomes.values() for r in row.values()}
    return Comparison(
        split.train.name,
        len(split.train),
        len(split.held_out),
        split.name,
        recipe,
        ", ".join(sorted(devices)) or device_name(device),
        tuple(rows),
        sum(map(len, missing.values())),
        tuple(diverged),
        tuple(each.label for each in contenders if outcomes[each.label] and has_seen(each, split)),
        missing,
        tuple(each.label for each in contenders if not outcomes[each.label]),
        split.overlap_count,
        metric,
    )


def _value(outcome: Outcome, metric: str) -> float:
    return outcome.loss if metric == "loss" else outcome.by(metric)[0]


def has_seen(contender: Contender, split: Split) -> bool:
    """Was one of its policies found on images that errors are measured on? Names decide where fingerprints cannot."""
    return any(_saw(policy.provenance, split) for policy in contender.policies)


def _saw(provenance: Mapping[str, Any], split: Split) -> bool:
    """A search takes all images of its split unless it left out what is held out here."""
    data, config = provenance.get("data"), provenance.get("config")
    if _chosen_on(provenance.get("race"), split):
        return True
    if not isinstance(data, Mapping):
        return False
    if data.get("fingerprint") in (split.train.fingerprint, split.held_out.fingerprint):
        return bool(data["fingerprint"] == split.held_out.fingerprint)
    if whole_and_split(str(data.get("name"))) != split.measured:
        return False
    left_out = config.get("held_out", 0.0) if isinstance(config, Mapping) else 0.0
    return not isinstance(left_out, int | float) or not split.share or split.seed != 0 or left_out < split.share


def _chosen_on(race: Any, split: Split) -> bool:
    """Whether the validation images of a race are those that errors are measured on."""
    validation = race.get("validation") if isinstance(race, Mapping) else None
    if not isinstance(validation, Mapping):
        return False
    same = validation.get("fingerprint") == split.held_out.fingerprint
    return same or whole_and_split(str(validation.get("name"))) == split.measured


def is_yardstick(name: str, label: str, hashes: Sequence[str]) -> bool:
    """Also under another label."""
    return label == name or set(hashes) == {named(name).hash}


def _label_of(yardstick: str, contenders: Sequence[Contender]) -> str | None:
    hashes = {each.label: [policy.hash for policy in each.policies] for each in contenders}
    return next((label for label, own in hashes.items() if is_yardstick(yardstick, label, own)), None)


def _row(
    contender: Contender,
    outcomes: dict[int, Outcome],
    errors: dict[str, dict[int, float]],
    yardsticks: Mapping[str, str],
) -> ComparisonRow:
    mine = errors[contender.label]
    against = {}
    for yardstick, label in yardsticks.items():
        shared = sorted(set(mine) & set(errors[label]))
        if shared and label != contender.label:
            against[yardstick] = paired([mine[s] for s in shared], [errors[label][s] for s in shared])
    return ComparisonRow(
        contender.label,
        tuple(policy.hash for policy in contender.policies),
        mine,
        estimate(list(mine.values())),
        against,
        contender.search_seconds,
        sum(each.seconds for each in outcomes.values()) / len(outcomes),
        contender.learning_rate,
    )
