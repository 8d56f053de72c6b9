"""The policy as a torchvision v2 transform: what people put into their training code."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from fasteraa.errors import ImageError
from fasteraa.images import check_batch, from_array, to_array, to_pillow
from fasteraa.ops.kernels import works_on
from fasteraa.policy.apply import apply_boxes, apply_draw, apply_mask, apply_masks, apply_pillow, apply_points
from fasteraa.policy.current import CurrentPlan
from fasteraa.policy.draw import Deed, Draw, Plan
from fasteraa.policy.no_compile import eager
from fasteraa.policy.partners import Seen, read_partners
from fasteraa.policy.policy import Policy

_KeyPoints: type | None = getattr(tv_tensors, "KeyPoints", None)  # torchvision >= 0.23
_COMPANIONS = (tv_tensors.Mask, tv_tensors.BoundingBoxes, *((_KeyPoints,) if _KeyPoints is not None else ()))
XYXY = tv_tensors.BoundingBoxFormat.XYXY
_Sample = Image.Image | Tensor | np.ndarray


def _is_pure_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, tv_tensors.TVTensor)


def _is_image_array(value: Any) -> bool:
    """uint8 (H, W, C): other arrays in a sample are labels."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3)


class PolicyTransform(v2.Transform):  # type: ignore[misc]
    """Draws a sub-policy for every sample and applies it: geometry to everything, colour to images alone.

    Takes Pillow images, uint8 tensors (C, H, W), batches (B, C, H, W) with a draw per image, numpy arrays (H, W, C),
    tv_tensors, and samples (dicts, tuples) that hold them; in a sample, a plain tensor is the image if it is the first
    and there is no Pillow image, array or tv_tensors Image or Video, and a label otherwise. All chance comes from
    torch's generator, so a seeded DataLoader repeats itself. `pool` (uint8 tensor (P, C, H, W), or anything indexable
    that gives Pillow images, arrays (H, W, C) or tensors (C, H, W)) holds the partners of sample_pairing. Without it
    batches take them from the batch, and single images from the last 64 that this transform has seen.
    `mask_fill` is what masks get where geometry brings in what was outside: 0, or 255 where 0 is a class like others.
    Of a policy with a schedule the part applies that belongs to the epoch which `set_epoch` was given last.
    """

    _transformed_types = (
        Image.Image,
        tv_tensors.Image,
        tv_tensors.Video,
        *_COMPANIONS,
        _is_image_array,
        _is_pure_tensor,
    )

    policy: Policy
    pool: Any
    mask_fill: int
    _current: CurrentPlan
    _pairs: bool
    _seen: Seen

    def __init__(self, policy: Policy, pool: Any = None, mask_fill: int = 0, epochs: int | None = None):
        super().__init__()
        if pool is not None and len(pool) == 0:
            raise ImageError("the pool of partner images must not be empty")
        if isinstance(pool, Tensor):
            check_batch(pool, soft=False, what="the pool")
        if not isinstance(mask_fill, Integral) or isinstance(mask_fill, bool):
            raise ImageError(f"mask_fill must be a class number, got {mask_fill!r}")
        self.policy = policy
        self.pool = pool
        self.mask_fill = int(mask_fill)
        self._current = CurrentPlan(policy, epochs)
        self._pairs = "sample_pairing" in policy.ops
        self._seen = Seen()

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """Tell a policy with a schedule which epoch begins, counted from 0, before its loader begins it.

        `epochs` is the length of the training, unless `policy.transform(epochs=...)` has it. Workers of the loader
        follow, also those that live longer than an epoch. Nothing happens to a policy without a schedule.
        """
        self._current.set_epoch(epoch, epochs)

    @property
    def plan(self) -> Plan:
        """Of the policy, or of the part of its schedule that applies now."""
        return self._current.plan

    def extra_repr(self) -> str:
        return f"{self.policy.name!r}, {self.policy.hash[:19]}"

    @eager
    def forward(self, *inputs: Any) -> Any:
        if len(inputs) == 1 and isinstance(inputs[0], Image.Image):  # the loader's path, without the tree of a sample
            return self._pillow(inputs[0], self.plan.draw_one())
        if len(inputs) == 1 and isinstance(inputs[0], np.ndarray) and not _is_image_array(inputs[0]):
            raise ImageError(
                f"an array must hold uint8 (H, W, C) with 1 or 3 channels, got {inputs[0].dtype} {inputs[0].shape}"
            )
        return super().forward(*inputs)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """One draw for the sample, or one for each image of its batch.

        torchvision hands over plain tensors only where the sample holds no image of its own kinds, and then the first
        alone. An array counts as an image too, so beside one a plain tensor is a label.
        """
        labelled = any(map(_is_image_array, flat_inputs))
        images = [value for value in flat_inputs if not (labelled and _is_pure_tensor(value))]
        if flat_inputs and all(isinstance(value, _COMPANIONS) for value in flat_inputs):
            raise ImageError(
                f"a sample with {type(flat_inputs[0]).__name__} must hold an image, too: a Pillow image, a uint8 array "
                "(H, W, C) with 1 or 3 channels, or a uint8 tensor (C, H, W)"
            )
        plan = self.plan  # for all of the sample, whatever `set_epoch` says meanwhile
        return {"labelled": labelled, "plan": plan, **_draw_for(images, plan)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        draw: Draw | None = params.get("draw")
        if params["labelled"] and _is_pure_tensor(inpt):
            return inpt
        if isinstance(inpt, tv_tensors.Video) or (isinstance(inpt, tv_tensors.Image) or _is_pure_tensor(inpt)):
            return self._tensor(inpt, params)
        if draw is not None:
            return self._batch_companion(inpt, draw, params["plan"])
        deeds = params["plan"].decode_one(params["uniform"].tolist())
        if isinstance(inpt, Image.Image):
            return self._pillow(inpt, deeds)
        if isinstance(inpt, np.ndarray):
            return to_array(self._tensor(from_array(inpt), params))
        return self._companion(inpt, deeds)

    # --- images ------------------------------------------------------------------------------------------------

    def _pillow(self, image: Image.Image, deeds: Sequence[Deed]) -> Image.Image:
        self.see(image)
        return self.apply_pillow(image, deeds)

    def apply_pillow(self, image: Image.Image, deeds: Sequence[Deed]) -> Image.Image:
        return apply_pillow(self.policy, image, deeds, self._partner)

    def _tensor(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """(C, H, W) and video frames (T, C, H, W) share one draw; a batch has a draw per image."""
        if image.ndim < 3 or image.ndim > (5 if isinstance(image, tv_tensors.Video) else 4):
            raise ImageError(f"an image must have the shape (C, H, W) or (B, C, H, W), got {tuple(image.shape)}")
        frames = image.as_subclass(Tensor).reshape(-1, *image.shape[-3:])
        check_batch(frames, soft=False)
        if frames.numel() == 0:
            return image
        draw, plan = params.get("draw"), params["plan"]
        if draw is None:
            self.see(frames[0])
            draw = plan.decode(params["uniform"][None])
            partners = self._members()
        else:
            partners = self.pool
        pool, draw = self._partners(frames, _repeat(draw, len(frames)), plan, partners)
        out = apply_draw(self.policy, plan, frames, draw, pool)
        out = out.reshape(image.shape)
        return tv_tensors.wrap(out, like=image) if isinstance(image, tv_tensors.TVTensor) else out

    def see(self, image: Image.Image | Tensor) -> None:
        """Keep a single image as a partner of those that follow, where there is no pool."""
        if self._pairs and self.pool is None:
            self._seen.add(image if isinstance(image, Image.Image) else to_pillow(image))

    def _members(self) -> Any:
        return self._seen if self.pool is None else self.pool

    def _partner(self, deed: Deed, image: Image.Image) -> Image.Image:
        members = self._members()
        partner = _pool_image(members, int(deed.partner * len(members))) if len(members) else image
        partner = partner if partner.mode == image.mode else partner.convert(image.mode)
        return partner if partner.size == image.size else partner.resize(image.size)

    def _partners(self, images: Tensor, draw: Draw, plan: Plan, members: Any) -> tuple[Tensor | None, Draw]:
        """The partners and the draw that belongs to them. Where the pool is no tensor, those drawn alone are read."""
        if not plan.pairs or members is None:
            return None, draw
        shape = images.shape[1:]
        if isinstance(members, Tensor):
            if members.shape[1:] != shape:
                raise ImageError(
                    f"the partners in the pool must have the shape {tuple(shape)} of the images, "
                    f"got {tuple(members.shape[1:])}"
                )
            return members, draw
        return read_partners(plan, draw, images, len(members), lambda index: _pool_image(members, index))

    # --- what goes with images ---------------------------------------------------------------------------------

    def _companion(self, value: Any, deeds: Sequence[Deed]) -> Any:
        if isinstance(value, tv_tensors.Mask):
            moved = apply_mask(self.policy, value.as_subclass(Tensor), deeds, self.mask_fill)
            return tv_tensors.wrap(moved, like=value)
        if isinstance(value, tv_tensors.BoundingBoxes):
            return self._boxes(value, deeds)
        return self._key_points(value, deeds)

    def _boxes(self, boxes: tv_tensors.BoundingBoxes, deeds: Sequence[Deed]) -> tv_tensors.BoundingBoxes:
        """The upright hull of what is seen of each box. It may have no area left: SanitizeBoundingBoxes.

        With a clamping mode of None the hull of all of it, seen or not.
        """
        if getattr(tv_tensors, "is_rotated_bounding_format", lambda _: False)(boxes.format):
            raise ImageError(f"rotated boxes cannot follow a policy, got the format {boxes.format.name}")
        if not any(deed.op.geometric for deed in deeds):
            return boxes
        height, width = boxes.canvas_size
        plain = boxes.as_subclass(Tensor).double()
        corners = F.convert_bounding_box_format(plain, boxes.format, XYXY)
        if getattr(boxes, "clamping_mode", "soft") is None:  # torchvision >= 0.23
            points = torch.stack([corners[:, [x, y]] for x, y in ((0, 1), (2, 1), (2, 3), (0, 3))], 1)
            points = apply_points(self.policy, points, deeds, width, height)
            hull = torch.cat([points.amin(1), points.amax(1)], 1)
        else:
            hull = apply_boxes(self.policy, corners, deeds, width, height)
        exact = hull if boxes.is_floating_point() else hull.round()
        moved = F.convert_bounding_box_format(exact, XYXY, boxes.format)
        return tv_tensors.wrap(moved.to(boxes.dtype), like=boxes)

    def _key_points(self, points: Any, deeds: Sequence[Deed]) -> Any:
        """torchvision counts key points in pixels, with 0 the centre of the first."""
        height, width = points.canvas_size
        centred = points.as_subclass(Tensor).double() + 0.5
        moved = apply_points(self.policy, centred, deeds, width, height) - 0.5
        exact = moved if points.is_floating_point() else moved.round()
        return tv_tensors.wrap(exact.to(points.dtype), like=points)

    def _batch_companion(self, value: Any, draw: Draw, plan: Plan) -> Any:
        """Masks (B, ..., H, W) go with a batch, image by image; boxes and points have no batch dimension."""
        if not isinstance(value, tv_tensors.Mask) or len(value) != len(draw.op):
            what = f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
            raise ImageError(f"only masks (B, ..., H, W) can go with a batch of {len(draw.op)} images, got {what}")
        moved = apply_masks(self.policy, plan, value.as_subclass(Tensor), draw, self.mask_fill)
        return tv_tensors.wrap(moved, like=value)


def _draw_for(images: list[Any], plan: Plan) -> dict[str, Any]:
    counts = {count for count in map(_batch_size, images) if count is not None}
    if len(counts) > 1:
        raise ImageError(f"a sample must hold images or one batch, got batches of the sizes {sorted(counts)}")
    if counts:
        device = _device_of(images)
        return {"draw": plan.draw(counts.pop(), None, device, works_on(device))}
    return {"uniform": torch.rand(plan.width, dtype=torch.float64)}


def _batch_size(value: Any) -> int | None:
    """How many draws an input asks for: None means that it shares the sample's single draw."""
    if isinstance(value, tv_tensors.Video):
        return len(value) if value.ndim == 5 else None
    if isinstance(value, tv_tensors.Image) or _is_pure_tensor(value):
        return len(value) if value.ndim == 4 else None
    return None


def _device_of(values: list[Any]) -> torch.device:
    """Where the batch lies, so that its draws need not be sent there."""
    device: torch.device = next(value.device for value in values if _batch_size(value) is not None)
    return device


def _pool_image(members: Any, index: int) -> Image.Image:
    item = members[index]
    item = item[0] if isinstance(item, tuple | list) else item
    return item if isinstance(item, Image.Image) else to_pillow(_partner_tensor(item))


def _partner_tensor(item: Any) -> Tensor:
    """A member of the pool as (C, H, W). Arrays are (H, W) or (H, W, C), as images are; (C, H, W) where it must be."""
    if isinstance(item, np.ndarray):
        planes = item[..., None] if item.ndim == 2 else item
        item = from_array(planes) if planes.ndim == 3 and planes.shape[2] in (1, 3) else torch.as_tensor(item)
    if not isinstance(item, Tensor) or item.dtype != torch.uint8 or item.ndim != 3 or item.shape[0] not in (1, 3):
        got = f"{item.dtype} {tuple(item.shape)}" if isinstance(item, Tensor) else f"a {type(item).__name__}"
        raise ImageError(
            "the pool must give Pillow images, uint8 arrays (H, W, C) or uint8 tensors (C, H, W), or tuples that begin "
            f"with one, got {got}"
        )
    return item


def _repeat(draw: Draw, count: int) -> Draw:
    """The draw for `count` frames: each image's draw for all of its frames."""
    times = count // len(draw.op)
    if times == 1:
        return draw
    return Draw(**{name: column.repeat_interleave(times, 0) for name, column in vars(draw).items()})
