"""A wide residual network for training on Hopper GPUs: what `WideResNet` calculates, up to rounding, in fewer kernels.

Convolutions between equal shapes are those of `convolve.py`, norms and ReLUs those of `norm.py`, and their derivatives
are written out, block by block, so that nothing passes over the images that need not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fasteraa.nets.hopper import WIDTH
from fasteraa.nets.hopper.convolve import convolve, shares, weight_gradient
from fasteraa.nets.hopper.norm import Norm, act, act_back, statistics, sums
from fasteraa.nets.wide_resnet import Block, WideResNet

_SHARES = 5  # programs for each tile of weights, below which cuDNN's gradients of weights are faster


class Fused:
    """Call it as the network."""

    def __init__(self, network: WideResNet):
        self.network = network
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d) and _is_own(layer)]
        self.weights = [layer.weight for layer in layers]
        self.halves = {layer: layer.weight.detach().to(torch.bfloat16) for layer in layers}
        self.blocks = [block for block in network.modules() if isinstance(block, Block)]
        self.aside = _Aside(network.classifier.weight.device)
        self.counts = [count for name, count in network.named_buffers() if name.endswith("num_batches_tracked")]

    def __call__(self, images: Tensor) -> Tensor:
        self._renew()
        x = _Joined.apply(self.network.stem(images), self.aside)
        parts = sums(x.detach())
        for block in self.blocks:
            x, parts = _through(block, self.halves, self.aside, x, parts)
        last = self.network.norm
        x = _Acted.apply(x, last.weight, last.bias, parts, last)
        logits: Tensor = self.network.classifier(x.mean(dim=(2, 3)))
        return logits

    @torch.no_grad()
    def _renew(self) -> None:
        """All weights in bfloat16 at once; and every norm has seen one batch more."""
        torch._foreach_copy_(list(self.halves.values()), self.weights)
        torch._foreach_add_(self.counts, 1)


def _is_own(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == (3, 3) and layer.stride == (1, 1) and layer.in_channels % WIDTH == 0


def _through(
    block: Block, halves: dict[nn.Conv2d, Tensor], aside: _Aside, x: Tensor, parts: Tensor
) -> tuple[Tensor, Tensor]:
    """What a block makes of x, whose sums are `parts`, and the sums of that."""
    layers = (block.norm1, block.conv1), (block.norm2, block.conv2)
    first, second = (_Half(norm, halves.get(convolution), aside) for norm, convolution in layers)
    learned2 = block.norm2.weight, block.norm2.bias, block.conv2.weight
    if block.skip is None:
        learned1 = block.norm1.weight, block.norm1.bias, block.conv1.weight
        found: tuple[Tensor, Tensor] = _Blocked.apply(x, *learned1, *learned2, parts, first, second)
        return found
    h = _Acted.apply(x, block.norm1.weight, block.norm1.bias, parts, block.norm1)
    y, skip = block.conv1(h), block.skip(h)
    found = _Convolved.apply(y, *learned2, skip, sums(y.detach()), second)
    return found


class _Aside:
    """Gradients of weights on a stream of their own: nothing waits for them before `join`.

    So they must become `.grad` as they are, not be added to one: `zero_grad(set_to_none=True)` before every step.
    """

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.held: list[Tensor] = []

    def weight_gradient(self, h: Tensor, gradient: Tensor) -> Tensor:
        if self.stream is None:
            return _weight_gradient(h, gradient)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = _weight_gradient(h, gradient)
        self.held += h, gradient  # the memory of both must not be another's yet
        return found

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.held.clear()


class _Joined(torch.autograd.Function):
    """x; on the way back, all gradients of weights beyond it are there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, aside: _Aside) -> Tensor:
        ctx.aside = aside
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.aside.join()
        return gradient, None


class _Half(NamedTuple):
    """Half of a block: norm, ReLU, convolution."""

    norm: nn.BatchNorm2d
    weights: Tensor | None  # of the convolution, in bfloat16
    aside: _Aside

    def forward(self, x: Tensor, parts: Tensor, plus: Tensor | None = None) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        """Outputs, their sums, and what the way back needs."""
        by = statistics(self.norm, parts, x.numel() // x.shape[1])
        h = act(x, by)
        assert self.weights is not None
        out, sums_of_it = convolve(h, self.weights, plus, summed=True)
        assert sums_of_it is not None
        return out, sums_of_it, (x, h, *by)

    def backward(self, gradient: Tensor, kept: tuple[Tensor, ...], plus: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gradients of x (and `plus`), of the norm's weight and bias, and of the convolution's weights."""
        x, h, *by = kept
        assert self.weights is not None
        to_h, _ = convolve(gradient, self.weights, back=True)
        to_weights = self.aside.weight_gradient(h, gradient)
        return *act_back(to_h, x, Norm(*by), plus), to_weights


class _Acted(torch.autograd.Function):
    """relu(norm(x))"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, parts: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        by = statistics(norm, parts, x.numel() // x.shape[1])
        ctx.save_for_backward(x, *by)
        return act(x, by)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *by = ctx.saved_tensors
        return *act_back(_last(gradient), x, Norm(*by)), None, None


class _Convolved(torch.autograd.Function):
    """conv(relu(norm(x))) + plus"""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, weights: Tensor, plus: Tensor, before: Tensor, half: _Half
    ) -> tuple[Tensor, Tensor]:
        out, parts, kept = half.forward(x, before, plus)
        ctx.half = half
        return _kept(ctx, kept, out, parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        gradient = _last(gradient)
        return *ctx.half.backward(gradient, ctx.saved_tensors), gradient, None, None


class _Blocked(torch.autograd.Function):
    """conv2(relu(norm2(conv1(relu(norm1(x)))))) + x"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        *_, before, first, second = given
        y, between, kept1 = first.forward(x, before)
        out, parts, kept2 = second.forward(y, between, x)
        ctx.halves = first, second
        return _kept(ctx, kept1 + kept2, out, parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        gradient = _last(gradient)
        first, second = ctx.halves
        kept, middle = ctx.saved_tensors, len(ctx.saved_tensors) // 2
        to_y, *learned2 = second.backward(gradient, kept[middle:])
        to_x, *learned1 = first.backward(to_y, kept[:middle], gradient)
        return to_x, *learned1, *learned2, None, None, None


def _kept(ctx: Any, kept: tuple[Tensor, ...], out: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and their sums, which have no gradient, not even one of zeros."""
    ctx.save_for_backward(*kept)
    ctx.mark_non_differentiable(parts)
    ctx.set_materialize_grads(False)
    return out, parts


def _weight_gradient(h: Tensor, gradient: Tensor) -> Tensor:
    depth, channels = h.shape[1], gradient.shape[1]
    if shares(channels, depth, h.device) >= _SHARES:
        return weight_gradient(h, gradient)
    like = h.new_empty(channels, 3, 3, depth).permute(0, 3, 1, 2)
    settings = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, False))
    found: Tensor = torch.ops.aten.convolution_backward(gradient, h, like, None, *settings)[1]
    return found.float()


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def agrees(device: torch.device) -> bool:
    """Outputs and gradients of two blocks are those of plain torch: in one, programs have several tiles to make, in
    the other they have several tiles of channels."""
    return _block_agrees(device, WIDTH, 32, 64) and _block_agrees(device, 2 * WIDTH, 16, 4)


@torch.enable_grad()
def _block_agrees(device: torch.device, channels: int, side: int, count: int) -> bool:
    generator = torch.Generator(device).manual_seed(0)
    block = Block(channels, channels, 1, 0.0).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for weight in block.parameters():
        drawn = torch.randn(weight.shape, generator=generator, device=device)
        weight.data.copy_((drawn / 40 if weight.ndim > 1 else 1 + drawn / 2).bfloat16())
    x = torch.randn(count, channels, side, side, generator=generator, device=device).bfloat16()
    x = _last(x).requires_grad_()
    halves = {layer: layer.weight.detach().bfloat16() for layer in (block.conv1, block.conv2)}
    aside = _Aside(device)
    ours, _ = _through(block, halves, aside, x, sums(x.detach()))
    theirs = block(x.float())
    leaves = [x, *block.parameters()]
    upstream = torch.randn(x.shape, generator=generator, device=device).bfloat16()
    found, wanted = (torch.autograd.grad(y, leaves, _last(upstream.to(y.dtype))) for y in (ours, theirs))
    aside.join()
    # rounding makes 0.4% of the outputs and, since it opens and closes ReLUs, up to 4% of gradients; a wrong tile more
    near = _is_near(ours, theirs, 0.02)
    return near and all(_is_near(one, other, 0.08) for one, other in zip(found, wanted, strict=True))


def _is_near(found: Tensor, wanted: Tensor, within: float) -> bool:
    return bool((found.float() - wanted.float()).norm() <= within * wanted.float().norm())
