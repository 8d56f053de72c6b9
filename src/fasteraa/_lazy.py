"""Import torch when it is first used, so that reading a policy or printing help costs no seconds and needs no torch."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # introspection (pickle, inspect, doctest) is no use of the module
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


def lazy_import(name: str) -> Any:
    return _LazyModule(name)
