"""Networks by name: sizes as published, one contract for all, errors that help."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasteraa.errors import ConfigError
from fasteraa.nets import NAMES, build
from fasteraa.nets.norm import BatchNorm2d
from fasteraa.nets.small import ConvNorm
from fasteraa.nets.wide_resnet import Block

TINY = ("wrn-10-1", "shake-shake-8-2x4d", "small")


def count(net):
    return sum(p.numel() for p in net.parameters())


def wide_resnet_parameters(depth, k, classes):
    """Counted from the published table alone: convolutions have no bias, a norm layer has two numbers a channel."""
    n, total, before = (depth - 4) // 6, 3 * 16 * 9, 16
    for width in (16 * k, 32 * k, 64 * k):
        total += 2 * before + 9 * before * width + 2 * width + 9 * width * width
        total += before * width if before != width else 0
        total += (n - 1) * (4 * width + 18 * width * width)
        before = width
    return total + 2 * before + before * classes + classes


def shake_shake_parameters(w, classes):
    total, before = 3 * 16 * 9 + 2 * 16, 16
    for width in (w, 2 * w, 4 * w):
        total += 2 * (9 * before * width + 9 * width * width + 4 * width)
        total += before * width + 2 * width
        total += 3 * 2 * (18 * width * width + 4 * width)
        before = width
    return total + before * classes + classes


@pytest.mark.parametrize(
    ("name", "published"), [("wrn-40-2", 2_243_546), ("wrn-28-10", 36_479_194), ("wrn-28-2", 1_467_610)]
)
def test_wide_resnets_have_the_published_size(name, published):
    depth, width = map(int, name.split("-")[1:])
    with torch.device("meta"):
        net = build(name, 10)
    assert count(net) == published == wide_resnet_parameters(depth, width, 10)


@pytest.mark.parametrize(("width", "published_millions"), [(32, 2.9), (96, 26.2), (112, 35.6)])
def test_shake_shake_nets_have_the_published_size(width, published_millions):
    with torch.device("meta"):
        net = build(f"shake-shake-26-2x{width}d", 10)
    assert count(net) == shake_shake_parameters(width, 10)
    assert round(count(net) / 1e6, 1) == published_millions


def test_resnet_50_has_the_published_size():
    with torch.device("meta"):
        assert count(build("resnet-50", 1000)) == 25_557_032


def test_small_is_small():
    assert 100_000 < count(build("small", 10)) < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_name_builds_and_keeps_the_contract(name):
    with torch.device("meta"):
        net = build(name, 7, 32)
        x = torch.empty(2, 3, 32, 32)
    assert net.features(x).shape == (2, net.num_features)
    assert type(net.classifier) is nn.Linear
    assert net.classifier.in_features == net.num_features
    assert net(x).shape == (2, 7)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (33, 20)])
def test_any_image_size_and_logits_are_the_classified_features(name, size):
    net = build(name, 5).eval()
    x = torch.randn(3, 3, *size)
    torch.testing.assert_close(net(x), net.classifier(net.features(x)), rtol=0, atol=0)


@pytest.mark.parametrize("name", TINY)
def test_gradient_reaches_every_parameter(name):
    net = build(name, 5)
    net(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_wide_resnet_blocks_are_pre_activated_and_stride_first():
    x = torch.randn(2, 16, 8, 8)
    same, wider = Block(16, 16, 1, 0.0), Block(16, 32, 2, 0.0)
    for block, stride in ((same, 1), (wider, 2)):
        h = F.relu(block.norm1(x))
        skip = x if stride == 1 else F.conv2d(h, block.skip.weight, stride=2)
        h = F.relu(block.norm2(F.conv2d(h, block.conv1.weight, stride=stride, padding=1)))
        torch.testing.assert_close(block(x), skip + F.conv2d(h, block.conv2.weight, padding=1))
    assert same.skip is None


def test_small_adds_where_shapes_agree():
    x = torch.randn(2, 4, 8, 8)
    layer = ConvNorm(4, 4)
    torch.testing.assert_close(layer(x), x + F.relu(layer.norm(layer.conv(x))))


@pytest.mark.parametrize("name", ["wrn-16-4", "shake-shake-26-2x32d", "small"])
def test_initialisation_is_he_by_fan_out_with_zero_biases(name):
    net = build(name, 5)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 5_000:
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    assert not net.classifier.bias.any()


def test_fused_is_the_default_and_primitive_gives_the_same_net():
    x = torch.randn(4, 3, 16, 16)
    torch.manual_seed(1)
    fused = build("wrn-10-1", 5)
    torch.manual_seed(1)
    primitive = build("wrn-10-1", 5, norm="primitive")
    assert {type(m) for m in fused.modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}
    assert {type(m) for m in primitive.modules() if isinstance(m, nn.BatchNorm2d)} == {BatchNorm2d}
    torch.testing.assert_close(fused(x), primitive(x))
    torch.testing.assert_close(fused.state_dict(), primitive.state_dict())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build("wrn-40_2", 10), ["'wrn-40_2'", "did you mean 'wrn-40-2'", "resnet-50", "timm:NAME"]),
        (lambda: build("wrn-30-2", 10), ["6n + 4", "got 30"]),
        (lambda: build("wrn-10-0", 10), ["width", "got 0"]),
        (lambda: build("shake-shake-27-2x32d", 10), ["6n + 2", "got 27"]),
        (lambda: build("shake-shake-26-2x3d", 10), ["even", "got 3"]),
        (lambda: build("small", 0), ["num_classes", "got 0"]),
        (lambda: build("resnet-50", 10, 28), ["at least 32", "'resnet-50'", "got 28"]),
        (lambda: build("small", 10, norm="primitiv"), ["'primitiv'", "did you mean 'primitive'", "fused"]),
    ],
)
def test_errors_name_condition_value_and_choices(call, words):
    with pytest.raises(ConfigError) as error:
        call()
    assert [word for word in words if word not in str(error.value)] == []


def test_timm_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"pip install 'fasteraa\[timm\]'"):
        build("timm:resnet18", 10)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "test_convnext",
        "test_resnet",
        "mobilenetv3_small_050",
    ],  # the last pools before its widest layer
)
def test_timm_by_name(name):
    pytest.importorskip("timm")
    net = build(f"timm:{name}", 4, 64).eval()
    x = torch.randn(2, 3, 64, 64)
    assert net.features(x).shape == (2, net.num_features)
    assert net(x).shape == (2, 4)


def test_timm_unknown_name_gets_the_nearest():
    pytest.importorskip("timm")
    with pytest.raises(ConfigError, match=r"'resnet_18'; did you mean resnet18"):
        build("timm:resnet_18", 4)
