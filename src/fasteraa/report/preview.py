"""The preview sheet: a row per sub-policy, and under each image what was done to it.

A policy of few sub-policies that choose among operations, as `uniform` is, has several rows for each of them. One with
a schedule has a row for each of its parts.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fasteraa.images import to_pillow
from fasteraa.policy.apply import apply_draw, apply_masks
from fasteraa.policy.describe import deed_words, describe_sub_policy, operations_words, sentence
from fasteraa.policy.draw import plan_of
from fasteraa.policy.policy import Policy

_SIDE = 168  # about the longer side of a shown image: smaller ones leave a third of the sheet white
_LEAST = 104  # columns are at least as wide: the words under an image need them
_ROWS = 6  # of augmented images, where there is more to see than a row for each sub-policy shows
_GAP, _MARGIN = 8, 14
_UNMARKED = 255  # the number in masks that does not count
_LINE = 15
_HEAD, _UNDER = 2, 4  # lines of words above a row, and under an image, at most
_INK, _PALE, _PAPER = (30, 30, 30), (89, 99, 110), (255, 255, 255)


class SheetRow(NamedTuple):
    """What a row of images shows: a policy, and what it is of a larger one."""

    title: str
    words: str
    policy: Policy


def rows_of(policy: Policy, most: int) -> list[SheetRow]:
    """Its sub-policies, the likeliest first; of a policy with a schedule its parts, evenly chosen, in their order."""
    if policy.scheduled:
        count = min(most, len(policy.parts))
        chosen = [policy.parts[place * len(policy.parts) // count] for place in range(count)]
        return [SheetRow(f"{part}".capitalize(), operations_words(part.policy), part.policy) for part in chosen]
    subs = sorted(enumerate(policy.sub_policies, 1), key=lambda pair: -pair[1].weight)[:most]
    return [
        SheetRow(
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
    most_rows: int = 10,
    seed: int = 0,
    masks: Tensor | None = None,
) -> Image.Image:
    """Draw `policy` on the first uint8 `images` (N, 3, H, W): a row of `columns` of them shows one sub-policy.

    `masks` (N, H, W) are laid over them, a colour for each class, and go where the images go.
    """
    rows = rows_of(policy, most_rows)
    columns = min(columns, len(images))
    originals = images[:columns] if masks is None else overlaid(images[:columns], masks[:columns])
    generator = torch.Generator().manual_seed(seed)
    wide = any(len(stage) > 1 for each in rows for sub in each.policy.sub_policies for stage in sub.stages)
    draws = max(1, _ROWS // len(rows)) if wide else 1
    sheet = _Sheet(columns, shown_size(*images.shape[2:]))
    sheet.words(f"{policy.name}: {sentence(policy)}", _INK)
    sheet.words(policy.hash[:19], _PALE)
    sheet.row(originals, [["original"]] * columns)
    for number, each in enumerate(rows, 1):
        sheet.words(f"{each.title}: {each.words}" if policy.scheduled else f"{number}. {each.words}", _INK)
        for _ in range(draws):
            sheet.row(*augmented(each.policy, images, columns, generator, masks))
    rest = (len(policy.parts) if policy.scheduled else len(policy.sub_policies)) - len(rows)
    if rest > 0:
        sheet.words(f"and {rest} more, not shown", _PALE)
    return sheet.drawn()


class _Sheet:
    """Rows of images and words, from the top to the bottom; how high it is shows at the end."""

    def __init__(self, columns: int, size: tuple[int, int]):
        self.size = size
        self.step = max(size[1], _LEAST) + _GAP
        self.width = 2 * _MARGIN + max(columns * self.step - _GAP, 4 * _LEAST)
        self.height = _MARGIN
        self._texts: list[tuple[tuple[int, int], str, tuple[int, int, int]]] = []
        self._tiles: list[tuple[tuple[int, int], Image.Image]] = []

    def words(self, text: str, ink: tuple[int, int, int]) -> None:
        for line in _lines(text, self.width - 2 * _MARGIN, _HEAD):
            self._texts.append(((_MARGIN, self.height), line, ink))
            self.height += _LINE
        self.height += 3

    def row(self, images: Tensor, deeds: Sequence[Sequence[str]]) -> None:
        """Images, and under each what was done to it."""
        height, width = self.size
        most = 0
        for column, (image, words) in enumerate(zip(images, deeds, strict=True)):
            left = _MARGIN + column * self.step
            self._tiles.append(((left, self.height), resized(image, height, width)))
            lines = [line for each in words or ["unchanged"] for line in _lines(each, self.step - _GAP, 2)]
            lines = lines if len(lines) <= _UNDER else [*lines[: _UNDER - 1], f"and {len(lines) - _UNDER + 1} more"]
            for number, line in enumerate(lines):
                self._texts.append(((left, self.height + height + 2 + number * _LINE), line, _PALE))
            most = max(most, len(lines))
        self.height += height + most * _LINE + _GAP + 2

    def drawn(self) -> Image.Image:
        sheet = Image.new("RGB", (self.width, self.height + _MARGIN - _GAP), _PAPER)
        pen = ImageDraw.Draw(sheet)
        for place, tile in self._tiles:
            sheet.paste(tile, place)
        for place, line, ink in self._texts:
            pen.text(place, line, ink, _font())
        return sheet


def shown_size(height: int, width: int) -> tuple[int, int]:
    """Height and width on a page: whole multiples of small images, large ones made smaller."""
    longer = max(height, width)
    if longer <= 1.25 * _SIDE:
        scale: float = max(1, round(_SIDE / longer))
    else:
        scale = _SIDE / longer
    return max(1, round(height * scale)), max(1, round(width * scale))


def resized(image: Tensor, height: int, width: int) -> Image.Image:
    """Pixels of small images stay squares; large ones are averaged."""
    shown = to_pillow(image)
    if shown.size == (width, height):
        return shown
    how = Image.Resampling.NEAREST if width >= shown.width else Image.Resampling.LANCZOS
    return shown.resize((width, height), how)


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
) -> tuple[Tensor, list[list[str]]]:
    """The shown images through a policy, their masks over them, and what was done to each.

    Partners come from all images.
    """
    plan = plan_of(policy)
    draw = plan.draw(len(images), generator)
    out = apply_draw(policy, plan, images, draw)[:columns]
    if masks is not None:
        out = overlaid(out, apply_masks(policy, plan, masks[:columns], draw, _UNMARKED))
    return out, [[deed_words(policy, deed) for deed in plan.deeds(draw, index)] for index in range(len(out))]


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
    return ImageFont.load_default(11)


def _lines(text: str, width: int, most: int) -> list[str]:
    """As many lines as fit into the width; the last of `most` is cut where there would be more."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _font().getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(lines[most - 1] + " ...", width)]
    return [_cut(line, width) for line in lines]


def _cut(line: str, width: int) -> str:
    while _font().getlength(line) > width and len(line) > 4:
        line = line.removesuffix("...")[:-1].rstrip() + "..."
    return line
