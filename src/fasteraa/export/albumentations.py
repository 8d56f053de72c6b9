"""albumentations: one exact transform of ours, or a native tree that loads without us.

The native tree is built by the parameter names of the installed flavour (albumentations 2.0.8 or AlbumentationsX),
and refused if that flavour would build or load it with a warning: it then uses defaults instead of our numbers.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for news when it is imported
os.environ.setdefault("ALBUMENTATIONS_NO_TELEMETRY", "1")

import albumentations as A
import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from fasteraa.errors import ExportError, ImageError
from fasteraa.export.fidelity import live
from fasteraa.ops import find
from fasteraa.policy.apply import apply_boxes, apply_mask, apply_points
from fasteraa.policy.draw import POSITIVE, Deed
from fasteraa.policy.policy import Choice, Policy, Stage, SubPolicy
from fasteraa.policy.transform import PolicyTransform as _Ours

_GRAIN = 1024  # of a pixel: beyond the precision of a float32 share of sides up to 8192
ALBUMENTATIONS_X = "angle_range" in inspect.signature(A.Rotate.__init__).parameters


def render(policy: Policy, native: bool = False, pool: Any = None, mask_fill: int = 0) -> Any:
    return tree(policy, mask_fill) if native else PolicyTransform(policy.to_json(), pool=pool, mask_fill=mask_fill)


def text(policy: Policy, path: Path, native: bool = False) -> str:
    """What A.save writes; ours needs `import fasteraa.export.albumentations` before A.load."""
    content = A.to_dict(render(policy, native))
    if path.suffix in (".yaml", ".yml"):
        import yaml

        written: str = yaml.safe_dump(json.loads(json.dumps(content)))
        return written
    if path.suffix != ".json":
        raise ExportError(f"a file for albumentations must end in .json, .yaml or .yml, got {path.name!r}")
    return json.dumps(content, indent=1) + "\n"


# --- ours ------------------------------------------------------------------------------------------------------


class PolicyTransform(A.DualTransform):  # type: ignore[misc]
    """The policy on uint8 arrays (H, W), (H, W, 1) or (H, W, 3); masks, boxes and key points follow the geometry.

    `policy` is the JSON text. The pool of partners for sample_pairing is not saved: set `.pool` after loading, or
    partners are the last 64 images seen. Of key points the place moves; angle and size stay as they are. `mask_fill` is
    what masks get from outside the image.
    """

    _targets = (A.core.type_definitions.Targets.IMAGE, A.core.type_definitions.Targets.MASK,
                A.core.type_definitions.Targets.BBOXES, A.core.type_definitions.Targets.KEYPOINTS)  # fmt: skip

    random_generator: np.random.Generator  # theirs

    class InitSchema(A.core.transforms_interface.BaseTransformInitSchema):  # type: ignore[misc]
        policy: str
        pool: Any
        mask_fill: int

    def __init__(self, policy: str, pool: Any = None, mask_fill: int = 0, p: float = 1.0):
        super().__init__(p=p)
        self.policy = policy
        self.mask_fill = mask_fill
        self.pool = pool
        self._found = Policy.from_json(policy)
        self._ours = _Ours(self._found)
        self._worker_seed: int | None = None

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """As of `policy.transform()`, for a policy with a schedule."""
        self._ours.set_epoch(epoch, epochs)

    if ALBUMENTATIONS_X:

        def sample_parameters(self, params: Any, data: Any, targets: Any, sampling: Any) -> Any:
            drawn = self._draw(sampling.random_generator, targets.require_aligned_spatial_shape(2))
            return A.core.transforms_interface.SampledParams(params=drawn)

    else:

        def get_params_dependent_on_data(self, params: dict[str, Any], data: Any) -> dict[str, Any]:
            return self._draw(self._chance(), params["shape"][:2])

        def _chance(self) -> np.random.Generator:
            """A loader's workers continue from one state, again in every epoch: each gets a generator of its own."""
            worker = get_worker_info()
            if worker is not None and worker.seed != self._worker_seed:
                self._worker_seed = worker.seed
                own = int(self.random_generator.integers(2**63))
                self.random_generator = np.random.default_rng([own, worker.seed])
            return self.random_generator

    def _draw(self, generator: np.random.Generator, size: Sequence[int]) -> dict[str, Any]:
        """What the `apply` methods are given."""
        plan = self._ours.plan
        deeds = plan.decode_one(generator.random(plan.width).tolist())
        return {"deeds": deeds, "height": size[0], "width": size[1]}

    def apply(self, img: Any, deeds: Sequence[Deed], **params: Any) -> Any:
        channels = img.shape[2] if img.ndim == 3 else 1
        if img.dtype != np.uint8 or channels not in (1, 3):
            raise ImageError(
                f"a policy is applied to uint8 images with 1 or 3 channels, got {img.dtype} {img.shape}: "
                "put it before A.Normalize and A.ToFloat"
            )
        image = Image.fromarray(img if channels == 3 else img.reshape(img.shape[:2]))
        self._ours.pool = self.pool
        return np.array(self._ours._pillow(image, deeds)).reshape(img.shape)

    def apply_to_mask(self, mask: Any, deeds: Sequence[Deed], **params: Any) -> Any:
        planes = torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.atleast_3d(mask), 2, 0)))
        moved = apply_mask(self._found, planes, deeds, self.mask_fill).numpy()
        return np.ascontiguousarray(np.moveaxis(moved, 0, 2)).reshape(mask.shape)

    def apply_to_bboxes(self, bboxes: Any, deeds: Sequence[Deed], **params: Any) -> Any:
        """Rows begin with x1, y1, x2, y2 in parts of the sides; the upright hull of each moved box."""
        if not len(bboxes):
            return bboxes
        width, height = params["width"], params["height"]
        side = torch.tensor([width, height, width, height], dtype=torch.float64)
        # they hold shares in float32: without what that adds, a box that only touches the border has no area left
        corners = (torch.as_tensor(bboxes[:, :4]).double() * side * _GRAIN).round() / _GRAIN
        # theirs is the last cut: what it takes away is what min_visibility counts
        moved = apply_boxes(self._found, corners, deeds, width, height, last=False) / side
        return np.concatenate([moved.numpy(), bboxes[:, 4:]], 1).astype(bboxes.dtype)

    def apply_to_keypoints(self, keypoints: Any, deeds: Sequence[Deed], **params: Any) -> Any:
        """In pixels, with 0 the centre of the first."""
        if not len(keypoints):
            return keypoints
        moved, places = keypoints.copy(), torch.as_tensor(keypoints[:, :2]).double() + 0.5
        moved[:, :2] = (apply_points(self._found, places, deeds, params["width"], params["height"]) - 0.5).numpy()
        return moved

    def get_transform_init_args(self) -> dict[str, Any]:
        return {"policy": self.policy, "mask_fill": self.mask_fill}  # a pool of images is no text


# --- theirs ----------------------------------------------------------------------------------------------------

Leaf = tuple[float, Any]  # a share, and a function of the leaf's p that makes the transform
_STEPS = 10  # a range of magnitudes that no native range can draw becomes so many single ones
_JITTER = {"contrast": "contrast", "color": "saturation", "brightness": "brightness"}


def tree(policy: Policy, mask_fill: int = 0) -> Any:
    """OneOf of sub-policies; each a Sequential of stages; each stage a OneOf of transforms (or nothing).

    Where the number of passes is drawn, so many of them one after the other.
    """
    policy = live(policy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = _pass(policy) if policy.strength.plain else _passes(policy)
        _fill_masks(made, mask_fill)
        again = A.to_dict(A.from_dict(json.loads(json.dumps(A.to_dict(made)))))
    if caught:
        raise ExportError(f"albumentations {A.__version__} would load the tree with a warning: {caught[0].message}")
    if json.dumps(again) != json.dumps(A.to_dict(made)):
        raise ExportError(f"albumentations {A.__version__} does not load the tree as it was saved")
    return made


def _fill_masks(made: Any, mask_fill: int) -> None:
    for part in getattr(made, "transforms", ()):
        _fill_masks(part, mask_fill)
    if isinstance(made, A.Affine | A.Rotate):
        made.fill_mask = float(mask_fill)  # as it is after loading


def _pass(policy: Policy) -> Any:
    total = sum(sub.weight for sub in policy.sub_policies)
    subs = [A.Sequential(_sub_policy(policy, sub), p=sub.weight / total) for sub in policy.sub_policies]
    return A.OneOf(subs, p=1.0)


def _passes(policy: Policy) -> Any:
    """A pass and, within it, the rest: each p is the chance of one more, given those before, so it takes no more trees
    than the largest number of passes.
    """
    shares = policy.strength.passes
    inner: list[Any] = []
    for number in range(policy.strength.most, 0, -1):
        one_more = min(1.0, sum(shares[number:]) / sum(shares[number - 1 :]))
        inner = [A.Sequential([_pass(policy), *inner], p=one_more)]
    return inner[0]


def _sub_policy(policy: Policy, sub: SubPolicy) -> list[Any]:
    stages = [stage for stage in (_stage(policy, stage) for stage in sub.stages) if stage is not None]
    return stages or [A.NoOp(p=1.0)]


def _stage(policy: Policy, stage: Stage) -> Any:
    """OneOf takes the members' p as weights and then applies the winner for certain, so the gates go into its own p."""
    total = sum(choice.weight for choice in stage)
    leaves = [
        (choice.weight / total * choice.probability * share, make)
        for choice in stage
        if choice.weight * choice.probability > 0
        for share, make in _leaves(policy, choice)
    ]
    leaves = [leaf for leaf in leaves if leaf[0] > 0]
    if len(leaves) <= 1:
        return leaves[0][1](leaves[0][0]) if leaves else None
    return A.OneOf([make(share) for share, make in leaves], p=min(1.0, sum(share for share, _ in leaves)))


def _leaves(policy: Policy, choice: Choice) -> Iterator[Leaf]:
    positive = POSITIVE[choice.sign]
    directions = [(1.0, positive), (-1.0, 1 - positive)] if find(choice.op).signed else [(1.0, 1.0)]
    for sign, share in directions:
        for part, make in _NATIVE[choice.op](policy, choice, sign):
            yield share * part, make


def _ends(policy: Policy, choice: Choice, sign: float) -> tuple[float, float]:
    """The smallest and largest physical value."""
    span = policy.span(choice.op)
    assert span is not None
    low, high = sorted(span.value(magnitude, sign) for magnitude in choice.range)
    return low, high


def _make(op: str, kind: str, **arguments: Any) -> Callable[[float], Any]:
    """A function of p. A parameter may be given as `old|new`: the name that the installed class knows is taken."""
    parameters = inspect.signature(getattr(A, kind).__init__).parameters
    named: dict[str, Any] = {}
    for names, value in arguments.items():
        fitting = [name for name in names.split("__or__") if name in parameters]
        if not fitting:
            raise ExportError(
                f"albumentations {A.__version__} cannot take the operation {op!r}: {kind} has no {names!r}; "
                "export without --native"
            )
        named[fitting[0]] = value

    def make(p: float) -> Any:
        try:
            return getattr(A, kind)(p=p, **named)
        except (ValueError, TypeError) as error:
            raise ExportError(
                f"albumentations {A.__version__} refuses {named} for the operation {op!r}: export without --native"
            ) from error

    return make


def _plain(kind: str, **arguments: Any) -> Callable[[Policy, Choice, float], Iterator[Leaf]]:
    def leaves(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
        yield 1.0, _make(choice.op, kind, **arguments)

    return leaves


def _jitter(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    still = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)}
    ranges = {**still, _JITTER[choice.op]: _ends(policy, choice, sign)}
    yield 1.0, _make(choice.op, "ColorJitter", **{f"{name}__or__{name}_range": v for name, v in ranges.items()})


def _solarize(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    """Thresholds above 255 leave the image alone, and a whole one must not be missed by a rounding."""
    low, high = _ends(policy, choice, sign)
    if low == high:
        low = high = math.ceil(low) - 0.5
    share = 1.0 if high <= 255 else max(0.0, (255 - low) / (high - low)) if high > low else 0.0
    if share > 0:
        ends = (max(0.0, low / 255), max(0.0, min(high, 255) / 255))
        yield share, _make(choice.op, "Solarize", threshold_range=ends)
    yield 1 - share, _make(choice.op, "NoOp")


def _posterize(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    low, high = _ends(policy, choice, sign)
    for bits in range(1, 9):
        from_, to = (-math.inf if bits == 1 else bits), (math.inf if bits == 8 else bits + 1)
        share = _overlap(low, high, from_, to)
        if share > 0:
            fewer_bits = _make(choice.op, "Posterize", num_bits__or__num_bits_range=(bits, bits))
            yield share, _make(choice.op, "NoOp") if bits == 8 else fewer_bits


def _overlap(low: float, high: float, start: float, end: float) -> float:
    """The share of [low, high] that lies in [start, end)."""
    if low == high:
        return float(start <= low < end)
    return max(0.0, min(high, end) - max(low, start)) / (high - low)


def _nearest(policy: Policy) -> dict[str, Any]:
    return {"interpolation": cv2.INTER_NEAREST, "mask_interpolation": cv2.INTER_NEAREST, "fill": policy.fill}


def _rotate(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    ends = _ends(policy, choice, sign)
    yield 1.0, _make(choice.op, "Rotate", limit__or__angle_range=ends, **_nearest(policy))


def _translate(axis: str) -> Callable[[Policy, Choice, float], Iterator[Leaf]]:
    def leaves(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
        low, high = _ends(policy, choice, sign)
        span = policy.span(choice.op)
        if span is not None and span.unit == "px":
            for first, last, share in _whole(low, high):
                pixels = {axis: (-last, -first), _other(axis): (0, 0)}
                yield share, _make(choice.op, "Affine", translate_px=pixels, **_nearest(policy))
        else:
            shift = {axis: (-high, -low), _other(axis): (0.0, 0.0)}
            yield 1.0, _make(choice.op, "Affine", translate_percent=shift, **_nearest(policy))

    return leaves


def _other(axis: str) -> str:
    return "y" if axis == "x" else "x"


def _whole(low: float, high: float) -> Iterator[tuple[int, int, float]]:
    """Uniform in [low, high] and then rounded: the two ends get parts of a pixel, what lies between is uniform."""
    first, last = math.floor(low + 0.5), math.floor(high + 0.5)
    if first == last:
        yield first, last, 1.0
        return
    yield first, first, _overlap(low, high, first - 0.5, first + 0.5)
    if last - first > 1:
        yield first + 1, last - 1, _overlap(low, high, first + 0.5, last - 0.5)
    yield last, last, _overlap(low, high, last - 0.5, last + 0.5)


def _values(policy: Policy, choice: Choice, sign: float) -> list[float]:
    """The value, or the middles of ten equal parts of a range."""
    low, high = _ends(policy, choice, sign)
    if low == high:
        return [low]
    return [low + (step + 0.5) / _STEPS * (high - low) for step in range(_STEPS)]


def _shear(axis: str) -> Callable[[Policy, Choice, float], Iterator[Leaf]]:
    def leaves(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
        """Theirs leaves the centre where it is, ours the corner: half the slope apart (on a square image)."""
        values = _values(policy, choice, sign)
        for v in values:
            angle = math.degrees(math.atan(v))
            turn = {axis: (angle, angle), _other(axis): (0.0, 0.0)}
            shift = {axis: (-v / 2, -v / 2), _other(axis): (0.0, 0.0)}
            yield 1 / len(values), _make(choice.op, "Affine", shear=turn, translate_percent=shift, **_nearest(policy))

    return leaves


def _sharpness(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    """Sharpen's kernel is Pillow's for this alpha; towards smooth, the Gaussian with the same centre."""
    values = _values(policy, choice, sign)
    for v in values:
        if v >= 1:
            alpha = (v - 1) / 13
            yield (
                1 / len(values),
                _make(
                    choice.op,
                    "Sharpen",
                    alpha__or__alpha_range=(alpha, alpha),
                    lightness__or__lightness_range=(1.0, 1.0),
                ),
            )
        else:
            sigma = _sigma(v)
            yield (
                1 / len(values),
                _make(
                    choice.op,
                    "GaussianBlur",
                    blur_limit__or__blur_range=(3, 3),
                    sigma_limit__or__sigma_range=(sigma, sigma),
                )
                if sigma > 0
                else _make(choice.op, "NoOp"),
            )


def _sigma(v: float) -> float:
    """Of the Gaussian over three pixels whose square has Pillow's centre; the widest is the mean of the nine."""
    inner = 1 - (1 - v) * 8 / 13
    if inner <= 1 / 9:
        raise ExportError(
            f"albumentations cannot blur as far as the operation 'sharpness' by {v:g} does (down to -0.44): "
            "export without --native"
        )
    centre = math.sqrt(inner)  # of each of the two passes
    return math.sqrt(-0.5 / math.log((1 - centre) / (2 * centre))) if centre < 1 else 0.0


def _cutout(policy: Policy, choice: Choice, sign: float) -> Iterator[Leaf]:
    """Theirs takes shares of the sides below 1. One level suits any number of channels, three are for RGB alone."""
    span = policy.span(choice.op)
    if span is not None and span.unit == "px":
        raise ExportError(
            f"albumentations {A.__version__} takes no hole in pixels (a span from {span.at_zero:g} to {span.at_one:g} "
            "px) for the operation 'cutout': export without --native"
        )
    low, high = _ends(policy, choice, sign)
    ends = (min(low, 0.999), min(high, 0.999))
    grey = policy.hole_fill[0] if len(set(policy.hole_fill)) == 1 else None
    yield (
        1.0,
        _make(
            choice.op,
            "CoarseDropout",
            num_holes_range=(1, 1),
            hole_height_range=ends,
            hole_width_range=ends,
            fill=policy.hole_fill if grey is None else grey,
        ),
    )


_NATIVE: dict[str, Callable[[Policy, Choice, float], Iterator[Leaf]]] = {
    "shear_x": _shear("x"),
    "shear_y": _shear("y"),
    "translate_x": _translate("x"),
    "translate_y": _translate("y"),
    "rotate": _rotate,
    "flip": _plain("HorizontalFlip"),
    "solarize": _solarize,
    "posterize": _posterize,
    "invert": _plain("InvertImg"),
    "auto_contrast": _plain("AutoContrast", method="pil", cutoff=0),
    # mode "pil" is Pillow's in AlbumentationsX; in 2.0.8 it is off by a bin, and OpenCV's formula is closer
    "equalize": _plain("Equalize", mode="pil" if ALBUMENTATIONS_X else "cv"),
    "contrast": _jitter,
    "color": _jitter,
    "brightness": _jitter,
    "sharpness": _sharpness,
    "cutout": _cutout,
}
