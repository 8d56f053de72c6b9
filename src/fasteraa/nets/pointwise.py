"""What `ManualGrad` does beside its convolutions, in plain torch.

It is the definition of what `nets.pointwise_triton` does in fewer passes.
Scale, shift and ReLU of a channel, sums of two branches, and their derivatives. A ReLU's derivative is read off its
output. Functions that end in an underscore write into what they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fasteraa.ops.kernels import works_on

aten = torch.ops.aten


class Scaled(NamedTuple):
    """The weights of a convolution, and what multiplies each channel of its output."""

    weight: nn.Parameter
    scale: nn.Parameter | None


class Pointwise:
    def vector(self, parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
        """A number for each channel, as the functions below want it."""
        return parameter.detach().to(dtype).view(1, -1, 1, 1)

    def shifted_(self, out: Tensor, shift: Tensor | None, relu: bool) -> Tensor:
        """relu(out + shift), in place."""
        if shift is not None:
            out += shift
        return out.clamp_(min=0) if relu else out

    def total(self, first: Tensor, second: Tensor, relu: bool) -> Tensor:
        """relu(first + second)."""
        out = first + second
        return out.clamp_(min=0) if relu else out

    def affine_relu(
        self, value: Tensor, plus: Tensor | None, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """x = value + plus, and relu(weight * x + shift)."""
        x = value if plus is None else value + plus
        return x, torch.addcmul(shift, x, weight).clamp_(min=0)

    def before_relu(self, gradient: Tensor, out: Tensor) -> Tensor:
        """The gradient before a ReLU."""
        before: Tensor = aten.threshold_backward(gradient, out, 0)
        return before

    def before_affine_relu(
        self, gradient: Tensor, out: Tensor, weight: Tensor, onto: Tensor | None, keep: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The gradient before the ReLU, if it is to be kept, and that of x, added to what came to x another way."""
        delta = self.before_relu(gradient, out)
        to = delta * weight
        return delta, to if onto is None else to.add_(onto)

    def tangent_(self, tangent: Tensor, plus: Tensor | None, out: Tensor, relu: bool) -> Tensor:
        """out := tangent + plus, through the ReLU that `out` came from. Where no value was kept, `out` is empty."""
        if not relu and len(out):
            return out.copy_(tangent) if plus is None else torch.add(tangent, plus, out=out)
        moved = tangent if plus is None else tangent + plus
        if relu:
            _through_relu_(moved, out)
        return out if relu else moved

    def affine_tangent_(
        self, tangent: Tensor, plus: Tensor | None, weight: Tensor, total: Tensor, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """total := tangent + plus (of one source: the tangent itself), out := weight * total through the ReLU."""
        x = tangent if plus is None else torch.add(tangent, plus, out=total)
        _through_relu_(x * weight, out)
        return x, out

    def sums(self, pairs: Sequence[tuple[Tensor, Tensor | None]], points: int) -> list[tuple[Tensor | None, Tensor]]:
        """For each delta and value: sums over images and pixels of their product, and of delta without the first
        `points` images. In the precision that sums need."""
        return [(None if value is None else _summed(delta * value), _summed(delta[points:])) for delta, value in pairs]

    def weights(self, convolutions: Sequence[Scaled], dtype: torch.dtype) -> list[Tensor]:
        """Weights times scale."""
        parameters = []
        for weight, scale in convolutions:
            scaled = weight.detach() if scale is None else weight.detach() * scale.detach().view(-1, 1, 1, 1)
            parameters.append(scaled.to(dtype))
        return parameters

    def weight_gradients(
        self, convolutions: Sequence[Scaled], gradients: Sequence[Tensor]
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Weights and scales with their gradients, given those of weights times scale."""
        for (weight, scale), gradient in zip(convolutions, gradients, strict=True):
            gradient = gradient.to(weight.dtype)
            if scale is not None:
                yield scale, (gradient * weight.detach()).sum((1, 2, 3))
                gradient = gradient * scale.detach().view(-1, 1, 1, 1)
            yield weight, gradient


PLAIN = Pointwise()


def pointwise_on(device: torch.device, kernels: bool) -> Pointwise:
    """By kernels if they are wanted and Triton works there, for float32 parameters; otherwise in plain torch."""
    if not (kernels and works_on(device)):
        return PLAIN
    from fasteraa.nets.pointwise_triton import Fused

    return Fused()


def _summed(value: Tensor) -> Tensor:
    return value.sum((0, 2, 3), dtype=torch.promote_types(value.dtype, torch.float32))


def _through_relu_(tangent: Tensor, out: Tensor) -> None:
    """out := tangent where out > 0, else 0."""
    aten.threshold_backward.grad_input(tangent, out, 0, grad_input=out)
