"""The objectives: what the floor of `diverse` holds to, and that a run with either of them is a run like any other."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RunError
from fasteraa.methods.config import OBJECTIVES, SearchConfig
from fasteraa.methods.faster_aa.fast_step import CapturedStep
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.methods.faster_aa.objective import Amount, amount, floor_loss
from fasteraa.methods.faster_aa.run import Run, gradient_search
from fasteraa.methods.faster_aa.step import Step
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime.progress import Silent

from .conftest import bars
from .test_fast_step import batches, manual_step, near, parameters, parts

CPU = torch.device("cpu")


def test_the_same_seed_gives_the_same_policy_and_the_other_objective_another(tiny, quick):
    floor = replace(quick, objective="diverse", floor=1.2)  # above the start's, so that it bites at once
    policy = gradient_search(tiny, floor).policy
    assert policy.hash == gradient_search(tiny, floor).policy.hash
    assert policy.sub_policies != gradient_search(tiny, replace(quick, objective="paper")).policy.sub_policies


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_resuming_ends_as_if_nothing_had_happened(tiny, quick, tmp_path, objective):
    """The floor stays that of the start, not of the policy in the checkpoint."""
    config = replace(quick, objective=objective, epochs=6, floor=1.2)
    whole = gradient_search(tiny, config)
    gradient_search(tiny, replace(config, epochs=3), out=tmp_path / "run")
    assert gradient_search(tiny, config, out=tmp_path / "run", resume=True).policy.hash == whole.policy.hash


def test_what_happens_before_a_capture_leaves_no_trace(tiny, quick):
    config = replace(quick, objective="diverse", floor=1.2)
    plain, other = (Run(tiny, config, CPU, None, Silent()).step for _ in range(2))
    captured = CapturedStep(other)
    mine, captured._generator = (torch.Generator().manual_seed(3) for _ in range(2))
    images, labels = tiny.images[:16], tiny.labels[:16]
    for _ in range(3):
        expected = plain(images, labels, mine)
        with captured._unchanged():
            other(images, labels, captured._generator)
        assert torch.equal(other(images, labels, captured._generator), expected)
    for one, two in zip(parameters(plain), parameters(other), strict=True):
        assert torch.equal(one, two)


class FromTheHost(TorchDispatchMode):
    """Notes what cannot be captured: tensors made of Python's values, and shapes that hang on values."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.nonzero.default):
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_brings_nothing_from_the_host(tiny, quick, objective, fast):
    """On a GPU the host would wait for it, which ends a capture with an error."""
    config = replace(quick, objective=objective, fast=fast, ops=None)
    step, generator = Run(tiny, config, CPU, None, Silent()).step, torch.Generator().manual_seed(0)
    step(tiny.images[:16], tiny.labels[:16], generator)  # what is made once and kept may come from anywhere
    with FromTheHost() as brought:
        step(tiny.images[:16], tiny.labels[:16], generator)
    assert not brought.seen


@pytest.mark.gpu
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_can_be_captured(tiny, quick, objective):
    config = replace(quick, objective=objective, floor=1.2, critic="wrn-10-1")
    result = gradient_search(tiny, config, device="cuda")
    assert result.finished
    assert result.epochs[-1].from_start > 0


def test_manual_grad_follows_the_floor():
    def one_step(make, **settings):
        step = make(*parts(), SearchConfig(**settings))
        images, labels = next(batches(1))
        step(images, labels, torch.Generator().manual_seed(1))
        return [p.grad.clone() for p in step.policy.parameters()]

    gradients, expected = (one_step(make, objective="diverse", floor=2.0) for make in (manual_step, Step))
    assert all(near(*pair) for pair in zip(gradients, expected, strict=True))
    without = one_step(manual_step, objective="paper")
    assert not any(near(*pair) for pair in zip(without, expected, strict=True))


def two_operations():
    policy = SoftPolicy(2, 1, ["brightness", "invert"])
    with torch.no_grad():
        policy.choice.copy_(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # one operation each
        policy.probability.fill_(0.5)
        policy.magnitude.fill_(0.25)
    return policy


def test_dose_and_spread():
    dose, spread = amount(two_operations())
    # brightness 0.5 x 0.25 in one of two, invert (it has no magnitude) 0.5 in the other
    torch.testing.assert_close(dose, torch.tensor(0.3125), atol=1e-6, rtol=0)
    torch.testing.assert_close(spread, -(torch.tensor([0.2, 0.8]).log() * torch.tensor([0.2, 0.8])).sum())


def test_the_loss_below_a_floor():
    """Squared, in floors, times 100; nothing above it."""
    policy = two_operations()
    dose, spread = (each.detach() for each in amount(policy))
    assert floor_loss(policy, Amount(dose / 2, spread / 2)) == 0
    torch.testing.assert_close(floor_loss(policy, Amount(2 * dose, spread / 2)), torch.tensor(25.0))
    torch.testing.assert_close(floor_loss(policy, Amount(dose / 2, 4 * spread)), torch.tensor(56.25))


def test_a_single_operation_has_no_spread_to_keep():
    """Its share of the dose is 1 whatever happens: no pull, not even by what rounding leaves."""
    policy = SoftPolicy(3, 2, ["brightness"], generator=torch.Generator().manual_seed(0))
    dose, spread = (each.detach() for each in amount(policy))
    loss = floor_loss(policy, Amount(dose / 2, spread))
    loss.backward()
    assert loss == spread == 0
    assert all(not parameter.grad.any() for parameter in policy.parameters())


def measure(policy):
    return [each.item() for each in amount(policy)]


@pytest.mark.slow
def test_the_floor_holds():
    """Bars: the paper's objective throws invert away and most of the dose with it; with the floor the dose stays."""
    doses = {}
    for objective in OBJECTIVES:
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


def test_an_unknown_objective_is_refused():
    with pytest.raises(ConfigError, match="unknown objective 'divers': did you mean 'diverse'"):
        SearchConfig(objective="divers")


@pytest.mark.parametrize("objective", ["hard", "bilevel"])
def test_checkpoints_with_objectives_that_are_gone_are_refused(tiny, quick, tmp_path, objective):
    gradient_search(tiny, replace(quick, epochs=1), out=tmp_path)
    folder = GradientFiles(tmp_path)
    state = folder.load_checkpoint(CPU)
    folder.save_checkpoint({**state, "settings": {**state["settings"], "objective": objective}})
    with pytest.raises(
        RunError, match=f"is of another run .unknown objective '{objective}': .*paper, diverse"
    ) as refused:
        gradient_search(tiny, quick, out=tmp_path, resume=True)
    assert "\n" not in str(refused.value)


def test_a_run_keeps_its_objective(tiny, quick, tmp_path):
    gradient_search(tiny, replace(quick, objective="paper", epochs=1), out=tmp_path)
    with pytest.raises(RunError, match="started with objective = 'paper', now it is 'diverse'"):
        gradient_search(tiny, quick, out=tmp_path, resume=True)


def test_masks_have_a_floor_too(quick):
    images, masks = torch.randint(0, 256, (32, 3, 12, 12), dtype=torch.uint8), torch.randint(2, (32, 12, 12))
    data = ImageSet.of_masks(images, masks.to(torch.uint8), ("a", "b"), "noise")
    paper, floor = (
        gradient_search(data, replace(quick, objective=objective, epochs=1, floor=1.2)).policy
        for objective in OBJECTIVES
    )
    assert paper.sub_policies != floor.sub_policies
