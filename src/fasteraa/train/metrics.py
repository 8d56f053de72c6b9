"""How good a network is on images that it was not trained on: errors, and a loss that tells more than they do."""

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


def measured(batches: Iterable[tuple[Tensor, Tensor]]) -> Measured:
    """Of logits and labels, batch by batch: fifty thousand images of a thousand classes would not fit beside others.

    The loss tells two policies from each other with less than half of the images that errors need. A policy makes
    networks more or less sure of everything, which says nothing about who guesses better: so each has the temperature
    that suits it. It is infinite where logits are no numbers.
    """
    count, found = 0, []
    for logits, labels in batches:
        hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        losses = [F.cross_entropy(logits / temperature, labels, reduction="sum") for temperature in _TEMPERATURES]
        found.append(torch.stack([hits[:, 0].sum(), hits.sum(), *losses]))
        count += len(labels)
    right, right5, *sums = torch.stack(found).cpu().double().sum(0).tolist()  # the only wait for the device
    loss = min(math.inf if math.isnan(total) else total for total in sums) / count
    return Measured(100 * (count - right) / count, 100 * (count - right5) / count, loss)
