"""From a file's bytes to RGB pixels of one size, with Pillow alone; every mode has a meaning or a reason."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from fasteraa.runtime.documents import cut, read_bytes

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
LARGEST_FILE = 1 << 30  # bytes of one image, as a file or a member of an archive
CPU_SIDE = 32  # of images that a CPU searches on, at most, unless asked for more: a step's time goes with the pixels
_ORIENTATION = 0x0112

Window = tuple[int, int]  # levels of images with more than 8 bits: these two become 0 and 255
FULL = (0, 65535)
_ONE_LEVEL = 257  # of 16 bits, for one of 8
_DEEP_COLOUR = re.compile(r"(RGB|RGBA|RGBX|LA);16([BLN])")  # Pillow keeps 8 of the 16 bits of these


class Unreadable(Exception):
    """This one image cannot be used; the message is the reason that is listed."""


@dataclass(frozen=True)
class Look:
    """What is a matter of taste in decoding."""

    background: tuple[int, int, int] = (255, 255, 255)  # shows through transparent pixels
    exif: bool = True  # turn the image as its EXIF orientation says
    interpolation: str = "bilinear"  # or bicubic, lanczos: how images are scaled
    window: Window | None = None  # None: 16 bits count as all used


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
    """Of regular files alone: a pipe or a device may be named like an image, too."""
    try:
        data = read_bytes(path, LARGEST_FILE)
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return open_bytes(data)


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
    text = cut(str(error).splitlines()[0]) if str(error) else "no message"
    return f"{type(error).__name__}: {text}"


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF of any kind: the pixels are still good
        return 1


def is_deep(image: Image.Image) -> bool:
    """Does it hold more than 8 bits a channel? By its header alone."""
    return image.mode == "I" or image.mode.startswith("I;16") or _deep_colour(image) is not None


def levels(image: Image.Image) -> NDArray[Any]:
    """All levels of a deep image; not those that are wholly transparent."""
    if _deep_colour(image) is None:
        image.load()
        return np.asarray(image)
    colours = _sixteen_bits(image)
    return colours[..., :3] if colours.shape[2] < 4 else colours[colours[..., 3] > 0][:, :3]


def level_range(image: Image.Image) -> Window:
    """The lowest and the highest level of a deep image."""
    values = levels(image)
    low, high = (int(values.min()), int(values.max())) if values.size else FULL
    if low < FULL[0] or high > FULL[1]:
        raise Unreadable(
            f"mode {image.mode} with levels {low}..{high}, outside 0..65535: say which levels count (window, --window)"
        )
    return low, high


def common_window(ranges: Iterable[Window]) -> Window:
    """From the lowest level of all to the highest; the 16 bits where these are as good as all used, or one level is."""
    lows, highs = zip(*ranges, strict=True)
    low, high = min(lows), max(highs)
    whole = low < _ONE_LEVEL and high > FULL[1] - _ONE_LEVEL
    return FULL if whole or low == high else (low, high)


def _eight_bits(values: NDArray[Any], window: Window) -> NDArray[np.uint8]:
    """Rounded; of the full range that is round(v / 257)."""
    if values.dtype == np.uint16:
        table: NDArray[np.uint8] = _scaled(np.arange(1 << 16), window)  # a look-up needs less memory than sums
        return np.take(table, values)
    return _scaled(values.astype(np.int64), window)


def _scaled(values: NDArray[np.int64], window: Window) -> NDArray[np.uint8]:
    low, high = window
    span = high - low
    return ((2 * 255 * (values.clip(low, high) - low) + span) // (2 * span)).astype(np.uint8)


def _deep_colour(image: Image.Image) -> re.Match[str] | None:
    """The layout in the file, where it has 16 bits for a colour. A picture that is in memory already has 8."""
    if not isinstance(image, ImageFile.ImageFile) or not image.tile or image.format not in ("PNG", "TIFF"):
        return None
    layout = image.tile[0][3]
    return _DEEP_COLOUR.fullmatch(str(layout[0] if isinstance(layout, tuple) else layout))


def _sixteen_bits(image: Image.Image) -> NDArray[np.uint16]:
    """(H, W, 3 or 4) of a picture of 16-bit colours: Pillow gives one byte of each two, so it is asked twice."""
    layout = _deep_colour(image)
    assert layout is not None
    kind, order = layout.groups()
    if kind == "LA":  # no layout has its other bytes, but one of four bytes to the pixel has all
        both = _unpacked(image, "RGBA")
        grey, alpha = (both[..., i] << 8 | both[..., i + 1] for i in (0, 2))
        return np.stack([grey, grey, grey, alpha], 2)
    native = "B" if sys.byteorder == "big" else "L"
    other = "L" if (native if order == "N" else order) == "B" else "B"
    low = _unpacked(image, f"{kind};16{other}")
    return np.left_shift(_unpacked(image, layout[0]), 8, dtype=np.uint16) | low


def _unpacked(image: Image.Image, layout: str) -> NDArray[np.uint16]:
    """What a fresh copy of the file gives if its bytes are laid out so."""
    assert isinstance(image, ImageFile.ImageFile)
    assert image.fp is not None
    place = image.fp.tell()
    image.fp.seek(0)
    again: Any = Image.open(io.BytesIO(image.fp.read()), formats=_formats())
    image.fp.seek(place)
    again.tile = [_laid_out(tile, layout) for tile in again.tile]
    again.load()
    channels = np.asarray(again).astype(np.uint16)
    return channels[..., :3] if layout.startswith("RGBX") else channels


def _laid_out(tile: Any, layout: str) -> Any:
    *first, given = tile
    args = (layout, *given[1:]) if isinstance(given, tuple) else layout
    return type(tile)(*first, args) if hasattr(tile, "_fields") else (*first, args)  # before Pillow 11 a plain tuple


def to_rgb(image: Image.Image, look: Look) -> Image.Image:
    """RGB from any mode; transparent pixels show the background instead of the colours hidden under them."""
    image = image.convert(_PREMULTIPLIED[image.mode]) if image.mode in _PREMULTIPLIED else image
    if image.mode == "I" or image.mode.startswith("I;16"):
        if look.window is None:
            level_range(image)  # refuses what 16 bits cannot hold
        return Image.fromarray(_eight_bits(levels(image), look.window or FULL)).convert("RGB")
    if image.mode in ("LA", "PA", "RGBA") or (image.mode in _DIRECT and image.has_transparency_data):
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, look.background)
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    if image.mode in _DIRECT:
        return image if image.mode == "RGB" else image.convert("RGB")
    hint = "; its range is not known, convert it to 8 bits first" if image.mode == "F" else ""
    raise Unreadable(f"mode {image.mode} cannot be shown as RGB{hint}")


def upright(image: Image.Image, look: Look) -> Image.Image:
    """Loads, converts to RGB and applies the EXIF orientation."""
    colours = _windowed(image, look.window) if look.window not in (None, FULL) and _deep_colour(image) else None
    image.load()
    return turned(to_rgb(image if colours is None else colours, look), look, _orientation(image))


def _windowed(image: Image.Image, window: Window | None) -> Image.Image:
    """A picture of 16-bit colours in 8 bits by the window; its transparency has a range of its own."""
    assert window is not None
    values = _sixteen_bits(image)
    values[..., :3] = _eight_bits(values[..., :3], window)
    values[..., 3:] >>= 8
    return Image.fromarray(values.astype(np.uint8))


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
