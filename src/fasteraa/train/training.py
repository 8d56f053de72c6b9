"""One training: its network, feed of batches and optimiser, the step that changes them, and its checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa.data.lazy_set import Images
from fasteraa.errors import RunError
from fasteraa.nets import Backbone, build
from fasteraa.nets.shared_norm import share_statistics
from fasteraa.policy.policy import Policy
from fasteraa.runtime.checkpoint import load_checkpoint, misfit, save_checkpoint
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.runtime.seeds import seeded
from fasteraa.train.device_batches import DeviceFeed, Feed
from fasteraa.train.metrics import Measured, measured
from fasteraa.train.probe import ProbeFeed
from fasteraa.train.recipe import TrainRecipe, check_input
from fasteraa.train.worker_batches import make_feed, plain_batches

# what a checkpoint holds
_STATE: dict[str, Any] = {
    "run": str, "network": dict, "optimiser": dict, "epoch": int, "loss": float, "diverged": (int, NoneType),
    "seconds": float, "share_seconds": float, "kernels": list,
}  # fmt: skip


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
        check_input(recipe, data.size, data.name)
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
        self.half = is_half(recipe.precision, device)
        if recipe.freeze and recipe.copies and device.type == "cpu":  # a GPU's graph takes images
            self.feed = ProbeFeed(self.feed, self.features, recipe.copies)
        self.rates = [torch.tensor(0.0, device=device) for _ in range(2)]  # of the head, of the body
        self.optimiser = _optimiser(self.network, recipe, *self.rates)
        self.averaged = deepcopy(self.network).requires_grad_(False) if recipe.ema else None
        self.steps_averaged = torch.tensor(0.0, device=device)  # a tensor, which a captured step counts on, too
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
            _average(self.averaged, self.network, self.recipe.ema, self.steps_averaged)
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
        check_input(self.recipe, held_out.size, held_out.name)
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
        state = read_state(path, self.device)
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
            self.steps_averaged.fill_(state["epoch"] * self.feed.steps)

    def tensors(self) -> list[Tensor]:
        """Everything a step changes; the optimiser's state only once it exists."""
        slots = (self.optimiser.state[p] for group in self.optimiser.param_groups for p in group["params"])
        moments = [value for slot in slots for value in slot.values() if isinstance(value, Tensor)]
        averages = [] if self.averaged is None else [self.steps_averaged, *self.averaged.state_dict().values()]
        return [*self.network.state_dict().values(), *averages, *moments]


def epochs_done(checkpoint: Path) -> int:
    """How many a run has behind it, by its checkpoint; 0 without one. Weights are not read."""
    return epoch_of(read_state(checkpoint, torch.device("cpu"), mmap=True))


def epoch_of(state: dict[str, Any] | None) -> int:
    return 0 if state is None else int(state["epoch"])


def read_state(path: Path | None, device: torch.device, mmap: bool = False) -> dict[str, Any] | None:
    return None if path is None else load_checkpoint(path, device, _STATE, mmap=mmap)


def _identity(images: str, policy: Policy, recipe: TrainRecipe, seed: int, part: TrainingPart | None) -> str:
    """Whatever would make it another training; the name of the state that a part begins with has its key."""
    parts: list[Any] = [images, policy.hash, recipe.key, seed]
    if part is not None:
        parts += [part.first, part.last, part.begin and part.begin.name]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


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
def _average(averaged: nn.Module, network: nn.Module, decay: float, steps: Tensor) -> None:
    """Of weights; statistics of norm layers are means already and are taken as they are.

    The decay grows from 0.1 to its value: else the mean of a short training would be where that began.
    """
    share = 1 - ((1 + steps) / (10 + steps)).clamp(max=decay)
    means: list[Tensor] = list(averaged.parameters())
    weights: list[Tensor] = list(network.parameters())
    away = list(torch._foreach_sub(weights, means))
    torch._foreach_mul_(away, share)
    torch._foreach_add_(means, away)
    steps += 1
    for mine, own in zip(averaged.buffers(), network.buffers(), strict=True):
        mine.copy_(own)


def is_half(precision: str, device: torch.device) -> bool:
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type == "cpu" and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """Whether it calculates in them; one that converts back and forth is slower than with float32."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
