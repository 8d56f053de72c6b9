"""Every mode, orientation and kind of damage that a folder of pictures may hold."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from fasteraa.data import decode, load
from fasteraa.data.decode import Look, Unreadable


def stored(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def shown(data: bytes, look: Look = Look()) -> np.ndarray:  # noqa: B008
    return np.asarray(decode.upright(decode.open_bytes(data), look))


def test_rgb_is_exact(paint):
    image = paint(1, 5, 7)
    assert (shown(stored(image)) == np.asarray(image)).all()


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_and_bilevel_become_three_equal_channels(paint, mode):
    image = paint(2).convert(mode)
    expected = np.asarray(image.convert("L"))
    assert len(np.unique(expected)) > 1
    assert (shown(stored(image)) == expected[..., None]).all()


def test_sixteen_bit_is_scaled_not_clipped():
    levels = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    expected = np.round(levels / 257).astype(np.uint8)
    for kind in ("PNG", "TIFF"):
        assert (shown(stored(Image.fromarray(levels), kind))[..., 1] == expected).all()


def test_thirty_two_bit_integers_count_as_sixteen_and_not_beyond():
    fine = Image.fromarray(np.array([[0, 65535], [257, 128]], dtype=np.int32))
    assert shown(stored(fine, "TIFF"))[..., 0].tolist() == [[0, 255], [1, 0]]
    with pytest.raises(Unreadable, match=r"levels 0\.\.65536"):
        shown(stored(Image.fromarray(np.array([[0, 65536]], dtype=np.int32)), "TIFF"))


def test_float_is_refused_with_a_reason():
    with pytest.raises(Unreadable, match=r"mode F.*range is not known"):
        shown(stored(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


def test_cmyk_becomes_rgb(paint):
    image = paint(3, 16, 16).convert("CMYK")
    data = stored(image, "JPEG", quality=95)
    assert (shown(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


def half_clear(mode: str) -> Image.Image:
    """Red everywhere, transparent in the right half."""
    image = Image.new("RGBA", (4, 2), (255, 0, 0, 255))
    image.paste((255, 0, 0, 0), (2, 0, 4, 2))
    return image.convert(mode)


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 10, 200)])
def test_transparent_pixels_show_the_background(background):
    pixels = shown(stored(half_clear("RGBA")), Look(background))
    assert (pixels[:, :2] == (255, 0, 0)).all()
    assert (pixels[:, 2:] == background).all()


def test_half_transparent_pixels_are_mixed():
    pixels = shown(stored(Image.new("RGBA", (1, 1), (0, 0, 0, 128))))
    assert pixels.tolist() == [[[127, 127, 127]]]


def test_grey_with_alpha_is_composited():
    pixels = shown(stored(half_clear("LA")))
    assert (pixels[:, 2:] == 255).all()
    assert (pixels[:, :2] == 76).all()  # the luma of pure red


def test_palette_with_a_transparent_entry_is_composited():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putdata([0, 1])
    opaque, clear = shown(stored(image)), shown(stored(image, transparency=1))
    assert opaque.tolist() == [[[10, 20, 30], [200, 100, 0]]]
    assert clear.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_a_colour_declared_transparent_in_an_rgb_png_is_composited():
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (9, 9, 9))
    assert shown(stored(image, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


def oriented(image: Image.Image, orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return stored(image, kind, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_applied_once(paint, orientation, kind):
    data = oriented(paint(4, 16, 32), orientation, kind)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert (shown(data) == expected).all()
    assert decode.shape_of(decode.open_bytes(data), Look()) == expected.shape[:2]


def test_exif_orientation_can_be_left_alone(paint):
    data = oriented(paint(4, 16, 32), 6, "JPEG")
    assert shown(data).shape == (32, 16, 3)
    assert shown(data, Look(exif=False)).shape == (16, 32, 3)


@pytest.mark.parametrize(
    "exif",
    [b"II*\0\xff\xff\xff\xff damaged", b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x04\0\0\0abc\0\0\0\0\0"],
    ids=["points to nowhere", "orientation is a text"],
)
def test_damaged_exif_does_not_cost_the_picture(paint, tmp_path, exif):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(stored(paint(5, 16, 16), "JPEG", exif=b"Exif\0\0" + exif))
    assert len(load(tmp_path, broken_budget=0)) == 1


def flipped_png(image: Image.Image) -> bytes:
    data = bytearray(stored(image))
    data[data.index(b"IDAT") + 20] ^= 0xFF
    return bytes(data)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb() -> bytes:
    """A PNG that claims to have 100,000 x 100,000 pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda image: b"", "empty file"),
        (lambda image: b"this is a letter, not a picture", "not an image that this Pillow can read"),
        (lambda image: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image that this Pillow can read"),
        (lambda image: stored(image, "JPEG")[:-900], "OSError: image file is truncated"),
        (lambda image: stored(image)[:500], "OSError: image file is truncated"),
        (flipped_png, "OSError|SyntaxError|zlib"),
        (lambda image: bomb(), "DecompressionBombError"),
    ],
    ids=["empty", "text", "postscript", "cut jpeg", "cut png", "flipped png", "bomb"],
)
def test_damage_is_an_error_with_a_reason(paint, damage, reason):
    data = damage(paint(6, 64, 64))
    line = "no error at all"
    try:
        decode.pixels(decode.open_bytes(data), (16, 16), Look())
    except Exception as error:
        line = decode.why(error)
    assert re.search(reason, line), line
    assert "0x" not in line
    assert "\n" not in line


def test_more_pixels_than_pillow_finds_safe_are_refused_even_where_it_only_warns(paint, monkeypatch):
    data = stored(paint(7, 10, 10))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(Unreadable, match="10x10 pixels exceed"):
        decode.open_bytes(data)


def test_a_file_named_jpg_may_hold_png(paint, tmp_path):
    (tmp_path / "a.jpg").write_bytes(stored(paint(8)))
    assert (np.asarray(decode.upright(decode.open_file(tmp_path / "a.jpg"), Look())) == np.asarray(paint(8))).all()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "WEBP", "TIFF", "PPM", "AVIF"])
def test_the_other_formats_are_read(paint, kind):
    assert shown(stored(paint(9, 16, 16), kind)).shape == (16, 16, 3)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    assert shown(stored(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0].tolist() == [255, 0, 0]


def test_fit_covers_and_crops_the_centre():
    image = Image.new("RGB", (90, 30), (255, 0, 0))  # wide: red, green, red
    image.paste((0, 255, 0), (30, 0, 60, 30))
    wide = np.asarray(decode.fit(image, (10, 10)))
    assert (wide[:, 1:-1] == (0, 255, 0)).all()  # the outermost columns also weigh what lies beside them
    assert (wide[:, :, 1] > 200).all()
    assert (wide == wide[:, ::-1]).all()
    tall = np.asarray(decode.fit(image.transpose(Image.Transpose.ROTATE_90), (10, 10)))
    assert (tall == wide.transpose(1, 0, 2)).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 7), (7, 3), (64, 64), (200, 10)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (13, 29), (29, 13), (300, 299)])
def test_fit_gives_the_size_asked_for_from_any_size(paint, size, shape):
    fitted = decode.fit(paint(0, *shape), size)
    assert (fitted.height, fitted.width) == size


def test_fit_leaves_the_right_size_alone_and_antialiases(paint):
    image = paint(1, 9, 9)
    assert (np.asarray(decode.fit(image, (9, 9))) == np.asarray(image)).all()
    checks = Image.fromarray(np.indices((64, 64)).sum(0).astype(np.uint8) % 2 * 255).convert("RGB")
    inside = np.asarray(decode.fit(checks, (16, 16)))[1:-1, 1:-1].astype(int)
    assert abs(inside - 127.5).max() < 3


def test_a_large_jpeg_decoded_at_a_lower_scale_looks_the_same(paint):
    smooth = paint(2, 8, 8).resize((512, 512), Image.Resampling.BICUBIC)
    data = stored(smooth, "JPEG", quality=95)
    opened = decode.open_bytes(data)
    quick = decode.pixels(opened, (32, 32), Look())
    assert opened.size == (64, 64)  # twice what was asked for, an eighth of the file's
    exact = np.asarray(smooth.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(quick.astype(int) - exact).mean() < 2


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([(28, 28)] * 3, (28, 28)),
        ([(48, 64)] * 3, (48, 64)),
        ([(65, 65)] * 3, (64, 64)),
        ([(40, 40), (42, 80)], (32, 32)),
        ([(48, 90), (70, 48)], (64, 64)),
        ([(159, 300)], (64, 64)),
        ([(160, 300)], (128, 128)),
        ([(10, 10), (500, 400), (400, 500)], (128, 128)),
    ],
)
def test_default_size(shapes, size):
    assert decode.default_size(shapes) == size
