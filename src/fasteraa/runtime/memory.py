"""How much memory there is: the machine's, or less where a container sets a limit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SHARE = 0.8  # of the memory, for this process
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int | None:
    """Bytes in all; None where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return None
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *map(_limit, _LIMITS))


def fits(more: float) -> bool:
    """Whether so many bytes can be taken beside those that this process holds already."""
    have = machine_memory()
    return have is None or resident_memory() + more <= SHARE * have


def resident_memory() -> int:
    """Bytes that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def _limit(file: str) -> int:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return sys.maxsize
