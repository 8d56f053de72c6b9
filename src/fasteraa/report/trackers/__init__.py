"""The numbers of a run for other programs: TensorBoard, Weights & Biases, MLflow, or a tracker of your own.

>>> with track("wandb", "mlflow", folder="run", config=config) as tracking:
...     fasteraa.search("photos/", config, out="run", progress=tracking)
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.report.trackers.tracking import Ending, Opening, Tracker, Tracking
from fasteraa.runtime.progress import Progress

# name -> the class behind it, in the module of that name; the extra that brings its package has that name, too
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow"}
__all__ = ["TRACKERS", "Ending", "Opening", "Tracker", "Tracking", "track"]


def track(
    *trackers: str | Tracker,
    folder: str | Path,
    config: Any = None,
    kind: str = "search",
    progress: Progress | None = None,
    resume: bool = False,
) -> Tracking:
    """Names of trackers, or trackers of your own, as one progress; what cannot work is refused here, before work.

    `folder` is that of the run: what lies there at the end (policy, preview, summary) goes to the trackers. `config` is
    a SearchConfig or a mapping; `progress` is shown beside; `resume` continues the runs of the folder.
    """
    made = [_make(each) if isinstance(each, str) else each for each in dict.fromkeys(trackers)]
    return Tracking(made, Opening(Path(folder), kind, config, resume), progress)


def _make(name: str) -> Tracker:
    if name not in TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}: {choices_hint(name, TRACKERS)}")
    try:
        made: Tracker = getattr(import_module(f"fasteraa.report.trackers.{name}"), TRACKERS[name])()
    except ImportError as error:
        raise ConfigError(
            f"the tracker {name!r} needs a package that is not installed: pip install 'fasteraa[{name}]'"
        ) from error
    return made
