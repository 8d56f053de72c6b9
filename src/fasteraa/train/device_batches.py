"""Batches for training. Images that fit live on the device and are augmented there, many batches at a time.

On a GPU, where images are few, these are the batches of many epochs.

The order is Fast AutoAugment's: policy, random crop, flip, then cutout in the average colour (it cut zeros out of the
normalised image, which is the same but for the rounding of the mean to a whole level).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fasteraa.data import ImageSet
from fasteraa.data.batches import Normalise, baseline
from fasteraa.nets import preprocessing
from fasteraa.nets.timm import PREFIX
from fasteraa.policy.apply import augment
from fasteraa.policy.policy import Policy
from fasteraa.runtime.device import image_device
from fasteraa.train.recipe import TrainRecipe

Batch = tuple[Tensor, Tensor]  # uint8 images (b, 3, H, W) and labels (b,), or shares of classes, on the device
_AT_ONCE = {"cuda": 2**27, "cpu": 2**22}  # values augmented in one piece: a few images of each operation cost as
# much as many, but what a CPU works on should stay in its caches
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop, as everybody trains on ImageNet
_TRIES = 10  # of a box that may not fit into the image


class Feed(Protocol):
    """Where a training run gets its batches."""

    steps: int  # of an epoch
    normalise: Normalise

    def epoch(self, number: int) -> Iterator[Batch]:
        """Its batches, augmented."""


class DeviceFeed:
    """All images on the device; every epoch draws its own order, policies, crops and holes from its own seed."""

    def __init__(self, data: ImageSet, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device):
        self.images = data.images.to(image_device(data.images, device))
        self.labels, self.device = data.labels.to(device), device
        self.policy, self.recipe, self.seed = policy, recipe, seed
        self.batch = min(recipe.batch_size, len(data))
        self.steps = len(data) // self.batch
        self.classes = len(data.classes)
        self.normalise = normalise_for(recipe, self.images).to(device)
        self.mean = mean_colour(self.normalise)
        self.idle = is_idle(policy)
        pieces = max(_AT_ONCE.get(device.type, 0) // data.images[0].numel() // self.batch, 1)
        self.piece = self.batch * min(pieces, self.steps)
        self.epochs_at_once = 1 if device.type == "cpu" or recipe.mixup or recipe.cutmix else pieces // self.steps
        self._drawn: tuple[int, Tensor, Tensor] | None = None  # first epoch, images and labels of some

    def epoch(self, number: int) -> Iterator[Batch]:
        if self.epochs_at_once > 1:
            yield from self._one_of_many(number)
            return
        generator = Generator(self.device).manual_seed(epoch_seed(self.seed, number))
        order = torch.randperm(len(self.images), generator=generator, device=self.device)[: self.steps * self.batch]
        now = self.with_policy(self.policy.at_epoch(number, self.recipe.epochs)) if self.policy.scheduled else self
        for index in torch.split(order, self.piece):
            images = now.augmented(self.images[index.to(self.images.device)].to(self.device), generator)
            labels = self.labels[index]
            for batch in zip(torch.split(images, self.batch), torch.split(labels, self.batch), strict=True):
                yield mixed(*batch, self.recipe, self.classes, generator)

    def _one_of_many(self, number: int) -> Iterator[Batch]:
        """On a GPU, epochs of few images are augmented many at once: launching the operations takes most of the time.

        The seed is that of the first of them, so that a run that is resumed draws the same.
        """
        first, count = number - number % self.epochs_at_once, self.steps * self.batch
        if self._drawn is None or self._drawn[0] != first:
            generator = Generator(self.device).manual_seed(epoch_seed(self.seed, first))
            draws = torch.rand(self.epochs_at_once, len(self.images), generator=generator, device=self.device)
            index = draws.argsort(1)[:, :count].flatten()
            begun, runs = 0, []
            for feed, epochs in self._policies_from(first):
                some = index[begun : begun + epochs * count]
                runs.append(feed.augmented(self.images[some.to(self.images.device)].to(self.device), generator))
                begun += epochs * count
            self._drawn = (first, torch.cat(runs) if len(runs) > 1 else runs[0], self.labels[index])
        _, images, labels = self._drawn
        mine = slice((number - first) * count, (number - first + 1) * count)
        yield from zip(torch.split(images[mine], self.batch), torch.split(labels[mine], self.batch), strict=True)

    def _policies_from(self, first: int) -> list[tuple[DeviceFeed, int]]:
        """What augments the epochs that are augmented at once, and how many of them: one, unless it has a schedule."""
        if not self.policy.scheduled:
            return [(self, self.epochs_at_once)]
        epochs = range(first, first + self.epochs_at_once)
        policies = [self.policy.at_epoch(number, self.recipe.epochs) for number in epochs]
        return [(self.with_policy(policy), len(list(alike))) for policy, alike in groupby(policies)]

    def with_policy(self, policy: Policy) -> DeviceFeed:
        """The same images under another policy."""
        feed = copy(self)
        feed.policy, feed.idle, feed._drawn = policy, is_idle(policy), None
        return feed

    def augmented(self, images: Tensor, generator: Generator) -> Tensor:
        if self.recipe.order == "crop-first":
            images = self._policy(finished(self._cropped(images, generator), self.recipe, None, generator), generator)
            return cut(images, self.recipe.cutout, self.mean, generator) if self.recipe.cutout else images
        return finished(self._cropped(self._policy(images, generator), generator), self.recipe, self.mean, generator)

    def _policy(self, images: Tensor, generator: Generator) -> Tensor:
        if self.idle:
            return images
        pool = centre(self.images, images.shape[-1]) if images.shape[-2:] != self.images.shape[-2:] else self.images
        return augment(self.policy, images, generator, pool=pool, chunk=self.recipe.chunk_size)

    def _cropped(self, images: Tensor, generator: Generator) -> Tensor:
        if self.recipe.crop_kind != "resized":
            return centre(images, self.recipe.input_size)
        return resized_crop(images, generator, self.recipe.input_size)


def normalise_for(recipe: TrainRecipe, images: Tensor) -> Normalise:
    """By the images, or, for weights of timm's networks, as these expect it."""
    if recipe.fine_tunes and recipe.network.startswith(PREFIX):
        expected = preprocessing(recipe.network)
        return Normalise(*(torch.tensor(each).view(1, 3, 1, 1) for each in (expected.mean, expected.std)))
    return Normalise.of(images)


def centre(images: Tensor, side: int) -> Tensor:
    """The square in the middle; all of it for 0."""
    height, width = images.shape[-2:]
    if not side or side >= min(height, width):
        return images
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]


def mixed(images: Tensor, labels: Tensor, recipe: TrainRecipe, classes: int, generator: Generator) -> Batch:
    """mixup or CutMix with the batch in another order; labels are shares of classes then."""
    if not recipe.mixup and not recipe.cutmix:
        return images, labels
    count, device = len(images), images.device
    paste = recipe.cutmix > 0
    if recipe.mixup and recipe.cutmix:
        paste = bool(torch.rand((), generator=generator, device=device) < 0.5)
    alpha = recipe.cutmix if paste else recipe.mixup
    share = _beta(alpha, generator, device)
    order = torch.randperm(count, generator=generator, device=device)
    if paste:
        images, share = _pasted(images, images[order], share, generator)
    else:
        images = (share * images.float() + (1 - share) * images[order].float()).round_().to(torch.uint8)
    whole = F.one_hot(labels, classes).float()
    return images, share * whole + (1 - share) * whole[order]


def _beta(alpha: float, generator: Generator, device: torch.device) -> float:
    """A draw of Beta(alpha, alpha), by Johnk's way, which rejects ever more above 1: there by two draws of Gamma."""
    if alpha > 1:
        shape = torch.full((2,), alpha, dtype=torch.float64, device=device)
        x, y = torch._standard_gamma(shape, generator=generator).tolist()
        return float(x / (x + y))
    while True:
        u, v = torch.rand(2, generator=generator, device=device).double().tolist()
        x, y = u ** (1 / alpha), v ** (1 / alpha)
        if 0 < x + y <= 1:
            return float(x / (x + y))


def _pasted(images: Tensor, others: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
    """A box of the others in the place of the same box, and the share that is left."""
    height, width = images.shape[-2:]
    tall, wide = round(height * math.sqrt(1 - share)), round(width * math.sqrt(1 - share))
    top, left = torch.rand(2, generator=generator, device=images.device).double().tolist()
    first, begin = int(top * (height - tall + 1)), int(left * (width - wide + 1))
    images = images.clone()
    images[..., first : first + tall, begin : begin + wide] = others[..., first : first + tall, begin : begin + wide]
    return images, 1 - tall * wide / (height * width)


def epoch_seed(seed: int, number: int) -> int:
    return seed * 1_000_003 + number


def is_idle(policy: Policy) -> bool:
    return not any(stage for sub in policy.sub_policies for stage in sub.stages)


def mean_colour(normalise: Normalise) -> Tensor:
    """As whole levels, uint8 (1, 3, 1, 1)."""
    return (normalise.mean * 255).round().to(torch.uint8)


def finished(images: Tensor, recipe: TrainRecipe, colour: Tensor | None, generator: Generator) -> Tensor:
    """What every image gets: crop of the padded image (unless it was cropped), flip, and cutout in the `colour`."""
    images = baseline(images, _Uncropped(recipe) if recipe.crop_kind == "resized" else recipe, generator)
    return images if colour is None or not recipe.cutout else cut(images, recipe.cutout, colour, generator)


class _Uncropped:
    """The baseline of a recipe, less its padded crop."""

    crop = 0.0

    def __init__(self, recipe: TrainRecipe):
        self.flip = recipe.flip


def cut(images: Tensor, side: int, colour: Tensor, generator: Generator) -> Tensor:
    """A square with its centre anywhere in the image, so that parts of it may lie outside."""
    count, _, height, width = images.shape
    inside = []
    for length in (height, width):
        centre = torch.randint(length, (count, 1), generator=generator, device=images.device)
        place = torch.arange(length, device=images.device)
        inside.append((place >= centre - side // 2) & (place < centre + (side + 1) // 2))
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], colour, images)


def resized_crop(images: Tensor, generator: Generator, side: int = 0) -> Tensor:
    """A box of 8 to 100% of each image, of shape 3:4 to 4:3, scaled (bilinear) to the side, or to the image's size."""
    count, _, height, width = images.shape
    box = draw_boxes(count, height, width, generator, images.device)
    top, left, tall, wide = box.unbind(1)
    zero = torch.zeros_like(top)
    theta = torch.stack(
        [
            torch.stack([wide / width, zero, (2 * left + wide) / width - 1], 1),
            torch.stack([zero, tall / height, (2 * top + tall) / height - 1], 1),
        ],
        1,
    )
    shape = [count, images.shape[1], side or height, side or width]
    grid = F.affine_grid(theta, shape, align_corners=False)
    # a box is hardly larger than what it is scaled to, so no antialiasing is needed
    out = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return out.round_().clamp_(0, 255).to(torch.uint8)


def draw_boxes(count: int, height: int, width: int, generator: Generator, device: torch.device) -> Tensor:
    """float (count, 4): top, left, height, width in whole pixels. The first of ten draws that fits, or all of it."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, _TRIES, generator=generator, device=device)

    area = height * width * uniform(*AREAS)
    ratio = uniform(math.log(RATIOS[0]), math.log(RATIOS[1])).exp()
    wide, tall = (area * ratio).sqrt().round().clamp(min=1), (area / ratio).sqrt().round().clamp(min=1)
    fits = (wide <= width) & (tall <= height)
    first = fits.byte().argmax(1, keepdim=True)
    any_fits = fits.any(1)
    wide = torch.where(any_fits, wide.gather(1, first)[:, 0], float(width))
    tall = torch.where(any_fits, tall.gather(1, first)[:, 0], float(height))
    place = torch.rand(2, count, generator=generator, device=device)
    top, left = (place[0] * (height - tall + 1)).floor(), (place[1] * (width - wide + 1)).floor()
    return torch.stack([top, left, tall, wide], 1)
