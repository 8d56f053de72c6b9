"""Derivatives of a norm-free network written out: a critic step in four convolutions per layer, without autograd.

Without batch statistics a ReLU network is, around each image, a linear map of that image. So one batch can hold images
of several losses side by side, each with a gradient of its own, and the gradient penalty needs no derivative of a
derivative: the parameter gradient of the slope <g, t> is made of the same factors as that of an ordinary loss, with the
tangent in the place of the input,

    loss      dW = sum over images of  delta_out (x) value_in
    penalty   dW = sum over images of  delta_out (x) tangent_in     (delta: the gradient of the score)

Rows of a batch that belong to the penalty have their values overwritten by tangents, after which one pass over the
layers gives all parameter gradients. Biases shift no tangent: those rows do not count for them.
`Critic` and `search.objective` are the definition; the tests hold this to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteraa.nets.backbone import Backbone
from fasteraa.nets.norm import Affine2d, GainConv2d
from fasteraa.nets.resnet import ResNetBackbone
from fasteraa.nets.small import ConvNorm, Small
from fasteraa.nets.wide_resnet import Block, WideResNet

aten = torch.ops.aten


class Layer:
    """One piecewise linear map from registers to a register."""

    sources: tuple[int, ...]
    learns = True  # has parameters, whose gradients need the values of the sources
    relu = False  # ends in a ReLU, whose derivative needs the output

    def prepare(self, dtype: torch.dtype) -> None:
        """Read the parameters as they are now."""

    def forward(self, *values: Tensor) -> Tensor:
        raise NotImplementedError

    def delta(self, gradient: Tensor, out: Tensor) -> Tensor:
        """The gradient before the ReLU, where the layer has one."""
        return aten.threshold_backward(gradient, out, 0) if self.relu else gradient

    def backward(self, delta: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """The gradient of each source."""
        raise NotImplementedError

    def tangent(self, *tangents: Tensor) -> Tensor:
        """Where tangents of the sources go, before the ReLU."""
        raise NotImplementedError

    def gradients(self, delta: Tensor, plain: slice, *values: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its gradient; biases count the rows in `plain` alone."""
        yield from ()


class Convolution(Layer):
    """relu(scale * conv(x) + bias); the scale is multiplied into the weights, which are smaller than any image."""

    def __init__(self, source: int, conv: nn.Conv2d, norm: nn.Module | None = None, relu: bool = False):
        self.sources = (source,)
        self.conv, self.relu = conv, relu
        assert norm is None or isinstance(norm, Affine2d)
        self.scale: nn.Parameter | None = norm.weight if norm is not None else getattr(conv, "gain", None)
        self.bias: nn.Parameter | None = norm.bias if norm is not None else None

    def prepare(self, dtype: torch.dtype) -> None:
        weight = self.conv.weight.detach()
        if self.scale is not None:
            weight = weight * self.scale.detach().view(-1, 1, 1, 1)
        self.weight = weight.to(dtype)
        self.shift = None if self.bias is None else self.bias.detach().to(dtype).view(1, -1, 1, 1)

    def forward(self, *values: Tensor) -> Tensor:
        out = self._convolve(values[0])
        if self.shift is not None:
            out += self.shift
        return out.clamp_(min=0) if self.relu else out

    def backward(self, delta: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (self._backward(delta, values[0], (True, False, False))[0],)

    def tangent(self, *tangents: Tensor) -> Tensor:
        return self._convolve(tangents[0])

    def gradients(self, delta: Tensor, plain: slice, *values: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        weight: nn.Parameter = self.conv.weight  # type: ignore[assignment]
        gradient = self._backward(delta, values[0], (False, True, False))[1].to(weight.dtype)
        if self.scale is not None:
            yield self.scale, (gradient * weight.detach()).sum((1, 2, 3))
            gradient = gradient * self.scale.detach().view(-1, 1, 1, 1)
        yield weight, gradient
        if self.bias is not None:
            yield self.bias, delta[plain].sum((0, 2, 3), dtype=weight.dtype)

    def _convolve(self, value: Tensor) -> Tensor:
        return F.conv2d(value, self.weight, None, self.conv.stride, _padding(self.conv))

    def _backward(self, delta: Tensor, value: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        stride, padding = list(self.conv.stride), list(_padding(self.conv))
        found: tuple[Tensor, ...] = aten.convolution_backward(
            delta, value, self.weight, None, stride, padding, [1, 1], False, [0, 0], 1, wanted
        )
        return found


class AffineRelu(Layer):
    """relu(weight * x + bias)."""

    relu = True

    def __init__(self, source: int, norm: nn.Module):
        assert isinstance(norm, Affine2d)
        self.sources = (source,)
        self.norm = norm

    def prepare(self, dtype: torch.dtype) -> None:
        self.weight = self.norm.weight.detach().to(dtype).view(1, -1, 1, 1)
        self.shift = self.norm.bias.detach().to(dtype).view(1, -1, 1, 1)

    def forward(self, *values: Tensor) -> Tensor:
        return torch.addcmul(self.shift, values[0], self.weight).clamp_(min=0)

    def backward(self, delta: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (delta * self.weight,)

    def tangent(self, *tangents: Tensor) -> Tensor:
        return tangents[0] * self.weight

    def gradients(self, delta: Tensor, plain: slice, *values: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        dtype = self.norm.weight.dtype
        yield self.norm.weight, (delta * values[0]).sum((0, 2, 3), dtype=dtype)
        yield self.norm.bias, delta[plain].sum((0, 2, 3), dtype=dtype)


class Add(Layer):
    learns = False

    def __init__(self, first: int, second: int, relu: bool = False):
        self.sources = (first, second)
        self.relu = relu

    def forward(self, *values: Tensor) -> Tensor:
        out = values[0] + values[1]
        return out.clamp_(min=0) if self.relu else out

    def backward(self, delta: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return delta, delta

    def tangent(self, *tangents: Tensor) -> Tensor:
        return tangents[0] + tangents[1]


class MaxPool(Layer):
    learns = False

    def __init__(self, source: int, pool: nn.MaxPool2d):
        self.sources = (source,)
        self.settings = [_both(number) for number in (pool.kernel_size, pool.stride, pool.padding)]

    def forward(self, *values: Tensor) -> Tensor:
        out, self.index = aten.max_pool2d_with_indices(values[0], *self.settings)
        found: Tensor = out
        return found

    def backward(self, delta: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (aten.max_pool2d_with_indices_backward(delta, values[0], *self.settings, [1, 1], False, self.index),)

    def tangent(self, *tangents: Tensor) -> Tensor:
        index = self.index[: len(tangents[0])]
        return tangents[0].flatten(2).gather(2, index.flatten(2)).view(index.shape)


class Tape:
    """A forward of `layers` through a batch, kept for its derivatives.

    In this order: `backward`, then `tangent` for the first rows if they are those of a penalty, then `gradients`.
    """

    def __init__(self, layers: list[Layer], images: Tensor):
        self.layers = layers
        last_use = {source: at for at, layer in enumerate(layers) for source in layer.sources}
        kept = {source for layer in layers if layer.learns for source in layer.sources} | {len(layers)}
        kept |= {at + 1 for at, layer in enumerate(layers) if layer.relu}
        self.values = [images]
        for at, layer in enumerate(layers):
            layer.prepare(images.dtype)
            self.values.append(layer.forward(*self._of(layer)))
            for source in layer.sources:
                if source not in kept and last_use[source] == at:
                    self.values[source] = images[:0]  # let go of it
        self.features = _pooled(self._last)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient of the images, given that of the features (rows, F)."""
        pixels = self._last.shape[2] * self._last.shape[3]
        spread = (gradient.to(self._last.dtype) / pixels)[:, :, None, None]
        gradients = {len(self.layers): torch.empty_like(self._last).copy_(spread.expand_as(self._last))}
        self.deltas: dict[int, Tensor] = {}
        for at, layer in reversed(list(enumerate(self.layers))):
            delta = layer.delta(gradients.pop(at + 1), self.values[at + 1])
            if layer.learns:
                self.deltas[at] = delta
            for source, part in zip(layer.sources, layer.backward(delta, *self._of(layer)), strict=True):
                gradients[source] = gradients[source] + part if source in gradients else part
        return gradients[0]

    def tangent(self, tangent: Tensor) -> Tensor:
        """Send tangents through the first rows, in the place of their values; returns those of the features."""
        rows = slice(0, len(tangent))
        self.values[0][rows] = tangent
        moved = {0: self.values[0][rows]}
        for at, layer in enumerate(self.layers):
            moved[at + 1] = layer.tangent(*(moved[source] for source in layer.sources))
            value = self.values[at + 1]
            if len(value):
                # a ReLU lets through what it let through, and the tangent takes the value's place
                _through_relu(moved[at + 1], value[rows]) if layer.relu else value[rows].copy_(moved[at + 1])
                moved[at + 1] = value[rows]
        return _pooled(self._last[rows])

    def gradients(self, points: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter of the layers with its gradient; the first `points` rows are those of the tangents."""
        for at, delta in self.deltas.items():
            yield from self.layers[at].gradients(delta, slice(points, None), *self._of(self.layers[at]))

    @property
    def _last(self) -> Tensor:
        return self.values[-1]

    def _of(self, layer: Layer) -> list[Tensor]:
        return [self.values[source] for source in layer.sources]


def _pooled(value: Tensor) -> Tensor:
    """The mean over the pixels, of half precision in float32."""
    return value.mean((2, 3), dtype=torch.promote_types(value.dtype, torch.float32))


def _through_relu(tangent: Tensor, out: Tensor) -> None:
    """out := tangent where out > 0, else 0."""
    aten.threshold_backward.grad_input(tangent, out, 0, grad_input=out)


@dataclass
class _Writer:
    """Notes layers one after the other; a register is the index of the layer that fills it, plus one."""

    layers: list[Layer]

    def __call__(self, layer: Layer) -> int:
        self.layers.append(layer)
        return len(self.layers)


def write_layers(backbone: Backbone) -> list[Layer] | None:
    """The layers of a norm-free backbone up to its pooled features; None for networks that are not known here."""
    norms = [layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not all(isinstance(norm, Affine2d) for norm in norms):
        return None
    write = _Writer([])
    if isinstance(backbone, WideResNet):
        _wide_resnet(backbone, write)
    elif isinstance(backbone, Small):
        _small(backbone, write)
    elif isinstance(backbone, ResNetBackbone) and _all_bottlenecks(backbone):
        _resnet(backbone, write)
    else:
        return None
    return write.layers


def _wide_resnet(net: WideResNet, write: _Writer) -> None:
    x = write(Convolution(0, net.stem))
    for block in (module for module in net.stages.modules() if isinstance(module, Block)):
        h = write(AffineRelu(x, block.norm1))
        inner = write(Convolution(h, block.conv1, block.norm2, relu=True))
        branch = write(Convolution(inner, block.conv2))
        skip = x if block.skip is None else write(Convolution(h, block.skip))
        x = write(Add(skip, branch))
    write(AffineRelu(x, net.norm))


def _small(net: Small, write: _Writer) -> None:
    x = 0
    for block in net.body:
        assert isinstance(block, ConvNorm)
        h = write(Convolution(x, block.conv, block.norm, relu=True))
        x = write(Add(x, h)) if block.residual else h


def _resnet(net: ResNetBackbone, write: _Writer) -> None:
    body = net.body
    x = write(Convolution(0, body.conv1, body.bn1, relu=True))
    x = write(MaxPool(x, body.maxpool))
    for block in (block for stage in (body.layer1, body.layer2, body.layer3, body.layer4) for block in stage):
        h = write(Convolution(x, block.conv1, block.bn1, relu=True))
        h = write(Convolution(h, block.conv2, block.bn2, relu=True))
        branch = write(Convolution(h, block.conv3, block.bn3))
        skip = x if block.downsample is None else write(Convolution(x, block.downsample[0], block.downsample[1]))
        x = write(Add(skip, branch, relu=True))


def _all_bottlenecks(net: ResNetBackbone) -> bool:
    from torchvision.models.resnet import Bottleneck  # takes seconds, so only where it was imported anyway

    stages = (net.body.layer1, net.body.layer2, net.body.layer3, net.body.layer4)
    convs = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    plain = all(conv.groups == 1 and conv.dilation == (1, 1) and not isinstance(conv, GainConv2d) for conv in convs)
    return plain and all(type(block) is Bottleneck for stage in stages for block in stage)


def _padding(conv: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(conv.padding, str)
    return conv.padding


def _both(number: int | tuple[int, ...]) -> list[int]:
    return [number, number] if isinstance(number, int) else list(number)
