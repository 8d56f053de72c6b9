"""The search space of black-box methods: codes of whole numbers and their policies."""

from random import Random

import pytest

from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.space import Space, concatenated, space_of
from fasteraa.ops import OPS, Span
from fasteraa.policy.named import named

SPACE = space_of(SearchConfig())


def test_it_is_autoaugments():
    """Five sub-policies of two operations of 16, probability in 11 steps, magnitude in 10: 30 numbers."""
    assert SPACE.sizes == (16, 11, 10) * 10
    assert set(SPACE.ops) == set(OPS) - {"flip"}
    assert len(set(SPACE.names)) == 30
    assert SPACE.names[:4] == ("0.0.op", "0.0.probability", "0.0.magnitude", "0.1.op")
    assert SPACE.names[-1] == "4.1.magnitude"


def test_there_and_back():
    rng = Random(0)
    codes = [SPACE.draw(rng) for _ in range(50)]
    assert len(set(codes)) == 50
    for code in codes:
        policy = SPACE.decode(code, "one")
        again = SPACE.encode(policy)
        assert SPACE.decode(again).hash == policy.hash
        used = [OPS[SPACE.ops[op]].span is not None for op in code[::3]]
        assert again[::3] == code[::3]
        assert again[1::3] == code[1::3]
        assert again[2::3] == tuple(m if has else 0 for m, has in zip(code[2::3], used, strict=True))


def test_numbers_are_steps_from_0_to_1():
    space = Space(("rotate", "invert"), 1, 2)
    first, second = (stage[0] for stage in space.decode((0, 10, 9, 1, 3, 9)).sub_policies[0].stages)
    assert (first.op, first.probability, first.magnitude) == ("rotate", 1.0, 1.0)
    assert (second.op, second.probability, second.magnitude) == ("invert", 0.3, None)
    (least,), _ = space.decode((0, 0, 0, 0, 0, 5)).sub_policies[0].stages
    assert (least.probability, least.magnitude) == (0.0, 0.0)


def test_every_value_is_drawn():
    rng, space = Random(0), Space(("rotate", "invert"), 1, 1)
    drawn = [space.draw(rng) for _ in range(500)]
    for place, size in enumerate(space.sizes):
        assert {code[place] for code in drawn} == set(range(size))


def test_the_settings_of_a_search():
    spans = {"rotate": Span(0, 10, "degree"), "shear_x": Span(0, 0.1, "slope")}
    space = space_of(SearchConfig(ops=("flip", "rotate"), spans=spans, fill=(1, 2, 3)))
    policy = space.decode((0,) * 30)
    assert policy.ops == []  # with probability 0
    assert (dict(policy.spans), policy.fill) == ({"rotate": spans["rotate"]}, (1, 2, 3))
    assert space.decode((0, 1, 0) * 10).ops == ["rotate"]
    assert space_of(SearchConfig(ops=("flip",))) is None


@pytest.mark.parametrize("code", [(), (0,) * 29, (0,) * 31, (16, *(0,) * 29), (-1, *(0,) * 29)])
def test_what_is_no_code(code):
    with pytest.raises(ConfigError, match="a code must be 30 whole numbers below"):
        SPACE.decode(code)


def test_what_is_no_policy_of_it():
    other = Space(("rotate",)).decode((0, 5, 5) * 10)
    assert SPACE.encode(other)[::3] == (SPACE.ops.index("rotate"),) * 10
    for policy in (named("none"), named("uniform"), named("autoaugment-cifar10")):
        with pytest.raises(ConfigError, match="is not one of this search space"):
            SPACE.encode(policy)
    with pytest.raises(ConfigError, match="is not one of this search space"):
        Space(("invert",)).encode(other)


def test_policies_are_concatenated():
    rng = Random(0)
    policies = [SPACE.decode(SPACE.draw(rng)) for _ in range(5)]
    together = concatenated(policies, "five")
    assert together.name == "five"
    assert together.sub_policies == tuple(sub for policy in policies for sub in policy.sub_policies)
    assert len(together.sub_policies) == 25


def test_without_sample_pairing_unless_it_was_named():
    assert len(space_of(SearchConfig()).ops) == 16
    assert set(space_of(SearchConfig()).ops) - set(space_of(SearchConfig(), False).ops) == {"sample_pairing"}
    named_ones = ("rotate", "sample_pairing")
    assert space_of(SearchConfig(ops=named_ones), False).ops == named_ones
