"""Algorithm 2: the search, from images to a policy. The loop is the only thing that changes state."""

from __future__ import annotations

import math
import platform
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from fasteraa._version import __version__
from fasteraa.data import ImageSet
from fasteraa.data.batches import Normalise
from fasteraa.data.requirements import check_enough
from fasteraa.errors import ConfigError, DataError, FasterAAError, RunError, Stopped
from fasteraa.methods.config import PRETRAINED, SearchConfig, check_same, make_config, resolve_defaults
from fasteraa.methods.faster_aa.fast_step import CapturedStep, load_optimiser, make_step
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.methods.faster_aa.step import METRICS, soft_policy
from fasteraa.nets import (
    Backbone,
    Critic,
    PixelCritic,
    build,
    choose_network,
    frozen_statistics,
    make_primitive,
    preprocessing,
)
from fasteraa.nets.timm import PREFIX
from fasteraa.policy.policy import Policy
from fasteraa.runtime.checkpoint import misfit
from fasteraa.runtime.device import explain_out_of_memory, find_device, image_device
from fasteraa.runtime.documents import cut
from fasteraa.runtime.progress import Epoch, Progress, Silent
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.runtime.seeds import deterministic, seeded
from fasteraa.runtime.signals import defer_signals

_TIME_IS_UP = 1  # below the number of any signal that is handled
_WORK_PER_SAVE = 20  # seconds of searching between checkpoints, for each second that one takes
# what a checkpoint holds
STATE: dict[str, type] = {
    "critic": dict, "policy": dict, "critic_optimiser": dict, "policy_optimiser": dict, "generator": Tensor,
    "order": Tensor, "epoch": int, "step_of_epoch": int, "sums": Tensor, "seconds": float, "epochs": list,
    "trajectory": Tensor, "data": str, "backbone": str, "settings": dict,
}  # fmt: skip


@dataclass(frozen=True)
class GradientResult:
    """What backpropagation found, and where it began."""

    policy: Policy
    start: Policy
    halfway: Policy | None  # as it was after half of the epochs; None if there were too few
    epochs: list[Epoch]
    planned: int  # epochs
    finished: bool  # False if a time limit ended it early


@torch.inference_mode(False)
@torch.enable_grad()
def gradient_search(
    data: ImageSet,
    config: SearchConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    seconds: float = math.inf,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> GradientResult:
    """Algorithm 2 of the paper on labelled images, or on images with masks. No policy is trained with.

    With `out`, metrics, checkpoints and the policy are kept in that folder, and `resume` continues from there. The end
    of `seconds` ends it early with a valid policy. Of several `ranks` the first alone has a folder; all find the same.
    """
    config, progress = config or SearchConfig(), progress or Silent()
    place = find_device(device)
    check_critic(config)
    files = GradientFiles(Path(out)) if out is not None else None
    run = Run(data, config, place, files, progress, ranks)
    if run.config.batch_size < config.batch_size:
        progress.say(
            f"batches of {run.config.batch_size} images instead of {config.batch_size}: there are only {len(data)}"
        )
    if files is not None:
        run.describe_data()
        if not resume:
            run.save_start()
    if resume:
        run.load()
    return run.go(seconds)


def check_resumable(files: GradientFiles, config: SearchConfig) -> None:
    """Before anything is changed: the checkpoint is whole, and the settings are those it was made with.

    Batches may be smaller there, where images are few.
    """
    if (files.run / files.checkpoint.name).exists():
        raise RunError(
            f"the run in {str(files.run)!r} is of an earlier version, which this version cannot resume: start another "
            "(--out)"
        )
    state = files.load_checkpoint(torch.device("cpu"), STATE, mmap=True)
    if state is not None:
        check_same(config, _settings(state, files), files.run, but=("batch_size",))


def _settings(state: Mapping[str, Any], files: GradientFiles) -> dict[str, Any]:
    try:
        make_config(state["settings"])
    except (FasterAAError, TypeError, ValueError, AttributeError) as error:
        raise misfit(files.checkpoint, error) from error
    return dict(state["settings"])


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _is_like(value: Tensor, shape: Sequence[int], kind: torch.dtype) -> bool:
    return tuple(value.shape) == tuple(shape) and value.dtype == kind and _is_finite(value)


def _is_finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def check_critic(config: SearchConfig) -> None:
    """Build the network once without its weights: a wrong name must be noticed before images are read."""
    if config.critic == "auto":
        if config.critic_weights is not None:
            raise ConfigError(
                f"critic_weights need the network that they are for: --critic timm:NAME, got {config.critic}"
            )
        return
    begins = config.critic.startswith("timm:") or config.critic_weights
    device = "cpu" if begins else "meta"  # some of timm's look at values while they start, and weights have some
    with seeded(0), torch.device(device):
        make_primitive(build(config.critic, 1, config.size, **_begin(config)))


def _check_shared(config: SearchConfig, ranks: Ranks) -> None:
    """Whether ranks can share the batches of a search."""
    if ranks.size > 1 and config.critic_norm == "batch":
        raise ConfigError(
            "critic_norm = 'batch' takes statistics of whole batches, which ranks do not have: search in one process, "
            "or with critic_norm = 'none'"
        )
    if ranks.size > config.batch_size // 2:
        raise ConfigError(
            f"every rank needs an image to augment, {ranks.size} ranks share batches of {config.batch_size} images of "
            f"which half are augmented: at most {config.batch_size // 2} ranks (--nproc-per-node)"
        )


def _begin(config: SearchConfig) -> dict[str, Any]:
    """How the critic is built: with its own norm layers, as they are, where it begins with weights."""
    if config.critic_weights is None:
        return {"norm": "none" if config.critic_norm == "none" else "primitive"}
    own = config.critic_weights == PRETRAINED
    return {"norm": "frozen", "pretrained": own, "weights": None if own else config.critic_weights}


def _normalise(config: SearchConfig, images: Tensor) -> Normalise:
    """By the images, or, for weights of timm's networks, as these expect it."""
    if config.critic_weights is None or not config.critic.startswith(PREFIX):
        return Normalise.of(images)
    expected = preprocessing(config.critic)
    return Normalise(*(torch.tensor(each).view(1, 3, 1, 1) for each in (expected.mean, expected.std)))


def _critic(backbone: Backbone, data: ImageSet) -> Critic:
    """Classes by the image, or by the pixel where there are masks."""
    if data.masks is None:
        return Critic(backbone, len(data.classes))
    if int((torch.bincount(data.masks.flatten(), minlength=256)[:255] > 0).sum()) < 2:
        raise DataError(
            f"a search needs masks of two classes, {data.name!r} has one: write the other one as 1, since 255 does not "
            "count"
        )
    critic = PixelCritic(backbone, len(data.classes))
    with torch.no_grad(), frozen_statistics(critic):
        critic(torch.zeros(2, 3, *data.size))  # a network without a map of features says so here
    return critic


class Run:
    """Everything a search changes, and the loop that changes it."""

    def __init__(
        self,
        data: ImageSet,
        config: SearchConfig,
        device: torch.device,
        files: GradientFiles | None,
        progress: Progress,
        ranks: Ranks = ALONE,
    ):
        check_enough(len(data), data.name)
        self.config = config = resolve_defaults(config, len(data))
        _check_shared(config, ranks)
        self.ranks = ranks
        assert config.epochs is not None
        self.planned = config.epochs
        self.data, self.device, self.files, self.progress = data, device, files, progress
        self.backbone = choose_network(config.critic, min(data.size), device.type == "cpu")
        self.generator = Generator(device).manual_seed(config.seed)
        self.policy = soft_policy(config)
        self.start = self.policy.freeze("start", {"seed": config.seed})
        self.policy = self.policy.to(device)
        labels = data.labels if data.masks is None else data.masks
        home = image_device(data.images, device)
        self.images, self.labels = data.images.to(home), labels.to(home)
        self.steps_per_epoch = len(data) // config.batch_size
        with seeded(config.seed):
            backbone = build(self.backbone, len(data.classes), min(data.size), **_begin(config))
            critic = _critic(backbone, data).to(device)
            self.step = make_step(critic, self.policy, _normalise(config, self.images).to(device), config, ranks)
        self.order = torch.empty(0, dtype=torch.int64, device=device)
        self.epoch, self.step_of_epoch, self.seconds = 0, 0, 0.0
        self.sums = torch.zeros(len(METRICS), device=device)
        self.save_next, self.saved_epoch = 0.0, 0
        self.epochs: list[Epoch] = []
        self.trajectory = [self._parameters()]

    # --- the loop ----------------------------------------------------------------------------------------------

    def go(self, seconds: float = math.inf) -> GradientResult:
        """Algorithm 2: while not converged, sample a pair of batches, augment, measure, update."""
        end = time.monotonic() + seconds
        done = self.epoch * self.steps_per_epoch + self.step_of_epoch
        self.progress.start(self.planned, self.steps_per_epoch, done)
        began, stop = time.monotonic() - self.seconds, 0
        try:
            with (
                defer_signals(all_of_them=self.ranks.size > 1) as caught,
                explain_out_of_memory(),
                deterministic(self.device, self.config.deterministic),
            ):
                while self.epoch < self.planned and not (stop := self._stop(caught, end)):
                    self._one_step()
                    self.seconds = time.monotonic() - began
                    self.progress.step()
                    if self.step_of_epoch == self.steps_per_epoch:
                        self._end_epoch()
        finally:
            with suppress(OSError):  # of a terminal that is closed: what was found is still to be saved
                self.progress.stop()
            if isinstance(self.step, CapturedStep):
                self.step.release()
        return self._end(caught[0] if caught else signal.Signals(stop) if stop > _TIME_IS_UP else None)

    def _stop(self, caught: list[signal.Signals], end: float) -> int:
        """The number of a signal, _TIME_IS_UP, or 0; all ranks end after the same step."""
        return self.ranks.largest(caught[0] if caught else _TIME_IS_UP * (time.monotonic() >= end))

    def _one_step(self) -> None:
        if self.step_of_epoch == 0:
            self.order = torch.randperm(len(self.labels), generator=self.generator, device=self.device)
        first = self.step_of_epoch * self.config.batch_size
        pair = self.order[first : first + self.config.batch_size]  # B' and B, one after the other
        try:
            home = pair.to(self.images.device)  # waits, where images live elsewhere than the order
            images, labels = (whole[home].to(self.device) for whole in (self.images, self.labels))
            self.sums += self.step(images, labels, self.generator)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or self._finite():
                raise
            raise self._not_finite() from error  # a pixel that is no number is no index into a table either
        self.step_of_epoch += 1

    def _finite(self) -> bool:
        try:
            return bool(torch.isfinite(self._parameters()).all() & torch.isfinite(self.sums).all().cpu())
        except RuntimeError:  # a GPU does not answer any more after an index out of bounds
            return False

    def _not_finite(self) -> RunError:
        last_good = ""
        if self.files and self.saved_epoch:
            last_good = f" The last good state (epoch {self.saved_epoch}) is in {str(self.files.run)!r}."
        lower = min(self.config.learning_rate / 10, 1e-3)
        return RunError(
            f"a loss was not finite in epoch {self.epoch + 1}.{last_good} Try a lower learning_rate (--set "
            f"learning_rate={lower:g}), or a larger batch_size (--batch-size)"
        )

    def _end_epoch(self) -> None:
        means = (self.sums / self.steps_per_epoch).tolist()  # the only wait for the device in an epoch
        now = self._parameters()
        if not all(map(math.isfinite, means)) or not bool(torch.isfinite(now).all()):
            raise self._not_finite()
        self.epoch, self.step_of_epoch = self.epoch + 1, 0
        self.sums.zero_()
        change, from_start = (float((now - then).abs().mean()) for then in (self.trajectory[-1], self.trajectory[0]))
        self.trajectory.append(now)
        measured = dict(zip(METRICS, means, strict=True))
        row = Epoch(epoch=self.epoch, change=change, from_start=from_start, seconds=self.seconds, **measured)
        self.epochs.append(row)
        self.progress.epoch(row)
        if self.files is not None:
            self.files.append_metrics(asdict(row))
            if self.epoch == self.planned or time.monotonic() >= self.save_next:
                self.save()

    def _end(self, caught: signal.Signals | None) -> GradientResult:
        finished = self.epoch >= self.planned
        policy = self.policy.freeze(f"found on {self.data.name}", self.provenance(finished))
        if self.files is not None:
            if not finished and self._finite():
                self.save()
            if caught:
                raise Stopped(
                    f"stopped by {caught.name} in epoch {self.epoch + 1}; everything is saved in "
                    f"{str(self.files.run)!r}: add resume=True to continue",
                    caught,
                )
            policy.save(self.files.policy)
        elif caught and self.ranks.is_first:
            raise KeyboardInterrupt(caught)
        elif caught:
            raise Stopped(f"stopped by {caught.name}, as the first rank reports", caught)
        return GradientResult(policy, self.start, self._halfway(), self.epochs, self.planned, finished)

    def _halfway(self) -> Policy | None:
        half = self.epoch // 2
        if not 0 < half < self.epoch:
            return None
        soft = soft_policy(self.config, self.trajectory[half])
        return soft.freeze(f"after {half} epochs", {"seed": self.config.seed, "epochs": half})

    # --- state -------------------------------------------------------------------------------------------------

    def _parameters(self) -> Tensor:
        """(3, L, K, N) on the CPU: choice, probability, magnitude."""
        parameters = (self.policy.choice, self.policy.probability, self.policy.magnitude)
        return torch.stack([parameter.detach().cpu().clone() for parameter in parameters])

    def save_start(self) -> None:
        """With what is known by then, so that a page about a running search can tell."""
        assert self.files is not None
        measured = ("seconds", "peak_memory_mib", "epochs")
        now = {name: value for name, value in self.provenance(finished=False).items() if name not in measured}
        facts = {**self.start.provenance, **now}
        replace(self.start, provenance=facts).save(self.files.start)

    def save(self) -> None:
        """Not after every epoch where epochs are short: the disk gets at most a small share of the time."""
        assert self.files is not None
        began = time.monotonic()
        self.files.save_checkpoint(
            {
                "critic": self.step.critic.state_dict(),
                "policy": self.policy.state_dict(),
                "critic_optimiser": self.step.critic_optimiser.state_dict(),
                "policy_optimiser": self.step.policy_optimiser.state_dict(),
                "generator": self.generator.get_state(),
                "order": self.order,
                "epoch": self.epoch,
                "step_of_epoch": self.step_of_epoch,
                "sums": self.sums,
                "seconds": self.seconds,
                "epochs": [asdict(row) for row in self.epochs],
                "trajectory": torch.stack(self.trajectory),
                "data": self.data.fingerprint,
                "backbone": self.backbone,
                "settings": self.config.plain(),
            }
        )
        ended = time.monotonic()
        self.save_next, self.saved_epoch = ended + _WORK_PER_SAVE * (ended - began), self.epoch

    def load(self) -> None:
        """Continue where the checkpoint stands; a run that never got to one starts again."""
        if self.files is None:
            state = self.ranks.from_first(None, self.device)
            if state is not None:
                self._take(state)
            return
        state = self._checked(self.files)
        self.ranks.from_first(state, self.device)
        if state is None:
            self.save_start()
            self.files.write_metrics([])
            return
        try:
            self._take(state)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise misfit(self.files.checkpoint, error) from error
        self.save_start()  # it may be lost or damaged
        self.saved_epoch = self.epoch
        self.files.write_metrics([asdict(row) for row in self.epochs])
        done = self.epoch >= self.planned
        self.progress.say("the search was finished" if done else f"resuming at epoch {self.epoch + 1}")

    def _checked(self, files: GradientFiles) -> dict[str, Any] | None:
        """What the checkpoint holds, if it is one of this run."""
        state = files.load_checkpoint(self.device, STATE)
        if state is None:
            return None
        for what, mine in (("data", self.data.fingerprint), ("backbone", self.backbone)):
            if state[what] != mine:
                raise RunError(
                    f"the run in {str(files.run)!r} had other {what} ({cut(state[what], 16)}, now {mine[:16]}): "
                    "resume it with the source and the settings it was started with"
                )
        check_same(self.config, _settings(state, files), files.run)
        if state["epoch"] > self.planned:
            raise RunError(
                f"the run in {str(files.run)!r} has {state['epoch']} epochs behind it, more than epochs = "
                f"{self.planned}"
            )
        return state

    def _take(self, state: dict[str, Any]) -> None:
        """The state of a checkpoint; an error of some kind if it cannot be one of this run."""
        self.epochs = [Epoch(**row) for row in state["epochs"]]
        self.epoch, self.step_of_epoch, self.seconds = state["epoch"], state["step_of_epoch"], state["seconds"]
        _expect(0 <= self.epoch == len(self.epochs), "it must hold a row for each epoch")
        for number, row in enumerate(self.epochs, 1):
            numbers = [type(value) in (int, float) and math.isfinite(value) for value in asdict(row).values()]
            _expect(row.epoch == number and all(numbers), "a row of its epochs is none")
        _expect(0 <= self.step_of_epoch < self.steps_per_epoch, "its step must be one of an epoch")
        _expect(0 <= self.seconds < math.inf, "its seconds must be a number")
        shape = (self.epoch + 1, *self.trajectory[0].shape)
        _expect(_is_like(state["trajectory"], shape, torch.float32), "its trajectory does not fit")
        _expect(_is_like(state["sums"], self.sums.shape, self.sums.dtype), "its sums do not fit")
        order = state["order"]
        if self.step_of_epoch:
            whole = torch.arange(len(self.labels), device=order.device)
            _expect(_is_like(order, whole.shape, whole.dtype), "its order does not fit")
            _expect(torch.equal(order.sort().values, whole), "its order must name each image once")
        for name in ("critic", "policy"):
            _expect(all(map(_is_finite, state[name].values())), f"its {name} must hold numbers")
        self.step.critic.load_state_dict(state["critic"])
        self.policy.load_state_dict(state["policy"])
        load_optimiser(self.step.critic_optimiser, state["critic_optimiser"])
        load_optimiser(self.step.policy_optimiser, state["policy_optimiser"])
        self.generator.set_state(state["generator"].cpu())
        self.order, self.sums = order, state["sums"]
        self.trajectory = list(state["trajectory"].cpu())

    def describe_data(self) -> None:
        height, width = self.data.size
        what = "images of" if self.data.masks is None else "images with masks of"
        self.progress.say(
            f"{self.data.name}: {len(self.data)} {what} {len(self.data.classes)} classes at {height}x{width}, "
            f"critic {self.backbone} on {self.device}"
        )
        if self.data.window is not None:
            low, high = self.data.window
            self.progress.say(f"images of more than 8 bits: levels {low}..{high} become 0..255")

    def _peak_memory_mib(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) >> 20 if self.device.type == "cuda" else None

    def provenance(self, finished: bool) -> dict[str, Any]:
        on_cpu = self.device.type == "cpu"
        device = platform.machine() + " CPU" if on_cpu else torch.cuda.get_device_name(self.device)
        return {
            "method": "Faster AutoAugment",
            "data": self.data.about(),
            "config": self.config.plain(),
            "backbone": self.backbone,
            "precision": "float32" if (on_cpu and self.step.precision == "tf32") else self.step.precision,
            "epochs": self.epoch,
            "finished": finished,
            "seconds": round(self.seconds, 2),
            "device": device,
            "peak_memory_mib": self._peak_memory_mib(),
            **({"ranks": self.ranks.size} if self.ranks.size > 1 else {}),
            "versions": {"fasteraa": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
