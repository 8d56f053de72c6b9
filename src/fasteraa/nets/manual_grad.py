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
from fasteraa.nets.pointwise import PLAIN, Pointwise, Scaled
from fasteraa.nets.resnet import ResNetBackbone
from fasteraa.nets.small import ConvNorm, Small
from fasteraa.nets.wide_resnet import Block, WideResNet

aten = torch.ops.aten


class Layer:
    """One piecewise linear map from registers to registers."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]  # named by who writes the layers down
    outputs = 1
    learns = False  # has parameters, whose gradients need a delta: the gradient before the ReLU
    by: Pointwise

    def needs(self) -> set[int]:
        """Registers whose values its derivatives need."""
        return set()

    def prepare(self, by: Pointwise, dtype: torch.dtype) -> None:
        """Read the parameters as they are now."""
        self.by = by

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def backward(
        self, gradients: list[Tensor | None], outs: list[Tensor], values: list[Tensor], keep: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """The delta, where parameters need it and it is to be kept, and the gradient of each source."""
        raise NotImplementedError

    def tangent(self, tangents: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        """Where tangents of the sources go: in the place of the values in `outs`, which are empty if not kept."""
        raise NotImplementedError

    def vectors(self) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        """Parameters with a number for each channel that multiply a register (`multiplied`), that are added."""
        return None, None

    @property
    def multiplied(self) -> int | None:
        return None


class Convolution(Layer):
    """relu(scale * conv(x) + bias); the scale is multiplied into the weights, which are smaller than any image."""

    learns = True
    weight: Tensor  # times the scale; ManualGrad sets it

    def __init__(self, source: int, conv: nn.Conv2d, norm: nn.Module | None = None, relu: bool = False):
        self.sources = (source,)
        self.conv, self.relu = conv, relu
        assert norm is None or isinstance(norm, Affine2d)
        scale: nn.Parameter | None = norm.weight if norm is not None else getattr(conv, "gain", None)
        weight: nn.Parameter = conv.weight  # type: ignore[assignment]
        self.scaled = Scaled(weight, scale)
        self.bias: nn.Parameter | None = norm.bias if norm is not None else None

    def needs(self) -> set[int]:
        return {*self.sources, *(self.targets if self.relu else ())}

    def prepare(self, by: Pointwise, dtype: torch.dtype) -> None:
        self.by = by
        self.shift = None if self.bias is None else by.vector(self.bias, dtype)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return (self.by.shifted_(self._convolve(values[0]), self.shift, self.relu),)

    def backward(
        self, gradients: list[Tensor | None], outs: list[Tensor], values: list[Tensor], keep: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        delta = _before(self, gradients, outs)
        return delta, (self._backward(delta, values[0], (True, False, False))[0],)

    def tangent(self, tangents: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        return (self.by.tangent_(self._convolve(tangents[0]), None, outs[0], self.relu),)

    def vectors(self) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        return None, self.bias

    def weight_gradient(self, delta: Tensor, value: Tensor) -> Tensor:
        """Of weights times scale."""
        return self._backward(delta, value, (False, True, False))[1]

    def _convolve(self, value: Tensor) -> Tensor:
        return F.conv2d(value, self.weight, None, self.conv.stride, _padding(self.conv))

    def _backward(self, delta: Tensor, value: Tensor, needed: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        stride, padding = list(self.conv.stride), list(_padding(self.conv))
        gradients: tuple[Tensor, ...] = aten.convolution_backward(
            delta, value, self.weight, None, stride, padding, [1, 1], False, [0, 0], 1, needed
        )
        return gradients


class AffineRelu(Layer):
    """relu(weight * x + bias); with two sources x is their sum, and has a register of its own before the result's."""

    learns = True

    def __init__(self, norm: nn.Module, *sources: int):
        assert isinstance(norm, Affine2d)
        self.sources = sources
        self.outputs = len(sources)
        self.norm = norm

    def needs(self) -> set[int]:
        return {self.multiplied, self.targets[-1]}

    def prepare(self, by: Pointwise, dtype: torch.dtype) -> None:
        self.by = by
        self.weight, self.shift = by.vector(self.norm.weight, dtype), by.vector(self.norm.bias, dtype)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        plus = values[1] if len(values) == 2 else None
        return self.by.affine_relu(values[0], plus, self.weight, self.shift)[-self.outputs :]

    def backward(
        self, gradients: list[Tensor | None], outs: list[Tensor], values: list[Tensor], keep: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        gradient, onto = gradients[-1], gradients[0] if self.outputs == 2 else None
        assert gradient is not None
        delta, to = self.by.before_affine_relu(gradient, outs[-1], self.weight, onto, keep)
        return delta, (to,) * len(self.sources)

    def tangent(self, tangents: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        plus = tangents[1] if len(tangents) == 2 else None
        return self.by.affine_tangent_(tangents[0], plus, self.weight, outs[0], outs[-1])[-self.outputs :]

    def vectors(self) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        return self.norm.weight, self.norm.bias

    @property
    def multiplied(self) -> int:
        return self.targets[0] if self.outputs == 2 else self.sources[0]


class Add(Layer):
    def __init__(self, first: int, second: int, relu: bool = False):
        self.sources = (first, second)
        self.relu = relu

    def needs(self) -> set[int]:
        return set(self.targets) if self.relu else set()

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return (self.by.total(values[0], values[1], self.relu),)

    def backward(
        self, gradients: list[Tensor | None], outs: list[Tensor], values: list[Tensor], keep: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        delta = _before(self, gradients, outs)
        return None, (delta, delta)

    def tangent(self, tangents: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        return (self.by.tangent_(tangents[0], tangents[1], outs[0], self.relu),)


class MaxPool(Layer):
    def __init__(self, source: int, pool: nn.MaxPool2d):
        self.sources = (source,)
        self.settings = [_both(number) for number in (pool.kernel_size, pool.stride, pool.padding)]

    def needs(self) -> set[int]:
        return set(self.sources)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        out, self.index = aten.max_pool2d_with_indices(values[0], *self.settings)
        return (out,)

    def backward(
        self, gradients: list[Tensor | None], outs: list[Tensor], values: list[Tensor], keep: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        settings = *self.settings, [1, 1], False, self.index
        return None, (aten.max_pool2d_with_indices_backward(gradients[0], values[0], *settings),)

    def tangent(self, tangents: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        index = self.index[: len(tangents[0])]
        moved = tangents[0].flatten(2).gather(2, index.flatten(2)).view(index.shape)
        return (self.by.tangent_(moved, None, outs[0], False),)


def _before(layer: Convolution | Add, gradients: list[Tensor | None], outs: list[Tensor]) -> Tensor:
    """The gradient before the ReLU, where the layer has one."""
    (gradient,) = gradients
    assert gradient is not None
    return layer.by.before_relu(gradient, outs[0]) if layer.relu else gradient


class ManualGrad:
    """A forward of `layers` through a batch, kept for its derivatives.

    In this order: `backward`, then `tangent` for the first rows if they are those of a penalty, then `gradients`.
    What is not a convolution is done by `by`: in plain torch, or by kernels.
    """

    def __init__(self, layers: list[Layer], images: Tensor, by: Pointwise = PLAIN):
        self.layers, self.by = layers, by
        self._prepare(images.dtype)
        last_use = {source: at for at, layer in enumerate(layers) for source in layer.sources}
        lasting = {register for layer in layers for register in layer.needs()} | {layers[-1].targets[-1]}
        self.values = [images]
        for at, layer in enumerate(layers):
            self.values += layer.forward(*self._of(layer.sources))
            for source in layer.sources:
                if source not in lasting and last_use[source] == at:
                    self.values[source] = images[:0]  # let go of it
        self.features = _pooled(self._last)

    def _prepare(self, dtype: torch.dtype) -> None:
        for layer in self.layers:
            layer.prepare(self.by, dtype)
        convolutions = [layer for layer in self.layers if isinstance(layer, Convolution)]
        weights = self.by.weights([layer.scaled for layer in convolutions], dtype)
        for layer, weight in zip(convolutions, weights, strict=True):
            layer.weight = weight

    def backward(self, gradient: Tensor, keep: bool = True) -> Tensor:
        """The gradient of the images, given that of the features (rows, F); `keep` what `gradients` needs."""
        pixels = self._last.shape[2] * self._last.shape[3]
        spread = (gradient.to(self._last.dtype) / pixels)[:, :, None, None]
        gradients = {len(self.values) - 1: torch.empty_like(self._last).copy_(spread.expand_as(self._last))}
        self.deltas: dict[Layer, Tensor] = {}
        for layer in reversed(self.layers):
            come = [gradients.pop(target, None) for target in layer.targets]
            delta, parts = layer.backward(come, self._of(layer.targets), self._of(layer.sources), keep)
            if keep and delta is not None:
                self.deltas[layer] = delta
            for source, part in zip(layer.sources, parts, strict=True):
                gradients[source] = gradients[source] + part if source in gradients else part
        return gradients[0]

    def tangent(self, tangent: Tensor) -> Tensor:
        """Send tangents through the first rows, in the place of their values; returns those of the features."""
        rows = slice(0, len(tangent))
        self.values[0][rows] = tangent
        moved = [self.values[0][rows]]
        for layer in self.layers:
            outs = [self.values[target][rows] for target in layer.targets]
            moved += layer.tangent([moved[source] for source in layer.sources], outs)
        return _pooled(self._last[rows])

    def gradients(self, points: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter of the layers with its gradient; the first `points` rows are those of the tangents."""
        added = [(layer, delta) for layer, delta in self.deltas.items() if layer.vectors()[1] is not None]
        pairs = [(delta, None if layer.multiplied is None else self.values[layer.multiplied]) for layer, delta in added]
        for (layer, _), sums in zip(added, self.by.sums(pairs, points), strict=True):
            for parameter, gradient in zip(layer.vectors(), sums, strict=True):
                if parameter is not None:
                    assert gradient is not None
                    yield parameter, gradient
        convolutions = [(layer, delta) for layer, delta in self.deltas.items() if isinstance(layer, Convolution)]
        gradients = [layer.weight_gradient(delta, *self._of(layer.sources)) for layer, delta in convolutions]
        yield from self.by.weight_gradients([layer.scaled for layer, _ in convolutions], gradients)

    @property
    def _last(self) -> Tensor:
        return self.values[-1]

    def _of(self, registers: tuple[int, ...]) -> list[Tensor]:
        return [self.values[register] for register in registers]


def _pooled(value: Tensor) -> Tensor:
    """The mean over the pixels, of half precision in float32."""
    return value.mean((2, 3), dtype=torch.promote_types(value.dtype, torch.float32))


@dataclass
class _Writer:
    """Notes layers one after the other and numbers the registers that they fill; the images are register 0."""

    layers: list[Layer]
    registers: int = 1

    def __call__(self, layer: Layer) -> int:
        """The register of the layer's (last) output."""
        layer.targets = tuple(range(self.registers, self.registers + layer.outputs))
        self.layers.append(layer)
        self.registers += layer.outputs
        return layer.targets[-1]


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
    ends: tuple[int, ...] = (write(Convolution(0, net.stem)),)  # their sum is what the next norm sees
    for block in (module for module in net.stages.modules() if isinstance(module, Block)):
        norm = AffineRelu(block.norm1, *ends)
        h = write(norm)
        inner = write(Convolution(h, block.conv1, block.norm2, relu=True))
        branch = write(Convolution(inner, block.conv2))
        skip = norm.multiplied if block.skip is None else write(Convolution(h, block.skip))
        ends = skip, branch
    write(AffineRelu(net.norm, *ends))


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
