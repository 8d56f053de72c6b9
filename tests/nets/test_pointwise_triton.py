"""The kernels of `ManualGrad` do what plain torch does: in Triton's interpreter on the CPU, on a GPU as they are."""

import functools

import pytest
import torch
from torch import nn

from fasteraa.nets import make_norm_free, pointwise_triton
from fasteraa.nets.manual_grad import Add, Convolution, ManualGrad, MaxPool, _Writer, write_layers
from fasteraa.nets.pointwise import PLAIN, Scaled
from fasteraa.nets.pointwise_triton import Fused

from .test_manual_grad import NETS, backbone_of

FUSED = Fused()
# images, channels, height, width: odd numbers, one pixel, one image, more channels than a program has lanes
SHAPES = [(4, 16, 4, 6), (3, 5, 3, 3), (1, 3, 1, 1), (6, 130, 1, 1), (2, 100, 5, 1), (5, 1, 7, 2)]
LARGE = [(192, 32, 32, 32), (192, 128, 8, 8), (7, 2048, 7, 7), (3, 3, 225, 113)]
# bfloat16 keeps 8 bits; plain torch rounds products to them, of up to 32 here, before it adds; Triton's interpreter
# does not round to the nearest, but towards zero
NEAR = {torch.float32: {"rtol": 2e-6, "atol": 4e-6}, torch.bfloat16: {"rtol": 2**-6, "atol": 2**-3}}


@pytest.fixture(
    params=[("cpu", shape) for shape in SHAPES]
    + [pytest.param(("cuda", shape), marks=pytest.mark.gpu) for shape in SHAPES + LARGE],
    ids=lambda case: f"{case[0]}-{'x'.join(map(str, case[1]))}",
)
def make(request):
    """Makes images of one shape, channels-last, and parameters for its channels."""
    device, shape = request.param
    if device == "cpu" and not pointwise_triton.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")

    def images(dtype, count=shape[0], near_zero=0.0):
        found = torch.randn(count, *shape[1:]).to(device, dtype, memory_format=torch.channels_last)
        return found.masked_fill_(torch.rand(found.shape, device=device) < near_zero, 0)

    images.shape = shape
    # what bfloat16 can hold: plain torch rounds parameters too
    images.vector = lambda: nn.Parameter(torch.randn(shape[1], device=device).bfloat16().float())
    return images


BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def same(dtype, call):
    """`call(by)` gives tensors; those of the kernels are those of plain torch."""
    plain, fused = call(PLAIN), call(FUSED)
    assert len(plain) == len(fused) > 0
    for expected, found in zip(plain, fused, strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, **NEAR[dtype])
    return fused


@BOTH
@pytest.mark.parametrize(("shifted", "relu"), [(True, True), (True, False), (False, True), (False, False)])
def test_after_a_convolution(make, dtype, shifted, relu):
    out, shift = make(dtype), make.vector()

    def call(by):
        return (by.shifted_(out.clone(), by.vector(shift, dtype) if shifted else None, relu),)

    same(dtype, call)


@BOTH
def test_what_is_not_a_number_stays_none(make, dtype):
    """Training that went wrong must show."""
    out = make(dtype)
    out[0, 0, 0, 0] = float("nan")
    for by in (PLAIN, FUSED):
        found = by.shifted_(out.clone(), None, True)
        assert torch.isnan(found).sum() == 1
        assert not (found < 0).any()
        assert torch.isnan(by.before_relu(torch.ones_like(out), out)).sum() == 0
        assert by.before_relu(torch.ones_like(out), out)[0, 0, 0, 0] == 1


@BOTH
def test_sums_of_branches(make, dtype):
    first, second = make(dtype), make(dtype)
    for relu in (True, False):
        same(dtype, lambda by, relu=relu: (by.total(first, second, relu),))


@BOTH
@pytest.mark.parametrize("joined", [True, False])
def test_affine_relu(make, dtype, joined):
    value, plus, weight, shift = make(dtype), make(dtype) if joined else None, make.vector(), make.vector()

    def call(by):
        return by.affine_relu(value, plus, by.vector(weight, dtype), by.vector(shift, dtype))

    x, out = same(dtype, call)
    if joined:  # the result is that of the sum as it was stored
        alone = FUSED.affine_relu(x, None, weight.detach(), shift.detach())
        assert torch.equal(out, alone[1])


@BOTH
@pytest.mark.parametrize("onto", [True, False])
def test_backward(make, dtype, onto):
    """A ReLU's output has exact zeros, which let nothing through."""
    gradient, out, weight = make(dtype), make(dtype, near_zero=0.3).relu(), make.vector()
    onto = make(dtype) if onto else None
    same(dtype, lambda by: (by.before_relu(gradient, out),))
    delta, _ = same(dtype, lambda by: by.before_affine_relu(gradient, out, by.vector(weight, dtype), onto, True))
    assert torch.equal(delta, torch.where(out > 0, gradient, torch.zeros_like(gradient)))
    none, _ = FUSED.before_affine_relu(gradient, out, weight.detach(), onto, False)
    assert none is None


@BOTH
@pytest.mark.parametrize("joined", [True, False])
def test_tangents_take_the_place_of_the_first_values(make, dtype, joined):
    count = max(1, make.shape[0] // 2)
    tangent, plus = make(dtype, count), make(dtype, count) if joined else None
    total, out, weight = make(dtype), make(dtype, near_zero=0.3).relu(), make.vector()

    def affine(by):
        values = total.clone(), out.clone()
        x, moved = by.affine_tangent_(tangent, plus, by.vector(weight, dtype), *(value[:count] for value in values))
        assert torch.equal(moved, values[1][:count])  # in place
        assert torch.equal(x, values[0][:count] if joined else tangent)
        return values

    def without(by, relu):
        value = out.clone()
        assert torch.equal(by.tangent_(tangent, plus, value[:count], relu), value[:count])
        return (value,)

    *_, moved = same(dtype, affine)
    assert torch.equal(moved[count:], out[count:])
    for relu in (True, False):
        same(dtype, lambda by, relu=relu: without(by, relu))
    nothing = out[:0]  # a value that nobody kept
    assert torch.equal(FUSED.tangent_(tangent, plus, nothing, False), PLAIN.tangent_(tangent, plus, nothing, False))


@BOTH
@pytest.mark.parametrize("points", [0, 1])
def test_sums(make, dtype, points):
    """Against float64; and the same bits again."""
    pairs = [(make(dtype), make(dtype)), (make(dtype), None), (make(dtype)[: points + 1], None)]
    found, again = (FUSED.sums(pairs, points) for _ in range(2))
    for (delta, value), (product, summed), (product2, summed2) in zip(pairs, found, again, strict=True):
        rows = delta.shape[0] * delta.shape[2] * delta.shape[3]
        near = {"rtol": 0, "atol": 2**-22 * rows**0.5 * 4}
        d = delta.double()
        assert summed.dtype == torch.float32
        torch.testing.assert_close(summed.double(), d[points:].sum((0, 2, 3)), **near)
        assert torch.equal(summed, summed2)
        assert (product is None) == (value is None)
        if value is not None:
            torch.testing.assert_close(product.double(), (d * value.double()).sum((0, 2, 3)), **near)
            assert torch.equal(product, product2)


@BOTH
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_weights_and_their_gradients(device, layout, dtype):
    """All convolutions together: with and without a scale, in either layout, a count that fills no slot."""
    if device == "cpu" and not pointwise_triton.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    shapes = [(5, 3, 3, 3), (4, 40, 5, 5), (7, 6, 1, 1), (1, 2, 3, 3)]
    weights = [nn.Parameter(torch.randn(shape, device=device).to(memory_format=layout)) for shape in shapes]
    scales = [nn.Parameter(torch.randn(len(w), device=device)) for w in weights]
    for convolutions in (
        [Scaled(w, s if n % 2 else None) for n, (w, s) in enumerate(zip(weights, scales, strict=True))],
        [Scaled(w, None) for w in weights],
    ):
        found = same(dtype, lambda by, convolutions=convolutions: by.weights(convolutions, dtype))
        assert all(f.stride() == w.stride() for f, w in zip(found, weights, strict=True))
        assert all(f.storage_offset() % pointwise_triton.SLOT == 0 for f in found)
        come = [torch.randn(w.shape, device=device).to(dtype) for w in weights]  # always contiguous
        plain, fused = (dict(by.weight_gradients(convolutions, come)) for by in (PLAIN, FUSED))
        assert set(fused) == set(plain)
        for parameter, gradient in fused.items():
            assert gradient.stride() == parameter.stride()
            torch.testing.assert_close(gradient, plain[parameter], rtol=1e-5, atol=1e-4)


ROUNDING = {
    ("cpu", torch.float32): 1e-6,
    ("cpu", torch.bfloat16): 0.1,  # the interpreter rounds it towards zero
    ("cuda", torch.float32): 1e-3,  # a ReLU at its kink falls to one side or the other
    ("cuda", torch.bfloat16): 1e-2,
}


def norm_of(channels):
    norm = make_norm_free(nn.BatchNorm2d(channels))
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -0.3, 0.3)
    return norm


def small_bottlenecks():
    """As in ResNet-50, with fewer channels: the interpreter is slow."""
    conv = functools.partial(nn.Conv2d, bias=False)
    net = nn.ModuleList([conv(3, 6, 7, 2, padding=3), norm_of(6)])
    write = _Writer([])
    x = write(MaxPool(write(Convolution(0, *net, relu=True)), nn.MaxPool2d(3, 2, 1)))
    for width in (6, 16):
        convs = [conv(width, 4, 1), conv(4, 4, 3, padding=1), conv(4, 16, 1)]
        norms = [norm_of(4), norm_of(4), norm_of(16)]
        h = write(Convolution(x, convs[0], norms[0], relu=True))
        h = write(Convolution(h, convs[1], norms[1], relu=True))
        h = write(Convolution(h, convs[2], norms[2]))
        if width == 6:
            convs, norms = [*convs, conv(6, 16, 1)], [*norms, norm_of(16)]
            x = write(Convolution(x, convs[3], norms[3]))
        x = write(Add(x, h, relu=True))
        net.extend([*convs, *norms])
    return net.double(), write.layers, 16


def network(name):
    """The network, its layers, and how many features it has."""
    if name == "small bottlenecks":
        return small_bottlenecks()
    net = backbone_of(name)
    return net, write_layers(net), net.num_features


@pytest.mark.parametrize(
    ("name", "device"),
    [*((name, "cpu") for name in ("wrn-10-1", "small", "small bottlenecks"))]
    + [pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("small bottlenecks", *NETS)],
)
@BOTH
def test_a_whole_network(name, dtype, device):
    """Off by at most twice of what plain torch is off by, against float64, and a little more."""
    if device == "cpu" and not pointwise_triton.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    net, layers, features = network(name)
    size = 16 if device == "cpu" else 32
    images, tangent = torch.randn(5, 3, size, size).double(), torch.randn(2, 3, size, size).double()
    weights = torch.randn(5, features).double()

    def all_of(by, dtype, parameters):
        net.to(device, parameters, memory_format=torch.channels_last)
        given = images.to(device, dtype, memory_format=torch.channels_last, copy=True)
        with torch.no_grad():
            manual = ManualGrad(layers, given, by)
            found = {"features": manual.features, "images": manual.backward(weights.to(device, parameters))}
            found["moved"] = manual.tangent(tangent.to(device, parameters))
            names = {parameter: name for name, parameter in net.named_parameters()}
            found |= {names[parameter]: gradient for parameter, gradient in manual.gradients(2)}
        return {name: value.double().cpu() for name, value in found.items()}

    exact = all_of(PLAIN, torch.float64, torch.float64)
    plain, fused = (all_of(by, dtype, torch.float32) for by in (PLAIN, FUSED))
    assert set(fused) == set(plain) == set(exact)
    rounding = ROUNDING[device, dtype]
    for key, value in exact.items():
        whole = float(value.norm())
        error, allowed = (float((each[key] - value).norm()) / whole for each in (fused, plain))
        assert error <= 2 * allowed + rounding, (key, error, allowed)
