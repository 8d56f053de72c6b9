"""What every batch goes through, whoever uses it: the baseline crop and flip, and normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

_SLICE = 1024  # images at a time: the sums, and so the results, depend on it


@dataclass(frozen=True)
class Normalise:
    """The one owner of normalisation: originals and augmented images go through it alike."""

    mean: Tensor  # (1, 3, 1, 1)
    std: Tensor

    @classmethod
    def of(cls, images: Tensor) -> Normalise:
        """By the statistics of uint8 images (N, 3, H, W), a slice at a time so that a large set needs no copy.

        All slices share one buffer: glibc does not use again what a new one for each has freed (13 times the images).
        """
        count, slices = images.numel() / images.shape[1], torch.split(images, _SLICE)
        buffer = torch.empty(slices[0].shape, dtype=torch.float64, device=images.device)
        sums, squares = buffer.new_empty(2, len(slices), images.shape[1]).unbind()
        for place, part in enumerate(slices):
            levels = buffer[: len(part)].copy_(part).div_(255)
            sums[place] = levels.sum((0, 2, 3))
            squares[place] = levels.square_().sum((0, 2, 3))
        mean, square = sums.sum(0) / count, squares.sum(0) / count
        std = (square - mean.square()).clamp(min=1e-6).sqrt()
        return cls(mean.float().view(1, -1, 1, 1), std.float().view(1, -1, 1, 1))

    def __call__(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def to(self, device: torch.device) -> Normalise:
        return Normalise(self.mean.to(device), self.std.to(device))


class Baseline(Protocol):
    """The augmentation that everything gets."""

    @property
    def crop(self) -> float: ...
    @property
    def flip(self) -> bool: ...


def baseline(images: Tensor, config: Baseline, generator: Generator) -> Tensor:
    """Random crop of the zero-padded image and random flip, per image; uint8 in and out."""
    count, _, height, width = images.shape
    device = images.device
    if config.flip:
        flipped = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
        images = torch.where(flipped, images.flip(3), images)
    pad_y, pad_x = round(config.crop * height), round(config.crop * width)
    if pad_y == 0 and pad_x == 0:
        return images
    padded = torch.nn.functional.pad(images, (pad_x, pad_x, pad_y, pad_y))
    top = torch.randint(2 * pad_y + 1, (count, 1, 1), generator=generator, device=device)
    left = torch.randint(2 * pad_x + 1, (count, 1, 1), generator=generator, device=device)
    rows = top + torch.arange(height, device=device).view(1, -1, 1)
    columns = left + torch.arange(width, device=device).view(1, 1, -1)
    index = (rows * (width + 2 * pad_x) + columns).flatten(1)
    cropped = padded.flatten(2).gather(2, index.unsqueeze(1).expand(-1, images.shape[1], -1))
    return cropped.view_as(images)
