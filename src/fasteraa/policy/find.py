"""A policy from whatever a person types: a file, or a name."""

from __future__ import annotations

from pathlib import Path

from fasteraa.errors import PolicyError, choices_hint
from fasteraa.policy.artifact import Policy
from fasteraa.policy.named import NAMES, named


def find_policy(text: str) -> Policy:
    """`runs/a/policy.json`, the run folder `runs/a`, `trivialaugment-wide` or `randaugment(2,14)`."""
    path = Path(text)
    if path.is_dir():
        path = path / "policy.json"
    if path.suffix == ".json" or path.is_file():
        return Policy.load(path)
    key = text.split("(")[0].strip().lower()
    if key not in NAMES:
        raise PolicyError(f"no such policy file, and no policy of that name: {text!r}; {choices_hint(key, NAMES)}")
    return named(text)
