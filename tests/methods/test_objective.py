"""The objective against numbers worked out by hand, and the penalty against a double backward."""

import math

import pytest
import torch

from fasteraa.methods.faster_aa.objective import CriticOutput, between, critic_loss, penalty_gradient, policy_loss
from fasteraa.nets import Critic, build


def judged(scores, logits, labels):
    return CriticOutput(torch.tensor(scores), torch.tensor(logits), torch.tensor(labels))


REAL = judged([3.0, 1.0], [[0.0, 0.0], [0.0, 0.0]], [0, 1])
FAKE = judged([0.5, -0.5], [[0.0, math.log(3)], [0.0, math.log(3)]], [0, 0])


def test_critic_loss():
    """distance = 2 - 0; class losses log 2 and log 4."""
    loss = critic_loss(REAL, FAKE, 0.1)
    assert loss.distance.item() == pytest.approx(2.0)
    assert loss.classes.item() == pytest.approx(math.log(2) + math.log(4))
    assert loss.total.item() == pytest.approx(-2.0 + 0.1 * math.log(8))


def test_policy_loss_pulls_the_other_way():
    loss = policy_loss(FAKE._replace(scores=torch.tensor([0.5, 1.5])), 0.1)
    assert loss.classes.item() == pytest.approx(math.log(4))
    assert loss.total.item() == pytest.approx(-1.0 + 0.1 * math.log(4))


def test_points_lie_between():
    a, b = torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2)
    out = between(a, b, torch.tensor([0.0, 0.25, 1.0]))
    assert out[:, 0, 0, 0].tolist() == [1.0, 0.75, 0.0]


@pytest.mark.parametrize("name", ["wrn-10-1", "small"])
def test_penalty_gradient_is_the_double_backwards(name):
    """Per sample, coefficient 10, in float64: values and every parameter's gradient."""
    critic = Critic(build(name, 2), 2).double()
    points = torch.rand(5, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic.score(points).sum(), points, create_graph=True)
    norms = gradient.square().sum((1, 2, 3)).sqrt()
    wanted = 10 * ((norms - 1) ** 2).mean()
    expected = torch.autograd.grad(wanted, list(critic.parameters()), allow_unused=True)
    critic.zero_grad()
    buffers = [buffer.clone() for buffer in critic.buffers()]
    penalty = penalty_gradient(critic, points, 10.0)
    assert penalty.item() == pytest.approx(wanted.item())
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    assert largest > 1e-3
    for parameter, g in zip(critic.parameters(), expected, strict=True):
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got, torch.zeros_like(got) if g is None else g, rtol=1e-8, atol=1e-10 * largest)
    for before, after in zip(buffers, critic.buffers(), strict=True):
        assert torch.equal(before, after)  # running statistics belong to training forwards


def test_a_flat_critic_gives_a_finite_penalty():
    critic = Critic(build("small", 2), 2)
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.zero_()
    assert penalty_gradient(critic, torch.rand(4, 3, 8, 8), 10.0).item() == pytest.approx(10.0)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in critic.parameters())
