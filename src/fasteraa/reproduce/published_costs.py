"""What a method's published setting would cost here, extrapolated from what was measured in the folder of a table.

A training is one of WRN-40-2 with 4,000 images for 200 epochs, with several side by side on a GPU: its share of the
time. Steps, trials and trainings are those of the searches in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from fasteraa.errors import RunError
from fasteraa.methods.config import PAPER_EPOCHS
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.policy.policy import Policy
from fasteraa.runtime.documents import read_json, read_text
from fasteraa.runtime.run_folder import RunFolder

EPOCHS = 200  # of a training of the table
_POLICIES, _CHILD_EPOCHS = 15_000, 120  # of AutoAugment
_POPULATION = 16  # of PBA
_FOLDS, _TRAINED, _TRIALS = 5, 0.6, 200  # of Fast AutoAugment; the share of the images that train
_GRID = 15  # pairs of RandAugment's N and M
_BATCH, _DADA_HALF = 128, 0.5
IMAGES = 4_000


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds, None where nothing was measured."""

    training: float | None
    paper_step: float | None  # of faster-aa, as published
    default_step: float | None  # of faster-aa, by our defaults
    trial: float | None  # of fast-aa, while those of all folds share the device
    dada_step: float | None

    @classmethod
    def of(cls, file: Path) -> MeasuredCosts:
        """What was measured before and kept in a file, as `plain` has it; of searches that were packed it is all."""
        content = read_json(file) if file.exists() else {}
        names = [each.name for each in fields(cls)]
        values = {name: content.get(f"{name}_seconds") if isinstance(content, dict) else None for name in names}
        return cls(**{name: value if isinstance(value, int | float) else None for name, value in values.items()})

    def or_else(self, before: MeasuredCosts) -> MeasuredCosts:
        """With what was measured before in place of what was not measured now."""
        return MeasuredCosts(
            *(now if now is not None else then for now, then in zip(astuple(self), astuple(before), strict=True))
        )

    def plain(self) -> dict[str, Any]:
        return {f"{name}_seconds": value for name, value in vars(self).items()} | {
            "trials_per_minute": None if not self.trial else 60 / self.trial
        }


def hours(method: str, measured: MeasuredCosts) -> tuple[float, str] | None:
    """GPU hours of a published setting, and how they were extrapolated; None where what it needs was not measured."""
    extrapolated = _WAYS[method](measured) if method in _WAYS else None
    return None if extrapolated is None else (extrapolated[0] / 3600, f"extrapolated: {extrapolated[1]}")


def _autoaugment(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.training is None:
        return None
    child = seen.training * _CHILD_EPOCHS / EPOCHS
    return _POLICIES * child, f"{_POLICIES:,} trainings of {_CHILD_EPOCHS} epochs, {child:.1f} s each"


def _pba(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.training is None:
        return None
    return _POPULATION * seen.training, f"{_POPULATION} trainings of {EPOCHS} epochs, {seen.training:.1f} s each"


def _fast_aa(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.training is None or seen.trial is None:
        return None
    network = _TRAINED * seen.training
    words = f"{_FOLDS} trainings of {network:.1f} s and {_FOLDS * _TRIALS:,} trials of {seen.trial:.2f} s"
    return _FOLDS * (network + _TRIALS * seen.trial), words


def _faster_aa(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.paper_step is None:
        return None
    steps = IMAGES // _BATCH * PAPER_EPOCHS
    ours = "" if seen.default_step is None else f" (by our defaults {1000 * seen.default_step:.1f} ms)"
    return steps * seen.paper_step, f"{steps} steps of {1000 * seen.paper_step:.1f} ms{ours}"


def _dada(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.dada_step is None:
        return None
    steps = int(_DADA_HALF * IMAGES) // _BATCH * PAPER_EPOCHS
    return steps * seen.dada_step, f"{steps} steps of {1000 * seen.dada_step:.1f} ms"


def _randaugment(seen: MeasuredCosts) -> tuple[float, str] | None:
    if seen.training is None:
        return None
    return _GRID * seen.training, f"{_GRID} trainings of {EPOCHS} epochs, {seen.training:.1f} s each"


_WAYS: Mapping[str, Callable[[MeasuredCosts], tuple[float, str] | None]] = {
    "autoaugment": _autoaugment,
    "pba": _pba,
    "fast-aa": _fast_aa,
    "faster-aa": _faster_aa,
    "dada": _dada,
    "randaugment": _randaugment,
}


# --- what was measured -----------------------------------------------------------------------------------------------


def gradient_step(folder: Path) -> float | None:
    """Seconds of a step of the gradient search in a folder; its first epoch starts things, so it does not count."""
    run = GradientFiles.to_read(folder)
    if not (run.metrics.exists() and run.policy.exists()):
        return None
    provenance = Policy.load(run.policy).provenance
    steps_per_epoch = int(provenance["data"]["images"]) // int(provenance["config"]["batch_size"])
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    seconds = [float(json.loads(line)["seconds"]) for line in lines]
    if not seconds:
        return None
    whole = seconds[-1] - seconds[0] if len(seconds) > 1 else seconds[0]
    return whole / (max(len(seconds) - 1, 1) * steps_per_epoch)


def fast_aa_trial(folder: Path) -> float | None:
    """Seconds for each trial: the folds go side by side, so together they took as long as the longest."""
    files = sorted(RunFolder(folder).of_method("fast-aa").rglob("*.jsonl"))
    folds = [[float(json.loads(line)["seconds"]) for line in read_text(file, RunError).splitlines()] for file in files]
    count = sum(map(len, folds))
    return max(map(sum, folds)) / count if count else None


def dada_step(folder: Path) -> float | None:
    """The mean of all folds."""
    file = RunFolder(folder).race / "schedule.json"
    decided = read_json(file) if file.exists() else {}
    folds = [value for name, value in decided.items() if name.startswith("dada/") and value.get("steps")]
    return fmean(fold["seconds"] / fold["steps"] for fold in folds) if folds else None
