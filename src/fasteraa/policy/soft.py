"""The learnable policy: three tensors [L, K, N] and the soft forward of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from fasteraa.errors import PolicyError
from fasteraa.images import check_batch
from fasteraa.ops import Context, Op, Span, check_span, find, select, soft_mixture
from fasteraa.ops.kernels import available, choose
from fasteraa.policy.policy import Choice, Policy, SubPolicy, check_colour
from fasteraa.runtime.documents import quoted

_EDGE = 1e-4  # probabilities enter the logit squeezed into [_EDGE, 1 - _EDGE], so that 0 and 1 keep a gradient
_MOST_CHOICES = 50_000  # the file of a frozen policy stays within the limit of its reader
_NEGLIGIBLE = 1e-4  # choices with a smaller weight are left out of the frozen policy


@dataclass(frozen=True)
class SoftDraw:
    """The chance in one soft forward: tensors on the policy's device, nothing else random."""

    sub_policy: Tensor  # (B,) int64
    gate: Tensor  # (K, B, N) uniform
    sign: Tensor  # (K, B, N) +-1
    hole: Tensor  # (K, B, 2) uniform
    partner: Tensor  # (K, B) int64: index into the batch

    def of(self, rows: slice) -> SoftDraw:
        """The chance of some of the images; their partners are still those of the whole batch."""
        parts = (each[:, rows] for each in (self.gate, self.sign, self.hole, self.partner))
        return SoftDraw(self.sub_policy[rows], *parts)


class SoftPolicy(nn.Module):
    """L sub-policies of K stages over N operations, differentiable in everything.

    `choice` holds the weights w that a softmax with temperature eta turns into shares; `probability` and `magnitude`
    live in [0, 1]. A step of an optimiser may leave that interval: `project_()` brings them back, and even without it
    the forward clamps values but not gradients, so no parameter can get stuck outside.
    """

    def __init__(
        self,
        sub_policies: int = 10,
        operation_count: int = 2,
        ops: Sequence[str] | None = None,
        *,
        choice_temperature: float = 0.05,
        gate_temperature: float = 0.05,
        chunk_size: int = 1,
        spans: Mapping[str, Span] | None = None,
        fill: tuple[int, int, int] = (0, 0, 0),
        generator: Generator | None = None,
    ):
        super().__init__()
        for name, count in (("sub_policies", sub_policies), ("operation_count", operation_count)):
            _check_positive(name, count)
        for name, temperature in (("choice_temperature", choice_temperature), ("gate_temperature", gate_temperature)):
            _check_positive(name, temperature)
        _check_positive("chunk_size", chunk_size)
        self.ops: list[Op] = select(ops)
        if sub_policies * operation_count * len(self.ops) > _MOST_CHOICES:
            raise PolicyError(
                f"a policy can hold {_MOST_CHOICES:,} choices, got sub_policies {sub_policies:,} x operation_count "
                f"{operation_count:,} x {len(self.ops)} operations"
            )
        self.spans = {name: check_span(find(name), span) for name, span in (spans or {}).items()}
        self.fill = check_colour("fill", fill)
        self.choice_temperature = choice_temperature
        self.gate_temperature = gate_temperature
        self.chunk_size = chunk_size
        shape = (sub_policies, operation_count, len(self.ops))
        # uniform starts for all three, as the authors' own code has them; the paper does not say
        self.choice = nn.Parameter(torch.rand(shape, generator=generator))
        self.probability = nn.Parameter(torch.rand(shape, generator=generator))
        self.magnitude = nn.Parameter(torch.rand(shape, generator=generator))

    def extra_repr(self) -> str:
        return f"{list(self.choice.shape)}, ops={[row.name for row in self.ops]}"

    @property
    def shares(self) -> Tensor:
        """softmax(w / eta): how much of each operation a stage takes, [L, K, N]."""
        return (self.choice / self.choice_temperature).softmax(-1)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring probabilities and magnitudes back into [0, 1]; call it after every optimiser step."""
        self.probability.clamp_(0, 1)
        self.magnitude.clamp_(0, 1)

    def draw(self, count: int, generator: Generator | None = None) -> SoftDraw:
        """The random numbers for a batch of `count` images; no host sync."""
        device = self.choice.device
        subs, stages, ops = self.choice.shape
        where: dict[str, Any] = {"generator": generator, "device": device}
        chunks = -(-count // self.chunk_size)
        sub_policy = torch.randint(subs, (chunks,), **where).repeat_interleave(self.chunk_size)[:count]
        return SoftDraw(
            sub_policy=sub_policy,
            gate=torch.rand(stages, count, ops, **where),
            sign=torch.randint(2, (stages, count, ops), **where).to(self.choice.dtype) * 2 - 1,
            hole=torch.rand(stages, count, 2, **where),
            partner=torch.randint(max(count, 1), (stages, count), **where),
        )

    def forward(
        self,
        images: Tensor,
        draw: SoftDraw | None = None,
        generator: Generator | None = None,
        *,
        batch: Tensor | None = None,
        kernels: bool | None = None,
    ) -> Tensor:
        """Augment float images (B, C, H, W) in [0, 1]; each image goes through its own sub-policy.

        Where these are a part of a `batch`, the draw's partners are images of it.

        float32 on a GPU where Triton works goes through a handful of its kernels instead of a few thousand of torch's:
        the same up to rounding, without second derivatives. `kernels=False` asks for plain torch, and `kernels=True`
        for an error where it would have to be plain torch.
        """
        check_batch(images, soft=True)
        kernels = choose(kernels, images.device, lambda: self._against_kernels(images))
        if images.numel() == 0:
            return images
        draw = self.draw(len(images), generator) if draw is None else draw
        originals = images if batch is None else batch
        if kernels:
            return self._by_kernels(images, draw, originals)
        for k in range(self.choice.shape[1]):
            images = self._stage(images, originals, k, draw)
        return images

    def _against_kernels(self, images: Tensor) -> str | None:
        if not available():
            return "Triton, which is not installed"
        if not images.is_cuda and not _interpreted():
            return f"a batch on a GPU, got one on {images.device.type}"
        for what, tensor in (("images", images), ("a policy", self.choice)):
            if tensor.dtype != torch.float32:
                return f"{what} in float32, got {tensor.dtype}"
        return None

    def _by_kernels(self, images: Tensor, draw: SoftDraw, originals: Tensor) -> Tensor:
        from fasteraa.ops.kernels.soft import soft_stages

        with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
            return soft_stages(
                images,
                (self.choice, self.probability, self.magnitude),
                draw,
                originals,
                self.ops,
                self.spans,
                self.fill,
                choice_temperature=self.choice_temperature,
                gate_temperature=self.gate_temperature,
                edge=_EDGE,
            )

    @torch.no_grad()
    def follow(self, maps: Tensor, draw: SoftDraw) -> Tensor:
        """What belongs to the pixels of the images goes where `forward` sends them: float maps (B, C, H, W), such as a
        channel for each class of a mask.

        A stage shows an image under several warps at once, each with its weight, so the maps become the same mixture
        of the same warps; operations that move nothing leave them alone. Zeros come in from outside. No gradient: a
        mask says what is in a picture, and a policy must not learn to change the question.
        """
        moving = [n for n, row in enumerate(self.ops) if row.geometric]
        if not moving or maps.numel() == 0:
            return maps
        rows, outside = [self.ops[n] for n in moving], Context(fill=(0, 0, 0))
        for k in range(self.choice.shape[1]):
            share, gate, magnitude = (part[:, moving].to(maps.dtype) for part in self._drawn(k, draw))
            sign, weight = draw.sign[k][:, moving].to(maps.dtype), share * gate
            moved = soft_mixture(rows, maps, magnitude, sign, weight, outside, self.spans)
            maps = moved + (1 - weight.sum(1)).view(-1, 1, 1, 1) * maps
        return maps

    def _stage(self, images: Tensor, originals: Tensor, k: int, draw: SoftDraw) -> Tensor:
        """sum_n softmax(w / eta)_n (b_n O_n(X; mu_n) + (1 - b_n) X), with b_n ~ ReBern(p_n, lambda)."""
        share, gate, magnitude = self._drawn(k, draw)
        magnitude, weight = magnitude.to(images.dtype), (share * gate).to(images.dtype)
        context = Context(originals[draw.partner[k]], draw.hole[k], fill=self.fill)
        mixed = soft_mixture(self.ops, images, magnitude, draw.sign[k].to(images.dtype), weight, context, self.spans)
        idle = (share * (1 - gate)).sum(1).to(images.dtype)
        return mixed + idle.view(-1, 1, 1, 1) * images

    def _drawn(self, k: int, draw: SoftDraw) -> tuple[Tensor, Tensor, Tensor]:
        """Share, gate and magnitude of each operation of stage k, for each image: (B, N)."""
        share = self.shares[:, k][draw.sub_policy]
        gate = relaxed_bernoulli(_unit(self.probability)[:, k][draw.sub_policy], draw.gate[k], self.gate_temperature)
        return share, gate, _unit(self.magnitude)[:, k][draw.sub_policy]

    def freeze(self, name: str = "policy", provenance: Mapping[str, Any] | None = None) -> Policy:
        """The policy to train with: a stage samples its operation from Cat(softmax(w / eta)), as the paper does."""
        shares = self.shares.detach().cpu()
        probability, magnitude = (t.detach().cpu().clamp(0, 1) for t in (self.probability, self.magnitude))
        subs = [
            SubPolicy(tuple(self._frozen_stage(*stage) for stage in zip(*sub, strict=True)))
            for sub in zip(shares, probability, magnitude, strict=True)
        ]
        return Policy(tuple(subs), name, self.spans, fill=self.fill, provenance=provenance or {})

    def _frozen_stage(self, share: Tensor, probability: Tensor, magnitude: Tensor) -> tuple[Choice, ...]:
        rows = zip(self.ops, share.tolist(), probability.tolist(), magnitude.tolist(), strict=True)
        return tuple(Choice(row.name, p, m, weight) for row, weight, p, m in rows if weight >= _NEGLIGIBLE)


def _interpreted() -> bool:
    from fasteraa.ops.kernels.soft import INTERPRETED

    return INTERPRETED


def relaxed_bernoulli(probability: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """ReBern(b; p, lambda) = sigmoid((logit p + logit u) / lambda)."""
    inner = _EDGE + (1 - 2 * _EDGE) * probability
    tiny = torch.finfo(uniform.dtype).eps
    return ((inner.logit() + uniform.clamp(tiny, 1 - tiny).logit()) / temperature).sigmoid()


def _unit(parameter: Tensor) -> Tensor:
    """Clamped to [0, 1] on the way forward, untouched on the way back."""
    return parameter + (parameter.detach().clamp(0, 1) - parameter.detach())


def _check_positive(name: str, number: float) -> None:
    if not number > 0:
        raise PolicyError(f"{name} must be positive, got {quoted(number, 40)}")
