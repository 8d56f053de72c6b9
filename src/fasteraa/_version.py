"""Which fasteraa this is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__version__ = "0.2.0"


@cache
def commit() -> str | None:
    """That of the checkout which the package runs from, `-dirty` if there are changes; None where there is none."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    import subprocess

    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
