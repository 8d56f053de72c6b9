"""Any timm network by name, with its own weights if asked for; timm is an extra and is imported only here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fasteraa.errors import ConfigError
from fasteraa.nets.backbone import Backbone
from fasteraa.nets.weights import load_weights, read_weights
from fasteraa.runtime.packages import quiet_hub

PREFIX = "timm:"


@dataclass(frozen=True)
class Preprocessing:
    """What pretrained weights expect of their images; getting it wrong costs points."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    side: int  # of the input
    crop: float  # the centre of a larger image that is measured, as a share of its side
    interpolation: str

    def image_side(self, side: int | None = None) -> int:
        """Of the images that the input is cropped from."""
        return math.ceil((side or self.side) / self.crop)


def preprocessing(network: str) -> Preprocessing:
    """By timm's own configuration of the network."""
    if not network.startswith(PREFIX):
        raise ConfigError(f"pretrained weights are those of timm's networks (timm:NAME), got {network!r}")
    timm, name = _timm(), network.removeprefix(PREFIX)
    _check_name(timm, name)
    config = timm.get_pretrained_cfg(name)
    if config is None:
        raise ConfigError(f"timm has no pretrained weights for {name!r}, and does not say what its images are like")
    return Preprocessing(
        tuple(config.mean), tuple(config.std), int(config.input_size[-1]), float(config.crop_pct), config.interpolation
    )


class TimmBackbone(Backbone):
    """A timm model without its head (`num_classes=0` leaves pooled features), and a linear classifier."""

    def __init__(
        self,
        name: str,
        num_classes: int,
        in_size: int | None = None,
        *,
        pretrained: bool = False,
        weights: Path | None = None,
    ) -> None:
        super().__init__()
        timm = _timm()
        _check_name(timm, name)
        if "." in name and not pretrained and weights is None:
            raise ConfigError(
                f"{name!r} names pretrained weights (the part after the dot): say --pretrained to use them, or leave "
                "the tag out for random ones"
            )
        self.body = _made(timm, name, pretrained, _size(timm, name, in_size))
        self.num_features = int(getattr(self.body, "head_hidden_size", None) or self.body.num_features)
        self.classifier = nn.Linear(self.num_features, num_classes)
        nn.init.zeros_(self.classifier.bias)
        if weights is not None:
            self._load(timm, name, weights)

    def _load(self, timm: Any, name: str, weights: Path) -> None:
        """A linear head of the same size is taken along; one of another size, or with more to it, is replaced."""
        config = timm.get_pretrained_cfg(name)
        heads = config.classifier if config is not None and config.classifier else "classifier"
        heads = (heads,) if isinstance(heads, str) else tuple(heads)
        tensors = _at_this_size(self.body, read_weights(weights))
        ours = dict(self.classifier.named_parameters())
        head = {f"{heads[0]}.{part}": part for part in ours}
        is_linear = not tensors.keys() - self.body.state_dict().keys() - head.keys()
        if not is_linear:
            heads += _head_names(name)
        left = load_weights(self.body, tensors, heads, f"{str(weights)!r}")
        if is_linear and all(full in left and tensors[full].shape == ours[part].shape for full, part in head.items()):
            self.classifier.load_state_dict({part: tensors[full] for full, part in head.items()})

    def feature_map(self, x: Tensor) -> Tensor:
        features: Tensor = self.body.forward_features(x)
        if features.ndim == 4 and features.shape[1] != self.num_features == features.shape[3]:
            features = features.permute(0, 3, 1, 2)  # some of timm's keep the channels last
        if features.ndim != 4 or features.shape[1] != self.num_features:
            raise ConfigError(
                f"masks need a network whose features have places, (B, {self.num_features}, h, w), this one of timm's "
                f"gives {tuple(features.shape)}: take a convolutional one, such as timm:resnet18"
            )
        return features

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.body(x)
        return pooled


def _at_this_size(body: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The places of a transformer's patches, interpolated where it is built for another input size."""
    given, own = tensors.get("pos_embed"), getattr(body, "pos_embed", None)
    grid = getattr(getattr(body, "patch_embed", None), "grid_size", None)
    if given is None or own is None or grid is None or given.shape == own.shape or given.shape[-1] != own.shape[-1]:
        return tensors
    from timm.layers import resample_abs_pos_embed

    prefix = 0 if getattr(body, "no_embed_class", False) else int(getattr(body, "num_prefix_tokens", 0))
    return {**tensors, "pos_embed": resample_abs_pos_embed(given, list(grid), num_prefix_tokens=prefix)}


@lru_cache(maxsize=16)
def _head_names(name: str) -> tuple[str, ...]:
    """Tensors of the whole network that the one without classes has not: some heads have a norm, or are several."""
    with torch.random.fork_rng(devices=[]):  # the networks are built for their names alone
        body, whole = (_timm().create_model(name, num_classes=classes).state_dict() for classes in (0, 2))
    return tuple(each for each, tensor in whole.items() if each not in body or body[each].shape != tensor.shape)


def check_size(network: Backbone, name: str, side: int) -> None:
    """Whether it takes images of that side: some of timm's are made for one, and say so where they are used."""
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, side, side))
    except Exception as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        config = _timm().get_pretrained_cfg(name.removeprefix(PREFIX))
        own = "" if config is None else f": it is made for {config.input_size[-1]} (--size {config.input_size[-1]})"
        raise ConfigError(f"the network {name!r} does not take images of {side}x{side} ({reason}){own}") from error
    finally:
        network.train(training)


def _check_name(timm: Any, name: str) -> None:
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(f"timm has no network {name!r}{hint}")


def _made(timm: Any, name: str, pretrained: bool, size: dict[str, int]) -> Any:
    try:
        with quiet_hub():
            if pretrained:
                _check_download(timm.get_pretrained_cfg(name))
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **size)
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if pretrained:
            raise ConfigError(
                f"the pretrained weights of {name!r} could not be had ({reason}): check the network, or give a file "
                "(--weights)"
            ) from error
        raise ConfigError(f"timm could not build {name!r}: {reason}") from error


def _check_download(config: Any) -> None:
    """Asks the hub once for weights that are not here: timm would try to reach it for most of a minute."""
    if config is None or not config.hf_hub_id:
        return
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
    except ModuleNotFoundError:  # timm then downloads from elsewhere, or says so
        return
    repository, _, revision = config.hf_hub_id.partition("@")
    files = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    here = (try_to_load_from_cache(repository, file, revision=revision or None) for file in files)
    if not any(isinstance(path, str) for path in here):
        HfApi().file_exists(repository, files[0], revision=revision or None)  # raises where nothing can be reached


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
