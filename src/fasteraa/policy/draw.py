"""All randomness of applying a policy: uniform numbers come in, a plain record of what to do comes out.

A pass through a sub-policy takes a block of `1 + 7 * stages` uniform numbers: one for the sub-policy, then seven for
each stage in the order of `_PER_STAGE`. A policy whose strength asks for other than one pass takes one more number
before them, for how many, and a block for each. The record is decoded from them without further chance, for one image
in plain Python (a loader worker) or for a batch in torch; both decode the same numbers to the same deeds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor

from fasteraa.ops import Op, find
from fasteraa.policy.policy import Choice, Policy, Stage

if TYPE_CHECKING:
    from fasteraa.ops.kernels.draw import Decoder

_PER_STAGE = ("choice", "gate", "magnitude", "sign", "hole_x", "hole_y", "partner")
_WIDTH = len(_PER_STAGE)
Made = TypeVar("Made")
POSITIVE = {"+": 1.0, "-": 0.0, "random": 0.5, None: 1.0}  # the probability of a positive sign


class Deed(NamedTuple):
    """One operation applied to one image."""

    op: Op
    magnitude: float
    sign: float
    hole: tuple[float, float]
    partner: float  # in [0, 1): which partner


@dataclass(frozen=True)
class Draw:
    """What happens to each image of a batch, stage by stage: tensors (B, K) on the CPU or wherever they were drawn."""

    op: Tensor  # index into Plan.ops, -1 where nothing is done
    magnitude: Tensor
    sign: Tensor
    hole: Tensor  # (B, K, 2)
    partner: Tensor


class _Option(NamedTuple):
    """A choice, as the decoder wants it."""

    op: Op
    probability: float
    low: float
    high: float
    positive: float


class Plan:
    """A policy (of a schedule the last part) laid out for drawing: lists for one image, padded arrays for a batch."""

    def __init__(self, policy: Policy):
        policy = policy.parts[-1].policy.scaled()
        self.ops = [find(name) for name in dict.fromkeys(choice.op for choice in policy.choices())]
        self.single = policy.strength.plain
        self.pass_edges = _edges(policy.strength.passes)
        self.most = policy.strength.most
        self.pairs = self.most > 0 and "sample_pairing" in policy.ops
        self.stages_of_pass = policy.depth
        self.block = 1 + _WIDTH * policy.depth
        self.depth = policy.depth * self.most  # stages of an image, over all its passes
        self.width = self.block if self.single else 1 + self.block * self.most
        self.sub_edges = _edges([sub.weight for sub in policy.sub_policies])
        self.stages = [[_stage(stage) for stage in sub.stages] for sub in policy.sub_policies]
        self._arrays: dict[str, Tensor] | None = None
        self._cached: dict[tuple[str, torch.device], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cached": {}}  # what lies on a device stays in its process

    def cached(self, key: tuple[str, torch.device], make: Callable[[], Made]) -> Made:
        """Made once for a device: sending it there again would make the host wait."""
        if key not in self._cached:
            self._cached[key] = make()
        made: Made = self._cached[key]
        return made

    # --- one image ---------------------------------------------------------------------------------------------

    def decode_one(self, uniform: Sequence[float]) -> list[Deed]:
        if self.single:
            return self._decode_pass(uniform)
        count = bisect_right(self.pass_edges, uniform[0])
        starts = range(1, 1 + count * self.block, self.block)
        return [deed for start in starts for deed in self._decode_pass(uniform[start : start + self.block])]

    def _decode_pass(self, uniform: Sequence[float]) -> list[Deed]:
        deeds = []
        at = 1
        for edges, options in self.stages[bisect_right(self.sub_edges, uniform[0])]:
            u_choice, u_gate, u_magnitude, u_sign, hole_x, hole_y, partner = uniform[at : at + _WIDTH]
            at += _WIDTH
            op, probability, low, high, positive = options[bisect_right(edges, u_choice)]
            if u_gate < probability:
                sign = 1.0 if u_sign < positive else -1.0
                deeds.append(Deed(op, low + u_magnitude * (high - low), sign, (hole_x, hole_y), partner))
        return deeds

    def draw_one(self, generator: Generator | None = None) -> list[Deed]:
        return self.decode_one(torch.rand(self.width, dtype=torch.float64, generator=generator).tolist())

    # --- a batch -----------------------------------------------------------------------------------------------

    def draw(
        self,
        count: int,
        generator: Generator | None = None,
        device: torch.device | None = None,
        kernels: bool = False,
        chunk: int = 1,
    ) -> Draw:
        """A record for `count` images, drawn on the generator's device (without one on `device`, or the CPU).

        `kernels` decodes by a kernel what was drawn on a GPU, `chunk` as in `uniform`.
        """
        uniform = self.uniform(count, generator, device, chunk)
        return self.decode(uniform, kernels and uniform.is_cuda)

    def uniform(
        self, count: int, generator: Generator | None = None, device: torch.device | None = None, chunk: int = 1
    ) -> Tensor:
        """All the chance of a draw: numbers in [0, 1), a row for each image.

        So many images in a row as `chunk` says share their sub-policy and the operations of its stages; whether these
        are applied, and how, each image draws for itself.
        """
        device = generator.device if generator is not None else device
        uniform = torch.rand(count, self.width, dtype=torch.float64, generator=generator, device=device)
        if chunk == 1:
            return uniform
        first = torch.arange(count, device=uniform.device) // chunk * chunk
        shared = self.cached(("shared", uniform.device), lambda: self._shared().to(uniform.device))
        return torch.where(shared, uniform[first], uniform)

    def _shared(self) -> Tensor:
        """Which numbers of a row choose the operations: passes, sub-policy, and an operation for each stage."""
        block = torch.zeros(self.block, dtype=torch.bool)
        block[0] = True
        block[1::_WIDTH] = True
        return block if self.single else torch.cat([torch.ones(1, dtype=torch.bool), block.repeat(self.most)])

    def decode(self, uniform: Tensor, kernels: bool = False) -> Draw:
        """One Triton kernel, or plain torch; the same record."""
        if kernels:
            from fasteraa.ops.kernels.draw import decode

            return Draw(*decode(uniform, self.decoder(uniform.device)))
        if self.single:
            return self._decode_passes(uniform)
        # the passes of an image one after the other
        blocks = uniform[:, 1:].reshape(len(uniform) * self.most, self.block)
        passes = self._decode_passes(blocks)
        edges = self._arrays_on(uniform.device)["pass_edges"]
        count = torch.searchsorted(edges, uniform[:, :1].contiguous(), right=True)
        done = torch.arange(self.most, device=uniform.device) < count  # (B, passes)
        op = torch.where(done.reshape(-1, 1), passes.op, -1)
        columns = (op, passes.magnitude, passes.sign, passes.hole, passes.partner)
        return Draw(*(c.reshape(len(uniform), self.depth, *c.shape[2:]) for c in columns))

    def deeds(self, draw: Draw, index: int) -> list[Deed]:
        """What a batch's record says of one of its images."""
        columns = (draw.op, draw.magnitude, draw.sign, draw.hole, draw.partner)
        return [
            Deed(self.ops[op], magnitude, sign, (hole[0], hole[1]), partner)
            for op, magnitude, sign, hole, partner in zip(*(c[index].tolist() for c in columns), strict=True)
            if op >= 0
        ]

    def _decode_passes(self, uniform: Tensor) -> Draw:
        arrays = self._arrays_on(uniform.device)
        u = uniform[:, 1:].reshape(len(uniform), self.stages_of_pass, _WIDTH)
        sub = torch.searchsorted(arrays["sub_edges"], uniform[:, 0].contiguous(), right=True)
        choice = (u[:, :, 0, None] >= arrays["edges"][sub]).sum(2, keepdim=True)
        op, probability, low, high, positive = (
            arrays[name][sub].gather(2, choice).squeeze(2) for name in ("op", "probability", "low", "high", "positive")
        )
        return Draw(
            op=torch.where(u[:, :, 1] < probability, op, -1),
            magnitude=low + u[:, :, 2] * (high - low),
            sign=torch.where(u[:, :, 3] < positive, 1.0, -1.0).double(),
            hole=u[:, :, 4:6],
            partner=u[:, :, 6],
        )

    def decoder(self, device: torch.device) -> Decoder:
        """What the kernels decode with."""
        from fasteraa.ops.kernels.draw import decoder_of

        return self.cached(("decoder", device), lambda: decoder_of(self._arrays_on(device), self.most, self.single))

    def _arrays_on(self, device: torch.device) -> dict[str, Tensor]:
        def send() -> dict[str, Tensor]:
            return {name: array.to(device) for name, array in self.arrays().items()}

        return self.cached(("arrays", device), send)

    def arrays(self) -> dict[str, Tensor]:
        """Padded with options that are never chosen and stages that never act."""
        if self._arrays is None:
            most = max((len(options) for stages in self.stages for _, options in stages), default=1)
            shape = (len(self.stages), self.stages_of_pass, most)
            filled = {name: torch.zeros(shape, dtype=torch.float64) for name in _Option._fields if name != "op"}
            op, edges = torch.zeros(shape, dtype=torch.int64), torch.full(shape, 1.0, dtype=torch.float64)
            for sub, stages in enumerate(self.stages):
                for k, (stage_edges, options) in enumerate(stages):
                    edges[sub, k, : len(options)] = torch.tensor(stage_edges, dtype=torch.float64)
                    op[sub, k, : len(options)] = torch.tensor([self.ops.index(option.op) for option in options])
                    for name, array in filled.items():
                        values = [getattr(option, name) for option in options]
                        array[sub, k, : len(options)] = torch.tensor(values, dtype=torch.float64)
            # u is below 1, so the last edge is never passed: `choice` stays within the array
            sub_edges = torch.tensor(self.sub_edges, dtype=torch.float64)
            passes = torch.tensor(self.pass_edges, dtype=torch.float64)
            self._arrays = {**filled, "op": op, "edges": edges, "sub_edges": sub_edges, "pass_edges": passes}
        return self._arrays


def plan_of(policy: Policy) -> Plan:
    """The policy's plan, made once; of one with a schedule that of its last part."""
    cache = vars(policy)
    if "_plan" not in cache:
        cache["_plan"] = Plan(policy)
    plan: Plan = cache["_plan"]
    return plan


def _stage(stage: Stage) -> tuple[list[float], list[_Option]]:
    return _edges([choice.weight for choice in stage]), [_option(choice) for choice in stage]


def _option(choice: Choice) -> _Option:
    return _Option(find(choice.op), choice.probability, *choice.range, POSITIVE[choice.sign])


def _edges(weights: Sequence[float]) -> list[float]:
    """Right edges of the intervals of [0, 1) that belong to each weight; everything from the last positive one is 1."""
    total = sum(weights)
    edges = [edge / total for edge in accumulate(weights)]
    last = max(index for index, weight in enumerate(weights) if weight > 0)
    return edges[:last] + [1.0] * (len(edges) - last)
