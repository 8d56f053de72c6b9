"""The critic, and the identity its gradient penalty rests on: one forward-mode product replaces a double backward."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from fasteraa.errors import ConfigError
from fasteraa.nets import Critic, build, frozen_statistics
from fasteraa.nets.backbone import Backbone
from fasteraa.nets.resnet import ResNetBackbone

BATCH = 4


def backbone(name):
    if name == "resnet-50's blocks":
        return ResNetBackbone(ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5))
    return build(name, 5, 32)


def critic_of(name):
    """In double precision and training mode, biases and norm weights moved off the values where terms vanish."""
    critic = Critic(backbone(name), 5).double()
    with torch.no_grad():
        for parameter in critic.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3))
    return critic


def fused(critic):
    """The trap: the same critic with torch's own batch norm."""
    for layer in critic.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.__class__ = nn.BatchNorm2d
    return critic


def images():
    return torch.randn(BATCH, 3, 32, 32, dtype=torch.float64)


def flat(critic, value):
    parameters = list(critic.parameters())
    grads = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([grad.flatten() for grad in grads])


def double_backward(critic, x):
    """The penalty by its definition; also the input gradient, from which the tangent is made."""
    x = x.requires_grad_()
    with frozen_statistics(critic):
        (g,) = torch.autograd.grad(critic.score(x).sum(), x, create_graph=True)
    return flat(critic, (g.flatten(1).norm(dim=1) - 1).square().mean()), g.detach()


def tangent_of(g):
    norm = g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return 2 * (norm - 1) / (len(g) * norm) * g


def relative(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


NETS = ["wrn-10-1", "small", "shake-shake-8-2x4d", "resnet-50's blocks"]
TIMM = ["timm:test_vit", "timm:test_convnext", "timm:test_efficientnet"]


@pytest.mark.parametrize("name", NETS + TIMM)
def test_slope_has_the_parameter_gradient_of_the_penalty(name):
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    critic, x = critic_of(name), images()
    assert critic.training
    expected, g = double_backward(critic, x)
    assert relative(flat(critic, critic.slope(x, tangent_of(g))), expected) < 1e-10


@pytest.mark.parametrize("name", NETS)
def test_torchs_own_batch_norm_breaks_the_identity(name):
    """If this fails torch has fixed its formula, and the fused layers may serve the critic too."""
    critic, x = fused(critic_of(name)), images()
    expected, g = double_backward(critic, x)
    assert relative(flat(critic, critic.slope(x, tangent_of(g))), expected) > 1e-3


def test_double_backward_agrees_between_fused_and_primitive():
    """So the reference of the identity does not rest on our own norm layer."""
    critic, x = critic_of("wrn-10-1"), images()
    ours, _ = double_backward(critic, x)
    theirs, _ = double_backward(fused(critic), x)
    assert relative(ours, theirs) < 1e-10


def test_slope_is_the_directional_derivative_and_leaves_the_statistics():
    critic, x, t = critic_of("wrn-10-1"), images(), images()
    before = {name: value.clone() for name, value in critic.state_dict().items()}
    slope = critic.slope(x, t)
    torch.testing.assert_close(critic.state_dict(), before, rtol=0, atol=0)
    step = 1e-8  # a longer one crosses kinks of ReLU; this errs by at most 2e-6 over six seeds
    with torch.no_grad():
        difference = (critic.score(x + step * t).sum() - critic.score(x - step * t).sum()) / (2 * step)
    assert slope.item() == pytest.approx(difference.item(), rel=1e-4)


def test_dual_tensors_give_the_same_as_slope():
    critic, x, t = critic_of("wrn-10-1"), images(), images()
    expected = flat(critic, critic.slope(x, t))
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(critic.score(forward_ad.make_dual(x, t)).sum()).tangent
        assert relative(flat(critic, slope), expected) < 1e-12


@pytest.mark.parametrize("layer", [nn.MaxPool2d(3, 2, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)])
def test_layers_beside_the_norm_are_right_alone(layer):
    class Net(Backbone):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 6, 3), layer, nn.Conv2d(6, 6, 1), nn.Tanh())
            self.num_features, self.classifier = 6, nn.Linear(6, 5)

        def features(self, x):
            return self.body(x).mean(dim=(2, 3))

    critic, x = Critic(Net(), 5).double(), images()
    expected, g = double_backward(critic, x)
    assert relative(flat(critic, critic.slope(x, tangent_of(g))), expected) < 1e-12


@pytest.mark.parametrize("name", NETS)
def test_heads_read_one_set_of_features(name):
    critic = Critic(backbone(name), 5).eval()
    x = images().float()
    scores, logits = critic(x)
    assert scores.shape == (BATCH,)
    torch.testing.assert_close(scores, critic.score(x))
    torch.testing.assert_close(logits, critic.backbone(x))


def test_head_is_a_two_layer_perceptron():
    critic = Critic(build("wrn-10-1", 5), 5)
    assert [tuple(p.shape) for p in critic.head.parameters()] == [(64, 64), (64,), (1, 64), (1,)]
    f = torch.randn(3, 64)
    first, _, last = critic.head
    torch.testing.assert_close(critic.head(f), last(first(f).clamp(min=0)))


def test_a_critic_in_training_is_one_function_of_its_images():
    pytest.importorskip("timm")
    from timm.layers import DropPath

    net = build("shake-shake-8-2x4d", 5)
    net.stages.append(nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), DropPath(0.5)))
    critic, x = Critic(net, 5), images().float()
    assert torch.equal(critic.score(x), critic.score(x))


def test_class_counts_must_agree():
    with pytest.raises(ConfigError, match="num_classes=10, got a classifier of 5 classes"):
        Critic(build("small", 5), 10)
