"""Batches from images that stay in their files: worker processes decode and apply the policy, the device does the rest.

Every image of an epoch has a seed of its own, so the batches do not depend on the number of workers.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2

from fasteraa.data import ImageSet
from fasteraa.data.lazy_set import Images, LazyImageSet
from fasteraa.errors import ConfigError, DataError
from fasteraa.images import to_tensor
from fasteraa.policy.policy import Policy
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.train.device_batches import (
    AREAS,
    RATIOS,
    Batch,
    DeviceFeed,
    Feed,
    centre,
    epoch_seed,
    finished,
    is_idle,
    mean_colour,
    mixed,
    normalise_for,
)
from fasteraa.train.recipe import TrainRecipe

MEASURED = 1_000  # images that mean and spread are taken from
_NEIGHBOURS = 16  # images that are tried in the place of a broken one
_LARGER = 256 / 224  # a test image is scaled to this before its centre is cut out, where training crops are resized
Item = tuple[
    Tensor, int, int
]  # image, label (-1: nothing readable), place of a broken image that it stands in for or -1
Key = tuple[int, int]  # place, seed


def make_feed(
    data: Images, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device, ranks: Ranks = ALONE
) -> Feed:
    """Whole batches on every rank; images that are in files are decoded by one rank each."""
    if isinstance(data, ImageSet):
        return DeviceFeed(data, policy, recipe, seed, device)
    if recipe.chunk_size > 1:
        raise ConfigError(
            f"chunk_size must be 1 where images stay in their files (each is augmented alone), got {recipe.chunk_size}"
        )
    return LoaderFeed(data, policy, recipe, seed, device, ranks=ranks)


class LoaderFeed:
    """Images are read when a batch needs them; order and draws depend on seed and epoch alone."""

    def __init__(
        self,
        data: LazyImageSet,
        policy: Policy,
        recipe: TrainRecipe,
        seed: int,
        device: torch.device,
        workers: int | None = None,
        ranks: Ranks = ALONE,
    ):
        self.data, self.recipe, self.seed, self.device, self.ranks = data, recipe, seed, device, ranks
        self.batch = min(recipe.batch_size, len(data))
        self.steps = len(data) // self.batch
        self.classes = len(data.classes)
        self.normalise = normalise_for(recipe, data.sample(MEASURED)).to(device)
        self.mean = mean_colour(self.normalise)
        own = ranks.rows(self.batch)
        self.order = _Order(len(data), self.batch, own)
        self.broken: set[int] = set()
        self.images = _Training(data, policy, recipe)
        self.loader = _loader(self.images, own.stop - own.start, device, workers, sampler=self.order, drop_last=True)

    def epoch(self, number: int) -> Iterator[Batch]:
        generator = Generator(self.device).manual_seed(epoch_seed(self.seed, number))
        self.order.seed = epoch_seed(self.seed, number)
        self.images.set_epoch(number)
        for images, labels, stands_in in _batches(self.loader):
            if self.ranks.joined:
                images, labels, stands_in = _whole((images, labels, stands_in), self.batch, self.device, self.ranks)
            self._note(labels, stands_in)
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            recipe = replace(self.recipe, flip=False, crop=0.0) if self.images.crop_first else self.recipe
            yield mixed(finished(images, recipe, self.mean, generator), labels, recipe, self.classes, generator)

    def _note(self, labels: Tensor, stands_in: Tensor) -> None:
        self.broken.update(stands_in[stands_in >= 0].tolist())
        self.data.check_broken(self.broken)
        if bool((labels < 0).any()):
            place = int(stands_in[labels < 0][0])
            raise DataError(f"{_NEIGHBOURS} images in a row cannot be read, from {self.data.where(place)} on")


def _whole(parts: Sequence[Tensor], count: int, device: torch.device, ranks: Ranks) -> list[Tensor]:
    """A batch of which each rank has decoded a part: sent as bytes, which costs less than to decode them again."""
    return [ranks.whole(part.to(device, non_blocking=True), count) for part in parts]


def plain_batches(
    data: Images, recipe: TrainRecipe, batch: int, device: torch.device, ranks: Ranks = ALONE
) -> Iterator[Batch]:
    """Held-out images as they are, each once, in order."""
    if isinstance(data, ImageSet):
        for images, labels in zip(torch.split(data.images, batch), torch.split(data.labels, batch), strict=True):
            yield centre(images.to(device), recipe.input_size), labels.to(device)
        return
    broken: set[int] = set()
    places = [range(first, min(first + batch, len(data))) for first in range(0, len(data), batch)]
    own = [list(each[ranks.part(len(each))]) for each in places]
    loaded = _batches(_loader(_Measuring(data, recipe), 1, device, None, batch_sampler=own))
    for (images, labels, place), each in zip(loaded, places, strict=True):
        if ranks.joined:
            images, labels, place = _whole((images, labels, place), len(each), device, ranks)
        broken.update(place[labels < 0].tolist())
        data.check_broken(broken)
        readable = labels >= 0
        yield images[readable].to(device), labels[readable].to(device)


class _Training(Dataset[Item]):
    """Decode, policy, and the resized crop; what is the same for a whole batch is left to the device."""

    def __init__(self, data: LazyImageSet, policy: Policy, recipe: TrainRecipe):
        self.data, self.labels, self.resized = data, data.labels.tolist(), recipe.crop_kind == "resized"
        self.crop_first, side = recipe.order == "crop-first", recipe.input_size
        partners = _Partners(data, self.resized, side if self.crop_first else 0)
        self.policy = None if is_idle(policy) else policy.transform(pool=partners, epochs=recipe.epochs)
        height, width = self.size = (side, side) if side else data.size
        self.centre = v2.CenterCrop(side) if side else v2.Identity()
        self.crop: v2.Transform = v2.RandomCrop(
            (height, width), (round(recipe.crop * width), round(recipe.crop * height))
        )
        if self.resized:
            filter_ = v2.InterpolationMode(data.look.interpolation)
            self.crop = v2.RandomResizedCrop(self.size, AREAS, RATIOS, filter_)
        self.flip = v2.RandomHorizontalFlip() if recipe.flip else v2.Identity()

    def set_epoch(self, number: int) -> None:
        """For a policy with a schedule; workers follow."""
        if self.policy is not None:
            self.policy.set_epoch(number)

    def __getitem__(self, key: Key) -> Item:
        place, seed = key
        with drawing_from(seed):
            for shift in range(_NEIGHBOURS):
                index = (place + shift) % len(self.labels)
                image = _tried(self.data, index)
                if image is not None:
                    return self._augmented(image), self.labels[index], place if shift else -1
        return torch.zeros(3, *self.size, dtype=torch.uint8), -1, place

    def _augmented(self, image: Any) -> Tensor:
        """Of what comes after the policy, the padded crop and the flip are left to the device."""
        if not self.resized:
            image = self.data.fitted(image, self.data.size)
        if self.crop_first:
            image = self.flip(self.crop(image if self.resized else self.centre(image)))
            return to_tensor(image if self.policy is None else self.policy(image))
        if self.policy is not None:
            image = self.policy(image)
        return to_tensor(self.crop(image) if self.resized else self.centre(image))


class _Partners:
    """Any image of the set, for sample_pairing."""

    def __init__(self, data: LazyImageSet, whole: bool, side: int = 0):
        self.data, self.whole = data, whole
        self.centre = v2.CenterCrop(side) if side else v2.Identity()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> Any:
        for shift in range(_NEIGHBOURS):
            image = _tried(self.data, (place + shift) % len(self.data))
            if image is not None:
                return image if self.whole else self.centre(self.data.fitted(image, self.data.size))
        raise DataError(f"{_NEIGHBOURS} images in a row cannot be read, from {self.data.where(place)} on")


class _Measuring(Dataset[Item]):
    """Test images: their centre at the set's size; a margin is cut off where training crops are resized."""

    def __init__(self, data: LazyImageSet, recipe: TrainRecipe):
        self.data, self.labels = data, data.labels.tolist()
        self.scale = _LARGER if recipe.crop_kind == "resized" and not recipe.input_size else 1.0
        self.side = recipe.input_size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> Item:
        image = _tried(self.data, place)
        if image is None:
            blank = (self.side, self.side) if self.side else self.data.size
            return torch.zeros(3, *blank, dtype=torch.uint8), -1, place
        height, width = self.data.size
        larger = self.data.fitted(image, (round(self.scale * height), round(self.scale * width)))
        inner = [self.side or height, self.side or width]
        return to_tensor(v2.functional.center_crop(larger, inner)), self.labels[place], place


class _Order(Sampler[Key]):
    """A new order for every epoch, and a seed for every image of it; of each batch some rows."""

    def __init__(self, count: int, batch: int, rows: slice):
        self.count, self.batch, self.rows, self.seed = count, batch, rows, 0

    def __len__(self) -> int:
        return self.count // self.batch * len(range(self.batch)[self.rows])

    def __iter__(self) -> Iterator[Key]:
        generator = Generator().manual_seed(self.seed)
        places = torch.randperm(self.count, generator=generator).tolist()
        seeds = torch.randint(2**62, (self.count,), generator=generator).tolist()
        keys = list(zip(places, seeds, strict=True))
        for first in range(0, self.count // self.batch * self.batch, self.batch):
            yield from keys[first : first + self.batch][self.rows]


def _tried(data: LazyImageSet, place: int) -> Any:
    try:
        return data.read(place)
    except (DataError, MemoryError):
        raise
    except Exception:  # Pillow's parsers raise almost anything on damaged bytes
        return None


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """torch's generator of the CPU, from a seed, and as it was afterwards."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def worker_count() -> int:
    """Processes that read: the cores this process may use; none where processes cannot be forked."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return 0
    return core_count()


def _loader(
    images: Dataset[Item], batch: int, device: torch.device, workers: int | None, **settings: Any
) -> DataLoader[Any]:
    count = worker_count() if workers is None else workers
    # forked, because a listing of a million images is shared that way and need not be pickled
    forked = {"multiprocessing_context": "fork", "persistent_workers": True, "worker_init_fn": _begin} if count else {}
    settings |= {"pin_memory": device.type == "cuda", "generator": Generator()}  # its own: the caller's stays untouched
    return DataLoader(images, batch, num_workers=count, **forked, **settings)  # type: ignore[arg-type]


def _begin(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training's: it ends the epoch in good order


def _batches(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    with warnings.catch_warnings():
        # Python warns of forking with threads; the workers touch neither a lock nor a device of ours
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork.*", DeprecationWarning)
        batches = iter(loader)
    yield from batches
