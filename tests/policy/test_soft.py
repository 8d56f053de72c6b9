"""The learnable policy: Algorithm 1, its gradients, and what it freezes to."""

import pytest
import torch

from fasteraa.errors import FasterAAError
from fasteraa.ops import OPS, Context, Span, hard, soft
from fasteraa.policy.soft import SoftDraw, SoftPolicy, relaxed_bernoulli


def images(count=6, side=10, dtype=torch.float32, requires_grad=False):
    levels = torch.randint(30, 220, (count, 3, side, side), generator=torch.Generator().manual_seed(3))
    return (levels.to(dtype) / 255).requires_grad_(requires_grad)


def test_is_algorithm_1_written_out():
    """Against the paper's sum, image by image and operation by operation."""
    policy = SoftPolicy(3, 2).double()
    x = images(dtype=torch.float64)
    draw = policy.draw(len(x))
    out = policy(x, draw)
    for index in range(len(x)):
        image = x[index : index + 1]
        sub = draw.sub_policy[index]
        for k in range(2):
            weights = (policy.choice[sub, k] / 0.05).softmax(0)
            mixed = torch.zeros_like(image)
            for n, row in enumerate(policy.ops):
                p, mu = policy.probability[sub, k, n], policy.magnitude[sub, k, n]
                u = draw.gate[k, index, n]
                p = 1e-4 + (1 - 2e-4) * p
                b = torch.sigmoid((torch.log(p / (1 - p)) + torch.log(u / (1 - u))) / 0.05)
                partner = x[draw.partner[k, index]][None]
                context = Context(partner, draw.hole[k, index][None])
                done = soft(row, image, mu.detach(), draw.sign[k, index, n], context)
                mixed = mixed + weights[n] * (b * done + (1 - b) * image)
            image = mixed
        torch.testing.assert_close(out[index : index + 1], image, rtol=0, atol=1e-10)


def test_gradient_reaches_everything():
    policy = SoftPolicy(2, 2)
    x = images(64, requires_grad=True)
    (policy(x) * torch.rand(x.shape)).sum().backward()
    assert (policy.choice.grad != 0).all()
    assert (policy.probability.grad != 0).float().mean() > 0.9
    scaled = torch.tensor([row.span is not None for row in policy.ops])
    assert (policy.magnitude.grad[:, :, scaled] != 0).all()
    assert (policy.magnitude.grad[:, :, ~scaled] == 0).all()
    assert (x.grad != 0).float().mean() > 0.99


@pytest.mark.parametrize("second", list(OPS))
def test_a_first_stage_learns_through_any_second_stage(second):
    policy = SoftPolicy(1, 2, ["brightness", second] if second != "brightness" else ["brightness", "rotate"])
    with torch.no_grad():
        policy.choice.zero_()
        policy.choice[0, 0, [row.name for row in policy.ops].index("brightness")] = 1.0
        policy.choice[0, 1, [row.name for row in policy.ops].index(second)] = 1.0
        policy.probability.fill_(1.0)
        policy.magnitude.fill_(0.3)
    x = images(8)
    (policy(x) * torch.rand(x.shape)).sum().backward()
    assert policy.magnitude.grad[0, 0, [row.name for row in policy.ops].index("brightness")].abs() > 1e-3


def test_becomes_hard_as_temperatures_fall():
    """With one-hot choices and gates the soft forward is the hard one, up to rounding and bilinear sampling."""
    ops = ["solarize", "posterize", "invert", "contrast", "brightness", "equalize", "flip", "cutout"]
    policy = SoftPolicy(4, 2, ops, choice_temperature=1e-3, gate_temperature=1e-3).double()
    x = images(16, dtype=torch.float64)
    draw = policy.draw(len(x))
    out = policy(x, draw)
    levels = (x * 255).round().to(torch.uint8)
    for index in range(len(x)):
        image = levels[index : index + 1]
        for k in range(2):
            n = int(policy.choice[draw.sub_policy[index], k].argmax())
            if draw.gate[k, index, n] > 1 - policy.probability[draw.sub_policy[index], k, n]:
                context = Context(hole=draw.hole[k, index][None])
                mu = policy.magnitude[draw.sub_policy[index], k, n].detach()
                image = hard(policy.ops[n], image, mu, draw.sign[k, index, n], context)
        gap = (out[index].detach() * 255 - image[0]).abs()
        assert float(gap.median()) < 2.5, (index, float(gap.median()))


def test_relaxed_bernoulli():
    p = torch.tensor([0.2, 0.5, 0.9]).double()
    u = torch.rand(100_000, 1, dtype=torch.float64)
    b = relaxed_bernoulli(p, u, 0.05)
    torch.testing.assert_close((b > 0.5).double().mean(0), p, rtol=0, atol=0.01)
    assert ((b > 0.01) & (b < 0.99)).double().mean() < 0.2  # nearly always almost 0 or 1
    assert ((relaxed_bernoulli(p, u, 1.0) > 0.01) & (relaxed_bernoulli(p, u, 1.0) < 0.99)).double().mean() > 0.9
    for edge in (0.0, 1.0):  # no dead gradient, nothing infinite
        q = torch.full((10_000,), edge, dtype=torch.float64, requires_grad=True)
        relaxed_bernoulli(q, u[:10_000, 0], 0.05).sum().backward()
        assert torch.isfinite(q.grad).all()
        assert q.grad.sum() > 0


def test_both_temperatures_are_used():
    x = images()
    torch.manual_seed(0)
    base = SoftPolicy(2, 1)
    draw = base.draw(len(x))
    for name in ("choice_temperature", "gate_temperature"):
        torch.manual_seed(0)
        other = SoftPolicy(2, 1, **{name: 0.5})
        assert torch.equal(base.choice, other.choice)
        assert not torch.allclose(base(x, draw), other(x, draw), atol=1e-3)


def test_parameters_come_back_from_outside():
    policy = SoftPolicy(1, 1, ["brightness"])
    with torch.no_grad():
        policy.magnitude.fill_(1.5)
        policy.probability.fill_(1.5)
    x = images(32)
    policy(x).sum().backward()
    assert policy.magnitude.grad.abs().sum() > 0
    policy.project_()
    assert policy.magnitude.item() == policy.probability.item() == 1.0
    with torch.no_grad():
        policy.magnitude.fill_(-0.2)
    policy.project_()
    assert policy.magnitude.item() == 0.0


def test_chunks_share_a_sub_policy():
    policy = SoftPolicy(50, 1, chunk_size=8)
    draw = policy.draw(60).sub_policy
    assert len(draw) == 60
    assert all(len(set(draw[i : i + 8].tolist())) == 1 for i in range(0, 60, 8))
    assert len(set(draw.tolist())) > 4
    assert len(set(SoftPolicy(50, 1).draw(60).sub_policy.tolist())) > 20


def test_sub_policies_are_drawn_evenly_and_signs_too():
    policy = SoftPolicy(4, 2)
    draw = policy.draw(40_000)
    assert torch.bincount(draw.sub_policy).float().div(40_000).sub(0.25).abs().max() < 0.02
    assert draw.sign.mean().abs() < 0.01
    assert set(draw.sign.unique().tolist()) == {-1.0, 1.0}


def test_freeze():
    policy = SoftPolicy(3, 2, ["flip", "rotate", "cutout"], spans={"rotate": Span(0, 90, "degree")}, fill=(1, 2, 3))
    with torch.no_grad():
        policy.choice[0, 0] = torch.tensor([1.0, 1.0, 0.0])
    frozen = policy.freeze("found", {"seed": 3})
    assert frozen.provenance == {"seed": 3}
    assert frozen.fill == (1, 2, 3)
    assert frozen.span("rotate").at_one == 90
    rotate, flip = frozen.sub_policies[0].stages[0]  # in the order of the table; cutout's share is negligible
    assert (rotate.op, flip.op) == ("rotate", "flip")
    assert rotate.weight == pytest.approx(0.5, abs=1e-6)
    assert rotate.magnitude == pytest.approx(policy.magnitude[0, 0, 0].item())
    assert flip.probability == pytest.approx(policy.probability[0, 0, 1].item())


def test_spans_and_fill_reach_the_images():
    x = images()
    torch.manual_seed(0)
    narrow = SoftPolicy(1, 1, ["rotate"])
    draw = narrow.draw(len(x))
    torch.manual_seed(0)
    wide = SoftPolicy(1, 1, ["rotate"], spans={"rotate": Span(0, 90, "degree")})
    torch.manual_seed(0)
    filled = SoftPolicy(1, 1, ["rotate"], fill=(255, 255, 255))
    assert not torch.allclose(narrow(x, draw), wide(x, draw))
    assert filled(x, draw).mean() > narrow(x, draw).mean()


def test_the_fill_comes_in_from_outside_and_changes_nothing_within():
    x = torch.rand(6, 3, 8, 20)
    policy = SoftPolicy(1, 1, ["translate_x"], fill=(255, 0, 51))
    with torch.no_grad():
        policy.probability.fill_(1.0)
        policy.magnitude.fill_(4 / 9)  # of 0.45 of the width: 4 pixels
    draw = policy.draw(6, torch.Generator().manual_seed(0))
    colour = torch.tensor([1.0, 0.0, 0.2]).view(3, 1, 1).expand(3, 8, 4)
    for image, sign, out in zip(x, draw.sign[0, :, 0], policy(x, draw), strict=True):
        shifted = [image[..., 4:], colour] if sign > 0 else [colour, image[..., :-4]]
        torch.testing.assert_close(out, torch.cat(shifted, -1), atol=2e-4, rtol=0)


def test_same_seed_same_images():
    policy = SoftPolicy()
    x = images()
    one, two = (policy(x, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftPolicy(0), "sub_policies must be positive, got 0"),
        (lambda: SoftPolicy(1, 0), "operation_count must be positive"),
        (lambda: SoftPolicy(ops=["rotat"]), "did you mean 'rotate'"),
        (lambda: SoftPolicy(ops=[]), "no operation was chosen"),
        (lambda: SoftPolicy(ops=["flip", "flip"]), "chosen twice"),
        (lambda: SoftPolicy(choice_temperature=0.0), "choice_temperature must be positive"),
        (lambda: SoftPolicy(gate_temperature=float("nan")), "gate_temperature must be positive"),
        (lambda: SoftPolicy(chunk_size=0), "chunk_size must be positive"),
        (lambda: SoftPolicy()(torch.zeros(2, 3, 4, 4, dtype=torch.uint8)), "takes float images"),
        (lambda: SoftPolicy()(torch.zeros(2, 4, 4, 4)), "1 or 3 channels, got 4"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(FasterAAError, match=message):
        make()


def test_empty_batch_and_state_dict():
    policy = SoftPolicy(2, 2)
    assert policy(torch.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)
    other = SoftPolicy(2, 2)
    other.load_state_dict(policy.state_dict())
    assert other.freeze().hash == policy.freeze().hash
    assert isinstance(policy.draw(3), SoftDraw)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_waits_for_nothing_on_the_gpu():
    policy = SoftPolicy().cuda()
    x = images(32).cuda()
    policy(x)  # loads what is loaded once
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        policy(x, policy.draw(len(x))).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
