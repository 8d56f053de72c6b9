"""The primitive norm layers are their fused twins in everything but the derivative of the derivative."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

from fasteraa.errors import ConfigError
from fasteraa.nets import build
from fasteraa.nets.norm import BatchNorm2d, LayerNorm, frozen_statistics, make_primitive

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def pair(**options):
    """A fused layer with odd parameters and statistics, and our own with the same state."""
    fused = nn.BatchNorm2d(5, **options).double()
    with torch.no_grad():
        for tensor in [*fused.parameters(), *(b for b in fused.buffers() if b.is_floating_point())]:
            tensor.uniform_(0.5, 2)
    ours = BatchNorm2d(5, **options).double()
    ours.load_state_dict(fused.state_dict())
    return fused, ours


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(4, 5, 3, 7, generator=generator, dtype=torch.float64) + 10


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"eps": 0.1, "momentum": 0.7}, {"affine": False}])
def test_output_gradients_and_state_equal_the_fused_layers(options, training):
    fused, ours = (layer.train(training) for layer in pair(**options))
    for seed in range(3):
        x, y = images(seed).requires_grad_(), images(seed).requires_grad_()
        out, expected = ours(x), fused(y)
        torch.testing.assert_close(out, expected, **CLOSE)
        out.pow(3).sum().backward()
        expected.pow(3).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.state_dict(), fused.state_dict(), **CLOSE)
    assert list(ours.state_dict()) == list(fused.state_dict())
    for mine, theirs in zip(ours.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_without_running_statistics_the_batch_is_used(training):
    fused, ours = (layer.train(training) for layer in pair(track_running_stats=False))
    torch.testing.assert_close(ours(images()), fused(images()), **CLOSE)


def test_half_precision_sums_in_float32_and_keeps_its_type():
    x = images().bfloat16()
    out = BatchNorm2d(5)(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, nn.BatchNorm2d(5)(x), rtol=0.01, atol=0.01)  # bf16 resolves 0.008 at 1 to 2
    big = torch.tensor([-300.0, 300.0], dtype=torch.float16).view(2, 1, 1, 1)  # squared, beyond half precision
    assert BatchNorm2d(1)(big).flatten().tolist() == [-1, 1]


def test_double_backward_is_right():
    layer = BatchNorm2d(2).double()
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    with frozen_statistics(layer):
        assert torch.autograd.gradgradcheck(layer, (x,))


def test_one_value_per_channel_is_refused_like_the_fused_layer():
    with pytest.raises(ValueError, match="more than one value per channel, got 1"):
        BatchNorm2d(3)(torch.zeros(1, 3, 1, 1))
    with pytest.raises(ValueError, match="expected 4D input"):
        BatchNorm2d(3)(torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, BatchNorm2d])
def test_frozen_statistics_normalise_by_the_batch_and_leave_the_buffers(kind):
    net = nn.Sequential(kind(5), kind(5, track_running_stats=False)).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with frozen_statistics(net):
        frozen = net(images())
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(net(images()), frozen, **CLOSE)
    assert net[0].num_batches_tracked == 1
    assert net[1].track_running_stats is False


def test_frozen_statistics_thaw_after_an_error():
    layer = BatchNorm2d(5).double()
    with pytest.raises(KeyError), frozen_statistics(layer):
        raise KeyError
    layer(images())
    assert layer.num_batches_tracked == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch's own, at the first forward-mode product of a process
def test_dual_tensors_update_the_statistics_with_primal_values():
    fused, dual = pair()
    fused(images())
    with forward_ad.dual_level():
        dual(forward_ad.make_dual(images(), images(1)))
        assert forward_ad.unpack_dual(dual.running_mean).tangent is None
    torch.testing.assert_close(dual.state_dict(), fused.state_dict(), **CLOSE)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False, "eps": 0.1}])
@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_layer_norm_equals_the_fused_one(shape, options):
    fused = nn.LayerNorm(shape, **options).double()
    for parameter in fused.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    ours = LayerNorm(shape, **options).double()
    ours.load_state_dict(fused.state_dict())
    torch.testing.assert_close(ours(images()), fused(images()), **CLOSE)


def test_make_primitive_keeps_parameters_state_references_and_output():
    shared = nn.BatchNorm2d(5)
    net = nn.Sequential(shared, nn.Sequential(nn.BatchNorm2d(5), nn.ReLU()), shared).double()
    parameters, expected = list(net.parameters()), net(images())
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with frozen_statistics(net):
        torch.testing.assert_close(make_primitive(net)(images()), expected, **CLOSE)
    assert type(net[0]) is type(net[1][0]) is BatchNorm2d
    assert net[0] is net[2] is shared
    assert all(now is then for now, then in zip(net.parameters(), parameters, strict=True))
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
    assert make_primitive(net) is net


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet"])
def test_make_primitive_keeps_the_output_of_timm_nets(name):
    pytest.importorskip("timm")
    net, x = build(f"timm:{name}", 5, 32).double(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    expected = net(x)
    torch.testing.assert_close(make_primitive(net)(x), expected, rtol=1e-10, atol=1e-10)


def test_make_primitive_takes_a_layer_itself():
    assert type(make_primitive(nn.BatchNorm2d(3))) is BatchNorm2d


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.InstanceNorm2d(3), nn.SyncBatchNorm(3)])
def test_make_primitive_refuses_what_it_would_leave_wrong(layer):
    with pytest.raises(ConfigError, match=rf"got {type(layer).__name__} at '1.0'; choices: BatchNorm2d, LayerNorm"):
        make_primitive(nn.Sequential(nn.ReLU(), nn.Sequential(layer)))
