"""Milliseconds per search step: the plain step with the paper's chunks, the fast one, and the critic on its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Generator, Tensor

from fasteraa.data.batches import Normalise
from fasteraa.methods.config import PAPER_EPOCHS, SearchConfig
from fasteraa.methods.faster_aa.fast_step import AnyStep, CapturedStep, ManualGradStep, make_step
from fasteraa.methods.faster_aa.step import Step
from fasteraa.nets import Critic, build, choose_network
from fasteraa.nets.manual_grad import write_layers
from fasteraa.ops.kernels import works_on
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime.device import find_device
from fasteraa.runtime.seeds import deterministic

CLASSES = 10
PLAIN, TORCH, FAST = "plain, eager, chunks of 8", "fast, in plain torch", "fast"
CRITIC, CRITIC_TORCH = "fast, critic alone", "fast, critic alone, in plain torch"
_SLOW_STEPS = 0.2  # the plain step gets this share of the steps: it is slower by more than that


@dataclass(frozen=True)
class Setting:
    """What is searched: reduced CIFAR-10 by default. Images are noise, which makes no difference to time."""

    config: SearchConfig
    device: str = "auto"
    size: int = 32
    images: int = 4000


@dataclass(frozen=True)
class SearchRow:
    name: str
    milliseconds: float  # per step, the median round
    search_seconds: float  # the loop of a whole search
    start_seconds: float  # from nothing to the end of the first step: what is recorded is recorded here
    peak_mib: int | None  # GPU memory at its highest


@dataclass(frozen=True)
class Timing:
    """One table: contenders that took turns."""

    title: str
    backbone: str
    device: str
    rows: tuple[SearchRow, ...]

    def milliseconds(self, name: str) -> float:
        return next(row.milliseconds for row in self.rows if row.name == name)


def run(setting: Setting, steps: int = 25, rounds: int = 3, scaling: bool = True) -> list[Timing]:
    """Contenders side by side; then the fast step with more sub-policies, stages and images.

    The objective is the config's, so by default there is the floor of `diverse`, except where the critic is alone. On a
    GPU the fast step has the soft policy, and what is not a convolution of the critic, in Triton's kernels, unless
    the config says otherwise; rows of their own show it in plain torch.
    """
    config = setting.config
    base = replace(config, fast=True)
    alone = replace(base, objective="paper")  # a floor would move the policy
    side_by_side: dict[str, tuple[SearchConfig, bool]] = {
        PLAIN: (replace(config, fast=False, kernels=False, chunk_size=8), True),
        TORCH: (replace(base, kernels=False), True),
        FAST: (base, True),
        CRITIC: (alone, False),
        CRITIC_TORCH: (replace(alone, kernels=False), False),
    }
    if not (base.kernels and works_on(find_device(setting.device))):
        del side_by_side[TORCH], side_by_side[CRITIC_TORCH]
    tables = [_table("side by side", setting, side_by_side, steps, rounds)]
    if scaling:
        batches = [times * config.batch_size for times in (1, 2, 4)]
        tables += [
            _scaling("sub-policies", setting, base, "sub_policies", (10, 80), steps, rounds),
            _scaling("stages", setting, base, "operation_count", (1, 2, 3, 4), steps, rounds),
            _scaling("batch", setting, base, "batch_size", batches, steps, rounds),
        ]
    return tables


def _scaling(
    title: str, setting: Setting, config: SearchConfig, field: str, values: Sequence[int], steps: int, rounds: int
) -> Timing:
    contenders = {f"{field} = {value}": (_with(config, field, value), True) for value in values}
    return _table(title, setting, contenders, steps, rounds)


def _with(config: SearchConfig, field: str, value: int) -> SearchConfig:
    changed: dict[str, Any] = {field: value}
    return replace(config, **changed)


def _table(
    title: str, setting: Setting, contenders: Mapping[str, tuple[SearchConfig, bool]], steps: int, rounds: int
) -> Timing:
    device = find_device(setting.device)
    backbone = choose_network(setting.config.critic, setting.size, device.type == "cpu")
    runners = {
        name: _Runner(setting, config, augment, backbone, device) for name, (config, augment) in contenders.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            count = max(1, round(steps * _SLOW_STEPS)) if name == PLAIN else steps
            times[name].append(runner.time(count))
    rows = tuple(runner.row(name, median(times[name]), setting.images) for name, runner in runners.items())
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Timing(title, backbone, where, rows)


class _Runner:
    """One contender with everything it needs, started and warm."""

    def __init__(self, setting: Setting, config: SearchConfig, augment: bool, backbone: str, device: torch.device):
        self.device, self.config = device, config
        self.generator = Generator(device).manual_seed(0)
        self.images = torch.randint(0, 256, (512, 3, setting.size, setting.size), dtype=torch.uint8).to(device)
        self.labels = torch.randint(CLASSES, (512,)).to(device)
        before = _allocated(device)
        began = time.perf_counter()
        self.step = _make(setting, config, augment, backbone, device)
        self.time(1)
        self.start_seconds = time.perf_counter() - began
        self.time(1)
        peak = _peak(device)
        self.peak_mib = None if peak is None else (peak - before) >> 20

    def row(self, name: str, seconds: float, images: int) -> SearchRow:
        steps = images // self.config.batch_size * (self.config.epochs or PAPER_EPOCHS)
        return SearchRow(name, 1000 * seconds, seconds * steps, self.start_seconds, self.peak_mib)

    def time(self, steps: int) -> float:
        """Seconds per step, from a standstill to a standstill; batches are gathered as in a search."""
        _wait(self.device)
        began = time.perf_counter()
        with deterministic(self.device, self.config.deterministic):
            for _ in range(steps):
                pair = torch.randint(len(self.labels), (self.config.batch_size,), device=self.device)
                self.step(self.images[pair], self.labels[pair], self.generator)
        _wait(self.device)
        return (time.perf_counter() - began) / steps


def _make(setting: Setting, config: SearchConfig, augment: bool, backbone: str, device: torch.device) -> AnyStep:
    norm = "none" if config.critic_norm == "none" else "primitive"
    critic = Critic(build(backbone, CLASSES, setting.size, norm=norm), CLASSES).to(device)
    policy = SoftPolicy(
        config.sub_policies, config.operation_count, config.ops, chunk_size=config.chunk_size, fill=config.fill
    ).to(device)
    normalise = Normalise(torch.full((1, 3, 1, 1), 0.5, device=device), torch.full((1, 3, 1, 1), 0.25, device=device))
    if augment:
        return make_step(critic, policy, normalise, config)
    layers = write_layers(critic.backbone)
    if layers is None:
        alone: Step = _CriticAlone(critic, policy, normalise, config)
    else:
        alone = _WrittenOutAlone(critic, policy, normalise, config, layers)
    return CapturedStep(alone) if device.type == "cuda" else alone


class _CriticAlone(Step):
    """Everything but the policy: the gradient that would reach its images is still computed."""

    def _augment(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return images.clone().requires_grad_(), labels


class _WrittenOutAlone(_CriticAlone, ManualGradStep):
    pass


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _allocated(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
