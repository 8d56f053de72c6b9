"""Processes that train side by side: on the cores of a CPU, or one for each GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch

from fasteraa.errors import OutOfTime, RunError
from fasteraa.runtime.processes import end_with_parent, holding_interrupts, interrupt_on_terminate, without_main
from fasteraa.train import group
from fasteraa.train.group import Until
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.split import Split

_STOP = -math.inf  # the moment at which to end: at once, not after the epoch
_GRACE_S = 1.0  # for workers that are to end
Work = Callable[[str, Sequence[TrainJob], Until], list[Outcome]]  # on a device, jobs that are trained together
_BROKEN = (
    "a process that trained networks was ended from outside, perhaps for lack of memory: what was finished is kept; "
    "try fewer at once (--jobs)"
)


class Workers:
    """Started once (that takes seconds) with the images of `splits`; given jobs on these until the `with` is left.

    There is one process for each of the `devices`, and each takes the next group of jobs when it has done one.
    """

    def __init__(self, work: Work, splits: Sequence[Split], devices: Sequence[str], threads: int):
        self.splits = list(splits)
        context = torch.multiprocessing.get_context("spawn")
        # without a lock, which a process that was killed might hold for ever
        self._end = context.Value("d", math.inf, lock=False)
        started = context.Value("i", 0)
        given = (work, self.splits, list(devices), started, threads, self._end)
        self._count = len(devices)
        self._pool = ProcessPoolExecutor(self._count, context, initializer=_begin, initargs=given)
        self._stack = ExitStack()

    def holds(self, job: TrainJob) -> bool:
        return any(each is job.split for each in self.splits)

    def __enter__(self) -> Workers:
        self._stack.enter_context(interrupt_on_terminate())
        self._stack.enter_context(self._pool)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ready(self) -> None:
        """Wait until all of them have started, where what follows is to be timed."""
        with holding_interrupts(), without_main():
            begun = [self._pool.submit(time.sleep, 0.2) for _ in range(self._count)]
        try:
            for future in begun:
                future.result()
        except BaseException as error:
            self._stop()
            if isinstance(error, BrokenProcessPool):
                raise RunError(_BROKEN) from error
            raise

    def results(
        self, groups: Iterable[Sequence[TrainJob]], until: float = math.inf
    ) -> Iterator[tuple[TrainJob, Outcome]]:
        """Jobs with their outcomes, as their groups finish; those for which time ran out are left out."""
        self._end.value = until
        with holding_interrupts(), without_main():  # what Ctrl-C means is decided here, not in the workers
            waiting = {self._pool.submit(_work, [self._light(job) for job in group]): group for group in groups}
        try:
            for future in as_completed(waiting):
                with suppress(OutOfTime):
                    yield from zip(waiting[future], future.result(), strict=True)
        except BaseException as error:
            self._stop()
            if isinstance(error, BrokenProcessPool):
                raise RunError(_BROKEN) from error
            raise

    def _stop(self) -> None:
        """At once: who is to stop keeps what can be kept quickly, who takes longer is ended.

        Files are whole at any moment, so nothing but the last seconds of work is lost.
        """
        self._end.value = _STOP
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        latest = time.monotonic() + _GRACE_S
        for process in processes:
            process.join(max(0.0, latest - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()

    def _light(self, job: TrainJob) -> tuple[int, TrainJob]:
        """A job without its images, which the workers have."""
        number = next(number for number, each in enumerate(self.splits) if each is job.split)
        return number, replace(job, split=None)  # type: ignore[arg-type]


# --- in a worker -----------------------------------------------------------------------------------------------------

# of this process: what to do, on which device, images, and the moment to end
_mine: tuple[Work, str, list[Split], Any] | None = None


def _begin(work: Work, splits: list[Split], devices: list[str], started: Any, threads: int, end: Any) -> None:
    global _mine
    with started.get_lock():
        device = devices[started.value % len(devices)]
        started.value += 1
    _mine = work, device, [split.on(torch.device(device)) for split in splits], end
    setattr(group, "stop_requested", lambda: end.value == _STOP)  # noqa: B010  (mypy minds an assignment)
    torch.set_num_threads(threads)
    end_with_parent()


def _work(jobs: list[tuple[int, TrainJob]]) -> list[Outcome]:
    assert _mine is not None
    work, device, splits, end = _mine
    return work(device, [replace(job, split=splits[number]) for number, job in jobs], lambda: float(end.value))
