"""Keep torch's compiler out: what is drawn differs from batch to batch, so there is nothing to trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """In a compiled model, a break of the graph; `torch.compiler.disable` would import the compiler at once."""
    hidden: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not hidden:
            compiler: Any = sys.modules["torch._dynamo"]
            hidden.append(compiler.disable(function))
        return hidden[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
