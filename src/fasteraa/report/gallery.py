"""Originals and augmented images as strips that a page can carry."""

from __future__ import annotations

import base64
import io
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
from fasteraa.policy.policy import Policy
from fasteraa.report.preview import alternating, augmented, rows_of

COLUMNS, MOST_ROWS = 6, 20
_SIDE = 96  # a larger image is shown smaller
_LOSSLESS = 40  # up to this side a PNG is small enough
_LOADED = 64  # partners come from more images than are shown


@dataclass(frozen=True)
class Strip:
    title: str
    words: str
    uri: str
    width: int
    height: int


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


def strips(images: Tensor, policy: Policy | None, seed: int = 0) -> list[Strip]:
    """Originals, what training will see, and each sub-policy, or part of a schedule, alone."""
    generator = torch.Generator().manual_seed(seed)
    rows = [_strip("Originals", "", images[:COLUMNS])]
    if policy is not None:
        seen = "As the end of training sees them" if policy.scheduled else "As training sees them"
        rows.append(_strip(seen, f"The policy {policy.name}", policy(images, generator)[:COLUMNS]))
        shown = rows_of(policy, MOST_ROWS)
        rows += [
            _strip(each.title, each.words, augmented(each.policy, images, COLUMNS, generator))
            for each in (shown if len(shown) > 1 else ())  # a single one is what training sees
        ]
    return rows


def _strip(title: str, words: str, images: Tensor) -> Strip:
    pillows = [to_pillow(image) for image in images]
    scale = min(1.0, _SIDE / max(pillows[0].size))
    width, height = (max(1, round(side * scale)) for side in pillows[0].size)
    gap = max(1, width // 16)
    sheet = Image.new("RGBA", (len(pillows) * (width + gap) - gap, height))
    for number, one in enumerate(pillows):
        fitted = one if scale == 1 else one.resize((width, height), Image.Resampling.LANCZOS)
        sheet.paste(fitted.convert("RGBA"), (number * (width + gap), 0))
    return Strip(title, words, _uri(sheet, max(width, height) <= _LOSSLESS), *sheet.size)


def _uri(sheet: Image.Image, lossless: bool) -> str:
    buffer = io.BytesIO()
    if lossless:
        sheet.save(buffer, "PNG", optimize=True)
    else:
        sheet.save(buffer, "WEBP", quality=80)
    return data_uri(buffer.getvalue(), "image/png" if lossless else "image/webp")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
