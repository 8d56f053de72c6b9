"""Tasks on a pool of processes of this machine."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress

import torch

from fasteraa.errors import ConfigError, RunError
from fasteraa.offline.job import ApplyJob, ShardTask
from fasteraa.offline.shard import apply_shard
from fasteraa.runtime.documents import cut
from fasteraa.runtime.processes import end_with_parent, holding_interrupts, interrupt_on_terminate, without_main

_ENDED = (
    "a process that applied the policy was ended from outside, perhaps for lack of memory: finished shards are kept; "
    "give the same command again, perhaps with fewer --workers"
)


def in_processes(job: ApplyJob, tasks: Sequence[ShardTask], workers: int) -> Generator[ShardTask, None, None]:
    """Tasks as they are done; the first error ends all."""
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            apply_shard(task)
            yield task
        return
    with _pool(job, min(workers, len(tasks))) as pool:
        with holding_interrupts(), without_main(), warnings.catch_warnings():
            # Python warns of forking with threads; the workers touch neither a lock nor a device of ours
            warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
            waiting: dict[Future[None], ShardTask] = {pool.submit(_work, task.number): task for task in tasks}
        for future in as_completed(waiting):
            future.result()
            yield waiting[future]


@contextmanager
def _pool(job: ApplyJob, workers: int) -> Iterator[ProcessPoolExecutor]:
    """Forked, so that a listing of a million images is shared; on a GPU started fresh, which lists it again."""
    kind = "fork" if job.device == "cpu" and "fork" in torch.multiprocessing.get_all_start_methods() else "spawn"
    if kind == "spawn":
        _check_can_be_sent(job)
    context = torch.multiprocessing.get_context(kind)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(job,))
    with ExitStack() as stack:
        stack.enter_context(interrupt_on_terminate())
        try:
            yield pool
        except BaseException as error:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:  # at once: files are whole at any moment
                with suppress(OSError, ValueError):
                    process.kill()
            if isinstance(error, BrokenProcessPool):
                raise RunError(_ENDED) from error
            raise
        pool.shutdown()


def _check_can_be_sent(job: ApplyJob) -> None:
    try:
        pickle.dumps(job.source)
    except Exception as error:  # whatever the user's object raises
        raise ConfigError(
            f"a source that cannot be pickled cannot be sent to other processes ({cut(error)}): apply with workers=1"
        ) from error


_job: ApplyJob | None = None  # of a worker


def _begin(job: ApplyJob) -> None:
    global _job
    _job = job
    torch.set_num_threads(1)
    end_with_parent()


def _work(number: int) -> None:
    assert _job is not None
    apply_shard(ShardTask(_job, number))
