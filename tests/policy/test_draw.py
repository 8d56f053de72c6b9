"""Draws against exact binomial bounds; one image and a batch decode the same numbers to the same deeds."""

import pytest
import torch

from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.named import NAMES

binom = pytest.importorskip("scipy.stats").binom
MANY = 20_000


def within(count: int, n: int, p: float) -> bool:
    """A two-sided exact binomial test at one in a million."""
    low, high = binom.ppf(5e-7, n, p), binom.ppf(1 - 5e-7, n, p)
    return low <= count <= high


POLICY = Policy(
    (
        SubPolicy(
            (
                (
                    Choice("rotate", 0.3, (0.2, 0.6), 2.0),
                    Choice("shear_x", 0.9, 0.5, 0.0),
                    Choice("brightness", 1.0, 0.5, 1.0, "-"),
                    Choice("invert", 0.5, weight=1.0),
                ),
                (Choice("color", 1.0, 0.25, sign="+"),),
            ),
            3.0,
        ),
        SubPolicy(((Choice("flip", 0.7),),), 1.0),
        SubPolicy((), 0.0),
    )
)


def test_frequencies():
    plan = plan_of(POLICY)
    draw = plan.draw(MANY, torch.Generator().manual_seed(0))
    name = {number: row.name for number, row in enumerate(plan.ops)} | {-1: "nothing"}
    first, second = (
        [name[number] for number in draw.op[:, 0].tolist()],
        [name[number] for number in draw.op[:, 1].tolist()],
    )
    expected = {
        "rotate": 0.75 * 0.5 * 0.3,
        "shear_x": 0.0,
        "brightness": 0.75 * 0.25,
        "invert": 0.75 * 0.25 * 0.5,
        "flip": 0.25 * 0.7,
    }
    for op, chance in expected.items():
        assert within(first.count(op), MANY, chance), (op, first.count(op) / MANY, chance)
    assert within(second.count("color"), MANY, 0.75)
    assert second.count("nothing") == MANY - second.count("color")
    rotated = torch.tensor([op == "rotate" for op in first])
    angle, turn = draw.magnitude[rotated, 0], draw.sign[rotated, 0]
    assert 0.2 <= angle.min() < 0.21
    assert 0.59 < angle.max() <= 0.6
    assert within(int((angle < 0.4).sum()), len(angle), 0.5)
    assert within(int((turn > 0).sum()), len(turn), 0.5)
    assert set(draw.sign[torch.tensor([op == "brightness" for op in first]), 0].tolist()) == {-1.0}
    assert set(draw.sign[torch.tensor([op == "color" for op in second]), 1].tolist()) == {1.0}
    assert within(int((draw.hole[:, 0] < 0.3).sum()), 2 * MANY, 0.3)
    assert within(int((draw.partner < 0.3).sum()), 2 * MANY, 0.3)


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_one_image_decodes_as_a_batch_does(name):
    plan = plan_of(POLICY if name == "mixed" else Policy.named(name))
    uniform = torch.rand(300, plan.width, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2**-53  # the ends of the interval
    draw = plan.decode(uniform)
    for index, numbers in enumerate(uniform.tolist()):
        deeds = plan.decode_one(numbers)
        kept = [k for k in range(plan.depth) if draw.op[index, k] >= 0]
        assert [deed.op for deed in deeds] == [plan.ops[int(draw.op[index, k])] for k in kept]
        for deed, k in zip(deeds, kept, strict=True):
            assert deed.magnitude == draw.magnitude[index, k].item()
            assert deed.sign == draw.sign[index, k].item()
            assert list(deed.hole) == draw.hole[index, k].tolist()
            assert deed.partner == draw.partner[index, k].item()


def test_repeats_from_a_seed():
    plan = plan_of(POLICY)
    one, two, other = (plan.draw(50, torch.Generator().manual_seed(seed)) for seed in (7, 7, 8))
    assert torch.equal(one.magnitude, two.magnitude)
    assert torch.equal(one.op, two.op)
    assert not torch.equal(one.magnitude, other.magnitude)


def test_a_chunk_shares_what_is_chosen_and_nothing_else():
    for policy in (POLICY, POLICY.with_strength(2)):
        plan = plan_of(policy)
        alone = plan.uniform(10, torch.Generator().manual_seed(3))
        chunked = plan.uniform(10, torch.Generator().manual_seed(3), chunk=4)
        same = chunked == chunked[[0, 0, 0, 0, 4, 4, 4, 4, 8, 8]]
        shared = same.all(0)
        passes = 1 if plan.single else plan.most
        assert int(shared.sum()) == (not plan.single) + passes * (1 + policy.depth)
        assert torch.equal(chunked[:, ~shared], alone[:, ~shared])
        assert torch.equal(chunked[::4], alone[::4])
        assert torch.equal(plan.uniform(10, torch.Generator().manual_seed(3), chunk=1), alone)
