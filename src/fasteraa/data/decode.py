"""From a file's bytes to RGB pixels of one size, with Pillow alone; every mode has a meaning or a reason."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
)
# A fixed list, so that a file named .jpg never reaches the parsers that start other programs (EPS: Ghostscript).
_FORMATS = ("JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "AVIF")

_DIRECT = frozenset(("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
CPU_SIDE = 32  # of images that a CPU searches on, at most, unless asked for more: a step's time goes with the pixels
_ORIENTATION = 0x0112


class Unreadable(Exception):
    """This one image cannot be used; the message is the reason that is listed."""


@dataclass(frozen=True)
class Look:
    """What is a matter of taste in decoding."""

    background: tuple[int, int, int] = (255, 255, 255)  # shows through transparent pixels
    exif: bool = True  # turn the image as its EXIF orientation says
    interpolation: str = "bilinear"  # or bicubic, lanczos: how images are scaled


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def open_bytes(data: bytes) -> Image.Image:
    """Opens lazily: the size is known, the pixels are not decoded. Bytes, so that no file handle is left open."""
    if not data:
        raise Unreadable("empty file")
    image = Image.open(io.BytesIO(data), formats=_formats())
    limit = Image.MAX_IMAGE_PIXELS  # Pillow itself only warns up to twice this number
    if limit is not None and image.width * image.height > limit:
        raise Unreadable(f"{image.width}x{image.height} pixels exceed Pillow's limit of {limit} (decompression bomb)")
    return image


def open_file(path: str | os.PathLike[str]) -> Image.Image:
    with open(path, "rb") as file:
        return open_bytes(file.read())


def why(error: Exception) -> str:
    """One line for the list of broken files; free of memory addresses, so that two runs agree."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnidentifiedImageError):
        return "not an image that this Pillow can read"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).splitlines()[0][:200] if str(error) else "no message"
    return f"{type(error).__name__}: {text}"


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF of any kind: the pixels are still good
        return 1


def _sixteen_bit(image: Image.Image) -> Image.Image:
    levels = np.asarray(image).astype(np.int64)
    if levels.min() < 0 or levels.max() > 65535:
        raise Unreadable(f"mode {image.mode} with levels {levels.min()}..{levels.max()}, outside 0..65535")
    return Image.fromarray(((levels + 128) // 257).astype(np.uint8))  # round(v / 257): 257 is odd, so there are no ties


def to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """RGB from any mode; transparent pixels show the background instead of the colours hidden under them."""
    image = image.convert(_PREMULTIPLIED[image.mode]) if image.mode in _PREMULTIPLIED else image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _sixteen_bit(image).convert("RGB")
    if image.mode in ("LA", "PA", "RGBA") or (image.mode in _DIRECT and image.has_transparency_data):
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    if image.mode in _DIRECT:
        return image if image.mode == "RGB" else image.convert("RGB")
    hint = "; its range is not known, convert it to 8 bits first" if image.mode == "F" else ""
    raise Unreadable(f"mode {image.mode} cannot be shown as RGB{hint}")


def upright(image: Image.Image, look: Look) -> Image.Image:
    """Loads, converts to RGB and applies the EXIF orientation."""
    image.load()
    return turned(to_rgb(image, look.background), look, _orientation(image))


def turned(image: Image.Image, look: Look, orientation: int | None = None) -> Image.Image:
    """By its own EXIF orientation, or by one that was read before."""
    turn = _TURN.get(_orientation(image) if orientation is None else orientation) if look.exif else None
    return image if turn is None else image.transpose(turn)


def shape_of(image: Image.Image, look: Look) -> tuple[int, int]:
    """(height, width) as `upright` will give it, from the header alone."""
    sideways = look.exif and image.format != "TIFF" and _orientation(image) >= 5  # Pillow turns TIFF files itself
    return (image.width, image.height) if sideways else (image.height, image.width)


def fit(
    image: Image.Image, size: tuple[int, int], resampling: Image.Resampling = Image.Resampling.BILINEAR
) -> Image.Image:
    """Scale the image until it just covers (height, width), bilinear with antialiasing, and crop the centre."""
    height, width = size
    if (image.height, image.width) == size:
        return image
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    # rounding may put an edge of the box a hair outside the image, which Pillow refuses
    box = (
        max(left, 0.0),
        max(top, 0.0),
        min(left + width * scale, image.width),
        min(top + height * scale, image.height),
    )
    return image.resize((width, height), resampling, box=box, reducing_gap=3.0)


def pixels(image: Image.Image, size: tuple[int, int], look: Look) -> NDArray[np.uint8]:
    """uint8 (3, height, width). A JPEG is decoded at the smallest scale that keeps twice the size asked for."""
    image.draft("RGB", (2 * max(size), 2 * max(size)))
    return np.asarray(fit(upright(image, look), size, resampling(look))).transpose(2, 0, 1)


def resampling(look: Look) -> Image.Resampling:
    """Pillow's filter of that name."""
    return Image.Resampling[look.interpolation.upper()]


def default_size(shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The search size when none is given.

    Images that all have one size of at most 64 stay as they are. Otherwise a square by the median shorter side:
    32 below 48, 64 below 160, else 128.
    """
    if len(set(shapes)) == 1 and max(shapes[0]) <= 64:
        return shapes[0]
    middle = median(min(shape) for shape in shapes)
    side = 32 if middle < 48 else 64 if middle < 160 else 128
    return side, side
