"""What a network that was trained without a policy makes of augmented images: how far a policy leads away from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Generator, Tensor

from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.policy.apply import augment
from fasteraa.policy.policy import Policy
from fasteraa.train.guess import Logits, load_logits
from fasteraa.train.job import TrainJob
from fasteraa.train.metrics import Measured, measured

_COPIES = 4  # of every image, augmented differently
_BATCH = 512


class CleanNetwork:
    """A network and the images that were held out from its training."""

    def __init__(self, logits: Logits, images: Tensor, labels: Tensor, seed: int = 0):
        self.logits, self.images, self.labels, self.seed = logits, images, labels, seed
        self.plain = measured(self._batches(None, 1))

    def measure(self, policy: Policy) -> Measured:
        """Error and loss on the held-out images under the policy."""
        return measured(self._batches(policy, _COPIES))

    @torch.no_grad()
    def _batches(self, policy: Policy | None, copies: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = Generator(self.images.device).manual_seed(self.seed)
        for _ in range(copies):
            parts = zip(torch.split(self.images, _BATCH), torch.split(self.labels, _BATCH), strict=True)
            for images, labels in parts:
                seen = images if policy is None else augment(policy, images, generator, pool=self.images)
                yield self.logits(seen), labels


def load_clean(file: Path, job: TrainJob, device: torch.device) -> CleanNetwork:
    """The network of a finished job (`RunCache.network`) with the images that the job held out."""
    held_out = job.split.held_out
    images = held_out.decoded() if isinstance(held_out, LazyImageSet) else held_out
    return CleanNetwork(load_logits(file, job, device), images.images.to(device), images.labels.to(device))
