"""The fast step is the plain one: with its gradients by hand (on any device), captured in a CUDA graph (on a GPU)."""

import copy
import shutil
from dataclasses import replace

import pytest
import torch

from fasteraa.data.batches import Normalise
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.fast_step import CapturedStep, ManualGradStep, load_optimiser, make_step
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.methods.faster_aa.run import Run, gradient_search
from fasteraa.methods.faster_aa.step import METRICS, Step
from fasteraa.nets import Critic, build
from fasteraa.nets.manual_grad import write_layers
from fasteraa.nets.pointwise import Pointwise
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime import device as runtime_device
from fasteraa.runtime.device import image_device
from fasteraa.runtime.progress import Silent

from .conftest import bars

SMOOTH = ("contrast", "color", "brightness", "sharpness", "cutout")  # their gradients are sums in a fixed order


def parts(device="cpu", net="wrn-10-1", ops=None, norm="none"):
    torch.manual_seed(0)
    critic = Critic(build(net, 3, 32, norm=norm), 3)
    with torch.no_grad():
        for parameter in critic.parameters():  # off the values where terms vanish
            if parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.3))
    normalise = Normalise(torch.full((1, 3, 1, 1), 0.45, device=device), torch.full((1, 3, 1, 1), 0.25, device=device))
    return critic.to(device), SoftPolicy(4, 2, ops).to(device), normalise


def manual_step(critic, policy, normalise, config):
    return ManualGradStep(critic, policy, normalise, config, write_layers(critic.backbone))


def batches(count, device="cpu", size=24):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        images = torch.randint(0, 256, (size, 3, 16, 16), dtype=torch.uint8, generator=generator)
        yield images.to(device), torch.randint(3, (size,), generator=generator).to(device)


def parameters(step):
    return [*step.critic.parameters(), *step.policy.parameters()]


def near(value, expected, share=2e-3):
    """In float32; tests/nets/test_manual_grad.py has the sharp bound. (The last bias has no gradient but noise.)"""
    return float((value - expected).norm()) <= share * float(expected.norm()) + 1e-6


def one_step(make, config, device="cpu", **settings):
    """Metrics and all gradients of a first step."""
    step = make(*parts(device, **settings), config)
    images, labels = next(batches(1, device))
    measured = step(images, labels, torch.Generator(device).manual_seed(1))
    return measured, [p.grad.detach().clone() for p in parameters(step)]


@pytest.mark.parametrize("net", ["wrn-10-1", "small"])
def test_manual_grad_is_the_plain_step(net):
    config = SearchConfig()
    (measured, gradients), (expected, references) = (one_step(make, config, net=net) for make in (manual_step, Step))
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert near(gradient, reference)


def test_manual_grad_takes_penalty_and_class_weight_from_the_config():
    for config in (SearchConfig(penalty=0.0, class_weight=2.0), SearchConfig(penalty=100.0, class_weight=0.0)):
        (measured, gradients), (expected, references) = (one_step(make, config) for make in (manual_step, Step))
        torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)
        for gradient, reference in zip(gradients, references, strict=True):
            assert near(gradient, reference)


def by_kernels(critic, policy, normalise, config):
    """Gradients by hand, what is not a convolution by kernels; on the CPU in Triton's interpreter."""
    from fasteraa.nets.pointwise_triton import Fused

    step = manual_step(critic, policy, normalise, config)
    step.by = Fused()
    return step


def test_manual_grad_by_kernels():
    """All gradients, the policy's too."""
    from fasteraa.nets import pointwise_triton as kernels

    if not kernels.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    (measured, gradients), (expected, references) = (one_step(make, SearchConfig()) for make in (by_kernels, Step))
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert near(gradient, reference)


def test_who_gets_kernels(monkeypatch):
    """Whoever has a GPU on which Triton works, unless the config says otherwise."""
    from fasteraa.nets.pointwise_triton import Fused

    assert type(make_step(*parts(), SearchConfig()).by) is Pointwise
    monkeypatch.setattr("fasteraa.nets.pointwise.works_on", lambda device: True)
    assert type(make_step(*parts(), SearchConfig()).by) is Fused
    assert type(make_step(*parts(), SearchConfig(kernels=False)).by) is Pointwise


def test_what_is_written_out():
    assert type(make_step(*parts(), SearchConfig())) is ManualGradStep
    assert type(make_step(*parts(), SearchConfig(fast=False))) is Step
    assert type(make_step(*parts(norm="primitive"), SearchConfig())) is Step  # batch statistics are not


def test_an_optimisers_state_survives_another_layout():
    """A run may continue with `fast` where it began without, and the other way round."""
    step, other = (Step(*parts(), SearchConfig()) for _ in range(2))
    for images, labels in batches(2):
        step(images, labels, torch.Generator().manual_seed(0))
    saved = copy.deepcopy(step.critic_optimiser.state_dict())
    other.critic.to(memory_format=torch.channels_last)
    load_optimiser(other.critic_optimiser, saved)
    for mine, theirs in zip(step.critic.parameters(), other.critic.parameters(), strict=True):
        old, new = step.critic_optimiser.state[mine], other.critic_optimiser.state[theirs]
        assert new["step"] == old["step"] == 2
        assert torch.equal(new["exp_avg_sq"], old["exp_avg_sq"])
        assert new["exp_avg_sq"].stride() == theirs.stride()


def test_what_happens_before_the_capture_leaves_no_trace():
    """Neither at the start, where the optimisers have no state yet, nor later."""
    plain, other = (Step(*parts(), SearchConfig()) for _ in range(2))
    captured = CapturedStep(other)
    one, captured._generator = (torch.Generator().manual_seed(3) for _ in range(2))
    for images, labels in batches(3):
        expected = plain(images, labels, one)
        with captured._unchanged():
            for _ in range(2):
                other(images, labels, captured._generator)
        assert torch.equal(other(images, labels, captured._generator), expected)
    for mine, theirs in zip(parameters(plain), parameters(other), strict=True):
        assert torch.equal(mine, theirs)


@pytest.fixture
def deterministic():
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    yield
    torch.backends.cudnn.deterministic = before


@pytest.mark.gpu
@pytest.mark.parametrize("net", ["wrn-10-1", "small", "resnet-50"])
@pytest.mark.parametrize("kernels", [True, False])
def test_manual_grad_on_a_gpu(net, kernels, deterministic):
    config = SearchConfig(precision="float32", kernels=kernels)
    (measured, gradients), (expected, references) = (
        one_step(make, config, "cuda", net=net) for make in (manual_step, Step)
    )
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    share = 5e-2 if net == "resnet-50" else 2e-3  # deep: a ReLU at its kink falls to one side or the other
    for gradient, reference in zip(gradients, references, strict=True):
        assert near(gradient, reference, share)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [Step, manual_step])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_captured_step_does_what_the_step_does(make, precision, deterministic):
    """Step for step: the same draws, the same metrics, the same parameters, from the first call on."""
    config = SearchConfig(precision=precision)
    plain = make(*parts("cuda", ops=SMOOTH), config)
    captured = CapturedStep(make(*parts("cuda", ops=SMOOTH), config))
    one, two = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    for images, labels in batches(4, "cuda"):
        expected = plain(images, labels, one).clone()
        torch.testing.assert_close(captured(images, labels, two), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(one.get_state(), two.get_state())
    for mine, theirs in zip(parameters(plain), parameters(captured), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_auto_is_bf16_where_that_is_known_to_do(device):
    """Gradients by hand, on a GPU; the plain step and the CPU keep what they had. A choice is kept."""
    half = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    assert manual_step(*parts(device), SearchConfig()).dtype is (torch.bfloat16 if half else torch.float32)
    assert Step(*parts(device), SearchConfig()).precision == "tf32"
    assert manual_step(*parts(device), SearchConfig(precision="tf32")).dtype is torch.float32
    assert manual_step(*parts(device), SearchConfig(precision="bf16")).dtype is torch.bfloat16


@pytest.mark.gpu
def test_capturing_all_operations_stays_near_the_plain_step():
    """With every operation, sums on a GPU come in any order and Adam turns noise into steps; metrics stay near."""
    config = SearchConfig(precision="float32")
    plain, captured = Step(*parts("cuda"), config), CapturedStep(manual_step(*parts("cuda"), config))
    one, two = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    for images, labels in batches(3, "cuda"):
        expected = plain(images, labels, one)
        torch.testing.assert_close(captured(images, labels, two), expected, rtol=2e-2, atol=2e-2)


def test_a_cpu_leaves_the_kernels_alone():
    """Even where Triton's interpreter could run them."""
    (measured, _), (expected, _) = (one_step(Step, SearchConfig(kernels=kernels)) for kernels in (True, False))
    assert torch.equal(measured, expected)


@pytest.mark.parametrize("make", [Step, manual_step])
def test_a_step_by_kernels_is_the_plain_step(make, monkeypatch):
    """In Triton's interpreter: gradients of the policy come through the critic and the kernels."""
    from fasteraa.ops.kernels import soft

    if not soft.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    config, ops, asked = SearchConfig(), ("rotate", "sharpness", "cutout", "contrast"), []
    expected, references = one_step(make, config, ops=ops)
    forward = SoftPolicy.forward
    monkeypatch.setattr(
        SoftPolicy,
        "forward",
        lambda *given, batch, kernels: asked.append(kernels) or forward(*given, batch=batch, kernels=True),
    )
    measured, gradients = one_step(make, config, ops=ops)
    assert asked == [None]
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert near(gradient, reference)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_step_by_kernels(precision, deterministic):
    """Replayed, it does what it does uncaptured, and nearly what the plain step does."""
    config = SearchConfig(precision=precision, kernels=True)
    eager, captured = manual_step(*parts("cuda"), config), CapturedStep(manual_step(*parts("cuda"), config))
    plain = manual_step(*parts("cuda"), replace(config, kernels=False))
    generators = [torch.Generator("cuda").manual_seed(3) for _ in range(3)]
    for images, labels in batches(3, "cuda"):
        steps = zip((captured, eager, plain), generators, strict=True)
        measured, same, near_by = (step(images, labels, generator).clone() for step, generator in steps)
        torch.testing.assert_close(measured, same, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(measured, near_by, rtol=2e-2, atol=2e-2)
        assert torch.equal(generators[0].get_state(), generators[2].get_state())


@pytest.mark.gpu
def test_a_network_with_batch_norm_is_captured_as_it_is():
    step = make_step(*parts("cuda", norm="primitive"), SearchConfig(critic_norm="batch"))
    assert isinstance(step, CapturedStep)
    assert type(step.step) is Step
    before = [buffer.clone() for buffer in step.critic.buffers()]
    generator = torch.Generator("cuda").manual_seed(0)
    for images, labels in batches(2, "cuda"):
        assert torch.isfinite(step(images, labels, generator)).all()
    counts = [buffer for name, buffer in step.critic.named_buffers() if name.endswith("num_batches_tracked")]
    assert counts
    assert {int(count) for count in counts} == {6}  # two steps, three forwards each; the warm-up left no trace
    assert any(not torch.equal(a, b) for a, b in zip(before, step.critic.buffers(), strict=True))


@pytest.mark.gpu
def test_images_that_do_not_fit_on_the_device_stay_in_memory(monkeypatch):
    config = SearchConfig(epochs=1, batch_size=32, sub_policies=2, critic="wrn-10-1", ops=SMOOTH)
    data, runs = bars(64, 16, classes=2), []
    for share in (0.5, 0.0):
        monkeypatch.setattr(runtime_device, "DEVICE_SHARE", share)
        runs.append(Run(data, config, torch.device("cuda"), None, Silent()))
        runs[-1].go()
    assert [run.images.device.type for run in runs] == ["cuda", "cpu"]
    assert runs[0].epochs[0].distance == pytest.approx(runs[1].epochs[0].distance, rel=1e-2)


def test_where_images_live(monkeypatch):
    images, gpu = torch.zeros(1000, dtype=torch.uint8), torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000, 4000))
    assert image_device(images, gpu) == gpu  # half of what is free
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1999, 4000))
    assert image_device(images, gpu) == image_device(images, torch.device("cpu")) == torch.device("cpu")


@pytest.mark.gpu
def test_same_seed_same_hash_on_a_gpu():
    """With kernels and deterministic convolutions nothing is added in an order of its own."""
    config = SearchConfig(epochs=3, batch_size=32, sub_policies=4, critic="wrn-10-1", kernels=True, deterministic=True)
    data = bars(256, 16, classes=2)
    one, two = (gradient_search(data, config, device="cuda") for _ in range(2))
    assert one.epochs[-1].distance == two.epochs[-1].distance
    assert one.policy.hash == two.policy.hash
    assert not torch.backends.cudnn.deterministic


@pytest.mark.gpu
def test_nothing_waits_inside_an_epoch():
    step = make_step(*parts("cuda"), SearchConfig())
    generator = torch.Generator("cuda").manual_seed(0)
    data = list(batches(3, "cuda"))
    step(*data[0], generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images, labels in data:
            step(images, labels, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_run_continues_with_and_without_fast(fast, device, tmp_path, monkeypatch, deterministic):
    """What was saved is loaded to the bit, and two steps later both ways still agree.

    Later they need not: on a CPU, rounding alone moved the penalty of a run like this by up to two thirds within 16
    steps. After two, noise of 1e-5 in every convolution moves it by at most 4e-4 of itself (24 seeds), averages of Adam
    that were not loaded by at least 1.4e-2.
    """
    if device == "cpu":  # where no run is fast: the step with gradients by hand stands in
        ways = {True: manual_step, False: Step}
        monkeypatch.setattr("fasteraa.methods.faster_aa.run.make_step", lambda *given: ways[given[3].fast](*given[:4]))
    data = bars(32, 16, classes=2)
    config = SearchConfig(
        epochs=2, batch_size=16, sub_policies=2, ops=SMOOTH, critic="small", precision="float32", fast=fast
    )
    gradient_search(data, config, device=device, out=tmp_path / "same")
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    saved = GradientFiles(tmp_path / "same").load_checkpoint(torch.device(device))
    rows = []
    for name, way in (("same", fast), ("other", not fast)):
        longer = replace(config, epochs=3, fast=way)
        run = Run(data, longer, torch.device(device), GradientFiles(tmp_path / name), Silent())
        run.load()
        assert_as_saved(run, saved)
        continued = gradient_search(data, longer, device=device, out=tmp_path / name, resume=True)
        assert [row.epoch for row in continued.epochs] == [1, 2, 3]
        rows.append(continued.epochs[2])
    for metric in METRICS:
        one, two = (getattr(row, metric) for row in rows)
        assert one == pytest.approx(two, rel=5e-3, abs=2e-3), metric


def assert_as_saved(run, saved):
    for part, name in ((run.step.critic, "critic"), (run.policy, "policy")):
        state_of_part, optimiser = part.state_dict(), getattr(run.step, f"{name}_optimiser").state_dict()["state"]
        for key, value in saved[name].items():
            assert torch.equal(state_of_part[key], value), key
        for index, state in saved[f"{name}_optimiser"]["state"].items():
            for key, value in state.items():
                assert torch.equal(optimiser[index][key], value), (name, index, key)
    assert torch.equal(run.generator.get_state(), saved["generator"].cpu())
