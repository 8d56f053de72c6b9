"""Named policies against torchvision's own classes."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import autoaugment as published

from fasteraa.errors import PolicyError
from fasteraa.ops import OPS, Pair, hard_pillow
from fasteraa.policy import Policy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.resolve import load_policy
from fasteraa.policy.named import _TORCHVISION

binom = pytest.importorskip("scipy.stats").binom
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
PAIR = Pair(None, (0.5, 0.5), (0, 0, 0), (125, 123, 114))


@pytest.mark.parametrize("which", ["cifar10", "svhn", "imagenet"])
def test_autoaugment_does_what_torchvision_does(which):
    """Every operation of the 25 sub-policies at its strength, both signs, pixel for pixel."""
    theirs = published.AutoAugment(published.AutoAugmentPolicy[which.upper()])
    space = theirs._augmentation_space(10, (32, 32))
    ours = Policy.named(f"autoaugment-{which}")
    assert len(ours.sub_policies) == 25
    compared = 0
    for sub, row in zip(ours.sub_policies, theirs.policies, strict=True):
        for stage, (name, probability, bin_) in zip(sub.stages, row, strict=True):
            (choice,) = stage
            assert (choice.op, choice.probability) == (_TORCHVISION[name], probability)
            strengths, signed = space[name]
            # torchvision's strengths are float32: 0.29999998 for 0.3
            strength = 0.0 if bin_ is None else round(float(strengths[bin_]), 6)
            for sign in (1.0, -1.0) if signed else (1.0,):
                # Pillow's positive shift looks to the right, torchvision's moves to the right
                turned = -sign if name.startswith("Translate") else sign
                one = hard_pillow(OPS[choice.op], IMAGE, choice.range[0], turned, PAIR, ours.spans)
                if name.startswith("Translate"):  # torchvision cuts to whole pixels, Pillow rounds: at most one apart
                    strength = float(round(strength))
                two = published._apply_op(IMAGE, name, strength * sign, InterpolationMode.NEAREST, None)
                assert np.array_equal(np.asarray(one), np.asarray(two)), (name, strength, sign)
                compared += 1
    assert compared >= 50


def strengths_of(policy, op):
    return [choice for choice in policy.choices() if choice.op == op]


def test_randaugment():
    policy = Policy.named("randaugment(3,15)")
    assert policy.depth == 3
    assert Policy.named("randaugment", n=3, m=15) == policy
    (rotate, *_) = strengths_of(policy, "rotate")
    assert policy.span("rotate").value(rotate.magnitude) == 15
    assert policy.span("translate_x").value(strengths_of(policy, "translate_x")[0].magnitude) == pytest.approx(75 / 331)
    assert policy.span("posterize").value(strengths_of(policy, "posterize")[0].magnitude) == 6
    assert policy.span("solarize").value(strengths_of(policy, "solarize")[0].magnitude) == pytest.approx(127.5)
    assert set(policy.ops) == set(_TORCHVISION.values()) - {"invert"}


def test_trivialaugment_draws_as_torchvision_does():
    """One of 14 with equal chance, and the same shares of bits."""
    policy = Policy.named("trivialaugment-wide")
    plan = plan_of(policy)
    many = 50_000
    draw = plan.draw(many, torch.Generator().manual_seed(0))
    for number in range(-1, len(plan.ops)):
        count = int((draw.op == number).sum())
        assert binom.ppf(1e-6, many, 1 / 14) < count < binom.ppf(1 - 1e-6, many, 1 / 14)
    posterized = draw.magnitude[draw.op == plan.ops.index(OPS["posterize"])]
    bits = policy.span("posterize").value(posterized).floor().int().tolist()
    theirs = v2.TrivialAugmentWide._AUGMENTATION_SPACE["Posterize"][0](31, 32, 32).tolist()
    for kept in range(2, 9):
        share = theirs.count(kept) / 31
        assert binom.ppf(1e-6, len(bits), share) < bits.count(kept) < binom.ppf(1 - 1e-6, len(bits), share)
    widest = {"shear_x": 0.99, "rotate": 135, "translate_y": 32, "brightness": 1.99}
    assert {op: policy.span(op).value(1.0) for op in widest} == pytest.approx(widest)


def test_random_is_where_a_search_starts():
    assert Policy.named("random(4,3,7)") == Policy.named("random", sub_policies=4, operation_count=3, seed=7)
    policy = Policy.named("random(4,3,7)")
    assert len(policy.sub_policies) == 4
    assert policy.depth == 3
    assert policy.hash != Policy.named("random(4,3,8)").hash
    total = [sum(c.weight for c in stage) for sub in policy.sub_policies for stage in sub.stages]
    assert total == pytest.approx([1.0] * 12, abs=2e-3)


def test_uniform_covers_every_operation():
    policy = Policy.named("uniform")
    assert policy.ops == list(OPS)
    assert {choice.range for choice in policy.choices() if OPS[choice.op].span} == {(0.0, 1.0)}
    assert Policy.named("uniform", ops=["flip", "rotate"]).ops == ["rotate", "flip"]


def test_none_and_cutout():
    batch = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(Policy.named("none")(batch), batch)
    painted = (Policy.named("cutout")(batch) == torch.tensor([125, 123, 114]).view(1, 3, 1, 1)).all(1)
    assert painted.flatten(1).sum(1).max() <= 17 * 17  # Pillow's rectangle includes its last row and column
    assert painted.flatten(1).sum(1).min() >= 8 * 8


@pytest.mark.parametrize("text", ["randaugment(n=2,m=5)", " RandAugment( 2 , m = 5 ) ", "randaugment(2,5)"])
def test_every_spelling_of_the_settings(text):
    assert Policy.named(text) == load_policy(text) == Policy.named("randaugment", n=2, m=5)
    assert Policy.named(text) != Policy.named("randaugment")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(PolicyError, match="is no run folder"):
        load_policy(str(tmp_path))
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(PolicyError, match="has not ended yet"):
        load_policy(str(tmp_path))
    with pytest.raises(PolicyError, match="no known policy of that name: ''"):
        load_policy("")
