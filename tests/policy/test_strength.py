"""How much of a policy is applied: how many sub-policies, at which magnitudes and probabilities."""

import json
from importlib.resources import files

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fasteraa.errors import PolicyError
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.policy import Strength

MANY = 20_000
POLICY = Policy(
    (
        SubPolicy(((Choice("rotate", 0.5, (0.2, 0.6)),), (Choice("invert", 1.0),)), 3.0),
        SubPolicy(((Choice("posterize", 0.8, 0.75),),), 1.0),
    )
)


def within(count, n, p):
    return binom.ppf(5e-7, n, p) <= count <= binom.ppf(1 - 5e-7, n, p)


def test_plain_strength_is_not_written_and_keeps_the_hash():
    assert "strength" not in json.loads(POLICY.to_json())
    assert POLICY.with_strength(passes=1, magnitude=1, probability=1).hash == POLICY.hash
    assert POLICY.with_strength(passes=2).hash != POLICY.hash


@pytest.mark.parametrize("passes", [0, 1, 2, 3, (0.2, 0.3, 0.5), (0.5, 0, 0, 0.5)])
def test_round_trip_and_schema(passes):
    strong = POLICY.with_strength(passes, magnitude=1.5, probability=0.5)
    back = Policy.from_json(strong.to_json())
    assert back == strong
    assert back.hash == strong.hash
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(files("fasteraa.policy").joinpath("schema.json").read_text())
    jsonschema.validate(json.loads(strong.to_json()), schema)


def test_each_knob_stays_when_another_is_turned():
    strong = POLICY.with_strength(passes=2).with_strength(magnitude=0.5).with_strength(probability=0.25)
    assert strong.strength == Strength((0, 0, 1), 0.5, 0.25)


def test_shares_of_passes():
    """Invert always happens in the first sub-policy, so its count tells the number of passes through it."""
    always = Policy((SubPolicy(((Choice("invert"),),)),)).with_strength((0.2, 0.3, 0.0, 0.5))
    draw = plan_of(always).draw(MANY, torch.Generator().manual_seed(0))
    done = (draw.op >= 0).sum(1)
    for count, share in enumerate((0.2, 0.3, 0.0, 0.5)):
        assert within(int((done == count).sum()), MANY, share)


def test_passes_draw_their_sub_policies_anew():
    draw = plan_of(POLICY.with_strength(2)).draw(MANY, torch.Generator().manual_seed(0))
    ops = plan_of(POLICY).ops
    inverted = [(draw.op[:, stage] == [row.name for row in ops].index("invert")) for stage in (1, 3)]
    assert within(int(inverted[0].sum()), MANY, 0.75)
    assert within(int((inverted[0] & inverted[1]).sum()), MANY, 0.75**2)


def test_scales_act_on_every_choice_and_stop_at_one():
    strong = POLICY.with_strength(magnitude=2.0, probability=1.5).scaled()
    rotate, posterize = (sub.stages[0][0] for sub in strong.sub_policies)
    assert (rotate.probability, rotate.magnitude) == (0.75, (0.4, 1.0))
    assert (posterize.probability, posterize.magnitude) == (1.0, 1.0)
    assert strong.strength.plain
    weak = POLICY.with_strength(magnitude=0.5, probability=0.5)
    draw = plan_of(weak).draw(MANY, torch.Generator().manual_seed(0))
    assert float(draw.magnitude[draw.op == 0].max()) <= 0.3
    assert within(int((draw.op[:, 0] == 0).sum()), MANY, 0.75 * 0.25)


@pytest.mark.parametrize("passes", [0, 2, (0.3, 0.3, 0.4)])
@pytest.mark.parametrize("policy", [POLICY, Policy.named("none"), Policy.named("trivialaugment-wide")])
def test_one_image_decodes_as_a_batch_does(policy, passes):
    plan = plan_of(policy.with_strength(passes, 0.7, 0.9))
    uniform = torch.rand(200, plan.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = plan.decode(uniform)
    for image in range(200):
        stages = [k for k in range(plan.depth) if batch.op[image, k] >= 0]
        deeds = plan.decode_one(uniform[image].tolist())
        assert [plan.ops[batch.op[image, k]] for k in stages] == [deed.op for deed in deeds]
        for k, deed in zip(stages, deeds, strict=True):
            assert deed.magnitude == pytest.approx(float(batch.magnitude[image, k]), abs=1e-12)
            assert deed.sign == batch.sign[image, k]
            assert deed.hole == tuple(batch.hole[image, k].tolist())
            assert deed.partner == batch.partner[image, k]


def test_no_pass_leaves_images_alone_and_two_inversions_cancel():
    images = torch.randint(0, 256, (8, 3, 9, 7), dtype=torch.uint8)
    always = Policy((SubPolicy(((Choice("invert"),),)),))
    assert torch.equal(always.with_strength(0)(images), images)
    assert torch.equal(always.with_strength(1)(images), 255 - images)
    assert torch.equal(always.with_strength(2)(images), images)
    assert torch.equal(always.with_strength(3).transform()(images), 255 - images)


def test_words():
    words = POLICY.with_strength((0, 0.5, 0.5), magnitude=1.2).describe().splitlines()[2]
    assert words == "strength: 50% of images pass through 1 sub-policy, 50% through 2; magnitudes x1.2"
    for passes, said in (
        (0, "every image passes through no sub-policy"),
        (3, "every image passes through 3 sub-policies"),
        ((0.996, 0.004), "99.6% of images pass through no sub-policy, 0.4% through 1"),
        ((0, 0, 1, 1), "50% of images pass through 2 sub-policies, 50% through 3"),
    ):
        assert POLICY.with_strength(passes).describe().splitlines()[2] == f"strength: {said}"
    scaled = POLICY.with_strength(magnitude=0.001).describe().splitlines()[2]
    assert scaled == "strength: every image passes through 1 sub-policy; magnitudes x0.001"


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert POLICY.with_strength(np.int64(2)).hash == POLICY.with_strength(2).hash
    assert POLICY.with_strength(np.array([0.5, 0.5])).hash == POLICY.with_strength((0.5, 0.5)).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": 9}, "passes must be in 0..8, got 9"),
        ({"passes": -1}, "passes must be in 0..8, got -1"),
        ({"passes": 2.0}, "passes must be a whole number in 0..8, or a list of the shares of 0, 1, 2, ... passes, got"),
        ({"passes": True}, "passes must be a whole number in 0..8, or a list"),
        ({"passes": "12"}, "passes must be a whole number in 0..8, or a list"),
        ({"passes": {0: 0.5, 2: 0.5}}, "passes must be a whole number in 0..8, or a list"),  # keys are no shares
        ({"passes": ()}, "passes must give the shares of 0 to 8 sub-policies, got 0"),
        ({"passes": (0.0, 0.0)}, "passes must hold a positive share"),
        ({"passes": (1.0, -1.0)}, "weight must be a finite number of at least 0, got -1.0"),
        ({"magnitude": -0.1}, "the scale of magnitude must be a finite number of at least 0, got -0.1"),
        ({"probability": float("nan")}, "the scale of probability must be a finite number of at least 0, got nan"),
    ],
)
def test_impossible_strengths(change, message):
    with pytest.raises(PolicyError, match=message.replace(".", r"\.")):
        POLICY.with_strength(**change)


@pytest.mark.parametrize(
    ("strength", "message"),
    [
        ([], "'strength' must be an object, got list"),
        ({"pases": [1]}, "unknown key 'pases' in 'strength'"),
        ({"passes": 2}, "'passes' must be a list, got int"),
        ({"magnitude": "x"}, "the scale of magnitude must be"),
    ],
)
def test_damaged_strengths(strength, message):
    content = json.loads(POLICY.to_json())
    del content["hash"]
    with pytest.raises(PolicyError, match=message):
        Policy.from_json(json.dumps({**content, "strength": strength}))
