"""A policy captured for batches of one shape: on a GPU one launch instead of a dozen, most of whose time is the host's.

`augment` is the definition; a captured policy gives the same bytes, and leaves the generator in the same state.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fasteraa.errors import ImageError
from fasteraa.images import check_batch
from fasteraa.policy.apply import Normal, augment, normal_levels, waits_for_nothing
from fasteraa.policy.policy import Policy
from fasteraa.runtime.cuda_graph import capture


class CapturedPolicy:
    """Augments batches of one shape as the policy does: the same images from the same state of the generator.

    On a GPU the kernels of a call, those of its draw included, are captured in a CUDA graph when this is made. Where
    they cannot be (a CPU, no Triton, an operation without a kernel) `graph` is None and a call is a call of the policy.
    """

    _out: Tensor  # what a replay writes
    _stream: torch.cuda.Stream  # of its last call

    @torch.inference_mode(False)  # memory that was made in that mode could not be written outside of it
    def __init__(
        self,
        policy: Policy,
        batch: Tensor,
        generator: Generator | None = None,
        *,
        kernels: bool | None = None,
        normalise: Normal | None = None,
    ):
        check_batch(batch, soft=False)
        _check_generator(generator, batch.device)
        if normalise is not None:
            normal_levels(normalise, batch)  # which also checks it
        self.policy, self.generator, self.kernels, self.normalise = policy, generator, kernels, normalise
        self.batch = batch.clone(memory_format=torch.contiguous_format)  # what a replay reads
        self.graph: torch.cuda.CUDAGraph | None = None
        if waits_for_nothing(policy, batch, kernels):
            self._capture()

    def __call__(self, batch: Tensor, *, copy: bool = True) -> Tensor:
        """A new batch. `copy=False` saves a copy: a replay then returns memory that the next call overwrites.

        Whoever fills `batch` of this object and gives that saves a copy too.
        """
        if batch.shape != self.batch.shape or batch.dtype != torch.uint8 or batch.device != self.batch.device:
            raise ImageError(
                f"this policy was captured for uint8 {tuple(self.batch.shape)} on {self.batch.device}, "
                f"got {str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)} on {batch.device}"
            )
        if self.graph is None:
            return self._call(batch)
        with torch.cuda.device(batch.device):
            self._follow()
            if batch is not self.batch:
                self.batch.copy_(batch)
            self.graph.replay()
            return self._out.clone() if copy else self._out

    def _call(self, batch: Tensor) -> Tensor:
        return augment(self.policy, batch, self.generator, kernels=self.kernels, normalise=self.normalise)

    def _follow(self) -> None:
        """Calls share memory, so one on another stream waits for the one before."""
        stream = torch.cuda.current_stream(self.batch.device)
        if stream != self._stream:
            stream.wait_stream(self._stream)
            self._stream = stream

    def _capture(self) -> None:
        device = self.batch.device
        chance = torch.cuda.default_generators[device.index] if self.generator is None else self.generator
        self._stream = torch.cuda.current_stream(device)
        before = chance.get_state()
        try:  # warming up compiles, and sends to the device what is kept there
            self.graph, self._out = capture(
                lambda: self._call(self.batch), device, generator=self.generator, other_threads=True
            )
        finally:
            chance.set_state(before)


def _check_generator(generator: Generator | None, device: torch.device) -> None:
    """A graph draws where the batch lies; so that it is the same everywhere, so does a call of the policy."""
    if generator is None:
        return
    given = generator.device
    if given.type != device.type or (given.index is not None and given != device):
        raise ImageError(f"a captured policy draws on the device of its batches, {device}, got a generator on {given}")
