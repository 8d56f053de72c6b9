"""What a clock decided, kept from the moment it was decided, so that a resumed run is the same run.

How many trainings of which length fit a budget follows from seconds that were measured, and those would be others the
next time. A run asks here first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fasteraa.errors import RunError
from fasteraa.runtime.files import write_atomic


class Decisions:
    """Named decisions of one run in a JSON file; without a file they live as long as the object."""

    def __init__(self, file: Path | None, of: str):
        self.file, self.of = file, of  # `of`: a hash of what they were made for; others are forgotten
        self.content: dict[str, dict[str, Any]] = _read(file, of) if file is not None else {}

    def decide(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What was decided before, or what is decided now, saved before anybody acts on it."""
        if name not in self.content:
            self.note(name, make())
        return self.content[name]

    def get(self, name: str) -> dict[str, Any]:
        return self.content.get(name, {})

    def note(self, name: str, values: Mapping[str, Any]) -> None:
        """Add values to a decision, and save."""
        self.content[name] = {**self.get(name), **values}
        self._save()

    def forget(self, *names: str) -> None:
        """These, or all."""
        self.content = {name: value for name, value in self.content.items() if names and name not in names}
        self._save()

    def _save(self) -> None:
        if self.file is not None:
            write_atomic(self.file, json.dumps({"of": self.of, **self.content}, indent=1) + "\n")


def _read(file: Path, of: str) -> dict[str, dict[str, Any]]:
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("of") != of:
            return {}
        if not all(isinstance(value, dict) for value in content.values()):
            raise ValueError("a decision is not an object")
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise damaged(file, error) from error
    return dict(content)


def damaged(file: Path | None, error: object) -> RunError:
    return RunError(f"the schedule {str(file)!r} cannot be read ({error}): remove it to plan the race again")
