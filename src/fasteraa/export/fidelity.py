"""How faithful each target is, operation by operation. tests/export/test_every_target.py measures every line here.

A target that applies our own code is exact for every operation, also for one that was added yesterday. A target that
must do with another library's operations has a row for each that it can do; others are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fasteraa.errors import ExportError, choices_hint
from fasteraa.ops import OPS
from fasteraa.policy.policy import Policy, Strength, SubPolicy


@dataclass(frozen=True)
class Fidelity:
    """How far a target's pixels may be from ours.

    exact: the same bits. within: no pixel of the test pictures is further off than `levels`. approximate: on smooth
    pictures the levels differ by at most `levels` on average. unsupported: the exporter refuses.
    """

    kind: str
    levels: float = 0
    note: str = ""  # why, or what to do instead

    def __str__(self) -> str:
        words = f"within {self.levels} level{'s' * (self.levels > 1)}" if self.kind == "within" else self.kind
        words += f": {self.levels:g} levels on average" if self.kind == "approximate" and self.levels else ""
        return f"{words} ({self.note})" if self.note else words


EXACT = Fidelity("exact")
OURS = Fidelity("exact", note="by fasteraa")
POOL = Fidelity("exact", note="partners: the last 64 images, or a pool")
UP_TO_128 = Fidelity("exact", note="up to 128 pixels; beyond, under 1% look at a neighbour")
PARTNERS_IN_BATCH = Fidelity("exact", note="partners come from the batch")


def within(levels: int, note: str = "") -> Fidelity:
    return Fidelity("within", levels, note=note)


def approximate(levels: float, note: str) -> Fidelity:
    return Fidelity("approximate", levels, note)


def unsupported(note: str) -> Fidelity:
    return Fidelity("unsupported", note=note)


@dataclass(frozen=True)
class Coverage:
    ops: Mapping[str, Fidelity]
    others: Fidelity  # operations without a row
    no_schedule: str = ""  # why it cannot follow the epochs of a training; empty if it can


_TIMM = (
    "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "solarize", "posterize", "invert", "auto_contrast",
    "equalize", "contrast", "color", "brightness", "sharpness",
)  # fmt: skip
_PILLOW_FILE = unsupported("write its Pillow code into fasteraa/export/_standalone.py")
_NO_PARTNERS = unsupported("there is no second image")
COVERAGE: dict[str, Coverage] = {
    "torchvision": Coverage({"sample_pairing": POOL}, EXACT),
    "timm": Coverage({**dict.fromkeys(_TIMM, EXACT), "sample_pairing": POOL}, OURS),
    "albumentations": Coverage({"sample_pairing": POOL}, EXACT),
    "albumentations --native": Coverage(
        {
            **dict.fromkeys(("flip", "invert", "solarize", "posterize", "brightness"), EXACT),
            "contrast": within(1),
            "color": within(2),
            "rotate": approximate(0.005, "a few pixels find another neighbour"),
            "translate_x": approximate(2, "up to a pixel less; exact for spans in pixels"),
            "translate_y": approximate(2, "up to a pixel less; exact for spans in pixels"),
            "shear_x": approximate(6, "up to a pixel off on square images, more on others"),
            "shear_y": approximate(6, "up to a pixel off on square images, more on others"),
            "auto_contrast": approximate(3, "rounds, and overlooks level 255"),
            "equalize": approximate(14, "OpenCV's formula"),
            "sharpness": approximate(0.05, "another blur, other borders"),
            "cutout": approximate(0, "never over the border; square on square images; grey ones need a grey hole_fill"),
        },
        unsupported("export without --native"),
        "a tree of its own transforms knows no epoch: export without --native",
    ),
    "kornia": Coverage({"sample_pairing": PARTNERS_IN_BATCH}, EXACT),
    "dali": Coverage(
        {
            **dict.fromkeys((op for op in (*_TIMM, "flip", "cutout") if op != "equalize"), EXACT),
            **dict.fromkeys(("shear_x", "shear_y", "rotate"), UP_TO_128),
            "equalize": approximate(14, "OpenCV's formula"),
            "sample_pairing": _NO_PARTNERS,
        },
        unsupported("augment with kornia's target after DALI's decoding"),
        "its pipeline is built once, for all epochs: augment with kornia's target after DALI's decoding",
    ),
    "keras": Coverage({"sample_pairing": PARTNERS_IN_BATCH}, EXACT),
    "python": Coverage({**dict.fromkeys((*_TIMM, "flip", "cutout"), EXACT), "sample_pairing": POOL}, _PILLOW_FILE),
    "json": Coverage({}, EXACT),
}


def fidelity_of(op: str, target: str) -> Fidelity:
    if target not in COVERAGE:
        raise ExportError(f"unknown target {target!r}: {choices_hint(target, COVERAGE)}")
    coverage = COVERAGE[target]
    return coverage.ops.get(op, coverage.others)


def live(policy: Policy) -> Policy:
    """What can happen, for a target that knows nothing of our strengths: the scales are worked into the choices, only
    the passes remain; sub-policies that are never drawn are left out, all of them where no image passes through any.
    """
    if not policy.strength.most:
        return replace(policy, sub_policies=(SubPolicy(()),), strength=Strength())
    scaled = policy.scaled()
    return replace(scaled, sub_policies=tuple(sub for sub in scaled.sub_policies if sub.weight > 0))


def check(policy: Policy, target: str) -> dict[str, Fidelity]:
    """The fidelity of each operation of the policy; raises if there is one that the target cannot do."""
    fidelities = {op: fidelity_of(op, target) for op in live(policy).ops}
    if policy.scheduled and (why := COVERAGE[target].no_schedule):
        raise ExportError(
            f"{target} cannot follow the schedule of the policy: {why}; or export policy.flattened(), its mean"
        )
    for op, fidelity in fidelities.items():
        if fidelity.kind == "unsupported":
            raise ExportError(
                f"{target} cannot do the operation {op!r}: {fidelity.note}; or leave it out: --without {op}"
            )
    return fidelities


def lines(policy: Policy, target: str) -> list[str]:
    """`rotate: exact`, a line for each operation of the policy."""
    return [f"{op}: {fidelity}" for op, fidelity in check(policy, target).items()]


def table() -> tuple[list[str], list[list[str]]]:
    """Operations by targets, for the docs: the heading and the rows."""
    targets = [target for target in COVERAGE if target != "json"]
    return ["operation", *targets], [[op, *(str(fidelity_of(op, target)) for target in targets)] for op in OPS]
