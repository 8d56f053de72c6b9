"""What a run folder holds, read for the report. The run may not have ended, and the folder may be a stranger's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fasteraa.comparison.table import Comparison
from fasteraa.errors import ConfigError, RunError, reason
from fasteraa.methods.config import OBJECTIVES, RENAMED, SearchConfig, make_config, read_config, read_tables
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.methods.faster_aa.step import soft_policy
from fasteraa.ops import select
from fasteraa.policy.policy import Policy
from fasteraa.report.comparison import read_comparison
from fasteraa.report.outputs import PREVIEW_OF, about_digest, race_digest
from fasteraa.runtime.documents import MOST_BYTES, parse_json, quoted, read_bytes, read_json
from fasteraa.runtime.files import unsealed
from fasteraa.runtime.run_folder import RunFolder

METRICS = ("distance", "penalty", "class_loss", "policy_class_loss", "change", "from_start", "seconds")
SEARCH, RACE, COMPARE = "search", "race", "compare"  # the command that made the folder
SEARCHING, RACING, COMPARING, EARLY, FINISHED = "searching", "racing", "comparing", "ended early", "finished"


@dataclass(frozen=True)
class RunSetup:
    """What config.toml says."""

    config: SearchConfig | None = None
    methods: tuple[str, ...] = ()
    text: str | None = None
    old: bool = False  # of version 0.1: it is shown, and cannot be given to a command

    @property
    def gradient(self) -> bool:
        """Whether there was to be a gradient search; version 0.1 had nothing else."""
        return "faster-aa" in self.methods or (not self.methods and self.text is not None)


@dataclass(frozen=True)
class RunRecord:
    folder: Path
    kind: str  # search, race or compare
    state: str  # one of the five above
    setup: RunSetup
    start: Policy | None
    gradient: Policy | None  # of the gradient search; while that runs, what it has so far
    policy: Policy | None  # what is to be used
    result: Mapping[str, Any]  # result.json; empty if there is none for this policy
    trainings: int  # of the race, that are finished
    metrics: tuple[Mapping[str, float], ...]  # an epoch each
    planned: int  # epochs that the gradient search was to take
    masses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # operation -> how often a stage applies it, at the start and epoch by epoch
    comparison: Comparison | None = None
    per_op: str | None = None  # Markdown
    preview: bytes | None = None  # PNG
    asked_for: Mapping[str, str | None] = field(default_factory=dict)  # source.json

    @property
    def config(self) -> SearchConfig | None:
        return self.setup.config

    @property
    def by_gradient(self) -> bool:
        """Whether a gradient search was asked for, or left something here."""
        return self.setup.gradient or bool(self.start or self.gradient or self.metrics)


def read_run(path: Path, comparison: Path | None = None) -> RunRecord:
    """Missing pieces are left out, damaged ones are an error."""
    folder = RunFolder(path)
    check_is_run(folder)
    if comparison is not None and not (comparison / "comparison.json").is_file():
        raise RunError(f"the folder {str(comparison)!r} holds no comparison.json (--comparison): see fasteraa compare")
    files = GradientFiles.to_read(path)
    setup = _setup(folder)
    checkpoint = _checkpoint(files, setup)  # before the metrics, which may become more at any time
    metrics = _metrics(files.metrics)
    _check_metrics(files, metrics, checkpoint)
    start, policy, gradient = _policy(files.start), _policy(folder.policy), _gradient(files)
    table = _comparison(path if comparison is None else comparison)
    state = _state(folder, setup, policy, gradient, len(metrics), table)
    trajectory = _trajectory(files, setup.config, checkpoint)
    if setup.config is not None and trajectory is not None and (gradient is None or state == SEARCHING):
        gradient = soft_policy(setup.config, trajectory[-1]).freeze("what the search has so far")
    return RunRecord(
        folder=path,
        kind=_kind(folder, setup),
        state=state,
        setup=setup,
        start=start,
        gradient=gradient,
        policy=policy,
        result=_result(folder, policy),
        trainings=_trainings(folder),
        metrics=metrics,
        planned=_planned(setup, start) or len(metrics),
        masses={} if setup.config is None or trajectory is None else _masses(setup.config, trajectory),
        comparison=table,
        per_op=_text((path if comparison is None else comparison) / "per_op.md"),
        preview=_preview(folder, policy),
        asked_for=folder.asked_for(),
    )


def check_is_run(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise RunError(f"a report needs the folder of a run, got {str(folder.path)!r}, which is no folder")
    files = (folder.config, folder.policy, folder.scores, folder.path / "comparison.json")
    if not any(file.exists() for file in files):
        raise RunError(
            f"the folder {str(folder.path)!r} is no run folder: it holds no config.toml, no policy.json and no "
            "comparison.json"
        )


def status(path: Path) -> dict[str, Any]:
    """How far the run is, and a word that changes whenever the page would."""
    folder = RunFolder(path)
    check_is_run(folder)
    files = GradientFiles.to_read(path)
    setup, done = _setup(folder), len(_metrics(files.metrics))
    state = _state(folder, setup, _policy(folder.policy), _gradient(files), done, _comparison(path))
    planned = _planned(setup, _policy(files.start)) or done
    return {"state": state, "epochs": done, "planned": planned, "version": version(path)}


def version(path: Path) -> str:
    run, files = RunFolder(path), GradientFiles.to_read(path)
    search = (run.config, run.policy, run.summary, run.preview)
    gradient = (files.metrics, files.checkpoint, files.start, files.policy)
    race = (run.result, run.scores, run.race / "schedule.json", run.race / "runs")
    beside = (*race, path / "comparison.json", path / "per_op.md")
    return hashlib.sha256(repr([_stamp(file) for file in (*search, *gradient, *beside)]).encode()).hexdigest()[:16]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:  # not there, or not any more
        return None
    return status.st_mtime_ns, status.st_size


# --- what kind of run, and how far it is -----------------------------------------------------------------------


def _setup(folder: RunFolder) -> RunSetup:
    if not folder.config.exists():
        return RunSetup(methods=("given",)) if folder.scores.is_dir() else RunSetup()  # by somebody's own training
    tables, text = read_tables(folder.config), _text(folder.config)
    if "run" not in tables and not folder.methods.is_dir():
        return RunSetup(make_config(_settings_of_version_01(tables)), (), text, old=True)
    config = make_config(read_config(folder.config))
    folder.check_settings(tables)
    run = tables.get("run")
    methods = run.get("methods") if isinstance(run, dict) else None
    names = tuple(map(str, methods)) if isinstance(methods, list) else ()
    return RunSetup(config, names, text)


def _settings_of_version_01(tables: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of today, and without what is gone."""
    given = tables.get("search", tables)
    if not isinstance(given, Mapping):
        raise ConfigError(f"[search] must be a table of settings, got search = {quoted(given)}")
    settings: dict[str, Any] = {
        RENAMED.get(str(name), str(name)): value for name, value in given.items() if name != "allowance"
    }
    if settings.get("objective") not in OBJECTIVES:
        settings.pop("objective", None)
    return settings


def _kind(folder: RunFolder, setup: RunSetup) -> str:
    if setup.text is None and not setup.methods and not folder.policy.exists():
        return COMPARE
    return RACE if setup.methods == ("given",) else SEARCH


def _state(
    folder: RunFolder,
    setup: RunSetup,
    policy: Policy | None,
    gradient: Policy | None,
    epochs: int,
    comparison: Comparison | None,
) -> str:
    """A run writes its policy when it ends. The gradient search writes its own before the race; one that was resumed
    has more epochs behind it than that policy shows.
    """
    kind = _kind(folder, setup)
    if kind == COMPARE:
        return COMPARING if comparison is not None and comparison.missing else FINISHED
    latest = gradient or policy
    done = latest.provenance.get("epochs") if latest is not None else None
    if isinstance(done, int) and epochs > done:
        return SEARCHING
    if policy is None:
        return RACING if folder.race.is_dir() or not setup.gradient else SEARCHING
    if _races_again(folder):
        return RACING
    return EARLY if policy.provenance.get("finished") is False else FINISHED


def _races_again(folder: RunFolder) -> bool:
    """A race that had less time is run again, next to the policy that it chose: it is not over, and the last to be
    written.
    """
    file = folder.race / "schedule.json"
    try:
        over = read_json(file).get("setup", {}).get("over", False) if file.is_file() else False
    except (RunError, AttributeError):  # not ours
        return False
    written, ended = _stamp(file), _stamp(folder.summary)
    return written is not None and not over and (ended is None or written[0] > ended[0])


def _planned(setup: RunSetup, start: Policy | None) -> int | None:
    """Epochs of the gradient search: as asked for, or as it decided when it knew the images."""
    if setup.config is not None and setup.config.epochs is not None:
        return setup.config.epochs
    config = start.provenance.get("config") if start is not None else None
    epochs = config.get("epochs") if isinstance(config, Mapping) else None
    return epochs if type(epochs) is int else None


def _trainings(folder: RunFolder) -> int:
    own = sum(not file.name.startswith(".") for file in (folder.race / "runs").glob("*.json"))
    return own + sum(1 for _ in folder.scores.glob("*/result.json"))


# --- files -----------------------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes | None:
    try:
        return read_bytes(path, MOST_BYTES) if path.is_file() else None
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise RunError(f"{str(path)!r} could not be read: {why}") from error


def _text(path: Path) -> str | None:
    content = _bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def _preview(folder: RunFolder, policy: Policy | None) -> bytes | None:
    """Of another policy than the one that is there it shows nothing."""
    content = _bytes(folder.preview)
    _, mark, after = (content or b"").partition(b"tEXt" + PREVIEW_OF.encode() + b"\0")
    fits = policy is None or not mark or after.startswith(policy.hash.encode())
    return content if fits else None


def _policy(path: Path) -> Policy | None:
    return Policy.load(path) if path.exists() else None


def _gradient(files: GradientFiles) -> Policy | None:
    """Version 0.1 called it found.json."""
    return _policy(files.policy) or _policy(files.run / "found.json")


def _comparison(folder: Path) -> Comparison | None:
    file = folder / "comparison.json"
    return read_comparison(file) if file.is_file() else None


def _result(folder: RunFolder, policy: Policy | None) -> dict[str, Any]:
    """Of another policy than the one that is there, or of another race that chose it, it says nothing."""
    if policy is None or not folder.result.is_file():
        return {}
    content = read_json(folder.result)
    try:
        result = unsealed(content)
    except ValueError as error:
        raise RunError(
            f"{str(folder.result)!r} is damaged ({error}): continue the run (resume=True) to write it again"
        ) from error
    if result.get("policy") != policy.hash:
        return {}
    if "about" not in result:  # of an earlier version
        return result if result.get("race") in (None, race_digest(policy)) else {}
    about = about_digest(policy)
    if about == result["about"]:
        return result
    if about == result.get("before"):  # a kill left the policy that was to be replaced
        return {}
    raise RunError(
        f"{str(folder.policy)!r} is damaged (its name or provenance does not match the digest in result.json): "
        "continue the run (resume=True) to write it again"
    )


def _metrics(path: Path) -> tuple[dict[str, float], ...]:
    """The last line may be cut off: the run writes while we read, or was killed while it wrote."""
    lines = (_text(path) or "").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        row = _epoch(line, number)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise RunError(f"line {number} of {str(path)!r} is no epoch of a search: {quoted(line, 60)}")
    return tuple(rows)


def _epoch(line: str, number: int) -> dict[str, float] | None:
    try:
        row = parse_json(line)
        return _numbers(row) if row.get("epoch", number) == number else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RunError):
        return None


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in METRICS if math.isfinite(float(row[name]))}


# --- the trajectory --------------------------------------------------------------------------------------------


def _checkpoint(files: GradientFiles, setup: RunSetup) -> Mapping[str, Any]:
    if setup.config is None:
        return {}
    return files.load_checkpoint(torch.device("cpu"), mmap=True, sealed=not setup.old) or {}


def _check_metrics(files: GradientFiles, metrics: Sequence[Mapping[str, float]], checkpoint: Mapping[str, Any]) -> None:
    """The checkpoint is sealed, and knows the epochs before it."""
    if "epochs" not in checkpoint or not files.metrics.exists():
        return
    try:
        known = [_numbers(row) for row in checkpoint["epochs"]]
    except (ValueError, KeyError, TypeError, OverflowError):  # a stranger's
        known = None
    if known is None or known != list(metrics[: len(known)]):
        raise RunError(
            f"{str(files.metrics)!r} is damaged (its epochs are not those of the checkpoint beside it): continue the "
            "run (resume=True) to write it again"
        )


def _trajectory(files: GradientFiles, config: SearchConfig | None, checkpoint: Mapping[str, Any]) -> Tensor | None:
    """(epochs + 1, 3, L, K, N): choice, probability and magnitude at the start and after every epoch."""
    if config is None or "trajectory" not in checkpoint:
        return None
    shape = (3, config.sub_policies, config.operation_count, len(select(config.ops)))
    trajectory = checkpoint["trajectory"]
    fits = isinstance(trajectory, Tensor) and trajectory.ndim == 5 and tuple(trajectory.shape[1:]) == shape
    if not fits or not len(trajectory) or not trajectory.is_floating_point() or not bool(trajectory.isfinite().all()):
        raise RunError(f"the checkpoint {str(files.checkpoint)!r} does not fit the settings in config.toml")
    return torch.as_tensor(trajectory, dtype=torch.float32).clone()


def _masses(config: SearchConfig, trajectory: Tensor) -> dict[str, tuple[float, ...]]:
    shares = (trajectory[:, 0] / config.choice_temperature).softmax(-1)
    applied = (shares * trajectory[:, 1].clamp(0, 1)).mean((1, 2))
    columns = applied.T.tolist()
    return {row.name: tuple(column) for row, column in zip(select(config.ops), columns, strict=True)}
