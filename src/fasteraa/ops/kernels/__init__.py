"""Triton twins of the families' hard forwards: a whole batch at once, whatever mix of operations was drawn.

Plain torch is the definition; these give the same bytes. Triton is imported by the modules of this folder and by
nothing else.
"""

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Is Triton installed?"""
    return find_spec("triton") is not None
