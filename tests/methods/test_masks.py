"""Searching on images with masks: targets that go where images go, the loss per pixel, runs, planted truths."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from fasteraa.data import ImageSet, load
from fasteraa.data.batches import Normalise
from fasteraa.errors import ConfigError, DataError, RunError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa import step as step_module
from fasteraa.methods.faster_aa.fast_step import make_step
from fasteraa.methods.faster_aa.objective import CriticOutput, class_loss
from fasteraa.methods.faster_aa.run import gradient_search
from fasteraa.methods.faster_aa.step import METRICS, MaskStep
from fasteraa.nets import Critic, PixelCritic, build
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.apply import apply_mask
from fasteraa.policy.draw import plan_of
from fasteraa.policy.soft import SoftPolicy
from fasteraa.report.preview import draw_sheet, overlaid, shown_size
from fasteraa.report.summary import mass
from fasteraa.selection.folds import raceable

from .conftest import Stop, StopAfter

GEOMETRIC = [name for name, row in OPS.items() if row.geometric]
PLAIN = SearchConfig(flip=False, crop=0.0)


def fields(count=128, side=16, seed=0):
    """Red and blue fields with an upright border between them, either colour on either side: mirrors are as good as
    originals, tilted ones do not occur."""
    generator = torch.Generator().manual_seed(seed)
    border = torch.randint(4, side - 3, (count, 1, 1), generator=generator)
    swapped = torch.rand(count, 1, 1, generator=generator) < 0.5
    blue = (torch.arange(side) >= border).expand(count, side, side) ^ swapped
    colours = torch.tensor([[200, 60, 60], [60, 90, 200]])[blue.long()].permute(0, 3, 1, 2)
    images = colours + torch.randint(-20, 20, (count, 3, side, side), generator=generator)
    return ImageSet.of_masks(images.to(torch.uint8).contiguous(), blue.to(torch.uint8), ("red", "blue"), "fields")


def one_hot(masks, classes):
    return torch.stack([(masks == number).float() for number in range(classes)], 1)


def sharp(op, magnitude=0.6, **settings):
    """A soft policy that does one thing for certain."""
    policy = SoftPolicy(1, 1, [op], **settings)
    with torch.no_grad():
        policy.probability.fill_(1.0)
        policy.magnitude.fill_(magnitude)
    return policy


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sub_policies", [1, 3])
def test_targets_are_the_mixture_that_the_image_is(sub_policies):
    """With geometry alone and black from outside, an image of three class channels *is* its target."""
    policy = SoftPolicy(sub_policies, 2, GEOMETRIC, choice_temperature=1.0, gate_temperature=1.0)
    maps = one_hot(torch.randint(4, (8, 12, 10)), 3)
    draw = policy.draw(8)
    moved = policy.follow(maps, draw)
    torch.testing.assert_close(moved, policy(maps, draw))
    assert not torch.allclose(moved, maps)
    assert not moved.requires_grad


def test_targets_are_left_alone_by_what_moves_nothing():
    colour = [name for name, row in OPS.items() if not row.geometric]
    maps = one_hot(torch.randint(5, (6, 9, 9)), 5)
    policy = SoftPolicy(2, 2, colour)
    assert torch.equal(policy.follow(maps, policy.draw(6)), maps)
    mixed = SoftPolicy(1, 1, ["flip", "invert"], choice_temperature=1.0)
    draw = mixed.draw(6)
    share = mixed.shares[0, 0, 0] * mixed._drawn(0, draw)[1][:, 0]
    expected = share.view(-1, 1, 1, 1) * maps.flip(3) + (1 - share).view(-1, 1, 1, 1) * maps
    torch.testing.assert_close(mixed.follow(maps, draw), expected.detach())


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_sharp_targets_are_the_hard_masks(op, sign):
    """What the search calls the right answer is what training will get; nothing is known of what comes from outside."""
    magnitude = 4 / 9 if op.startswith("translate") else 0.6  # four whole pixels of 20
    masks = (
        torch.randint(4, (3, 20, 20), dtype=torch.uint8).repeat_interleave(3, 1).repeat_interleave(3, 2)[:, :20, :20]
    )
    policy = sharp(op, magnitude)
    draw = policy.draw(3)
    draw = replace(draw, sign=torch.full_like(draw.sign, 1.0 if sign == "+" else -1.0))
    soft = policy.follow(one_hot(masks, 4), draw)
    masks_of_soft = torch.where(soft.sum(1) < 0.5, 255, soft.argmax(1))
    signed = OPS[op].signed
    choice = Choice(op, 1.0, magnitude if OPS[op].span else None, sign=sign if signed else None)
    hard = Policy((SubPolicy(((choice,),)),))
    (deed,) = plan_of(hard).draw_one()
    expected = torch.stack([apply_mask(hard, mask, [deed], fill=255) for mask in masks]).long()
    same = (masks_of_soft == expected).float().mean()
    assert same == 1 if op == "flip" or op.startswith("translate") else same > 0.93  # bilinear edges fall either way
    assert (expected == 255).any() == (op != "flip")


def test_the_baseline_moves_image_and_mask_together():
    """A mask that can be read from its image, before and after crop and flip; what comes in does not count."""
    masks = torch.randint(0, 3, (64, 16, 16), dtype=torch.uint8)
    masks[:, 5, 5] = 255
    images = torch.where(masks == 255, 250, masks * 50 + 50).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    step = MaskStep(PixelCritic(build("small", 3), 3), SoftPolicy(1, 1), Normalise.of(images), SearchConfig(crop=0.25))
    moved, targets = step._baseline(images, masks, torch.Generator().manual_seed(0))
    levels = (moved[:, 0] * 255).round()
    assert targets.shape == (64, 3, 16, 16)
    for number in range(3):
        assert torch.equal(targets[:, number] == 1, levels == 50 * number + 50)
    assert ((targets.sum(1) == 0) == ((levels == 0) | (levels == 250))).all()
    assert (levels == 0).any()
    assert len({one.numpy().tobytes() for one in targets}) == 64
    assert not torch.equal(moved[:, 0], images[:, 0].float() / 255)


# --- the loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "cells"), [(16, 4), (12, 3), (8, 8)])
def test_the_loss_is_cross_entropy_per_pixel(side, cells):
    """Against torch's own, with logits blown up to the image's size and 255 ignored."""
    masks = torch.randint(0, 5, (4, side, side))
    masks[torch.rand(4, side, side) < 0.3] = 255
    logits = torch.randn(4, 5, cells, cells, requires_grad=True)
    loss = class_loss(CriticOutput(torch.zeros(4), logits, one_hot(masks, 5)))
    blown_up = logits.repeat_interleave(side // cells, 2).repeat_interleave(side // cells, 3)
    expected = F.cross_entropy(blown_up, masks, ignore_index=255)
    torch.testing.assert_close(loss, expected)
    ours, torchs = (torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (loss, expected))
    torch.testing.assert_close(ours, torchs)


def test_masks_without_a_class_cost_nothing():
    logits = torch.randn(2, 3, 2, 2, requires_grad=True)
    loss = class_loss(CriticOutput(torch.zeros(2), logits, torch.zeros(2, 3, 8, 8)))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


# --- the critic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "wrn-10-1", "shake-shake-8-2x4d", "resnet-50"])
def test_the_score_stays_and_the_classifier_reads_every_place(name):
    torch.manual_seed(0)
    backbone = build(name, 5, 64, norm="none")
    critic = PixelCritic(backbone, 5)
    plain = Critic(backbone, 5)
    plain.head.load_state_dict(critic.head.state_dict())
    x = torch.randn(2, 3, 64, 64)
    scores, logits = critic(x)
    assert logits.ndim == 4
    assert logits.shape[:2] == (2, 5)
    torch.testing.assert_close(scores, plain(x)[0])
    torch.testing.assert_close(critic.score(x), scores)
    torch.testing.assert_close(logits.mean((2, 3)), plain(x)[1], rtol=1e-3, atol=1e-5)  # it is linear
    place = backbone.feature_map(x)[1, :, -1, 0]
    torch.testing.assert_close(logits[1, :, -1, 0], backbone.classifier(place))


def test_timms_networks():
    pytest.importorskip("timm")
    data = fields(16, 32)
    quick = SearchConfig(epochs=1, batch_size=8, sub_policies=1, ops=("flip",))
    assert gradient_search(data, replace(quick, critic="timm:resnet10t"), device="cpu").finished
    with pytest.raises(ConfigError, match="take a convolutional one, such as timm:resnet18"):
        gradient_search(data, replace(quick, critic="timm:vit_tiny_patch16_224"), device="cpu")


def test_masks_take_the_plain_step():
    critic, policy = PixelCritic(build("small", 2, norm="none"), 2), SoftPolicy(2, 1)
    step = make_step(critic, policy, Normalise.of(fields(8).images), SearchConfig(fast=True))
    assert type(step) is MaskStep
    before = [p.clone() for p in (*critic.parameters(), *policy.parameters())]
    data = fields(8)
    measured = step(data.images, data.masks, torch.Generator().manual_seed(0))
    assert measured.shape == (len(METRICS),)
    assert torch.isfinite(measured).all()
    assert sum(not torch.equal(a, b) for a, b in zip(before, [*critic.parameters(), *policy.parameters()], strict=True))


def test_the_right_targets_reach_the_critic(monkeypatch):
    """Originals keep their masks, augmented images have theirs moved."""
    seen = []
    whole = step_module.critic_loss
    monkeypatch.setattr(step_module, "critic_loss", lambda *given: seen.append(given) or whole(*given))
    data = fields(8)
    step = MaskStep(PixelCritic(build("small", 2), 2), sharp("flip"), Normalise.of(data.images), PLAIN)
    step(data.images, data.masks, torch.Generator().manual_seed(0))
    real, fake = (judged.labels for judged in seen[0][:2])
    torch.testing.assert_close(real, one_hot(data.masks[:4], 2))
    torch.testing.assert_close(fake, one_hot(data.masks[4:].flip(2), 2), atol=1e-3, rtol=0)


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick():
    return SearchConfig(epochs=3, batch_size=16, sub_policies=2, ops=("flip", "rotate", "brightness", "translate_x"))


def test_same_seed_same_hash_and_resumed_runs_too(quick, tmp_path):
    data = fields(48)
    one, two = (gradient_search(data, quick, device="cpu", out=tmp_path / name) for name in "ab")
    assert one.policy.hash == two.policy.hash != one.start.hash
    assert gradient_search(data, replace(quick, seed=1), device="cpu").policy.hash != one.policy.hash
    with pytest.raises(Stop):
        gradient_search(data, quick, device="cpu", out=tmp_path / "cut", progress=StopAfter(5))
    resumed = gradient_search(data, quick, device="cpu", out=tmp_path / "cut", resume=True)
    assert resumed.policy.hash == one.policy.hash
    assert one.policy.provenance["data"]["task"] == "segmentation"
    other = ImageSet.of_masks(data.images, 1 - data.masks, data.classes, "other")
    with pytest.raises(RunError, match="had other data"):
        gradient_search(other, quick, device="cpu", out=tmp_path / "a", resume=True)


def test_masks_change_what_is_found(quick):
    data = fields(48)
    other = ImageSet.of_masks(data.images, data.masks.flip(0), data.classes, data.name)
    plain = ImageSet.of(data.images, data.labels, data.classes, data.name)
    hashes = {gradient_search(each, quick, device="cpu").policy.hash for each in (data, other, plain)}
    assert len(hashes) == 3


def test_a_data_set_of_pairs_and_a_size_that_is_no_multiple(quick):
    pairs = [(image.permute(1, 2, 0).numpy(), mask.long()) for image, mask in zip(*_parts(fields(32, 22)), strict=True)]
    data = load(pairs)
    assert data.task == "segmentation"
    assert data.size == (22, 22)
    assert gradient_search(data, quick, device="cpu").finished


def _parts(data):
    return data.images, data.masks


def test_what_cannot_be_searched(quick):
    data = fields(32)
    lone = ImageSet.of_masks(data.images, torch.where(data.masks == 1, 255, 0).to(torch.uint8), ("a",), "lone")
    with pytest.raises(DataError, match="two classes, 'lone' has one: write the other one as 1"):
        gradient_search(lone, quick, device="cpu")
    with pytest.raises(DataError, match="a race trains classifiers, 'fields' has masks in the place of labels"):
        raceable(data, print)
    with pytest.raises(ConfigError, match=r"ignore_index must be a class number in 0\.\.255, got 256"):
        SearchConfig(ignore_index=256)


# --- the command and the preview ----------------------------------------------------------------------------------


@pytest.fixture
def scenes(tmp_path):
    data = fields(24, 20)
    for kind in ("images", "masks"):
        (tmp_path / "scenes" / "train" / kind).mkdir(parents=True)
    for i, (image, mask) in enumerate(zip(*_parts(data), strict=True)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"scenes/train/images/{i}.png")
        Image.fromarray(torch.where(mask == 1, 1, 7).to(torch.uint8).numpy()).save(
            tmp_path / f"scenes/train/masks/{i}.png"
        )
    return tmp_path / "scenes"


def test_the_command(fasteraa, scenes, tmp_path):
    code, out, error = fasteraa(
        "search", scenes, "--out", tmp_path / "run", "--epochs", 1, "--batch-size", 8, "--ops", "flip,rotate,invert",
        "--device", "cpu",
    )  # fmt: skip
    assert code == 0, error
    assert "scenes: 24 images with masks of 8 classes at 20x20" in out
    assert "images with masks have none" in out
    assert "mask_fill=255" in out
    assert "images with masks have none" in (tmp_path / "run" / "summary.txt").read_text()
    assert not (tmp_path / "run" / "race").exists()
    policy, alone = (
        Policy.load(tmp_path / "run" / name) for name in ("policy.json", "methods/faster-aa/faster-aa.json")
    )
    assert policy.hash == alone.hash
    assert policy.provenance["candidate"] == "faster-aa"
    with Image.open(tmp_path / "run" / "preview.png") as sheet:
        assert sheet.width > 300
    code, out, _ = fasteraa("data", "check", scenes)
    assert code == 0
    assert "task: semantic segmentation" in out
    code, _, _ = fasteraa("preview", scenes, "--policy", tmp_path / "run", "--out", tmp_path / "sheet.png")
    assert code == 0
    code, _, error = fasteraa("compare", scenes, "--policies", "none", "--out", tmp_path / "c")
    assert code == 2
    assert "scenes has masks in the place of labels" in error


@pytest.mark.parametrize("race", [(), ("--no-race",)])
def test_methods_that_train_are_refused_before_anything_is_written(fasteraa, scenes, tmp_path, race):
    code, _, error = fasteraa("search", scenes, "--out", tmp_path / "run", "--methods", "op-effects,dada", *race)
    assert code == 2
    assert "'scenes' has masks in their place: op-effects, dada cannot propose a policy" in error
    assert "--methods faster-aa can" in error
    assert not list((tmp_path / "run").glob("*.toml"))
    code, _, error = fasteraa(
        "search", scenes, "--out", tmp_path / "run", "--methods", "op-effects,faster-aa", "--epochs", 1,
        "--batch-size", 8, "--device", "cpu",
    )  # fmt: skip
    assert code == 0, error


def test_one_number_may_be_left_out(fasteraa, scenes, tmp_path):
    arguments = ("search", scenes, "--out", tmp_path / "run", "--epochs", 1, "--batch-size", 8, "--device", "cpu")
    code, _, error = fasteraa(*arguments, "--set", "ignore_index=7")
    assert code == 2
    assert "needs masks of two classes" in error


def test_the_sheet_lays_masks_over_the_images():
    image = torch.full((4, 3, 64, 64), 100, dtype=torch.uint8)
    masks = torch.full((4, 64, 64), 255, dtype=torch.uint8)
    masks[:, :, :16] = 1
    shown = overlaid(image, masks)
    assert torch.equal(shown[:, :, :, 16:], image[:, :, :, 16:])
    assert not (shown[:, :, :, :16] == 100).all(1).any()
    flip = Policy((SubPolicy(((Choice("flip", 1.0),),)),))
    sheet = np.asarray(draw_sheet(flip, image, columns=2, masks=masks))
    scale = shown_size(64, 64)[1] // 64
    plain = (sheet == 100).all(-1).sum(1)  # in each line of the sheet, where images are larger
    lines = np.flatnonzero(plain == 2 * scale * 48)
    first, second = (sheet[line, 14 : 14 + scale * 64] for line in lines[[0, -1]])  # originals, and flipped
    assert (first[: scale * 16] != 100).any(1).all()
    assert (first[scale * 16 :] == 100).all()
    assert np.array_equal(first[::-1], second)


# --- planted truths -----------------------------------------------------------------------------------------------


def find(seed, **settings):
    config = SearchConfig(
        seed=seed,
        batch_size=32,
        sub_policies=6,
        operation_count=1,
        flip=False,
        crop=0.0,
        learning_rate=3e-3,
        objective="paper",
        **settings,
    )
    return gradient_search(fields(), config, device="cpu")


def turn(policy):
    """By how much an image is turned, on average."""
    return sum(c.weight * c.probability * c.magnitude for c in policy.choices() if c.op == "rotate")


def kept(result, op):
    return mass(result.policy).get(op, 0.0) / mass(result.start)[op]


def no_critic(monkeypatch):
    whole = step_module.policy_loss
    monkeypatch.setattr(
        step_module, "policy_loss", lambda judged, weight: whole(judged._replace(scores=judged.scores.detach()), weight)
    )


@pytest.mark.slow
def test_tilting_goes_and_mirroring_stays():
    """Borders are upright in all images: the critic must see that rotation leaves the data, and flips do not."""
    for seed in (0, 1):
        result = find(seed, ops=("flip", "rotate"), epochs=20)
        assert turn(result.policy) < 0.5 * turn(result.start)
        assert kept(result, "flip") > 0.9


@pytest.mark.slow
def test_tilting_stays_without_the_critics_gradient(monkeypatch):
    no_critic(monkeypatch)
    result = find(0, ops=("flip", "rotate"), epochs=20)
    assert turn(result.policy) > 0.5 * turn(result.start)


@pytest.mark.slow
def test_flips_stay_because_masks_follow(monkeypatch):
    """By the class loss alone. A mask that stays behind when its image is mirrored makes the flip look harmful."""
    no_critic(monkeypatch)
    settings = {"ops": ("flip",), "epochs": 15, "class_weight": 1.0}
    right = find(0, **settings)
    monkeypatch.setattr(SoftPolicy, "follow", lambda self, maps, draw: maps)
    wrong = find(0, **settings)
    assert kept(right, "flip") > 0.95
    assert kept(wrong, "flip") < 0.92
    assert right.epochs[-1].policy_class_loss < 0.6 * wrong.epochs[-1].policy_class_loss
