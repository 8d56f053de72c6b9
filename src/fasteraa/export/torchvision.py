"""torchvision: our transform is one of its v2 transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fasteraa.export.embed import embed
from fasteraa.policy.policy import Policy


def render(policy: Policy, pool: Any = None, mask_fill: int = 0) -> Any:
    return policy.transform(pool, mask_fill)


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "torchvision", "A v2 transform for Pillow or uint8 images: before the conversion to float.")
