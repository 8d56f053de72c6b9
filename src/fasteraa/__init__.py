"""fasteraa: the best augmentation for your images, found by backpropagation.

>>> import fasteraa
>>> transform = fasteraa.load("policy.json").transform()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fasteraa._version import __version__

if TYPE_CHECKING:
    from fasteraa import ops
    from fasteraa.errors import FasterAAError
    from fasteraa.ops import Span
    from fasteraa.policy import Choice, Policy, SubPolicy
    from fasteraa.policy.find import find_policy as load
    from fasteraa.policy.soft import SoftPolicy
    from fasteraa.search.config import SearchConfig
    from fasteraa.search.run import search

# public name -> where it lives; imported when first used, so that `import fasteraa` costs nothing
_HOMES = {
    "Choice": "fasteraa.policy",
    "FasterAAError": "fasteraa.errors",
    "Policy": "fasteraa.policy",
    "SoftPolicy": "fasteraa.policy.soft",
    "SearchConfig": "fasteraa.search.config",
    "Span": "fasteraa.ops",
    "SubPolicy": "fasteraa.policy",
    "load": "fasteraa.policy.find:find_policy",
    "ops": "fasteraa.ops:",
    "search": "fasteraa.search:",
}

__all__ = [
    "Choice",
    "FasterAAError",
    "Policy",
    "SearchConfig",
    "SoftPolicy",
    "Span",
    "SubPolicy",
    "__version__",
    "load",
    "ops",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fasteraa' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    home = importlib.import_module(module)
    return home if _HOMES[name].endswith(":") else getattr(home, attribute or name)
