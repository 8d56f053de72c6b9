"""Runners train: they take jobs and give outcomes. Nothing above a runner knows where it trains.

A runner is a class made with a `RunCache` (what is finished is read from there and written there) and a device. Another
package registers one under the entry point group `fasteraa.runners`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from fasteraa.errors import Stopped
from fasteraa.runtime.registry import Registry
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split

Say = Callable[[str], None]
RUNNERS = Registry("runner", "fasteraa.runners", {"local": "fasteraa.train.runner.local:LocalRunner"})


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


def make_runner(name: str, cache: RunCache, **settings: Any) -> Runner:
    """A runner by its name."""
    runner: Runner = RUNNERS.load(name)(cache, **settings)
    return runner


def run_jobs(
    runner: Runner, jobs: Sequence[TrainJob], say: Say = lambda text: None, until: float = math.inf
) -> dict[str, Outcome]:
    """Outcomes by the keys of their jobs, with a line for each that is trained. Ctrl-C says what was kept."""
    keys = {job.key for job in jobs}
    outcomes = {job.key: outcome for job in jobs if (outcome := runner.cache.read(job)) is not None}
    missing = [job for job in jobs if job.key not in outcomes]
    count, done = len(keys) - len(outcomes), 0
    if outcomes:
        say(f"{len(outcomes)} of {len(keys)} runs are there already")
    try:
        for job, outcome in runner.run(missing, until) if missing else ():
            outcomes[job.key] = outcome
            done += 1
            say(f"{done}/{count} {job}: {outcome.failed or f'{outcome.error:.2f}%'} ({outcome.seconds:.0f} s)")
    except KeyboardInterrupt as error:
        raise Stopped(
            f"stopped; {done} of {count} runs were finished and are kept in {str(runner.cache.folder)!r}: give the "
            "same command again to continue",
            error.args[0] if error.args else signal.SIGINT,
        ) from None
    if done < count:
        say(f"time is up: {count - done} of {len(keys)} runs are missing; give the same command again to continue")
    return outcomes
