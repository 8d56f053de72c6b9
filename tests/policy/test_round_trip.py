"""Saving then loading is the identity, for every policy that can be made; files of earlier versions still load."""

import json
import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fasteraa.errors import PolicyError
from fasteraa.ops import OPS, Span
from fasteraa.ops.declare import SIDES
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.named import NAMES
from fasteraa.policy.parts import Strength

# --- every policy that can be made ----------------------------------------------------------------------------------

WEIGHTS = st.one_of(
    st.integers(0, 100),
    st.floats(0, 1e100),
    st.floats(0, 2),
    st.sampled_from([0, -0.0, 5e-324, 1e-300, 1 / 3, 1e100, np.float32(0.1), np.int64(3)]),
)
UNIT = st.one_of(
    st.floats(0, 1),
    st.floats(0, 1, width=32),
    st.sampled_from([0, 1, -0.0, 5e-324, 1 - 2**-53, np.float32(0.7), np.float64(0.3)]),
)
TEXT = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(exclude_categories=()), max_size=20),  # lone surrogates, control characters
    st.sampled_from(["", "\ud83d\ude00", "\udce9", "a\0b", "\x1b[31m", '"""\\', "POLICY: dict = {}"]),
)
FEW = settings(derandomize=True, database=None, deadline=None, max_examples=200)


@st.composite
def choices(draw):
    row = OPS[draw(st.sampled_from(list(OPS)))]
    magnitude = None
    if row.span is not None:
        ends = draw(st.tuples(UNIT, UNIT))
        magnitude = draw(st.sampled_from([ends[0], tuple(sorted(ends)), sorted(ends)]))
    sign = draw(st.sampled_from([None, "+", "-", "random"])) if row.signed else None
    return Choice(row.name, draw(UNIT), magnitude, draw(WEIGHTS), sign)


def positive(parts):
    return sum(part.weight for part in parts) > 0


STAGES = st.lists(choices(), min_size=1, max_size=4).filter(positive)
SUBS = st.builds(SubPolicy, st.lists(STAGES, max_size=3), WEIGHTS)
DURING = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 9), st.integers(10, 20)).map(lambda ends: [end / 20 for end in ends]),
    st.tuples(UNIT, UNIT).map(sorted).filter(lambda ends: ends[1] - ends[0] > 1e-6),
)
PASSING = st.builds(SubPolicy, st.lists(STAGES, max_size=3), WEIGHTS, DURING)
ALWAYS = SubPolicy(((Choice("invert", 0.5),),), 0.1)  # at every moment there is one
STRENGTHS = st.builds(
    Strength,
    st.lists(WEIGHTS, min_size=1, max_size=9).filter(any),
    WEIGHTS,
    WEIGHTS,
)


SPANNED = [row.name for row in OPS.values() if row.span]


@st.composite
def spans(draw):
    """Of some operations: other ends, or pixels instead of shares of a side, in numbers of any kind."""
    found = {}
    for name in draw(
        st.lists(st.sampled_from([row.name for row in OPS.values() if row.span]), unique=True, max_size=4)
    ):
        start, unit = OPS[name].span.at_zero, OPS[name].span.unit
        unit = draw(st.sampled_from([unit, "px"])) if unit in SIDES else unit
        ends = st.one_of(
            st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9), st.sampled_from([np.float32(3), np.int64(7)])
        )
        kind = draw(st.sampled_from([int, float, np.float32]))
        found[name] = Span(kind(start), draw(ends.filter(lambda end, start=start: end != start)), unit)
    return found


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**299), 10**299)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(TEXT | st.integers(), inner),
    max_leaves=8,
)
COLOURS = st.tuples(*[st.integers(0, 255)] * 3)
POLICIES = st.builds(
    Policy,
    st.one_of(
        st.lists(SUBS, min_size=1, max_size=4).filter(positive),
        st.lists(PASSING, min_size=1, max_size=4).map(lambda subs: [*subs, ALWAYS]),
    ),
    TEXT,
    spans(),
    COLOURS,
    COLOURS.map(np.array),
    st.dictionaries(TEXT | st.integers(), PLAIN, max_size=3),
    STRENGTHS,
)


def exactly(policy):
    """Every field to the last bit and sign."""
    return repr([getattr(policy, field.name) for field in fields(policy)])


def check_round_trip(policy):
    text = policy.to_json()
    again = Policy.from_json(text)
    assert again == policy
    assert again.hash == policy.hash
    assert again.to_json() == text
    assert exactly(again) == exactly(policy)
    return again


@FEW
@given(POLICIES)
def test_any_policy(policy):
    again = check_round_trip(policy)
    check_round_trip(pickle.loads(pickle.dumps(policy)))
    check_round_trip(policy.scaled())
    check_round_trip(policy.discretize())
    check_round_trip(policy.flattened())
    check_round_trip(policy.parts[0].policy)
    assert json.loads(policy.to_json())["version"] == 1 + policy.scheduled
    uniform = torch.linspace(0, 1 - 2**-53, 13 * plan_of(policy).width, dtype=torch.float64)
    uniform = uniform[torch.randperm(len(uniform), generator=torch.Generator().manual_seed(0))]
    one, two = (vars(plan_of(each).decode(uniform.reshape(13, -1))) for each in (policy, again))
    for name, column in one.items():
        assert torch.equal(column, two[name]), name


@FEW
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any))
@example([1, 5, 5])
@example([1, 10**30])
@example([10**300 // 10**201, 1])
def test_whole_number_shares(shares):
    """One in eight was refused as changed: normalised and rounded when it was made, and again when it was read."""
    policy = Policy.named("uniform").with_strength(shares)
    check_round_trip(policy)
    check_round_trip(policy.with_strength(policy.strength.passes))
    assert policy.with_strength(policy.strength.passes) == policy
    known = [share / sum(shares) for share in shares]
    assert policy.strength.passes == pytest.approx(known[: len(policy.strength.passes)], rel=1e-8, abs=1e-12)


@FEW
@given(STRENGTHS)
def test_strengths_are_normal(strength):
    assert sum(strength.passes) == pytest.approx(1, abs=1e-8)
    assert strength.passes[-1] > 0
    assert Strength(strength.passes, strength.magnitude, strength.probability) == strength


@pytest.mark.parametrize("name", NAMES)
def test_named_policies(name, tmp_path):
    policy = Policy.named(name)
    policy.save(tmp_path / "p.json")
    assert exactly(Policy.load(tmp_path / "p.json")) == exactly(policy)
    for shares in ([1, 5, 5], [3, 3, 1], [7, 1, 5]):
        check_round_trip(policy.with_strength(shares, 1 / 3, 2 / 3))


def test_equal_policies_have_equal_hashes():
    """A minus before zero, and a share too small to be left, do not count."""
    one = Policy((SubPolicy(((Choice("rotate", 0.0, 0.0, 1.0), Choice("flip", 1.0)),)),))
    two = Policy((SubPolicy(((Choice("rotate", -0.0, (-0.0, 0.0), 1.0), Choice("flip", 1.0)),)),))
    assert one == two
    assert one.hash == two.hash
    assert one.with_strength([0, 1e100, 1e-300]) == one
    assert one.with_strength([0, 1e100, 1e-300]).strength.passes == (0.0, 1.0)


# --- files of earlier versions --------------------------------------------------------------------------------------


def test_a_file_that_version_0_1_wrote_and_refused():
    policy = Policy((SubPolicy(((Choice("invert"),),)),)).with_strength([1, 5, 5])
    content = json.loads(policy.to_json())
    assert content["strength"]["passes"] == [0.0909090909, 0.454545455, 0.454545455]
    assert content["hash"] == "sha256:81bd6d5b5912129097836ee1e64ce80e37edc1320a49a33640706691c1ccfd3c"
    assert Policy.from_json(json.dumps(content)) == policy


@pytest.mark.parametrize(
    ("passes", "shares"),
    [
        ([1, 5, 5], [0.0909090909, 0.454545455, 0.454545455]),
        ([0.5, 0.5, 0.0], [0.5, 0.5]),
        ([0.0909090909, 0.454545455, 0.454545455], [0.0909090909, 0.454545455, 0.454545455]),
    ],
)
def test_shares_written_by_hand(passes, shares):
    content = json.loads(Policy.named("cutout").to_json())
    del content["hash"]
    read = Policy.from_json(json.dumps({**content, "strength": {"passes": passes}}))
    assert list(read.strength.passes) == shares


# --- what can be made can be saved ----------------------------------------------------------------------------------


def circle():
    inside = {}
    inside["again"] = inside
    return inside


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "the name of a policy must be text, got 3"),
        ({"name": None}, "the name of a policy must be text, got None"),
        ({"provenance": [1]}, "the provenance of a policy must be a mapping, got list"),
        ({"provenance": {"a": math.nan}}, "plain values of JSON"),
        ({"provenance": {"a": {1, 2}}}, "plain values of JSON"),
        ({"provenance": {(1, 2): 1}}, "plain values of JSON"),
        ({"provenance": {"a": deep(99)}}, "nests deeper than 100 levels"),
        ({"provenance": {"a": deep(10_000)}}, "nests deeper|plain values of JSON"),
        ({"provenance": {"a": 10**400}}, "a number of more than 300 digits"),
        ({"provenance": {"a": 16**5000}}, "plain values of JSON"),
        ({"provenance": circle()}, "plain values of JSON"),
        ({"spans": {"rotate": Span(0, 1e10, "degree")}}, "at_one must be a number, at most 1e"),
        ({"spans": {"rotate": Span(0, -(10**400), "degree")}}, "at_one must be a number, at most 1e"),
        ({"spans": {"rotate": Span(0, "9", "degree")}}, "at_one must be a number, at most 1e.*, got '9'"),
        ({"spans": {"rotate": Span(False, 9, "degree")}}, "at_zero must be a number"),
        ({"strength": 2}, "the strength of a policy must be a Strength"),
        ({"sub_policies": ((Choice("invert"),),)}, "a policy is made of sub-policies"),
    ],
)
def test_what_could_not_be_read_again_is_not_made(change, message):
    with pytest.raises(PolicyError, match=message) as told:
        replace(Policy.named("cutout"), **change)
    assert len(str(told.value)) < 500


def test_a_file_that_would_be_too_large_is_not_written(tmp_path):
    Policy.named("none").save(tmp_path / "p.json")
    with pytest.raises(PolicyError, match="MiB"):
        replace(Policy.named("none"), provenance={"a": "x" * (17 << 20)}).save(tmp_path / "p.json")
    assert Policy.load(tmp_path / "p.json") == Policy.named("none")


def test_provenance_is_kept_as_it_is_read():
    given = {"size": (32, 48), 3: np.float64(0.5), "none": None, "deep": {True: [()]}}
    policy = replace(Policy.named("none"), provenance=given)
    assert policy.provenance == {"size": [32, 48], "3": 0.5, "none": None, "deep": {"true": [[]]}}
    given["size"] = "changed"
    assert policy.provenance["size"] == [32, 48]  # it is no part of a frozen policy
