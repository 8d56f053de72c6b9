"""Tasks on a Ray cluster: a core makes a shard, on the disk that all nodes see."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from typing import Any

import torch

from fasteraa.errors import ConfigError, FasterAAError, RunError
from fasteraa.offline.job import RECORDS, ApplyJob, ShardTask, open_images
from fasteraa.offline.shard import apply_shard
from fasteraa.runtime.cluster import KEPT, POLL_S, Head, check_versions, connect, versions
from fasteraa.runtime.documents import cut

_RETRIES = 2  # of a shard whose worker was lost
_START_S = 300.0  # without any core, before it is given up


@dataclass(frozen=True)
class _ApplyOrder:
    """What every node gets."""

    job: ApplyJob
    fingerprint: str  # of the images, which each node lists itself
    folder: str  # where the driver works: paths may be relative to it
    versions: dict[str, str]


def on_cluster(
    job: ApplyJob, tasks: Sequence[ShardTask], *, address: str | None, fingerprint: str, workers: int | None = None
) -> Generator[ShardTask, None, None]:
    """Tasks as they are done, `workers` at once or as many as there are cores; what a lost worker was at runs again."""
    if not tasks:
        return
    ray, own = connect(address or "auto")
    head = Head(ray.get_runtime_context().gcs_address)
    running: dict[Any, ShardTask] = {}
    try:
        order = _put(ray, _ApplyOrder(job, fingerprint, os.getcwd(), versions("pillow")))
        work = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
        waiting, had_cores = deque(tasks), time.monotonic()
        while waiting or running:
            if not head.answers():
                time.sleep(POLL_S)
                continue
            cores = int(ray.cluster_resources().get("CPU", 0))
            had_cores = time.monotonic() if cores else had_cores
            if time.monotonic() > had_cores + _START_S:
                raise RunError(f"the Ray cluster at {head.address} had no core for {_START_S:.0f} seconds: {KEPT}")
            while waiting and len(running) < (workers or max(cores, 1)):
                task = waiting.popleft()
                running[work.remote(order.hex(), [order], task.number)] = task
            for call in ray.wait(list(running), num_returns=1, timeout=POLL_S)[0]:
                task = running.pop(call)
                _check_result(ray, call, task)
                yield task
    finally:
        if not head.lost:
            for call in running:
                ray.cancel(call, force=True)
            if own:
                ray.shutdown()


def _put(ray: Any, order: _ApplyOrder) -> Any:
    try:
        return ray.put(order)
    except Exception as error:  # whatever the user's object raises
        raise ConfigError(
            f"a source that cannot be pickled cannot be sent to a cluster ({cut(error)}): apply without --engine ray"
        ) from error


def _check_result(ray: Any, call: Any, task: ShardTask) -> None:
    try:
        ray.get(call)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FasterAAError):
            raise RunError(str(error.cause)) from error
        if isinstance(error.cause, ImportError) or "failed to import" in str(error):
            why = cut(str(error).strip().splitlines()[-1], 150)
            raise RunError(f"fasteraa could not be imported on a node of the Ray cluster: {why}") from error
        raise
    except ray.exceptions.RayError as error:
        raise RunError(
            f"{task.name}: {_RETRIES + 1} workers were lost while they made it, perhaps for lack of memory: {KEPT}, "
            "with fewer --workers"
        ) from error


# --- on a node -------------------------------------------------------------------------------------------------------

_order: tuple[str, _ApplyOrder] | None = None  # of this process: images are listed once


def _work(key: str, reference: list[Any], number: int) -> None:
    """The order is sent once to a process, not with each task: it may hold images."""
    global _order
    if _order is None or _order[0] != key:
        import ray

        _order = key, _begun(ray.get(reference[0]))
    with chdir(_order[1].folder):
        apply_shard(ShardTask(_order[1].job, number))


def _begun(order: _ApplyOrder) -> _ApplyOrder:
    """Whoever writes into one folder must make the same of the same images."""
    node, job = socket.gethostname(), order.job
    check_versions(order.versions, versions("pillow"), node)
    torch.set_num_threads(1)
    try:
        with chdir(order.folder):
            if not (job.folder / RECORDS).is_dir():
                raise RunError(f"the node {node} does not see the folder {job.out!r}: all nodes need a common disk")
            if open_images(job).fingerprint != order.fingerprint:
                raise RunError(f"the node {node} has other images than the driver: all nodes need a common disk")
    except FileNotFoundError as error:
        raise RunError(f"the node {node} does not see {error.filename!r}: all nodes need a common disk") from error
    return order
