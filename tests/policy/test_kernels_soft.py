"""The soft policy by Triton kernels is that of plain torch: in Triton's interpreter on the CPU, on a GPU as it is.

Against float64, values and gradients may be off by twice what plain float32 is off by.
"""

from dataclasses import replace

import pytest
import torch

from fasteraa.errors import ImageError
from fasteraa.ops import OPS, Span, op, tone, warp
from fasteraa.ops.kernels import soft as kernels
from fasteraa.policy import soft as soft_module
from fasteraa.policy.soft import SoftDraw, SoftPolicy

PARAMETERS = ("choice", "probability", "magnitude")
ROUNDING = 2.0**-23  # of the whole: where plain float32 happens to be exact


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cpu" and not kernels.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    return request.param


def pictures(count, channels=3, height=8, width=8):
    """Between the 256 levels, but not halfway, where the nearest level would be a matter of rounding."""
    levels = torch.randint(1, 255, (count, channels, height, width))
    return (levels + 0.8 * torch.rand(levels.shape) - 0.4) / 255


def mild(subs, stages, ops=None, **settings):
    """Temperatures at which every operation has a say and no gate is shut."""
    return SoftPolicy(subs, stages, ops, **{"choice_temperature": 0.4, "gate_temperature": 0.7, **settings})


def to(dtype, draw, device="cpu"):
    columns = {name: column.to(device) for name, column in vars(draw).items()}
    return SoftDraw(**{name: c.to(dtype) if c.is_floating_point() else c for name, c in columns.items()})


def run(policy, images, draw, come, dtype, device, **settings):
    """Name -> values and gradients, as float64 on the CPU."""
    policy.to(device, dtype).zero_grad()
    x = images.to(device, dtype, copy=True).requires_grad_()
    out = policy(x, to(dtype, draw, device), **settings)
    out.backward(come.to(device, dtype))
    found = {"out": out.detach(), "image": x.grad}
    for name in PARAMETERS:
        parameter = getattr(policy, name)
        found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return {name: tensor.double().cpu() for name, tensor in found.items()}


def off(policy, images, draw, device, times=2.0):
    """What is off by more than `times` plain float32's own error, with both errors as shares of the whole."""
    come = torch.randn(images.shape)
    plain = run(policy, images, draw, come, torch.float32, device, kernels=False)
    found = run(policy, images, draw, come, torch.float32, device, kernels=True)
    exact = run(policy, images, draw, come, torch.float64, device)  # the parameters are exact in both
    policy.to("cpu", torch.float32)
    bad = {}
    for name, wanted in exact.items():
        mine, theirs = (float((each[name] - wanted).norm()) for each in (found, plain))
        whole = float(wanted.norm())
        if not mine <= times * theirs + ROUNDING * whole:
            bad[name] = (mine / (whole or 1), theirs / (whole or 1))
    return bad


@pytest.mark.parametrize("name", OPS)
def test_an_operation_from_end_to_end(name, device):
    """Both signs, magnitudes 0 and 1 and between. Sides are powers of two: there torch's grid is exact as well, and
    the derivative at a magnitude of 0, where bilinear sampling has a kink, is taken on the same side."""
    policy = mild(4, 1, [name])
    with torch.no_grad():
        policy.magnitude[:, 0, 0] = torch.tensor([0.0, 1.0, 0.37, 0.83])
    draw = policy.draw(8)
    sign = torch.tensor([1.0, -1.0]).repeat_interleave(4).view(1, 8, 1)
    draw = replace(draw, sub_policy=torch.arange(8) % 4, sign=sign)
    assert off(policy, pictures(8), draw, device) == {}


SHAPES = [(3, 3, 7, 5), (2, 1, 9, 6), (3, 3, 1, 1), (2, 1, 1, 1), (2, 3, 2, 11), (2, 3, 18, 17)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mixture_of_all(shape, device):
    """Also where an image has several tiles."""
    policy = mild(2, 1, fill=(200, 30, 9))
    assert off(policy, pictures(*shape), policy.draw(shape[0]), device) == {}


def test_stages_and_sub_policies(device):
    policy = mild(3, 3)
    assert off(policy, pictures(3, 3, 5, 6), policy.draw(3), device) == {}


def test_as_cold_as_in_a_search(device):
    policy = SoftPolicy(4, 2, ["rotate", "sharpness", "posterize", "cutout", "contrast", "flip"])
    assert off(policy, pictures(6), policy.draw(6), device) == {}


def test_more_images_than_are_added_at_once(device):
    policy = mild(3, 1, ["brightness", "cutout"])
    assert off(policy, pictures(40, 1, 2, 3), policy.draw(40), device) == {}


def test_changed_spans(device):
    spans = {
        "translate_x": Span(0, 40, "px"),  # beyond the image
        "translate_y": Span(0, 2.5, "px"),
        "shear_x": Span(0, -2.7, "slope"),
        "shear_y": Span(0, 5.3, "slope"),
        "cutout": Span(0, 5, "px"),
        "rotate": Span(0, 180, "degree"),
        "posterize": Span(8, -2, "bit"),
        "contrast": Span(1, -3, "factor"),
        "sample_pairing": Span(0, 1.5, "share"),
        "solarize": Span(256, -20, "level"),
    }
    policy = mild(3, 1, list(spans), spans=spans, fill=(9, 200, 30))
    assert off(policy, pictures(3, 3, 6, 7), policy.draw(3), device) == {}


def test_whole_pixels_of_a_box_stay_whole(device):
    """k of 41 pixels is k, not k less an ulp."""
    policy = mild(5, 1, ["cutout"], spans={"cutout": Span(0, 41, "px")})
    with torch.no_grad():
        policy.magnitude[:, 0, 0] = torch.arange(1, 6) / 41
    draw = replace(policy.draw(5), sub_policy=torch.arange(5), hole=torch.zeros(1, 5, 2))
    images = pictures(5, 3, 7, 9).to(device)
    policy, draw = policy.to(device), to(torch.float32, draw, device)
    found, expected = (policy(images, draw, kernels=kernels) for kernels in (True, False))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_images_with_few_levels_and_clipped_ones(device):
    images = pictures(4)
    images[0] = 0.5
    images[1] = images[1].round()
    images[2] = (images[2] * 3).floor() / 3
    images[3, 0], images[3, 1] = 0.0, 1.0
    policy = mild(2, 1, ["auto_contrast", "equalize", "contrast", "color", "brightness", "sharpness", "solarize"])
    assert off(policy, images, policy.draw(4), device) == {}


def test_halfway_between_levels(device):
    """To the even one, as torch rounds."""
    images = ((torch.arange(240) + 0.5) / 255).view(1, 3, 8, 10).to(device)
    assert (images.cpu() * 255 % 1 == 0.5).float().mean() > 0.5
    policy = SoftPolicy(1, 1, ["posterize"]).to(device)
    with torch.no_grad():
        policy.magnitude.fill_(1.0)
        policy.probability.fill_(1.0)
    draw = policy.draw(1)
    found, expected = (policy(images, draw, kernels=kernels) for kernels in (True, False))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_parameters_that_left_the_unit_interval(device):
    policy = mild(2, 1, ["brightness", "rotate", "posterize"])
    with torch.no_grad():
        policy.magnitude.copy_(torch.tensor([[[1.4, -0.3, 3.3]], [[0.2, 1.7, -2.0]]]))
        policy.probability.copy_(torch.tensor([[[1.4, -0.3, 0.3]], [[0.2, 1.7, -2.0]]]))
    assert off(policy, pictures(4), policy.draw(4), device) == {}


def test_an_operation_without_a_kernel_is_done_in_plain_torch(device, monkeypatch):
    monkeypatch.setattr("fasteraa.ops.declare.OPS", dict(OPS))

    @op(tone.tone, Span(0, 100, "level"), discrete=True, pillow=lambda image, v, _: image)
    def lift(xp, level, v):
        """Add to every level."""
        return level + v, 1.0

    @op(warp.warp, Span(1, 0.3, "factor"), pillow=lambda image, v, _: image)
    def zoom(v, width, height):
        """Make everything larger."""
        return v, 0, width * (1 - v) / 2, 0, v, height * (1 - v) / 2

    policy = mild(2, 2, ["flip", "contrast", "cutout"])
    mixed = mild(2, 2, ["flip", "invert", "contrast", "brightness", "cutout"])
    mixed.ops = [policy.ops[0], lift, policy.ops[1], zoom, policy.ops[2]]
    assert kernels.rules_of(mixed.ops, {}, torch.device("cpu")).missing == (1, 3)
    assert off(mixed, pictures(4), mixed.draw(4), device) == {}
    mixed.ops = [lift, zoom, lift, zoom, lift]  # and where none has one
    assert off(mixed, pictures(4), mixed.draw(4), device) == {}


def test_any_layout_and_any_gradient(device):
    policy, images = mild(2, 2, ["sharpness", "translate_y"]).to(device), pictures(4).to(device)
    draw = policy.draw(4)
    results = []
    for batch in (images, images.to(memory_format=torch.channels_last), images.expand(4, 3, 8, 8)):
        policy.zero_grad()
        out = policy(batch, draw, kernels=True)
        out.sum().backward()  # an expanded gradient
        results.append((out.detach(), policy.choice.grad.clone()))
        assert batch.grad is None
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_only_what_is_asked_for_gets_a_gradient(device):
    policy = mild(1, 1, ["sample_pairing", "rotate"]).to(device)
    images = pictures(2).to(device)
    draw = policy.draw(2)
    policy.requires_grad_(False)
    assert not policy(images, draw, kernels=True).requires_grad
    x, y = (images.clone().requires_grad_() for _ in range(2))
    come = torch.randn_like(images)
    policy(x, draw, kernels=True).backward(come)
    policy(y, draw, kernels=False).backward(come)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_same_seed_same_bits(device):
    policy, images = mild(3, 2).to(device), pictures(3).to(device)
    draw, come = policy.draw(3), torch.randn(3, 3, 8, 8).to(device)
    found = []
    for _ in range(2):
        policy.zero_grad()
        out = policy(images, draw, kernels=True)
        out.backward(come)
        found.append([out.detach(), *(getattr(policy, name).grad for name in PARAMETERS)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.fixture
def poisoned():
    """Memory that nobody has written holds NaN."""
    memory, before = torch.utils.deterministic, torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = True
    yield
    memory.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("ops", [None, ["invert", "rotate"], ["sharpness", "cutout"]], ids=str)
def test_reads_nothing_that_nobody_wrote(ops, device, poisoned):
    assert torch.empty(1).isnan()
    policy, images = mild(2, 2, ops), pictures(2, 3, 3, 5)
    found = run(policy, images, policy.draw(2), torch.randn(images.shape), torch.float32, device, kernels=True)
    assert all(tensor.isfinite().all() for tensor in found.values())


def test_the_draw_is_that_of_plain_torch(device):
    policy, images = mild(3, 1, ["brightness", "flip"]).to(device), pictures(3).to(device)
    one, two = (torch.Generator(device).manual_seed(5) for _ in range(2))
    found, expected = policy(images, generator=one, kernels=True), policy(images, generator=two, kernels=False)
    torch.testing.assert_close(found, expected)
    assert torch.equal(one.get_state(), two.get_state())
    assert policy(images[:0], kernels=True).shape == (0, 3, 8, 8)


def test_what_kernels_cannot_do_is_said(monkeypatch):
    policy, images = SoftPolicy(1, 1, ["flip"]), pictures(2)
    monkeypatch.setattr(soft_module, "_interpreted", lambda: True)  # so that batches on the CPU are welcome
    with pytest.raises(ImageError, match=r"needs images in float32, got torch\.float64"):
        policy(images.double(), kernels=True)
    with pytest.raises(ImageError, match=r"needs a policy in float32, got torch\.float64"):
        policy.double()(images, kernels=True)
    monkeypatch.setattr(soft_module, "_interpreted", lambda: False)
    with pytest.raises(ImageError, match="kernels=True needs a batch on a GPU, got one on cpu"):
        policy(images, kernels=True)
    monkeypatch.setattr(soft_module, "available", lambda: False)
    with pytest.raises(ImageError, match="needs Triton"):
        policy(images, kernels=True)


@pytest.mark.gpu
def test_a_gpu_uses_them_unless_told_not_to():
    policy, images = SoftPolicy(2, 2).cuda(), pictures(8).cuda()
    draw = policy.draw(8)
    by_kernels, in_torch = (policy(images, draw, kernels=kernels) for kernels in (True, False))
    assert torch.equal(policy(images, draw), by_kernels)
    assert not torch.equal(by_kernels, in_torch)  # they differ in rounding, or this would tell nothing
    assert policy.double()(images.double(), to(torch.float64, draw, "cuda")).dtype == torch.float64


# --- real sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(256, 3, 32, 32), (64, 1, 28, 28), (16, 3, 224, 224), (8, 3, 100, 131)], ids=str)
def test_large_batches(shape):
    policy = mild(10, 1)
    assert off(policy, pictures(*shape), policy.draw(shape[0]), "cuda") == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_large_batches_of_one_operation(name):
    policy = mild(16, 1, [name])
    assert off(policy, pictures(64, 3, 32, 32), policy.draw(64), "cuda") == {}


@pytest.mark.gpu
def test_the_setting_of_a_search():
    """Through two stages a pixel can fall to another level by rounding alone; the rest is the same."""
    policy, images = SoftPolicy(10, 2), pictures(64, 3, 32, 32)
    draw, come = policy.draw(64), torch.randn(images.shape)
    plain = run(policy, images, draw, come, torch.float32, "cuda")
    found = run(policy, images, draw, come, torch.float32, "cuda", kernels=True)
    assert float(((found["out"] - plain["out"]).abs() > 1e-5).double().mean()) < 1e-2
    for name in PARAMETERS:
        assert float((found[name] - plain[name]).norm()) <= 3e-2 * float(plain[name].norm()), name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits():
    policy, images = SoftPolicy().cuda(), pictures(32).cuda()
    policy(images, kernels=True).sum().backward()  # loads what is loaded once
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        policy(images, policy.draw(len(images)), kernels=True).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_forward_and_backward_can_be_recorded():
    """In a CUDA graph, and replayed with other images and other draws: bit by bit what was not recorded."""
    policy, images, come = SoftPolicy(10, 2).cuda(), pictures(64, 3, 32, 32).cuda(), torch.randn(64, 3, 32, 32).cuda()
    draw = policy.draw(64)

    def step():
        for parameter in policy.parameters():
            parameter.grad = None
        out = policy(images, draw, kernels=True)
        out.backward(come)
        return [out.detach(), *(parameter.grad for parameter in policy.parameters())]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = step()
    for _ in range(2):
        images.copy_(pictures(64, 3, 32, 32))
        for column, other in zip(vars(draw).values(), vars(policy.draw(64)).values(), strict=True):
            column.copy_(other)
        graph.replay()
        found = [tensor.clone() for tensor in recorded]
        for tensor, expected in zip(found, step(), strict=True):
            assert torch.equal(tensor, expected)
