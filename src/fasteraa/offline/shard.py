"""`apply_shard`: data in, files out. What one task writes depends on its job and its number, and on nothing else."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fasteraa.data.decode import fit, resampling, upright, why
from fasteraa.data.masks import IGNORED, matching_mask
from fasteraa.data.source import Broken, Listing
from fasteraa.errors import DataError
from fasteraa.offline.job import ApplyJob, ShardTask, chance, images_of, key_of
from fasteraa.offline.writers import Sample, encode, open_writer, part_of
from fasteraa.ops.kernels import works_on
from fasteraa.policy.apply import apply_draw, apply_masks
from fasteraa.policy.draw import Draw, plan_of
from fasteraa.policy.partners import read_partners
from fasteraa.runtime.files import replacing, sealed

_BATCH_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}  # of decoded images that are augmented at once
_NEIGHBOURS = 16  # images that are tried in the place of a partner that cannot be read


class Decoded(NamedTuple):
    """One image of the source."""

    key: str
    label: int
    suffix: str
    pixels: NDArray[np.uint8]  # (H, W, 3)
    mask: NDArray[np.uint8] | None  # (H, W)


def apply_shard(task: ShardTask) -> None:
    """Write one shard and then its record. A process or a cluster's node may do it, once or twice: the same bytes."""
    job, listing = task.job, images_of(task.job)
    broken: list[Broken] = []
    augment, samples = Augment(job, listing), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd files; what matters is reported as broken
        with open_writer(task, listing.classes) as writer:
            images = _decoded(job, listing, task.places(len(listing)).tolist(), broken)
            for batch in _batches(images, job.copies, _BATCH_BYTES[torch.device(job.device).type]):
                for sample in augment(batch):
                    writer.write(sample)
                    samples += 1
    left_out = [[each.path, each.reason] for each in broken]
    record = sealed({"samples": samples, "broken": left_out, "files": writer.digests})
    with replacing(task.record, partial=part_of(task.record)) as partial:
        partial.write_text(json.dumps(record) + "\n", encoding="utf-8")


# --- reading ---------------------------------------------------------------------------------------------------------


def _decoded(job: ApplyJob, listing: Listing, places: Iterable[int], broken: list[Broken]) -> Iterator[Decoded]:
    for place in places:
        where = listing.where(place)
        try:
            suffix, pixels, mask = _read(job, listing, place)
        except (DataError, MemoryError):
            raise
        except Exception as error:  # Pillow's parsers raise almost anything on damaged bytes
            broken.append(Broken(where, why(error)))
            continue
        yield Decoded(key_of(where, place), int(listing.labels[place]), suffix, pixels, mask)


def _read(job: ApplyJob, listing: Listing, place: int) -> tuple[str, NDArray[np.uint8], NDArray[np.uint8] | None]:
    """How it will be encoded, its pixels, and its mask."""
    if listing.pair is None:
        image, value = (listing.pixels or listing.read)(place), None
    else:
        image, value = listing.pair(place)
    if isinstance(image, np.ndarray):
        if job.size in (None, image.shape[:2]):
            return "jpg" if job.encoding == "jpg" else "png", image, None
        image = Image.fromarray(image)
    suffix = job.encoding if job.encoding != "auto" else "jpg" if image.format in ("JPEG", "MPO") else "png"
    if job.size is not None:
        image.draft("RGB", (2 * max(job.size), 2 * max(job.size)))  # as `load` does
    whole = upright(image, job.look)
    mask = None if value is None else matching_mask((whole.height, whole.width), value, job.look)
    if job.size is not None:
        whole = fit(whole, job.size, resampling(job.look))
        if mask is not None:
            mask = np.asarray(fit(Image.fromarray(mask), job.size, Image.Resampling.NEAREST))
    return suffix, np.asarray(whole), mask


def _batches(images: Iterable[Decoded], copies: int, most: int) -> Iterator[list[tuple[Decoded, int]]]:
    """Copies of images in a row that have one size, up to so many bytes: however many images, memory is bounded."""
    batch: list[tuple[Decoded, int]] = []
    for image in images:
        for copy in range(copies):
            full = (len(batch) + 1) * image.pixels.nbytes > most
            if batch and (full or batch[0][0].pixels.shape != image.pixels.shape):
                yield batch
                batch = []
            batch.append((image, copy))
    if batch:
        yield batch


# --- augmenting ------------------------------------------------------------------------------------------------------


class Augment:
    """The policy on a batch of images, by the chance of each."""

    def __init__(self, job: ApplyJob, listing: Listing):
        self.seed, self.device, self.policy = job.seed, torch.device(job.device), job.parsed_policy
        self.plan, self.partners = plan_of(self.policy), Partners(job, listing)

    def __call__(self, batch: Sequence[tuple[Decoded, int]]) -> Iterator[Sample]:
        pixels = torch.from_numpy(np.stack([image.pixels for image, _ in batch])).to(self.device)
        images = pixels.permute(0, 3, 1, 2).contiguous()
        draw, pool = self._draw(batch), None
        if self.plan.pairs:
            pool, draw = read_partners(self.plan, draw, images, len(self.partners), self.partners.read)
        images = apply_draw(self.policy, self.plan, images, draw, pool)
        levels = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        numbers = [image.mask for image, _ in batch if image.mask is not None]
        masks = [encode(mask, "png") for mask in self._moved(numbers, draw)] if numbers else [None] * len(batch)
        for (image, copy), colours, mask in zip(batch, levels, masks, strict=True):
            yield Sample(f"{image.key}-{copy}", image.label, image.suffix, encode(colours, image.suffix), mask)

    def _draw(self, batch: Sequence[tuple[Decoded, int]]) -> Draw:
        numbers = [chance(self.seed, image.key, copy, self.plan.width) for image, copy in batch]
        return self.plan.decode(torch.from_numpy(np.stack(numbers)).to(self.device), works_on(self.device))

    def _moved(self, masks: Sequence[NDArray[np.uint8]], draw: Draw) -> NDArray[np.uint8]:
        moved = apply_masks(self.policy, self.plan, torch.from_numpy(np.stack(masks)), draw, IGNORED)
        numbers: NDArray[np.uint8] = moved.numpy()
        return numbers


class Partners:
    """Any image of the source, for sample_pairing."""

    def __init__(self, job: ApplyJob, listing: Listing):
        self.job, self.listing = job, listing

    def __len__(self) -> int:
        return len(self.listing)

    def read(self, place: int) -> Image.Image:
        for shift in range(_NEIGHBOURS):
            try:
                return Image.fromarray(_read(self.job, self.listing, (place + shift) % len(self))[1])
            except (DataError, MemoryError):
                raise
            except Exception:  # broken: it is counted where it stands itself
                continue
        raise DataError(f"{_NEIGHBOURS} images in a row cannot be read, from {self.listing.where(place)} on")
