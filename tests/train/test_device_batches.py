"""Batches: every image once, a draw per image, and what is done to them in which order."""

import itertools
from dataclasses import replace

import pytest
import torch
from torchvision.transforms import v2

from fasteraa.data import ImageSet
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named
from fasteraa.runtime import device
from fasteraa.train import device_batches
from fasteraa.train.device_batches import DeviceFeed, _beta, cut, draw_boxes, resized_crop

CPU = torch.device("cpu")


def numbered(count=48, side=8):
    """Image i is of level i everywhere: what happened to it can be read off its pixels."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, side, side).contiguous()
    return ImageSet.of(images, torch.arange(count) % 4, tuple("abcd"), "numbered")


def always(op, magnitude=None):
    return Policy((SubPolicy(((Choice(op, 1.0, magnitude),),)),), op)


def whole_epoch(feed, number=0):
    batches = list(feed.epoch(number))
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def make(data, recipe, policy="none", seed=0):
    return DeviceFeed(data, named(policy) if isinstance(policy, str) else policy, recipe, seed, CPU)


def test_every_image_once_per_epoch_with_its_own_label(tiny):
    data = numbered(48)
    feed = make(data, tiny)
    assert feed.steps == 3
    batches = list(feed.epoch(0))
    assert [tuple(images.shape) for images, _ in batches] == [(16, 3, 8, 8)] * 3
    images, labels = whole_epoch(feed)
    assert images.dtype == torch.uint8
    levels = images[:, 0, 0, 0].long()
    assert levels.sort().values.tolist() == list(range(48))
    assert torch.equal(labels, levels % 4)


def test_an_incomplete_batch_is_dropped_but_not_always_the_same_images(tiny):
    feed = make(numbered(40), tiny)
    seen = [set(whole_epoch(feed, epoch)[0][:, 0, 0, 0].tolist()) for epoch in range(4)]
    assert [len(each) for each in seen] == [32] * 4
    assert len(set.union(*seen)) == 40


@pytest.mark.parametrize(("values", "calls"), [(48 * 192, [48]), (40 * 192, [32, 16]), (1, [16, 16, 16])])
def test_many_batches_are_augmented_at_once(tiny, monkeypatch, values, calls):
    """As many as there is room for, one at least; an image has 3 x 8 x 8 = 192 values."""
    sizes = []

    def augment(policy, images, generator, pool, chunk):
        sizes.append(len(images))
        return images

    monkeypatch.setattr(device_batches, "_AT_ONCE", {"cpu": values})
    monkeypatch.setattr(device_batches, "augment", augment)
    batches = list(make(numbered(48), tiny, "uniform").epoch(0))
    assert [len(images) for images, _ in batches] == [16, 16, 16]
    assert sizes == calls


def test_fewer_images_than_a_batch_are_one_batch(tiny):
    feed = make(numbered(5), tiny)
    assert feed.steps == 1
    assert len(whole_epoch(feed)[0]) == 5


def test_order_differs_by_epoch_and_seed_and_repeats(tiny):
    data = numbered()
    orders = [whole_epoch(make(data, tiny, seed=s), e)[1].tolist() for s, e in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]
    assert orders[0] == orders[3]


def test_draws_differ_by_epoch_and_seed(tiny, data):
    pictures = [
        whole_epoch(make(data, replace(tiny, batch_size=64), "uniform", seed=s), e)[0].float().mean()
        for s, e in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({round(float(each), 6) for each in pictures}) == 3


def test_every_image_draws_for_itself(tiny):
    """Half of them are inverted, not all or none of a batch."""
    policy = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "half")
    images, _ = whole_epoch(make(numbered(), tiny, policy))
    inverted = (images[:, 0, 0, 0] > 127).view(3, 16).sum(1)
    assert ((inverted > 2) & (inverted < 14)).all()


def test_the_policy_comes_before_the_crop(tiny):
    """Inverted images keep the crop's black border; inverting after the crop would make it white."""
    recipe = replace(tiny, crop=0.25)
    images, _ = whole_epoch(make(numbered(), recipe, always("invert")))
    assert images.amin((1, 2, 3)).eq(0).float().mean() > 0.8
    assert images.amax() == 255
    assert set(images.unique().tolist()) <= {0, *range(255 - 48, 256)}


def test_crop_and_flip_are_drawn_per_image(tiny, data):
    flipped, _ = whole_epoch(make(data, replace(tiny, flip=True)))
    left = flipped[:, 0, :, :4].float().mean((1, 2)) > flipped[:, 0, :, 4:].float().mean((1, 2))
    plain, labels = whole_epoch(make(data, tiny))
    as_labelled = plain[:, 0, :, :4].float().mean((1, 2)) > plain[:, 0, :, 4:].float().mean((1, 2))
    assert torch.equal(as_labelled, labels == 0)
    _, labels = whole_epoch(make(data, replace(tiny, flip=True)))
    assert 0.2 < (left != (labels == 0)).float().mean() < 0.8


def test_cutout_comes_last_in_the_mean_colour(tiny):
    """After invert, a hole still has the colour of the data's mean, not of its inverse."""
    data = numbered(48)
    feed = make(data, replace(tiny, cutout=4), always("invert"))
    assert feed.mean.flatten().tolist() == [24, 24, 24]  # mean of 0..47 is 23.5
    images, _ = whole_epoch(feed)
    assert (images == 24).flatten(1).any(1).all()
    assert ((images == 24) | (images > 200)).all()


@pytest.mark.parametrize("side", [1, 4, 5])
def test_holes_have_the_exact_side_and_reach_over_the_border(side):
    images = torch.zeros(4000, 3, 9, 12, dtype=torch.uint8)
    colour = torch.tensor([1, 2, 3], dtype=torch.uint8).view(1, 3, 1, 1)
    out = cut(images, side, colour, torch.Generator().manual_seed(0))
    for channel in range(3):
        assert set(out[:, channel].unique().tolist()) == {0, channel + 1}
    hole = out[:, 0] > 0
    rows, columns = hole.any(2), hole.any(1)
    assert torch.equal(hole, rows[:, :, None] & columns[:, None, :])  # a rectangle
    for shown, length in ((rows, 9), (columns, 12)):
        extent = shown.sum(1)
        inner = ~(shown[:, 0] | shown[:, -1])
        assert (extent[inner] == side).all()
        assert extent.max() == side
        assert extent.min() == (side + 1) // 2  # a centre on the border leaves about half of it
        starts = shown.float().argmax(1)
        assert starts.min() == 0
        assert shown[:, -1].any()
        # the centre is uniform over the image: every row is inside equally often, but for the border
        share = shown.float().mean(0)
        assert share[length // 2] == pytest.approx(side / length, abs=0.05)
    assert not images.any()  # the input is untouched


def test_partners_come_from_the_whole_set(tiny):
    """Batches of two, yet partners of all 48 levels."""
    policy = Policy((SubPolicy(((Choice("sample_pairing", 1.0, 1.0),),)),), "pairs")
    data = numbered(48)
    images, _ = whole_epoch(make(data, replace(tiny, batch_size=2), policy))
    alone, _ = whole_epoch(make(data, replace(tiny, batch_size=2)))
    weight = 0.4  # of the partner, at magnitude 1
    partner = (images[:, 0, 0, 0].float() - (1 - weight) * alone[:, 0, 0, 0].float()) / weight
    partner, pair = partner.view(-1, 2), alone[:, 0, 0, 0].view(-1, 2).float()
    in_batch = torch.minimum((partner - pair).abs(), (partner - pair.flip(1)).abs())
    assert (in_batch > 3).float().mean() > 0.5  # most partners are of neither image of the batch
    assert partner.max() - partner.min() > 30


def test_boxes_of_a_resized_crop():
    box = draw_boxes(5000, 40, 60, torch.Generator().manual_seed(0), CPU)
    top, left, tall, wide = box.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= 40).all()
    assert (left + wide <= 60).all()
    share = tall * wide / 2400
    assert share.min() > 0.06
    assert share.max() <= 1
    inner = (wide < 60) & (tall < 40)
    ratio = (wide / tall)[inner]
    assert 0.70 < ratio.min() < 0.80
    assert 1.28 < ratio.max() < 1.40
    theirs = v2.RandomResizedCrop(8)
    blank = torch.zeros(3, 40, 60, dtype=torch.uint8)
    drawn = [theirs.make_params([blank]) for _ in range(3000)]
    areas = torch.tensor([each["height"] * each["width"] / 2400 for each in drawn])
    for quantile in (0.1, 0.5, 0.9):
        assert share.quantile(quantile) == pytest.approx(float(areas.quantile(quantile)), abs=0.04)
    assert box.unique(dim=0).shape[0] > 4000


def test_a_resized_crop_is_the_box_scaled_up(monkeypatch):
    """Against Pillow's resize of the same box, away from its border (where Pillow sees the box alone)."""
    from PIL import Image

    from fasteraa.images import to_pillow, to_tensor

    smooth = torch.nn.functional.interpolate(torch.rand(2, 3, 6, 6) * 255, (24, 24), mode="bicubic")
    images = smooth.clamp(0, 255).to(torch.uint8)
    boxes = torch.tensor([[2.0, 5.0, 12.0, 16.0], [0.0, 0.0, 24.0, 24.0]])
    monkeypatch.setattr(device_batches, "draw_boxes", lambda *_: boxes)
    out = resized_crop(images, torch.Generator())
    assert torch.equal(out[1], images[1])  # the whole image stays as it is
    expected = to_tensor(to_pillow(images[0]).resize((24, 24), Image.Resampling.BILINEAR, box=(5, 2, 21, 14)))
    difference = (out[0].int() - expected.int()).abs()[:, 2:-2, 2:-2]
    assert difference.max() <= 1


def test_resized_crops_in_memory(tiny, data):
    recipe = replace(tiny, crop_kind="resized", crop=0.125)
    images, _ = whole_epoch(make(data, recipe))
    plain, _ = whole_epoch(make(data, tiny))
    assert images.shape == plain.shape
    assert not torch.equal(images, plain)
    assert images.amin() > 0 or plain.amin() == 0  # no black padding comes in


@pytest.mark.gpu
def test_images_that_do_not_fit_on_the_device_stay_in_memory(tiny, data, monkeypatch):
    monkeypatch.setattr(device, "DEVICE_SHARE", 0.0)
    feed = DeviceFeed(data, named("uniform"), tiny, 0, torch.device("cuda"))
    assert feed.images.device.type == "cpu"
    images, labels = whole_epoch(feed)
    assert images.is_cuda
    assert labels.is_cuda


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 8])
def test_a_schedule_is_followed_by_epochs_that_are_augmented_at_once(tiny, at_once):
    """As on a GPU: which operation an epoch has does not depend on how many are augmented at once."""
    subs = [replace(always(op).sub_policies[0], during=(k / 4, (k + 1) / 4)) for k, op in enumerate(("invert", "flip"))]
    last = replace(always("solarize", 1.0).sub_policies[0], during=(0.5, 1))
    feed = make(numbered(48), replace(tiny, epochs=8, crop=0, flip=False, cutout=0), Policy((*subs, last), "scheduled"))
    feed.epochs_at_once = at_once
    for number in range(8):
        levels = set(whole_epoch(feed, number)[0][:, 0, 0, 0].tolist())
        inverted = {255 - level for level in range(48)}
        assert levels == (inverted if number < 2 else set(range(48)) if number < 4 else inverted), number


def test_epochs_that_are_augmented_at_once_are_those_of_a_resumed_run(data, tiny):
    recipe = replace(tiny, crop=0, flip=False, cutout=0)

    def epochs(numbers, policy):
        feed = DeviceFeed(data, named(policy), recipe, 3, CPU)
        feed.epochs_at_once = 3  # as on a GPU
        return [list(feed.epoch(number)) for number in numbers]

    for policy in ("none", "uniform"):
        whole, resumed = epochs(range(5), policy), epochs((2, 4), policy)
        for mine, theirs in zip((whole[2], whole[4]), resumed, strict=True):
            assert all(
                torch.equal(*images) for pair in zip(mine, theirs, strict=True) for images in zip(*pair, strict=True)
            )
    plain = [torch.cat([images for images, _ in epoch]).flatten(1) for epoch in epochs(range(5), "none")]
    assert all(len(epoch.unique(dim=0)) == len(epoch) for epoch in plain)  # every image once
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(plain))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 30.0, 400.0])
def test_shares_of_mixing_are_drawn_for_any_alpha(alpha):
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)); rejecting draws would never end for a large alpha."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([_beta(alpha, generator, torch.device("cpu")) for _ in range(2000)])
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.15)
