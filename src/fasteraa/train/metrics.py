"""How good a network is on images that it was not trained on: errors, and a loss that shows more than they do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_TEMPERATURES = tuple(2 ** (quarter / 4) for quarter in range(-8, 17))

LARGEST = 1e9  # loss, or seconds, that counts as measured: what is larger came of numbers that were lost


class Measured(NamedTuple):
    """Of images that were not trained on."""

    error: float  # %, of the first guess
    error_top5: float  # of the first five
    loss: float  # cross-entropy, whatever temperature makes it the lowest
    balanced_error: float = math.nan  # mean over the classes, each of which counts the same
    balanced_loss: float = math.nan


def measured(batches: Iterable[tuple[Tensor, Tensor]]) -> Measured:
    """Of logits and labels, batch by batch: fifty thousand images of a thousand classes would not fit beside others.

    The loss separates two policies with less than half of the images that errors need. A policy makes networks more
    or less sure of everything, which says nothing about which predicts better: so each has the temperature that suits
    it. It is infinite where logits are no numbers.
    """
    count, sums_of_batches, by_class = 0, [], []
    for logits, labels in batches:
        hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        losses = [F.cross_entropy(logits / temperature, labels, reduction="sum") for temperature in _TEMPERATURES]
        sums_of_batches.append(torch.stack([hits[:, 0].sum(), hits.sum(), *losses]))
        by_class.append(_by_class(logits, labels, hits[:, 0]))
        count += len(labels)
    right, right5, *sums = torch.stack(sums_of_batches).cpu().double().sum(0).tolist()  # the only wait for the device
    loss = min(math.inf if math.isnan(total) else total for total in sums) / count
    error, error5 = 100 * (count - right) / count, 100 * (count - right5) / count
    return Measured(error, error5, loss, *_balanced(torch.stack(by_class).sum(0).cpu()))


def _by_class(logits: Tensor, labels: Tensor, right: Tensor) -> Tensor:
    """(classes, 2 + temperatures): images, right predictions and summed losses."""
    losses = [F.cross_entropy(logits / each, labels, reduction="none") for each in _TEMPERATURES]
    columns = torch.stack([torch.ones_like(losses[0]), right.to(losses[0].dtype), *losses], dim=1).double()
    return F.one_hot(labels, logits.shape[1]).T.double() @ columns


def _balanced(sums: Tensor) -> tuple[float, float]:
    """Error in % and loss, every class that has images counted the same."""
    means = sums[sums[:, 0] > 0]
    means = (means[:, 1:] / means[:, :1]).mean(0)
    losses = [math.inf if math.isnan(each) else each for each in means[1:].tolist()]
    return 100 * (1 - float(means[0])), min(losses)


def effective_images(labels: Tensor) -> int:
    """So many images of even classes tell as much about a mean over the classes."""
    counts = labels.bincount()
    counts = counts[counts > 0].double()
    return round(len(counts) ** 2 / float((1 / counts).sum()))
