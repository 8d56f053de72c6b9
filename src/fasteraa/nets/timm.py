"""Any timm network by name; timm is an extra and is imported only here."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.nets.backbone import Backbone


class TimmBackbone(Backbone):
    """A timm model without its head (`num_classes=0` leaves pooled features), and a linear classifier of our own."""

    def __init__(self, name: str, num_classes: int, in_size: int | None = None) -> None:
        super().__init__()
        timm = _timm()
        if not timm.is_model(name):
            near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"timm has no network {name!r}{hint}")
        self.body = timm.create_model(name, pretrained=False, num_classes=0, **_size(timm, name, in_size))
        self.num_features = int(getattr(self.body, "head_hidden_size", None) or self.body.num_features)
        self.classifier = nn.Linear(self.num_features, num_classes)
        nn.init.zeros_(self.classifier.bias)

    def feature_map(self, x: Tensor) -> Tensor:
        found: Tensor = self.body.forward_features(x)
        if found.ndim == 4 and found.shape[1] != self.num_features == found.shape[3]:
            found = found.permute(0, 3, 1, 2)  # some of timm's keep the channels last
        if found.ndim != 4 or found.shape[1] != self.num_features:
            raise ConfigError(
                f"masks need a network whose features have places, (B, {self.num_features}, h, w), this one of timm's "
                f"gives {tuple(found.shape)}: take a convolutional one, such as timm:resnet18"
            )
        return found

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.body(x)
        return pooled


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ConfigError(
            "networks named 'timm:...' need the package timm, which is not installed; pip install 'fasteraa[timm]'"
        ) from error
    return timm


def _size(timm: Any, name: str, in_size: int | None) -> dict[str, int]:
    """Transformers are built for one image side; convolutional nets take any and know no such argument."""
    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size
    return {"img_size": in_size} if fixed and in_size is not None else {}
