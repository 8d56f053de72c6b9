"""How often is what a race chooses worse than no augmentation, and what does its caution cost? On recorded trainings.

    python tools/decision.py results/adapt/measured.json
    python tools/decision.py results/adapt/small.json    # two folds: the replayed races alone

Races are replayed: on one or two folds of a set every policy was trained once, the prior is fitted to the other sets,
and `selection.ranking` decides. The truth is the loss on the folds that the race did not see, in trainings of the same
length or of four times the length. Each set is judged by lines that it had no part in. The same record
tells where the noise of a race is and, by simulation, which trainings tell most.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import NormalDist, fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import prior

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.policy import Policy
from fasteraa.selection import ranking
from fasteraa.selection.prior import PriorOf, Traits, predict
from fasteraa.selection.schedule import trainings_of_rounds
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


class Lengths(NamedTuple):
    """Epochs of the race's trainings, of those that say the truth, and of those that the race chooses for."""

    raced: int
    true: int
    expected: int


KNOWN = tuple(
    Lengths(raced, true, true)
    for raced, true in ((prior.SHORT, prior.SHORT), (prior.LONG, prior.LONG), (prior.SHORT, prior.LONG))
)


def replays(
    content: Mapping[str, Any], folder: Path, use_prior: bool = True, some: Sequence[Lengths] = KNOWN
) -> Iterator[Replay]:
    for name, record in content["sets"].items():
        file = folder / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(prior.prior_of([prior.without_sets(content, [name])])))
        rows: Rows = {(row["label"], row["epochs"], row["on"]): row for row in record["rows"] if not row["failed"]}
        for each in some:
            yield from _of_set(name, record, rows, each, PriorOf(str(file)), use_prior)


def _of_set(
    name: str, record: Mapping[str, Any], rows: Rows, lengths: Lengths, lines: PriorOf, use_prior: bool
) -> Iterator[Replay]:
    epochs, later, length = lengths.raced, lengths.true, lengths.expected / lengths.raced
    folds = sorted({fold for _, _, fold in rows if fold.startswith("fold")})
    policies = prior.policies_of(record)
    labels = [label for label in policies if all((label, epochs, fold) in rows for fold in folds)]
    labels = [label for label in labels if all((label, later, fold) in rows for fold in folds)]
    if "none" not in labels:
        return
    policies = {label: policies[label] for label in labels}
    seen = {each["fold"]: each for each in record["seen"] if each["epochs"] == epochs}
    images = record["images"] // prior.FOLDS
    for count in range(1, len(folds)):
        for raced in combinations(folds, count):
            others = [fold for fold in folds if fold not in raced]
            expected = _expected(policies, rows, seen[raced[0]], epochs, length, lines) if use_prior else {}
            trials = tuple(
                _trial(
                    Candidate(label, policies[label], expected=expected.get(label)),
                    [rows[label, epochs, fold] for fold in raced],
                    images=images * count,
                    length=length,
                    prior=lines,
                )
                for label in labels
            )
            truth = {
                label: fmean(_log(rows[label, later, f]) - _log(rows["none", later, f]) for f in others)
                for label in labels
            }
            noise = trials[0].noise * math.sqrt(count / len(others))
            yield Replay(name, epochs, length, count, trials, truth, noise)


def _log(row: Mapping[str, Any]) -> float:
    return math.log(row["loss"])


def _expected(
    policies: Mapping[str, Policy], rows: Rows, seen: Mapping[str, Any], epochs: int, length: float, lines: PriorOf
) -> dict[str, Expected]:
    plain, none = Measured(**seen["plain"]), rows["none", epochs, seen["fold"]]
    return {
        label: predict(
            Traits.of(policy, plain, Measured(**seen["of"][label]), none["train_loss"]).after(length, lines), lines
        )
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


def guessed_lengths(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Races of short trainings on one fold that choose for a length: what the choice does in short and long ones."""
    short, long = prior.SHORT, prior.LONG
    yield f"| chosen for | a policy is chosen | change at {short} epochs | worst | at {long} epochs | worst |"
    yield "|---" * 6 + "|"
    for expected in range(short, long + 1, short):
        cells = []
        for true in (short, long):
            some = list(replays(content, folder, some=[Lengths(short, true, expected)]))
            changes = [each.truth[chosen_at(each, ranking.PROBABLY)] for each in some if each.folds == 1]
            cells += [f"{fmean(changes):+.3f}", f"{max(changes):+.2f}"]
        share = fmean(change != 0 for change in changes)
        yield f"| {expected} epochs | {share:.0%} | {' | '.join(cells)} |"


# --- where the noise is ----------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """Variances of the log loss on a set: of its candidates, its folds (with their seeds), and what neither explains.

    `difference`: of one training's difference to `none` between folds; `common`: the part that all policies share.
    """

    candidates: float
    folds: float
    rest: float
    difference: float
    common: float

    @classmethod
    def of(cls, losses: np.ndarray, none: int) -> Parts:
        """Of logarithms, a row for each policy and a column for each fold."""
        count, folds = losses.shape
        residuals = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
        rest = float((residuals**2).sum() / ((count - 1) * (folds - 1)))
        away = np.delete(losses, none, 0) - losses[none]
        away -= away.mean(1, keepdims=True)
        return cls(
            max(float(losses.mean(1).var(ddof=1)) - rest / folds, 0.0),
            float(losses.mean(0).var(ddof=1)),
            rest,
            float((away**2).sum() / (len(away) * (folds - 1))),
            float((away.mean(0) ** 2).sum() / (folds - 1)),
        )


def parts_of(content: Mapping[str, Any], epochs: int) -> Parts:
    """The mean over the sets that have all folds."""
    found = []
    for record in content["sets"].values():
        rows = {
            (row["label"], row["on"]): _log(row)
            for row in record["rows"]
            if row["epochs"] == epochs and row["on"].startswith("fold") and not row["failed"]
        }
        labels, folds = sorted({label for label, _ in rows}), sorted({fold for _, fold in rows})
        if len(folds) == prior.FOLDS:
            losses = np.array([[rows[label, fold] for fold in folds] for label in labels])
            found.append(Parts.of(losses, labels.index("none")))
    return Parts(*np.mean(found, 0))


def noise_table(content: Mapping[str, Any]) -> Iterator[str]:
    yield "| epochs | candidates | folds | rest | sd of a difference to none | of it common to all policies |"
    yield "|---" * 6 + "|"
    for epochs in (prior.SHORT, prior.LONG):
        parts = parts_of(content, epochs)
        shares = np.array(parts[:3]) / sum(parts[:3])
        yield (
            f"| {epochs} | {' | '.join(f'{share:.0%}' for share in shares)} | {math.sqrt(parts.difference):.3f} | "
            f"{math.sqrt(parts.common):.3f} |"
        )


def seed_spread(none: bool) -> float:
    """Of the log loss on test images between seeds, of `none` or of policies that no search chose."""
    variances = []
    for record in json.loads(prior.RACES.read_text())["sets"].values():
        losses: dict[str, list[float]] = {}
        for row in record["rows"]:
            losses.setdefault(row["label"], []).append(_log(row))
        some = [each for label, each in losses.items() if (label == "none") == none and label not in record["searches"]]
        variances.append(fmean(float(np.var(each, ddof=1)) for each in some))
    return math.sqrt(fmean(variances))


def errors_by_length(content: Mapping[str, Any]) -> Iterator[str]:
    """Of the prior, each set by the others, beside the mean of the policy at that length on the others."""
    line, keys = prior.effect_rows(content), prior.effect_keys(content)
    values, labels, lengths = prior.predicted_elsewhere(line, True), *map(np.array, zip(*keys, strict=True))
    means = np.array(
        [
            line.y[(labels == label) & (lengths == epochs) & (line.sets != name)].mean()
            for label, epochs, name in zip(labels, lengths, line.sets, strict=True)
        ]
    )
    yield "| epochs | this prior | the policy's mean at that length | no effect | n |"
    yield "|---" * 5 + "|"
    for epochs in (prior.SHORT, prior.LONG):
        at = lengths == epochs
        errors = [np.sqrt(np.mean((line.y[at] - each[at]) ** 2)) for each in (values, means, np.zeros(len(line.y)))]
        yield f"| {epochs} | {' | '.join(f'{error:.3f}' for error in errors)} | {at.sum()} |"


# --- which trainings tell most ---------------------------------------------------------------------------------------

# candidates, trainings of each in each round, and of `none`
DESIGNS = (
    (6, (1, 1, 1), (1, 1, 1)),
    (6, (1, 1, 2), (1, 1, 2)),
    (6, (1, 1, 1), (2, 2, 2)),
    (5, (1, 1, 1), (2, 1, 1)),
    (4, (1, 1, 1), (2, 2, 2)),
    (4, (1, 1, 2), (1, 1, 2)),
    (3, (1, 1, 2), (1, 1, 2)),
    (2, (2, 2, 2), (2, 2, 2)),
)
# the same of all candidates; how much another choice may gain on average when a race ends early (0: it never does)
LONG_DESIGNS = (
    ((1, 3, 9), 0.0),
    ((1, 3, 9), 0.02),
    ((1, 1, 2, 4, 8), 0.0),
    ((1, 1, 2, 4, 8), 0.01),
    ((1, 1, 2, 4, 8), 0.02),
    ((1, 1, 2, 4, 8), 0.03),
    ((1, 1, 2, 4), 0.02),
    ((1, 1, 2, 2), 0.02),
    ((1, 1, 2), 0.02),
    ((1, 1, 1), 0.0),
    ((1, 1, 1), 0.02),
)
TIMES = 400  # races of each design on each set and length


def simulated(content: Mapping[str, Any], known: Sequence[Replay]) -> Iterator[str]:
    """Races without a prior, with the recorded effects and their noise; the prior says who takes part."""
    first = {(each.set, each.epochs): each for each in known if each.folds == 1 and each.length == 1}
    yield "| candidates, with none | of each, by round | of none | trainings | change of the log loss |"
    yield "|---" * 5 + "|"
    for count, repeats, of_none in DESIGNS:
        changes = [_races(each, parts_of(content, each.epochs), count, repeats, of_none) for each in first.values()]
        trainings = sum(
            each * (size - 1) + none
            for each, none, size in zip(repeats, of_none, _sizes(count, len(repeats)), strict=True)
        )
        yield f"| {count} | {repeats} | {of_none} | {trainings} | {fmean(changes):+.3f} |"
    yield f"| the best in truth | | | | {fmean(min(each.truth.values()) for each in first.values()):+.3f} |"


def long_races(content: Mapping[str, Any], known: Sequence[Replay]) -> Iterator[str]:
    """Simulated races of all recorded policies, without a prior: what is lost where trainings are saved."""
    first = {(each.set, each.epochs): each for each in known if each.folds == 1 and each.length == 1}
    parts = {epochs: parts_of(content, epochs) for epochs in (prior.SHORT, prior.LONG)}
    yield "| trainings of each, by round | ends early below | trainings | change of the log loss |"
    yield "|---" * 4 + "|"
    for repeats, clear in LONG_DESIGNS:
        some = [_races_of_all(each, parts[each.epochs], repeats, clear) for each in first.values()]
        trainings, change = np.mean(some, 0)
        yield f"| {repeats} | {f'{clear:.0%}' if clear else 'never'} | {trainings:.0f} | {change:+.4f} |"


def _races_of_all(replay: Replay, parts: Parts, repeats: Sequence[int], clear: float) -> tuple[float, float]:
    """Mean trainings, and mean change of the loss by the choice, of `TIMES` races."""
    rng = np.random.default_rng(0)
    truth = np.array([effect for label, effect in replay.truth.items() if label != "none"])
    own, shared = math.sqrt(max(parts.difference - parts.common, 0.0)), math.sqrt(parts.common)
    total, none = np.zeros((TIMES, len(truth))), np.zeros((TIMES, 1))
    alive, open_ = np.ones(total.shape, bool), np.ones(TIMES, bool)
    change, trainings, done = np.zeros(TIMES), np.zeros(TIMES), 0
    sizes = _sizes(len(truth) + 1, len(repeats))
    for number, (each, size) in enumerate(zip(repeats, sizes, strict=True)):
        alive &= np.where(alive, total, np.inf).argsort(1).argsort(1) < size - 1
        total += each * truth + math.sqrt(each) * own * rng.standard_normal(total.shape)
        none += math.sqrt(each) * shared * rng.standard_normal(none.shape)
        done += each
        trainings += open_ * each * size
        means = np.where(alive, (total + none) / done, np.inf)
        spread = math.sqrt((own**2 + shared**2) / done)
        best = means.min(1)
        chosen = -best / spread >= NormalDist().inv_cdf(ranking.PROBABLY)
        change = np.where(open_, np.where(chosen, truth[means.argmin(1)], 0.0), change)
        if clear and number:
            open_ &= _regrets(means, best, chosen, spread) >= clear
    return float(trainings.mean()), float(change.mean())


def _regrets(means: np.ndarray, best: np.ndarray, chosen: np.ndarray, spread: float) -> np.ndarray:
    """`ranking.regret`, of many races at once."""
    gain = np.vectorize(lambda away, noise: ranking.expected_gain(away, noise) if math.isfinite(away) else 0.0)
    both = math.sqrt(2) * spread
    among = gain(best[:, None] - means, both).sum(1) - ranking.expected_gain(0.0, both)  # it is among them itself
    return np.where(chosen, among + gain(best, spread), gain(-means, spread).sum(1))


def _sizes(count: int, rounds: int) -> list[int]:
    return trainings_of_rounds(count, (1,) * rounds)


def _races(replay: Replay, parts: Parts, count: int, repeats: Sequence[int], of_none: Sequence[int]) -> float:
    """The mean change of the loss by what is chosen, `TIMES` races at once; the truth is that of the other folds."""
    rng = np.random.default_rng(0)
    raced = sorted((each for each in replay.trials if each.expected), key=lambda trial: trial.expected.effect)
    truth = np.array([replay.truth[trial.label] for trial in raced[: count - 1]])
    own, shared = math.sqrt(max(parts.difference - parts.common, 0.0)), math.sqrt(parts.common)
    total, none, alive = np.zeros((TIMES, count - 1)), np.zeros((TIMES, 1)), np.ones((TIMES, count - 1), bool)
    done, done_none = 0, 0
    for each, again, size in zip(repeats, of_none, _sizes(count, len(repeats)), strict=True):
        ranks = np.where(alive, total, np.inf).argsort(1).argsort(1)
        alive &= ranks < size - 1
        total += each * truth + math.sqrt(each) * own * rng.standard_normal(total.shape)
        none += math.sqrt(again) * shared * rng.standard_normal(none.shape)
        done, done_none = done + each, done_none + again
    means = total / done + none / done_none
    spread = math.sqrt(own**2 / done + shared**2 / done_none)
    better = np.where(alive & (NormalDist().inv_cdf(ranking.PROBABLY) * spread <= -means), means, np.inf)
    return float(np.where(np.isinf(better).all(1), 0.0, truth[better.argmin(1)]).mean())


def _noise_and_designs(content: Mapping[str, Any], known: Sequence[Replay]) -> None:
    """Of a record of three folds."""
    print("\n## where the variance of the log loss is\n")
    print("\n".join(noise_table(content)))
    print(f"\nbetween seeds, on test images: none {seed_spread(True):.3f}, others {seed_spread(False):.3f}")
    print("\n## error of predictions by length\n")
    print("\n".join(errors_by_length(content)))
    print("\n## simulated races\n")
    print("\n".join(simulated(content, known)))
    print("\n## simulated races of all policies\n")
    print("\n".join(long_races(content, known)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    content = json.loads(given.file.read_text())
    with TemporaryDirectory() as scratch:
        known = list(replays(content, Path(scratch)))
        bare = [_without_expectations(each) for each in known]
        print("\n## where the length of the training to come is not known\n")
        print("\n".join(guessed_lengths(content, Path(scratch))))
        if any(each.folds == prior.FOLDS - 1 for each in known):
            _noise_and_designs(content, known)
        short = [each for each in known if each.folds == 1 and each.length == 1 and each.epochs == prior.SHORT]
        print(f"\n## one fold, {prior.SHORT} epochs, {len(short)} races: change of the log loss\n")
        for title, some in (
            ("all policies", short),
            ("without faster-aa", [_without_searched(each) for each in short]),
        ):
            print(f"{title}: {fmean(each.truth[chosen_at(each, ranking.PROBABLY)] for each in some):+.3f}")
        for title, some in (("with the prior", known), ("by what was raced alone", bare)):
            for length in (1.0, 4.0):
                of_length = [each for each in some if each.length == length]
                print(f"\n## {title}, trainings to come of {length:g} times the length, {len(of_length)} races\n")
                print("\n".join(decisions(of_length)), end="\n\n")
                print("\n".join(calibration(of_length)))


def _without_searched(replay: Replay) -> Replay:
    return replace(replay, trials=tuple(each for each in replay.trials if not each.label.startswith("faster-aa")))


def _without_expectations(replay: Replay) -> Replay:
    trials = tuple(replace(t, candidate=replace(t.candidate, expected=None)) for t in replay.trials)
    return replace(replay, trials=trials)


if __name__ == "__main__":
    main()
