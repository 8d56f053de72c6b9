"""What hurts: a network with a known weakness is hurt by that and by nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from fasteraa.comparison import per_op as module
from fasteraa.comparison.contenders import parse_contenders
from fasteraa.comparison.per_op import (
    MAGNITUDES,
    ReferenceNetwork,
    clean_network,
    harm_of_ops,
    harm_of_sub_policies,
    per_op,
)
from fasteraa.errors import OutOfTime, RunError, Stopped
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.train.runner import local
from fasteraa.train.runner.local import LocalRunner


@pytest.fixture
def network():
    """Class 1 is bright: it looks at nothing but mean brightness, and is always right on plain images."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    images = torch.randint(0, 50, (400, 3, 8, 8), generator=generator) + 100 * labels.view(-1, 1, 1, 1)
    return ReferenceNetwork(lambda x: (x.float().mean((1, 2, 3)) > 75).long(), images.to(torch.uint8), labels, batch=64)


def test_brightness_hurts_and_flips_do_not(network):
    assert network.accuracy == 100
    harms = {each.op: each.at for each in harm_of_ops(network, [OPS[op] for op in ("flip", "brightness", "invert")])}
    assert set(harms["brightness"]) == set(MAGNITUDES)
    assert harms["flip"] == {1.0: harms["flip"][1.0]}  # it has no magnitude
    assert (harms["flip"][1.0].points, harms["flip"][1.0].half) == (0, 0)
    assert harms["invert"][1.0].points == 50  # dark ones become bright, bright ones (100..149) stay above 75
    assert harms["brightness"][1.0].points > 20
    assert harms["brightness"][0.1].points == 0
    drops = [harms["brightness"][level].points for level in MAGNITUDES]
    assert drops == sorted(drops)


def test_the_most_harmful_comes_first(network):
    order = [each.op for each in harm_of_ops(network, [OPS[op] for op in ("flip", "brightness", "invert")])]
    assert order[-1] == "flip"
    assert set(order[:2]) == {"brightness", "invert"}


def test_intervals_are_those_of_a_mean_over_images(network):
    half_inverted = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "half")
    drop = network.drop(half_inverted)
    assert drop.points == pytest.approx(25, abs=6)
    lost = drop.points / 100
    assert drop.half == pytest.approx(196 * (lost * (1 - lost) / 399) ** 0.5, rel=1e-6)
    assert network.drop(half_inverted) == drop  # the same draws again


def test_sub_policies_one_by_one(network):
    good, bad, never = (
        SubPolicy(((Choice(op, 1.0),),), weight=w) for op, w in (("flip", 3), ("invert", 1), ("invert", 0))
    )
    harms = harm_of_sub_policies(network, Policy((good, bad, never), "mixed"))
    assert [(each.number, each.drop.points) for each in harms] == [(1, 50.0), (0, 0.0)]


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.fixture
def runner(cache):
    return LocalRunner(cache, device="cpu", jobs=1)


def test_no_network_comes_of_a_run_that_failed(runner, split, tiny):
    for _ in range(2):
        with pytest.raises(RunError, match=r"no network to measure .* none, seed 0: the training loss was not finite"):
            clean_network(runner, split, replace(tiny, learning_rate=1e30, clip=0))


def test_the_network_is_trained_without_a_policy_and_kept(runner, split, tiny, monkeypatch):
    assert clean_network(runner, split, tiny).accuracy == 100
    (record,) = runner.cache.runs.glob("none-0-*.json")
    (network,) = (runner.cache.folder / "networks").glob("none-0-*.pt")
    monkeypatch.setattr(local, "train_together", lambda *given, **options: pytest.fail("trained again"))
    assert clean_network(runner, split, tiny).accuracy == 100
    monkeypatch.setitem(module._MOST, "cpu", 10)
    assert len(clean_network(runner, split, tiny).images) == 10
    network.write_bytes(b"no network")
    with pytest.raises(RunError, match=r"is damaged \(it is too short\): remove it"):
        clean_network(runner, split, tiny)
    assert record.exists()


def test_time_that_is_up_and_ctrl_c(runner, split, tiny, monkeypatch):
    with pytest.raises(OutOfTime):
        clean_network(runner, split, tiny, until=0.0)

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local, "train_together", interrupted)
        with pytest.raises(Stopped, match="trained to measure operations: give the same command again") as caught:
            clean_network(runner, split, tiny, until=math.inf)
    assert caught.value.exit_code == 130


def test_everything_that_is_measured_is_there(runner, split, tiny, monkeypatch):
    monkeypatch.setattr(module, "OPS", {name: OPS[name] for name in ("flip", "invert")})
    two = Policy(tuple(SubPolicy(((Choice(op, 1.0),),)) for op in ("flip", "invert")), "two")
    measured = per_op(runner, split, tiny, parse_contenders(["none", two, "several=uniform+random"], 2))
    assert (measured.accuracy, measured.images, measured.held_out_from) == (100, 40, "test images")
    assert measured.on_test_images
    assert {each.op for each in measured.ops} == {"flip", "invert"}
    assert [policy.name for policy, _ in measured.policies] == ["two"]  # the others have one sub-policy
    drops = {each.number: each.drop.points for each in measured.policies[0][1]}
    assert drops[0] == pytest.approx(100, abs=10)  # left and right are the classes
