"""What a run folder tells, read for the report. The folder may be of a run that has not ended, or from a stranger."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fasteraa.comparison.table import Comparison
from fasteraa.errors import RunError, reason
from fasteraa.methods.config import SearchConfig, make_config, read_config
from fasteraa.methods.faster_aa.step import soft_policy
from fasteraa.ops import select
from fasteraa.policy.policy import Policy
from fasteraa.report.comparison import read_comparison
from fasteraa.runtime.run_folder import RunFolder

METRICS = ("distance", "penalty", "class_loss", "policy_class_loss", "change", "from_start", "seconds")
SEARCHING, RACING, EARLY, FINISHED = "searching", "racing", "ended early", "finished"


@dataclass(frozen=True)
class RunRecord:
    folder: Path
    state: str  # one of the four above
    config: SearchConfig | None
    config_text: str | None
    start: Policy | None
    found: Policy | None  # what the search found; of a run that has not ended, what it has so far
    policy: Policy | None  # what is to be used, after the race
    metrics: tuple[Mapping[str, float], ...]  # an epoch each
    masses: Mapping[
        str, tuple[float, ...]
    ]  # operation -> how often a stage applies it, at the start and epoch by epoch
    comparison: Comparison | None
    harm: str | None  # Markdown
    preview: bytes | None  # PNG
    asked_for: Mapping[str, str | None]  # source and data_root, as the run was given them; empty if unknown

    @property
    def planned(self) -> int:
        """Epochs that the run was to take."""
        return (self.config.epochs if self.config is not None else None) or len(self.metrics)


def read_run(path: Path, comparison: Path | None = None) -> RunRecord:
    """Missing pieces are left out, damaged ones are an error."""
    folder = RunFolder(path)
    check_is_run(folder)
    config = make_config(read_config(folder.config)) if folder.config.exists() else None
    metrics = _metrics(folder.metrics)
    start, policy, found = (_policy(file) for file in (folder.start, folder.policy, folder.gradient))
    trajectory = _trajectory(folder, config)
    if config is not None and trajectory is not None and policy is None:
        found = soft_policy(config, trajectory[-1]).freeze("what the search has so far")
    beside = path if comparison is None else comparison
    if comparison is not None and not (comparison / "comparison.json").is_file():
        raise RunError(f"the folder {str(comparison)!r} holds no comparison.json (--comparison): see fasteraa compare")
    return RunRecord(
        folder=path,
        state=_state(folder, policy, len(metrics)),
        config=config,
        config_text=_text(folder.config),
        start=start,
        found=found or policy,
        policy=policy,
        metrics=metrics,
        masses={} if config is None or trajectory is None else _masses(config, trajectory),
        comparison=read_comparison(beside / "comparison.json") if (beside / "comparison.json").is_file() else None,
        harm=_text(beside / "per_op.md"),
        preview=_bytes(folder.preview),
        asked_for=folder.asked_for(),
    )


def check_is_run(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise RunError(f"a report needs the folder of a run, {str(folder.path)!r} is none")
    if not folder.config.exists() and not folder.policy.exists():
        raise RunError(
            f"the folder {str(folder.path)!r} is no run folder: it holds neither config.toml nor policy.json"
        )


def status(path: Path) -> dict[str, Any]:
    """How far the run is, and a word that changes whenever the page would."""
    folder = RunFolder(path)
    check_is_run(folder)
    done = len(_metrics(folder.metrics))
    planned = make_config(read_config(folder.config)).epochs if folder.config.exists() else None
    state = _state(folder, _policy(folder.policy), done)
    return {"state": state, "epochs": done, "planned": planned or done, "version": version(path)}


def version(path: Path) -> str:
    run = RunFolder(path)
    files = (run.config, run.metrics, run.checkpoint, run.start, run.policy, run.gradient, run.summary, run.preview)
    return hashlib.sha256(repr([_stamp(file) for file in files]).encode()).hexdigest()[:16]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:  # not there, or not any more
        return None
    return found.st_mtime_ns, found.st_size


def _state(folder: RunFolder, policy: Policy | None, epochs: int) -> str:
    """A search writes its policy when it ends, and the summary after the race. One that was resumed has more epochs
    behind it than the policy of its first part tells.
    """
    if policy is None:
        return SEARCHING
    behind = policy.provenance.get("epochs")
    if isinstance(behind, int) and epochs > behind:
        return SEARCHING
    if not folder.summary.exists() and folder.race.is_dir():
        return RACING
    return EARLY if policy.provenance.get("finished") is False else FINISHED


# --- files -----------------------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise RunError(f"{str(path)!r} could not be read: {reason(error)}") from error


def _text(path: Path) -> str | None:
    content = _bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def _policy(path: Path) -> Policy | None:
    return Policy.load(path) if path.exists() else None


def _metrics(path: Path) -> tuple[dict[str, float], ...]:
    """The last line may be cut off: the run writes while we read, or was killed while it wrote."""
    lines = (_text(path) or "").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        row = _epoch(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise RunError(f"line {number} of {str(path)!r} is no epoch of a search: {line[:60]!r}")
    return tuple(rows)


def _epoch(line: str) -> dict[str, float] | None:
    try:
        row = json.loads(line)
        return {name: float(row[name]) for name in METRICS if math.isfinite(float(row[name]))}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


# --- the trajectory --------------------------------------------------------------------------------------------


def _trajectory(folder: RunFolder, config: SearchConfig | None) -> Tensor | None:
    """(epochs + 1, 3, L, K, N): choice, probability and magnitude at the start and after every epoch."""
    if config is None:
        return None
    state = folder.load_checkpoint(torch.device("cpu"))
    if state is None or "trajectory" not in state:
        return None
    shape = (3, config.sub_policies, config.operation_count, len(select(config.ops)))
    trajectory = state["trajectory"]
    if not isinstance(trajectory, Tensor) or trajectory.ndim != 5 or tuple(trajectory.shape[1:]) != shape:
        raise RunError(f"the checkpoint {str(folder.checkpoint)!r} does not fit the settings in config.toml")
    return trajectory.float()


def _masses(config: SearchConfig, trajectory: Tensor) -> dict[str, tuple[float, ...]]:
    shares = (trajectory[:, 0] / config.choice_temperature).softmax(-1)
    applied = (shares * trajectory[:, 1].clamp(0, 1)).mean((1, 2))
    columns = applied.T.tolist()
    return {row.name: tuple(column) for row, column in zip(select(config.ops), columns, strict=True)}
