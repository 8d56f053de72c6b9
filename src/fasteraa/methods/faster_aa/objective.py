"""What critic and policy minimise: pure functions of scores, logits and labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteraa.nets import Critic, frozen_statistics
from fasteraa.policy.soft import SoftPolicy

_HOLD = 100.0  # weight of what is below the floor: far above anything the critic says, so that the floor holds


class CriticOutput(NamedTuple):
    """A batch as the critic sees it."""

    scores: Tensor  # (B,)
    logits: Tensor  # (B, classes), or for masks (B, classes, h, w)
    labels: Tensor  # (B,), or for masks the share of each class in each pixel, (B, classes, H, W)
    labelled: Tensor | None = None  # for masks: what to divide by, where these images are a part of a batch


class Loss(NamedTuple):
    """A loss and what it is made of; scalars on the device."""

    total: Tensor
    distance: Tensor  # the Wasserstein estimate d
    classes: Tensor  # the classification loss l


def critic_loss(originals: CriticOutput, augmented: CriticOutput, class_weight: float) -> Loss:
    """The critic makes the distance large; its classifier learns on originals and augmented images alike.

    The gradient penalty is not in here: it has its own backward (`penalty_gradient`).
    """
    distance = originals.scores.mean() - augmented.scores.mean()
    classes = class_loss(originals) + class_loss(augmented)
    return Loss(class_weight * classes - distance, distance, classes)


def policy_loss(augmented: CriticOutput, class_weight: float) -> Loss:
    """The policy makes the distance small and keeps augmented images in their class.

    Of distance and class loss it changes the augmented part alone, so that is all there is here.
    """
    distance, classes = -augmented.scores.mean(), class_loss(augmented)
    return Loss(distance + class_weight * classes, distance, classes)


class Amount(NamedTuple):
    """How much a policy does, and over how many operations; scalars on the device."""

    dose: Tensor  # done to an image in a stage: share x probability x magnitude
    spread: Tensor  # the entropy of the dose over operations


def amount(policy: SoftPolicy) -> Amount:
    """The mean over stages; an operation without a magnitude counts as fully applied."""
    # column by column: a mask made here would be sent to the device at every step, which cannot be captured
    columns = zip(policy.ops, policy.magnitude.unbind(-1), strict=True)
    magnitude = torch.stack([torch.ones_like(m) if row.span is None else m for row, m in columns], -1)
    each = (policy.shares * policy.probability * magnitude).mean((0, 1))
    dose = each.sum()
    part = (each / dose.clamp(min=1e-6)).clamp(min=1e-6)
    return Amount(dose, -(part * part.log()).sum())


def floor_loss(policy: SoftPolicy, floor: Amount) -> Tensor:
    """`diverse` adds this to the paper's: neither dose nor spread may fall below the floor.

    The critic then says which operations, not how much of them: the closest policy of all is to do nothing.
    """
    now = amount(policy)
    return _HOLD * (_lack(now.dose, floor.dose) + _lack(now.spread, floor.spread))


def _lack(value: Tensor, floor: Tensor) -> Tensor:
    """How far below the floor, in floors, squared: a gentle pull just below and a strong one far below."""
    return ((floor - value).clamp(min=0) / floor.clamp(min=1e-6)).square()


def class_loss(output: CriticOutput) -> Tensor:
    return F.cross_entropy(output.logits, output.labels) if output.labels.ndim == 1 else pixel_loss(output)


def pixel_loss(output: CriticOutput) -> Tensor:
    """Cross-entropy per pixel, the mean over what has a label: shares that are missing from a pixel do not count.

    All pixels of a cell of the feature map share its logits, so their mean labels give the loss that logits blown up to
    the image's size would give, for a small part of the work.
    """
    labelled = labelled_pixels(output) if output.labelled is None else output.labelled
    return F.cross_entropy(output.logits, _shares(output), reduction="sum") / labelled.clamp(min=1e-6)


def labelled_pixels(output: CriticOutput) -> Tensor:
    """How many cells of the feature map have a label, parts of them counted as such."""
    return _shares(output).sum()


def _shares(output: CriticOutput) -> Tensor:
    """Of classes, in each cell of the feature map."""
    height, width = output.logits.shape[2:]
    return F.adaptive_avg_pool2d(output.labels, (height, width))


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
