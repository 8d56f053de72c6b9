"""How often is what a race chooses worse than no augmentation, and what does its caution cost? On recorded trainings.

    python tools/decision.py results/adapt/measured.json

Races are replayed: on one or two folds of a set every policy was trained once, the prior is fitted to the other sets,
and `selection.ranking` decides. The truth is the loss on the folds that the race did not see, in trainings of the same
length or of four times the length. Each set is judged by lines that it had no part in.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import prior

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.policy import Policy
from fasteraa.selection import ranking
from fasteraa.selection.prior import Traits, predict
from fasteraa.train.metrics import Measured

LEVELS = (1e-9, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
Rows = Mapping[tuple[str, int, str], Mapping[str, Any]]


@dataclass(frozen=True)
class Replay:
    """A race on some folds, and what its policies did on the others: the logarithm of the loss relative to `none`."""

    set: str
    epochs: int
    length: float
    folds: int
    trials: tuple[ranking.Trial, ...]
    truth: Mapping[str, float]
    noise: float  # one standard error of the truth


def replays(content: Mapping[str, Any], folder: Path, use_prior: bool = True) -> Iterator[Replay]:
    for name, record in content["sets"].items():
        file = folder / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(prior.fitted(prior.without_sets(content, [name]))))
        rows: Rows = {(row["label"], row["epochs"], row["on"]): row for row in record["rows"] if not row["failed"]}
        for epochs, later in ((prior.SHORT, prior.SHORT), (prior.LONG, prior.LONG), (prior.SHORT, prior.LONG)):
            yield from _of_set(name, record, rows, epochs, later, str(file), use_prior)


def _of_set(
    name: str, record: Mapping[str, Any], rows: Rows, epochs: int, later: int, file: str, use_prior: bool
) -> Iterator[Replay]:
    folds = [f"fold {number + 1}" for number in range(prior.FOLDS)]
    policies = prior.policies_of(record)
    labels = [label for label in policies if all((label, epochs, fold) in rows for fold in folds)]
    labels = [label for label in labels if all((label, later, fold) in rows for fold in folds)]
    if "none" not in labels:
        return
    seen = {each["fold"]: each for each in record["seen"] if each["epochs"] == epochs}
    images = record["images"] // prior.FOLDS
    for count in (1, 2):
        for raced in combinations(folds, count):
            others = [fold for fold in folds if fold not in raced]
            expected = _expected(policies, rows, seen[raced[0]], epochs, file) if use_prior else {}
            trials = tuple(
                _trial(
                    Candidate(label, policies[label], expected=expected.get(label)),
                    [rows[label, epochs, fold] for fold in raced],
                    images=images * count,
                    length=later / epochs,
                    prior=file,
                )
                for label in labels
            )
            truth = {
                label: fmean(_log(rows[label, later, f]) - _log(rows["none", later, f]) for f in others)
                for label in labels
            }
            noise = trials[0].noise * math.sqrt(count / len(others))
            yield Replay(name, epochs, later / epochs, count, trials, truth, noise)


def _log(row: Mapping[str, Any]) -> float:
    return math.log(row["loss"])


def _expected(
    policies: Mapping[str, Policy], rows: Rows, seen: Mapping[str, Any], epochs: int, file: str
) -> dict[str, Expected]:
    plain, none = Measured(**seen["plain"]), rows["none", epochs, seen["fold"]]
    return {
        label: predict(Traits.of(policy, plain, Measured(**seen["of"][label]), none["train_loss"]), file)
        for label, policy in policies.items()
        if label != "none"
    }


def _trial(candidate: Candidate, rows: Sequence[Mapping[str, Any]], **settings: Any) -> ranking.Trial:
    return ranking.Trial(
        candidate,
        errors=tuple(row["error"] for row in rows),
        losses=tuple(row["train_loss"] for row in rows),
        scores=tuple(row["loss"] for row in rows),
        **settings,
    )


# --- what is told of them --------------------------------------------------------------------------------------------


def chosen_at(replay: Replay, level: float) -> str:
    """What a race chooses if a policy must be better than `none` with this probability."""
    before, ranking.PROBABLY = ranking.PROBABLY, level
    try:
        return ranking.choose(replay.trials).label
    finally:
        ranking.PROBABLY = before


def decisions(some: Sequence[Replay]) -> Iterator[str]:
    columns = (
        "probability asked for",
        "something is chosen",
        "worse",
        "clearly worse",
        "change of the loss",
        "of those",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---" * 6 + "|"
    for level in LEVELS:
        values, worse, clearly = [], 0, 0
        for replay in some:
            value = replay.truth[chosen_at(replay, level)]
            values.append(value)
            worse += value > 0
            clearly += value > 2 * replay.noise
        count, share = sum(value != 0 for value in values), [value for value in values if value != 0]
        yield (
            f"| {level:.0%} | {count / len(some):.0%} | {worse / max(count, 1):.0%} | {clearly / max(count, 1):.0%} "
            f"| {fmean(values):+.3f} | {fmean(share or [0.0]):+.3f} |"
        )
    best = fmean(min(replay.truth.values()) for replay in some)
    yield f"| the best in truth | | | | {best:+.3f} | |"


def calibration(some: Sequence[Replay]) -> Iterator[str]:
    """Of all candidates: how often they are better in truth, by the probability that the race gave."""
    pairs, scores = [], []
    for replay in some:
        differences = dict(zip((t.label for t in replay.trials), ranking.differences(replay.trials), strict=True))
        for label, difference in differences.items():
            if label != "none":
                pairs.append((difference.better, replay.truth[label] < 0))
                away = replay.truth[label] - difference.mean
                scores.append(away / math.hypot(difference.spread, replay.noise))
    yield "| probability given | better in truth | n |\n|---|---|---|"
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        hits = [better for given, better in pairs if low <= given < high]
        if hits:
            yield f"| {low:.0%} to {min(high, 1):.0%} | {np.mean(hits):.0%} | {len(hits)} |"
    yield f"\nstandardised errors: mean {np.mean(scores):+.2f}, spread {np.std(scores):.2f} (1 if calibrated)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    content = json.loads(given.file.read_text())
    with TemporaryDirectory() as scratch:
        known = list(replays(content, Path(scratch)))
        bare = [_without_expectations(each) for each in known]
        for title, some in (("with the prior", known), ("by what was raced alone", bare)):
            for length in (1.0, 4.0):
                of_length = [each for each in some if each.length == length]
                print(f"\n## {title}, trainings to come of {length:g} times the length, {len(of_length)} races\n")
                print("\n".join(decisions(of_length)), end="\n\n")
                print("\n".join(calibration(of_length)))


def _without_expectations(replay: Replay) -> Replay:
    trials = tuple(replace(t, candidate=replace(t.candidate, expected=None)) for t in replay.trials)
    return replace(replay, trials=trials)


if __name__ == "__main__":
    main()
