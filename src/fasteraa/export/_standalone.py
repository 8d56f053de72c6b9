"""TITLE

Needs Pillow alone. Chance comes from Python's `random`, or from the generator you give; the workers of a loader draw
differently from each other and in every epoch. Partners of sample_pairing are the last 64 images seen, or your pool.

    from this_file import Augment

    augment = Augment()  # or Augment(pool=[image, ...], generator=random.Random(7))
    image = augment(image)  # a Pillow image: L, RGB, LA or RGBA
    augment.set_epoch(epoch, epochs)  # before each epoch, if the policy has a schedule; else the last part applies
"""

import multiprocessing
import os
import random
import sys

from PIL import Image, ImageDraw, ImageEnhance, ImageOps

POLICY: dict = {}
SEEN = 64  # so many images are kept as partners where no pool is given


class Augment:
    """Draws for every image how many sub-policies it passes through, and each of them, and applies them."""

    def __init__(self, pool=None, generator=None):
        self.pool = pool
        self.generator = generator
        self.worker = worker()
        self.keeps = not pool and pairs()
        self.seen = []
        self.share = 1.0  # of the training that is over
        if len(POLICY["parts"]) > 1:  # workers of a loader see what `set_epoch` says, too
            self.share = multiprocessing.RawValue("d", 1.0)

    def __getstate__(self):
        return {**vars(self), "seen": []}  # every worker has its own

    def random(self):
        """The next number: `random` is seeded in every worker, a given generator goes a way of its own in each."""
        if self.generator is None:
            return random.random()
        if self.worker != worker():
            self.worker = worker()
            seed = f"{self.generator.random()} {self.worker}"
            if self.worker and self.worker[0] == "process":  # it may be sent to the same one again
                seed += os.urandom(16).hex()
            self.generator = random.Random(seed)
        return self.generator.random()

    def set_epoch(self, epoch, epochs):
        """The epoch that begins, counted from 0, of a training of so many."""
        if epoch < 0 or epochs < 1:
            raise ValueError(f"epoch must be at least 0 and epochs at least 1, got {epoch} and {epochs}")
        if len(POLICY["parts"]) > 1:
            self.share.value = (epoch + 0.5) / epochs

    def sub_policies(self):
        """Those of the part of the training that has been reached."""
        share = self.share if len(POLICY["parts"]) == 1 else self.share.value
        return next((subs for end, subs in POLICY["parts"] if share < end), POLICY["parts"][-1][1])

    def __call__(self, image):
        if image.mode not in ("L", "RGB", "LA", "RGBA"):
            raise ValueError(f"a Pillow image must have one of the modes L, RGB, LA, RGBA, got {image.mode!r}")
        if self.keeps:
            self.seen = [*self.seen[1 - SEEN :], image.copy()]
        for deed in self.draw():
            image = self.apply(image, *deed)
        return image

    def draw(self):
        """What happens to one image: (operation, magnitude, sign, place of the hole, place of the partner)."""
        passes = self._pick(POLICY["passes"])[1]
        stages = [stage for _ in range(passes) for stage in self._pick(self.sub_policies())[1]]
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
        partners = self.pool or self.seen or [image]
        partner = partners[int(place * len(partners))].convert(image.mode)
        return partner if partner.size == image.size else partner.resize(image.size)


def worker():
    """What only this process has: the seed of torch's loader worker, new in every epoch, or the process."""
    torch_data = sys.modules.get("torch.utils.data")
    info = torch_data.get_worker_info() if torch_data else None
    if info is not None:
        return "loader", info.seed
    return ("process", os.getpid()) if multiprocessing.parent_process() else None


def pairs():
    """Whether an image may need a partner."""
    subs = [sub for _, subs in POLICY["parts"] for sub in subs]
    choices = [choice for _, stages in subs for stage in stages for choice in stage]
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
