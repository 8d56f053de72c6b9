"""Batches for training. Images that fit live on the device and are augmented there, many batches at a time.

The order is Fast AutoAugment's: policy, random crop, flip, then cutout in the mean colour (it cut zeros out of the
normalised image, which is the same but for the rounding of the mean to a whole level).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Generator, Tensor

from fasteraa.data import ImageSet
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.policy.apply import augment
from fasteraa.policy.artifact import Policy
from fasteraa.search.step import Normalise, baseline

_AT_ONCE = 2**27  # values augmented in one piece on a GPU (128 MB); a CPU takes a batch at a time


class Feed(Protocol):
    """Where a training run gets its batches."""

    steps: int  # of an epoch
    normalise: Normalise

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """uint8 (b, 3, H, W) and labels (b,), on the device, augmented."""


class DeviceFeed:
    """All images on the device; every epoch draws its own order, policies, crops and holes from its own seed."""

    def __init__(self, data: ImageSet, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device):
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.policy, self.recipe, self.seed = policy, recipe, seed
        self.batch = min(recipe.batch_size, len(data))
        self.steps = len(data) // self.batch
        self.normalise = Normalise.of(self.images)
        self.mean = (self.normalise.mean * 255).round().to(torch.uint8)
        self.idle = not any(stage for sub in policy.sub_policies for stage in sub.stages)
        pieces = _AT_ONCE // data.images[0].numel() // self.batch if device.type == "cuda" else 1
        self.piece = self.batch * max(1, min(pieces, self.steps))

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.images.device
        generator = Generator(device).manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.images), generator=generator, device=device)[: self.steps * self.batch]
        for index in torch.split(order, self.piece):
            images = self.augmented(self.images[index], generator)
            labels = self.labels[index]
            yield from zip(torch.split(images, self.batch), torch.split(labels, self.batch), strict=True)

    def augmented(self, images: Tensor, generator: Generator) -> Tensor:
        if not self.idle:
            images = augment(self.policy, images, generator, pool=self.images)
        images = baseline(images, self.recipe, generator)
        return cut(images, self.recipe.cutout, self.mean, generator) if self.recipe.cutout else images


def cut(images: Tensor, side: int, colour: Tensor, generator: Generator) -> Tensor:
    """A square with its centre anywhere in the image, so that parts of it may lie outside."""
    count, _, height, width = images.shape
    inside = []
    for length in (height, width):
        centre = torch.randint(length, (count, 1), generator=generator, device=images.device)
        place = torch.arange(length, device=images.device)
        inside.append((place >= centre - side // 2) & (place < centre + (side + 1) // 2))
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], colour, images)
