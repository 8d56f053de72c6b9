"""Exporters as a person would use them: images go in, what the exported object makes of them comes out.

`distance` measures how far an exported operation is from ours; the tables in `fasteraa.export.fidelity` are held to it.
"""

from __future__ import annotations

import itertools
import runpy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fasteraa.export import TARGETS, write
from fasteraa.ops import Op, Pair, hard_pillow
from fasteraa.policy.policy import Choice, Policy, SubPolicy
from fasteraa.testing.ops import KINDS, picture

Array = Any  # uint8 (H, W, 3)
Run = Callable[[Policy, list[Array], list[Array] | None], list[Array]]
FILL, HOLE_FILL = (9, 200, 30), (7, 1, 99)
SIZES = ((32, 32), (47, 33), (64, 64))


def through(target: str, policy: Policy, images: list[Array], pool: list[Array] | None = None) -> list[Array]:
    """Each image once through the exported policy."""
    return RUN[target](policy, images, pool)


def exported_file(policy: Policy, target: str) -> dict[str, Any]:
    """The names in the Python file that the exporter writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.py"
        write(policy, target, path)
        return runpy.run_path(str(path))


def _by_pillow(augment: Callable[[Image.Image], Image.Image], images: list[Array]) -> list[Array]:
    return [np.asarray(augment(Image.fromarray(image))) for image in images]


def _pillows(pool: list[Array] | None) -> list[Image.Image] | None:
    return None if pool is None else [Image.fromarray(image) for image in pool]


def _torchvision(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    return _by_pillow(policy.to_torchvision(pool=_pillows(pool)), images)


def _timm(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    return _by_pillow(policy.to_timm(pool=_pillows(pool)), images)


def _python(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    return _by_pillow(exported_file(policy, "python")["Augment"](pool=_pillows(pool)), images)


def _albumentations(policy: Policy, images: list[Array], pool: list[Array] | None, native: bool = False) -> list[Array]:
    made = policy.to_albumentations(native=native, pool=_pillows(pool))
    seed_apart(made, itertools.count(1))
    return [made(image=image)["image"] for image in images]


def seed_apart(transform: Any, seeds: Iterator[int]) -> None:
    """A seed for every part. A.Compose(seed=...) gives all of them the same one, so that their draws agree."""
    if not hasattr(transform, "set_random_seed"):
        return  # ColorJitter's parts are functions
    transform.set_random_seed(next(seeds))
    for part in getattr(transform, "transforms", ()):
        seed_apart(part, seeds)


def _albumentations_native(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    return _albumentations(policy, images, pool, native=True)


def _batches(images: list[Array], pool: list[Array] | None) -> Iterator[tuple[Any, int]]:
    """Runs of images of one size, with the pool behind them (partners are members of the batch), and their number."""
    for _, run in itertools.groupby(images, key=lambda image: image.shape):
        members = list(run)
        yield np.stack([*members, *(pool or [])]), len(members)


def _kornia(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    module = policy.to_kornia()
    seen: list[Array] = []
    for batch, count in _batches(images, pool):
        out = module(torch.from_numpy(batch).permute(0, 3, 1, 2) / 255).permute(0, 2, 3, 1)
        seen += list((out * 255).round().to(torch.uint8).numpy()[:count])
    return seen


def _keras(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    layer = policy.to_keras(seed=3)
    seen: list[Array] = []
    for batch, count in _batches(images, pool):
        seen += list(layer(batch, training=True).cpu().numpy()[:count])
    return seen


def _dali(policy: Policy, images: list[Array], pool: list[Array] | None) -> list[Array]:
    augment = policy.to_dali()
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.auto_aug import auto_augment

    @pipeline_def(batch_size=len(images), num_threads=1, device_id=None, enable_conditionals=True, seed=11)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        data = fn.external_source(source=lambda: images, layout="HWC")
        return auto_augment.apply_auto_augment(augment, data)

    made = pipeline()
    made.build()
    (out,) = made.run()
    return [np.array(out[index]) for index in range(len(images))]


NATIVE = "albumentations --native"
RUN: dict[str, Run] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "albumentations": _albumentations,
    NATIVE: _albumentations_native,
    "kornia": _kornia,
    "dali": _dali,
    "keras": _keras,
    "python": _python,
}
PACKAGES: dict[str, str | None] = {name: TARGETS[name.split()[0]] for name in RUN}


# --- how far from ours -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    largest: int  # levels, over all test pictures
    average: float  # levels, over the smooth ones


def single(row: Op, magnitude: float = 0.0, sign: str | None = None, **settings: Any) -> Policy:
    """The operation, always."""
    choice = Choice(row.name, 1.0, magnitude if row.span else None, sign=sign)
    return Policy((SubPolicy(((choice,),)),), fill=FILL, hole_fill=HOLE_FILL, **settings)


def settings(row: Op, magnitudes: Sequence[float]) -> Iterator[tuple[float, str | None]]:
    for magnitude in magnitudes if row.span else [0.0]:
        for sign in ("+", "-") if row.signed else (None,):
            yield magnitude, sign


def test_pictures() -> list[Array]:
    return [picture(kind, *size) for size in SIZES for kind in KINDS if kind != "greyscale"]


def distance(
    target: str, row: Op, magnitudes: Sequence[float], policy_settings: dict[str, Any] | None = None
) -> Distance:
    """Of an operation that leaves nothing to chance once its magnitude and sign are given."""
    images = test_pictures()
    smooth = [index for index in range(len(images)) if index % (len(KINDS) - 1) == KINDS.index("smooth")]
    largest, averages = 0, []
    for magnitude, sign in settings(row, magnitudes):
        policy = single(row, magnitude, sign, **(policy_settings or {}))
        pair = Pair(None, (0.5, 0.5), policy.fill, policy.hole_fill)
        turn = -1.0 if sign == "-" else 1.0
        ours = [hard_pillow(row, Image.fromarray(i), magnitude, turn, pair, policy.spans) for i in images]
        gaps = [
            np.abs(np.asarray(a).astype(int) - b) for a, b in zip(ours, through(target, policy, images), strict=True)
        ]
        largest = max(largest, *(int(gap.max()) for gap in gaps))
        averages += [float(gaps[index].mean()) for index in smooth]
    return Distance(largest, sum(averages) / len(averages))
