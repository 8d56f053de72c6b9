"""Shaking: one number per image forwards, another backwards, halves when not training."""

import torch
import torch.nn.functional as F

from fasteraa.nets import build
from fasteraa.nets.shake_shake import Shake, Shortcut


def shaken(a, b, shake):
    """The mix, and the share of the first branch per image forwards (b = 0, a = 1) and backwards."""
    out = shake(a, b)
    out.sum().backward()
    return out, a.grad[:, 0, 0, 0], b.grad[:, 0, 0, 0]


def leaves():
    a, b = torch.ones(64, 2, 3, 3, dtype=torch.float64), torch.zeros(64, 2, 3, 3, dtype=torch.float64)
    return a.requires_grad_(), b.requires_grad_()


def test_forward_uses_alpha_and_backward_uses_beta():
    torch.manual_seed(7)
    alpha, beta = torch.rand(2, 64, dtype=torch.float64)
    torch.manual_seed(7)
    out, to_a, to_b = shaken(*leaves(), Shake())
    torch.testing.assert_close(out, alpha.view(-1, 1, 1, 1).expand_as(out))
    torch.testing.assert_close(to_a, beta)
    torch.testing.assert_close(to_b, 1 - beta)
    assert (alpha - beta).abs().mean() > 0.1


def test_shares_are_uniform_per_image():
    out, to_a, _ = shaken(*leaves(), Shake())
    for share in (out[:, 0, 0, 0].detach(), to_a):
        assert share.unique().numel() == 64
        assert 0 <= share.min() < 0.15
        assert 0.85 < share.max() <= 1
    assert torch.equal(out, out[:, :1, :1, :1].expand_as(out))


def test_halves_at_evaluation_and_when_not_noisy():
    quiet = Shake()
    quiet.noisy = False
    for shake in (Shake().eval(), quiet):
        out, to_a, to_b = shaken(*leaves(), shake)
        assert torch.equal(out, torch.full_like(out, 0.5))
        assert (to_a == 0.5).all()
        assert (to_b == 0.5).all()


def test_net_is_deterministic_at_evaluation_only():
    net, x = build("shake-shake-8-2x4d", 5), torch.randn(4, 3, 8, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_shortcut_is_two_pooled_paths_the_second_shifted_by_a_pixel():
    for stride in (1, 2):
        shortcut, x = Shortcut(4, 6, stride), torch.randn(2, 4, 7, 8)
        h = F.relu(x)
        first = shortcut.straight(F.avg_pool2d(h, 1, stride))
        second = shortcut.shifted(F.avg_pool2d(F.pad(h, (-1, 1, -1, 1)), 1, stride))  # as Fast AutoAugment writes it
        torch.testing.assert_close(shortcut(x), shortcut.norm(torch.cat((first, second), 1)))
