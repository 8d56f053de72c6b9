"""`python -m fasteraa.testing.parity [device]`: the table of pixels that differ from Pillow, an operation a line."""

from __future__ import annotations

import sys

import PIL
import torch

from fasteraa.ops import OPS
from fasteraa.testing.ops import KINDS, SIZES, parity


def main(device: str = "cpu") -> int:
    where = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"Pillow {PIL.__version__}, torch {torch.__version__}, {where}")
    print(f"{len(KINDS)} kinds of image, {len(SIZES)} sizes, 82 magnitudes, both signs")
    differing = 0
    for name, row in OPS.items():
        result = parity(row, device=device)
        differing += result.differing
        print(f"{name:15s} {result.differing:6d} of {result.pixels:,} pixel values differ", flush=True)
    print(f"{len(OPS)} x 0" if differing == 0 else f"{differing} pixel values differ in all")
    return differing > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
