"""Norm layers in primitive ops, whose forward-mode derivative can itself be differentiated.

`F.batch_norm`, `F.instance_norm` and `F.layer_norm` are silently wrong under reverse-over-forward: the tangent formula
treats the saved statistics as constants, so the parameter gradient of a `torch.func.jvp` lacks the terms that go
through them (off by 7 to 23% of its length on a two-layer net; torch 2.6, 2.11 and 2.15 alike). Written as mean,
difference, square, rsqrt and scale they are exact. The fused kernels stay the choice for ordinary training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fasteraa.errors import ConfigError

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with another forward: the same attributes, state dict, statistics and output."""

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        h = _accumulable(x)
        running = None if self.training else self._running()
        mean = h.mean(dim=(0, 2, 3)) if running is None else running[0]
        centred = h - _per_channel(mean)
        var = centred.square().mean(dim=(0, 2, 3)) if running is None else running[1]
        if self.training:
            self._update_running(mean, var, count=h.numel() // h.shape[1])
        scale = torch.rsqrt(var + self.eps)
        if not self.affine:
            return (centred * _per_channel(scale)).to(x.dtype)
        return (centred * _per_channel(scale * self.weight) + _per_channel(self.bias)).to(x.dtype)

    def _running(self) -> tuple[Tensor, Tensor] | None:
        if self.running_mean is None or self.running_var is None:
            return None
        return self.running_mean, self.running_var

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: int) -> None:
        if count < 2:
            raise ValueError(f"batch norm in training needs more than one value per channel, got {count}")
        running = self._running()
        if not self.track_running_stats or running is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        for old, new in zip(running, (mean, var * (count / (count - 1))), strict=True):
            new = new.detach().to(old.dtype)
            if self.momentum is None:  # cumulative average; the count stays on the device
                old.lerp_(new, self.num_batches_tracked.to(old.dtype).reciprocal())
            else:
                old.lerp_(new, self.momentum)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """A batch norm with the statistics that came with its weights, in training, too: every image stands for itself."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = torch.rsqrt(self.running_var + self.eps)
        scale = scale * self.weight if self.affine else scale
        out = (_accumulable(x) - _per_channel(self.running_mean)) * _per_channel(scale)
        return (out + _per_channel(self.bias) if self.affine else out).to(x.dtype)


class FrozenBatchNormAct2d(FrozenBatchNorm2d):
    """The same for timm's layer that owns a dropout and an activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(x)))
        return out


class Affine2d(nn.BatchNorm2d):
    """The scale and shift of a batch norm without its normalisation: every image stands for itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * _per_channel(self.weight) + _per_channel(self.bias)


class GainConv2d(nn.Conv2d):
    """A convolution with a gain on each channel of its output."""

    gain: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * _per_channel(self.gain)


class BatchNormAct2d(BatchNorm2d):
    """Twin of timm's layer of this name, which owns a dropout and an activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(x)))
        return out


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` with another forward."""

    def forward(self, x: Tensor) -> Tensor:
        h = _accumulable(x)
        dims = tuple(range(-len(self.normalized_shape), 0))
        centred = h - h.mean(dim=dims, keepdim=True)
        out = centred * torch.rsqrt(centred.square().mean(dim=dims, keepdim=True) + self.eps)
        if self.elementwise_affine:
            out = out * self.weight
            out = out if self.bias is None else out + self.bias
        return out.to(x.dtype)


class LayerNorm2d(LayerNorm):
    """Twin of timm's layer of this name: layer norm over the channels of (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


# By name, since timm is imported only when asked for.
_TWINS: dict[str, type[nn.Module]] = {
    "torch.nn.modules.batchnorm.BatchNorm2d": BatchNorm2d,
    "torch.nn.modules.normalization.LayerNorm": LayerNorm,
    "timm.layers.norm_act.BatchNormAct2d": BatchNormAct2d,
    "timm.layers.norm.LayerNorm": LayerNorm,
    "timm.layers.norm.LayerNorm2d": LayerNorm2d,
}
_FROZEN: dict[str, type[nn.Module]] = {
    "torch.nn.modules.batchnorm.BatchNorm2d": FrozenBatchNorm2d,
    "timm.layers.norm_act.BatchNormAct2d": FrozenBatchNormAct2d,
}
_WRONG_UNDER_JVP = (_BatchNorm, _InstanceNorm, nn.LayerNorm)
_RIGHT = (*_TWINS.values(), *_FROZEN.values(), Affine2d)


def make_primitive(module: AnyModule) -> AnyModule:
    """Turn every fused norm layer inside `module` into its primitive twin, in place; returns `module`.

    Only the class of a layer changes, so its parameters, buffers, hooks and all references to it stay. A norm layer
    without a twin is refused: leaving it would make the gradient penalty wrong without a sign. timm's attention
    uses plain products as well, since the fused kernels have no forward mode.
    """
    for path, layer in module.named_modules():
        kind = type(layer)
        if "fused_attn" in vars(layer):
            vars(layer)["fused_attn"] = False
        twin = _TWINS.get(f"{kind.__module__}.{kind.__qualname__}")
        if twin is not None:
            layer.__class__ = twin
        elif isinstance(layer, _WRONG_UNDER_JVP) and kind not in _RIGHT:
            raise ConfigError(
                f"a critic's norm layers must have a form in primitive ops, got {kind.__qualname__} at {path!r}; "
                f"choices: {', '.join(name.rpartition('.')[2] for name in _TWINS)}, GroupNorm, RMSNorm"
            )
    return module


def freeze_statistics(module: AnyModule) -> AnyModule:
    """Let every batch norm inside `module` keep the statistics that it has, in place; returns `module`.

    For a pretrained network on other batches than it was trained with, such as those of a critic, half of which are
    augmented: with statistics of batches it would be another network.
    """
    for layer in module.modules():
        frozen = _FROZEN.get(f"{type(layer).__module__}.{type(layer).__qualname__}")
        if frozen is not None and getattr(layer, "running_mean", None) is not None:
            layer.__class__ = frozen
    return module


def make_norm_free(module: AnyModule) -> AnyModule:
    """Take the batch statistics out of `module`, in place: each batch norm keeps its scale and shift alone.

    Residual branches begin with a gain of zero (SkipInit), so that a deep network starts as a shallow one and does not
    explode. The gain is a parameter of its own: zero weights instead would all take Adam's whole step at once.
    """
    for layer in module.modules():
        if type(layer) in (nn.BatchNorm2d, BatchNorm2d) and layer.affine:
            layer.__class__ = Affine2d
    for layer in module.modules():
        name = next((name for name in _LAST_OF_BRANCH if hasattr(layer, name)), None)
        ends = () if name is None else getattr(layer, name)
        for end in ends if isinstance(ends, tuple) else (ends,):
            _start_at_zero(end)
    return module


def _start_at_zero(end: nn.Module) -> None:
    if isinstance(end, Affine2d):
        nn.init.zeros_(end.weight)
    elif isinstance(end, nn.Conv2d):
        end.__class__ = GainConv2d
        end.register_parameter("gain", nn.Parameter(torch.zeros(end.out_channels)))


# what ends a residual branch (a module or several): in our own blocks; in torchvision's and timm's
_LAST_OF_BRANCH = ("last_of_branch", "bn3", "bn2")


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Normalise by the batch as in training, but leave the running statistics alone.

    For forwards that are not steps of training, such as the two of the gradient penalty, and for any `torch.func.jvp`
    in training mode: torch.func refuses to write its values into buffers (dual tensors of `forward_ad` do not mind).
    Serves fused and primitive layers alike: both read `track_running_stats`.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def _accumulable(x: Tensor) -> Tensor:
    """Half precision is too coarse for sums over a batch; the fused kernels upcast as well."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _per_channel(v: Tensor) -> Tensor:
    return v[None, :, None, None]
