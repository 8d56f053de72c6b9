"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 training`, `12 trainings`; where the plural takes more than an s, it is given."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
