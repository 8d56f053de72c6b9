"""Train one network with one policy, and measure it once, at the end, on images it has not seen.

The last epoch is the result. Nothing is ever selected on test data.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa._version import __version__
from fasteraa.errors import ConfigError, OutOfTime, RunError
from fasteraa.evaluate.feed import Feed, epoch_seed
from fasteraa.evaluate.listed import Images
from fasteraa.evaluate.loader import make_feed, plain_batches
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.nets import build
from fasteraa.policy.artifact import Policy
from fasteraa.search.folder import RunFolder
from fasteraa.search.run import find_device, memory_advice, seeded, signals
from fasteraa.search.step import Normalise

_SAVE_EVERY_S = 60.0  # checkpoints of a training run
Tell = Callable[[int, int, float], None]  # epoch, epochs, training loss
Until = Callable[[], float]  # the moment (time.time()) at which to stop; asked after every epoch


@dataclass(frozen=True)
class Trained:
    """The outcome of one training run."""

    error: float  # % of the held-out images, after the last epoch
    error_top5: float
    train_loss: float  # mean of the last epoch
    seconds: float  # of training, without set-up and without the final measurement
    setup_seconds: float  # compilation and capture
    steps: int
    network: nn.Module
    normalise: Normalise
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
    """Train on `data` under `policy`, measure on `held_out`. With a checkpoint file a killed run goes on from there."""
    if data.classes != held_out.classes:
        raise ConfigError("training and held-out images must have the same classes")
    place = find_device(device)
    training = Training(data, policy, recipe, seed, place)
    with memory_advice("lower --batch-size, --size or --jobs, or take a smaller --network"):
        training.go(checkpoint, tell, until)
        wrong, wrong5 = training.measure(held_out)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return Trained(
        error=wrong,
        error_top5=wrong5,
        train_loss=training.loss,
        seconds=training.seconds,
        setup_seconds=training.setup_seconds,
        steps=recipe.epochs * training.feed.steps,
        network=training.network,
        normalise=training.feed.normalise,
        provenance=_provenance(data, held_out, policy, recipe, seed, place),
    )


class Training:
    """Everything a training run changes, and the loop that changes it."""

    def __init__(self, data: Images, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device):
        self.recipe, self.device, self.seed = recipe, device, seed
        with seeded(seed):
            network = build(recipe.network, len(data.classes), min(data.size))
        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.feed: Feed = make_feed(data, policy, recipe, seed, device)
        self.half = _is_half(recipe.precision, device)
        self.rate = torch.tensor(0.0, device=device)
        self.optimiser = _optimiser(self.network, recipe, self.rate)
        self.step: Callable[[Tensor, Tensor], Tensor] = self._step
        self.epoch, self.loss = 0, math.nan
        self.seconds, self.setup_seconds = 0.0, 0.0

    def go(self, checkpoint: Path | None = None, tell: Tell | None = None, until: Until | None = None) -> None:
        """All epochs that are left. A signal or the time limit ends it after an epoch, with the state saved."""
        self.network.train()
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)
        began = time.monotonic()
        if self.device.type == "cuda":
            with tuned_convolutions():
                self.step = Captured(self)
        self.setup_seconds = time.monotonic() - began
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        with signals() as caught:
            while self.epoch < self.recipe.epochs:
                self._one_epoch()
                self.seconds = time.monotonic() - began
                if tell is not None:
                    tell(self.epoch, self.recipe.epochs, self.loss)
                due = time.monotonic() - saved > _SAVE_EVERY_S and self.epoch < self.recipe.epochs
                late = until is not None and time.time() > until() and self.epoch < self.recipe.epochs
                if checkpoint is not None and (due or late or caught):
                    self._save(checkpoint)
                    saved = time.monotonic()
                if caught:
                    raise KeyboardInterrupt(caught[0])
                if late:
                    raise OutOfTime(f"time was up after {self.epoch} of {self.recipe.epochs} epochs")

    def _one_epoch(self) -> None:
        with network_draws(epoch_seed(self.seed, self.epoch), self.device):
            self._all_steps()

    def _all_steps(self) -> None:
        total = torch.zeros((), device=self.device)
        for number, (images, labels) in enumerate(self.feed.epoch(self.epoch)):
            self.rate.fill_(self.recipe.rate(self.epoch * self.feed.steps + number, self.feed.steps))
            total += self.step(images, labels)
        self.loss = float(total) / self.feed.steps  # the only wait for the device in an epoch
        if not math.isfinite(self.loss):
            raise RunError(f"the training loss was not finite in epoch {self.epoch + 1}: lower learning_rate")
        self.epoch += 1

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, backward, clip, update; the plain path, which the captured one repeats."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss_of(images, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.optimiser.step()
        return loss.detach()

    def loss_of(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.feed.normalise(images.float() / 255).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(self.logits(x), labels)

    def logits(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            out: Tensor = self.network(x)
        return out.float()

    @torch.no_grad()
    def measure(self, held_out: Images) -> tuple[float, float]:
        """Errors in %: of the first guess, and of the first five."""
        self.network.eval()
        wrong = wrong5 = count = 0
        for images, labels in plain_batches(held_out, self.recipe, max(256, self.recipe.batch_size), self.device):
            x = self.feed.normalise(images.float() / 255)
            guesses = self.logits(x.contiguous(memory_format=torch.channels_last)).topk(min(5, len(held_out.classes)))
            hits = guesses.indices == labels[:, None]
            count += len(labels)
            wrong += len(labels) - int(hits[:, 0].sum())
            wrong5 += len(labels) - int(hits.sum())
        return 100 * wrong / count, 100 * wrong5 / count

    # --- state ---------------------------------------------------------------------------------------------------

    def _save(self, path: Path) -> None:
        state = {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "epoch": self.epoch,
            "loss": self.loss,
            "seconds": self.seconds,
        }
        with RunFolder(path.parent).replacing(path) as partial:
            torch.save(state, partial)

    def _load(self, path: Path) -> None:
        """Tensors and plain values alone: nothing in the file is executed."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise RunError(
                f"the checkpoint {str(path)!r} could not be read ({reason}): remove it to start anew"
            ) from error
        try:
            self._take(state)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise RunError(f"the checkpoint {str(path)!r} is of another run: remove it to start anew") from error

    def _take(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        self.epoch, self.loss, self.seconds = state["epoch"], state["loss"], state["seconds"]


class Captured:
    """The whole step as one CUDA graph, norm and activation fused by the compiler: no launch waits for Python."""

    WARM_UPS = 3

    def __init__(self, training: Training):
        self.training = training
        images, labels = _like_first(training.feed)
        self.images, self.labels = images.clone(), labels.clone()
        kept = [tensor.clone() for tensor in _state(training)]
        network = training.network
        training.network = cast(nn.Module, torch.compile(network, dynamic=False))
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                training._step(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(side)
        training.optimiser.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = training._step(self.images, self.labels)
        training.network = network
        _restore(training, kept)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let convolutions try their algorithms once and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def network_draws(seed: int, device: torch.device) -> Iterator[None]:
    """What a network draws while it trains (Shake-Shake, dropout) comes from the seed; the caller's state is kept."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _like_first(feed: Feed) -> tuple[Tensor, Tensor]:
    return next(iter(feed.epoch(0)))


def _state(training: Training) -> list[Tensor]:
    return [*training.network.state_dict().values(), *_momenta(training.optimiser)]


def _restore(training: Training, kept: list[Tensor]) -> None:
    """Undo the warm-up steps; momenta that did not exist before it begin at zero."""
    for tensor, old in zip(training.network.state_dict().values(), kept, strict=False):
        tensor.copy_(old)
    momenta = kept[len(training.network.state_dict()) :]
    for number, tensor in enumerate(_momenta(training.optimiser)):
        tensor.copy_(momenta[number]) if momenta else tensor.zero_()


def _momenta(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    slots = (optimiser.state[p] for group in optimiser.param_groups for p in group["params"])
    return [slot["momentum_buffer"] for slot in slots if slot.get("momentum_buffer") is not None]


def _optimiser(network: nn.Module, recipe: TrainRecipe, rate: Tensor) -> torch.optim.SGD:
    """No decay on norms and biases, which are the parameters of one dimension."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, rate, recipe.momentum, nesterov=recipe.momentum > 0, fused=True)


def _is_half(precision: str, device: torch.device) -> bool:
    if precision != "auto":
        return precision == "bfloat16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


def _provenance(
    data: Images, held_out: Images, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device
) -> dict[str, Any]:
    return {
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint},
        "held_out": {"images": len(held_out), "fingerprint": held_out.fingerprint},
        "policy": {"name": policy.name, "hash": policy.hash},
        "recipe": asdict(recipe),
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU",
        "versions": {"fasteraa": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def save_network(path: Path, trained: Trained) -> None:
    """Weights, to be loaded without executing anything."""
    with RunFolder(path.parent).replacing(path) as partial:
        torch.save(trained.network.state_dict(), partial)
    path.with_suffix(".json").write_text(json.dumps(trained.provenance, indent=1) + "\n")
