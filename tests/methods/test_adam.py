"""Our Adam is torch's, to the last bits, and so is what it keeps."""

import copy

import pytest
import torch
from torch import nn

from fasteraa.methods.faster_aa.adam import Adam


def trained(make, device, steps=5, optimiser_state=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).to(device)
    optimiser = make(net.parameters())
    if optimiser_state is not None:
        optimiser.load_state_dict(optimiser_state)
    for step in range(steps):
        optimiser.zero_grad()
        assert all(parameter.grad is None for parameter in net.parameters())
        if step != 2:  # a parameter without a gradient stays where it is, and its averages too
            net[3].bias.requires_grad_(True)
        else:
            net[3].bias.requires_grad_(False)
        net(torch.randn(5, 3, 4, 4).to(device)).square().sum().backward()
        optimiser.step()
    return net, optimiser


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("betas", [(0.0, 0.999), (0.9, 0.99)])
def test_it_is_torchs(betas, device):
    mine, ours = trained(lambda parameters: Adam(parameters, 1e-2, betas), device)
    theirs, torchs = trained(lambda parameters: torch.optim.Adam(parameters, 1e-2, betas), device)
    for found, expected in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    saved, expected = ours.state_dict(), torchs.state_dict()
    assert saved["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(saved["state"][number][name].cpu(), value.cpu(), rtol=1e-4, atol=1e-7)


def test_each_reads_what_the_other_wrote():
    def ours(parameters):
        return Adam(parameters, 1e-2, (0.5, 0.9))

    def torchs(parameters):
        return torch.optim.Adam(parameters, 1e-2, (0.5, 0.9), foreach=False)

    kept = copy.deepcopy(trained(torchs, "cpu", 3)[1].state_dict())
    one, two = (trained(make, "cpu", 2, copy.deepcopy(kept))[0] for make in (ours, torchs))
    fresh = trained(ours, "cpu", 2)[0]
    for found, expected, without in zip(one.parameters(), two.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found, without, rtol=1e-5, atol=1e-6)
    again = trained(torchs, "cpu", 2, trained(ours, "cpu", 3)[1].state_dict() | {"param_groups": kept["param_groups"]})
    for found, expected in zip(again[0].parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_may_lie_otherwise_in_memory():
    def after(memory_format):
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
        optimiser = Adam([parameter], 0.1, (0.0, 0.999))
        for _ in range(2):
            parameter.grad = torch.randn(4, 3, 2, 2).contiguous(memory_format=memory_format)
            optimiser.step()
        return parameter.detach()

    assert torch.equal(after(torch.contiguous_format), after(torch.channels_last))
