"""Errors a user can act on. Each message states the condition, then the value, then the choices."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FasterAAError(Exception):
    """Base of every error that is the caller's to fix; the CLI prints it as one line and exits with 2."""

    exit_code = 2


class PolicyError(FasterAAError):
    """A policy, or a file that should hold one, is not valid."""


class ImageError(FasterAAError):
    """An image has a type, shape or mode that cannot be augmented."""


class DataError(FasterAAError):
    """A data source cannot be read as images with labels."""


class RaceError(DataError):
    """Policies cannot be raced on a data set."""


class SplitError(DataError):
    """A data source has no split of that name."""


class ConfigError(FasterAAError):
    """A setting has an unknown name or an impossible value."""


class ExportError(FasterAAError):
    """A policy cannot be carried over to a target, or the target's package is not there."""


class RunError(FasterAAError):
    """A run could not continue; its folder holds the last good state."""


class Stopped(RunError):
    """A signal ended a run, which can be resumed; the CLI exits with 128 + its number."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal
        self.exit_code = 128 + signal


class RankLost(RunError):
    """Another process that shared a search has ended, and so do the rest; one of them, the rank `told_by`, says so."""

    def __init__(self, message: str, told_by: int = 0):
        super().__init__(message)
        self.told_by = told_by


class ClusterLost(RunError):
    """The head of a Ray cluster is gone. Ray would wait a minute for it before this process may end."""


class OutOfTime(RunError):
    """A time limit ended a run; its folder holds the state to resume from."""


def reason(error: OSError) -> str:
    """Why a file could not be read or written, for the end of an error message."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a part of its path is a file, not a folder"
    return error.strerror or str(error)


def choices_hint(wrong: str, names: Iterable[str]) -> str:
    """`did you mean 'rotate'? choices: ...`, for the end of an error message."""
    names = list(names)
    near = get_close_matches(wrong, names, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + "choices: " + ", ".join(names)
