"""When a limit of time is reached: one clock for all limits, `time.time()`, which processes share."""

from __future__ import annotations

import math
import time

from fasteraa.errors import ConfigError


def end_of(minutes: float | None) -> float:
    """The moment (time.time()) at which so many minutes will have passed; None is no limit."""
    if minutes is not None and not minutes >= 0:
        raise ConfigError(f"minutes must be at least 0, got {minutes}")
    return math.inf if minutes is None else time.time() + 60 * minutes
