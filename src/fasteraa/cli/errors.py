"""A mistake on the command line in one line: what is wrong, what was given, what there is, where the help is.

Some versions of Typer bring their own copy of click, so errors are recognised by their attributes, not by their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from fasteraa.errors import ConfigError
from fasteraa.runtime.documents import cut, quoted

_MOST = 200  # characters of what the parser says

# flags of version 0.1 and what took their place
_RENAMED = {
    "--calibrate": "--race",
    "--no-calibrate": "--no-race",
    "--calibrate-minutes": "--race-minutes",
    "--calibrate-network": "--network",
    "--calibrate-epochs": "--train-epochs",
    "--max-minutes": "--minutes",
    "--backbone": "--critic",
    "--recipe": "--preset",
}
_PATHS = (("--out", "-o"), ("--config",), ("--data-root",), ("--comparison",))  # flags whose value is a path


def is_usage_error(error: BaseException) -> bool:
    """Raised by the parser, not by a command?"""
    return callable(getattr(error, "format_message", None))


def usage_error(error: Any, root: Any, words: Sequence[str]) -> ConfigError | SystemExit:
    """Our error for the parser's. A group without a command is no mistake: its help is printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return SystemExit(0)
    return ConfigError(usage_line(error, root, words))


def usage_line(error: Any, root: Any, words: Sequence[str]) -> str:
    path, command = find_command(root, words)
    message = cut(error.format_message().strip().rstrip("."), _MOST)
    parameter = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        message = _no_such_flag(error.option_name, command)
    elif parameter is not None and type(error).__name__ == "MissingParameter":
        message += f" ({parameter.help.rstrip('.')})" if getattr(parameter, "help", None) else ""
    elif parameter is not None:
        message = _wrong_value(error, parameter, words)
    elif hasattr(command, "commands"):
        message = _joined(message, f"commands: {', '.join(sorted(command.commands))}")
    elif type(error).__name__ == "UsageError":
        message += " (a name with spaces goes in quotes)"
    return _joined(_lower(" ".join(message.split())), f"see {' '.join(path)} --help")


def refuse_unused(context: Any, names: Sequence[str], where: str) -> None:
    """An error for flags that were given and have no effect."""
    given = [name for name in names if context.get_parameter_source(name).name == "COMMANDLINE"]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{flags} {'has' if len(given) == 1 else 'have'} no effect {where}")


def find_command(root: Any, words: Sequence[str]) -> tuple[list[str], Any]:
    """The command that the words lead to, and the words that name it."""
    path, command = ["fasteraa"], root
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is not None:
            path, command = [*path, word], inner
        elif not word.startswith("-"):
            break
    return path, command


def _no_such_flag(flag: str, command: Any) -> str:
    flag = cut(flag, _MOST)
    flags = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    if _RENAMED.get(flag) in flags:
        value = (" paper" if command.name == "search" else " NAME") if flag == "--recipe" else ""
        return f"the flag {flag} is called {_RENAMED[flag]}{value} now"
    near = get_close_matches(flag, [name for name in flags if name.startswith("--")], n=1)
    return f"no such flag {flag}" + (f": did you mean {near[0]}?" if near else "")


def refuse_empty_paths(words: Sequence[str]) -> None:
    """An empty path would mean the current folder; often it is a shell variable without a value."""
    for names in _PATHS:
        if _given(names, words) == " ''":
            raise ConfigError(f"{names[0]} must name a file or folder, got ''")
    for before, word in pairwise(["", *words]):
        if not word and not before.startswith("-"):  # not the value of a flag
            raise ConfigError("an argument must not be empty, got ''")


def _wrong_value(error: Any, parameter: Any, words: Sequence[str]) -> str:
    names = (*parameter.opts, *parameter.secondary_opts)
    return f"wrong value{_given(names, words)} for {' / '.join(names)}: {cut(_lower(error.message).rstrip('.'), _MOST)}"


def _given(names: Sequence[str], words: Sequence[str]) -> str:
    """What stands behind the flag; the last one counts."""
    values = [value for name, value in pairwise(words) if name in names]
    values += [value for word in words for name, equals, value in [word.partition("=")] if equals and name in names]
    return f" {quoted(values[-1])}" if values else ""


def _joined(first: str, second: str) -> str:
    return f"{first} {second}" if first.endswith("?") else f"{first}; {second}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
