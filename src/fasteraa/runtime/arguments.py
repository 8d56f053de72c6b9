"""Arguments of the functions that people call: one of a wrong type is refused in one sentence, before any work."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar

from fasteraa.errors import ConfigError, FasterAAError
from fasteraa.runtime.documents import quoted

P = ParamSpec("P")
R = TypeVar("R")

# what is accepted for an annotation, where that is more than its instances: numbers of numpy, any list of several
_ACCEPTED: dict[Any, Any] = {int: Integral, float: Real, Path: PathLike, Sequence: Iterable, tuple: (list, tuple)}
_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "True, False", str: "text", Path: "a path", PathLike: "a path",
    Sequence: "a list", Mapping: "a dict", tuple: "a list", Callable: "a function",
}  # fmt: skip


def checks_types(error: type[FasterAAError] = ConfigError) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that raises this error for arguments of other types than it is annotated with."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters, kinds = signature(function).parameters.values(), cache(lambda: _kinds(function))
        names = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):  # Python counts them itself
                if name in kinds() and not any(_fits(value, kind) for kind in kinds()[name]):
                    raise error(f"{name} must be {_words(kinds()[name])}, got {quoted(value)}")
            return function(*args, **kwargs)

        return checked

    return decorate


def _kinds(function: Callable[..., Any]) -> dict[str, list[Any]]:
    """`int | None` -> [int, NoneType], for each parameter with a name and a type; what it returns may cost imports."""
    named = [each for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    typed = {each.name: each.annotation for each in named if each.annotation is not Parameter.empty}
    hints = typing.get_type_hints(SimpleNamespace(__annotations__=typed), function.__globals__)
    parts = {name: typing.get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {name: [typing.get_origin(part) or part for part in kinds] for name, kinds in parts.items()}


def _fits(value: Any, kind: Any) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    return kind is Any or isinstance(value, _ACCEPTED.get(kind, kind))


def _words(kinds: Sequence[Any]) -> str:
    """`text, a path or a Policy`."""
    words = dict.fromkeys(_WORDS.get(kind, f"a {kind.__name__}") for kind in kinds if kind is not NoneType)
    first, comma, last = ", ".join(words).rpartition(", ")
    return f"{first} or {last}" if comma else last
