"""Ranks: the processes that torchrun starts, which share one search, or one training at a time.

Each rank works on its part of every batch. Gradients are summed over all of them, so that every rank holds the same
parameters at any moment. A rank that is lost ends the others, with a line that names it.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fasteraa.errors import ConfigError, FasterAAError, RankLost, RunError
from fasteraa.runtime.documents import cut, printable, with_flags
from fasteraa.runtime.signals import defer_signals

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BEAT_S = 0.5  # between signs of life
_LOST = 20  # missing signs in a row that mean the end of a rank
_LOST_IN_TROUBLE = 4  # the same, once a sum over ranks has failed
_GRACE_S = 5.0  # for the main thread to notice; on a GPU it may wait for ever
_CONTINUE = "add resume=True to continue from the last checkpoint, with any number of ranks"
_JOIN = timedelta(minutes=30)  # for ranks that are still loading
_LEAVE_S = 20.0  # for the group to end: another rank may have gone, and NCCL would wait for it for ever


def launched() -> bool:
    """Did torchrun start this process?"""
    return all(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"))


def own_rank() -> int:
    """0 where torchrun did not start this process."""
    return int(os.environ["RANK"]) if launched() else 0


def node_count() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) if launched() else 1


@dataclass(frozen=True)
class Ranks:
    """This rank and how many there are. A process that nobody shares with is rank 0 of 1, and nothing is sent."""

    rank: int = 0
    size: int = 1
    joined: bool = False  # is there a process group?

    @property
    def is_first(self) -> bool:
        """Rank 0 alone writes files and prints."""
        return self.rank == 0

    def words(self) -> str:
        """`2 ranks (gloo, on CPUs)`."""
        import torch.distributed

        dist: Any = torch.distributed
        how = "nccl, a GPU each" if "nccl" in dist.get_backend_config() else "gloo, on CPUs"
        return f"{self.size} rank{'s' * (self.size > 1)} ({how})"

    def rows(self, count: int) -> slice:
        """Its part of a batch of `count` images; parts differ by one image at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, count: int) -> float:
        """How much of a batch of `count` images its part is."""
        return len(range(count)[self.rows(count)]) / count

    def sum_(self, tensors: Sequence[Tensor], weight: float = 1.0) -> None:
        """In place: each tensor times the rank's weight, summed over all ranks; one message for all of them."""
        if not self.joined or not tensors:
            return
        import torch
        import torch.distributed as dist

        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) * weight
        dist.all_reduce(flat)
        with torch.no_grad():
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def part(self, count: int) -> slice:
        """Its part of what all ranks look at once; all of it where there is not one for each."""
        return self.rows(count) if count >= self.size else slice(0, count)

    def check_shares(self, batch: int, parts: int = 1) -> None:
        """Every rank needs an image of whatever passes through a network at once: a batch, or each of its parts."""
        part = -(-batch // parts)
        least = batch - part * (-(-batch // part) - 1)  # the last part
        if self.size > least:
            how = f" in {parts} parts" if parts > 1 else ""
            raise ConfigError(
                f"every rank needs an image of a step, {self.size} ranks share batches of {batch}{how}: at most "
                f"{least} ranks (--nproc-per-node)"
            )

    def whole(self, part: Tensor, count: int) -> Tensor:
        """The parts of all ranks, in their order: `count` rows."""
        if not self.joined or count < self.size:
            return part
        import torch.distributed as dist

        rows = part.new_zeros(count, *part.shape[1:])
        rows[self.rows(count)] = part
        dist.all_reduce(rows)
        return rows

    def broadcast(self, message: Any = None) -> Any:
        """What rank 0 says; the others wait for it."""
        if self.size == 1:
            return message
        import torch.distributed as dist

        sent = [message]
        dist.broadcast_object_list(sent, src=0)
        return message if self.is_first else sent[0]

    def largest(self, number: int) -> int:
        """Of what all ranks say, so that all of them decide alike."""
        if self.size == 1:
            return number
        import torch
        import torch.distributed as dist

        value = torch.tensor(number)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def from_first(self, state: dict[str, Any] | None, device: torch.device) -> dict[str, Any] | None:
        """The state that rank 0 has, on every rank."""
        if self.size == 1:
            return state
        import torch
        import torch.distributed as dist

        buffer = io.BytesIO()
        if self.is_first:
            torch.save(state, buffer)
        sent = [buffer.getvalue()]
        dist.broadcast_object_list(sent, src=0)
        if self.is_first:
            return state
        received: dict[str, Any] | None = torch.load(io.BytesIO(sent[0]), map_location=device, weights_only=True)
        return received

    def check_alike(self, facts: Mapping[str, object]) -> None:
        """Settings, data and versions must be those of rank 0; the first difference is named."""
        if self.size == 1:
            return
        import torch.distributed as dist

        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, {name: str(value) for name, value in facts.items()})
        for rank, theirs in enumerate(everybody):
            for name, value in everybody[0].items():
                if theirs.get(name) != value:
                    raise RunError(
                        f"all ranks must have the same {name}: rank 0 has {cut(value, 80)}, rank {rank} has "
                        f"{cut(str(theirs.get(name)), 80)}"
                    )


ALONE = Ranks()


def rank_device(name: str) -> str:
    """The device of this rank: its own GPU, or the CPU. The name is what was asked for."""
    if not launched():
        return name
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"under torchrun every rank has a GPU of its own: --device takes auto or cpu, got {name!r}")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    mine, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if mine >= there:
        asked = os.environ.get("LOCAL_WORLD_SIZE", mine + 1)
        raise ConfigError(f"torch sees {there} CUDA devices, torchrun started {asked} ranks: --nproc-per-node {there}")
    return f"cuda:{mine}"


@contextmanager
def open_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the other ranks until the `with` is left; alone where torchrun did not start this process."""
    if not launched():
        yield ALONE
        return
    import torch
    import torch.distributed

    dist: Any = torch.distributed  # which does not list all that it has
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=_JOIN)))
    watch = Watch(_own_connection(store), rank, size)
    watch.start()
    reason: str | None = None
    try:
        with watch.explaining():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, store=dist.PrefixStore("fasteraa", store), rank=rank, world_size=size, timeout=_JOIN
            )
            yield Ranks(rank, size, joined=True)
    except BaseException as error:
        reason = str(error) if isinstance(error, FasterAAError) else type(error).__name__
        raise
    finally:
        watch.end(reason)
        if dist.is_initialized() and reason is None:
            _leave(dist.destroy_process_group)


def _leave(destroy: Callable[[], None], seconds: float = _LEAVE_S) -> bool:
    """End the process group; returns whether it ended in time. All results are there: nothing is worth a wait."""
    gc.collect()  # a CUDA graph that holds a sum over ranks, and that nobody needs any more, would be waited for

    def leave() -> None:
        with suppress(RuntimeError):  # another rank has gone
            destroy()

    leaving = threading.Thread(target=leave, name="fasteraa-leave", daemon=True)
    leaving.start()
    leaving.join(seconds)
    return not leaving.is_alive()


def _own_connection(store: Any) -> Any:
    """Another one to the same store: a connection that waits for an answer can send nothing."""
    import torch.distributed

    dist: Any = torch.distributed
    while not isinstance(store, dist.TCPStore):
        store = store.underlying_store
    return dist.TCPStore(store.host, store.port, is_master=False, timeout=timedelta(seconds=10))


class Watch(threading.Thread):
    """Signs of life in torchrun's store: rank 0 looks at all ranks, the others look at rank 0.

    Signs are counted, not timed, so that a machine that slept finds nobody lost.
    """

    def __init__(self, store: Any, rank: int, size: int, leave: Callable[[int], Any] = os._exit):
        super().__init__(name="fasteraa-ranks", daemon=True)
        self.store, self.rank, self.size, self.leave = store, rank, size, leave
        self.trouble: str | None = None  # why the ranks end
        self.told_by = 0  # the rank that says so
        self.patience = _LOST
        self._over = threading.Event()
        self._seen = dict.fromkeys(range(1, size) if rank == 0 else (0,), (-1, 0))  # last sign, missing ones

    def run(self) -> None:
        noticed = None
        while not self._over.wait(_BEAT_S):
            try:
                self.beat()
            except RuntimeError:  # the store went with its machine
                self._note(
                    f"the process that keeps torchrun's store has ended: {_CONTINUE}", 0 if self.rank == 0 else 1
                )
            noticed = noticed or (time.monotonic() if self.trouble else None)
            if noticed is not None and time.monotonic() > noticed + _GRACE_S and not self._over.is_set():
                if self.told_by == self.rank:
                    print("fasteraa:", printable(with_flags(str(self.trouble))), file=sys.stderr, flush=True)
                self.leave(RankLost.exit_code)

    def beat(self) -> None:
        self.store.add(f"beat/{self.rank}", 1)
        if self.store.add("trouble", 0) and self.trouble is None:
            text = self.store.get("reason").decode()
            self._note(text, 0)
        for rank, (sign, missing) in self._seen.items():
            now = self.store.add(f"beat/{rank}", 0)
            is_loading = not now and self.patience == _LOST  # no sign at all, and no sum over ranks has failed
            missing = missing + 1 if now == sign and not is_loading else 0
            self._seen[rank] = now, missing
            if missing >= self.patience and not self.store.add(f"over/{rank}", 0):
                text = f"rank {rank} of {self.size} has ended (it was killed, or its machine was lost): {_CONTINUE}"
                self._tell(text)
                self._note(text, 1 if rank == 0 else 0)

    def _note(self, text: str, told_by: int) -> None:
        if self.trouble is None:
            self.told_by, self.trouble = told_by, text

    def _tell(self, reason: str) -> None:
        if self.store.add("trouble", 0) == 0:
            self.store.set("reason", reason)
            self.store.add("trouble", 1)

    def end(self, reason: str | None) -> None:
        """This rank leaves: well, or for a reason that is sent to the others."""
        self._over.set()
        with suppress(RuntimeError):
            if reason is not None and self.trouble is None:
                self._tell(f"rank {self.rank} of {self.size}: {reason}")
            self.store.add(f"over/{self.rank}", 1)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What a lost rank does to this one (a sum that fails, torchrun's SIGTERM) is reported as what it is."""
        try:
            yield
        except (RuntimeError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and error.args[:1] != (signal.SIGTERM,):
                raise
            with defer_signals(all_of_them=True):
                self._wait_for_trouble()
            if self.trouble is None:
                raise
            raise RankLost(self.trouble, self.told_by) from error

    def _wait_for_trouble(self) -> None:
        self.patience = _LOST_IN_TROUBLE
        latest = time.monotonic() + 2 * _BEAT_S * _LOST_IN_TROUBLE
        while self.trouble is None and time.monotonic() < latest:
            time.sleep(_BEAT_S / 5)
