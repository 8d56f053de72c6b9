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
from fasteraa.runtime.documents import cut, quoted, read_json
from fasteraa.runtime.files import sealed, unsealed, write_atomic

_LARGEST = 4 << 20  # bytes
_NUMBERS = {"seconds", "minutes", "count", "trainings", "epochs"}
_MOST = 1e12


class Decisions:
    """Named decisions of one run in a JSON file; without a file they live as long as the object."""

    def __init__(self, file: Path | None, of: str):
        self.file, self.of = file, of  # `of`: a hash of what they were made for; others are forgotten
        content = _content(file) if file is not None else {}
        decided = {name: value for name, value in content.items() if name != "of"}
        mine = content.get("of") == of
        self.content: dict[str, dict[str, Any]] = decided if mine else {}
        self.of_another: Mapping[str, Any] = {} if mine else decided  # what the first decision here replaces

    def decide(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What was decided before, or what is decided now, saved before anybody acts on it."""
        if name not in self.content:
            self.note(name, make())
        return _Decision(self.content[name], self.file)

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
            write_atomic(self.file, json.dumps(sealed({"of": self.of, **self.content}), indent=1) + "\n")


class _Decision(dict[str, Any]):
    """What is missing in it is the file's fault."""

    def __init__(self, values: Mapping[str, Any], file: Path | None):
        super().__init__(values)
        self._file = file

    def __missing__(self, name: str) -> Any:
        raise damaged(self._file, f"{name!r} is missing")


def check_decisions(file: Path) -> None:
    """RunError if there is a file that cannot be used, whatever it is of."""
    _content(file)


def _content(file: Path) -> dict[str, Any]:
    """Empty if there is no file."""
    if not file.exists():
        return {}
    try:
        content = unsealed(read_json(file, most=_LARGEST), needed=True)
    except RunError as error:
        if isinstance(error.__cause__, OSError):  # it may be whole
            raise
        raise damaged(file, error) from error
    except ValueError as error:
        raise damaged(file, error) from error
    if not isinstance(content.get("of"), str):
        raise damaged(file, "'of' must be text")
    for name, value in content.items():
        if name == "of":
            continue
        if not isinstance(value, dict):
            raise damaged(file, f"{cut(name)!r} is not an object")
        for what in _NUMBERS & set(value):
            if not _is_number(value[what]):
                raise damaged(file, f"{what!r} of {cut(name)!r} must be a number, got {quoted(value[what], 40)}")
    return content


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MOST


def damaged(file: Path | None, error: object) -> RunError:
    why = cut(str(error).removeprefix(repr(str(file))).strip())
    return RunError(f"the schedule {str(file)!r} cannot be read ({why}): remove it to plan the race again")
