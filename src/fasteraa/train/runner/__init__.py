"""Runners train: they take jobs and give outcomes. Nothing above a runner knows where it trains.

A runner is made with a `RunCache` (what is finished is read from there and written there) and, by keyword, with the
settings that it `takes`: a class attribute with names of `SETTINGS`, without which they are `device` and `jobs`.
Another package registers one under the entry point group `fasteraa.runners`.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fasteraa.errors import ConfigError, OutOfTime, Stopped
from fasteraa.runtime.clock import duration
from fasteraa.runtime.registry import Registry
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split

Say = Callable[[str], None]
_EVERY_S = 10.0  # a line while runs are trained, at most
_LINES = 20  # of them, unless it takes longer than was measured
RUNNERS = Registry(
    "runner",
    "fasteraa.runners",
    {"local": "fasteraa.train.runner.local:LocalRunner", "ray": "fasteraa.train.runner.ray:RayRunner"},
)
# what a runner may take by keyword
SETTINGS = {
    "device": "of every training: auto, cpu, cuda, cuda:1",
    "jobs": "trainings side by side on a device; None: the runner decides",
    "devices": "several devices, as in 0,1; None: all",
    "address": "of a cluster or a queue; None: the runner's own choice",
    "compile": "whether networks are compiled; None: where it pays",
    "command": "the command line that asked for it, for the records, or None",
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Which runner trains, and where. A runner that does not take what was given is refused."""

    name: str = "local"
    device: str = "auto"  # of every training
    jobs: int | None = None  # trainings side by side on a device
    devices: str | None = None  # these GPUs instead of all
    address: str | None = None  # of a cluster's head

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"jobs must be at least 1, got {self.jobs}")
        given = [name for name in ("jobs", "devices", "address") if getattr(self, name) is not None]
        taken = _settings_of(RUNNERS.load(self.name), self.name) if given else ()  # which takes seconds to import
        for name in given:
            if name not in taken:
                owners = [each for each in RUNNERS.builtin if name in _settings_of(RUNNERS.load(each), each)]
                raise ConfigError(f"--{name} is for --engine {' or '.join(owners)}, got --engine {self.name}")

    def check(self) -> None:
        """Before images are read: an unknown engine, and what a runner's own `check` of its settings finds."""
        if self.name == "local":  # it takes seconds to import
            return
        runner = RUNNERS.load(self.name)
        if hasattr(runner, "check"):
            taken = _settings_of(runner, self.name)
            runner.check(**{name: value for name, value in self.settings.items() if name in taken})

    @property
    def settings(self) -> dict[str, Any]:
        """For `make_runner`."""
        return {"device": self.device, "jobs": self.jobs, "devices": self.devices, "address": self.address}


class Runner(Protocol):
    """What trains. Used as a context manager: leaving it gives back processes and memory."""

    cache: RunCache

    def prepare(self, splits: Sequence[Split]) -> None:
        """Images of jobs to come, so that a runner can place them before anything is timed."""

    def run(self, jobs: Iterable[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        """Jobs with their outcomes as they finish, cached ones first, each key once.

        Those for which the moment `until` (time.time()) came first are left out; they continue next time.
        """

    def estimate(self, jobs: Sequence[TrainJob]) -> float:
        """Wall seconds of all of them together, by a short measurement."""

    def __enter__(self) -> Runner: ...

    def __exit__(self, *error: object) -> None: ...


def make_runner(
    name: str | Callable[..., Runner],
    cache: RunCache,
    *,
    device: str = "auto",
    jobs: int | None = None,
    devices: str | None = None,
    address: str | None = None,
    compile: bool | None = None,
    command: str | None = None,
) -> Runner:
    """A runner by its name, or of its class, with those of these settings that it takes."""
    settings = {
        "device": device,
        "jobs": jobs,
        "devices": devices,
        "address": address,
        "compile": compile,
        "command": command,
    }
    runner: Callable[..., Runner] = RUNNERS.load(name) if isinstance(name, str) else name
    return runner(cache, **{each: settings[each] for each in _settings_of(runner, name)})


def _settings_of(runner: Any, name: object) -> tuple[str, ...]:
    taken: tuple[str, ...] = getattr(runner, "takes", ("device", "jobs"))
    if unknown := [each for each in taken if each not in SETTINGS]:
        raise ConfigError(f"the runner {name} takes {', '.join(unknown)}; choices: {', '.join(SETTINGS)}")
    return taken


class EndingRunner:
    """A runner that trains nothing after a moment (time.time()): OutOfTime where that leaves jobs out."""

    def __init__(self, runner: Runner, end: float):
        self.runner, self.end, self.cache = runner, end, runner.cache

    def prepare(self, splits: Sequence[Split]) -> None:
        self.runner.prepare(splits)

    def estimate(self, jobs: Sequence[TrainJob]) -> float:
        return self.runner.estimate(jobs)

    def run(self, jobs: Iterable[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        jobs, done = list(jobs), set[str]()
        for job, outcome in self.runner.run(jobs, min(until, self.end)):
            done.add(job.key)
            yield job, outcome
        if self.end < until and any(job.key not in done for job in jobs):
            raise OutOfTime("the time was up before these trainings were finished")

    def __enter__(self) -> Runner:
        self.runner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.__exit__(*error)


def run_jobs(
    runner: Runner,
    jobs: Sequence[TrainJob],
    say: Say = lambda text: None,
    until: float = math.inf,
    estimate: bool = False,
    continues: bool = True,
    finished: Callable[[], None] = lambda: None,
) -> dict[str, Outcome]:
    """Outcomes by the keys of their jobs, with a line for each that is trained. Ctrl-C says what was kept.

    With `estimate` it says first how long all of it will take, and every few seconds that it is still at work.
    It says what `until` left out, if that continues next time. `finished` is called for each that was trained.
    """
    keys = {job.key for job in jobs}
    outcomes = {job.key: outcome for job in jobs if (outcome := runner.cache.read(job)) is not None}
    missing = [job for job in jobs if job.key not in outcomes]
    count, done = len(keys) - len(outcomes), 0
    if outcomes:
        say(f"{len(outcomes)} of {len(keys)} runs are there already")
    try:
        expected = runner.estimate(missing) if estimate and missing else None
        if expected is not None:
            say(f"{count} training{'s' * (count != 1)}, about {duration(expected)}")

        def words(passed: float) -> str:
            late = "" if passed <= (expected or 0.0) else "; it takes longer than was measured"
            return f"{done} of {count} runs are finished, {duration(passed)} of about {duration(expected or 0.0)}{late}"

        with signs_of_life(say, words, expected):
            for job, outcome in runner.run(missing, until) if missing else ():
                outcomes[job.key] = outcome
                done += 1
                finished()
                say(f"{done}/{count} {job}: {outcome.failed or f'{outcome.error:.2f}%'} ({outcome.seconds:.0f} s)")
    except KeyboardInterrupt as error:
        raise Stopped(
            f"stopped; {done} of {count} runs were finished and are kept in {str(runner.cache.folder)!r}: give the "
            "same command again to continue",
            error.args[0] if error.args else signal.SIGINT,
        ) from None
    if done < count and continues:
        say(f"time is up: {count - done} of {len(keys)} runs are missing; give the same command again to continue")
    return outcomes


@contextmanager
def signs_of_life(say: Say, words: Callable[[float], str], expected: float | None) -> Iterator[None]:
    """A line of the seconds that passed, every few of them while runs are trained elsewhere: of long work about twenty
    in all, and none without an expectation. Work that takes longer than it has lines less often.
    """
    if expected is None:
        yield
        return
    began, over = time.monotonic(), threading.Event()

    def speak() -> None:
        while not over.wait(max(_EVERY_S, max(expected, time.monotonic() - began) / _LINES)):
            say(words(time.monotonic() - began))

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()
