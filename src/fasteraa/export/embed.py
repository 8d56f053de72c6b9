"""A Python file that carries a policy and makes the target's object from it; it needs fasteraa."""

from __future__ import annotations

from fasteraa._version import __version__
from fasteraa.export.fidelity import lines
from fasteraa.policy.policy import Policy
from fasteraa.runtime.documents import printable

_FILE = '''\
"""{title} for {target}. Written by fasteraa {version}, which it needs.

{fidelity}
"""

import fasteraa

POLICY = fasteraa.Policy.from_json(
{json}
)


def make(**options):
    """{about}"""
    return POLICY.to_{target}(**options)
'''


def embed(policy: Policy, target: str, about: str) -> str:
    return _FILE.format(
        title=title(policy),
        target=target,
        version=__version__,
        fidelity="\n".join(lines(policy, target)) or "It leaves every image alone.",
        json="\n".join(f"    {line!r}" for line in policy.to_json().splitlines(keepends=True)),
        about=about,
    )


def title(policy: Policy) -> str:
    """The policy's name and hash, fit to stand in a docstring."""
    name = printable(" ".join(policy.name.split())).encode("ascii", "replace").decode()
    return f"Policy {name.replace(chr(92), '/').replace(chr(34), chr(39))} ({policy.hash[:19]})"
