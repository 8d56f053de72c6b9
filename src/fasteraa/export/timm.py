"""timm: a callable for its pipelines. The pixels are the work of timm's own functions where it has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data.auto_augment import NAME_TO_OP
from torchvision import transforms

from fasteraa.errors import ExportError
from fasteraa.export.embed import embed
from fasteraa.images import fill_for, join_alpha, split_alpha
from fasteraa.ops import physical
from fasteraa.policy.draw import Deed
from fasteraa.policy.policy import Policy
from fasteraa.policy.transform import PolicyTransform

_NAMES = {
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "solarize": "Solarize",
    "posterize": "PosterizeOriginal",
    "invert": "Invert",
    "auto_contrast": "AutoContrast",
    "equalize": "Equalize",
    "contrast": "Contrast",
    "color": "Color",
    "brightness": "Brightness",
    "sharpness": "Sharpness",
}


def render(policy: Policy, pipeline: Any = None, pool: Any = None) -> Any:
    augment = PolicyAugment(policy, pool)
    return augment if pipeline is None else insert(pipeline, augment)


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "timm", "A callable for Pillow images; make(pipeline=create_transform(...)) puts it in place.")


class PolicyAugment:
    """Draws from Python's `random`, as timm's own augmentations do, and augments one Pillow image."""

    def __init__(self, policy: Policy, pool: Any = None):
        self.policy = policy
        self.pool = pool
        self._ours = PolicyTransform(policy, pool)

    def __call__(self, image: Image.Image) -> Image.Image:
        self._ours.see(image)
        plan = self._ours.plan
        return self.apply(image, plan.decode_one([random.random() for _ in range(plan.width)]))

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """As of `policy.transform()`, for a policy with a schedule."""
        self._ours.set_epoch(epoch, epochs)

    def apply(self, image: Image.Image, deeds: list[Deed]) -> Image.Image:
        for deed in deeds:
            image = self._apply_timm(image, deed) if deed.op.name in _NAMES else self._ours.apply_pillow(image, [deed])
        return image

    def _apply_timm(self, image: Image.Image, deed: Deed) -> Image.Image:
        function = NAME_TO_OP[_NAMES[deed.op.name]]
        colours, alpha = split_alpha(image)
        value = physical(deed.op, deed.magnitude, deed.sign, *image.size, self.policy.spans)
        if deed.op.name == "posterize":
            value = max(1, int(value))
        arguments = () if deed.op.span is None else (value,)
        fill = fill_for(len(colours.getbands()), self.policy.fill)
        colour = fill if len(fill) > 1 else fill[0]
        colours = function(colours, *arguments, fillcolor=colour, resample=Image.Resampling.NEAREST)
        if alpha is not None and deed.op.geometric:
            alpha = function(alpha, *arguments, fillcolor=0, resample=Image.Resampling.NEAREST)
        return join_alpha(colours, alpha)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.name!r}, {self.policy.hash[:19]})"


def insert(pipeline: Any, augment: PolicyAugment) -> Any:
    """The pipeline of `create_transform` with the policy after its last step on Pillow images.

    With separate=True there are three parts (geometry, augmentation, to tensor), and the policy belongs to the second.
    """
    if isinstance(pipeline, tuple):
        first, second, last = pipeline
        return first, transforms.Compose([*second.transforms, augment]), last
    if not isinstance(pipeline, transforms.Compose):
        raise ExportError(f"the pipeline must be what create_transform makes, got a {type(pipeline).__name__}")
    steps = list(pipeline.transforms)
    place = next((i for i, step in enumerate(steps) if "ToTensor" in type(step).__name__ or _to_numpy(step)), None)
    if place is None:
        raise ExportError(
            f"the pipeline must hold timm's conversion to a tensor, got {[type(s).__name__ for s in steps]}"
        )
    return transforms.Compose([*steps[:place], augment, *steps[place:]])


def _to_numpy(step: Any) -> bool:
    return type(step).__name__ == "ToNumpy"
