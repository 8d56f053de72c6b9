"""Policies that somebody names, as candidates of a race."""

from __future__ import annotations

from collections.abc import Sequence

from fasteraa.comparison.contenders import parse_contenders, split_names
from fasteraa.errors import ConfigError
from fasteraa.methods import Candidate
from fasteraa.policy.policy import Policy
from fasteraa.policy.resolve import load_policy
from fasteraa.runtime.files import as_file_name
from fasteraa.selection.race import with_none
from fasteraa.train.runner import Say


def parse_candidates(given: str | Sequence[str | Policy | Candidate], say: Say) -> list[Candidate]:
    """`none,runs/a,mine=policy.json`, or a list of names, policies and candidates. `none` takes part in any case."""
    return with_none(_named(given) if isinstance(given, str) else [_candidate(each) for each in given], say)


def _named(text: str) -> list[Candidate]:
    """A policy is called by its name, unless it is given another."""
    candidates: dict[str, Candidate] = {}
    for part, contender in zip(split_names(text), parse_contenders(text, 1), strict=True):
        if len(contender.policies) > 1:
            raise ConfigError(f"a race takes one policy for each label, {contender.label!r} has several")
        (policy,) = contender.policies
        is_label = part != contender.label and part.startswith(contender.label)  # LABEL=PATH
        label = contender.label if is_label else _label(policy)
        if label in candidates:
            raise ConfigError(f"two policies are called {label!r}; name one of them: OTHER={contender.label}")
        candidates[label] = Candidate(label, policy)
    return list(candidates.values())


def _candidate(given: str | Policy | Candidate) -> Candidate:
    if isinstance(given, Candidate):
        return given
    policy = given if isinstance(given, Policy) else load_policy(given)
    return Candidate(_label(policy), policy)


def _label(policy: Policy) -> str:
    """One that can be typed."""
    return as_file_name(policy.name) or "policy"
