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
from itertools import combinations, product
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
    """A race on some folds, and what its policies did on the others: the logarithm of the loss relative to `none`, and
    points of error more than `none`.
    """

    set: str
    epochs: int
    length: float
    folds: int
    trials: tuple[ranking.Trial, ...]
    truth: Mapping[str, float]
    errors: Mapping[str, float]
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
            errors = {
                label: fmean(rows[label, later, f]["error"] - rows["none", later, f]["error"] for f in others)
                for label in labels
            }
            noise = max(trials[0].noise * math.sqrt(count / len(others)), ranking.SEED_NOISE / math.sqrt(len(others)))
            yield Replay(name, epochs, length, count, trials, truth, errors, noise)


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
        "more errors",
        "change of the loss",
        "of those",
        "points of error",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for level in LEVELS:
        chosen = [(replay, chosen_at(replay, level)) for replay in some]
        those = [(each.truth[label], each.errors[label], each.noise) for each, label in chosen if label != "none"]
        worse = [truth > 0 for truth, *_ in those], [truth > 2 * noise for truth, _, noise in those]
        shares = [f"{sum(each) / max(len(those), 1):.0%}" for each in (*worse, [error > 0 for _, error, _ in those])]
        loss, error = (sum(each[column] for each in those) for column in (0, 1))
        yield (
            f"| {level:.0%} | {len(those) / len(some):.0%} | {' | '.join(shares)} | {loss / len(some):+.3f} "
            f"| {loss / max(len(those), 1):+.3f} | {error / len(some):+.2f} |"
        )
    best = fmean(min(replay.truth.values()) for replay in some)
    yield f"| the best in truth | | | | | {best:+.3f} | | |"


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


class Part(NamedTuple):
    """Variances of a logarithm: of each training, by its seed, and of each fold, whatever is trained on it."""

    seed: float
    fold: float

    def of_mean(self, trainings: int, again: bool = False) -> float:
        """Of the mean of so many, one fold after the other; `again`: as if each had a fold of its own."""
        return self.seed / trainings + self.fold / (trainings if again else min(trainings, prior.FOLDS))

    def means(self, rng: np.random.Generator, count: int) -> Iterator[np.ndarray]:
        """Noise of the mean of 1, 2, ... trainings of so many policies, `TIMES` races at once."""
        folds = math.sqrt(self.fold) * rng.standard_normal((prior.FOLDS, TIMES, count))
        total, done = np.zeros((TIMES, count)), 0
        while True:
            total += folds[done % prior.FOLDS] + math.sqrt(self.seed) * rng.standard_normal(total.shape)
            done += 1
            yield total / done


class Noise(NamedTuple):
    """Of a policy's own, and of `none`, which all differences have in common."""

    own: Part
    none: Part

    @classmethod
    def of(cls, parts: Parts) -> Noise:
        """What recorded trainings vary by from fold to fold, less what they vary by from seed to seed."""
        own, none = seed_spread(False) ** 2, seed_spread(True) ** 2
        return cls(
            Part(own, max(parts.difference - parts.common - own, 0.0)), Part(none, max(parts.common - none, 0.0))
        )


def simulated_races(
    truth: np.ndarray, noise: Noise, repeats: Sequence[int], of_none: Sequence[int], clear: float, again: bool = False
) -> np.ndarray:
    """Of each race of policies with these effects: its trainings, what the choice does, how sure it says that is (nan
    where that is `none`), and the mean squared error of the finalists, in its own standard errors.

    `again`: races count every training as one on a fold of its own.
    """
    rng = np.random.default_rng(0)
    own, none = noise.own.means(rng, len(truth)), noise.none.means(rng, 1)
    alive, means = np.ones((TIMES, len(truth)), bool), np.zeros((TIMES, len(truth)))
    open_, index, stated, trainings = np.ones(TIMES, bool), np.full(TIMES, -1), np.zeros(TIMES), np.zeros(TIMES)
    sizes = trainings_of_rounds(len(truth) + 1, (1,) * len(repeats))
    for number, size in enumerate(sizes):
        alive &= np.where(alive, means, np.inf).argsort(1).argsort(1) < size - 1
        done, done_none = sum(repeats[: number + 1]), sum(of_none[: number + 1])
        moved, common = (_last(each, times[number]) for each, times in ((own, repeats), (none, of_none)))
        means = np.where(alive, truth + moved - common, np.inf)
        spread = math.sqrt(noise.own.of_mean(done, again) + noise.none.of_mean(done_none, again))
        trainings += open_ * (repeats[number] * (size - 1) + of_none[number])
        best = means.min(1)
        sure = np.vectorize(NormalDist().cdf)(-best / spread)
        chosen = sure >= ranking.PROBABLY
        index = np.where(open_, np.where(chosen, means.argmin(1), -1), index)
        stated = np.where(open_, sure, stated)
        if clear and number:
            open_ &= _regrets(means, best, chosen, spread) >= clear
    away = np.where(alive, means, truth) - truth
    errors = ((away / spread) ** 2).sum(1) / alive.sum(1)
    return np.array([trainings, np.where(index < 0, 0.0, truth[index]), np.where(index < 0, np.nan, stated), errors])


def _last(means: Iterator[np.ndarray], count: int) -> np.ndarray:
    return [next(means) for _ in range(count)][-1]


def _regrets(means: np.ndarray, best: np.ndarray, chosen: np.ndarray, spread: float) -> np.ndarray:
    """`ranking.regret`, of many races at once."""
    gain = np.vectorize(lambda away, noise: ranking.expected_gain(away, noise) if math.isfinite(away) else 0.0)
    both = ranking.apart(spread, spread)
    among = gain(best[:, None] - means, both).sum(1) - ranking.expected_gain(0.0, both)  # it is among them itself
    return np.where(chosen, among + gain(best, spread), gain(-means, spread).sum(1))


def raced_once(content: Mapping[str, Any], known: Sequence[Replay]) -> list[tuple[Replay, Noise]]:
    """A replay of every set and length, whose truth is simulated with the recorded noise."""
    noise = {epochs: Noise.of(parts_of(content, epochs)) for epochs in (prior.SHORT, prior.LONG)}
    first = {(each.set, each.epochs): each for each in known if each.folds == 1 and each.length == 1}
    return [(each, noise[each.epochs]) for each in first.values()]


def simulated(content: Mapping[str, Any], known: Sequence[Replay]) -> Iterator[str]:
    """Races without a prior, with the recorded effects and their noise; the prior says who takes part."""
    some = raced_once(content, known)
    yield "| candidates, with none | of each, by round | of none | trainings | change of the log loss |"
    yield "|---" * 5 + "|"
    for count, repeats, of_none in DESIGNS:
        races = [simulated_races(_promising(each, count), noise, repeats, of_none, 0.0) for each, noise in some]
        trainings, change = np.hstack(races).mean(1)[:2]
        yield f"| {count} | {repeats} | {of_none} | {trainings:.0f} | {change:+.3f} |"
    yield f"| the best in truth | | | | {fmean(min(each.truth.values()) for each, _ in some):+.3f} |"


def _promising(replay: Replay, count: int) -> np.ndarray:
    """What those do that the prior lets take part, with `none`."""
    raced = sorted((each for each in replay.trials if each.expected), key=lambda trial: trial.expected.effect)
    return np.array([replay.truth[trial.label] for trial in raced[: count - 1]])


def _all(replay: Replay) -> np.ndarray:
    return np.array([effect for label, effect in replay.truth.items() if label != "none"])


def long_races(content: Mapping[str, Any], known: Sequence[Replay]) -> Iterator[str]:
    """Simulated races of all recorded policies, without a prior: what is lost where trainings are saved."""
    some = raced_once(content, known)
    yield "| trainings of each, by round | ends early below | trainings | change of the log loss |"
    yield "|---" * 4 + "|"
    for repeats, clear in LONG_DESIGNS:
        races = [simulated_races(_all(each), noise, repeats, repeats, clear) for each, noise in some]
        trainings, change = np.hstack(races).mean(1)[:2]
        yield f"| {repeats} | {f'{clear:.0%}' if clear else 'never'} | {trainings:.0f} | {change:+.4f} |"


def stated_and_true(content: Mapping[str, Any], known: Sequence[Replay]) -> Iterator[str]:
    """How often a choice is better than none in truth where a fold's images count once, and where they count again."""
    some = raced_once(content, known)
    bins = ((0.8, 0.9), (0.9, 0.95), (0.95, 1.01))
    heads = " | ".join(f"{low:.0%} to {min(high, 1):.0%}" for low, high in bins)
    yield f"| effects, times | by round | a fold's images count | standardised errors | {heads} |"
    yield "|---" * (len(bins) + 4) + "|"
    for scale, repeats, again in product((1.0, 0.25), ((1, 1, 1), (1, 1, 2, 4, 8)), (True, False)):
        races = [simulated_races(scale * _all(each), noise, repeats, repeats, 0.0, again) for each, noise in some]
        _, effects, stated, errors = np.hstack(races)
        hits = [effects[(stated >= low) & (stated < high)] < 0 for low, high in bins]
        shares = " | ".join(f"{each.mean():.0%} of {each.size}" if each.size else "" for each in hits)
        away, count = math.sqrt(errors.mean()), "again" if again else "once"
        yield f"| {scale:g} | {repeats} | {count} | {away:.2f} | {shares} |"


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
    print("\n## are simulated races as often right as they say\n")
    print("\n".join(stated_and_true(content, known)))


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
