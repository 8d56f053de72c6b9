"""Policies that people use without a search: which ones race, how strong they are, and of which operations."""

import pytest

from fasteraa.data import load
from fasteraa.errors import ConfigError
from fasteraa.methods import METHODS, Budget, make_methods
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.published import RACED, PublishedPolicies
from fasteraa.methods.task import Task
from fasteraa.policy.named import named


def candidates(**config):
    task = Task(load(None, size=8, subset=20), SearchConfig(**config), "cpu")
    return {each.label: each.policy for each in PublishedPolicies().candidates(task, Budget(), None)}


def test_what_people_use_takes_part():
    policies = candidates()
    assert list(policies) == list(RACED)
    assert {"none", "trivialaugment-wide", "uniform", "autoaugment-cifar10", "randaugment-2-14"} <= set(policies)
    assert {"randaugment-2-9", "general-mild", "uniform-half"} <= set(policies)  # most sets want less, not more
    assert len({policy.hash for policy in policies.values()}) == len(policies)
    for label, policy in policies.items():
        assert policy.hash == named(label).hash


def test_policies_are_as_strong_as_they_are_called():
    policies = candidates()
    for label, policy in policies.items():
        passes = int(label[-1]) if label.endswith(("-x2", "-x3")) else 1
        assert policy.strength.passes == named("uniform").with_strength(passes).strength.passes, label
    assert policies["uniform-half"].hash == named("uniform").with_strength(probability=0.5).hash
    either = policies["general-or-trivial"]
    assert [sub.weight for sub in either.sub_policies] == [1.0, 1.0]
    for sub, name in zip(either.sub_policies, ("general", "trivialaugment-wide"), strict=True):
        assert sub.stages == named(name).sub_policies[0].stages
    assert not either.spans  # the paper's, not the wide ones


def test_a_choice_of_operations_is_kept_to():
    policies = candidates(ops=("flip", "rotate"))
    assert {"none", "uniform"} <= set(policies)
    assert "trivialaugment-wide" not in policies
    for policy in policies.values():
        assert set(policy.ops) <= {"flip", "rotate"}
    assert policies["uniform"].hash == named("uniform", ops=["flip", "rotate"]).hash


def test_methods_by_name():
    assert [method.name for method in make_methods("faster-aa, published")] == ["faster-aa", "published"]
    mine = PublishedPolicies()
    assert make_methods([mine, "op-effects"])[0] is mine
    for names, words in (
        ("published,published", "the method 'published' was given twice"),
        ("publishd", "unknown method 'publishd': did you mean 'published'"),
        ("", f"a search needs a method; choices: {', '.join(METHODS.names())}"),
        ([], "a search needs a method"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_methods(names)
