"""A training step of several runs as one CUDA graph, replayed for every batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fasteraa.runtime.cuda_graph import capture
from fasteraa.train.device_batches import Batch

if TYPE_CHECKING:
    from fasteraa.train.group import Group

_COMPILERS_OWN = (
    ".torch.jit.script_method. is deprecated",
    ".*autograd.function.Function.* should not be instantiated",
    "TensorFloat32 tensor cores .* available but not enabled",
)


class CapturedGroup:
    """A step of all members as one CUDA graph, in which nothing waits for Python.

    Each member has a branch of its own, so that the small kernels of several networks share the device.
    """

    WARM_UPS = 3

    def __init__(self, group: Group):
        self.members = group.members
        self.batches = [tuple(t.clone() for t in next(iter(m.feed.epoch(0)))) for m in self.members]
        if group.fuse:
            group.kernels = "compiled"
            with _quiet_compiler():  # what it imports warns, too
                for member in self.members:
                    member.forward = torch.compile(member.network, dynamic=False)
        self.compiled = [member.forward for member in self.members]  # kept: the graph reads tensors of theirs
        with _quiet_compiler(), self._undone():
            self.graph, self.losses = capture(
                lambda: torch.stack(self._branches()), group.device, warm_ups=self.WARM_UPS
            )
        for member in self.members:
            member.forward = member.network  # measured in batches of another size, once: not worth compiling

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Steps taken in it are undone; state of an optimiser that did not exist before begins at zero."""
        before = [[tensor.clone() for tensor in member.tensors()] for member in self.members]
        yield
        for member, old in zip(self.members, before, strict=True):
            for number, tensor in enumerate(member.tensors()):
                tensor.copy_(old[number]) if number < len(old) else tensor.zero_()
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

    def release(self) -> None:
        """Not to be called any more after it."""
        torch.cuda.synchronize(self.losses.device)
        self.graph.reset()

    def __call__(self, batches: list[Batch]) -> Tensor:
        held = [static for batch in self.batches for static in batch]
        torch._foreach_copy_(held, [tensor for batch in batches for tensor in batch])
        self.graph.replay()
        return self.losses


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
