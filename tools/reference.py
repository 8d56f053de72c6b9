"""The Python reference: every public name with its signature and its docstring, in Markdown.

Public is what `__all__` of `fasteraa` and of its rooms lists. A public name without words is an error here: write a
docstring, or a comment beside a constant.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

WIDTH = 100  # of a signature, before it is broken into lines


def reference() -> str:
    seen: dict[int, str] = {}
    return "\n\n".join(part for module in public_modules() for part in _module(module, seen))


def public_modules() -> list[Any]:
    import fasteraa

    rooms = [name for _, name, package in pkgutil.iter_modules(fasteraa.__path__) if package]
    modules = [importlib.import_module(f"fasteraa.{room}") for room in sorted(rooms)]
    return [fasteraa, *(module for module in modules if hasattr(module, "__all__"))]


def _module(module: Any, seen: dict[int, str]) -> Iterator[str]:
    yield f"## Module `{module.__name__}`"
    yield _markdown(_words(module.__doc__, module.__name__))
    for name in sorted(module.__all__, key=str.lower):
        full = f"{module.__name__}.{name}"
        if name.startswith("__"):
            continue
        yield f"### `{full}`"
        yield _entry(module, name, full, seen)


def _entry(module: Any, name: str, full: str, seen: dict[int, str]) -> str:
    thing = getattr(module, name)
    if inspect.ismodule(thing):
        if not callable(thing):
            return f"The module: [{thing.__name__}](#{_anchor('Module ' + thing.__name__)})."
        thing = getattr(importlib.import_module(f"{thing.__name__}.run"), name)  # the room called by its own name
    if id(thing) in seen:
        return f"See [{seen[id(thing)]}](#{_anchor(seen[id(thing)])})."
    if not callable(thing) or not hasattr(thing, "__doc__") or _is_alias(thing):
        return _constant(module, name, full)
    seen[id(thing)] = full
    return "\n\n".join(_class(thing, full) if inspect.isclass(thing) else _function(thing, full))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _is_alias(thing: Any) -> bool:
    return hasattr(thing, "__origin__")


# --- functions and classes -------------------------------------------------------------------------------------


def _function(function: Any, full: str) -> Iterator[str]:
    yield f"```python\n{signature(function, full.rpartition('.')[2], WIDTH)}\n```"
    yield _markdown(_words(function.__doc__, full))


def _class(kind: Any, full: str) -> Iterator[str]:
    fields = list(_fields(kind))
    if not fields and not getattr(kind, "_is_protocol", False) and "__init__" in vars(kind):
        yield f"```python\n{signature(kind.__init__, kind.__name__, WIDTH)}\n```"
    generated = dataclasses.is_dataclass(kind) and (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    yield _markdown(_words("" if generated else kind.__doc__, full))
    if fields:
        yield "Fields:\n\n" + "\n".join(fields)
    methods = list(_methods(kind, full))
    if methods:
        yield "Methods and properties:\n\n" + "\n".join(methods)


def _fields(kind: Any) -> Iterator[str]:
    """Of a dataclass or a named tuple, with the words beside each in the source."""
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        return
    comments = _field_comments(kind)
    for name, annotation, default, about in _raw_fields(kind):
        words = about or comments.get(name, "")
        yield f"- `{name}: {annotation}{default}`" + (f": {words}" if words else "")


def _raw_fields(kind: Any) -> Iterator[tuple[str, str, str, str]]:
    if not dataclasses.is_dataclass(kind):
        for name in kind._fields:
            yield name, kind.__annotations__[name], "", ""
        return
    for field in dataclasses.fields(kind):
        default = ""
        if field.default is not dataclasses.MISSING:
            default = f" = {field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            made = field.default_factory.__name__
            default = f" = {made}()" if made.isidentifier() else " = ..."
        yield field.name, str(field.type), default, field.metadata.get("about", "")


def _field_comments(kind: Any) -> dict[str, str]:
    lines = inspect.getsource(kind).splitlines()
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = _comment(lines[(node.end_lineno or node.lineno) - 1])
            if words:
                found[node.target.id] = words
    return found


def _methods(kind: Any, full: str) -> Iterator[str]:
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__call__":
            continue
        function = _function_of(member)
        if function is None:
            continue
        if not function.__doc__ and any(hasattr(base, name) for base in kind.__mro__[1:]):
            continue  # does what the base's does
        words = " ".join(_words(function.__doc__, f"{full}.{name}").split())
        called = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        shown = signature(function, name, None) if called else name
        yield f"- `{shown}`: {words}"


def _function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    if inspect.isfunction(member):
        return member
    return getattr(member, "func", None)  # cached_property


def signature(function: Any, name: str, width: int | None) -> str:
    """`name(a: int = 3, *, b: str) -> Policy`, on one line or a parameter a line; annotations as the source has them.

    Not `str(inspect.signature(...))`, whose quotes and line breaks are another in each version of Python.
    """
    found = inspect.signature(function)
    parts: list[str] = []
    star = False
    for index, parameter in enumerate(found.parameters.values()):
        if index == 0 and parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    end = (
        ""
        if found.return_annotation is found.empty or name[0].isupper()
        else f" -> {_annotation(found.return_annotation)}"
    )
    line = f"{name}({', '.join(parts)}){end}"
    if width is None or len(line) <= width:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{typed}"
    default = getattr(parameter.default, "__name__", None) or repr(parameter.default)
    return f"{parameter.name}{typed}{' = ' if typed else '='}{default}"


# --- constants -------------------------------------------------------------------------------------------------


def _constant(module: Any, name: str, full: str) -> str:
    home = _home(module, name)
    words, source = _constant_words(home, name)
    value = getattr(module, name)
    if isinstance(value, dict | tuple) and value:
        shown = ", ".join(f"`{key}`" for key in value)
    elif isinstance(value, str):
        shown = f'`"{value}"`'
    else:
        shown = f"`{source}`"
    words = _words(words, full).rstrip(".")
    return f"{words[0].upper()}{words[1:]}.\n\n{shown}"


def _home(module: Any, name: str) -> Any:
    """The module in whose source the constant is made."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _home(importlib.import_module(node.module or ""), name)
    return module


def _constant_words(home: Any, name: str) -> tuple[str, str]:
    """The comment beside the constant or in the lines above it, and its source."""
    lines = _source(home.__name__)
    at = next(number for number, line in enumerate(lines) if re.match(rf"{name}\b[^=]*=", line))
    beside = _comment(lines[at])
    above: list[str] = []
    while lines[at - 1 - len(above)].startswith("#"):
        above.insert(0, lines[at - 1 - len(above)].lstrip("# "))
    return beside or " ".join(above), lines[at].partition("  #")[0].strip()


@cache
def _source(module: str) -> list[str]:
    return inspect.getsource(importlib.import_module(module)).splitlines()


def _comment(line: str) -> str:
    words = line.partition("  # ")[2].strip()
    return "" if words.startswith(("type:", "noqa", "fmt:")) else words


# --- words -----------------------------------------------------------------------------------------------------


def _words(doc: str | None, full: str) -> str:
    if not doc or not doc.strip():
        raise LookupError(f"{full} is public and has no words: write a docstring, or a comment beside a constant")
    return inspect.cleandoc(doc)


def _markdown(doc: str) -> str:
    """Paragraphs as they stand; code is fenced, and arguments become a list."""
    parts = []
    for block in re.split(r"\n\s*\n", doc):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            code = "\n".join(line[4:] for line in lines)
            parts.append(f"```python\n{code}\n```")
        elif lines[0] == "Args:":
            parts.append("\n".join(_arguments(lines[1:])))
        elif lines[0].startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```")
        else:
            parts.append(block)
    return "\n\n".join(parts)


def _arguments(lines: list[str]) -> Iterator[str]:
    """`    name: words` with further lines indented deeper, as a list."""
    for item in re.split(r"\n(?=    \S)", "\n".join(lines)):
        name, _, words = " ".join(item.split()).partition(": ")
        yield f"- `{name}`: {words}"
