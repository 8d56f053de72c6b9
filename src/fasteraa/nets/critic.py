"""The critic of the search: one backbone, and two heads that read its features."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.nets.backbone import Backbone
from fasteraa.nets.norm import frozen_statistics, make_primitive
from fasteraa.nets.shake_shake import Shake


class Critic(nn.Module):
    """A two-layer perceptron scores how real an image looks; the backbone's own classifier stands beside it.

    The gradient penalty mean_i (|g_i| - 1)^2, g = grad_x sum D(x), needs no double backward: with the constant tangent
    t_i = 2 (|g_i| - 1) / (B |g_i|) g_i its parameter gradient is that of one forward-mode product,

        with frozen_statistics(critic):
            (g,) = torch.autograd.grad(critic.score(x).sum(), x)
        ...
        critic.slope(x, t).backward()

    This holds for one function of x only, so the norm layers are made primitive and all noise is taken out.
    """

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        if backbone.classifier.out_features != num_classes:
            raise ConfigError(
                f"the critic's backbone must classify num_classes={num_classes}, "
                f"got a classifier of {backbone.classifier.out_features} classes"
            )
        _load_forward_mode()
        self.backbone = _without_noise(make_primitive(backbone))
        width = backbone.num_features
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(scores (B,), class logits (B, num_classes))."""
        features = self.backbone.features(x)
        return self.head(features).squeeze(1), self.backbone.classifier(features)

    def score(self, x: Tensor) -> Tensor:
        """The scores alone, for the penalty."""
        scores: Tensor = self.head(self.backbone.features(x)).squeeze(1)
        return scores

    def slope(self, x: Tensor, tangent: Tensor) -> Tensor:
        """d/dh sum(score(x + h tangent)) at h = 0, differentiable in the parameters; running statistics stay.

        Reverse mode sees through `torch.func.jvp` to the parameters that the lambda closes over, so that no
        `functional_call` is needed; dual tensors of `torch.autograd.forward_ad` give the same numbers. Checked on
        torch 2.6, 2.11 and 2.15; the latter two also compile it into one graph.
        """
        with frozen_statistics(self):
            slope: Tensor = torch.func.jvp(lambda z: self.score(z).sum(), (x.detach(),), (tangent,))[1]
        return slope


class PixelCritic(Critic):
    """For masks: the classifier reads every place of the feature map, as a convolution of 1x1 does. The score stays:
    the same perceptron on the mean of that map.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(scores (B,), class logits (B, num_classes, h, w))."""
        features = self.backbone.feature_map(x)
        logits: Tensor = self.backbone.classifier(features.permute(0, 2, 3, 1))
        return self.head(features.mean(dim=(2, 3))).squeeze(1), logits.permute(0, 3, 1, 2)

    def score(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone.feature_map(x).mean(dim=(2, 3))).squeeze(1)
        return scores


def _without_noise(backbone: Backbone) -> Backbone:
    """Switch off what differs from one forward to the next: shaking, dropout, timm's stochastic depth."""
    for layer in backbone.modules():
        if isinstance(layer, Shake):
            layer.noisy = False
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        for rate in {"drop_prob", "drop_rate"} & vars(layer).keys():
            vars(layer)[rate] = 0.0
    return backbone


@cache
def _load_forward_mode() -> None:
    """The first jvp of a process loads torch's own decompositions, which warn about `torch.jit`; nobody's to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.zeros(1),))
