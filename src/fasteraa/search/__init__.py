"""How a policy is found: config, objective (pure functions), step, run (the loop).

`fasteraa.search(source, config)` is `fasteraa.search.run.search`: the room can be called by its own name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fasteraa.search.config import SearchConfig

if TYPE_CHECKING:
    from fasteraa.search.run import SearchResult

__all__ = ["SearchConfig"]


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> SearchResult:
        from fasteraa.search.run import search

        return search(*arguments, **settings)


sys.modules[__name__].__class__ = _Room
