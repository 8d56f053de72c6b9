"""Draw the pictures of docs/concepts.md from the code, the embedded sample and recorded runs, as small SVG files.

Text stays text, and images are 28 x 28 PNGs inside. `python tools/pictures.py` writes them; the tests draw them again
and compare words, lines and pixels.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import fasteraa
from fasteraa.data import load
from fasteraa.images import to_pillow
from fasteraa.ops import OPS, Context, Op, find, hard, soft_mixture
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.describe import number_words
from fasteraa.policy.draw import plan_of
from fasteraa.policy.soft import relaxed_bernoulli
from fasteraa.report.summary import changes

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
RUNS = ROOT / "results" / "search-h200"
INK, PALE, LINE, PAPER = "#1f2328", "#59636e", "#c8ced6", "#ffffff"
SEED_OF_DRAWS = 136  # one that shows rotations, flips and gates that stay shut
COLOURS = ("#3355cc", "#cc4422", "#22804f", "#9955bb")
PAPER_COLOUR, CLOTH = torch.tensor([226.0, 232.0, 240.0]), torch.tensor([214.0, 92.0, 46.0])


class Canvas:
    """An SVG in the making; coordinates are pixels at full size."""

    def __init__(self, width: int, height: int, title: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif">',
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]

    def text(self, x: float, y: float, words: str, size: int = 12, colour: str = INK, at: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{at}">{escape(words)}</text>'
        )

    def tile(self, x: float, y: float, image: Tensor, side: int) -> None:
        stream = io.BytesIO()
        to_pillow(image).save(stream, "PNG", optimize=True)
        data = base64.b64encode(stream.getvalue()).decode()
        self.parts.append(
            f'<image x="{x:g}" y="{y:g}" width="{side}" height="{side}" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{data}"/>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = LINE, round_: int = 0
    ) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_}" fill="{fill}" '
            f'stroke="{line}"/>'
        )

    def path(self, points: Sequence[tuple[float, float]], colour: str = PALE, dashed: bool = False) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')

    def arrow(self, *points: tuple[float, float], colour: str = PALE, dashed: bool = False) -> None:
        self.path(points, colour, dashed)
        (x0, y0), (x1, y1) = points[-2:]
        length = math.hypot(x1 - x0, y1 - y0)
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        tips = [(x1, y1), (x1 - 7 * dx - 4 * dy, y1 - 7 * dy + 4 * dx), (x1 - 7 * dx + 4 * dy, y1 - 7 * dy - 4 * dx)]
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in tips)
        self.parts.append(f'<polygon points="{places}" fill="{colour}"/>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def clothes(count: int) -> Tensor:
    """Images of the embedded sample (grey on black), one of each class in turn, as coloured cloth on pale paper."""
    data = load(None)
    order = [int((data.labels == label).nonzero()[row]) for row in range(2) for label in (9, 0, 8, 3, 7, 4, 5, 1)]
    grey = data.images[order[:count]][:, :1].float() / 255
    there = (3 * grey).clamp(max=1)
    cloth = CLOTH.view(1, 3, 1, 1) * (0.35 + 0.65 * grey)
    return (there * cloth + (1 - there) * PAPER_COLOUR.view(1, 3, 1, 1)).round().to(torch.uint8)


# --- the pictures ----------------------------------------------------------------------------------------------


def operations() -> str:
    """Every operation over rising magnitude, in both directions where it has two."""
    image, partner = clothes(2)
    columns = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0)
    side, step, left, top = 44, 48, 116, 28
    canvas = Canvas(left + step * len(columns) + 8, top + step * len(OPS) + 4, "Every operation over rising magnitude")
    for column, magnitude in enumerate(columns):
        words = f"{magnitude:g}".replace("-", "−")
        canvas.text(left + step * column + side / 2, 18, words, 11, PALE, "middle")
    canvas.text(8, 18, "magnitude", 11, PALE)
    for row, op in enumerate(OPS.values()):
        y = top + step * row
        canvas.text(8, y + 20, op.name, 12)
        canvas.text(8, y + 35, _span_words(op), 10, PALE)
        for column, magnitude in enumerate(columns):
            if _shown(op, magnitude):
                context = Context(partner[None], torch.tensor([[0.4, 0.45]]))
                out = hard(op, image, abs(magnitude), -1.0 if magnitude < 0 else 1.0, context)
                canvas.tile(left + step * column, y, out, side)
    return canvas.svg()


def _shown(op: Op, magnitude: float) -> bool:
    if op.span is None:
        return magnitude == 1
    return magnitude >= 0 or op.signed


def _span_words(op: Op) -> str:
    if op.span is None:
        return "no magnitude"
    end = number_words(op.span.at_one, op.span.unit).replace(" of the ", " of ")
    if not op.signed:
        return f"to {end}"
    other = number_words(op.span.value(1.0, -1.0), op.span.unit)
    return f"{other} to {end}" if op.span.at_zero else f"to ±{end}"


def sub_policy() -> str:
    """One sub-policy of two stages, drawn five times."""
    stages = (
        (Choice("rotate", 0.8, 0.7, weight=0.6), Choice("flip", 0.9, weight=0.4)),
        (Choice("brightness", 0.7, 0.6, weight=0.5), Choice("cutout", 0.9, 0.6, weight=0.5)),
    )
    start = clothes(1)
    generator = torch.Generator().manual_seed(SEED_OF_DRAWS)
    side, step, top = 64, 84, 62
    canvas = Canvas(480, top + 5 * step, "One sub-policy of two stages, drawn five times")
    for x, head, more in (
        (10, "image", ""),
        (110, "stage 1", "60% rotate, 40% flip"),
        (310, "stage 2", "50% brightness, 50% cutout"),
    ):
        canvas.text(x, 22, head, 13)
        canvas.text(x, 40, more, 11, PALE)
    for row in range(5):
        y, image = top + step * row, start
        canvas.tile(10, y, image[0], side)
        for x, stage in zip((110, 310), stages, strict=True):
            alone = Policy((SubPolicy((stage,)),))
            deeds = plan_of(alone).draw_one(generator)
            for deed in deeds:
                image = hard(deed.op, image, deed.magnitude, deed.sign, Context(hole=torch.tensor([deed.hole])))
            canvas.arrow((x - 26, y + side / 2), (x - 6, y + side / 2))
            canvas.tile(x, y, image[0], side)
            words = [deed.op.name for deed in deeds] or ["left alone"]
            canvas.text(x + side + 8, y + 30, words[0], 12, INK if deeds else PALE)
            if deeds and deeds[0].op.span is not None:
                canvas.text(x + side + 8, y + 46, _deed_words(deeds[0]), 11, PALE)
    return canvas.svg()


def _deed_words(deed: Any) -> str:
    return number_words(deed.op.span.value(deed.magnitude, deed.sign), deed.op.span.unit).replace("-", "−")


def batch() -> str:
    """One call on a batch, twice: a draw for every image."""
    images = clothes(8)
    policy = fasteraa.load("trivialaugment-wide")
    generator = torch.Generator().manual_seed(3)
    rows = [("batch", images), ("policy(batch)", policy(images, generator)), ("once more", policy(images, generator))]
    return _rows(rows, "A draw for every image of a batch")


def strength() -> str:
    """The same policy with 0 to 3 passes."""
    images = clothes(8)
    policy = Policy.named("uniform")
    rows = []
    for passes in range(4):
        words = f"{passes} pass{'es' * (passes != 1)}"
        rows.append((words, policy.with_strength(passes=passes)(images, torch.Generator().manual_seed(5))))
    return _rows(rows, "The same policy with 0 to 3 passes")


def _rows(rows: Sequence[tuple[str, Tensor]], title: str) -> str:
    side, step, left = 44, 48, 98
    canvas = Canvas(left + step * len(rows[0][1]) + 4, 8 + step * len(rows), title)
    for row, (words, images) in enumerate(rows):
        canvas.text(8, 8 + step * row + 27, words, 12)
        for column, image in enumerate(images):
            canvas.tile(left + step * column, 8 + step * row, image, side)
    return canvas.svg()


def soft_and_hard() -> str:
    """One stage: shares of five operations at three temperatures, the mixture of each, and what a hard stage draws."""
    image = clothes(1)
    ops = [find(name) for name in ("rotate", "invert", "translate_x", "contrast", "solarize")]
    weights = torch.tensor([0.62, 0.55, 0.40, 0.30, 0.15])
    magnitude, sign = torch.tensor([[0.9, 0.0, 0.5, 0.8, 0.6]]), torch.ones(1, 5)
    side, step, left, top = 52, 66, 78, 104
    canvas = Canvas(480, top + 3 * 76 + 4, "A soft stage at three temperatures")
    for column, op in enumerate(ops):
        x = left + step * column
        out = hard(op, image, float(magnitude[0, column]), 1.0)
        canvas.text(x + side / 2, 18, op.name, 11, INK, "middle")
        canvas.tile(x, 26, out[0], side)
        canvas.text(x + side / 2, 93, f"w = {weights[column]:.2f}", 10, PALE, "middle")
    canvas.text(left + step * 5 + side / 2, 56, "mixture", 11, INK, "middle")
    for row, temperature in enumerate((1.0, 0.2, 0.05)):
        y = top + 76 * row
        share = (weights / temperature).softmax(0)
        canvas.text(8, y + 32, f"η = {temperature:g}", 12)
        for column in range(len(ops)):
            x, high = left + step * column, float(share[column]) * 44
            canvas.rect(x + 12, y + 50 - high, 28, high, COLOURS[0], "none")
            canvas.text(x + side / 2, y + 64, f"{share[column]:.0%}", 10, PALE, "middle")
        mixed = soft_mixture(ops, image.float() / 255, magnitude, sign, share[None])
        canvas.tile(left + step * 5, y, (mixed[0] * 255).round().clamp(0, 255).to(torch.uint8), side)
    return canvas.svg()


def gates() -> str:
    """The relaxed gate b over the random number u, for p = 0.3."""
    canvas = Canvas(420, 220, "The relaxed gate over its random number")
    left, right, top, bottom = 40, 300, 16, 180
    canvas.rect(left, top, right - left, bottom - top)
    for value in (0.0, 0.5, 1.0):
        canvas.text(left - 6, bottom - value * (bottom - top) + 4, f"{value:g}", 11, PALE, "end")
        canvas.text(left + value * (right - left), bottom + 16, f"{value:g}", 11, PALE, "middle")
    canvas.text((left + right) / 2, bottom + 34, "uniform number u", 11, PALE, "middle")
    canvas.text(8, 11, "b", 12)
    u = torch.linspace(0.002, 0.998, 250, dtype=torch.float64)
    for number, temperature in enumerate((1.0, 0.3, 0.05)):
        b = relaxed_bernoulli(torch.tensor(0.3, dtype=torch.float64), u, temperature).tolist()
        places = [(left + x * (right - left), bottom - y * (bottom - top)) for x, y in zip(u.tolist(), b, strict=True)]
        canvas.path(places, COLOURS[number])
        canvas.path([(312, 40 + 24 * number), (336, 40 + 24 * number)], COLOURS[number])
        canvas.text(342, 44 + 24 * number, f"λ = {temperature:g}", 12)
    canvas.text(312, 120, "p = 0.3: open", 11, PALE)
    canvas.text(312, 135, "for u > 0.7", 11, PALE)
    return canvas.svg()


def loop() -> str:
    """One step of Algorithm 2 as boxes and arrows, with real images in them."""
    images = clothes(6)
    augmented = Policy.named("autoaugment-cifar10")(images[3:], torch.Generator().manual_seed(1))
    canvas = Canvas(480, 300, "One step of the search")
    for y, words, shown in ((20, "originals B′", images[:3]), (180, "images B", images[3:])):
        canvas.text(10, y + 12, words, 12)
        for column, image in enumerate(shown):
            canvas.tile(10 + 30 * column, y + 20, image, 28)
    canvas.rect(124, 192, 84, 44, "#eef2ff", COLOURS[0], 6)
    canvas.text(166, 211, "policy S", 12, INK, "middle")
    canvas.text(166, 227, "w, p, µ", 11, PALE, "middle")
    canvas.arrow((102, 214), (122, 214))
    canvas.arrow((208, 214), (228, 214))
    canvas.text(232, 192, "augmented A", 12)
    for column, image in enumerate(augmented):
        canvas.tile(232 + 30 * column, 200, image, 28)
    canvas.rect(350, 84, 120, 62, "#fff4ec", COLOURS[1], 6)
    canvas.text(410, 108, "critic D", 12, INK, "middle")
    canvas.text(410, 124, "a score", 11, PALE, "middle")
    canvas.text(410, 138, "and class logits", 11, PALE, "middle")
    canvas.arrow((102, 54), (380, 54), (380, 82))
    canvas.arrow((322, 214), (410, 214), (410, 148))
    canvas.text(120, 46, "untouched", 11, PALE)
    canvas.arrow((440, 148), (440, 268), (166, 268), (166, 238), colour=COLOURS[0], dashed=True)
    canvas.text(190, 286, "gradient: score of A up, class loss down", 11, COLOURS[0])
    canvas.text(120, 100, "the critic learns to score", 11, COLOURS[1])
    canvas.text(120, 116, "B′ high and A low,", 11, COLOURS[1])
    canvas.text(120, 132, "and to tell classes", 11, COLOURS[1])
    canvas.arrow((262, 112), (346, 112), colour=COLOURS[1], dashed=True)
    return canvas.svg()


def distances() -> str:
    """What the critic measured over the epochs of the recorded searches."""
    canvas = Canvas(480, 230, "The critic's estimate of the distance, over the epochs of four searches")
    left, right, top, bottom, most = 40, 380, 16, 190, 14.0
    canvas.rect(left, top, right - left, bottom - top)
    for value in (0, 4, 8, 12):
        y = bottom - value / most * (bottom - top)
        canvas.text(left - 6, y + 4, str(value), 11, PALE, "end")
        canvas.path([(left, y), (right, y)], LINE)
    for epoch in (1, 5, 10, 15, 20):
        canvas.text(left + (epoch - 1) / 19 * (right - left), bottom + 16, str(epoch), 11, PALE, "middle")
    canvas.text((left + right) / 2, bottom + 33, "epoch", 11, PALE, "middle")
    for number, run in enumerate(sorted(folder for folder in RUNS.iterdir() if folder.is_dir())):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        assert max(row["distance"] for row in rows) <= most
        places = [
            (left + (row["epoch"] - 1) / 19 * (right - left), bottom - row["distance"] / most * (bottom - top))
            for row in rows
        ]
        canvas.path(places, COLOURS[number])
        canvas.path([(390, 36 + 22 * number), (412, 36 + 22 * number)], COLOURS[number])
        canvas.text(418, 40 + 22 * number, run.name, 12)
    return canvas.svg()


def before_and_after() -> str:
    """How often each operation augments an image in a stage, at the start and at the end of one recorded search."""
    run = RUNS / "cifar-0"
    rows = changes(Policy.load(run / "start.json"), Policy.load(run / "policy.json"))
    scale, left, step = 300 / 0.10, 110, 26
    canvas = Canvas(480, 40 + step * len(rows), "How often each operation augments an image, before and after a search")
    canvas.rect(left, 10, 14, 8, LINE, "none")
    canvas.text(left + 20, 18, "start", 11, PALE)
    canvas.rect(left + 70, 10, 14, 8, COLOURS[0], "none")
    canvas.text(left + 90, 18, "end", 11, PALE)
    for number, (name, before, after) in enumerate(rows):
        y = 32 + step * number
        canvas.text(left - 8, y + 13, name, 12, INK, "end")
        canvas.rect(left, y, before * scale, 8, LINE, "none")
        canvas.rect(left, y + 10, after * scale, 8, COLOURS[0], "none")
        canvas.text(left + max(before, after) * scale + 6, y + 13, f"{before:.1%} → {after:.1%}", 10, PALE)
    return canvas.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "operations": operations,
    "sub-policy": sub_policy,
    "batch": batch,
    "strength": strength,
    "soft-and-hard": soft_and_hard,
    "gates": gates,
    "loop": loop,
    "distances": distances,
    "before-and-after": before_and_after,
}

# --- fresh or stale --------------------------------------------------------------------------------------------

DATA = re.compile(r"data:image/png;base64,([^\"]+)")
LEVELS = 2  # by which a soft mixture may differ from one version of torch to another


def same(one: str, other: str) -> bool:
    """Equal words and lines, and equal images but for rounding; PNG bytes differ from one zlib to another."""
    if DATA.sub("", one) != DATA.sub("", other):
        return False
    pairs = zip(DATA.findall(one), DATA.findall(other), strict=True)
    return all(_gap(a, b) <= LEVELS for a, b in pairs)


def _gap(one: str, other: str) -> int:
    a, b = (np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), int) for data in (one, other))
    return int(np.abs(a - b).max()) if a.shape == b.shape else 256


def stale(write: bool) -> list[Path]:
    found = []
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        made = draw()
        if not path.exists() or not same(path.read_text(encoding="utf-8"), made):
            found.append(path)
            if write:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(made, encoding="utf-8")
    return found


if __name__ == "__main__":
    for path in stale(write=True):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
