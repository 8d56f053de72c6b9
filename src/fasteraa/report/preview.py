"""The preview sheet: a row per sub-policy, originals and augmented images side by side, as in the paper's figure.

A policy of few sub-policies that choose among operations, as `uniform` is, has several rows for each of them.
"""

from __future__ import annotations

import colorsys
from dataclasses import replace
from functools import lru_cache

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fasteraa.images import to_pillow
from fasteraa.policy.apply import apply_draw, apply_masks
from fasteraa.policy.describe import describe_sub_policy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.policy import Policy, SubPolicy

_TILE = 64  # the least side of a shown image
_ROWS = 6  # of augmented images, where there is more to see than a row for each sub-policy shows
_GAP = 4
_MARGIN = 12
_UNMARKED = 255  # the number in masks that does not count
_LINE = 15
_TEXT_WIDTH = 400
_INK, _PALE, _PAPER = (30, 30, 30), (120, 120, 120), (255, 255, 255)


def draw_sheet(
    policy: Policy,
    images: Tensor,
    columns: int = 6,
    most_rows: int = 20,
    seed: int = 0,
    masks: Tensor | None = None,
) -> Image.Image:
    """Draw `policy` on the first uint8 `images` (N, 3, H, W): a row shows one sub-policy on `columns` of them.

    `masks` (N, H, W) are laid over them, a colour for each class, and go where the images go.
    """
    subs = sorted(policy.sub_policies, key=lambda sub: -sub.weight)[:most_rows]
    columns = min(columns, len(images))
    originals = images[:columns] if masks is None else overlaid(images[:columns], masks[:columns])
    tile = max(_TILE, *originals.shape[2:]) if max(originals.shape[2:]) <= 128 else 128
    generator = torch.Generator().manual_seed(seed)
    wide = any(len(stage) > 1 for sub in subs for stage in sub.stages)
    draws = max(1, _ROWS // len(subs)) if wide else 1
    width = 2 * _MARGIN + columns * (tile + _GAP) + _TEXT_WIDTH
    sheet = Image.new("RGB", (width, 2 * _MARGIN + _LINE + (1 + draws * len(subs)) * (tile + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - 2), f"{policy.name}  {policy.hash[:19]}", _INK, _font())
    beside = _MARGIN + columns * (tile + _GAP) + 8

    def top(row: int) -> int:
        return _MARGIN + _LINE + 4 + row * (tile + _GAP)

    def paste(tiles: Tensor, row: int) -> None:
        for column, one in enumerate(tiles):
            place = (_MARGIN + column * (tile + _GAP), top(row))
            sheet.paste(to_pillow(one).resize((tile, tile), Image.Resampling.NEAREST), place)

    paste(originals, 0)
    _write(pen, "originals", (beside, top(0)), tile, _PALE)
    for number, sub in enumerate(subs):
        first = 1 + draws * number
        for row in range(first, first + draws):
            paste(augmented(policy, sub, images, columns, generator, masks), row)
        words = f"{number + 1}. {describe_sub_policy(policy, sub)}"
        _write(pen, words, (beside, top(first)), top(first + draws) - top(first) - _GAP, _INK)
    return sheet


def alternating(labels: Tensor) -> Tensor:
    """An order in which classes take turns: a source often has them one after the other."""
    seen: dict[int, int] = {}
    turns = []
    for label in labels.tolist():
        turns.append((seen.get(label, 0), label))
        seen[label] = turns[-1][0] + 1
    return torch.tensor(sorted(range(len(turns)), key=turns.__getitem__), dtype=torch.int64)


def augmented(
    policy: Policy,
    sub: SubPolicy,
    images: Tensor,
    columns: int,
    generator: torch.Generator,
    masks: Tensor | None = None,
) -> Tensor:
    """The shown images through one sub-policy, their masks over them; partners come from all of them."""
    alone = replace(policy, sub_policies=(replace(sub, weight=1.0),))
    if masks is None:
        return alone(images, generator)[:columns]
    plan = plan_of(alone)
    draw = plan.draw(len(images), generator)
    shown = apply_draw(alone, plan, images, draw)[:columns]
    return overlaid(shown, apply_masks(alone, plan, masks[:columns], draw, _UNMARKED))


def overlaid(images: Tensor, masks: Tensor) -> Tensor:
    """uint8 images with some of each class's colour over them; what does not count stays as it is."""
    colours = torch.tensor([_colour(number) for number in range(256)], dtype=torch.uint8)[masks.long()].movedim(-1, 1)
    mixed = ((3 * images.int() + 2 * colours.int()) // 5).to(torch.uint8)
    return torch.where((masks == _UNMARKED)[:, None], images, mixed)


@lru_cache
def _colour(number: int) -> tuple[int, int, int]:
    """Hues a golden section apart, so that classes of any number differ from their neighbours."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618034 % 1, 1.0 if number % 2 else 0.6, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


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
