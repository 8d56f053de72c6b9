"""A wide network in kernels of our own is the network in plain torch, up to rounding to bfloat16.

Norms are checked in Triton's interpreter too, with the convolutions of plain torch; the kernels of those run on Hopper
GPUs alone.
"""

from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import triton
from torch import nn

from fasteraa.data import load
from fasteraa.evaluate import TrainRecipe
from fasteraa.evaluate.trainer import Group, Training
from fasteraa.nets import hopper, kernels
from fasteraa.nets.hopper import norm
from fasteraa.nets.wide_resnet import WideResNet
from fasteraa.policy.named import named

try:
    from fasteraa.nets.hopper import network as fused_network
except ImportError:  # Triton without Gluon: the networks are compiled instead
    fused_network = None

NEAR = 0.02  # of a norm; bfloat16 keeps 8 bits
with_gluon = pytest.mark.skipif(fused_network is None, reason="Triton has no Gluon here")

cuda = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", cuda])
def device(request):
    if request.param == "cpu" and not kernels.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    torch.manual_seed(0)
    return torch.device(request.param)


@pytest.fixture
def on_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of the Hopper generation")
    torch.manual_seed(0)
    return torch.device("cuda")


def images(device, *shape):
    found = torch.randn(shape, device=device).to(torch.bfloat16, memory_format=torch.channels_last)
    return found.requires_grad_()


def near(found, expected, within=NEAR):
    assert found.shape == expected.shape
    found, expected = found.float(), expected.float()
    assert (found - expected).norm() <= within * expected.norm()


# --- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 160, 4, 4), (3, 5, 3, 3), (2, 130, 8, 8), (70, 64, 8, 8)], ids=str)
@pytest.mark.parametrize("added", [False, True])
def test_norm_and_relu_forwards_and_back(device, shape, added):
    layer = nn.BatchNorm2d(shape[1], device=device)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    layer.running_mean.fill_(2)
    twin = nn.BatchNorm2d(shape[1], device=device)
    twin.load_state_dict(layer.state_dict())
    plus, gradient = (images(device, *shape).detach() for _ in range(2))
    value = (images(device, *shape).detach() + 3).requires_grad_()
    expected = F.relu(twin(value.float()))
    expected.backward(gradient.float())

    by = norm.statistics(layer, norm.sums(value), value.numel() // shape[1])
    near(norm.act(value, by), expected)
    to_value, to_weight, to_bias = norm.act_back(gradient, value, by, plus if added else None)
    near(to_value, value.grad + plus if added else value.grad)
    near(to_weight, twin.weight.grad)
    near(to_bias, twin.bias.grad)
    near(layer.running_mean, twin.running_mean, 1e-4)
    near(layer.running_var, twin.running_var, 1e-4)


def test_what_is_not_a_number_stays_none(device):
    value = images(device, 2, 8, 4, 4).detach()
    by = norm.Norm(*torch.ones(4, 8, device=device))
    value[0, 3, 0, 0] = float("nan")
    assert norm.act(value, by).isnan().sum() == 1


# --- convolutions ----------------------------------------------------------------------------------------------------

SHAPES = [(160, 32), (320, 16), (640, 8), (160, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), SHAPES)
@pytest.mark.parametrize("count", [4, 128])
def test_convolutions(on_hopper, channels, side, count):
    from fasteraa.nets.hopper.convolve import convolve, weight_gradient

    x, plus, gradient = (images(on_hopper, count, channels, side, side) for _ in range(3))
    weights = images(on_hopper, channels, channels, 3, 3)
    with torch.backends.cudnn.flags(allow_tf32=False):
        plain = F.conv2d(x.float(), weights.float(), padding=1)
        to_x, to_weights = torch.autograd.grad(plain, (x, weights), gradient.float())
    with torch.no_grad():
        near(convolve(x, weights)[0], plain, 0.005)
        out, parts = convolve(x, weights, plus, summed=True)
        near(out, plain + plus, 0.005)
        found = out.float().transpose(0, 1).flatten(1)
        torch.testing.assert_close(parts.sum(0), torch.stack([found.sum(1), found.square().sum(1)]), rtol=1e-4, atol=1)
        near(convolve(gradient, weights, back=True)[0], to_x, 0.005)
        near(weight_gradient(x, gradient), to_weights, 0.005)
        for _ in range(3):  # sums have a fixed order
            assert torch.equal(convolve(x, weights, plus)[0], out)


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain_convolutions(monkeypatch):
    """The network's, where those of our own cannot run."""
    if fused_network is None:
        pytest.skip("Triton has no Gluon here")

    def convolve(x, weights, plus=None, back=False, summed=False):
        made = F.conv_transpose2d if back else F.conv2d
        out = made(x.float(), weights.float(), padding=1) + (0 if plus is None else plus)
        out = out.to(torch.bfloat16, memory_format=torch.channels_last)
        return out, norm.sums(out) if summed else None

    def weight_gradient(x, gradient):
        like = torch.empty(gradient.shape[1], x.shape[1], 3, 3)
        return torch.nn.grad.conv2d_weight(x.float(), like.shape, gradient.float(), padding=1)

    for name, own in (("convolve", convolve), ("weight_gradient", weight_gradient), ("shares", lambda *_: 99)):
        monkeypatch.setattr(fused_network, name, own)


def make(width, device):
    """Two blocks a stage: one that changes the shape, one that does not."""
    return WideResNet(16, width, 10).to(device, memory_format=torch.channels_last)


def step(call, batch, half):
    """Logits and gradients, and running statistics."""
    net = getattr(call, "network", call)
    labels = torch.arange(len(batch), device=batch.device) % 10
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
        logits = call(batch).float()
    F.cross_entropy(logits, labels).backward()
    return {"logits": logits.detach(), **{n: p.grad for n, p in net.named_parameters()}, **dict(net.named_buffers())}


def steps_agree(ours, batch, within):
    """Nothing is farther from what float32 gives than plain torch's bfloat16 is, a few times over."""
    exact, half = deepcopy(ours), deepcopy(ours)
    found, wanted, usual = (
        step(fused_network.Fused(ours), batch, True),
        step(exact, batch, False),
        step(half, batch, True),
    )
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype, name
        error, common = ((of[name] - wanted[name]).float().norm() for of in (found, usual))
        assert error <= within * common + 1e-3 * wanted[name].float().norm(), name


def test_a_step_with_plain_convolutions(device, plain_convolutions, monkeypatch):
    if device.type != "cpu":
        pytest.skip("there the convolutions can be ours")
    monkeypatch.setattr(fused_network, "WIDTH", 16)
    batch = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    steps_agree(make(1, device), batch, within=2.5)  # the interpreter rounds towards zero


@pytest.mark.gpu
def test_a_step(on_hopper):
    batch = torch.randn(128, 3, 32, 32, device=on_hopper).contiguous(memory_format=torch.channels_last)
    steps_agree(make(10, on_hopper), batch, within=1.5)


@with_gluon
def test_where_it_would_not_do(monkeypatch):
    wide, shape = WideResNet(10, 10, 10), torch.Size((128, 3, 32, 32))
    cpu = torch.device("cpu")
    assert hopper.fused(wide, shape, cpu) is None
    monkeypatch.setattr(hopper, "usable", lambda device: True)
    assert hopper.fused(wide, shape, cpu) is not None
    assert hopper.fused(WideResNet(10, 2, 10), shape, cpu) is None
    assert hopper.fused(WideResNet(10, 10, 10, dropout=0.1), shape, cpu) is None
    assert hopper.fused(nn.Sequential(), shape, cpu) is None
    for other in ((127, 3, 32, 32), (128, 3, 28, 28), (128, 3, 96, 96)):
        assert hopper.fused(wide, torch.Size(other), cpu) is None


@with_gluon
def test_kernels_that_do_not_work_are_not_used(monkeypatch):
    monkeypatch.setattr(hopper, "_TRIED", (triton.__version__,))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(fused_network, "agrees", lambda device: 1 / 0)
    assert not hopper.usable(torch.device("cuda", 7))
    monkeypatch.setattr(fused_network, "agrees", lambda device: True)
    assert hopper.usable(torch.device("cuda", 6))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert not hopper.usable(torch.device("cuda", 5))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(hopper, "_TRIED", ("3.6.", "3.7."))
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    assert not hopper.usable(torch.device("cuda", 4))


def test_the_probe_finds_what_is_wrong(plain_convolutions, monkeypatch):
    if not kernels.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    probe = partial(fused_network._block_agrees, torch.device("cpu"), hopper.WIDTH, 8, 4)
    assert probe()
    right = fused_network.convolve

    def wrong(x, *given, back=False, **others):
        out, parts = right(x, *given, back=back, **others)
        if back:
            out[1, :, 3:5] = 0  # a few rows of one image
        return out, parts

    monkeypatch.setattr(fused_network, "convolve", wrong)
    assert not probe()


@pytest.mark.gpu
def test_a_recorded_step_keeps_to_its_own_memory(on_hopper):
    """Weights in bfloat16 that were freed after the recording became the next batches' place."""
    data = load(None, subset=256, size=32)
    recipe = TrainRecipe(network="wrn-16-10", epochs=4, batch_size=32, learning_rate=0.01, warmup=1)
    group = Group([Training(data, named("none"), recipe, seed, on_hopper) for seed in (0, 1)], fuse=True)
    group.record()
    assert all(isinstance(forward, fused_network.Fused) for forward in group.step.recorded)
    others = [torch.full((size,), 7, dtype=torch.int32, device=on_hopper) for size in 50 * [115200, 460800, 4194304]]
    group.one_epoch()
    assert all(bool((other == 7).all()) for other in others)
