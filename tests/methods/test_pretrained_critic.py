"""A critic that is a pretrained network: its own normalisation and statistics, a body that moves slowly."""

from dataclasses import replace

import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa import _small_enough
from fasteraa.methods.faster_aa.run import Run, gradient_search
from fasteraa.methods.task import Task
from fasteraa.nets import Critic, build
from fasteraa.runtime.progress import Silent
from fasteraa.selection.config import RaceConfig, with_critic_weights
from fasteraa.train.recipe import TrainRecipe

LITE0 = "timm:tf_efficientnet_lite0"


@pytest.fixture
def config(lite0):
    return SearchConfig(
        critic=LITE0, critic_weights=str(lite0), batch_size=4, epochs=1, sub_policies=2, ops=("invert", "rotate")
    )


@pytest.fixture
def photos():
    images = torch.randint(256, (8, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ImageSet.of(images, torch.arange(8) % 2, ("a", "b"), "noise")


def test_it_is_the_pretrained_network_in_training_too(lite0):
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole = build(LITE0, 2, 32, weights=lite0).eval()
    critic = Critic(build(LITE0, 2, 32, weights=lite0, norm="frozen"), 2)
    assert critic.training
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    torch.testing.assert_close(critic.backbone.features(x), whole.features(x), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(critic.state_dict(), before, rtol=0, atol=0)  # no statistics of these images
    assert list(critic.backbone.state_dict()) == list(whole.state_dict())


def test_the_penalty_has_the_gradient_of_its_double_backward(lite0):
    critic = Critic(build(LITE0, 2, 32, weights=lite0, norm="frozen"), 2).double()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x.requires_grad_()
    (g,) = torch.autograd.grad(critic.score(x).sum(), x, create_graph=True)
    norm = g.flatten(1).norm(dim=1)
    body = list(critic.backbone.body.parameters())
    expected = torch.autograd.grad((norm - 1).square().mean(), body, allow_unused=True)
    g, norm = g.detach(), norm.detach().view(-1, 1, 1, 1)
    ours = torch.autograd.grad(critic.slope(x.detach(), 2 * (norm - 1) / (len(g) * norm) * g), body, allow_unused=True)
    for mine, theirs in zip(ours, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def test_a_search_with_it(config, photos):
    run = Run(photos, config, torch.device("cpu"), None, Silent())
    assert run.step.normalise.mean.flatten().tolist() == [0.5, 0.5, 0.5]  # of the network, not of the images
    critic, body = run.step.critic, run.step.critic.backbone.body.conv_stem.weight
    before, head = body.detach().clone(), critic.head[0].weight.detach().clone()
    statistics = critic.backbone.body.bn1.running_mean.clone()
    assert run.go().finished
    # with betas of (0, 0.999) the first step of Adam moves every weight by its rate
    assert 0 < (body - before).abs().max() < 0.5 * (critic.head[0].weight - head).abs().max()
    assert torch.equal(critic.backbone.body.bn1.running_mean, statistics)


def test_same_seed_same_policy(config, photos):
    one, two = (gradient_search(photos, config, device="cpu").policy for _ in range(2))
    assert one.hash == two.hash


def test_the_network_that_is_fine_tuned_brings_its_weights(lite0):
    config = SearchConfig(critic=LITE0)
    assert with_critic_weights(config, RaceConfig(network=LITE0, weights=str(lite0))).critic_weights == str(lite0)
    assert with_critic_weights(config, RaceConfig(network=LITE0, pretrained=True)).critic_weights == "pretrained"
    for race in (None, RaceConfig(network=LITE0), RaceConfig(network="timm:resnet18", pretrained=True)):
        assert with_critic_weights(config, race) is config
    own = replace(config, critic_weights="own.pt")
    assert with_critic_weights(own, RaceConfig(network=LITE0, pretrained=True)) is own
    assert "critic_weights" not in config.plain()  # results of before keep their settings


def test_it_sees_images_at_the_size_of_its_input(config, photos):
    recipe = TrainRecipe(network=LITE0, weights="w.pt", input_size=28)
    assert _small_enough(Task(photos, config, "cpu", recipe)).size == (28, 28)
    assert _small_enough(Task(photos, config, "cpu", replace(recipe, input_size=32))) is photos


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "auto"}, "need the network that they are for"),
        ({"critic_weights": "nowhere.safetensors"}, "no such file"),
        ({"critic": "timm:resnet18"}, "weights of another network"),
    ],
)
def test_wrong_weights(settings, message, config, photos):
    with pytest.raises(ConfigError, match=message):
        gradient_search(photos, replace(config, **settings), device="cpu")
