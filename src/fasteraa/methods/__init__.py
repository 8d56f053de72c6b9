"""How policies are proposed: a method is one file. Methods propose, runners judge, the race decides.

A new method is a subclass of `Method` in a file of its own and a line in `METHODS`, or, from another package, an entry
point in the group `fasteraa.methods`. `fasteraa.testing.methods` has the checks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fasteraa.errors import ConfigError
from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.method import Expected as Expected
from fasteraa.methods.method import Published as Published
from fasteraa.runtime.registry import Registry

# Every method by its name.
METHODS = Registry(
    "method",
    "fasteraa.methods",
    {
        "faster-aa": "fasteraa.methods.faster_aa:FasterAA",
        "op-effects": "fasteraa.methods.op_effects:OpEffects",
        "published": "fasteraa.methods.published:PublishedPolicies",
        "random": "fasteraa.methods.random:RandomSearch",
        "randaugment": "fasteraa.methods.randaugment:RandAugmentGrid",
        "fast-aa": "fasteraa.methods.fast_aa:FastAA",
        "autoaugment": "fasteraa.methods.autoaugment:AutoAugment",
        "pba": "fasteraa.methods.pba:PopulationBased",
        "dada": "fasteraa.methods.dada:Dada",
    },
)
# What a search asks unless `methods` names others.
DEFAULT_METHODS = ("faster-aa", "op-effects", "published")
__all__ = ["DEFAULT_METHODS", "METHODS", "Budget", "Candidate", "Method", "load_method", "make_methods"]


def make_methods(
    names: str | Method | Sequence[str | Method], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Method]:
    """`faster-aa,published`, or a list of names and of methods; those with a name may be given `settings` by name."""
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",") if part.strip()]
    parts = [names] if isinstance(names, Method) else list(names)
    if not parts:
        raise ConfigError(f"a search needs a method; choices: {', '.join(METHODS.names())}")
    methods = [part if isinstance(part, Method) else _make(part, (settings or {}).get(part, {})) for part in parts]
    twice = [method.name for method in methods if [each.name for each in methods].count(method.name) > 1]
    if twice:
        raise ConfigError(f"the method {twice[0]!r} was given twice")
    return methods


def load_method(name: str) -> type[Method]:
    """The class of a method."""
    if not isinstance(name, str):
        raise ConfigError(f"a method is a name or a made Method, as in PublishedPolicies(), got {name!r}")
    kind: type[Method] = METHODS.load(name)
    if not (isinstance(kind, type) and issubclass(kind, Method) and kind.name == name):  # a run is resumed by its names
        raise ConfigError(f"the method {name!r} of another package must be a Method with name = {name!r}, got {kind!r}")
    return kind


def _make(name: str, settings: Mapping[str, Any]) -> Method:
    kind = load_method(name)
    return kind.with_settings(settings) if settings else kind()
