"""What the policy is after: the paper's objective, and others behind names of their own.

A goal adds to what the critic says about augmented images. Everything it remembers from step to step is a tensor on the
device, so that a step with any of them can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fasteraa.policy.soft import SoftPolicy
from fasteraa.search.config import SearchConfig

Normaliser = Callable[[Tensor], Tensor]
_HOLD = 100.0  # weight of what a floor lacks: far above anything the critic says, so that the floor holds
_DUAL_RATE = 0.02  # per step, of the price of the distance
_HIGHEST_PRICE = 100.0
_WARM_UP = 2  # epochs before the policy moves: the critic must know what the start is worth


class Goal(nn.Module):
    """The paper's: as close to the originals as possible, and still of their class (`objective.policy_loss`)."""

    optimiser: Optimizer | None = None  # of a network that the goal trains

    def observe(self, distance: Tensor, augmented: Tensor, labels: Tensor) -> None:
        """Once a step, before the policy is updated; `augmented` has no graph."""

    def weigh(self, critics: Tensor) -> Tensor:
        """What the critic's part, a loss or its gradient, counts."""
        return critics

    def further(self, policy: SoftPolicy, augmented: Tensor, labels: Tensor) -> Tensor | None:
        """What the policy minimises beside it."""
        return None


class Diverse(Goal):
    """The paper's with a floor: neither the dose nor the spread over operations may fall below the start's.

    Dose: how much is done to an image, the mean over stages of share x probability x magnitude. Spread: the entropy of
    that dose over operations. The critic then says which operations, not how much of them.
    """

    start_dose: Tensor
    start_spread: Tensor

    def __init__(self, policy: SoftPolicy, floor: float):
        super().__init__()
        with torch.no_grad():
            dose, spread = dose_and_spread(policy)
        self.register_buffer("start_dose", dose * floor)
        self.register_buffer("start_spread", spread * floor)

    def further(self, policy: SoftPolicy, augmented: Tensor, labels: Tensor) -> Tensor:
        dose, spread = dose_and_spread(policy)
        return _HOLD * (lack(dose, self.start_dose) + lack(spread, self.start_spread))


def dose_and_spread(policy: SoftPolicy) -> tuple[Tensor, Tensor]:
    """(mean dose of a stage, entropy of the dose over operations); one without a magnitude counts as fully applied."""
    # column by column: a mask made here would be sent to the device at every step, which cannot be recorded
    columns = zip(policy.ops, policy.magnitude.unbind(-1), strict=True)
    magnitude = torch.stack([torch.ones_like(m) if row.span is None else m for row, m in columns], -1)
    each = (policy.shares * policy.probability * magnitude).mean((0, 1))
    dose = each.sum()
    part = (each / dose.clamp(min=1e-6)).clamp(min=1e-6)
    return dose, -(part * part.log()).sum()


def lack(value: Tensor, floor: Tensor) -> Tensor:
    """How far below the floor, in floors, squared: a gentle pull just below and a strong one far below."""
    return (1 - value / floor.clamp(min=1e-6)).clamp(min=0).square()


class Hard(Goal):
    """As hard for a classifier as a critic distance allows that is `allowance` times the start's.

    A network of its own learns to classify the augmented images while the policy makes its loss large. The distance
    has a price, which rises while the distance is above the allowance and falls while it is below.
    """

    start: Tensor  # mean distance of the start
    price: Tensor
    steps: Tensor

    def __init__(self, learner: nn.Module, normalise: Normaliser, config: SearchConfig, steps_per_epoch: int):
        super().__init__()
        self.learner, self.normalise = learner, normalise
        self.allowance = config.allowance
        self.warm_up = _WARM_UP * steps_per_epoch
        self.optimiser = make_learner_optimiser(learner)
        for name, value in (("start", 0.0), ("price", 1.0), ("steps", 0.0)):
            self.register_buffer(name, torch.tensor(value))

    def observe(self, distance: Tensor, augmented: Tensor, labels: Tensor) -> None:
        assert self.optimiser is not None
        self.learner.requires_grad_(True)
        self.optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(self.learner(self.normalise(augmented)).float(), labels))
        self.optimiser.step()
        distance, warming = distance.detach(), self._warming()
        # the mean over the second half of the warm-up, when the critic has seen something
        counted = (self.steps - self.warm_up // 2 + 1).clamp(min=1)
        mean = self.start + (distance - self.start) / counted
        self.start.copy_(torch.where(warming > 0, mean, self.start))
        excess = distance / self._unit() - self.allowance
        price = (self.price + _DUAL_RATE * excess).clamp(0, _HIGHEST_PRICE)
        self.price.copy_(torch.where(warming > 0, self.price, price))
        self.steps.add_(1)

    def weigh(self, critics: Tensor) -> Tensor:
        return (1 - self._warming()) * self.price / self._unit() * critics

    def further(self, policy: SoftPolicy, augmented: Tensor, labels: Tensor) -> Tensor:
        self.learner.requires_grad_(False)
        loss = F.cross_entropy(self.learner(self.normalise(augmented)).float(), labels)
        return (self._warming() - 1) * loss

    def _warming(self) -> Tensor:
        return (self.steps < self.warm_up).to(self.price)

    def _unit(self) -> Tensor:
        return self.start.abs().clamp(min=1e-3)


def make_learner_optimiser(learner: nn.Module) -> SGD:
    # a learning rate that needs no schedule
    return SGD(learner.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
