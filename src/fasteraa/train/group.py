"""Several trainings side by side, in lockstep: the loop over epochs, what ends it, and when states are saved."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fasteraa.errors import OutOfTime, RunError, Stopped
from fasteraa.runtime.checkpoint import misfit
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.signals import defer_signals
from fasteraa.train.captured import CapturedGroup, tuned_convolutions
from fasteraa.train.device_batches import Batch, epoch_seed
from fasteraa.train.metrics import LARGEST
from fasteraa.train.training import Training, TrainingRun, epoch_of, read_state

_WORTH_FUSING = 500  # steps of a run; by its own alone, so that no other run decides how it is calculated
_FIRST_SAVE_S = 2.0  # of training before the first checkpoint: shorter runs need none
_WORK_PER_SAVE = 20  # seconds of training between checkpoints, for each second that one takes
_TOLD = 1  # to stop, by something else than a signal; no signal that is caught has this number
_FINISH_S = 0.5  # an epoch that is nearly over is finished when a run is to stop
Tell = Callable[[int, int, float], None]  # epoch, epochs, training loss
Until = Callable[[], float]  # the moment (time.time()) at which to stop; asked after every epoch


def stop_requested() -> bool:
    """At once; replaced in a process that something else than a signal may end."""
    return False


class _Interrupted(Exception):
    """In the middle of an epoch, by the number of a signal or _TOLD."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Group:
    """Runs that are trained in lockstep (mostly one), and the loop that trains them."""

    def __init__(self, members: list[Training], fuse: bool | None = None):
        self.members, self.device = members, members[0].device
        self.ranks = members[0].ranks
        self.first, self.last = members[0].part.first, members[0].part.last
        self.epoch = self.first
        self.fuse = (self.last - self.first) * members[0].feed.steps >= _WORTH_FUSING if fuse is None else fuse
        self.kernels = "plain"  # as in Trained; recording may fuse them
        # without a reference back: what it holds (processes that read, GPU memory) is given back when it is let go
        self.step: Callable[[list[Batch]], Tensor] = partial(_plain_step, members)
        self.seconds, self.setup_seconds = 0.0, 0.0
        self.stop: Callable[[], int] = lambda: 0  # asked before every step: the number of a signal, _TOLD, or 0
        self.began = 0.0  # the epoch
        self.ready = False  # captured already, and its members stand where they begin

    def go(self, checkpoints: Sequence[Path | None], tell: Tell | None = None, until: Until | None = None) -> None:
        """All epochs that are left. The time limit ends it after an epoch, with the state saved.

        A signal ends it sooner where the epoch would take longer: then it continues from its last checkpoint.
        """
        if not self.ready:
            self._load(checkpoints)
            self.capture()
        self.ready = False
        save_next = time.monotonic() + _FIRST_SAVE_S
        with defer_signals(all_of_them=self.ranks.size > 1) as caught:
            self.stop = lambda: caught[0] if caught else _TOLD * stop_requested()
            while self.epoch < self.last and any(member.diverged is None for member in self.members):
                self.began = began = time.monotonic()
                try:
                    self.one_epoch()
                except _Interrupted as interrupted:
                    self._end_by(interrupted.number)
                    raise OutOfTime(f"stopped in epoch {self.epoch + 1} of {self.last}") from None
                self._count(time.monotonic() - began)
                if tell is not None:
                    tell(self.epoch, self.last, self.members[0].loss)
                unfinished = self.epoch < self.last
                late = unfinished and ((until is not None and time.time() > until()) or stop_requested())
                end = self.ranks.largest(caught[0] if caught else _TOLD * late)
                if (time.monotonic() > save_next and unfinished) or end:
                    save_next = self._save(checkpoints)
                self._end_by(end)
                if end:
                    raise OutOfTime(f"time was up after {self.epoch} of {self.last} epochs")

    def _end_by(self, number: int) -> None:
        """A signal ends all ranks; the first says so."""
        if number <= _TOLD:
            return
        if self.ranks.is_first:
            raise KeyboardInterrupt(signal.Signals(number)) from None
        raise Stopped(f"stopped by {signal.Signals(number).name}, as the first rank reports", number) from None

    def release(self) -> None:
        """Give the graph back, which knows of the sums over ranks: NCCL waits for it before it ends."""
        if isinstance(self.step, CapturedGroup) and self.ranks.joined:
            self.step.release()
            self.step = partial(_plain_step, self.members)

    def capture(self) -> None:
        """On a GPU, make one graph of a step. What networks draw meanwhile is not the caller's, either."""
        began = time.monotonic()
        if self.device.type == "cuda" and self.epoch < self.last:
            with (
                tuned_convolutions(),
                torch.cuda.device(self.device),  # else the graph of another GPU, and empty
                network_draws(self.members[0].seed, self.device),
            ):
                self.step = CapturedGroup(self)
        self.setup_seconds = time.monotonic() - began

    def one_epoch(self) -> None:
        first = self.members[0]
        total = torch.zeros(len(self.members), device=self.device)
        rates = rates_of_epoch(self.members, self.epoch)
        own = self.ranks.rank << 40  # each rank has other images of a batch, which are not to get the same draws
        with network_draws(epoch_seed(first.seed, self.epoch) + own, self.device):
            feeds = [member.feed.epoch(self.epoch) for member in self.members]
            for number, batches in enumerate(zip(*feeds, strict=True)):
                stop = self.stop()
                if end := self.ranks.largest(stop if stop and self._rest_of_epoch(number) > _FINISH_S else 0):
                    raise _Interrupted(end)
                set_rates(self.members, rates[number])
                total += self.step(list(batches))
        means = (total / first.feed.steps).tolist()  # the only wait for the device in an epoch
        self.epoch += 1
        for member, mean in zip(self.members, means, strict=True):
            member.loss = mean
            if member.diverged is None and not mean < LARGEST:
                member.diverged = self.epoch  # it keeps its place in the graph: to record another would take longer

    def _rest_of_epoch(self, steps: int) -> float:
        """Seconds, by those of the `steps` that are done."""
        return (time.monotonic() - self.began) / max(steps, 1) * (self.members[0].feed.steps - steps)

    def _count(self, seconds: float) -> None:
        """Of an epoch: whose time it was, and what calculated it."""
        self.seconds += seconds
        for member in self.members:
            member.share_seconds += seconds / len(self.members)
            if self.kernels not in member.kernels:
                member.kernels.append(self.kernels)

    def _save(self, checkpoints: Sequence[Path | None]) -> float:
        """Returns when the next one is due: the disk gets a small share of the time."""
        began = time.monotonic()
        for member, path in zip(self.members, checkpoints, strict=True):
            if path is not None:
                member.save(path, self.epoch, self.seconds)
        ended = time.monotonic()
        return ended + _WORK_PER_SAVE * (ended - began)

    def leave_states(self) -> None:
        """What the next part of each training continues; there is none of a training that diverged."""
        left = [(each, each.part.end) for each in self.members if each.part.end is not None and each.diverged is None]
        if not left:
            return
        with ThreadPoolExecutor(min(len(left), core_count())) as threads:  # digests and disks wait for each other
            for end in {end.parent for _, end in left}:
                end.mkdir(parents=True, exist_ok=True)
            list(threads.map(lambda each: each[0].save(each[1], self.epoch, self.seconds), left))

    def follow_on(self, runs: Sequence[TrainingRun], sources: Sequence[int]) -> None:
        """Train these parts next, each from where the member of that number stands, with the graph that is there."""
        states = [[tensor.clone() for tensor in self.members[source].tensors()] for source in sources]
        for member, run, state in zip(self.members, runs, states, strict=True):
            for tensor, value in zip(member.tensors(), state, strict=True):
                tensor.copy_(value)
            member.follow_on(run)
        self.first, self.last = runs[0].epochs
        self.epoch, self.seconds, self.setup_seconds, self.ready = self.first, 0.0, 0.0, True

    def _load(self, checkpoints: Sequence[Path | None]) -> None:
        """Continue where all members stand; parts that were not begun where the parts before them ended."""
        states = [self.ranks.from_first(read_state(path, self.device), self.device) for path in checkpoints]
        for member, state in zip(self.members, states, strict=True):
            if state is None and member.part.begin is not None:
                member.follow(member.part.begin)
        stand = [self.first if state is None else epoch_of(state) for state in states]
        if len(set(stand)) > 1:
            raise RunError(
                f"runs that were begun can be trained together only from the same epoch on, these have {stand} behind "
                "them: train them apart"
            )
        for member, path, state in zip(self.members, checkpoints, states, strict=True):
            if state is not None:
                try:
                    member.take(state)
                except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                    if isinstance(error, torch.OutOfMemoryError):
                        raise
                    raise misfit(path or Path("the checkpoint of the first rank"), error) from error
                self.epoch, self.seconds = state["epoch"], state["seconds"]


def rates_of_epoch(members: Sequence[Training], epoch: int) -> Tensor:
    """(steps, 2 * members) on the device, in one piece: small runs side by side mostly wait for Python."""
    steps = members[0].feed.steps
    rows = [
        [rate for member in members for rate in member.rates_at(epoch * steps + number, steps)]
        for number in range(steps)
    ]
    return torch.tensor(rows, device=members[0].device)


def set_rates(members: Sequence[Training], rates: Tensor) -> None:
    """Those of a step, as `rates_of_epoch` has them."""
    torch._foreach_copy_([rate for member in members for rate in member.rates], list(rates.unbind()))


def _plain_step(members: Sequence[Training], batches: Sequence[Batch]) -> Tensor:
    return torch.stack([member.step(*batch) for member, batch in zip(members, batches, strict=True)])


@contextmanager
def network_draws(seed: int, device: torch.device) -> Iterator[None]:
    """What a network draws while it trains (Shake-Shake, dropout) comes from the seed; the caller's state is kept."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
