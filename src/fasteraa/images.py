"""The image contract, and the only place that converts.

Inside fasteraa an image is a tensor (B, C, H, W) with one or three channels: uint8 levels for the hard forward,
float in [0, 1] for the soft one. Pillow images, numpy arrays and alpha channels are dealt with here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fasteraa._lazy import lazy_import
from fasteraa.errors import ImageError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image
    from torch import Tensor
else:
    torch = lazy_import("torch")
    np = lazy_import("numpy")

PILLOW_MODES = ("L", "RGB", "LA", "RGBA")
LUMA = (19595, 38470, 7471)  # Pillow's ITU-R 601 weights in units of 1/65536; they sum to exactly 1


def check_batch(image: Tensor, *, soft: bool, what: str = "a batch of images") -> None:
    """Raise unless `image` is a batch the hard (uint8) or soft (float) forward accepts."""
    if not isinstance(image, torch.Tensor):
        raise ImageError(f"{what} must be a tensor (B, C, H, W), got {type(image).__name__}")
    if image.ndim != 4:
        raise ImageError(f"{what} must have the shape (B, C, H, W), got {tuple(image.shape)}")
    if image.shape[1] not in (1, 3):
        raise ImageError(f"an image must have 1 or 3 channels, got {image.shape[1]} in shape {tuple(image.shape)}")
    if soft and not image.is_floating_point():
        raise ImageError(f"the soft forward takes float images in [0, 1], got dtype {image.dtype}")
    if not soft and image.dtype != torch.uint8:
        raise ImageError(
            f"a policy is applied to uint8 images, got dtype {image.dtype}: apply it before converting to float"
        )


def check_mode(image: Image.Image) -> None:
    if image.mode not in PILLOW_MODES:
        raise ImageError(
            f"a Pillow image must have one of the modes {', '.join(PILLOW_MODES)}, got {image.mode!r}: "
            "convert it first, for example with image.convert('RGB')"
        )


def to_tensor(image: Image.Image) -> Tensor:
    """Pillow image -> uint8 tensor (C, H, W)."""
    check_mode(image)
    array = np.array(image)
    return from_array(array[..., None] if array.ndim == 2 else array)


def from_array(array: Any) -> Tensor:
    """uint8 numpy array (H, W, C) -> tensor (C, H, W)."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # torch takes neither
        array = array.copy()
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def to_array(image: Tensor) -> Any:
    """Tensor (C, H, W) -> numpy array (H, W, C)."""
    return image.permute(1, 2, 0).contiguous().cpu().numpy()


def to_pillow(image: Tensor) -> Image.Image:
    """uint8 tensor (C, H, W) -> Pillow image."""
    from PIL import Image

    array = to_array(image)
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The colours, and the alpha channel if there is one."""
    check_mode(image)
    if image.mode in ("LA", "RGBA"):
        return image.convert("L" if image.mode == "LA" else "RGB"), image.getchannel("A")
    return image, None


def join_alpha(image: Image.Image, alpha: Image.Image | None) -> Image.Image:
    if alpha is not None:
        image.putalpha(alpha)
    return image


def luma(image: Tensor, whole: bool) -> Tensor:
    """The grey image (B, 1, H, W) of a float image; of `whole` levels 0..255, rounded as Pillow's convert("L") does.

    All sums stay below 2**24, so float32 holds them exactly.
    """
    if image.shape[1] == 1:
        return image
    red, green, blue = image.unbind(1)
    if whole:
        total = (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
        return total.add_(32768).div_(65536).floor_().unsqueeze(1)
    return ((LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue) / 65536).unsqueeze(1)


def fill_for(channels: int, fill: tuple[int, ...]) -> tuple[int, ...]:
    """An RGB fill colour for an image with this many channels: itself, or its luma."""
    if channels == 3:
        return fill
    return ((LUMA[0] * fill[0] + LUMA[1] * fill[1] + LUMA[2] * fill[2] + 32768) >> 16,)


def colour_like(image: Tensor, fill: tuple[int, ...]) -> Tensor:
    """The fill colour (1, C, 1, 1) in the image's own scale; made on its device, so nothing waits for a copy."""
    scale = 255 if image.is_floating_point() else 1
    levels = fill_for(image.shape[1], fill)
    return torch.cat([image.new_full((1, 1, 1, 1), level / scale if scale > 1 else level) for level in levels], 1)
