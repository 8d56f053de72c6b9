"""json: the policy file itself."""

from __future__ import annotations

from pathlib import Path

from fasteraa.policy.policy import Policy


def render(policy: Policy) -> str:
    return policy.to_json()


def text(policy: Policy, path: Path) -> str:
    return policy.to_json()
