"""One step of Algorithm 2: a pair of batches, one update of the critic, one update of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from fasteraa.data.batches import Normalise, baseline
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.adam import Adam
from fasteraa.methods.faster_aa.objective import (
    Amount,
    CriticOutput,
    amount,
    backward,
    between,
    critic_loss,
    floor_loss,
    labelled_pixels,
    penalty_gradient,
    policy_loss,
)
from fasteraa.nets import Critic, PixelCritic
from fasteraa.policy.soft import SoftDraw, SoftPolicy
from fasteraa.runtime.ranks import ALONE, Ranks

METRICS = ("distance", "penalty", "class_loss", "policy_class_loss")


_BODY = 0.1  # of the learning rate, for the body of a critic that begins with weights: it shall stay what it is


def adam(parameters: Iterable[nn.Parameter], config: SearchConfig) -> Adam:
    """The paper's optimiser."""
    return Adam(parameters, config.learning_rate, (config.beta1, config.beta2))


def critic_adam(critic: Critic, config: SearchConfig) -> Adam:
    """The same; heads that are new move faster than a body that is not."""
    optimiser = adam(critic.parameters(), config)
    if config.critic_weights is not None:
        heads = {*critic.head.parameters(), *critic.backbone.classifier.parameters()}
        optimiser.slow_down((p for p in critic.parameters() if p not in heads), _BODY)
    return optimiser


def soft_policy(config: SearchConfig, parameters: Tensor | None = None) -> SoftPolicy:
    """What a search begins with; or, given (3, L, K, N) of its trajectory, what it had then."""
    policy = SoftPolicy(
        config.sub_policies,
        config.operation_count,
        config.ops,
        choice_temperature=config.choice_temperature,
        gate_temperature=config.gate_temperature,
        chunk_size=config.chunk_size,
        spans=config.spans,
        fill=config.fill,
        generator=Generator().manual_seed(config.seed),
    )
    if parameters is not None:
        with torch.no_grad():
            for own, value in zip((policy.choice, policy.probability, policy.magnitude), parameters, strict=True):
                own.copy_(value)
    return policy


class Step:
    """Algorithm 2: the critic learns to tell augmented images from originals, the policy makes that harder.

    Calling it does one step and returns METRICS as one tensor. Of several `ranks` each has the whole batch and all of
    its chance, and works on its rows; gradients and metrics are those of the whole batch on every rank.
    """

    def __init__(
        self, critic: Critic, policy: SoftPolicy, normalise: Normalise, config: SearchConfig, ranks: Ranks = ALONE
    ):
        self.ranks = ranks
        self.critic = critic
        self.policy = policy
        self.normalise = normalise
        self.config = config
        self.precision = self._auto_precision if config.precision == "auto" else config.precision
        self.critic_optimiser = critic_adam(critic, config)
        self.policy_optimiser = adam(policy.parameters(), config)
        self.floor = _floor(policy, config) if config.objective == "diverse" else None
        self.weight = 1.0  # of this rank's rows in the batch

    def __call__(self, images: Tensor, labels: Tensor, generator: Generator) -> Tensor:
        """images: uint8 (2 b, 3, H, W). The first b are the originals B', the second b are augmented: A = S(B)."""
        with arithmetic(self.precision, images.device):
            return self._step(images, labels, generator)

    @property
    def _auto_precision(self) -> str:
        return "tf32"

    def _baseline(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return baseline(images, self.config, generator).float() / 255, labels

    def _augment(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """This rank's rows of the batch, augmented; the chance is that of the whole batch."""
        draw, rows = self.policy.draw(len(images), generator), self.ranks.rows(len(images))
        return self._apply(images, draw, rows), labels[rows]

    def _apply(self, batch: Tensor, draw: SoftDraw, rows: slice) -> Tensor:
        kernels = None if self.config.kernels else False
        augmented: Tensor = self.policy(batch[rows], draw.of(rows), batch=batch, kernels=kernels)
        return augmented

    def _step(self, images: Tensor, labels: Tensor, generator: Generator) -> Tensor:
        images, labels = self._baseline(images, labels, generator)
        (originals, before), (original_labels, labels) = images.chunk(2), labels.chunk(2)
        augmented, labels = self._augment(before, labels, generator)
        share = torch.rand(len(before), generator=generator, device=images.device)
        rows, self.weight = self.ranks.rows(len(before)), self.ranks.share(len(before))
        mine = originals[rows], original_labels[rows], augmented.detach(), labels, share[rows]
        measured = torch.stack([*self._update_critic(*mine), self._update_policy(augmented, labels)]).detach()
        self.ranks.sum_([measured], self.weight)
        return measured

    def _move(self, optimiser: Adam) -> None:
        """A step by the gradients of the whole batch."""
        self.ranks.sum_(optimiser.gradients, self.weight)
        optimiser.step()

    def _update_critic(
        self, originals: Tensor, original_labels: Tensor, augmented: Tensor, labels: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.critic.requires_grad_(True)
        self.critic_optimiser.zero_grad()
        real, fake = self._outputs(originals, original_labels), self._outputs(augmented, labels)
        loss = critic_loss(real, fake, self.config.class_weight)
        backward(loss.total)
        points = between(self.normalise(originals), self.normalise(augmented), share)
        penalty = penalty_gradient(self.critic, points, self.config.penalty)
        self._move(self.critic_optimiser)
        return loss.distance, penalty, loss.classes

    def _update_policy(self, augmented: Tensor, labels: Tensor) -> Tensor:
        self.critic.requires_grad_(False)
        self.policy_optimiser.zero_grad()
        loss = policy_loss(self._outputs(augmented, labels), self.config.class_weight)
        backward(self._with_floor(loss.total))
        self._move(self.policy_optimiser)
        self.policy.project_()
        return loss.classes

    def _with_floor(self, loss: Tensor) -> Tensor:
        return loss if self.floor is None else loss + floor_loss(self.policy, self.floor)

    def _outputs(self, images: Tensor, labels: Tensor) -> CriticOutput:
        """Originals and augmented images are output in batches of their own.

        With `critic_norm = "batch"`, in one batch they would share the norm layers' statistics, which the critic then
        uses to tell them apart: its scores run away from the penalty and the policy learns nothing.
        """
        scores, logits = self.critic(self.normalise(images))
        return CriticOutput(scores.float(), logits.float(), labels)


def _floor(policy: SoftPolicy, config: SearchConfig) -> Amount:
    """By the policy that a step is made with: the start, also where a run then continues from a checkpoint."""
    with torch.no_grad():
        return Amount(*(config.floor * each for each in amount(policy)))


class MaskStep(Step):
    """`Step` for semantic segmentation: labels are masks, uint8 (2 b, H, W), that go where their images go."""

    critic: PixelCritic

    def _baseline(self, images: Tensor, masks: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Crop and flip move both at once, the mask as a fourth channel. Counted from 1, so that the zeros around the
        image are no class, nor is 255, which becomes 0.
        """
        both = baseline(torch.cat([images, (masks + 1).unsqueeze(1)], 1), self.config, generator)
        classes = torch.arange(1, self.critic.backbone.classifier.out_features + 1, device=images.device)
        return both[:, :3].float() / 255, (both[:, 3:] == classes.view(1, -1, 1, 1)).float()

    def _augment(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        draw, rows = self.policy.draw(len(images), generator), self.ranks.rows(len(images))
        return self._apply(images, draw, rows), self.policy.follow(labels[rows], draw.of(rows))

    def _outputs(self, images: Tensor, labels: Tensor) -> CriticOutput:
        """A mean over pixels with a label, of which other ranks may have more or fewer: all of them count alike."""
        output = super()._outputs(images, labels)
        if not self.ranks.joined:
            return output
        labelled = labelled_pixels(output)
        self.ranks.sum_([labelled])
        return output._replace(labelled=labelled * self.weight)


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """What a GPU calculates in: tf32, bf16 or float32. The plain step takes float32 on a CPU."""
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    half = torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
    cudnn_flags = {name: getattr(cudnn, name) for name in ("enabled", "deterministic", "benchmark", "benchmark_limit")}
    with cudnn.flags(**cudnn_flags, allow_tf32=precision != "float32"), half:  # it resets whatever it is not given
        yield
