"""Objectives beside the paper's: what each holds to, and that a run with any of them is a run like any other."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError
from fasteraa.nets import build
from fasteraa.policy.soft import SoftPolicy
from fasteraa.search import SearchConfig
from fasteraa.search.bilevel import bilevel_gradient
from fasteraa.search.fast import Recorded
from fasteraa.search.goal import Diverse, Hard, dose_and_spread
from fasteraa.search.progress import Silent
from fasteraa.search.run import Run, search
from fasteraa.search.step import Step

from .conftest import bars
from .test_fast import batches, near, parameters, parts, written_out

OTHERS = ("diverse", "hard", "bilevel")
CPU = torch.device("cpu")


def one(images):
    return images * 2 - 1


@pytest.mark.parametrize("objective", OTHERS)
def test_the_same_seed_gives_the_same_policy_and_another_objective_another(tiny, quick, objective):
    config = replace(quick, objective=objective, floor=1.2)  # above the start's, so that it bites at once
    found = search(tiny, config).policy
    assert found.hash == search(tiny, config).policy.hash
    assert found.sub_policies != search(tiny, quick).policy.sub_policies


@pytest.mark.parametrize("objective", OTHERS)
def test_resuming_ends_as_if_nothing_had_happened(tiny, quick, tmp_path, objective):
    config = replace(quick, objective=objective, epochs=4)
    whole = search(tiny, config)
    search(tiny, replace(config, epochs=3), out=tmp_path / "run")
    assert search(tiny, config, out=tmp_path / "run", resume=True).policy.hash == whole.policy.hash


@pytest.mark.parametrize("objective", OTHERS)
def test_what_happens_before_a_recording_leaves_no_trace(tiny, quick, objective):
    """All that a goal remembers is put back, its own network and optimiser too."""
    config = replace(quick, objective=objective)
    plain, other = (Run(tiny, config, CPU, None, Silent()).step for _ in range(2))
    recorded = Recorded(other)
    mine, recorded._generator = (torch.Generator().manual_seed(3) for _ in range(2))
    images, labels = tiny.images[:16], tiny.labels[:16]
    for _ in range(3):
        expected = plain(images, labels, mine)
        with recorded._unchanged():
            other(images, labels, recorded._generator)
        assert torch.equal(other(images, labels, recorded._generator), expected)
    for one, two in zip(plain.modules, other.modules, strict=True):
        for mine, theirs in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs)


class FromTheHost(TorchDispatchMode):
    """Notes what cannot be recorded: tensors made of Python's values, and shapes that hang on values."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.nonzero.default):
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("objective", ["paper", *OTHERS])
def test_a_step_brings_nothing_from_the_host(tiny, quick, objective, fast):
    """On a GPU the host would wait for it, which ends a recording with an error."""
    config = replace(quick, objective=objective, fast=fast, ops=None)
    step, generator = Run(tiny, config, CPU, None, Silent()).step, torch.Generator().manual_seed(0)
    step(tiny.images[:16], tiny.labels[:16], generator)  # what is made once and kept may come from anywhere
    with FromTheHost() as brought:
        step(tiny.images[:16], tiny.labels[:16], generator)
    assert not brought.seen


@pytest.mark.gpu
@pytest.mark.parametrize("objective", OTHERS)
def test_every_objective_can_be_recorded(tiny, quick, objective):
    """Past the warm-up of `hard`, where the policy begins to move."""
    config = replace(quick, objective=objective, floor=1.2, backbone="wrn-10-1")
    found = search(tiny, config, device="cuda")
    assert found.finished
    assert found.epochs[-1].from_start > 0


@pytest.mark.parametrize("kind", ["diverse", "hard"])
def test_written_out_follows_the_goal(kind):
    found = []
    for make in (written_out, Step):
        critic, policy, normalise = parts()
        config = SearchConfig(allowance=0.5)
        torch.manual_seed(1)
        goal = Diverse(policy, 2.0) if kind == "diverse" else Hard(build("small", 3), normalise, config, 1)
        step = make(critic, policy, normalise, config, goal)
        for images, labels in batches(4):  # the policy moves from the third step on
            step(images, labels, torch.Generator().manual_seed(1))
        found.append(([p.grad.clone() for p in policy.parameters()], [p.detach() for p in parameters(step)]))
    (gradients, ended), (expected, wanted) = found
    assert all(float(each.norm()) > 0 for each in expected)
    assert all(near(*pair, share=2e-2) for pair in zip(gradients, expected, strict=True))
    assert all(near(*pair, share=2e-2) for pair in zip(ended, wanted, strict=True))


def test_dose_and_spread():
    policy = SoftPolicy(2, 1, ["brightness", "invert"])
    with torch.no_grad():
        policy.choice.copy_(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # one operation each
        policy.probability.fill_(0.5)
        policy.magnitude.fill_(0.25)
    dose, spread = dose_and_spread(policy)
    # brightness 0.5 x 0.25 in one of two, invert (it has no magnitude) 0.5 in the other
    torch.testing.assert_close(dose, torch.tensor(0.3125), atol=1e-6, rtol=0)
    torch.testing.assert_close(spread, -(torch.tensor([0.2, 0.8]).log() * torch.tensor([0.2, 0.8])).sum())


def measure(policy):
    return [each.item() for each in dose_and_spread(policy)]


@pytest.mark.slow
def test_the_floor_holds():
    """Bars: the paper's objective throws invert away and most of the dose with it; with the floor the dose stays."""
    doses = {}
    for objective in ("paper", "diverse"):
        config = SearchConfig(
            batch_size=64, sub_policies=4, operation_count=1, flip=False, crop=0.0, ops=("flip", "invert", "rotate"),
            objective=objective,
        )  # fmt: skip
        run = Run(bars(), config, CPU, None, Silent())
        before = measure(run.policy)
        run.go()
        doses[objective] = [new / old for new, old in zip(measure(run.policy), before, strict=True)]
    assert min(doses["paper"]) < 0.8
    assert min(doses["diverse"]) > 0.85


def test_the_price_follows_the_distance():
    goal = Hard(build("small", 2), one, SearchConfig(allowance=0.5), 2)
    images, labels = torch.rand(8, 3, 12, 12), torch.randint(2, (8,))
    for distance in (9.0, 9.0, 2.0, 4.0):  # two epochs of two steps: the second half counts
        assert goal.weigh(torch.tensor(1.0)) == 0
        goal.observe(torch.tensor(distance), images, labels)
    assert goal.start == 3
    goal.observe(torch.tensor(6.0), images, labels)  # twice the start's, half of it is allowed
    assert goal.price == pytest.approx(1 + 0.02 * 1.5)
    goal.observe(torch.tensor(0.0), images, labels)
    assert goal.price == pytest.approx(1 + 0.02 * 1.0)
    assert goal.weigh(torch.tensor(3.0)) == pytest.approx(1.02)


def test_hard_makes_the_learners_loss_large():
    goal = Hard(build("small", 2), one, SearchConfig(), 1)
    images, labels = torch.rand(8, 3, 12, 12, requires_grad=True), torch.randint(2, (8,))
    assert goal.further(None, images, labels) == 0  # warming up
    goal.steps.fill_(goal.warm_up)
    loss = F.cross_entropy(goal.learner(one(images)), labels)
    torch.testing.assert_close(goal.further(None, images, labels), -loss)
    before = [p.clone() for p in goal.learner.parameters()]
    goal.observe(torch.tensor(1.0), images.detach(), labels)
    assert any(not torch.equal(a, b) for a, b in zip(before, goal.learner.parameters(), strict=True))
    assert F.cross_entropy(goal.learner(one(images)), labels) < loss  # while it learns to make it small


def test_the_bilevel_gradient_is_that_of_the_double_backward():
    torch.manual_seed(0)
    learner = build("small", 3).double()
    images, held = torch.randn(2, 6, 3, 12, 12, dtype=torch.float64)
    labels, held_labels = torch.randint(3, (2, 6))
    before = copy.deepcopy(learner.state_dict())
    rate = 0.05
    found, ahead, loss, held_loss = bilevel_gradient(learner, images, labels, held, held_labels, rate, 1e-7)
    for name, value in learner.named_parameters():
        torch.testing.assert_close(value, before[name], atol=1e-12, rtol=0)

    learner.load_state_dict(before)
    images.requires_grad_()
    inner = F.cross_entropy(learner(images), labels)
    names = [name for name, _ in learner.named_parameters()]
    gradients = torch.autograd.grad(inner, list(learner.parameters()), create_graph=True)
    moved = {n: p - rate * g for n, p, g in zip(names, learner.parameters(), gradients, strict=True)}
    outer = F.cross_entropy(torch.func.functional_call(learner, moved, held), held_labels)
    (expected,) = torch.autograd.grad(outer, images)
    torch.testing.assert_close(rate * found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    torch.testing.assert_close(loss, inner.detach())
    torch.testing.assert_close(held_loss, outer.detach())
    for got, wanted in zip(ahead, gradients, strict=True):
        torch.testing.assert_close(got, wanted.detach())


def test_bilevel_holds_the_same_images_back_all_the_time(tiny, quick):
    run = Run(tiny, replace(quick, objective="bilevel"), CPU, None, Silent())
    held, trained = set(), set()
    for _ in range(5):
        order = run._new_order().view(-1, 2, quick.batch_size // 2)
        assert order.unique().numel() == order.numel()
        held |= set(order[:, 0].flatten().tolist())
        trained |= set(order[:, 1].flatten().tolist())
    assert not held & trained
    assert len(held) == len(trained) == len(tiny) // 2


@pytest.mark.slow
def test_bilevel_leaves_what_confuses_the_classes():
    """Dark and bright images, which invert exchanges; flipping is harmless.

    What is left of invert, seeds 0 to 4: 0.43, 0.89, 0.84, 0.38, 0.56; with an Adam that rounds otherwise: 0.55, 0.78,
    0.84, 0.37, 0.69.
    """
    left = []
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (256,), generator=generator)
    images = 0.3 * torch.rand(256, 3, 12, 12, generator=generator) + 0.65 * labels.view(-1, 1, 1, 1)
    data = ImageSet.of((255 * images).to(torch.uint8), labels, ("dark", "bright"), "shades")
    for seed in (0, 1):
        config = SearchConfig(
            seed=seed, batch_size=32, epochs=30, sub_policies=4, operation_count=1, ops=("flip", "invert"),
            objective="bilevel", learning_rate=5e-3,
        )  # fmt: skip
        run = Run(data, config, CPU, None, Silent())
        share = (run.policy.shares * run.policy.probability).mean((0, 1)).tolist()
        run.go()
        now = (run.policy.shares * run.policy.probability).mean((0, 1)).tolist()
        left.append(now[1] / share[1])
        assert now[0] > 0.95 * share[0]
    assert max(left) < 0.95
    assert sum(left) / 2 < 0.8


def test_an_unknown_objective_is_refused():
    with pytest.raises(ConfigError, match="unknown objective 'divers': did you mean 'diverse'"):
        SearchConfig(objective="divers")


@pytest.mark.parametrize("objective", ["hard", "bilevel"])
def test_masks_have_no_classifier_of_images(objective, quick):
    images, masks = torch.randint(0, 256, (32, 3, 12, 12), dtype=torch.uint8), torch.randint(2, (32, 12, 12))
    data = [(image, mask) for image, mask in zip(images.numpy(), masks.to(torch.uint8).numpy(), strict=True)]
    pairs = [(image.transpose(1, 2, 0), mask) for image, mask in data]
    with pytest.raises(ConfigError, match=f"objective '{objective}' trains a classifier of images"):
        search(pairs, replace(quick, objective=objective))
    assert search(pairs, replace(quick, objective="diverse", epochs=1)).finished
