"""A schedule inside a policy: its parts, the file, and transforms that follow the epochs of a training."""

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fasteraa.errors import PolicyError
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.draw import plan_of

NOTHING, INVERT, FLIP = (SubPolicy(tuple((Choice(op),) for op in ops)) for ops in ((), ("invert",), ("flip",)))
# nothing, then invert, then invert and flip
SCHEDULE = Policy(
    (
        replace(NOTHING, during=(0, 0.25)),
        replace(INVERT, during=(0.25, 1)),
        replace(FLIP, during=(0.75, 1), weight=3),
    ),
    "schedule",
)


def ops_of(policy, epochs):
    return ["+".join(policy.at_epoch(epoch, epochs).ops) for epoch in range(epochs)]


def test_it_is_stretched_to_the_length_of_the_training():
    assert ops_of(SCHEDULE, 4) == ["", "invert", "invert", "invert+flip"]
    assert ops_of(SCHEDULE, 8) == ["", "", *["invert"] * 4, *["invert+flip"] * 2]
    assert ops_of(SCHEDULE, 1) == ["invert"]
    assert ops_of(SCHEDULE, 2) == ["invert", "invert+flip"]  # the middle of an epoch counts
    assert SCHEDULE.at_epoch(4, 4) == SCHEDULE.at_epoch(1000, 4) == SCHEDULE.parts[-1].policy
    thirds = Policy(tuple(replace(sub, during=(k / 3, (k + 1) / 3)) for k, sub in enumerate((NOTHING, INVERT, FLIP))))
    for epochs in (3, 6, 9, 300):
        assert ops_of(thirds, epochs) == [op for op in ("", "invert", "flip") for _ in range(epochs // 3)]
    plain = Policy.named("uniform")
    assert plain.at_epoch(3, 7) is plain
    assert [(part.start, part.end, part.policy) for part in plain.parts] == [(0.0, 1.0, plain)]
    assert not any(part.policy.scheduled for part in SCHEDULE.parts)


@pytest.mark.parametrize("numbers", [(-1, 4), (0, 0), (1.5, 4), (True, 4), (0, None), ("1", 4)])
def test_epochs_are_whole_numbers(numbers):
    with pytest.raises(PolicyError, match="must be a whole number of at least"):
        SCHEDULE.at_epoch(*numbers)


@pytest.mark.parametrize(
    "during", [(0.5, 0.5), (0.6, 0.4), (-0.1, 1), (0, 1.1), (0,), 0.5, "ab", (0, float("nan")), (0.5, 0.5 + 1e-12)]
)
def test_what_is_no_part_of_a_training(during):
    with pytest.raises(PolicyError, match="during must be"):
        SubPolicy((), during=during)


def test_there_is_a_sub_policy_at_every_moment():
    for subs in ((replace(FLIP, during=(0.25, 1)),), (replace(FLIP, weight=0), replace(INVERT, during=(0, 0.5)))):
        with pytest.raises(PolicyError, match=r"at every moment of a training .* holds none from"):
            Policy(subs)


# --- the file --------------------------------------------------------------------------------------------------------


def test_version_2_is_written_where_there_is_a_schedule_alone():
    assert json.loads(SCHEDULE.to_json())["version"] == 2
    whole = Policy((replace(FLIP, during=(0, 1)),))
    assert whole == Policy((FLIP,))
    assert whole.to_json() == Policy((FLIP,)).to_json()
    assert json.loads(whole.to_json())["version"] == 1
    assert "during" not in whole.to_json()
    assert SCHEDULE.hash != Policy((NOTHING, INVERT, replace(FLIP, weight=3))).hash


def test_a_file_of_version_1_has_no_schedule():
    content = {**json.loads(SCHEDULE.to_json()), "version": 1}
    with pytest.raises(PolicyError, match="unknown key 'during' in sub-policy 1"):
        Policy.from_json(json.dumps(content))
    content["version"] = True
    with pytest.raises(PolicyError, match="unknown version True of the policy format; choices: 1 or 2"):
        Policy.from_json(json.dumps(content))


# --- without its schedule, and in words ------------------------------------------------------------------------------


def test_the_mean_over_the_training():
    flat = SCHEDULE.flattened()
    assert not flat.scheduled
    assert [sub.weight for sub in flat.sub_policies] == [0.25, 0.5625, 0.1875]
    assert {choice.op: often for choice, often in flat.exposures()} == {"invert": 0.5625, "flip": 0.1875}
    assert list(flat.exposures()) == list(SCHEDULE.exposures())
    again = Policy((*SCHEDULE.sub_policies, replace(NOTHING, weight=9)))
    assert len(again.flattened().sub_policies) == 3  # the same ones are one
    assert Policy.named("uniform").flattened() == Policy.named("uniform")


def test_what_is_made_of_it_keeps_the_schedule():
    strong = SCHEDULE.with_strength(2, 0.5)
    assert [part.policy.strength.most for part in strong.parts] == [2, 2, 2]
    assert SCHEDULE.without("flip").at_epoch(3, 4).ops == ["invert"]
    assert [sub.during for sub in SCHEDULE.discretize().sub_policies] == [(0, 0.25), (0.25, 1), (0.75, 1)]


def test_in_words():
    head, sentence, *lines = SCHEDULE.describe().splitlines()
    assert head.startswith("schedule: a schedule of 3 parts, 3 sub-policies, up to 1 stage, sha256:")
    assert sentence == "About one operation an image, invert and flip, changing during the training."
    assert lines == [
        "from 0% to 25% of the training:",
        "  1. (100%) leave the image alone",
        "from 25% to 75% of the training:",
        "  1. (100%) invert(100%)",
        "from 75% to 100% of the training:",
        "  1. (25%) invert(100%)",
        "  2. (75%) flip(100%)",
    ]


# --- transforms ------------------------------------------------------------------------------------------------------

PICTURE = np.zeros((4, 4, 3), np.uint8)
PICTURE[:, :2] = 200


def what_happened(out):
    """By the first and the last column."""
    first, last = (int(np.asarray(out)[0, column, 0]) for column in (0, 3))
    return {(200, 0): "", (55, 255): "invert", (0, 200): "flip"}[first, last]


@pytest.mark.filterwarnings("ignore:the policy 'schedule' has a schedule")
def test_a_transform_follows():
    image, transform = Image.fromarray(PICTURE), SCHEDULE.transform(epochs=4)
    batch = torch.from_numpy(PICTURE).permute(2, 0, 1).expand(50, -1, -1, -1)
    for epoch, expected in ((None, {"invert", "flip"}), (0, {""}), (2, {"invert"}), (3, {"invert", "flip"})):
        if epoch is not None:
            transform.set_epoch(epoch)
        assert {what_happened(transform(image)) for _ in range(40)} == expected
        assert {what_happened(each.permute(1, 2, 0)) for each in transform(batch)} == expected
        assert {what_happened(transform(PICTURE)) for _ in range(40)} == expected
    transform.set_epoch(1, epochs=8)
    assert what_happened(transform(image)) == ""


def test_it_must_know_how_long_the_training_is():
    with pytest.raises(PolicyError, match=r"must know how long the training is: transform\(epochs=200\), or"):
        SCHEDULE.transform().set_epoch(0)
    with pytest.raises(PolicyError, match="epochs must be a whole number of at least 1, got 0"):
        SCHEDULE.transform(epochs=0)
    plain = Policy.named("cutout").transform()
    plain.set_epoch(3)  # it has no schedule to follow
    assert plain.plan is plan_of(plain.policy)


def test_who_tells_no_epoch_is_told_once():
    transform, image = SCHEDULE.transform(), Image.fromarray(PICTURE)
    with pytest.warns(UserWarning, match="the policy 'schedule' has a schedule: tell its transform set_epoch"):
        transform(image)
    transform(image)


def test_copies_have_an_epoch_of_their_own():
    one = SCHEDULE.transform(epochs=4)
    one.set_epoch(0)
    for two in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert two.plan.ops == []
        two.set_epoch(2)
        assert (one.plan.ops, [op.name for op in two.plan.ops]) == ([], ["invert"])


class Pictures(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return what_happened(self.transform(Image.fromarray(PICTURE)))


@pytest.mark.parametrize(("method", "copied"), [("fork", False), ("fork", True), ("spawn", False)])
def test_workers_that_live_longer_than_an_epoch_follow(method, copied):
    transform = SCHEDULE.transform(epochs=4)
    transform = copy.deepcopy(transform) if copied else transform
    loader = DataLoader(Pictures(transform), 4, num_workers=1, multiprocessing_context=method, persistent_workers=True)
    seen = []
    for epoch in range(4):
        transform.set_epoch(epoch)
        seen.append({what for batch in loader for what in batch})
    assert seen[:3] == [{""}, {"invert"}, {"invert"}]
    assert seen[3] <= {"invert", "flip"}
    transform.set_epoch(0)
    assert {what for batch in loader for what in batch} == {""}
