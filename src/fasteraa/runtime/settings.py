"""The base of validated settings: a frozen dataclass whose fields say what they mean and what they may be.

A field is declared once, with `setting(default, about, ...)`: help text, type, limits and choices come from there, for
Python, TOML files and the command line alike.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import Any, Self

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.runtime.documents import quoted

_WORDS: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", tuple: "a list", dict: "a table",
}  # fmt: skip

# what TOML does not allow as it is between quotation marks
_ESCAPED = {chr(code): f"\\u{code:04x}" for code in (*range(32), 127)} | {"\\": "\\\\", '"': '\\"'}


def setting(
    default: Any,
    about: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: int | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A field: its help, and its limits (`least` <= value <= `most`, `above` < value < `below`)."""
    limits = {"least": least, "above": above, "below": below, "most": most, "choices": choices}
    return field(default=default, metadata={"about": about, **limits})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Checks itself when it is made, whoever makes it."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = self._converted(each.name, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            _check(each, value)

    @classmethod
    def fields(cls) -> dict[str, Field[Any]]:
        return {each.name: each for each in dataclasses.fields(cls)}

    @classmethod
    def make(cls, settings: Mapping[str, Any]) -> Self:
        """From plain values (TOML, JSON, flags); unknown names and wrong types are errors."""
        for name in settings:
            if name not in cls.fields():
                raise ConfigError(f"unknown setting {quoted(name, 60)}: {choices_hint(str(name)[:60], cls.fields())}")
        return cls(**settings)

    def plain(self) -> dict[str, Any]:
        """Plain values, as TOML and JSON hold them; settings that are None are left out."""
        values = dataclasses.asdict(self).items()
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values if v is not None}

    def toml(self, table: str) -> str:
        """The values with what each means; settings without a value stand as comments."""
        values, lines = self.plain(), [f"[{table}]"]
        for name, each in self.fields().items():
            if isinstance(values.get(name), dict):
                continue
            lines.append(f"# {each.metadata['about']}")
            lines.append(f"{name} = {toml_value(values[name])}" if name in values else f"# {name} =")
        for name, inner in values.items():
            for key, rows in inner.items() if isinstance(inner, dict) else ():
                lines.append(f"[{table}.{name}.{key}]")
                lines += [f"{row} = {toml_value(value)}" for row, value in rows.items()]
        return "\n".join(lines) + "\n"

    def _converted(self, name: str, value: Any) -> Any:
        return converted(name, value, _kinds(_hints(type(self))[name]))  # type: ignore[arg-type]


def converted(name: str, value: Any, kinds: set[Any]) -> Any:
    """The value as the field has it: whole numbers are numbers, lists are tuples, numpy's numbers are Python's."""
    if isinstance(value, list | tuple) and tuple in kinds:
        return tuple(value)
    try:
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = int(value) if int in kinds else float(value) if float in kinds else value
        elif isinstance(value, Real) and not isinstance(value, bool) and float in kinds:
            value = float(value)
    except OverflowError as error:
        raise ConfigError(f"{name} must be a number, got one of too many digits") from error
    if type(value) not in kinds:
        words = " or ".join(_WORDS.get(kind, str(kind)) for kind in kinds if kind is not types.NoneType)
        raise ConfigError(f"{name} must be {words}, got {quoted(value)}")
    return value


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise ConfigError(f"text must be Unicode, got {value!a:.200}")
        return '"' + "".join(_ESCAPED.get(char, char) for char in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def _check(each: Field[Any], value: Any) -> None:
    limits = each.metadata
    if value is None or not limits:
        return
    if (choices := limits.get("choices")) is not None and value not in choices:
        raise ConfigError(f"unknown {each.name} {quoted(value, 60)}: {choices_hint(str(value)[:60], choices)}")
    least, above, below = (limits.get(name) for name in ("least", "above", "below"))
    if least is not None and not least <= value < math.inf:
        raise ConfigError(f"{each.name} must be a number of at least {least:g}, got {quoted(value)}")
    if above is not None and not above < value < math.inf:
        words = "a positive number" if above == 0 else f"a number above {above:g}"
        raise ConfigError(f"{each.name} must be {words}, got {quoted(value)}")
    if (most := limits.get("most")) is not None and not value <= most:
        raise ConfigError(f"{each.name} must be at most {most}, got {quoted(value)}")
    if below is not None and not value < below:
        raise ConfigError(f"{each.name} must be below {below:g}, got {quoted(value)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _kinds(hint: Any) -> set[Any]:
    """`int | None` -> {int, NoneType}; `tuple[str, ...]` -> {tuple}."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}
