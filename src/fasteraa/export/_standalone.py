"""TITLE

Needs Pillow alone. Chance comes from Python's `random`, or from the generator you give.

    from this_file import Augment

    augment = Augment()  # Augment(pool=[...]) if the policy pairs samples
    image = augment(image)  # a Pillow image: L, RGB, LA or RGBA
"""

import random

from PIL import Image, ImageDraw, ImageEnhance, ImageOps

POLICY: dict = {}


class Augment:
    """Draws for every image how many sub-policies it passes through, and each of them, and applies them."""

    def __init__(self, pool=None, generator=random):
        self.pool = pool
        self.random = generator.random
        if not pool and pairs():
            raise ValueError("the policy pairs samples, so it needs partners: Augment(pool=[image, ...])")

    def __call__(self, image):
        if image.mode not in ("L", "RGB", "LA", "RGBA"):
            raise ValueError(f"a Pillow image must have one of the modes L, RGB, LA, RGBA, got {image.mode!r}")
        for deed in self.draw():
            image = self.apply(image, *deed)
        return image

    def draw(self):
        """What happens to one image: (operation, magnitude, sign, place of the hole, place of the partner)."""
        passes = self._pick(POLICY["passes"])[1]
        stages = [stage for _ in range(passes) for stage in self._pick(POLICY["sub_policies"])[1]]
        deeds = []
        for stage in stages:
            _, op, probability, low, high, positive = self._pick(stage)
            if self.random() < probability:
                magnitude = low + self.random() * (high - low)
                sign = 1.0 if self.random() < positive else -1.0
                deeds.append((op, magnitude, sign, (self.random(), self.random()), self.random()))
        return deeds

    def _pick(self, weighted):
        """One of the entries; the first number of each is its weight."""
        place = self.random() * sum(entry[0] for entry in weighted)
        for entry in weighted:
            place -= entry[0]
            if place < 0:
                return entry
        return max(weighted, key=lambda entry: entry[0])  # the sum was rounded

    def apply(self, image, op, magnitude, sign, hole, partner):
        alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
        colours = image if alpha is None else image.convert(image.mode[:-1])
        value = physical(op, magnitude, sign, image)
        if op == "sample_pairing":
            colours = Image.blend(colours, self._partner(partner, colours), value)
        elif op == "cutout":
            colours = cutout(colours, value, hole)
        else:
            colours = OPERATIONS[op](colours, value, fill_for(colours, POLICY["fill"]))
        if alpha is None:
            return colours
        colours.putalpha(OPERATIONS[op](alpha, value, 0) if op in GEOMETRIC else alpha)
        return colours

    def _partner(self, place, image):
        partner = self.pool[int(place * len(self.pool))].convert(image.mode)
        return partner if partner.size == image.size else partner.resize(image.size)


def pairs():
    """Whether an image may need a partner."""
    choices = [choice for _, stages in POLICY["sub_policies"] for stage in stages for choice in stage]
    return POLICY["passes"][-1][1] > 0 and any(op == "sample_pairing" and p > 0 for _, op, p, *_ in choices)


def physical(op, magnitude, sign, image):
    """A magnitude in [0, 1] in the operation's own unit."""
    if op not in POLICY["spans"]:
        return magnitude
    at_zero, at_one, unit = POLICY["spans"][op]
    value = at_zero + sign * magnitude * (at_one - at_zero)
    if unit == "pixels":  # whole pixels stay whole
        return (value * 2**20 + 0.5) // 1 / 2**20
    return value * getattr(image, unit) if unit else value  # a share of a side, in pixels


def fill_for(image, colour):
    red, green, blue = colour
    return tuple(colour) if image.mode == "RGB" else (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def affine(image, coefficients, fill):
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=fill)


def cutout(image, v, hole):
    if v <= 0:
        return image
    left = int(max(0, hole[0] * image.width - v / 2))
    top = int(max(0, hole[1] * image.height - v / 2))
    image = image.copy()
    corners = (left, top, min(image.width, left + v), min(image.height, top + v))
    ImageDraw.Draw(image).rectangle(corners, fill_for(image, POLICY["hole_fill"]))
    return image


GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate", "flip")
OPERATIONS = {
    "shear_x": lambda image, v, fill: affine(image, (1, v, 0, 0, 1, 0), fill),
    "shear_y": lambda image, v, fill: affine(image, (1, 0, 0, v, 1, 0), fill),
    "translate_x": lambda image, v, fill: affine(image, (1, 0, v, 0, 1, 0), fill),
    "translate_y": lambda image, v, fill: affine(image, (1, 0, 0, 0, 1, v), fill),
    "rotate": lambda image, v, fill: image.rotate(v, fillcolor=fill),
    "flip": lambda image, v, fill: ImageOps.mirror(image),
    "solarize": lambda image, v, fill: ImageOps.solarize(image, v),
    "posterize": lambda image, v, fill: ImageOps.posterize(image, max(1, int(v))),
    "invert": lambda image, v, fill: ImageOps.invert(image),
    "auto_contrast": lambda image, v, fill: ImageOps.autocontrast(image),
    "equalize": lambda image, v, fill: ImageOps.equalize(image),
    "contrast": lambda image, v, fill: ImageEnhance.Contrast(image).enhance(v),
    "color": lambda image, v, fill: ImageEnhance.Color(image).enhance(v),
    "brightness": lambda image, v, fill: ImageEnhance.Brightness(image).enhance(v),
    "sharpness": lambda image, v, fill: ImageEnhance.Sharpness(image).enhance(v),
}
