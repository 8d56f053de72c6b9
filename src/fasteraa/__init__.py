"""fasteraa: the best augmentation for your images, found by backpropagation.

>>> import fasteraa
>>> transform = fasteraa.load("policy.json").transform()
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from fasteraa._version import __version__

# read when torch is imported: threads that spin while they wait cost several times the time of a search where other
# programs use the cores, and gain nothing that was measured where they do not
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from fasteraa import ops
    from fasteraa.api import apply, compare, race, search
    from fasteraa.errors import FasterAAError
    from fasteraa.methods import Candidate
    from fasteraa.methods.config import SearchConfig
    from fasteraa.ops import Span
    from fasteraa.policy import Choice, Policy, SubPolicy
    from fasteraa.policy.resolve import load_policy as load
    from fasteraa.policy.soft import SoftPolicy
    from fasteraa.selection.config import RaceConfig

# public name -> where it lives; imported when first used, so that `import fasteraa` costs nothing
_HOMES = {
    "Candidate": "fasteraa.methods",
    "Choice": "fasteraa.policy",
    "FasterAAError": "fasteraa.errors",
    "Policy": "fasteraa.policy",
    "RaceConfig": "fasteraa.selection.config",
    "SearchConfig": "fasteraa.methods.config",
    "SoftPolicy": "fasteraa.policy.soft",
    "Span": "fasteraa.ops",
    "SubPolicy": "fasteraa.policy",
    "apply": "fasteraa.api",
    "compare": "fasteraa.api",
    "load": "fasteraa.policy.resolve:load_policy",
    "ops": "fasteraa.ops:",
    "race": "fasteraa.api",
    "search": "fasteraa.api",
}

__all__ = [
    "Candidate",
    "Choice",
    "FasterAAError",
    "Policy",
    "RaceConfig",
    "SearchConfig",
    "SoftPolicy",
    "Span",
    "SubPolicy",
    "__version__",
    "apply",
    "compare",
    "load",
    "ops",
    "race",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fasteraa' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    home = importlib.import_module(module)
    return home if _HOMES[name].endswith(":") else getattr(home, attribute or name)
