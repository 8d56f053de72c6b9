"""The same step, sooner: the critic's derivatives written out, and everything captured once in a CUDA graph.

`Step` is the definition; what is here computes the same numbers up to rounding, and the tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fasteraa.data.batches import Normalise
from fasteraa.errors import RunError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.adam import Adam
from fasteraa.methods.faster_aa.objective import (
    CriticOutput,
    backward,
    between,
    critic_loss,
    penalty_tangent,
    policy_loss,
)
from fasteraa.methods.faster_aa.step import MaskStep, Step
from fasteraa.nets import Critic, PixelCritic
from fasteraa.nets.manual_grad import Layer, ManualGrad, write_layers
from fasteraa.nets.pointwise import pointwise_on
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime.cuda_graph import capture
from fasteraa.runtime.ranks import ALONE, Ranks

_TRIED = 2  # kernels for each convolution (an H200 starts a second sooner than with ten, and a step takes 1% longer)
_WARM_UPS = 3  # steps before the capture


class ManualGradStep(Step):
    """`Step` for norm-free networks that `nets.manual_grad` knows.

    Originals, augmented images and the points of the penalty go through the critic in one batch.
    """

    def __init__(
        self,
        critic: Critic,
        policy: SoftPolicy,
        normalise: Normalise,
        config: SearchConfig,
        layers: list[Layer],
        ranks: Ranks = ALONE,
    ):
        super().__init__(critic, policy, normalise, config, ranks)
        self.layers = layers
        # without a graph there is nothing for autocast to do
        self.dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self.by = pointwise_on(normalise.mean.device, config.kernels)
        critic.to(memory_format=torch.channels_last)

    @property
    def _auto_precision(self) -> str:
        """bf16 leads to the same policies as tf32, in about half the time (docs/benchmarks.md)."""
        device = self.normalise.mean.device
        return "bf16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "tf32"

    def _update_critic(
        self, originals: Tensor, original_labels: Tensor, augmented: Tensor, labels: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.critic.requires_grad_(True)
        self.critic_optimiser.zero_grad()
        count = len(originals)
        real, fake = self.normalise(originals), self.normalise(augmented)
        backbone = self._backbone_on(torch.cat([between(real, fake, share), real, fake]))
        features = backbone.features.float()
        at_points, at_images = features[:count].requires_grad_(), features[count:].requires_grad_()
        scores, logits = self._heads(at_images)
        (real_scores, fake_scores), (real_logits, fake_logits) = scores.chunk(2), logits.chunk(2)
        loss = critic_loss(
            CriticOutput(real_scores, real_logits, original_labels),
            CriticOutput(fake_scores, fake_logits, labels),
            self.config.class_weight,
        )
        backward(loss.total)
        assert at_images.grad is not None
        (score_gradient,) = torch.autograd.grad(self._heads(at_points)[0].sum(), at_points)
        gradient = backbone.backward(torch.cat([score_gradient, at_images.grad]))[:count].float()
        tangent, penalty = penalty_tangent(gradient)
        moved = backbone.tangent(self.config.penalty * tangent).float()
        backward(self._slope(at_points.detach(), moved))
        for parameter, gradient in backbone.gradients(count):
            parameter.grad = gradient
        self._move(self.critic_optimiser)
        return loss.distance, self.config.penalty * penalty, loss.classes

    def _update_policy(self, augmented: Tensor, labels: Tensor) -> Tensor:
        self.critic.requires_grad_(False)
        self.policy_optimiser.zero_grad()
        images = self.normalise(augmented)
        backbone = self._backbone_on(images.detach())
        features = backbone.features.float().requires_grad_()
        loss = policy_loss(CriticOutput(*self._heads(features), labels), self.config.class_weight)
        backward(loss.total)
        assert features.grad is not None
        gradient = backbone.backward(features.grad, keep=False).to(images)
        along = (images * gradient).sum()  # whose gradient with respect to the images is that very one
        backward(self._with_floor(along))
        self._move(self.policy_optimiser)
        self.policy.project_()
        return loss.classes

    def _backbone_on(self, images: Tensor) -> ManualGrad:
        with torch.no_grad():
            return ManualGrad(self.layers, images.to(self.dtype, memory_format=torch.channels_last), self.by)

    def _slope(self, features: Tensor, tangent: Tensor) -> Tensor:
        """How fast the sum of the scores grows along `tangent`: the head's two layers, written out."""
        first, _, second = self.critic.head
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        with torch.autocast(features.device.type, enabled=False):
            open_gates = first(features).detach() > 0
            return F.linear(F.linear(tangent, first.weight) * open_gates, second.weight).sum()

    def _heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(features.device.type, enabled=False):
            return self.critic.head(features).squeeze(1), self.critic.backbone.classifier(features)


class CapturedStep:
    """A step captured in a CUDA graph at its first call and replayed from then on: one launch instead of thousands.

    The random numbers are drawn in the graph, from the generator of the call, and are those that the step itself would
    draw. The tensor that a call returns is overwritten by the next. Sums over ranks are part of the graph.
    """

    def __init__(self, step: Step):
        self.step = step
        self.critic, self.policy, self.precision = step.critic, step.policy, step.precision
        self.critic_optimiser, self.policy_optimiser = step.critic_optimiser, step.policy_optimiser
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, labels: Tensor, generator: Generator) -> Tensor:
        if self._graph is None or generator is not self._generator or images.shape != self._images.shape:
            self._capture(images, labels, generator)
        assert self._graph is not None
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._measured

    def release(self) -> None:
        """Give the graph back. NCCL waits for every graph that holds one of its sums before it ends."""
        if self._graph is not None:
            torch.cuda.synchronize(self._images.device)
            self._graph.reset()
            self._graph = None

    def _capture(self, images: Tensor, labels: Tensor, generator: Generator) -> None:
        self._images, self._labels, self._generator = images.clone(), labels.clone(), generator
        with self._unchanged(), _fastest_convolutions():
            try:
                self._graph, self._measured = capture(
                    lambda: self.step(self._images, self._labels, generator),
                    images.device,
                    warm_ups=_WARM_UPS,
                    generator=generator,
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise RunError(f"the step could not be captured ({error}); try --set fast=false") from error

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Whatever happens inside, parameters, optimisers and the generator end as they began."""
        modules, optimisers = (self.critic, self.policy), (self.critic_optimiser, self.policy_optimiser)
        held = [tensor for each in modules for tensor in (*each.parameters(), *each.buffers())]
        before = [tensor.detach().clone() for tensor in held]
        states = [_copied(optimiser) for optimiser in optimisers]
        drawn = self._generator.get_state()
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, old in zip(held, before, strict=True):
                    tensor.copy_(old)
                for optimiser, state in zip(optimisers, states, strict=True):
                    _put_back(optimiser, state)
            self._generator.set_state(drawn)


AnyStep = Step | CapturedStep


def make_step(
    critic: Critic, policy: SoftPolicy, normalise: Normalise, config: SearchConfig, ranks: Ranks = ALONE
) -> AnyStep:
    """The plain step, or the fast one: the critic written out wherever the network allows it, on a GPU captured.

    Masks always take the plain one: the layers that are written out end in pooled features, and capturing it has
    not been tried.
    """
    if isinstance(critic, PixelCritic):
        return MaskStep(critic, policy, normalise, config, ranks)
    layers = write_layers(critic.backbone) if config.fast else None
    if layers is None:
        step = Step(critic, policy, normalise, config, ranks)
    else:
        step = ManualGradStep(critic, policy, normalise, config, layers, ranks)
    return CapturedStep(step) if config.fast and normalise.mean.is_cuda else step


def load_optimiser(optimiser: Adam, saved: dict[str, Any]) -> None:
    """Averages from a checkpoint, laid out in memory as this optimiser's parameters are, with its own settings.

    So a run can continue with or without `fast`, and on another kind of device.
    """
    optimiser.load_state_dict({"state": saved["state"], "param_groups": optimiser.state_dict()["param_groups"]})
    for parameter, state in optimiser.state.items():
        for name, value in state.items():
            if name != "step":
                state[name] = torch.empty_like(parameter).copy_(value)


_State = list[dict[str, Tensor]]


def _copied(optimiser: Adam) -> _State:
    return [
        {name: value.clone() for name, value in optimiser.state[parameter].items()}
        for group in optimiser.param_groups
        for parameter in group["params"]
    ]


def _put_back(optimiser: Adam, states: _State) -> None:
    """In place, since the graph holds these very tensors; a state that was not there yet is one of zeros."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for parameter, state in zip(parameters, states, strict=True):
        for name, value in optimiser.state[parameter].items():
            value.copy_(state[name]) if state else value.zero_()


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its first kernels during the warm-up and keep the fastest of each: two tell as much as ten."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = not cudnn.deterministic, _TRIED
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
