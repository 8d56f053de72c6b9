"""One step: who is updated by what, the baseline, normalisation."""

import pytest
import torch

from fasteraa.data.batches import Normalise, baseline
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.step import METRICS, Step
from fasteraa.nets import Critic, build
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime.memory import resident_memory

PLAIN = SearchConfig(flip=False, crop=0.0)


def make(config=PLAIN, ops=("brightness", "invert")):
    policy = SoftPolicy(2, 1, list(ops))
    return Step(Critic(build("small", 2), 2), policy, Normalise(torch.zeros(1), torch.ones(1)), config)


def batch(count=16):
    return torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8), torch.randint(2, (count,))


def test_a_step_updates_both_and_keeps_the_policy_in_bounds():
    step = make(SearchConfig(learning_rate=1.0))
    before = [p.clone() for p in (*step.critic.parameters(), *step.policy.parameters())]
    measured = step(*batch(), torch.Generator().manual_seed(0))
    after = [*step.critic.parameters(), *step.policy.parameters()]
    assert measured.shape == (len(METRICS),)
    assert torch.isfinite(measured).all()
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert sum(changed) > len(changed) - 3
    for parameter in (step.policy.probability, step.policy.magnitude):
        assert ((parameter >= 0) & (parameter <= 1)).all()
    assert (step.policy.probability == 0).any() or (step.policy.probability == 1).any()  # a step of 1 hits the wall


def test_learning_rate_and_betas_are_the_configs():
    step = make(SearchConfig(learning_rate=0.01, beta1=0.3, beta2=0.9))
    for optimiser in (step.critic_optimiser, step.policy_optimiser):
        assert optimiser.defaults["lr"] == 0.01
        assert optimiser.defaults["betas"] == (0.3, 0.9)
    assert make().policy_optimiser.defaults["betas"] == (0.0, 0.999)


def test_the_policy_follows_the_critic():
    """A critic that likes bright images makes the policy invert dark ones."""
    config = SearchConfig(flip=False, crop=0.0, learning_rate=0.02, class_weight=0.0, objective="paper")
    step = make(config, ["invert"])

    class Bright(torch.nn.Module):
        def forward(self, x):
            return x.mean((1, 2, 3)), torch.zeros(len(x), 2)

    step.critic = Bright()
    with torch.no_grad():
        step.policy.probability.fill_(0.5)
    dark = torch.randint(0, 30, (64, 3, 8, 8)).float() / 255
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        augmented = step.policy(dark, step.policy.draw(64, generator))
        step._update_policy(augmented, torch.zeros(64, dtype=torch.int64))
    assert (step.policy.probability > 0.55).all()


def test_the_augmented_half_is_the_second():
    seen = []
    step = make()
    step.policy.forward = lambda images, draw, **_: seen.append(images) or images * step.policy.magnitude.mean()
    images, labels = batch(8)
    step(images, labels, torch.Generator())
    assert torch.equal(seen[0], images[4:].float() / 255)


def test_both_branches_go_through_one_normalisation():
    seen = []
    step = make()
    forward = step.critic.forward
    step.critic.forward = lambda x: seen.append(x.detach()) or forward(x)
    step.normalise = Normalise(torch.full((1, 3, 1, 1), 0.5), torch.full((1, 3, 1, 1), 0.25))
    step.policy.forward = lambda images, draw, **_: images + 0 * step.policy.magnitude.sum()
    images, labels = batch(8)
    step(images, labels, torch.Generator())
    real, fake, again = seen
    expected = (images.float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(real, expected[:4])
    torch.testing.assert_close(fake, expected[4:])
    torch.testing.assert_close(again, expected[4:])


def test_normalise_by_the_images():
    images = torch.randint(0, 256, (3000, 3, 4, 4), dtype=torch.uint8)
    images[:, 1] //= 2
    normal = Normalise.of(images)(images.float() / 255)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normal.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    assert torch.isfinite(Normalise.of(torch.zeros(4, 3, 2, 2, dtype=torch.uint8))(torch.zeros(1, 3, 2, 2))).all()


def test_normalise_takes_no_memory_by_the_number_of_images():
    images = torch.zeros(12_000, 3, 32, 32, dtype=torch.uint8)
    before = resident_memory()
    Normalise.of(images)
    assert resident_memory() - before < 2 * images.numel()  # a new buffer for every slice left 11 times as much


def test_baseline_crops_and_flips():
    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).expand(400, 3, 8, 8)
    out = baseline(images, SearchConfig(crop=0.25), torch.Generator().manual_seed(0))
    assert out.shape == images.shape
    seen = {image.numpy().tobytes() for image in out[:, 0]}
    assert len(seen) == pytest.approx(50, abs=1)  # 5 x 5 places, two directions
    padded = torch.nn.functional.pad(images[0, 0], (2, 2, 2, 2))
    crops = [padded[y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
    flipped = torch.nn.functional.pad(images[0, 0].flip(1), (2, 2, 2, 2))
    crops += [flipped[y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
    assert seen <= {crop.numpy().tobytes() for crop in crops}
    only_flips = baseline(images, SearchConfig(crop=0.0), torch.Generator().manual_seed(0))
    assert len({image.numpy().tobytes() for image in only_flips[:, 0]}) == 2
    assert torch.equal(baseline(images, PLAIN, torch.Generator()), images)
