"""A trained network as a function of images: which class does it see?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fasteraa.data.lazy_set import Images, LazyImageSet
from fasteraa.errors import RunError
from fasteraa.runtime.checkpoint import load_checkpoint, misfit
from fasteraa.runtime.seeds import seeded
from fasteraa.train.device_batches import centre, normalise_for
from fasteraa.train.job import TrainJob
from fasteraa.train.training import make_network
from fasteraa.train.worker_batches import MEASURED

# Values that a network sees at once. A CPU should keep them in its caches: 1,665 images of 28x28 take `small` 66 ms in
# parts of 128, 220 ms in one piece (two cores).
_AT_ONCE = {"cuda": 2**25, "cpu": 2**18}
Guess = Callable[[Tensor], Tensor]  # uint8 images (b, 3, H, W) on the device -> class numbers (b,)
Logits = Callable[[Tensor], Tensor]  # the same -> (b, classes)


def load_guess(file: Path, job: TrainJob, device: torch.device) -> Guess:
    """The classes that the network of a finished job sees."""
    logits = load_logits(file, job, device)
    return lambda images: logits(images).argmax(1)


def load_logits(file: Path, job: TrainJob, device: torch.device) -> Logits:
    """The network of a finished job, from the file of its weights (`RunCache.network`)."""
    recipe, train = job.recipe, job.split.train
    with seeded(0):  # weights that are replaced at once must not cost the caller's generator any draws
        network = make_network(recipe, len(train.classes), min(train.size))
    weights = load_checkpoint(file, "cpu", {}, sealed=False)  # earlier versions wrote no digest
    if weights is None:
        raise RunError(f"the network {str(file)!r} is missing: remove the record of its training to train it again")
    try:
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise misfit(file, error) from error
    network = network.to(device).eval()
    normalise = normalise_for(recipe, _images(train)).to(device)

    def some(images: Tensor) -> Tensor:
        logits: Tensor = network(normalise(centre(images, recipe.input_size).float() / 255))
        return logits

    @torch.no_grad()
    def logits(images: Tensor) -> Tensor:
        at_once = max(1, _AT_ONCE[device.type] // max(images[:1].numel(), 1))
        return torch.cat([some(each) for each in torch.split(images, at_once)])

    return logits


def _images(data: Images) -> Tensor:
    """What a training takes mean and spread from."""
    return data.sample(MEASURED) if isinstance(data, LazyImageSet) else data.images
