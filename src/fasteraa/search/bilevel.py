"""The objective that the paper sets aside as slow: what training on augmented images does for other images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fasteraa.policy.soft import SoftPolicy
from fasteraa.search.config import SearchConfig
from fasteraa.search.goal import make_learner_optimiser
from fasteraa.search.step import BaseStep, Normalise


class Bilevel(BaseStep):
    """The policy minimises the loss on held-back images after one step of training on augmented ones.

    There is no critic: the network is a plain classifier. The first half of a batch are images that are never augmented
    and never trained on (`Run` sees to it). Of the metrics, distance and penalty are 0.
    """

    def __init__(self, learner: nn.Module, policy: SoftPolicy, normalise: Normalise, config: SearchConfig):
        super().__init__(policy, normalise, config)
        self.critic = learner
        self.critic_optimiser = make_learner_optimiser(learner)

    def _step(self, images: Tensor, labels: Tensor, generator: Generator) -> Tensor:
        images, labels = self._baseline(images, labels, generator)
        (held, before), (held_labels, labels) = images.chunk(2), labels.chunk(2)
        augmented, labels = self._augment(before, labels, generator)
        augmented = self.normalise(augmented)
        rate = self.critic_optimiser.param_groups[0]["lr"]
        gradient, ahead, loss, held_loss = bilevel_gradient(
            self.critic, augmented.detach(), labels, self.normalise(held), held_labels, rate
        )
        self.policy_optimiser.zero_grad()
        torch.autograd.backward(augmented, gradient)
        self.policy_optimiser.step()
        self.policy.project_()
        for parameter, found in zip(self.critic.parameters(), ahead, strict=True):
            parameter.grad = found
        self.critic_optimiser.step()
        none = torch.zeros_like(loss)
        return torch.stack([none, none, loss + held_loss, held_loss])


def bilevel_gradient(
    learner: nn.Module,
    trained: Tensor,
    labels: Tensor,
    held: Tensor,
    held_labels: Tensor,
    rate: float,
    size: float = 1e-2,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """d/d(images) of the loss on held-back images after one step of gradient descent on `trained` images.

    With g the parameters' gradient on the trained images and v that on the held-back ones after the step
    theta - rate g, the chain rule gives -rate d/d(images) <g, v>: the change of the images' gradient along v, here as a
    central difference over steps of length `size`. Returns it divided by `rate`, g, and both losses; the learner's
    parameters end as they were.
    """
    parameters: list[Tensor] = list(learner.parameters())
    loss = F.cross_entropy(learner(trained), labels)
    ahead = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        torch._foreach_add_(parameters, ahead, alpha=-rate)
    held_loss = F.cross_entropy(learner(held), held_labels)
    towards = torch.autograd.grad(held_loss, parameters)
    with torch.no_grad():
        torch._foreach_add_(parameters, ahead, alpha=rate)
    norm = torch.stack(list(torch._foreach_norm(towards))).norm().clamp(min=1e-12)
    steps = torch._foreach_mul(towards, size / norm)
    sides = []
    for sign in (1, -2):
        with torch.no_grad():
            torch._foreach_add_(parameters, steps, alpha=sign)
        point = trained.detach().requires_grad_()
        moved = F.cross_entropy(learner(point), labels)
        sides.append(torch.autograd.grad(moved, point)[0])
    with torch.no_grad():
        torch._foreach_add_(parameters, steps, alpha=1)
    return (sides[1] - sides[0]) * (norm / (2 * size)), list(ahead), loss.detach(), held_loss.detach()
