"""When a limit of time is reached: one clock for all limits, `time.time()`, which processes share. How long is said."""

from __future__ import annotations

import math
import time

from fasteraa.errors import ConfigError


def end_of(minutes: float | None) -> float:
    """The moment (time.time()) at which so many minutes will have passed; None is no limit."""
    if minutes is not None and not minutes >= 0:
        raise ConfigError(f"minutes must be at least 0, got {minutes}")
    return math.inf if minutes is None else time.time() + 60 * minutes


def duration(seconds: float) -> str:
    """`3.2 s`, `40 s`, `1 min 20 s`, `2 h 5 min`."""
    if seconds < 1:
        return "less than a second"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = (f"{whole // 3600} h", f"{whole // 60 % 60} min", f"{whole % 60} s")
    return " ".join([part for part in parts if not part.startswith("0 ")][:2])
