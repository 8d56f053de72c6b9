"""Triton twins of the families' forwards: a whole batch at once, whatever mix of operations was drawn.

Plain torch is the definition; the hard twins give the same bytes, the soft ones the same up to rounding. Triton is
imported by the modules of this folder and by `nets.kernels`, and by nothing else.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fasteraa.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@cache
def available() -> bool:
    """Is Triton installed?"""
    return find_spec("triton") is not None


@cache
def works_on(device: torch.device) -> bool:
    """Can Triton be used on this device? On a GPU it also needs a C compiler, a folder to write to, a card it knows:
    found out by running a tiny kernel, once. Where it cannot, a warning says why, and plain torch does the work.
    """
    if device.type != "cuda" or not available():
        return False
    from fasteraa.ops.kernels.probe import probe

    try:
        return probe(device)
    except Exception as error:  # whatever is wrong with it, the work can be done without
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(f"Triton does not work here ({why}): plain torch is used, which is slower", stacklevel=3)
        return False


def choose(kernels: bool | None, device: torch.device, against: Callable[[], str | None]) -> bool:
    """What was asked for; otherwise (None) kernels on a GPU, wherever they can be had.

    `against` says what a call needs that it has not got.
    """
    if kernels is None:
        return device.type == "cuda" and against() is None and works_on(device)
    missing = against() if kernels else None
    if missing:
        raise ImageError(f"kernels=True needs {missing}")
    return kernels
