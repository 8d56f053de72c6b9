"""DADA: RELAX has no bias, the finite difference is the derivative of the validation loss, and a harmful pair loses."""

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

from fasteraa.data import ImageSet
from fasteraa.methods import Budget, dada
from fasteraa.methods.autoaugment import AutoAugmentSettings
from fasteraa.methods.black_box import LATE
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.dada import Dada, DadaSettings, PairPolicy, PairSearch, Relax, make_search, pairs_of
from fasteraa.methods.fast_aa import FastAASettings
from fasteraa.methods.space import space_of
from fasteraa.nets import build
from fasteraa.runtime.seeds import seeded

from .planted import task_of

OPS = ("invert", "rotate", "brightness")


@pytest.mark.parametrize("trained", [False, True])
def test_relax_is_unbiased(trained):
    """The mean of many estimates is the gradient of the expected loss, whatever the control variate is."""
    settings = DadaSettings(units=5, policy_rate=1e-9)
    with seeded(0):
        policy = PairPolicy(pairs_of(SearchConfig(ops=OPS)), settings)
        relax = Relax(policy, settings)
        with torch.no_grad():
            policy.choice.copy_(torch.tensor([0.5, -0.3, 0.1]))
            policy.probability.copy_(torch.tensor([[0.3, 0.6], [0.5, 0.2], [0.8, 0.5]]))
            for parameter in relax.variate.parameters():
                parameter.mul_(3.0 * trained)
    losses = torch.arange(12.0).view(3, 2, 2).cos()  # of a pair and its two gates
    chance = torch.stack([1 - policy.probability, policy.probability], 2)
    expected = (policy.choice.softmax(0)[:, None, None] * chance[:, 0, :, None] * chance[:, 1, None, :] * losses).sum()
    exact = torch.autograd.grad(expected, (policy.choice, policy.probability))
    generator, estimates = Generator().manual_seed(1), []
    relax.optimiser.step = lambda: estimates.append(torch.cat([policy.choice.grad, policy.probability.grad.flatten()]))
    for _ in range(600):
        draw = policy.draw(generator)
        relax.step(draw, losses[draw.pair][int(draw.gates[0]), int(draw.gates[1])])
    found = torch.stack(estimates)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - torch.cat([exact[0], exact[1].flatten()])).abs() < 4.5 * error + 1e-6).all()


def planted(count=96, side=12, seed=0):
    """Dark images with a bright spot, or bright ones with a dark spot: inverted, one is the other."""
    generator = Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = labels.view(-1, 1, 1, 1) * 0.8 + 0.2 * torch.rand(count, 3, side, side, generator=generator)
    return ImageSet.of((255 * images.clamp(0, 1)).to(torch.uint8), labels, ("dark", "bright"), "planted")


def make(settings, config, data, network=None):
    with seeded(0):
        network, policy = network or build("small", 2, 12), PairPolicy(pairs_of(config), settings)
        return PairSearch(network, Relax(policy, settings), data.split(0.5, 0), config, settings, 0)


RATE = 0.05


def loss_after(magnitude, data):
    """Of the validation images after one step with contrast of that magnitude, and the policy's gradient by it."""
    config = SearchConfig(ops=("brightness", "contrast"), crop=0.0, flip=False)
    settings = DadaSettings(network="small", momentum=0.0, weight_decay=0.0, clip=1e9)
    with seeded(1):
        smooth = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 8), nn.Tanh(), nn.Linear(8, 2))
    search, slope = make(settings, config, data, smooth), []
    with torch.no_grad():
        search.policy.probability.copy_(torch.tensor([[1.0, 0.0]]))
        search.policy.magnitude[0, 0] = magnitude
    search.relax.step = lambda draw, loss: slope.append(float(search.policy.magnitude.grad[0, 0]))
    train, valid = ((search.images[half], search.labels[half]) for half in (0, 1))
    search.step(train, valid, RATE)
    after, _ = search._gradient(valid[0].float() / 255, valid[1])
    return float(after), slope[0]


def test_the_finite_difference_is_the_derivative():
    """Of the validation loss after the step, for a rate of 1: really taking the step with two magnitudes."""
    data, far = planted(), 0.02
    (plus, _), (minus, _), (_, slope) = (loss_after(0.5 + each, data) for each in (far, -far, 0.0))
    assert RATE * slope == pytest.approx((plus - minus) / (2 * far), rel=0.15)


@pytest.mark.parametrize(
    ("side", "given", "length"), [(32, None, 16), (12, None, 6), (48, None, 16), (12, 0, 0), (12, 3, 3)]
)
def test_cutout_after_the_policy(side, given, length):
    """A square of the mean colour in every image that trains, none in those of the validation loss."""
    data = planted(8, side)
    settings = DadaSettings(network="small", cutout=given, batch_size=4)
    with seeded(0):
        network, config = build("small", 2, side), SearchConfig(ops=OPS, crop=0.0, flip=False)
        relax = Relax(PairPolicy(pairs_of(config), settings), settings)
        search = PairSearch(network, relax, data.split(0.5, 0), config, settings, 0)
    with torch.no_grad():
        search.policy.probability.zero_()
    seen, gradient = [], search._gradient
    search._gradient = lambda images, labels: seen.append(images) or gradient(images, labels)
    train, valid = ((search.images[half], search.labels[half]) for half in (0, 1))
    search.step(train, valid, 0.1)
    trained, validated = seen
    assert torch.equal(validated, valid[0].float() / 255)
    changed = (trained != train[0].float() / 255).any(1)
    for image, hole in zip(trained, changed, strict=True):
        rows, columns = hole.any(1).sum(), hole.any(0).sum()
        assert int(hole.sum()) == rows * columns
        assert length // 2 <= max(rows, columns) <= length
        assert torch.equal(image[:, hole], search.normalise.mean.view(3, 1).expand(-1, int(hole.sum())))


@pytest.mark.parametrize(
    ("source", "network", "batch", "rate", "decay"),
    [
        ("cifar10", "wrn-40-2", 128, 0.1, 2e-4),
        ("cifar100", "wrn-40-2", 32, 0.1, 5e-4),
        ("svhn", "wrn-28-10", 32, 0.00125, 1e-3),
        ("imagenet", "resnet-50", 32, 0.00125, 1e-4),
    ],
)
def test_each_set_is_searched_as_by_the_authors(source, network, batch, rate, decay):
    found = Dada.with_settings(Dada.published(source).settings).settings
    assert (found.network, found.batch_size, found.network_rate, found.weight_decay) == (network, batch, rate, decay)


def test_a_harmful_operation_loses():
    """Inverted, an image is one of the other class: such pairs become less likely, or their inversion does."""
    config = SearchConfig(ops=("invert", "rotate", "shear_x"), crop=0.0, flip=False)
    settings = DadaSettings(network="small", batch_size=32, policy_rate=0.05)
    search = make(settings, config, planted())
    search.run(15)
    likely, probability = search.policy.choice.softmax(0).tolist(), search.policy.probability.tolist()
    inverted = sum(share * each[0] for share, each, pair in zip(likely, probability, search.policy.pairs, strict=True)
                   if pair[0] == "invert")  # fmt: skip
    assert inverted < 0.75 * (2 / 3 * 0.5)


def test_published_settings_are_the_defaults():
    """AutoAugment's supplement and NASNet's; Fast AutoAugment's and DADA's code."""
    autoaugment = AutoAugmentSettings()
    assert (autoaugment.units, autoaugment.start, autoaugment.children) == (100, 0.1, 20)
    assert (autoaugment.learning_rate, autoaugment.entropy, autoaugment.baseline) == (0.00035, 1e-5, 0.95)
    assert len(space_of(SearchConfig()).sizes) == 30  # softmaxes
    fast = FastAASettings()
    assert (fast.trials, fast.passes, fast.kept) == (200, 5, 10)
    dada = DadaSettings()
    assert (dada.temperature, dada.policy_rate, dada.beta1, dada.beta2) == (0.5, 5e-3, 0.5, 0.999)
    assert (dada.epochs, dada.batch_size, dada.difference, dada.units, dada.kept) == (20, 128, 1e-2, 100, 25)
    assert (dada.network_rate, dada.last_rate) == (0.1, 1e-3)
    pairs = pairs_of(SearchConfig())
    assert len(pairs) == 105
    variate = Relax(PairPolicy(pairs, dada), dada).variate
    assert [type(layer).__name__ for layer in variate] == ["Linear", "Tanh", "Linear"]
    assert (variate[0].in_features, variate[0].out_features, variate[2].out_features) == (315, 100, 1)


class Killed(BaseException):
    """As if the process had been killed."""


@pytest.mark.parametrize("after", [1, 4, 5])
def test_a_killed_search_continues_where_it_was(tmp_path, monkeypatch, after):
    """After some steps of four epochs of two: with the same numbers, and no epoch twice that was kept."""
    monkeypatch.setattr(dada, "_WORK_PER_SAVE", 0)
    task = task_of(OPS, folds=2, data=planted())
    settings = DadaSettings(network="small", batch_size=12)
    whole = make_search(task, 0, settings)
    losses = whole.run(4)
    assert whole.steps == 2
    file, steps = tmp_path / "fold 1.pt", []

    def begin(limit):
        search = make_search(task, 0, settings)
        step = search.step

        def counted(*given):
            if len(steps) == limit:
                raise Killed
            steps.append(1)
            return step(*given)

        search.step = counted
        return search

    with pytest.raises(Killed):
        begin(after).run(4, file)
    again = begin(None)
    assert again.run(4, file) == losses
    assert len(steps) == 8 + after % 2  # of the epoch in which it was killed
    assert again.policy.best(3) == whole.policy.best(3)
    assert not file.exists()
    steps.clear()
    with pytest.raises(Killed):
        begin(4).run(4, file)
    other = make_search(replace(task, config=replace(task.config, seed=1)), 0, settings)
    assert len(other.run(4, file)) == 4  # of other settings it begins again
    assert other.losses != losses


def test_on_a_machine_that_is_slower_than_was_measured_each_fold_ends_in_time(monkeypatch):
    """A step takes twice what was measured, so about half of six epochs fit; what was found then is kept."""
    now, step = [1000.0], PairSearch.step

    def slow_step(search, *given):
        now[0] += 2.0
        return step(search, *given)

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(PairSearch, "step", slow_step)
    monkeypatch.setattr(PairSearch, "step_seconds", lambda search: 1.0)
    method = Dada(DadaSettings(network="small", batch_size=12, epochs=6, kept=2))
    task = task_of(OPS, folds=2, data=planted())
    (whole,) = method.candidates(task, Budget(2 * 2 * 6.5), Unused())
    assert now[0] - 1000 == 28 <= LATE * 26
    rows = whole.details["tried"]
    assert [fold for fold, *_ in rows] == ["fold 1"] * 3 + ["fold 2"] * 4
    assert [line for line in task.progress.lines if "time is up" in line] == [
        f"dada, fold {fold}: its time is up after {done} of 6 epochs, the machine is slower than was measured"
        for fold, done in ((1, 3), (2, 4))
    ]
    (again,) = method.candidates(task, Budget(2 * 2 * 6.5), Unused())
    assert (again.policy.hash, now[0]) == (whole.policy.hash, 1028.0)


class Unused:
    """DADA trains a network of its own."""


def test_if_one_fold_found_nothing_there_are_no_policies(monkeypatch):
    """On that fold would race what searches found that have seen its held-out images."""
    make = dada.make_search

    def make_search(task, fold, settings):
        search = make(task, fold, settings)
        if fold == 1:
            search.step = lambda *given: torch.tensor(math.nan)
        return search

    monkeypatch.setattr(dada, "make_search", make_search)
    task = task_of(OPS, folds=3, data=planted())
    method = Dada(DadaSettings(network="small", batch_size=12, epochs=1, kept=2))
    assert method.candidates(task, Budget(), Unused()) == []
    assert task.progress.lines[-1] == ("dada: no policies, nothing was found on fold 2, and every fold races its own")
    monkeypatch.setattr(dada, "make_search", make)
    (found,) = method.candidates(task_of(OPS, folds=3, data=planted()), Budget(), Unused())
    assert set(found.on_folds) == {"fold 1", "fold 2", "fold 3"}
