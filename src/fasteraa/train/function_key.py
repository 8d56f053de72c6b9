"""What names a Python function in the cache of its scores where nobody gave a key: its code."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from inspect import unwrap
from pathlib import PurePath
from types import CodeType, EllipsisType, FunctionType
from typing import Any

from fasteraa.errors import ConfigError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, EllipsisType, PurePath)


class _UnknownError(Exception):
    """A value that cannot be compared with an earlier one."""


def function_key(function: Callable[..., object]) -> str:
    """Another one when its code, its constants or a function of its file that it calls is edited.

    What it imports is not seen, nor are lists, sets and dicts that it shares: a training may add to them. An object
    with a state cannot be compared, so it needs a key that somebody gives.
    """
    inner = function.func if isinstance(function, partial) else function
    name, module = getattr(inner, "__qualname__", ""), str(getattr(inner, "__module__", ""))
    try:
        content = _described(function, module, [])
    except (_UnknownError, RecursionError, ValueError) as error:  # what holds itself, or what is not made yet
        unknown = error if isinstance(error, _UnknownError) else "value that cannot be read"
        raise ConfigError(
            f"train is or holds a {unknown}, and no change of it would be noticed: name the training, key='...'"
        ) from None
    digest = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()
    return f"{getattr(sys.modules.get(module), '__file__', module)}:{name}:{digest}"


def _described(value: Any, module: str, seen: list[object]) -> str:
    """Alike in every process. `seen` are functions that are described already: they may call themselves."""
    each: list[str]
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, slice):
        return f"slice{_described((value.start, value.stop, value.step), module, seen)}"
    if isinstance(value, list | tuple):
        each = [_described(one, module, seen) for one in value]
    elif isinstance(value, set | frozenset):
        each = sorted(_described(one, module, seen) for one in value)
    elif isinstance(value, dict):
        each = [_described(pair, module, seen) for pair in value.items()]
    elif isinstance(value, partial):
        each = [_described(part, module, seen) for part in (value.func, value.args, value.keywords)]
    elif isinstance(value, CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        each = [_described(part, module, seen) for part in (value.co_code, names, value.co_consts)]
    elif not isinstance(value, FunctionType):
        raise _UnknownError(type(value).__name__)
    elif value.__module__ != module or value in seen:
        return f"{value.__module__}.{value.__qualname__}"
    else:
        seen.append(value)
        closed = [cell.cell_contents for cell in value.__closure__ or () if not _is_shared(cell.cell_contents)]
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, closed)
        each = [_described(part, module, seen) for part in parts] + list(_used(value, seen))
    return f"{type(value).__name__}({', '.join(each)})"


def _used(function: FunctionType, seen: list[object]) -> Iterator[str]:
    """Functions and plain values of its file by name; modules, classes and what else it uses are left out."""
    for name in sorted(_names(function.__code__) & set(function.__globals__)):
        value = function.__globals__[name]
        try:
            if not _is_shared(value):
                yield f"{name}={_described(unwrap(value), function.__module__, seen)}"
        except _UnknownError:
            continue


def _is_shared(value: object) -> bool:
    """A training may change it, so that the same code would get another key."""
    return isinstance(value, list | set | dict)


def _names(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_names, inner))
