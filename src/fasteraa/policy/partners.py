"""The partners of sample_pairing: those that were drawn are read, and no others; or the images that were seen last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor

from fasteraa.images import to_tensor
from fasteraa.policy.draw import Draw, Plan


def read_partners(
    plan: Plan, draw: Draw, images: Tensor, count: int, read: Callable[[int], Image.Image]
) -> tuple[Tensor | None, Draw]:
    """Of `count` partners those in the draw, as a pool of the images' shape, and the draw that belongs to it."""
    paired = draw.op == next(place for place, op in enumerate(plan.ops) if op.name == "sample_pairing")
    indices, place = torch.unique((draw.partner[paired] * count).long(), return_inverse=True)
    if not len(indices):
        return None, draw
    channels, height, width = images.shape[1:]
    members = (read(index).convert("L" if channels == 1 else "RGB") for index in indices.tolist())
    pool = torch.stack([to_tensor(member.resize((width, height))) for member in members])
    partner = draw.partner.clone()
    partner[paired] = ((place + 0.5) / len(indices)).to(partner)
    return pool.to(images.device), replace(draw, partner=partner)


KEPT = 64


class Seen:
    """The last images, oldest first. A copy of it, in a worker or from a pickle, begins empty."""

    def __init__(self) -> None:
        self._images: deque[Image.Image] = deque(maxlen=KEPT)

    def add(self, image: Image.Image) -> None:
        self._images.append(image.copy())  # its owner may draw on it

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Image.Image:
        return self._images[index]

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        return Seen, ()
