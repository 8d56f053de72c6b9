"""A race by any training: scores of a function or of the user's command, round by round, paired by seed.

Every round gives each candidate that is left one more seed; the better half stays, and `none`. Lower is better. What is
not better than `none` is not chosen.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasteraa.errors import RaceError, RunError
from fasteraa.methods import Candidate
from fasteraa.policy.policy import Policy
from fasteraa.runtime.documents import cut, read_json
from fasteraa.runtime.files import as_file_name, sealed, unsealed, write_atomic
from fasteraa.selection.race import check_candidates
from fasteraa.train.command import TrainingFailed, finite
from fasteraa.train.statistics import Estimate, paired, student_cdf

Train = Callable[..., float]  # (policy, seed, out) -> score; a command takes gpu= as well
Say = Callable[[str], None]


@dataclass(frozen=True)
class ScoreRow:
    """A candidate and its scores, in the user's direction."""

    label: str
    score: float
    scores: tuple[float, ...]
    against_none: Estimate | None
    better: float | None  # probability that it is better than none, from paired scores; None from fewer than two
    eliminated: bool
    failed: str | None = None


@dataclass(frozen=True)
class ScoreResult:
    """What a race by scores returns: `policy` is what to use."""

    policy: Policy
    chosen: str
    table: tuple[ScoreRow, ...]
    maximize: bool
    folder: Path | None = None

    def sentence(self) -> str:
        row = next(row for row in self.table if row.label == self.chosen)
        count = f"{len(row.scores)} run{'s' * (len(row.scores) > 1)}"
        if self.chosen == "none" or row.against_none is None:
            return f"Use {self.chosen}: score {row.score:.4g} ({count}); no policy did better."
        none = next(each for each in self.table if each.label == "none")
        half = "" if math.isinf(row.against_none.half) else f" ± {row.against_none.half:.2g}"
        sure = "from one run, this is a guess" if row.better is None else f"better with probability {row.better:.0%}"
        return (
            f"Use {self.chosen}: score {row.score:.4g} against {none.score:.4g} without augmentation ({count}, "
            f"difference {row.against_none.mean:+.3g}{half}, {sure})."
        )


@dataclass
class _Scores:
    """The cache: a file per finished run; a run that failed is tried again next time."""

    folder: Path
    key: str
    sign: float

    def path(self, candidate: Candidate, seed: int) -> Path:
        text = json.dumps([self.key, candidate.policy.hash, seed])
        return self.folder / f"{as_file_name(candidate.label)}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def read(self, candidate: Candidate, seed: int) -> float | None:
        file = self.path(candidate, seed) / "result.json"
        if not file.is_file():
            return None
        try:
            return self.sign * finite(unsealed(read_json(file))["score"], str(file))
        except (ValueError, KeyError, TypeError, RunError) as error:
            if isinstance(error, RunError) and isinstance(error.__cause__, OSError):
                raise
            raise RunError(
                f"the score {str(file)!r} cannot be read ({cut(error)}): remove it to run it again"
            ) from error

    def write(self, candidate: Candidate, seed: int, score: float, seconds: float) -> None:
        content: dict[str, Any] = {"label": candidate.label, "policy": candidate.policy.hash, "seed": seed}
        content |= {"score": self.sign * score, "seconds": round(seconds, 2)}
        write_atomic(self.path(candidate, seed) / "result.json", json.dumps(sealed(content), indent=1) + "\n")


def race_scores(
    candidates: Sequence[Candidate],
    train: Train,
    *,
    folder: Path,
    key: str,
    seeds: int = 3,
    jobs: int = 1,
    maximize: bool = False,
    seconds: float = math.inf,
    gpus: Sequence[str] = (),
    say: Say = lambda text: None,
) -> ScoreResult:
    """Run, eliminate, decide. Finished runs are in the folder and are never run again."""
    check_candidates(candidates)
    if not any(each.label == "none" for each in candidates):
        raise RaceError("a race needs 'none' among its candidates: it is what the others must beat")
    cache, end = _Scores(folder, key, -1.0 if maximize else 1.0), time.monotonic() + seconds
    scores: dict[str, dict[int, float]] = {each.label: {} for each in candidates}
    failures: dict[str, str] = {}
    alive = list(candidates)
    for seed in range(seeds):
        if seed and time.monotonic() >= end:
            say(f"time is up after {seed} of {seeds} rounds")
            break
        say(f"race, round {seed + 1} of {seeds}: {len(alive)} candidates")
        for candidate, score in _run(alive, seed, train, cache, jobs, gpus, end, say):
            if isinstance(score, str):
                failures[candidate.label] = score
            else:
                scores[candidate.label][seed] = score
        alive = _survivors([each for each in alive if each.label not in failures], scores, seed)
        if "none" in failures or not alive:
            break
    if not scores["none"]:
        raise RaceError(f"the run without augmentation gave no score: {failures.get('none', 'time was up')}")
    return _result(candidates, scores, failures, maximize, folder)


def _survivors(alive: Sequence[Candidate], scores: Mapping[str, Mapping[int, float]], seed: int) -> list[Candidate]:
    """The better half of those with all seeds, and `none`; two policies at least."""
    whole = [each for each in alive if len(scores[each.label]) == seed + 1]
    ranked = sorted(whole, key=lambda each: sum(scores[each.label].values()))
    kept = ranked[: max(2, math.ceil(len(ranked) / 2))]
    return kept + [each for each in ranked if each.label == "none" and each not in kept]


def _run(
    alive: Sequence[Candidate],
    seed: int,
    train: Train,
    cache: _Scores,
    jobs: int,
    gpus: Sequence[str],
    end: float,
    say: Say,
) -> Iterator[tuple[Candidate, float | str]]:
    """Scores as they come, cached ones first; the reason in the place of a score that is not there."""
    missing = []
    for candidate in alive:
        score = cache.read(candidate, seed)
        if score is None:
            missing.append(candidate)
        else:
            yield candidate, score
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[tuple[float, float]], Candidate] = {}
        queue = list(enumerate(missing))
        while queue or waiting:
            while queue and len(waiting) < jobs and (time.monotonic() < end or seed == 0):
                number, candidate = queue.pop(0)
                more = {"gpu": gpus[number % len(gpus)]} if gpus else {}
                waiting[pool.submit(_one, train, candidate, seed, cache, more)] = candidate
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                candidate = waiting.pop(future)
                try:
                    score, seconds = future.result()
                except TrainingFailed as error:
                    say(f"  {candidate.label}, seed {seed}: failed, {error}")
                    yield candidate, str(error)
                else:
                    say(f"  {candidate.label}, seed {seed}: {cache.sign * score:.6g} ({seconds:.0f} s)")
                    yield candidate, score


def _one(train: Train, candidate: Candidate, seed: int, cache: _Scores, more: Mapping[str, str]) -> tuple[float, float]:
    out = cache.path(candidate, seed)
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    score = cache.sign * finite(train(candidate.policy, seed, out, **more), candidate.label)
    seconds = time.monotonic() - began
    cache.write(candidate, seed, score, seconds)
    return score, seconds


def _result(
    candidates: Sequence[Candidate],
    scores: Mapping[str, Mapping[int, float]],
    failures: Mapping[str, str],
    maximize: bool,
    folder: Path,
) -> ScoreResult:
    most = max(len(each) for each in scores.values())
    sign = -1.0 if maximize else 1.0
    measured = [each for each in candidates if scores[each.label]]
    whole = [each for each in measured if len(scores[each.label]) == most and each.label not in failures]

    def mean(candidate: Candidate) -> float:
        values = scores[candidate.label].values()
        return sum(values) / len(values)

    none = next(each for each in candidates if each.label == "none")
    best = min(whole or [none], key=mean)
    chosen = best if mean(best) < mean(none) else none
    ranked = sorted(measured, key=lambda each: (each is not chosen, -len(scores[each.label]), mean(each)))
    rows = [_row(each, scores, failures, most, sign) for each in ranked]
    rows += [
        ScoreRow(each.label, math.nan, (), None, None, True, failures.get(each.label, "not run"))
        for each in candidates
        if not scores[each.label]
    ]
    return ScoreResult(chosen.policy, chosen.label, tuple(rows), maximize, folder)


def _row(
    candidate: Candidate,
    scores: Mapping[str, Mapping[int, float]],
    failures: Mapping[str, str],
    most: int,
    sign: float,
) -> ScoreRow:
    mine, none = scores[candidate.label], scores["none"]
    shared = sorted(set(mine) & set(none))
    against = better = None
    if candidate.label != "none" and shared:
        against = paired([sign * mine[s] for s in shared], [sign * none[s] for s in shared])
        better = _probability([mine[s] - none[s] for s in shared])
    values = tuple(sign * mine[s] for s in sorted(mine))
    mean = sum(values) / len(values)
    failed = failures.get(candidate.label)
    return ScoreRow(candidate.label, mean, values, against, better, len(mine) < most, failed)


def _probability(differences: Sequence[float]) -> float | None:
    """That the mean difference is below 0, by Student's distribution; None from fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    mean = sum(differences) / n
    error = math.sqrt(sum((each - mean) ** 2 for each in differences) / (n - 1) / n)
    if not error:
        return 1.0 if mean < 0 else 0.5 if mean == 0 else 0.0
    return student_cdf(-mean / error, n - 1)
