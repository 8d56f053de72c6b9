"""The written-out derivatives against autograd, in float64: image gradients, a loss and a penalty in one batch."""

import pytest
import torch
from torchvision.models.resnet import Bottleneck, ResNet

from fasteraa.nets import build, make_norm_free
from fasteraa.nets.manual_grad import ManualGrad, write_layers
from fasteraa.nets.resnet import ResNetBackbone

NETS = ["wrn-16-1", "small", "resnet-50's blocks"]


def backbone_of(name):
    """In double precision, with gains, scales and shifts moved off the values where terms vanish."""
    if name == "resnet-50's blocks":
        net = make_norm_free(ResNetBackbone(ResNet(Bottleneck, [2, 1, 1, 1], num_classes=5)))
    else:
        net = build(name, 5, 32, norm="none")
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3))
    return net.double()


def manual_grad(net, images):
    with torch.no_grad():
        return ManualGrad(write_layers(net), images.clone())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_features_and_image_gradient(name, layout):
    net = backbone_of(name)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    weights = torch.randn(4, net.num_features, dtype=torch.float64)
    features = net.features(images)
    (expected,) = torch.autograd.grad((features * weights).sum(), images)
    manual = manual_grad(net, images.detach())
    torch.testing.assert_close(manual.features, features.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(manual.backward(weights), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_a_loss_and_a_penalty_in_one_batch(name):
    """The first two images: the slope of sum(score) along a tangent, by a double backward. The others: a loss."""
    net = backbone_of(name)
    images, tangent = torch.randn(5, 3, 32, 32).double(), torch.randn(2, 3, 32, 32).double()
    score, weights = torch.randn(net.num_features).double(), torch.randn(3, net.num_features).double()
    points = images[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad((net.features(points) @ score).sum(), points, create_graph=True)
    both = (gradient * tangent).sum() + (net.features(images[2:]) * weights).sum()
    parameters = [p for name, p in net.named_parameters() if not name.startswith(("classifier", "body.fc"))]
    expected = torch.autograd.grad(both, parameters)

    manual = manual_grad(net, images)
    torch.testing.assert_close(manual.backward(torch.cat([score.expand(2, -1), weights]))[:2], gradient.detach())
    moved = manual.tangent(tangent)
    torch.testing.assert_close((moved @ score).sum(), (gradient * tangent).sum().detach())
    found = dict(manual.gradients(points=2))
    assert set(found) == set(parameters)
    for parameter, wanted in zip(parameters, expected, strict=True):
        scale = float(wanted.abs().max())
        assert scale > 0
        torch.testing.assert_close(found[parameter], wanted, rtol=1e-8, atol=1e-11 * scale)


def test_only_norm_free_networks_that_are_known():
    assert write_layers(build("wrn-10-1", 2)) is None
    assert write_layers(build("wrn-10-1", 2, norm="primitive")) is None
    assert write_layers(build("shake-shake-8-2x4d", 2, norm="none")) is None
    assert write_layers(build("resnet-50", 2, norm="none")) is not None


def test_images_are_let_go_of_when_nobody_needs_them():
    """The outputs of a branch's last convolution are used by an addition alone."""
    net = backbone_of("wrn-10-1")
    manual = manual_grad(net, torch.randn(2, 3, 8, 8).double())
    assert sum(len(value) == 0 for value in manual.values) >= 3
