"""The Triton kernels give the bytes of plain torch: on the CPU through Triton's interpreter, on a GPU as they are."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from fasteraa.errors import ImageError
from fasteraa.ops import OPS, Span, op, tone, warp
from fasteraa.ops import kernels as kernels_module
from fasteraa.ops.kernels import hard
from fasteraa.ops.warp import LARGEST_SIDE
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy import apply as apply_module
from fasteraa.policy.apply import apply_draw, augment
from fasteraa.policy.draw import Draw, plan_of
from fasteraa.testing.ops import KINDS, picture

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"fill": (9, 200, 30), "hole_fill": (7, 1, 99)}
NAMED = ("autoaugment-cifar10", "trivialaugment-wide", "uniform")
STRONG = {  # several passes through a policy of several sub-policies, stages and choices
    "twice": Policy.named("autoaugment-cifar10").with_strength(2, magnitude=1.5),
    "up to three times": Policy.named("uniform").with_strength((0.25, 0.0, 0.5, 0.25), probability=1.4),
    "perhaps": Policy.named("trivialaugment-wide").with_strength((0.5, 0.5)),
    "never": Policy.named("uniform").with_strength(0),
}
POLICIES = {name: Policy.named(name) for name in NAMED} | STRONG


def triton_kernels():
    """All functions in the folder of kernels that Triton compiles."""
    files = Path(hard.__file__).parent.glob("[!_]*.py")
    modules = [import_module(f"fasteraa.ops.kernels.{path.stem}") for path in files]
    found = {id(each): each for module in modules for each in vars(module).values() if hasattr(each, "arg_names")}
    return sorted(found.values(), key=lambda kernel: kernel.__name__)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cpu" and not hard.INTERPRETED:
        pytest.skip("the kernels are compiled here, not interpreted")
    return request.param


def policy_of(*stages, **settings):
    """One sub-policy; a stage is a list of operations with equal weights."""

    def choice(name):
        row = OPS[name]
        return Choice(name, 1.0, (0.0, 1.0) if row.span else None, sign="random" if row.signed else None)

    made = tuple(tuple(choice(name) for name in stage) for stage in stages)
    return Policy((SubPolicy(made),), **{**COLOURS, **settings})


def noise(count, channels=3, height=20, width=24):
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)


def gallery(count, channels, height, width):
    """Pictures of every kind, `count` in turn: constant ones, few levels, noise."""
    kinds = [kind for kind in KINDS if kind != "greyscale"]
    pictures = [
        torch.from_numpy(picture(kinds[n % len(kinds)], height, width, seed=n)).permute(2, 0, 1) for n in range(count)
    ]
    return torch.stack(pictures)[:, :channels].contiguous()


def grid(count, depth, ops):
    """Operations in turn, magnitudes from end to end (each operation's first is 0), both signs."""
    turn = torch.arange(count * depth).view(count, depth)
    magnitude = torch.linspace(0, 1, count, dtype=torch.float64)[:, None].expand(count, depth)
    return Draw(
        op=turn % ops,
        magnitude=torch.where(turn < ops, 0.0, magnitude),
        sign=torch.where((turn // ops) % 2 == 0, 1.0, -1.0).double(),
        hole=torch.rand(count, depth, 2, dtype=torch.float64),
        partner=torch.rand(count, depth, dtype=torch.float64),
    )


def differing(policy, images, draw, device, pool=None):
    """Names of the operations (of any stage) whose images differ from plain torch on the CPU."""
    plan = plan_of(policy)
    expected = apply_draw(policy, plan, images, draw, pool, kernels=False)
    pool = None if pool is None else pool.to(device)
    found = apply_draw(policy, plan, images.to(device), draw, pool, kernels=True).cpu()
    bad = (found != expected).flatten(1).any(1)
    return sorted({plan.ops[index].name for row in draw.op[bad].tolist() for index in row if index >= 0})


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 33, 47), (3, 2, 5), (3, 1, 1), (3, 3, 140)], ids=str)
def test_every_operation_equals_plain_torch(shape, device):
    policy = policy_of(list(OPS))
    count = 4 * len(OPS) if device == "cpu" else 60 * len(OPS)
    assert differing(policy, gallery(count, *shape), grid(count, 1, len(OPS)), device) == []


COUNTED = ["auto_contrast", "equalize", "contrast"]  # what they do depends on all pixels


@pytest.mark.parametrize("shape", [(3, 65, 67), (1, 100, 83), (3, 64, 64)], ids=str)
def test_large_images_are_counted_in_parts(shape, device):
    """Constant images and such of few levels among them; the last part is not full, and levels differ between parts."""
    images = gallery(24, *shape)
    images[::2, :, -1, -3:] = torch.tensor([0, 255, 7], dtype=torch.uint8)
    images[1::4, :, 0, 0] = 3
    assert hard._parts(shape[1] * shape[2])[2] == {65: 2, 100: 3, 64: 1}[shape[1]]
    assert differing(policy_of(COUNTED), images, grid(24, 1, 3), device) == []


@pytest.mark.parametrize(("most", "size", "parts"), [(2, 20480, 2), (64, 4096, 10)])
def test_larger_parts_and_more_of_them(most, size, parts, device, monkeypatch):
    """Several turns for a part; and several turns for the parts, of which eight are added at once."""
    monkeypatch.setattr(hard, "_PARTS", most)
    assert hard._parts(150 * 260)[1:] == (size, parts)
    assert differing(policy_of(COUNTED), gallery(6, 3, 150, 260), grid(6, 1, 3), device) == []


def test_nothing_is_counted_for_tables_that_depend_on_no_image(device, monkeypatch):
    policy, images = policy_of(["invert", "solarize"]), gallery(8, 3, 65, 67)
    assert differing(policy, images, grid(8, 1, 2), device) == []
    monkeypatch.setattr(hard, "_count", None)  # a launch would fail
    apply_draw(policy, plan_of(policy), images.to(device), grid(8, 1, 2), kernels=True)
    with pytest.raises(TypeError):
        apply_draw(policy_of(COUNTED), plan_of(policy_of(COUNTED)), images.to(device), grid(8, 1, 3), kernels=True)


def test_the_sum_of_a_part_fits_whatever_the_size():
    for pixels in (1, 4096, 4097, 50176, 2**18, 2**18 + 1, LARGEST_SIDE**2):
        _, size, parts = hard._parts(pixels)
        assert 255 * size < 2**31
        assert size * (parts - 1) < pixels <= size * parts
        assert parts <= 64


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_stages_follow_one_another(policy, device):
    plan, count = plan_of(policy), 24 if device == "cpu" else 512
    images, pool = noise(count), noise(5)
    assert differing(policy, images, plan.draw(count), device, pool) == []
    assert differing(policy, images, plan.draw(count), device) == []  # partners from the batch as it came in


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_records_are_those_of_plain_torch(policy, device):
    plan = plan_of(policy)
    uniform = torch.rand(1000, plan.width, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2.0**-53
    expected, found = plan.decode(uniform), plan.decode(uniform.to(device), kernels=True)
    for field, tensor in vars(expected).items():
        assert getattr(found, field).dtype == tensor.dtype
        assert torch.equal(getattr(found, field).cpu(), tensor), field
    assert bool((expected.op >= 0).any()) == bool(plan.most)


def test_records_on_the_edges_of_choices(device):
    plan = plan_of(policy_of(["invert", "flip", "rotate"], ["cutout"]))
    edges = torch.cat([plan.arrays()["edges"].flatten().clamp(max=1 - 2.0**-53), torch.tensor([0.5])]).double()
    uniform = torch.rand(len(edges), plan.width, dtype=torch.float64)
    uniform[:, 1] = edges
    assert torch.equal(plan.decode(uniform.to(device), kernels=True).op.cpu(), plan.decode(uniform).op)


def test_a_number_on_the_edge_between_two_counts_of_passes(device):
    plan = plan_of(Policy((SubPolicy(((Choice("invert"),),)),)).with_strength((0.25, 0.5, 0.25)))
    uniform = torch.full((4, plan.width), 0.5, dtype=torch.float64)
    uniform[:, 0] = torch.tensor([0.25 - 2.0**-54, 0.25, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    found = plan.decode(uniform.to(device), kernels=True).op.tolist()
    assert found == [[-1, -1], [0, -1], [0, 0], [0, 0]]


def test_a_number_equal_to_the_probability_does_nothing(device):
    plan = plan_of(Policy((SubPolicy(((Choice("invert", 0.25),),)),)))
    uniform = torch.full((2, plan.width), 0.25, dtype=torch.float64)
    uniform[1, 2] -= 2.0**-54
    assert plan.decode(uniform.to(device), kernels=True).op.tolist() == [[-1], [0]]


def test_changed_spans(device):
    spans = {
        "translate_x": Span(0, 10, "px"),
        "translate_y": Span(0, 7.5, "px"),
        "cutout": Span(0, 9, "px"),
        "rotate": Span(0, 180, "degree"),
        "posterize": Span(8, -2, "bit"),
        "contrast": Span(1, -3, "factor"),
        "sample_pairing": Span(0, 1.5, "share"),
        "solarize": Span(256, -20, "level"),
    }
    policy = policy_of(list(spans), spans=spans)
    count = 5 * len(spans) if device == "cpu" else 100 * len(spans)
    assert differing(policy, gallery(count, 3, 21, 26), grid(count, 1, len(spans)), device) == []


def test_whole_pixels_stay_whole(device):
    """k of 49 pixels is k, not k less an ulp, whatever the side; but a shift that is short of a half stays short."""
    spans = {"cutout": Span(0, 49, "px"), "translate_x": Span(0, 49, "px"), "translate_y": Span(0, 1, "px")}
    policy = policy_of(list(spans), spans=spans)
    count = 3 * 49 if device == "cuda" else 3 * 12
    draw = grid(count, 1, 3)
    magnitude = (torch.arange(count) // 3 % 49 + 1).double() / 49
    magnitude[2::3] = 0.5 - 1e-8
    draw = replace(draw, magnitude=magnitude[:, None], hole=torch.zeros_like(draw.hole))
    for shape in ((3, 5, 49), (1, 37, 50)):
        assert differing(policy, gallery(count, *shape), draw, device) == []


def test_greys_halfway_between_levels(device):
    """Their sum of weighted channels is a whole level and exactly a half: Pillow rounds up."""
    halves = torch.tensor([[n, 52 + n, 184 + n] for n in range(64)], dtype=torch.uint8)
    images = halves.T.reshape(1, 3, 8, 8).expand(8, -1, -1, -1).contiguous()
    assert differing(policy_of(["color", "contrast"]), images, grid(8, 1, 2), device) == []


def test_shifts_within_an_ulp_of_a_half_pixel(device):
    policy = policy_of(["translate_x", "translate_y"])
    for height, width in ((3, 100), (200, 3)):
        draw = grid(32, 1, 2)
        draw = replace(
            draw, magnitude=torch.tensor([0.1, 0.2, 0.05, 0.3, 1 / 9, 7 / 30, 7 / 9, 0.9] * 4)[:, None].double()
        )
        assert differing(policy, noise(32, 3, height, width), draw, device) == []


def test_an_operation_without_a_kernel_is_done_in_plain_torch(device, monkeypatch):
    monkeypatch.setattr("fasteraa.ops.declare.OPS", dict(OPS))

    @op(tone.tone, Span(0, 100, "level"), pillow=lambda image, v, _: image.point(lambda level: min(255, level + v)))
    def lift(xp, level, v):
        """Add to every level."""
        return level + v, 1.0

    @op(warp.warp, Span(1, 0.3, "factor"), pillow=lambda image, v, _: image)
    def zoom(v, width, height):
        """Make everything larger."""
        return v, 0, width * (1 - v) / 2, 0, v, height * (1 - v) / 2

    own = {"lift": lift, "zoom": zoom}
    monkeypatch.setattr("fasteraa.policy.draw.find", lambda name: own.get(name) or OPS[name])
    monkeypatch.setattr("fasteraa.policy.policy.find", lambda name: own.get(name) or OPS[name])
    monkeypatch.setattr("fasteraa.policy.parts.find", lambda name: own.get(name) or OPS[name])
    choices = (Choice("lift", 1.0, (0.2, 1.0)), Choice("zoom", 1.0, (0.0, 1.0)), Choice("flip"), Choice("invert"))
    policy = Policy((SubPolicy((choices, choices)),))
    plan, images = plan_of(policy), noise(24)
    assert hard.rules_of(plan.ops, {}, torch.device("cpu")).missing == (0, 1)
    draw = plan.draw(24)
    assert (draw.op == 0).any()
    assert (draw.op == 1).any()
    assert differing(policy, images, draw, device) == []
    found = apply_draw(policy, plan, images.to(device), draw, kernels=True, normalise=NORMAL)
    assert torch.equal(found.cpu(), by_hand(apply_draw(policy, plan, images, draw, kernels=False), *NORMAL))


def test_the_batch_is_left_alone_whatever_its_strides(device):
    policy = policy_of(["invert"], ["flip"])
    images = noise(4).to(device).to(memory_format=torch.channels_last)
    before = images.clone()
    out = augment(policy, images, kernels=True)
    assert torch.equal(images, before)
    assert torch.equal(out, 255 - before.flip(3))
    one = images[:1].expand(3, -1, -1, -1)
    assert torch.equal(augment(policy, one, kernels=True), (255 - before[:1].flip(3)).expand(3, -1, -1, -1))


def test_a_policy_that_does_nothing(device):
    images = noise(3).to(device)
    out = Policy((SubPolicy(()),))(images, kernels=True)
    assert torch.equal(out, images)
    assert out.data_ptr() != images.data_ptr()


NORMAL = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))


def by_hand(images, mean, deviation):
    """(level / 255 - mean) / deviation in float64, rounded once."""
    mean, deviation = (torch.tensor(part, dtype=torch.float64).view(1, -1, 1, 1) for part in (mean, deviation))
    return ((images.double() / 255 - mean) / deviation).float()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_normalised_images(policy, device):
    """Also of a policy that does nothing, and in plain torch: the same bits everywhere."""
    images = noise(24, height=9, width=10)
    draw = plan_of(policy).draw(24)
    expected = by_hand(apply_draw(policy, plan_of(policy), images, draw, kernels=False), *NORMAL)
    for kernels in (True, False):
        found = apply_draw(policy, plan_of(policy), images.to(device), draw, kernels=kernels, normalise=NORMAL)
        assert found.dtype == torch.float32
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_images_of_every_operation(channels, device):
    policy, images, normal = policy_of(list(OPS)), noise(2 * len(OPS), channels), [part[:channels] for part in NORMAL]
    plan, draw = plan_of(policy), grid(2 * len(OPS), 1, len(OPS))
    found = apply_draw(policy, plan, images.to(device), draw, kernels=True, normalise=normal)
    assert torch.equal(found.cpu(), by_hand(apply_draw(policy, plan, images, draw, kernels=False), *normal))


def test_normalising_is_asked_of_the_policy(device):
    policy, images = policy_of(["invert"]), noise(3).to(device)
    found = policy(images, kernels=True, normalise=NORMAL)
    assert torch.equal(found.cpu(), by_hand(255 - images.cpu(), *NORMAL))
    assert policy(images[:0], normalise=NORMAL).dtype == torch.float32
    with pytest.raises(ImageError, match="for each of 3 channels, got"):
        policy(images, normalise=((0.5,), (0.5,)))
    with pytest.raises(ImageError, match="positive deviations"):
        policy(images, normalise=(NORMAL[0], (0.2, 0.0, 0.2)))


@pytest.mark.parametrize("policy", [Policy.named("uniform"), STRONG["up to three times"]], ids=["plain", "strong"])
def test_one_seed_one_result(policy, device):
    images = noise(16, height=9, width=9).to(device)
    one, two = (policy(images, torch.Generator(device).manual_seed(3), kernels=True) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(one, policy(images, torch.Generator(device).manual_seed(3), kernels=False))
    assert not torch.equal(one, policy(images, torch.Generator(device).manual_seed(4), kernels=True))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_records_without_a_draw_between(policy, device):
    """A call of the policy decodes and prepares in one kernel; plain torch shares the numbers alone."""
    count = 30 if device == "cpu" else 500
    images, pool = noise(count, height=9, width=9).to(device), noise(7, height=9, width=9).to(device)
    for chance, partners in ((device, pool), ("cpu", None)):
        one, two = (
            augment(policy, images, torch.Generator(chance).manual_seed(3), partners, kernels=kernels)
            for kernels in (True, False)
        )
        assert torch.equal(one, two)


def test_what_kernels_cannot_do_is_said_or_left_to_plain_torch(monkeypatch):
    policy, images = policy_of(["invert"]), noise(2)
    monkeypatch.setattr(apply_module, "_interpreted", lambda: False)
    with pytest.raises(ImageError, match="kernels=True needs a batch on a GPU, got one on cpu"):
        augment(policy, images, kernels=True)
    assert torch.equal(policy(images), 255 - images)
    monkeypatch.setattr(apply_module, "_interpreted", lambda: True)
    with pytest.raises(ImageError, match=r"needs a pool like the batch, \(3, 20, 24\) on cpu, got \(3, 9, 24\) on cpu"):
        augment(policy_of(["sample_pairing"]), images, pool=noise(2, height=9), kernels=True)
    with pytest.raises(ImageError, match="needs sides of up to 16383 pixels, got 16384x1"):
        augment(policy, noise(1, 3, 1, 16384), kernels=True)
    monkeypatch.setattr(apply_module, "available", lambda: False)
    with pytest.raises(ImageError, match="needs Triton"):
        augment(policy, images, kernels=True)


def test_a_pool_that_nobody_asks_keeps_no_kernels_away(device):
    """A training gives one to every policy, and it lies in main memory where it is too large for the GPU."""
    images = noise(2)
    assert torch.equal(
        augment(policy_of(["invert"]), images.to(device), pool=noise(2, height=9), kernels=True).cpu(), 255 - images
    )


def test_a_batch_on_a_gpu_goes_through_kernels_where_triton_works(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels_module, "works_on", lambda device: asked.append(device) or device.type == "cuda")
    batch = noise(2)
    assert apply_module._choose(None, batch, None) is False
    assert asked == []  # a batch on a CPU needs no answer

    class OnAGpu:
        device, shape, is_cuda = torch.device("cuda"), batch.shape, True

    assert apply_module._choose(None, OnAGpu, None) is True
    assert apply_module._choose(False, OnAGpu, None) is False
    assert apply_module._choose(None, OnAGpu, batch) is False  # a pool that lies elsewhere
    monkeypatch.setattr(kernels_module, "works_on", lambda device: False)
    assert apply_module._choose(None, OnAGpu, None) is False


def test_where_triton_does_not_work_is_found_out_once(monkeypatch):
    from fasteraa.ops.kernels import probe, works_on

    def broken(device):
        tried.append(device)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    tried = []
    monkeypatch.setattr(probe, "probe", broken)
    works_on.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"Triton does not work here \(Failed to find C compiler\.\): plain torch"):
            assert not works_on(torch.device("cuda"))
        assert not works_on(torch.device("cuda"))
        assert not works_on(torch.device("cpu"))
        assert tried == [torch.device("cuda")]
    finally:
        works_on.cache_clear()


def test_what_lies_on_a_device_is_not_sent_along(device):
    policy = policy_of(["invert"])
    policy(noise(2).to(device), kernels=True)
    plan = plan_of(policy)
    assert plan._cached
    for twin in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert plan_of(twin)._cached == {}
        assert plan_of(twin).depth == 1


@pytest.mark.expensive
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path):
    """Nothing spills, and no product is fused into a sum that must round on its own."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "tools" / "compile_kernels.py"), "--arch", "90"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= 9


# --- real sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 3, 32, 32), (256, 3, 224, 224), (300, 1, 28, 28), (64, 3, 375, 500)], ids=str)
@pytest.mark.parametrize("passes", [1, (0.2, 0.3, 0.5)], ids=["plain", "strong"])
def test_large_batches(shape, passes):
    policy = Policy.named("uniform", operation_count=3).with_strength(passes)
    plan = plan_of(policy)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    images[::3] = images[::3] // 5 + 90  # few levels
    draw = plan.draw(len(images), device=images.device, kernels=True)
    found = apply_draw(policy, plan, images, draw, kernels=True)
    assert torch.equal(found, apply_draw(policy, plan, images, draw, kernels=False))
    some = slice(0, None, max(1, len(images) // 64))
    fields = {field: tensor[some].cpu() for field, tensor in vars(draw).items()}
    expected = apply_draw(policy, plan, images[some].cpu(), Draw(**fields), images.cpu())
    assert torch.equal(found[some].cpu(), expected)
    assert (found != images).flatten(1).any(1).float().mean() > 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("row", OPS.values(), ids=OPS)
def test_every_magnitude(row):
    """Two thousand magnitudes, 32x32 and 224x224, against plain torch on the CPU."""
    policy = policy_of([row.name])
    for count, side in ((2048, 32), (48, 224)):
        images = repeated_gallery(count, side)
        assert differing(policy, images, grid(count, 1, 1), "cuda") == []


def repeated_gallery(count, side):
    some = gallery(min(count, 48), 3, side, side)
    return some.repeat(-(-count // len(some)), 1, 1, 1)[:count]


@pytest.mark.parametrize("kernel", triton_kernels(), ids=lambda kernel: kernel.__name__)
def test_no_parameter_has_a_name_that_triton_uses_itself(kernel):
    """It writes a function with our parameters and this one; its interpreter, which runs here, does not."""
    assert "options" not in kernel.arg_names


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits():
    images = noise(64).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    for policy in POLICIES.values():
        calls = (
            lambda: policy(images, kernels=True),  # noqa: B023
            lambda: policy(images, generator, kernels=True),  # noqa: B023
        )
        for call in calls:
            call()  # loads what is loaded once
        torch.cuda.set_sync_debug_mode("error")
        try:
            for call in calls:
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_stage_can_be_recorded():
    """In a CUDA graph, as the trainer may do."""
    policy = Policy.named("uniform")
    plan, images = plan_of(policy), noise(64, 3, 32, 32).cuda()
    draw = plan.draw(64, device=images.device)
    expected = apply_draw(policy, plan, images, draw, kernels=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = apply_draw(policy, plan, images, draw, kernels=True)
    graph.replay()
    assert torch.equal(out, expected)
