"""A training step as a CUDA graph: recorded once, then replayed for every batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fasteraa.evaluate.feed import Batch
from fasteraa.nets.hopper import fused

if TYPE_CHECKING:
    from fasteraa.evaluate.trainer import Group, Training

_COMPILERS_OWN = (
    ".torch.jit.script_method. is deprecated",
    ".*autograd.function.Function.* should not be instantiated",
    "TensorFloat32 tensor cores .* available but not enabled",
)


class Captured:
    """A step of all members as one CUDA graph, in which nothing waits for Python.

    Each member has a branch of its own, so that the small kernels of several networks share the device.
    """

    WARM_UPS = 3

    def __init__(self, group: Group):
        self.members = group.members
        self.batches = [tuple(t.clone() for t in next(iter(m.feed.epoch(0)))) for m in self.members]
        for member, batch in zip(self.members, self.batches, strict=True):
            with _quiet_compiler():
                if group.fuse:
                    group.kernels = _fuse(member, batch[0])
                self._warm_up(member, *batch)
        self.recorded = [member.forward for member in self.members]  # kept: the graph reads tensors of theirs
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = torch.stack(self._branches())
        for member in self.members:
            member.forward = member.network  # measured in batches of another size, once: not worth compiling

    def _warm_up(self, member: Training, images: Tensor, labels: Tensor) -> None:
        """A few steps that are undone; momenta that did not exist before begin at zero."""
        kept = [tensor.clone() for tensor in member.tensors()]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                member.step(images, labels)
        torch.cuda.current_stream().wait_stream(side)
        now = member.tensors()
        for number, tensor in enumerate(now):
            tensor.copy_(kept[number]) if number < len(kept) else tensor.zero_()
        member.optimiser.zero_grad(set_to_none=True)

    def _branches(self) -> list[Tensor]:
        """The steps, each on a stream of its own."""
        main, losses = torch.cuda.current_stream(), []
        streams = [torch.cuda.Stream() for _ in self.members]  # type: ignore[no-untyped-call]
        for member, batch, stream in zip(self.members, self.batches, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                losses.append(member.step(*batch))
        for stream in streams:
            main.wait_stream(stream)
        return losses

    def __call__(self, batches: list[Batch]) -> Tensor:
        for held, batch in zip(self.batches, batches, strict=True):
            for static, tensor in zip(held, batch, strict=True):
                static.copy_(tensor)
        self.graph.replay()
        return self.losses


def _fuse(member: Training, images: Tensor) -> str:
    own = fused(member.network, images.shape, images.device) if member.half else None
    member.forward = own or torch.compile(member.network, dynamic=False)
    return "compiled" if own is None else "hopper"


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """What torch's compiler warns of is its own doing (torch 2.11), or a choice that the recipe has made."""
    with warnings.catch_warnings():
        for message in _COMPILERS_OWN:
            warnings.filterwarnings("ignore", message)
        yield


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let convolutions try their algorithms once and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
