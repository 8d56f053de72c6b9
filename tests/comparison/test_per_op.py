"""What hurts: a judge with a known weakness is hurt by that and by nothing else."""

from dataclasses import replace

import pytest
import torch

from fasteraa.errors import RunError
from fasteraa.train.split import Arena
from fasteraa.comparison.per_op import MAGNITUDES, Judge, harm_of_ops, harm_of_sub_policies
from fasteraa.comparison.judge import judge_of
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy


@pytest.fixture
def judge():
    """Class 1 is bright: it looks at nothing but mean brightness, and is always right on plain images."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    images = torch.randint(0, 50, (400, 3, 8, 8), generator=generator) + 100 * labels.view(-1, 1, 1, 1)
    return Judge(lambda x: (x.float().mean((1, 2, 3)) > 75).long(), images.to(torch.uint8), labels, batch=64)


def test_brightness_hurts_and_flips_do_not(judge):
    assert judge.accuracy == 100
    found = {each.op: each.at for each in harm_of_ops(judge, [OPS[op] for op in ("flip", "brightness", "invert")])}
    assert set(found["brightness"]) == set(MAGNITUDES)
    assert found["flip"] == {1.0: found["flip"][1.0]}  # it has no magnitude
    assert (found["flip"][1.0].points, found["flip"][1.0].half) == (0, 0)
    assert found["invert"][1.0].points == 50  # dark ones become bright, bright ones (100..149) stay above 75
    assert found["brightness"][1.0].points > 20
    assert found["brightness"][0.1].points == 0
    drops = [found["brightness"][level].points for level in MAGNITUDES]
    assert drops == sorted(drops)


def test_the_most_harmful_comes_first(judge):
    order = [each.op for each in harm_of_ops(judge, [OPS[op] for op in ("flip", "brightness", "invert")])]
    assert order[-1] == "flip"
    assert set(order[:2]) == {"brightness", "invert"}


def test_intervals_are_those_of_a_mean_over_images(judge):
    half_inverted = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "half")
    drop = judge.drop(half_inverted)
    assert drop.points == pytest.approx(25, abs=6)
    lost = drop.points / 100
    assert drop.half == pytest.approx(196 * (lost * (1 - lost) / 399) ** 0.5, rel=1e-6)
    assert judge.drop(half_inverted) == drop  # the same draws again


def test_sub_policies_one_by_one(judge):
    good, bad, never = (
        SubPolicy(((Choice(op, 1.0),),), weight=w) for op, w in (("flip", 3), ("invert", 1), ("invert", 0))
    )
    found = harm_of_sub_policies(judge, Policy((good, bad, never), "mixed"))
    assert [(each.number, each.drop.points) for each in found] == [(1, 50.0), (0, 0.0)]


def test_no_judge_comes_of_a_run_that_diverged(data, held_out, tiny, tmp_path):
    (tmp_path / "cells").mkdir()
    arena = Arena(data, held_out, "test images", tmp_path, "cpu")
    for _ in range(2):
        with pytest.raises(RunError, match=r"no network to judge .* none, seed 0: the training loss was not finite"):
            judge_of(arena, replace(tiny, learning_rate=1e30, clip=0))


def test_the_judge_is_trained_without_a_policy_and_kept(data, held_out, tiny, tmp_path, monkeypatch):
    (tmp_path / "cells").mkdir()
    arena = Arena(data, held_out, "test images", tmp_path, "cpu")
    judge = judge_of(arena, tiny)
    assert judge.accuracy == 100
    (record,) = (tmp_path / "cells").glob("none-0-*.json")
    (network,) = (tmp_path / "networks").glob("none-0-*.pt")
    monkeypatch.setattr("fasteraa.comparison.judge.run_cell", lambda *_: pytest.fail("trained again"))
    assert judge_of(arena, tiny).accuracy == 100
    monkeypatch.setitem(__import__("fasteraa.comparison.judge", fromlist=["x"])._MOST, "cpu", 10)
    assert len(judge_of(arena, tiny).images) == 10
    network.write_bytes(b"no network")
    with pytest.raises(RunError, match="cannot be read: remove it to train it again"):
        judge_of(arena, tiny)
    assert record.exists()
