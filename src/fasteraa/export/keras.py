"""Keras: a layer that augments while training. It runs on the torch backend; others cannot trace our pixels' work."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if "keras" not in sys.modules:  # it reads the backend when it is imported
    os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from torch import Tensor

from fasteraa.errors import ExportError, ImageError
from fasteraa.export.embed import embed
from fasteraa.policy.apply import apply_draw
from fasteraa.policy.current import CurrentPlan
from fasteraa.policy.policy import Policy


def render(policy: Policy, value_range: tuple[float, float] = (0, 255), seed: int | None = None) -> Any:
    backend = keras.backend.backend()
    if backend != "torch":
        raise ExportError(
            f"the Keras layer needs the torch backend (KERAS_BACKEND=torch), got {backend!r}: "
            "augment the data set's numpy images with policy.transform() instead"
        )
    return PolicyLayer(policy.to_json(), value_range=value_range, seed=seed)


def text(policy: Policy, path: Path) -> str:
    return embed(policy, "keras", "A layer for images (B, H, W, C); value_range=(0, 1) for images in [0, 1].")


@keras.saving.register_keras_serializable(package="fasteraa")
class PolicyLayer(keras.layers.Layer):  # type: ignore[misc]
    """Images (B, H, W, C) or (H, W, C) of any number type within `value_range`, each with a draw of its own."""

    def __init__(
        self, policy: str, value_range: tuple[float, float] = (0, 255), seed: int | None = None, **arguments: Any
    ):
        super().__init__(**{"trainable": False, **arguments})
        self.policy = Policy.from_json(policy)
        self.value_range = tuple(value_range)
        if len(self.value_range) != 2 or not self.value_range[0] < self.value_range[1]:
            raise ImageError(f"value_range must be (lowest, highest), got {value_range!r}")
        self.seed = seed
        self.chance = keras.random.SeedGenerator(seed)
        self.supports_jit = False
        self._current = CurrentPlan(self.policy)

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """As of `policy.transform()`, for a policy with a schedule: from a callback's `on_epoch_begin`."""
        self._current.set_epoch(epoch, epochs)

    def call(self, images: Tensor, training: bool = True) -> Tensor:
        if not training or 0 in images.shape:
            return images
        levels = self._levels(images if images.ndim == 4 else images[None])
        plan = self._current.plan
        uniform = keras.random.uniform((len(levels), plan.width), dtype="float64", seed=self.chance)
        out = apply_draw(self.policy, plan, levels, plan.decode(uniform)).permute(0, 2, 3, 1)
        return self._like(out if images.ndim == 4 else out[0], images.dtype)

    def _levels(self, images: Tensor) -> Tensor:
        """uint8 (B, C, H, W)."""
        if images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ImageError(f"images must have the shape (B, H, W, C) with 1 or 3 channels, got {tuple(images.shape)}")
        if images.dtype != torch.uint8:
            low, high = self.value_range
            images = ((images.detach() - low) * (255 / (high - low))).round().clamp(0, 255).to(torch.uint8)
        return images.permute(0, 3, 1, 2).contiguous()

    def _like(self, levels: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype == torch.uint8:
            return levels
        low, high = self.value_range
        return levels.to(dtype) if (low, high) == (0, 255) else levels.to(dtype) / 255 * (high - low) + low

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, images: Any, training: bool = True) -> Any:
        return keras.KerasTensor(images.shape, dtype=images.dtype)  # nothing to trace

    def get_config(self) -> dict[str, Any]:
        own = {"policy": self.policy.to_json(), "value_range": self.value_range, "seed": self.seed}
        return {**super().get_config(), **own}
