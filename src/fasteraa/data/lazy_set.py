"""Images that stay in their files: for sets that no memory holds, such as ImageNet."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fasteraa.data import ImageSet, stratify
from fasteraa.data.decode import Look, Window, fit, pixels, resampling, upright, why
from fasteraa.data.labels import Labels
from fasteraa.data.materialize import LoadOptions, allowed_broken, check_budget, common_range, gather
from fasteraa.data.source import Listing
from fasteraa.errors import DataError

LOOK = Look()
BROKEN_BUDGET = 0.01  # the share of unreadable images that is passed over, as in `load`
_NAMES = 10_000  # hashed at once
_HASHED = 64  # images whose pixels are part of the fingerprint


@dataclass(frozen=True, eq=False)
class LazyImageSet:
    """What an ImageSet says about itself, and images that are read one at a time."""

    listing: Listing
    index: Labels  # places in the listing
    name: str
    size: tuple[int, int]
    fingerprint: str  # sha256 over classes, labels, names of images, and the pixels of a few of them
    look: Look = LOOK

    @classmethod
    def of(
        cls,
        listing: Listing,
        name: str,
        size: tuple[int, int],
        index: Labels | None = None,
        look: Look = LOOK,
    ) -> LazyImageSet:
        """Levels of more than 8 bits are scaled by the range of a few images, unless the look has a window."""
        check_budget(listing.damage, allowed_broken(len(listing), BROKEN_BUDGET), len(listing), name)
        if look.window is None:
            look = replace(look, window=common_range(listing))
        images = cls(listing, np.arange(len(listing)) if index is None else index, name, size, "", look)
        return replace(images, fingerprint=_fingerprint(images))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.listing.classes

    @property
    def window(self) -> Window | None:
        return self.look.window

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.listing.labels[self.index])

    def where(self, place: int) -> str:
        return self.listing.where(int(self.index[place]))

    def read(self, place: int) -> Image.Image:
        """The whole image, upright and RGB. May raise anything that Pillow raises."""
        return upright(self.listing.read(int(self.index[place])), self.look)

    def fitted(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        """Scaled to cover the size, by the set's own filter, and cropped to the centre."""
        return fit(image, size, resampling(self.look))

    def pixels(self, place: int) -> Tensor:
        """uint8 (3, H, W) at the set's size: scaled to cover it, cropped to the centre."""
        array = pixels(self.listing.read(int(self.index[place])), self.size, self.look)
        return torch.from_numpy(np.ascontiguousarray(array))

    def sample(self, count: int) -> Tensor:
        """uint8 (n, 3, H, W): up to `count` readable images, evenly spread."""
        images = []
        for place in np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(int)).tolist():
            try:
                images.append(self.pixels(place))
            except (DataError, MemoryError):
                raise
            except Exception:  # broken: it is counted when it is in a batch
                continue
        if not images:
            raise DataError(f"no image of {self.name} could be read, of {min(count, len(self))} that were tried")
        return torch.stack(images)

    def subset(self, count: int, seed: int) -> LazyImageSet:
        return self._take(stratify.draw(self.labels.numpy(), len(self.classes), count, seed))

    def decoded(self) -> ImageSet:
        """All of it in memory."""
        rows = Listing(
            self.classes,
            self.listing.labels[self.index],
            lambda i: self.listing.read(int(self.index[i])),
            self.where,
            threads=self.listing.threads,
            declared=True,
        )
        return gather(rows, self.name, LoadOptions(self.size, look=self.look))

    def check_broken(self, broken: set[int]) -> None:
        """More unreadable images than the budget allows are an error that names some of them."""
        allowed = allowed_broken(len(self), BROKEN_BUDGET)
        if len(broken) > allowed:
            shown = "; ".join(f"{self.where(place)} ({self._why(place)})" for place in sorted(broken)[:5])
            raise DataError(
                f"{len(broken)} of {len(self)} images of {self.name} are broken, the budget allows {allowed}: {shown}"
            )

    def _why(self, place: int) -> str:
        try:
            self.read(place)
        except Exception as error:
            return why(error)
        return "it can be read now"

    def _take(self, index: Labels) -> LazyImageSet:
        return LazyImageSet.of(self.listing, self.name, self.size, self.index[index], self.look)


Images = ImageSet | LazyImageSet


def _fingerprint(data: LazyImageSet) -> str:
    digest = hashlib.sha256(json.dumps([len(data), data.size, data.classes]).encode())
    digest.update(data.labels.numpy().astype("<i8").tobytes())
    for first in range(0, len(data), _NAMES):
        # folder and file, not the way there: a set that was moved is the same
        names = ("/".join(data.where(i).rsplit(os.sep, 2)[-2:]) for i in range(first, min(first + _NAMES, len(data))))
        digest.update("".join(f"{name}\n" for name in names).encode("utf-8", "surrogatepass"))
    digest.update(data.sample(_HASHED).numpy().data)
    return digest.hexdigest()
