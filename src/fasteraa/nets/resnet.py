"""ResNet-50, torchvision's, for larger images: the paper's critic and test network on ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from fasteraa.nets.backbone import Backbone

if TYPE_CHECKING:
    from torchvision.models import ResNet


class ResNetBackbone(Backbone):
    """A torchvision ResNet whose last layer stands outside as `classifier`."""

    def __init__(self, body: ResNet) -> None:
        super().__init__()
        self.classifier = body.fc
        self.num_features = int(body.fc.in_features)
        body.fc = nn.Identity()
        self.body = body

    def feature_map(self, x: Tensor) -> Tensor:
        body = self.body
        out: Tensor = body.maxpool(body.relu(body.bn1(body.conv1(x))))
        for stage in (body.layer1, body.layer2, body.layer3, body.layer4):
            out = stage(out)
        return out

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.body(x)
        return pooled


def resnet_50(num_classes: int) -> ResNetBackbone:
    from torchvision.models import resnet50  # takes seconds, so only here

    return ResNetBackbone(resnet50(weights=None, num_classes=num_classes))
