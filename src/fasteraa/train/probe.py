"""A cheap linear probe: features of a few augmented copies of every image are computed once, then a head learns.

The body is frozen, so an epoch on the same augmented images gives the same features. A probe of twenty epochs on four
copies passes every image through the network four times, forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fasteraa.train.device_batches import Batch, Feed


class ProbeFeed:
    """Batches of features; epoch n sees those of copy n modulo the number of copies."""

    def __init__(self, feed: Feed, features: Callable[[Tensor], Tensor], copies: int):
        self.feed, self.features, self.copies = feed, features, copies
        self.steps, self.normalise = feed.steps, feed.normalise
        self._known: dict[int, list[Batch]] = {}

    def epoch(self, number: int) -> Iterator[Batch]:
        copy = number % self.copies
        if copy not in self._known:
            with torch.no_grad():
                self._known[copy] = [(self.features(images), labels) for images, labels in self.feed.epoch(copy)]
        return iter(self._known[copy])
