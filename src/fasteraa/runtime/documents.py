"""Text from outside: the one reader of JSON and TOML files, and names made fit for terminals. No torch.

Whatever a file holds, the caller gets plain values within limits, or one error of the kind it asked for that names the
file. Only regular files are opened: a pipe or a device would be waited for, or read, for ever.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
import unicodedata
from collections.abc import Callable
from typing import Any

from fasteraa.errors import ConfigError, FasterAAError, RunError, reason

MOST_BYTES = 64 << 20
MOST_TOML_BYTES = 1 << 20  # settings of people; tomllib reads about a megabyte a second
MOST_DEPTH = 100
MOST_DIGITS = 300  # of a whole number: every such number is a finite float, too
QUOTED = 200  # characters of what is wrong, in an error message

_BLOCK = 1 << 20
_LARGEST = 10**MOST_DIGITS - 1
_MOST_DOTS = 1000  # of a line of TOML: the time for a dotted key grows with the square of its parts
_UNSEEN = frozenset(("Cc", "Cs", "Zl", "Zp"))  # control characters, lone surrogates, separators of lines
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # writing direction
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

FilePath = str | os.PathLike[str]


# --- documents -------------------------------------------------------------------------------------------------------


def read_json(
    path: FilePath, error: type[FasterAAError] = RunError, *, most: int = MOST_BYTES, nan: bool = True
) -> Any:
    """The value in a JSON file. Without `nan`, numbers that are not finite are refused."""
    return parse_json(read_text(path, error, most=most), error, repr(str(path)), nan=nan)


def parse_json(text: str, error: type[FasterAAError] = RunError, where: str = "the text", *, nan: bool = True) -> Any:
    """The value of a JSON text; `where` names it in errors."""
    return _within_limits(lambda: json.loads(text), "JSON", error, where, nan)


def read_toml(path: FilePath, error: type[FasterAAError] = ConfigError) -> dict[str, Any]:
    """The tables of a TOML file."""
    text, where = read_text(path, error, most=MOST_TOML_BYTES), repr(str(path))
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise error(f"{where} holds a line with more than {_MOST_DOTS} dots")
    tables: dict[str, Any] = _within_limits(lambda: tomllib.loads(text), "TOML", error, where, nan=True)
    return tables


def _within_limits(parse: Callable[[], Any], kind: str, error: type[FasterAAError], where: str, nan: bool) -> Any:
    try:
        value = parse()
    except RecursionError as cause:
        raise error(f"{where} nests deeper than {MOST_DEPTH} levels") from cause
    except ValueError as cause:  # JSONDecodeError, TOMLDecodeError, and Python's own limit on digits
        why = f"a number of more than {MOST_DIGITS} digits" if "integer string" in str(cause) else cut(str(cause))
        raise error(f"{where} is not valid {kind}: {why}") from cause
    if flaw := _flaw(value, nan):
        raise error(f"{where} {flaw}")
    return value


def _flaw(value: Any, nan: bool) -> str | None:
    """What is beyond the limits, looked for level by level: a recursion of ours would have limits of its own."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        nested = False
        for each in level:
            if isinstance(each, dict):
                nested = True
                inner += each.values()
            elif isinstance(each, list):
                nested = True
                inner += each
            elif isinstance(each, int) and not -_LARGEST <= each <= _LARGEST:
                return f"holds a number of more than {MOST_DIGITS} digits"
            elif not nan and isinstance(each, float) and not math.isfinite(each):
                return f"holds {each}, which is not a number"
        if not nested:
            return None
        level = inner
    return f"nests deeper than {MOST_DEPTH} levels"


# --- files -----------------------------------------------------------------------------------------------------------


def read_text(path: FilePath, error: type[FasterAAError] = RunError, *, most: int = MOST_BYTES) -> str:
    """A file in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except OSError as cause:
        raise error(f"{str(path)!r} could not be read: {reason(cause)}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"{str(path)!r} is not text in UTF-8 (byte {cause.start})") from cause
    except ValueError as cause:
        raise error(f"{str(path)!r} could not be read: {cause}") from cause


def read_bytes(path: FilePath, most: int) -> bytes:
    """All of a regular file. ValueError says what else it is, or that it is larger than `most`."""
    check_regular(path, most)
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        _check(status, most)  # it may have been replaced since
        content = file.read(status.st_size + 1)  # memory for as much as is asked for is taken at once
        while status.st_size < len(content) <= most and (block := file.read(_BLOCK)):
            content += block
    if len(content) > most:  # files that the system makes up have no size
        raise ValueError(_too_large(len(content), most))
    return content


def check_regular(path: FilePath, most: float = math.inf) -> None:
    """ValueError unless it is, perhaps through links, a regular file of at most so many bytes."""
    _check(os.stat(path), most)


def _without_waiting(path: str, flags: int) -> int:
    """Python's `open` waits until a pipe has a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check(status: os.stat_result, most: float) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise ValueError(f"it is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file")
    if status.st_size > most:
        raise ValueError(_too_large(status.st_size, most))


def _too_large(size: int, most: float) -> str:
    return f"it has {size / 2**20:,.0f} MiB, the limit is {most / 2**20:,.0f} MiB"


# --- words -----------------------------------------------------------------------------------------------------------


def with_flags(text: str) -> str:
    """A message of the library as the command line says it, where the argument has a flag's name."""
    return text.replace("resume=True", "--resume")


def printable(text: object, keep: str = "") -> str:
    r"""Fit for a terminal, a page or a message: what could steer a terminal, or cannot be encoded, is made visible.

    An escape becomes `\x1b`, a line break `\n` (unless it is in `keep`), a byte of a name that is not UTF-8 `\xe9`.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char in keep else _visible(char) for char in text)


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _UNSEEN and char not in _TURNING:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        code -= 0xDC00
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def cut(text: object, most: int = QUOTED) -> str:
    """The beginning of it, fit to be quoted in a message."""
    shown = printable(text if not isinstance(text, str) else text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def quoted(value: object, most: int = QUOTED) -> str:
    """`repr`, but of a bounded length."""
    if isinstance(value, str):
        return cut(repr(value[: most + 1]), most)
    try:
        return cut(repr(value), most)
    except (ValueError, RecursionError):  # a number of too many digits, or too deep a list
        return f"({type(value).__name__} too large to be shown)"


def plain(value: Any) -> Any:
    """JSON has no infinity: what is not finite, such as the interval of one run, is null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
