"""Policies that somebody names, as candidates of a race."""

from __future__ import annotations

from collections.abc import Sequence

from fasteraa.comparison.contenders import NO_POLICY, parse_contenders, split_names
from fasteraa.errors import ConfigError
from fasteraa.methods import Candidate
from fasteraa.policy.policy import Policy
from fasteraa.runtime.files import as_file_name
from fasteraa.selection.race import with_none
from fasteraa.train.runner import Say


def parse_candidates(given: str | Sequence[str | Policy | Candidate], say: Say) -> list[Candidate]:
    """`none,runs/a,mine=policy.json`, or a list of such and of policies and candidates. `none` takes part in any case.

    A policy is called by its name, unless it is given another.
    """
    parts = split_names(given) if isinstance(given, str) else list(given)
    if not parts:
        raise ConfigError(NO_POLICY)
    candidates = [each if isinstance(each, Candidate) else _candidate(each) for each in parts]
    labels = [each.label for each in candidates]
    for label, part in zip(labels, parts, strict=True):
        if labels.count(label) > 1:
            other = f"OTHER={part}" if isinstance(part, str) else "fasteraa.Candidate('other', policy)"
            raise ConfigError(f"two policies are called {label!r}; name one of them: {other}")
    return with_none(candidates, say)


def _candidate(given: str | Policy) -> Candidate:
    if isinstance(given, Policy):
        return Candidate(_label(given), given)
    (contender,) = parse_contenders([given], 1)
    if len(contender.policies) > 1:
        raise ConfigError(f"a race takes one policy for each label, {contender.label!r} has several")
    (policy,) = contender.policies
    is_label = given != contender.label and given.startswith(contender.label)  # LABEL=PATH
    return Candidate(contender.label if is_label else _label(policy), policy)


def _label(policy: Policy) -> str:
    """One that can be typed."""
    return as_file_name(policy.name) or "policy"
