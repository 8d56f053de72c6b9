"""The preview sheet: a row per sub-policy, originals and augmented images side by side, as in the paper's figure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fasteraa.images import to_pillow
from fasteraa.policy.artifact import Policy, SubPolicy
from fasteraa.policy.words import describe_sub_policy

_TILE = 64  # the least side of a shown image
_GAP = 4
_MARGIN = 12
_LINE = 15
_TEXT_WIDTH = 400
_INK, _PALE, _PAPER = (30, 30, 30), (120, 120, 120), (255, 255, 255)


def draw_sheet(policy: Policy, images: Tensor, columns: int = 6, most_rows: int = 20, seed: int = 0) -> Image.Image:
    """Draw `policy` on the first uint8 `images` (N, 3, H, W): each row shows one sub-policy on `columns` of them."""
    subs = sorted(policy.sub_policies, key=lambda sub: -sub.weight)[:most_rows]
    columns = min(columns, len(images))
    originals = images[:columns]
    tile = max(_TILE, *originals.shape[2:]) if max(originals.shape[2:]) <= 128 else 128
    generator = torch.Generator().manual_seed(seed)
    rows = [(None, originals)] + [(sub, augmented(policy, sub, images, columns, generator)) for sub in subs]
    width = 2 * _MARGIN + columns * (tile + _GAP) + _TEXT_WIDTH
    sheet = Image.new("RGB", (width, 2 * _MARGIN + _LINE + len(rows) * (tile + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - 2), f"{policy.name}  {policy.hash[:19]}", _INK, _font())
    for number, (sub, tiles) in enumerate(rows):
        top = _MARGIN + _LINE + 4 + number * (tile + _GAP)
        for column, one in enumerate(tiles):
            place = (_MARGIN + column * (tile + _GAP), top)
            sheet.paste(to_pillow(one).resize((tile, tile), Image.Resampling.NEAREST), place)
        words = "originals" if sub is None else f"{number}. {describe_sub_policy(policy, sub)}"
        _write(pen, words, (_MARGIN + columns * (tile + _GAP) + 8, top), tile, _PALE if sub is None else _INK)
    return sheet


def augmented(policy: Policy, sub: SubPolicy, images: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """The shown images through one sub-policy; partners come from all of them."""
    return replace(policy, sub_policies=(replace(sub, weight=1.0),))(images, generator)[:columns]


@lru_cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(12)


def _write(
    pen: ImageDraw.ImageDraw, words: str, place: tuple[int, int], height: int, ink: tuple[int, int, int]
) -> None:
    """Words in as many lines as fit beside the tiles."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if pen.textlength(longer, font=_font()) > _TEXT_WIDTH - 16:
            lines.append(word)
        else:
            lines[-1] = longer
    most = max(1, height // _LINE)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " ..."]
    for number, line in enumerate(lines):
        pen.text((place[0], place[1] + number * _LINE), line, ink, _font())
