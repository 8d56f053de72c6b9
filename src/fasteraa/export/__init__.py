"""Policies for other libraries: `render` gives their objects, `write` a file. One module for each target."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from fasteraa.errors import ExportError, choices_hint
from fasteraa.export.fidelity import check, lines
from fasteraa.policy.describe import strength_words
from fasteraa.policy.policy import Policy
from fasteraa.runtime.files import write_atomic

_log = logging.getLogger(__name__)
# target -> the package it needs; the extra that brings it has the target's name
TARGETS: dict[str, str | None] = {
    "torchvision": None,
    "timm": "timm",
    "albumentations": "albumentations",
    "kornia": "kornia",
    "dali": "nvidia.dali",
    "keras": "keras",
    "python": None,
    "json": None,
}
SEEDS = "leave the seed of A.Compose unset: with one, albumentations 2.0.8 draws the stages of a sub-policy alike"
__all__ = ["TARGETS", "render", "report", "write"]


def render(policy: Policy, target: str, **options: Any) -> Any:
    """The policy as an object of the target: a transform, a layer, a module, or the text of a file."""
    module = _module(target)
    for line in report(policy, target, **options):
        _log.info("%s: %s", target, line)
    _check_options(target, module.render, options)
    return module.render(policy, **options)


def report(policy: Policy, target: str, **options: Any) -> list[str]:
    """How faithful the export is, a line for each operation of the policy; refuses what the target cannot do."""
    _check_target(target)
    notes = [*lines(policy, _label(target, options)), *strength_words(policy)]
    return [*notes, SEEDS] if options.get("native") else notes


def write(policy: Policy, target: str, path: str | os.PathLike[str], **options: Any) -> None:
    """Write the file by which the target takes the policy."""
    module = _module(target)
    check(policy, _label(target, options))
    _check_options(target, module.text, options)
    text: str = module.text(policy, Path(path), **options)
    write_atomic(Path(path), text, ExportError)


def _check_target(target: str) -> None:
    if target not in TARGETS:
        raise ExportError(f"unknown target {target!r}: {choices_hint(target, TARGETS)}")


def _check_options(target: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    options_of_target = [
        name for name, each in signature(function).parameters.items() if each.default is not each.empty
    ]
    for name in options:
        if name not in options_of_target:
            has = f"it has {', '.join(options_of_target)}" if options_of_target else "it has none"
            raise ExportError(f"the target {target!r} has no option {name!r} here: {has}")


def _label(target: str, options: dict[str, Any]) -> str:
    if not options.get("native"):
        return target
    if target != "albumentations":
        raise ExportError(f"only albumentations has a native form, got the target {target!r}")
    return f"{target} --native"


def _missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # its parent is missing
        return True


def _module(target: str) -> Any:
    _check_target(target)
    package = TARGETS[target]
    try:
        return import_module(f"fasteraa.export.{target}")
    except ModuleNotFoundError as error:
        if package is None or not (error.name or "").startswith(package.split(".")[0]):
            raise
        raise ExportError(
            f"the target {target!r} needs the package {package}, which is not installed: "
            f"pip install 'fasteraa[{target}]'"
        ) from error
