"""Things that are found by name: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fasteraa.errors import ConfigError, choices_hint


@dataclass(frozen=True)
class Registry:
    """Names of one kind of thing and where each lives (`module:attribute`), imported when it is asked for."""

    kind: str  # for messages: method, runner, ...
    group: str  # of entry points: fasteraa.methods, ...
    builtin: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        return (*self.builtin, *(name for name in self._others() if name not in self.builtin))

    def load(self, name: str) -> Any:
        """The thing itself; an error lists what there is."""
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return getattr(import_module(module), attribute)
        others = self._others()
        if name not in others:
            raise ConfigError(f"unknown {self.kind} {name!r}: {choices_hint(name, self.names())}")
        try:
            return others[name].load()
        except Exception as error:
            raise ConfigError(f"the {self.kind} {name!r} of another package could not be loaded: {error}") from error

    def _others(self) -> dict[str, Any]:
        return {each.name: each for each in entry_points(group=self.group)}
