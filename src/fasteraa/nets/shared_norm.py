"""Batch norm over the images of all ranks: statistics of the whole batch, though each rank has a part of it.

torch's own SyncBatchNorm works on GPUs alone; this one sums over whatever the ranks speak, and is tested on CPUs.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fasteraa.errors import ConfigError
from fasteraa.nets.norm import BatchNorm2d
from fasteraa.runtime.ranks import Ranks

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class SharedBatchNorm(nn.BatchNorm2d):
    """A batch norm of (B, C) or (B, C, H, W) whose batch is that of all ranks together. Measuring, it is the usual."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        mean, var, count = self._statistics(x)
        self._update(mean, var, count)
        out: Tensor = _Normalise.apply(x, self.weight, self.bias, mean, var, count, self.eps, self.ranks)
        return out

    @torch.no_grad()
    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of each channel and how many values they are of, from those of each rank: one message."""
        var, mean = torch.var_mean(x.float(), _dims(x), correction=0)
        count = torch.full_like(mean, x.numel() / x.shape[1])
        rows = self.ranks.whole(torch.stack([mean, var, count])[None], self.ranks.size)
        means, variances, counts = rows.unbind(1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        return mean, (counts * (variances + (means - mean).square())).sum(0) / total, total

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        unbiased = var * count / (count - 1).clamp(min=1)
        for old, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            if self.momentum is None:
                old.lerp_(new.to(old.dtype), self.num_batches_tracked.to(old.dtype).reciprocal())
            else:
                old.lerp_(new.to(old.dtype), self.momentum)


class SharedBatchNormAct(SharedBatchNorm):
    """Twin of timm's BatchNormAct2d, which owns a dropout and an activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(x)))
        return out


class _Normalise(torch.autograd.Function):
    """Scale and shift by given statistics. Its gradient knows that they come from the images of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: Tensor,
        eps: float,
        ranks: Ranks,
    ) -> Tensor:
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.ranks = ranks
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        upstream = gradient.float()
        normal = (x.float() - _along(mean, x)) * _along(scale, x)
        own = torch.stack([upstream.sum(_dims(x)), (upstream * normal).sum(_dims(x))])
        shift, slope = own  # of this rank's images: those of parameters are summed later, with all others
        sums = own.clone()
        ctx.ranks.sum_([sums])
        level, tilt = sums / count
        factor = scale if weight is None else scale * weight
        inner = _along(factor, x) * (upstream - _along(level, x) - normal * _along(tilt, x))
        of_weight, of_bias = (None, None) if weight is None else (slope.to(weight.dtype), shift.to(weight.dtype))
        return inner.to(x.dtype), of_weight, of_bias, None, None, None, None, None


_TWINS: dict[str, type[SharedBatchNorm]] = {
    "torch.nn.modules.batchnorm.BatchNorm1d": SharedBatchNorm,
    "torch.nn.modules.batchnorm.BatchNorm2d": SharedBatchNorm,
    f"{BatchNorm2d.__module__}.{BatchNorm2d.__qualname__}": SharedBatchNorm,
    "timm.layers.norm_act.BatchNormAct2d": SharedBatchNormAct,
}


def share_statistics(module: AnyModule, ranks: Ranks) -> AnyModule:
    """Let every batch norm inside take the statistics of all ranks, in place: only the class of a layer changes.

    Other norm layers look at one image at a time, and stay.
    """
    for path, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        twin = _TWINS.get(f"{type(layer).__module__}.{type(layer).__qualname__}")
        if twin is None:
            raise ConfigError(
                f"ranks cannot share a network with {type(layer).__qualname__} at {path!r}: its statistics are of "
                "whole batches; train in one process, without torchrun"
            )
        layer.__class__ = twin
        layer.ranks = ranks  # type: ignore[assignment]
    return module


def _dims(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _along(values: Tensor, x: Tensor) -> Tensor:
    """(C,) as a shape that fits the images."""
    return values.view(1, -1, *[1] * (x.ndim - 2))
