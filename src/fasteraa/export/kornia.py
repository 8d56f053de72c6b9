"""kornia: one of its augmentations, with a draw for every image of the batch; masks, boxes and points follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from kornia.augmentation import GeometricAugmentationBase2D
from torch import Tensor

from fasteraa.export.embed import embed
from fasteraa.images import check_batch
from fasteraa.policy.apply import apply_draw, apply_mask, apply_points
from fasteraa.policy.current import CurrentPlan
from fasteraa.policy.draw import Deed
from fasteraa.policy.policy import Policy


def render(policy: Policy) -> Any:
    return PolicyAugmentation(policy)


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "kornia", "An augmentation for float images (B, C, H, W) in [0, 1], on any device.")


class PolicyAugmentation(GeometricAugmentationBase2D):  # type: ignore[misc]
    """Float images in [0, 1] are taken as 256 levels, augmented exactly, and returned as floats; without gradients."""

    def __init__(self, policy: Policy):
        super().__init__(p=1.0)
        self.policy = policy
        self._current = CurrentPlan(policy)

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """As of `policy.transform()`, for a policy with a schedule."""
        self._current.set_epoch(epoch, epochs)

    def generate_parameters(self, batch_shape: Any) -> dict[str, Tensor]:
        drawn = min(1, batch_shape[0]) if self.same_on_batch else batch_shape[0]
        uniform = torch.rand(drawn, self._current.plan.width, dtype=torch.float64)
        return {"uniform": uniform.expand(batch_shape[0], -1)}

    def apply_transform(self, input: Tensor, params: dict[str, Tensor], flags: Any, transform: Any = None) -> Tensor:
        if input.numel() == 0:
            return input
        levels = (input.detach() * 255).round().clamp(0, 255).to(torch.uint8)
        check_batch(levels, soft=False)
        plan = self._current.plan
        out = apply_draw(self.policy, plan, levels, plan.decode(params["uniform"]))
        return out.to(input.dtype) / 255

    def compute_transformation(self, input: Tensor, params: dict[str, Tensor], flags: Any) -> Tensor:
        """Where pixel centres go, (B, 3, 3)."""
        height, width = input.shape[-2:]
        matrices = [self._matrix(self._deeds(numbers), width, height) for numbers in params["uniform"].tolist()]
        return torch.stack(matrices).to(input.device, input.dtype) if matrices else input.new_zeros(0, 3, 3)

    def apply_transform_mask(
        self, input: Tensor, params: dict[str, Tensor], flags: Any, transform: Any = None
    ) -> Tensor:
        pairs = zip(input, params["uniform"].tolist(), strict=True)
        moved = [apply_mask(self.policy, mask, self._deeds(numbers)) for mask, numbers in pairs]
        return torch.stack(moved) if moved else input

    def _deeds(self, numbers: list[float]) -> list[Deed]:
        return self._current.plan.decode_one(numbers)

    def _matrix(self, deeds: list[Deed], width: int, height: int) -> Tensor:
        """From where three corners of the first pixel go: shifts are by whole pixels, as the image's are."""
        corners = torch.tensor([[0, 0], [1, 0], [0, 1]], dtype=torch.float64) + 0.5  # kornia counts from its centre
        origin, right, down = apply_points(self.policy, corners, deeds, width, height) - 0.5
        matrix = torch.eye(3, dtype=torch.float64)
        matrix[:2] = torch.stack([right - origin, down - origin, origin], 1)
        return matrix
