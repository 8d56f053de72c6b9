"""Originals and augmented images as pictures that a page can carry."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fasteraa.data import load
from fasteraa.data.named import NAMES
from fasteraa.data.resolve import SAMPLE
from fasteraa.errors import FasterAAError
from fasteraa.images import to_pillow
from fasteraa.policy.apply import apply_draw
from fasteraa.policy.describe import deed_words
from fasteraa.policy.draw import plan_of
from fasteraa.policy.policy import Policy
from fasteraa.report.preview import SheetRow, alternating, augmented, rows_of

COLUMNS, MOST_ROWS = 6, 20
GAP = 2  # pixels between tiles of a picture
_DRAWS = 40  # of each image
_VALUES = 2**26  # of all draws, at most
_SIDE = 96  # a larger image is shown smaller
_LOSSLESS = 40  # up to this side a PNG is small enough
_LOADED = 64  # partners come from more images than are shown


@dataclass(frozen=True)
class Strip:
    """A row of images."""

    title: str
    words: str
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Gallery:
    """One picture with a row of originals and a row for each draw, and what was done to each image of it."""

    uri: str
    width: int  # of a tile
    height: int
    columns: int
    draws: list[list[list[str]]]  # draw, column -> operations
    sub_policies: list[Strip]

    @property
    def sheet(self) -> tuple[int, int]:
        """Width and height of the picture."""
        rows = 1 + len(self.draws)
        return self.columns * (self.width + GAP) - GAP, rows * (self.height + GAP) - GAP

    def box(self, row: int, column: int) -> str:
        """The viewBox of a tile; row 0 are the originals."""
        return f"{column * (self.width + GAP)} {row * (self.height + GAP)} {self.width} {self.height}"


def images_of(
    name: str | None, source: str | None, size: tuple[int, int] | None, data_root: Path | None, seed: int
) -> Tensor | None:
    """Some images of the data that the run was searched on: a known name, or the source that was given."""
    chosen = source if source is not None else name if name in (SAMPLE, *NAMES) else None
    if chosen is None:
        return None
    try:
        data = load(chosen, size=size, data_root=data_root, seed=seed, at_most=_LOADED, broken_budget=1.0)
    except FasterAAError:
        if source is not None:
            raise
        return None  # nobody asked for it by name
    return data.images if data.masks is not None else data.images[alternating(data.labels)]


def gallery_of(images: Tensor, policy: Policy, seed: int = 0) -> Gallery:
    """The policy as training sees it, drawn often enough to leaf through; each sub-policy alone below."""
    shown = images[:COLUMNS]
    room = max(1, _VALUES // max(1, shown.numel()))
    count = max(1, min(_DRAWS, room))
    plan = plan_of(policy)
    batch = shown.repeat(count, 1, 1, 1)
    draw = plan.draw(len(batch), torch.Generator().manual_seed(seed))
    out = apply_draw(policy, plan, batch, draw, images if plan.pairs else None)
    words = [[deed_words(policy, deed) for deed in plan.deeds(draw, index)] for index in range(len(out))]
    sheet, size = _sheet(torch.cat([shown, out]), len(shown))
    columns = len(shown)
    rows = [words[first : first + columns] for first in range(0, len(words), columns)]
    return Gallery(_uri(sheet, size), size[0], size[1], columns, rows, _sub_policies(images, policy, seed))


def _sub_policies(images: Tensor, policy: Policy, seed: int) -> list[Strip]:
    """Each sub-policy, or part of a schedule, alone; a single one is what training sees."""
    rows, generator = rows_of(policy, MOST_ROWS), torch.Generator().manual_seed(seed)
    return [_strip(each, augmented(each.policy, images, COLUMNS, generator)[0]) for each in rows if len(rows) > 1]


def _strip(row: SheetRow, images: Tensor) -> Strip:
    sheet, size = _sheet(images, len(images))
    return Strip(row.title, row.words, _uri(sheet, size), *sheet.size)


def _sheet(images: Tensor, columns: int) -> tuple[Image.Image, tuple[int, int]]:
    """Tiles side by side, with a gap: width and height of one beside it."""
    pillows = [to_pillow(image) for image in images]
    scale = min(1.0, _SIDE / max(pillows[0].size))
    width, height = (max(1, round(side * scale)) for side in pillows[0].size)
    rows = math.ceil(len(pillows) / columns)
    sheet = Image.new("RGBA", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP))
    for number, one in enumerate(pillows):
        fitted = one if scale == 1 else one.resize((width, height), Image.Resampling.LANCZOS)
        row, column = divmod(number, columns)
        sheet.paste(fitted.convert("RGBA"), (column * (width + GAP), row * (height + GAP)))
    return sheet, (width, height)


def _uri(sheet: Image.Image, size: tuple[int, int]) -> str:
    lossless, buffer = max(size) <= _LOSSLESS, io.BytesIO()
    if lossless:
        sheet.save(buffer, "PNG", optimize=True)
    else:
        sheet.save(buffer, "WEBP", quality=80)
    return data_uri(buffer.getvalue(), "image/png" if lossless else "image/webp")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
