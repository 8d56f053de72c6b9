"""The preview sheet: a row per sub-policy, originals and augmented images side by side, as in the paper's figure.

A policy of few sub-policies that choose among operations, as `uniform` is, has several rows for each of them. One with
a schedule has a row for each of its parts.
"""

from __future__ import annotations

import colorsys
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fasteraa.images import to_pillow
from fasteraa.policy.apply import apply_draw, apply_masks
from fasteraa.policy.describe import describe_sub_policy, operations_words
from fasteraa.policy.draw import plan_of
from fasteraa.policy.policy import Policy

_TILE = 64  # the least side of a shown image
_ROWS = 6  # of augmented images, where there is more to see than a row for each sub-policy shows
_GAP = 4
_MARGIN = 12
_UNMARKED = 255  # the number in masks that does not count
_LINE = 15
_TEXT_WIDTH = 400
_INK, _PALE, _PAPER = (30, 30, 30), (120, 120, 120), (255, 255, 255)


class Row(NamedTuple):
    """What a row of images shows: a policy, and what it is of a larger one."""

    title: str
    words: str
    policy: Policy


def rows_of(policy: Policy, most: int) -> list[Row]:
    """Its sub-policies, the likeliest first; of a policy with a schedule its parts, evenly chosen, in their order."""
    if policy.scheduled:
        count = min(most, len(policy.parts))
        chosen = [policy.parts[place * len(policy.parts) // count] for place in range(count)]
        return [Row(f"{part}".capitalize(), operations_words(part.policy), part.policy) for part in chosen]
    subs = sorted(enumerate(policy.sub_policies, 1), key=lambda pair: -pair[1].weight)[:most]
    return [
        Row(
            f"Sub-policy {number}",
            describe_sub_policy(policy, sub),
            replace(policy, sub_policies=(replace(sub, weight=1.0),)),
        )
        for number, sub in subs
    ]


def draw_sheet(
    policy: Policy,
    images: Tensor,
    columns: int = 6,
    most_rows: int = 20,
    seed: int = 0,
    masks: Tensor | None = None,
) -> Image.Image:
    """Draw `policy` on the first uint8 `images` (N, 3, H, W): a row of `columns` of them shows one sub-policy.

    `masks` (N, H, W) are laid over them, a colour for each class, and go where the images go.
    """
    rows = rows_of(policy, most_rows)
    columns = min(columns, len(images))
    originals = images[:columns] if masks is None else overlaid(images[:columns], masks[:columns])
    tile = max(_TILE, *originals.shape[2:]) if max(originals.shape[2:]) <= 128 else 128
    generator = torch.Generator().manual_seed(seed)
    wide = any(len(stage) > 1 for each in rows for sub in each.policy.sub_policies for stage in sub.stages)
    draws = max(1, _ROWS // len(rows)) if wide else 1
    width = 2 * _MARGIN + columns * (tile + _GAP) + _TEXT_WIDTH
    sheet = Image.new("RGB", (width, 2 * _MARGIN + _LINE + (1 + draws * len(rows)) * (tile + _GAP)), _PAPER)
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
    for number, each in enumerate(rows):
        first = 1 + draws * number
        for row in range(first, first + draws):
            paste(augmented(each.policy, images, columns, generator, masks), row)
        words = f"{each.title}: {each.words}" if policy.scheduled else f"{number + 1}. {each.words}"
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
    policy: Policy, images: Tensor, columns: int, generator: torch.Generator, masks: Tensor | None = None
) -> Tensor:
    """The shown images through a policy, their masks over them; partners come from all of them."""
    if masks is None:
        return policy(images, generator)[:columns]
    plan = plan_of(policy)
    draw = plan.draw(len(images), generator)
    shown = apply_draw(policy, plan, images, draw)[:columns]
    return overlaid(shown, apply_masks(policy, plan, masks[:columns], draw, _UNMARKED))


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
