"""Do one thing for many indices on a few threads; results come back in order, whatever the timing was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fasteraa.data.large import tell_progress
from fasteraa.runtime.processes import core_count

T = TypeVar("T")
Progress = Callable[[int, int], None]  # (done, total), from the calling thread

_CHUNK = 32  # images per task: a task per image would cost a million futures on ImageNet
_MOST_THREADS = 8


def thread_count() -> int:
    """The cores this process may use, at most eight: Pillow lets go of the GIL, numpy copies do not scale further."""
    return min(core_count(), _MOST_THREADS)


def in_order(work: Callable[[int], T], count: int, threads: bool = True, progress: Progress | None = None) -> list[T]:
    """[work(0), work(1), ...]. The first error stops it and cancels what has not begun, Ctrl-C too."""
    chunks = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    results: list[T] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd files; what matters is reported as broken
        for batch in _pooled(work, chunks) if threads else ([work(i) for i in chunk] for chunk in chunks):
            results += batch
            (progress or tell_progress)(len(results), count)
    return results


def _pooled(work: Callable[[int], T], chunks: list[range]) -> Iterator[list[T]]:
    pool = ThreadPoolExecutor(thread_count())
    try:
        for future in [pool.submit(lambda chunk: [work(i) for i in chunk], chunk) for chunk in chunks]:
            yield future.result()
    finally:  # no waiting: after Ctrl-C a thread may still hang in a file that does not answer
        pool.shutdown(wait=False, cancel_futures=True)
