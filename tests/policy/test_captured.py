"""A captured policy gives what the policy gives, and says for what it was captured."""

from contextlib import nullcontext

import pytest
import torch

from fasteraa.errors import ImageError
from fasteraa.ops import OPS, Span, op, tone
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.apply import waits_for_nothing
from fasteraa.policy.captured import CapturedPolicy

NORMAL = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
INVERT = Policy((SubPolicy(((Choice("invert"),),)),))
POLICIES = {
    "autoaugment-cifar10": Policy.named("autoaugment-cifar10"),
    "uniform": Policy.named("uniform"),  # pairs samples
    "strong": Policy.named("uniform").with_strength((0.25, 0.0, 0.5, 0.25), probability=1.4),
    "never": Policy.named("uniform").with_strength(0),
    "nothing": Policy((SubPolicy(()),)),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def noise(count, channels=3, height=20, width=24):
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normalise", [None, NORMAL], ids=["levels", "normalised"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_it_equals_the_policy_call_by_call(policy, normalise, device):
    batches = [noise(16).to(device) for _ in range(4)]
    one, two = (torch.Generator(device).manual_seed(3) for _ in range(2))
    captured = policy.captured(batches[0], one, normalise=normalise)
    assert (captured.graph is not None) == (device == "cuda")
    found = [captured(batch) for batch in batches]
    expected = [policy(batch, two, normalise=normalise) for batch in batches]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    assert torch.equal(one.get_state(), two.get_state())


@pytest.mark.parametrize("device", DEVICES)
def test_making_it_draws_nothing_and_a_seed_starts_it_again(device):
    policy, batch = POLICIES["uniform"], noise(16).to(device)
    generator = torch.Generator(device).manual_seed(3)
    before = generator.get_state()
    captured = policy.captured(batch, generator)
    assert torch.equal(generator.get_state(), before)
    first, second = captured(batch), captured(batch)
    assert not torch.equal(first, second)
    generator.manual_seed(3)
    assert torch.equal(captured(batch), first)


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_generator_chance_comes_from_the_default_one(device):
    policy, batch = POLICIES["uniform"], noise(16).to(device)
    captured = policy.captured(batch)
    torch.manual_seed(5)
    found = [captured(batch), captured(batch)]
    torch.manual_seed(5)
    assert all(torch.equal(mine, policy(batch)) for mine in found)


@pytest.mark.parametrize("device", DEVICES)
def test_whatever_the_strides(device):
    batch = noise(4).to(device)
    captured = INVERT.captured(batch)
    assert torch.equal(captured(batch.to(memory_format=torch.channels_last)), 255 - batch)
    assert torch.equal(captured(batch[:1].expand(4, -1, -1, -1)), (255 - batch[:1]).expand(4, -1, -1, -1))


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_given_and_what_came_out_stay_as_they_are(device):
    batch = noise(4).to(device)
    before = batch.clone()
    captured = INVERT.captured(batch)
    out = captured(batch)
    batch.zero_()
    captured(batch)
    assert torch.equal(out, 255 - before)
    assert torch.equal(batch, torch.zeros_like(batch))
    captured.batch.copy_(before)  # its own memory is given as any other batch
    assert torch.equal(captured(captured.batch, copy=False), out)


@pytest.mark.parametrize("device", DEVICES)
def test_made_in_inference_mode_and_used_outside(device):
    """Memory of that mode could not be written outside of it."""
    with torch.inference_mode():
        batch = noise(4).to(device)
        captured = INVERT.captured(batch)
        assert torch.equal(captured(batch), 255 - batch)
    captured.batch.copy_(batch)
    assert torch.equal(captured(captured.batch), 255 - batch)


def test_copies_of_a_replay(monkeypatch):
    """A stand-in for the graph: it inverts what lies in the graph's memory, as a replay would."""

    class Inverts:
        def replay(self):
            torch.sub(255, captured.batch, out=captured._out)

    captured = INVERT.captured(noise(2))
    captured.graph, captured._out = Inverts(), torch.empty_like(captured.batch)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(CapturedPolicy, "_follow", lambda self: None)
    one, two = noise(2), noise(2)
    first = captured(one)
    kept = captured(two, copy=False)
    assert torch.equal(first, 255 - one)
    assert torch.equal(kept, 255 - two)
    captured(one)
    assert torch.equal(kept, 255 - one)  # overwritten
    captured.batch.copy_(two)
    assert torch.equal(captured(captured.batch), 255 - two)


def test_for_what_it_was_captured():
    batch = noise(4)
    captured = INVERT.captured(batch)
    expected = r"was captured for uint8 \(4, 3, 20, 24\) on cpu, got "
    with pytest.raises(ImageError, match=expected + r"uint8 \(3, 3, 20, 24\) on cpu"):
        captured(batch[:3])
    with pytest.raises(ImageError, match=expected + r"float32 \(4, 3, 20, 24\) on cpu"):
        captured(batch.float())
    with pytest.raises(ImageError, match=expected + r"uint8 \(4, 3, 20, 24\) on meta"):
        captured(batch.to("meta"))
    with pytest.raises(ImageError, match="applied to uint8 images, got dtype"):
        INVERT.captured(batch.float())
    with pytest.raises(ImageError, match="positive deviations"):
        INVERT.captured(batch, normalise=(NORMAL[0], (1, 0, 1)))


def test_the_generator_lies_with_the_batch():
    class OnAGpu:
        device = torch.device("cuda", 0)

    with pytest.raises(ImageError, match="draws on the device of its batches, cpu, got a generator on cuda:0"):
        INVERT.captured(noise(2), OnAGpu())


def test_an_empty_batch():
    assert INVERT.captured(noise(0))(noise(0)).shape == (0, 3, 20, 24)


@pytest.mark.gpu
def test_an_operation_without_a_kernel_is_not_captured(monkeypatch):
    monkeypatch.setattr("fasteraa.ops.declare.OPS", dict(OPS))

    @op(tone.tone, Span(0, 100, "level"), pillow=lambda image, v, _: image.point(lambda level: min(255, level + v)))
    def lift(xp, level, v):
        """Add to every level."""
        return level + v, 1.0

    monkeypatch.setattr("fasteraa.policy.draw.find", lambda name: lift if name == "lift" else OPS[name])
    monkeypatch.setattr("fasteraa.policy.policy.find", lambda name: lift if name == "lift" else OPS[name])
    monkeypatch.setattr("fasteraa.policy.parts.find", lambda name: lift if name == "lift" else OPS[name])
    policy = Policy((SubPolicy(((Choice("lift", 1.0, 0.5),),)),))
    batch = noise(8).cuda()
    assert not waits_for_nothing(policy, batch)
    captured = policy.captured(batch)
    assert captured.graph is None
    assert torch.equal(captured(batch), policy(batch))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 3, 32, 32), (256, 3, 224, 224), (300, 1, 28, 28)], ids=str)
def test_large_batches_on_two_streams(shape):
    policy = POLICIES["uniform"]
    batches = [torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda") for _ in range(3)]
    one, two = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    captured = policy.captured(batches[0], one)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for stream, batch in zip(streams, batches, strict=True):
        with torch.cuda.stream(stream):
            found.append(captured(batch))
    torch.cuda.synchronize()
    for mine, batch in zip(found, batches, strict=True):
        assert torch.equal(mine, policy(batch, two))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits():
    batch = noise(64).cuda()
    captured = POLICIES["uniform"].captured(batch, torch.Generator("cuda").manual_seed(0))
    captured(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        captured(batch)
        captured(captured.batch, copy=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
