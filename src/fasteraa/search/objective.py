"""What critic and policy minimise: pure functions of scores, logits and labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteraa.nets import Critic, frozen_statistics


class Loss(NamedTuple):
    """A loss and what it is made of; scalars on the device."""

    total: Tensor
    distance: Tensor  # the Wasserstein estimate, E D(originals) - E D(augmented)
    classes: Tensor  # the classification loss that counts here


def critic_loss(scores: Tensor, logits: Tensor, labels: Tensor, class_weight: float) -> Loss:
    """The critic makes the distance large; its classifier learns on originals and augmented images alike.

    The first half of the batch are originals, the second half augmented images. The gradient penalty is not in here:
    it has its own backward (`penalty_gradient`).
    """
    distance = wasserstein(scores)
    original, augmented = (
        F.cross_entropy(part, label) for part, label in zip(logits.chunk(2), labels.chunk(2), strict=True)
    )
    classes = original + augmented
    return Loss(class_weight * classes - distance, distance, classes)


def policy_loss(scores: Tensor, logits: Tensor, labels: Tensor, class_weight: float) -> Loss:
    """The policy makes the distance small and keeps augmented images (the second half) in their class."""
    distance = wasserstein(scores)
    classes = F.cross_entropy(logits.chunk(2)[1], labels.chunk(2)[1])
    return Loss(distance + class_weight * classes, distance, classes)


def wasserstein(scores: Tensor) -> Tensor:
    original, augmented = scores.chunk(2)
    return original.mean() - augmented.mean()


def penalty_gradient(critic: Critic, points: Tensor, coefficient: float) -> Tensor:
    """Add the parameter gradient of `coefficient * mean_i (|g_i| - 1)^2`, g = grad_x D, and return that penalty.

    One ordinary backward gives g. The penalty's parameter gradient is then that of a single forward-mode product
    along a constant tangent, so no double backward is needed (`Critic.slope` says why).
    """
    points = points.detach().requires_grad_()
    with frozen_statistics(critic):
        (gradient,) = torch.autograd.grad(critic.score(points).sum(), points)
    norm = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
    excess = norm - 1
    tangent = (2 * excess / (len(points) * norm)).view(-1, 1, 1, 1) * gradient
    backward(coefficient * critic.slope(points, tangent))
    penalty: Tensor = coefficient * excess.square().mean()
    return penalty


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def between(originals: Tensor, augmented: Tensor, share: Tensor) -> Tensor:
    """Points on the lines between originals and augmented images, where the penalty is taken; share (B,) uniform."""
    share = share.view(-1, 1, 1, 1)
    return share * originals + (1 - share) * augmented
