"""Train one network with one policy, and measure it once, at the end, on images it has not seen.

The last epoch is the result. Nothing is ever selected on test data.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa._version import __version__, commit
from fasteraa.data.batches import Normalise
from fasteraa.data.lazy_set import Images
from fasteraa.errors import ConfigError, OutOfTime, RunError, Stopped
from fasteraa.nets import Backbone, build
from fasteraa.nets.shared_norm import share_statistics
from fasteraa.policy.policy import Policy
from fasteraa.runtime.checkpoint import load_checkpoint, misfit, save_checkpoint
from fasteraa.runtime.device import explain_out_of_memory, find_device
from fasteraa.runtime.files import write_atomic
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.runtime.seeds import seeded
from fasteraa.runtime.signals import defer_signals
from fasteraa.train.captured import CapturedGroup, tuned_convolutions
from fasteraa.train.device_batches import Batch, DeviceFeed, Feed, epoch_seed
from fasteraa.train.live_groups import LiveGroups
from fasteraa.train.metrics import LARGEST, Measured, measured
from fasteraa.train.probe import ProbeFeed
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.worker_batches import make_feed, plain_batches

_WORTH_FUSING = 500  # steps of a run; by its own alone, so that no other run decides how it is calculated
_FIRST_SAVE_S = 2.0  # of training before the first checkpoint: shorter runs need none
_WORK_PER_SAVE = 20  # seconds of training between checkpoints, for each second that one takes
_TOLD = 1  # to stop, by something else than a signal; no signal that is caught has this number
_FINISH_S = 0.5  # an epoch that is nearly over is finished when a run is to stop
# what a checkpoint holds
_STATE: dict[str, Any] = {
    "run": str, "network": dict, "optimiser": dict, "epoch": int, "loss": float, "diverged": (int, NoneType),
    "seconds": float, "share_seconds": float, "kernels": list,
}  # fmt: skip
Tell = Callable[[int, int, float], None]  # epoch, epochs, training loss
Until = Callable[[], float]  # the moment (time.time()) at which to stop; asked after every epoch


def stop_requested() -> bool:
    """At once; replaced in a process that something else than a signal may end."""
    return False


@dataclass(frozen=True)
class Trained:
    """The outcome of one training run."""

    error: float  # % of the held-out images, after the last epoch
    error_top5: float
    held_out_loss: float  # how sure it is of the right classes there, however sure it is in general
    balanced_error: float  # the same, every class counted alike
    balanced_loss: float
    train_loss: float  # mean of the last epoch
    seconds: float  # of training, without set-up and without the final measurement
    setup_seconds: float  # compilation and capture
    together: int  # runs that shared the device in the end, and these seconds
    share_seconds: float  # its own part of them, whoever shared the device meanwhile
    kernels: str  # plain or compiled; of a resumed run, one after the other
    steps: int
    network: nn.Module
    normalise: Normalise
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Diverged:
    """A training run that diverged: there is no network worth measuring."""

    why: str
    seconds: float
    together: int
    provenance: dict[str, Any]


def train(
    data: Images,
    held_out: Images,
    policy: Policy,
    recipe: TrainRecipe,
    seed: int = 0,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    tell: Tell | None = None,
    until: Until | None = None,
) -> Trained:
    """Train on `data` under `policy`, measure on `held_out`. With a checkpoint file a killed run resumes there."""
    job = TrainingRun(policy, recipe, seed, checkpoint)
    (trained,) = train_together(data, held_out, [job], device=device, tell=tell, until=until)
    if isinstance(trained, Diverged):
        raise RunError(f"{trained.why}: lower learning_rate")
    return trained


@dataclass(frozen=True)
class TrainingPart:
    """Epochs `first` up to `last` of a training: from the state that another part left, to a state for the next one."""

    first: int
    last: int
    begin: Path | None = None  # without one it begins at the start
    end: Path | None = None


@dataclass(frozen=True)
class TrainingRun:
    """One training run: what to train with, from which seed, and where to keep its checkpoint."""

    policy: Policy
    recipe: TrainRecipe
    seed: int = 0
    checkpoint: Path | None = None
    part: TrainingPart | None = None  # None: all epochs of the recipe

    @property
    def epochs(self) -> tuple[int, int]:
        """That it trains, from and up to."""
        return (0, self.recipe.epochs) if self.part is None else (self.part.first, self.part.last)


@torch.inference_mode(False)
@torch.enable_grad()
def train_together(
    data: Images,
    held_out: Images,
    jobs: Sequence[TrainingRun],
    *,
    device: str = "auto",
    fuse: bool | None = None,
    tell: Tell | None = None,
    until: Until | None = None,
    ranks: Ranks = ALONE,
    live: LiveGroups | None = None,
) -> list[Trained | Diverged]:
    """Several runs in lockstep: on a GPU the steps of all are one graph, whose branches run side by side.

    A run whose loss is not finite any more takes no other with it.

    `fuse` makes fewer kernels of the network's on a GPU, by default in runs that are long enough. Most networks are
    compiled for it: half a minute of waiting (WRN-40-2 on an H200, empty caches). Parts of trainings continue groups of
    `live` where they can, and are kept there.

    Several `ranks` share every batch: all of them make this call, the first alone has files.
    """
    if data.classes != held_out.classes:
        raise ConfigError("training and held-out images must have the same classes")
    if len({(job.epochs, job.recipe.epochs, job.recipe.batch_size) for job in jobs}) > 1:
        raise ConfigError("runs trained together must have the same epochs and batch_size")
    place = find_device(device)
    origins = [_provenance(data, held_out, job.policy, job.recipe, job.seed, place) for job in jobs]
    with explain_out_of_memory("lower --batch-size, --size or --jobs, or take a smaller --network"):
        group = None if live is None else live.take(data.fingerprint, jobs)
        if group is None:
            members = [
                Training(data, job.policy, job.recipe, job.seed, place, part=job.part, ranks=ranks) for job in jobs
            ]
            group = Group(members, False if ranks.joined else fuse)  # a compiler would cut networks at sums over ranks
        try:
            group.go([job.checkpoint for job in jobs], tell, until)
        finally:
            group.release()
        group.leave_states()
        pairs = zip(group.members, origins, strict=True)
        outcomes = [_outcome(group, training, held_out, provenance) for training, provenance in pairs]
    for job in jobs:
        if job.checkpoint is not None:
            job.checkpoint.unlink(missing_ok=True)
    if live is not None:
        live.keep(data.fingerprint, group)
    return outcomes


def _outcome(group: Group, training: Training, held_out: Images, provenance: dict[str, Any]) -> Trained | Diverged:
    together = len(group.members)
    if training.diverged is not None:
        why = f"the training loss was not finite in epoch {training.diverged}"
        return Diverged(why, group.seconds, together, provenance)
    measured = training.measure(held_out)
    if not measured.loss < LARGEST:  # the last steps ruined it: the loss of an epoch does not know of the last one
        return Diverged("the loss on held-out images was not finite", group.seconds, together, provenance)
    return Trained(
        error=measured.error,
        error_top5=measured.error_top5,
        held_out_loss=measured.loss,
        balanced_error=measured.balanced_error,
        balanced_loss=measured.balanced_loss,
        train_loss=training.loss,
        seconds=group.seconds,
        setup_seconds=group.setup_seconds,
        together=together,
        share_seconds=training.share_seconds,
        kernels=" and ".join(training.kernels) or "unknown",
        steps=(group.last - group.first) * training.feed.steps,
        network=training.network if training.averaged is None else training.averaged,  # what was measured
        normalise=training.feed.normalise,
        provenance=provenance,
    )


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
        states = [self.ranks.from_first(_read(path, self.device), self.device) for path in checkpoints]
        for member, state in zip(self.members, states, strict=True):
            if state is None and member.part.begin is not None:
                member.follow(member.part.begin)
        stand = [self.first if state is None else _epoch_of(state) for state in states]
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


class Training:
    """One run: a network, its feed of batches, its optimiser, and the step that changes them."""

    def __init__(
        self,
        data: Images,
        policy: Policy,
        recipe: TrainRecipe,
        seed: int,
        device: torch.device,
        part: TrainingPart | None = None,
        ranks: Ranks = ALONE,
    ):
        self.recipe, self.device, self.seed, self.ranks = recipe, device, seed, ranks
        self.part = part or TrainingPart(0, recipe.epochs)
        self.images = data.fingerprint
        self.identity = _identity(self.images, policy, recipe, seed, part)
        with seeded(seed):
            network = make_network(recipe, len(data.classes), min(data.size))
        self.network: Backbone = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        _train_mode(self.network, recipe)
        if ranks.joined:
            share_statistics(self.network, ranks)
        self.forward: Callable[[Tensor], Tensor] = self.network
        self.feed: Feed = make_feed(data, policy, recipe, seed, device, ranks)
        ranks.check_shares(min(recipe.batch_size, len(data)), recipe.accumulate)
        self.half = _is_half(recipe.precision, device)
        if recipe.freeze and recipe.copies and device.type == "cpu":  # a GPU's graph takes images
            self.feed = ProbeFeed(self.feed, self.features, recipe.copies)
        self.rates = [torch.tensor(0.0, device=device) for _ in range(2)]  # of the head, of the body
        self.optimiser = _optimiser(self.network, recipe, *self.rates)
        self.averaged = deepcopy(self.network).requires_grad_(False) if recipe.ema else None
        self.loss = math.nan
        self.diverged: int | None = None  # the epoch in which its loss was not finite
        self.share_seconds, self.kernels = 0.0, list[str]()  # as in Trained

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, backward, clip, update; the plain path, which the captured one repeats."""
        self.optimiser.zero_grad(set_to_none=True)
        parts = list(zip(images.chunk(self.recipe.accumulate), labels.chunk(self.recipe.accumulate), strict=True))
        total = torch.zeros((), device=self.device)
        for some, their_labels in parts:
            share, mine = len(some) / len(images), self.ranks.rows(len(some))
            logits, smoothing = self._of(some[mine]), self.recipe.label_smoothing
            loss = (
                share
                * self.ranks.share(len(some))
                * F.cross_entropy(logits, their_labels[mine], label_smoothing=smoothing)
            )
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        self.ranks.sum_([total, *(p.grad for p in self.network.parameters() if p.grad is not None)])
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.optimiser.step()
        if self.averaged is not None:
            _average(self.averaged, self.network, self.recipe.ema)
        return total

    def rates_at(self, step: int, steps_per_epoch: int) -> list[float]:
        """Of the head, of the body."""
        rate = self.recipe.rate(step, steps_per_epoch)
        return [rate, self.recipe.body_rate * rate]

    def logits(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            return self.forward(x).float()

    @torch.no_grad()
    def measure(self, held_out: Images) -> Measured:
        measured_network = self.averaged or self.network
        measured_network.eval()
        self.forward = measured_network
        batches = plain_batches(held_out, self.recipe, max(256, self.recipe.batch_size), self.device, self.ranks)
        return measured((self._shared_logits(images), labels) for images, labels in batches)

    def _shared_logits(self, images: Tensor) -> Tensor:
        """Each rank calculates those of its part."""
        return self.ranks.whole(self._of(images[self.ranks.part(len(images))]), len(images))

    def _of(self, images: Tensor) -> Tensor:
        """Logits of images, or of features of a probe."""
        if images.ndim == 2:
            logits: Tensor = self.network.classifier(images)
            return logits.float()
        return self.logits(self._normal(images))

    def features(self, images: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            return self.network.features(self._normal(images)).float()

    def _normal(self, images: Tensor) -> Tensor:
        return self.feed.normalise(images.float() / 255).contiguous(memory_format=torch.channels_last)

    # --- state -------------------------------------------------------------------------------------------------------

    def save(self, path: Path, epoch: int, seconds: float) -> None:
        state = {
            "run": self.identity,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            **({} if self.averaged is None else {"averaged": self.averaged.state_dict()}),
            "epoch": epoch,
            "loss": self.loss,
            "diverged": self.diverged,
            "seconds": seconds,
            "share_seconds": self.share_seconds,
            "kernels": self.kernels,
        }
        save_checkpoint(path, state)

    def take(self, state: dict[str, Any]) -> None:
        """The state of a checkpoint; an error of some kind if it cannot be one of this run."""
        if state["run"] != self.identity:
            raise ValueError("other images, policy, settings or seed")
        if not self.part.first <= state["epoch"] <= self.part.last:
            raise ValueError(f"{state['epoch']} of {self.recipe.epochs} epochs")
        if not all(0 <= state[name] < math.inf for name in ("seconds", "share_seconds")):
            raise ValueError("its seconds must be numbers")
        self._take_network(state)
        self.loss, self.diverged = state["loss"], state["diverged"]
        self.share_seconds, self.kernels = state["share_seconds"], [str(each) for each in state["kernels"]]

    def follow(self, path: Path) -> None:
        """Begin with the state in which another part of a training ended; what it took is not this part's."""
        state = _read(path, self.device)
        if state is None:
            raise RunError(
                f"the state that this part of a training continues, {str(path)!r}, is not there: remove the records "
                f"of the parts before it to train them again"
            )
        if state["epoch"] != self.part.first:
            raise misfit(path, f"it ended after {state['epoch']} epochs, not {self.part.first}")
        try:
            self._take_network(state)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise misfit(path, error) from error

    def follow_on(self, run: TrainingRun) -> None:
        """Train this part next, with its policy; network and optimiser hold the state already that it continues."""
        assert run.part is not None
        assert isinstance(self.feed, DeviceFeed)
        self.part, self.feed = run.part, self.feed.with_policy(run.policy)
        self.identity = _identity(self.images, run.policy, run.recipe, run.seed, run.part)
        self.loss, self.diverged, self.share_seconds, self.kernels = math.nan, None, 0.0, []
        self.forward = self.network  # it was measured
        _train_mode(self.network, self.recipe)

    def _take_network(self, state: dict[str, Any]) -> None:
        """Weights, what the optimiser remembers of each, and their mean."""
        self.network.load_state_dict(state["network"])
        rates = [group["lr"] for group in self.optimiser.param_groups]  # tensors, which loading would replace
        self.optimiser.load_state_dict(state["optimiser"])
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])

    def tensors(self) -> list[Tensor]:
        """Everything a step changes; the optimiser's state only once it exists."""
        slots = (self.optimiser.state[p] for group in self.optimiser.param_groups for p in group["params"])
        moments = [value for slot in slots for value in slot.values() if isinstance(value, Tensor)]
        averages = [] if self.averaged is None else list(self.averaged.state_dict().values())
        return [*self.network.state_dict().values(), *averages, *moments]


def epochs_done(checkpoint: Path) -> int:
    """How many a run has behind it, by its checkpoint; 0 without one. Weights are not read."""
    return _epoch_of(_read(checkpoint, torch.device("cpu"), mmap=True))


def _epoch_of(state: dict[str, Any] | None) -> int:
    return 0 if state is None else int(state["epoch"])


def _read(path: Path | None, device: torch.device, mmap: bool = False) -> dict[str, Any] | None:
    return None if path is None else load_checkpoint(path, device, _STATE, mmap=mmap)


def _identity(images: str, policy: Policy, recipe: TrainRecipe, seed: int, part: TrainingPart | None) -> str:
    """Whatever would make it another training; the name of the state that a part begins with has its key."""
    parts: list[Any] = [images, policy.hash, recipe.key, seed]
    if part is not None:
        parts += [part.first, part.last, part.begin and part.begin.name]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextmanager
def network_draws(seed: int, device: torch.device) -> Iterator[None]:
    """What a network draws while it trains (Shake-Shake, dropout) comes from the seed; the caller's state is kept."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def make_network(recipe: TrainRecipe, classes: int, side: int) -> Backbone:
    """The recipe's network, with its weights; of a linear probe all but the head is frozen."""
    network = build(
        recipe.network, classes, recipe.input_size or side, pretrained=recipe.pretrained, weights=recipe.weights or None
    )
    if recipe.freeze:
        network.requires_grad_(False)
        network.classifier.requires_grad_(True)
    return network


def _train_mode(network: Backbone, recipe: TrainRecipe) -> None:
    """A frozen body keeps its statistics."""
    network.train()
    if recipe.freeze:
        network.eval()
        network.classifier.train()


def _optimiser(network: Backbone, recipe: TrainRecipe, head_rate: Tensor, body_rate: Tensor) -> torch.optim.Optimizer:
    """No decay on norms and biases, which are the parameters of one dimension; the head has a rate of its own."""
    head = {id(parameter) for parameter in network.classifier.parameters()}
    groups = []
    for is_head, rate in ((True, head_rate), (False, body_rate)):
        for decays in (True, False):
            chosen = [
                p
                for p in network.parameters()
                if p.requires_grad and (id(p) in head) == is_head and (p.ndim > 1) == decays
            ]
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": recipe.weight_decay if decays else 0.0})
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, head_rate, fused=True, capturable=head_rate.is_cuda)
    return torch.optim.SGD(groups, head_rate, recipe.momentum, nesterov=recipe.momentum > 0, fused=True)


@torch.no_grad()
def _average(averaged: nn.Module, network: nn.Module, decay: float) -> None:
    """Of weights; statistics of norm layers are means already and are taken as they are."""
    torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), 1 - decay)
    for mine, own in zip(averaged.buffers(), network.buffers(), strict=True):
        mine.copy_(own)


def _is_half(precision: str, device: torch.device) -> bool:
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type == "cpu" and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """Whether it calculates in them; one that converts back and forth is slower than with float32."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _provenance(
    data: Images, held_out: Images, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device
) -> dict[str, Any]:
    return {
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint},
        "held_out": {"images": len(held_out), "fingerprint": held_out.fingerprint},
        "policy": {"name": policy.name, "hash": policy.hash},
        "recipe": asdict(recipe),
        "precision": "bfloat16" if _is_half(recipe.precision, device) else "float32",
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU",
        "versions": {"fasteraa": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
    }


def save_network(path: Path, trained: Trained) -> None:
    """Weights, to be loaded without executing anything."""
    save_checkpoint(path, trained.network.state_dict())
    write_atomic(path.with_suffix(".json"), json.dumps(trained.provenance, indent=1) + "\n")
