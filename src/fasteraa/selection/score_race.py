"""A race by any training: scores of a function or of the user's command, round by round, paired by seed.

Every round gives each candidate that is left one more seed; the better half stays, and `none`. Lower is better. What is
not probably better than `none` is not chosen, and one run gives no probability. A round that time cut off counts if
`none` and another have finished it.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple, Self

from fasteraa.errors import ConfigError, RaceError, RunError
from fasteraa.methods import Candidate
from fasteraa.policy.policy import Policy
from fasteraa.runtime.clock import duration
from fasteraa.runtime.documents import cut, read_json
from fasteraa.runtime.files import as_file_name, sealed, unsealed, write_atomic
from fasteraa.selection.race import check_candidates
from fasteraa.selection.ranking import PROBABLY, percent
from fasteraa.train.command import Command, NoTimeLeft, TrainingFailed, finite
from fasteraa.train.statistics import Estimate, paired, residual_spread, student_cdf

Train = Callable[..., float]  # (policy, seed, out) -> score; a command takes gpu= as well
Say = Callable[[str], None]
_Outcome = tuple[float, float] | TrainingFailed  # score and seconds, or why there is none
_HANGS = (10, 600.0)  # a command ends after so many times the longest finished run, and not before so many seconds
_QUIET = 600.0  # seconds in which no run ends, after which that is said; then after twice as many, and so on


@dataclass(frozen=True)
class ScoreRow:
    """A candidate and its scores, in the user's direction."""

    label: str
    score: float
    scores: tuple[float, ...]
    against_none: Estimate | None
    better: float | None  # probability that it is better than none, from paired scores; None where they do not tell
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

    def __repr__(self) -> str:
        folder = f", in {str(self.folder)!r}" if self.folder else ""
        return f"<ScoreResult: {self.chosen} of {len(self.table)} candidates{folder}>"

    def __str__(self) -> str:
        """The recommendation, then a line for each candidate."""
        width = max(len(row.label) for row in self.table)
        lines = [f"  {'':{width}}       score  runs  better than none"]
        for row in self.table:
            sure = "" if row.better is None else percent(row.better)
            note = f"  failed: {row.failed}" if row.failed else "  eliminated" if row.eliminated else ""
            score = "" if math.isnan(row.score) else f"{row.score:.5g}"
            lines.append(f"  {row.label:{width}}  {score:>10}  {len(row.scores):4d}  {sure:>16}{note}")
        return "\n\n".join([self.sentence(), "\n".join(lines)])

    def sentence(self) -> str:
        row = next(row for row in self.table if row.label == self.chosen)
        count = f"{len(row.scores)} run{'s' * (len(row.scores) > 1)}"
        if self.chosen == "none" or row.against_none is None:
            return f"Use {self.chosen}: score {row.score:.4g} ({count}); {self._ahead()}."
        none = next(each for each in self.table if each.label == "none")
        mean, half = row.against_none.mean, row.against_none.half
        within = f" ± {half:.2g}" if 1e-9 * abs(mean) < half < math.inf else ""  # alike differences do not tell
        sure = "" if row.better is None else f", better with probability {percent(row.better)}"
        return (
            f"Use {self.chosen}: score {row.score:.4g} against {none.score:.4g} without augmentation ({count}, "
            f"difference {mean:+.3g}{within}{sure})."
        )

    def _ahead(self) -> str:
        """Who did better than `none` and was not chosen, and why."""
        sign = -1.0 if self.maximize else 1.0
        whole = [row for row in self.table if row.against_none and not row.eliminated and not row.failed]
        ahead = [row for row in whole if row.against_none and sign * row.against_none.mean < 0]
        best = min(ahead, key=lambda row: sign * row.score, default=None)
        if best is None:
            return "no policy did better"
        if best.better is not None:
            why = f"is better with a probability of {percent(best.better)} only: more seeds would tell (--seeds)"
        elif len(best.scores) > 1:
            why = "every seed gave the same scores, so chance is not known: does the training use its seed?"
        else:
            why = "one run does not tell whether it is better: two or more seeds would (--seeds)"
        return f"{best.label} has {best.score:.4g}, but {why}"


@dataclass
class _Scores:
    """The cache: a file per finished run; a run that failed is tried again next time."""

    folder: Path
    key: str
    sign: float
    longest: float = 0.0  # seconds of the longest finished run

    def path(self, candidate: Candidate, seed: int) -> Path:
        text = json.dumps([self.key, candidate.policy.hash, seed])
        return self.folder / f"{as_file_name(candidate.label)}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def read(self, candidate: Candidate, seed: int) -> float | None:
        file = self.path(candidate, seed) / "result.json"
        if not file.is_file():
            return None
        try:
            content = unsealed(read_json(file))
            if any(content.get(name, value) != value for name, value in self._facts(candidate, seed).items()):
                raise ValueError("it is of another run")
            score = self.sign * finite(content["score"], str(file))
            self.longest = max(self.longest, finite(content["seconds"], str(file)))
            return score
        except (ValueError, KeyError, TypeError, RunError) as error:
            if isinstance(error, RunError) and isinstance(error.__cause__, OSError):
                raise
            raise RunError(
                f"the score {str(file)!r} cannot be read ({cut(error)}): remove it to run it again"
            ) from error

    def write(self, candidate: Candidate, seed: int, score: float, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        content = {"label": candidate.label, **self._facts(candidate, seed)}
        content |= {"score": self.sign * score, "seconds": round(seconds, 2)}
        write_atomic(self.path(candidate, seed) / "result.json", json.dumps(sealed(content), indent=1) + "\n")

    def _facts(self, candidate: Candidate, seed: int) -> dict[str, Any]:
        """What a score is of, as far as its file says it: earlier versions left `key` out."""
        return {"key": self.key, "policy": candidate.policy.hash, "seed": seed}


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
    until: float = math.inf,
    gpus: Sequence[str] = (),
    say: Say = lambda text: None,
) -> ScoreResult:
    """Run, eliminate, decide. Finished runs are in the folder and are never run again.

    After `seconds` no run begins, those of the first round excepted. `until` (time.time()) ends everything, commands
    that are under way too.
    """
    check_candidates(candidates)
    if seeds < 1 or jobs < 1:
        raise ConfigError(f"seeds and jobs must be at least 1, got {seeds} and {jobs}")
    if not any(each.label == "none" for each in candidates):
        raise RaceError("a race needs 'none' among its candidates: it is what the others must beat")
    cache, end = _Scores(folder, key, -1.0 if maximize else 1.0), min(time.time() + seconds, until)
    scores: dict[str, dict[int, float]] = {each.label: {} for each in candidates}
    failures: dict[str, str] = {}
    alive = list(candidates)
    if seeds > 1 and isinstance(train, Command) and not train.takes_seed:
        say("the command has no {seed}: where its runs do not differ, more of them say nothing about chance")
    with _Runs(train, cache, jobs, gpus, until, say) as runs:
        for seed in range(seeds):
            if seed and time.time() >= end:
                say(f"time is up after {seed} of {seeds} rounds")
                break
            say(f"race, round {seed + 1} of {seeds}: {len(alive)} candidates")
            late = False
            for candidate, score in runs.round(alive, seed, end if seed else until):
                if not isinstance(score, TrainingFailed):
                    scores[candidate.label][seed] = score
                else:
                    cut_off = isinstance(score, NoTimeLeft)
                    late = late or cut_off
                    if not (cut_off and scores[candidate.label]):
                        failures[candidate.label] = str(score)
            alive = _survivors([each for each in alive if each.label not in failures], scores, seed)
            if "none" in failures or not alive or late:
                break
    if not scores["none"]:
        raise RaceError(f"the run without augmentation gave no score: {failures.get('none', 'time was up')}")
    _drop_cut_off(scores, say)
    return _result(candidates, scores, failures, maximize, folder)


def _drop_cut_off(scores: Mapping[str, dict[int, float]], say: Say) -> None:
    """The last round, where nothing can be compared in it: it would eliminate all that had no time."""
    last = max(seed for each in scores.values() for seed in each)
    if last and (last not in scores["none"] or sum(last in each for each in scores.values()) < 2):
        say(f"round {last + 1} was cut off and does not count: nothing in it can be compared with none")
        for each in scores.values():
            each.pop(last, None)


def _survivors(alive: Sequence[Candidate], scores: Mapping[str, Mapping[int, float]], seed: int) -> list[Candidate]:
    """The better half of those with all seeds, and `none`; two policies at least."""
    whole = [each for each in alive if len(scores[each.label]) == seed + 1]
    ranked = sorted(whole, key=lambda each: sum(scores[each.label].values()))
    better = ranked[: max(2, math.ceil(len(ranked) / 2))]
    return better + [each for each in ranked if each.label == "none" and each not in better]


class _Runs:
    """`jobs` at once, each on the GPU with the fewest runs. One function at a time needs no thread."""

    def __init__(self, train: Train, cache: _Scores, jobs: int, gpus: Sequence[str], until: float, say: Say):
        self._train, self._cache, self._jobs, self._gpus = train, cache, jobs, gpus
        self._until, self._say = until, say
        self._pool = ThreadPoolExecutor(jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """After Ctrl-C nobody waits for commands that are under way."""
        if kind is not None and isinstance(self._train, Command):
            self._train.stop()
        self._pool.shutdown(wait=kind is None)

    def round(
        self, alive: Sequence[Candidate], seed: int, begin: float
    ) -> Iterator[tuple[Candidate, float | TrainingFailed]]:
        """Scores as they come, cached ones first; the reason in the place of a score that is not there.

        After `begin` (time.time()) no run begins.
        """
        missing = []
        for candidate in alive:
            score = self._cache.read(candidate, seed)
            if score is None:
                missing.append(candidate)
            else:
                yield candidate, score
        for candidate, outcome in self._trained(missing, seed, begin):
            if isinstance(outcome, TrainingFailed):
                failed = "" if isinstance(outcome, NoTimeLeft) else "failed, "
                self._say(f"  {candidate.label}, seed {seed}: {failed}{outcome}")
                yield candidate, outcome
            else:
                self._say(f"  {candidate.label}, seed {seed}: {self._cache.sign * outcome[0]:.6g} ({outcome[1]:.0f} s)")
                yield candidate, outcome[0]

    def _trained(self, queue: list[Candidate], seed: int, begin: float) -> Iterator[tuple[Candidate, _Outcome]]:
        waiting: dict[Future[_Outcome], tuple[Candidate, str | None]] = {}
        busy = Counter[str | None]()
        last, quiet = time.monotonic(), _QUIET
        while waiting or (queue and time.time() < begin):
            while queue and len(waiting) < self._jobs and time.time() < begin:
                candidate, gpu = queue.pop(0), min(self._gpus, key=lambda gpu: busy[gpu], default=None)
                busy[gpu] += 1
                waiting[self._begin(candidate, seed, gpu)] = candidate, gpu
            done = wait(waiting, quiet, FIRST_COMPLETED).done
            if not done:
                self._say(self._still(time.monotonic() - last, [each.label for each, _ in waiting.values()]))
                quiet *= 2
                continue
            for future in done:
                candidate, gpu = waiting.pop(future)
                busy[gpu] -= 1
                yield candidate, future.result()
            last, quiet = time.monotonic(), _QUIET

    def _still(self, seconds: float, labels: Sequence[str]) -> str:
        limit = "; --run-minutes limits each of them" if isinstance(self._train, Command) else ""
        return f"  no run has ended for {duration(seconds)}; at work: {', '.join(labels)}{limit}"

    def _begin(self, candidate: Candidate, seed: int, gpu: str | None) -> Future[_Outcome]:
        if self._jobs > 1 or isinstance(self._train, Command):
            return self._pool.submit(self._one, candidate, seed, gpu)
        ended = Future[_Outcome]()
        ended.set_result(self._one(candidate, seed, gpu))
        return ended

    def _one(self, candidate: Candidate, seed: int, gpu: str | None) -> _Outcome:
        """A score and its seconds, or why there is none. Without `none` there is no race: it is tried twice."""
        for last in (candidate.label != "none", True):
            began = time.monotonic()
            try:
                score = self._cache.sign * self._score(candidate, seed, gpu)
            except TrainingFailed as error:
                if last or isinstance(error, NoTimeLeft):
                    return error
            else:
                seconds = time.monotonic() - began
                self._cache.write(candidate, seed, score, seconds)
                return score, seconds
        raise AssertionError("unreachable")

    def _score(self, candidate: Candidate, seed: int, gpu: str | None) -> float:
        """Of one run, in a folder that holds nothing of an earlier one."""
        out = self._cache.path(candidate, seed)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        more: dict[str, Any] = {} if gpu is None else {"gpu": gpu}
        if isinstance(self._train, Command):
            more |= {"until": self._until, "usual": self._usual}
        try:
            policy = replace(
                candidate.policy, name=candidate.label
            )  # a script may go by the name that a policy was given
            return finite(self._train(policy, seed, out, **more), candidate.label)
        except RunError:  # TrainingFailed among them, and Stopped
            raise
        except Exception as error:  # the user's own function may raise anything
            raise TrainingFailed(f"{type(error).__name__}: {cut(error, 200)}") from error

    def _usual(self) -> float:
        """Seconds after which a run hangs, by those that have finished up to now."""
        times, least = _HANGS
        return max(least, times * self._cache.longest) if self._cache.longest else math.inf


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
    noise = _noise_of_all([[scores[each.label][seed] for seed in sorted(scores[each.label])] for each in whole])
    better = {each.label: _better(each, scores, noise) or 0.0 for each in whole}
    good = [each for each in whole if mean(each) < mean(none) and better[each.label] >= PROBABLY]
    chosen = min(good or [none], key=mean)
    ranked = sorted(measured, key=lambda each: (each is not chosen, -len(scores[each.label]), mean(each)))
    rows = [_row(each, scores, failures, most, sign, noise if each in whole else None) for each in ranked]
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
    noise: _Noise | None,
) -> ScoreRow:
    mine, none = scores[candidate.label], scores["none"]
    shared = sorted(set(mine) & set(none))
    against = better = None
    if candidate.label != "none" and shared:
        against = paired([sign * mine[s] for s in shared], [sign * none[s] for s in shared])
        better = _better(candidate, scores, noise)
    values = tuple(sign * mine[s] for s in sorted(mine))
    mean = sum(values) / len(values)
    failed = failures.get(candidate.label)
    return ScoreRow(candidate.label, mean, values, against, better, len(mine) < most, failed)


class _Noise(NamedTuple):
    """The standard deviation of a difference between runs of one seed."""

    spread: float
    freedom: int


def _noise_of_all(rows: Sequence[Sequence[float]]) -> _Noise | None:
    """By all candidates that have every seed: two or three differences say little about their own spread.

    Scores that no seed changes are those of one run.
    """
    return _noise([row for row in rows if len(set(row)) > 1])


def _noise(rows: Sequence[Sequence[float]]) -> _Noise | None:
    """None of fewer than two candidates or seeds, and where all scores are alike.

    Differences that are alike do not tell how large they are by chance: at most as scores of several seeds are.
    """
    spread = residual_spread(rows)
    if spread is None:
        return None
    freedom, least = (len(rows) - 1) * (len(rows[0]) - 1), 1e-9 * max(abs(each) for row in rows for each in row)
    if spread <= least:
        spread, freedom = stdev(rows[0]), len(rows[0]) - 1
    return _Noise(spread * math.sqrt(2), freedom) if spread > least else None


def _better(candidate: Candidate, scores: Mapping[str, Mapping[int, float]], noise: _Noise | None) -> float | None:
    """The probability that it is better than `none`, by Student's distribution.

    None from fewer than two seeds, and from seeds that change nothing.
    """
    shared = sorted(set(scores[candidate.label]) & set(scores["none"]))
    mine, none = ([scores[label][seed] for seed in shared] for label in (candidate.label, "none"))
    noise = noise or _noise([mine, none])
    if noise is None or len({*zip(mine, none, strict=True)}) < 2:
        return None
    difference = sum(mine) / len(mine) - sum(none) / len(none)
    return student_cdf(-difference / noise.spread * math.sqrt(len(shared)), noise.freedom)
