"""What critic and policy minimise: pure functions of scores, logits and labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteraa.nets import Critic, frozen_statistics


class Judged(NamedTuple):
    """A batch as the critic sees it."""

    scores: Tensor  # (B,)
    logits: Tensor  # (B, classes), or for masks (B, classes, h, w)
    labels: Tensor  # (B,), or for masks the share of each class in each pixel, (B, classes, H, W)


class Loss(NamedTuple):
    """A loss and what it is made of; scalars on the device."""

    total: Tensor
    distance: Tensor  # the Wasserstein estimate d
    classes: Tensor  # the classification loss l


def critic_loss(originals: Judged, augmented: Judged, class_weight: float) -> Loss:
    """The critic makes the distance large; its classifier learns on originals and augmented images alike.

    The gradient penalty is not in here: it has its own backward (`penalty_gradient`).
    """
    distance = originals.scores.mean() - augmented.scores.mean()
    classes = class_loss(originals) + class_loss(augmented)
    return Loss(class_weight * classes - distance, distance, classes)


def policy_loss(augmented: Judged, class_weight: float) -> Loss:
    """The policy makes the distance small and keeps augmented images in their class.

    Of distance and class loss it changes the augmented part alone, so that is all there is here.
    """
    distance, classes = -augmented.scores.mean(), class_loss(augmented)
    return Loss(distance + class_weight * classes, distance, classes)


def class_loss(judged: Judged) -> Tensor:
    return F.cross_entropy(judged.logits, judged.labels) if judged.labels.ndim == 1 else pixel_loss(judged)


def pixel_loss(judged: Judged) -> Tensor:
    """Cross-entropy per pixel, the mean over what has a label: shares that are missing from a pixel do not count.

    All pixels of a cell of the feature map share its logits, so their mean labels give the loss that logits blown up to
    the image's size would give, for a small part of the work.
    """
    height, width = judged.logits.shape[2:]
    shares = F.adaptive_avg_pool2d(judged.labels, (height, width))
    return F.cross_entropy(judged.logits, shares, reduction="sum") / shares.sum().clamp(min=1e-6)


def penalty_gradient(critic: Critic, points: Tensor, coefficient: float) -> Tensor:
    """Add the parameter gradient of `coefficient * mean_i (|g_i| - 1)^2`, g = grad_x D, and return that penalty.

    One ordinary backward gives g. The penalty's parameter gradient is then that of a single forward-mode product
    along a constant tangent, so no double backward is needed (`Critic` says why).
    """
    points = points.detach().requires_grad_()
    with frozen_statistics(critic):
        (gradient,) = torch.autograd.grad(critic.score(points).sum(), points)
    tangent, penalty = penalty_tangent(gradient)
    backward(coefficient * critic.slope(points, tangent))
    return coefficient * penalty


def penalty_tangent(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The tangent along which the slope of the score has the penalty's parameter gradient, and the penalty itself."""
    norm = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)  # per sample, over channels and pixels
    excess = norm - 1
    return (2 * excess / (len(gradient) * norm)).view(-1, 1, 1, 1) * gradient, excess.square().mean()


def between(originals: Tensor, augmented: Tensor, share: Tensor) -> Tensor:
    """Points on the lines between originals and augmented images, where the penalty is taken; share (B,) uniform."""
    share = share.view(-1, 1, 1, 1)
    return share * originals + (1 - share) * augmented


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)
