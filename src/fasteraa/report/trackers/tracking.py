"""What a tracker is, and several of them as one progress that no tracker can stop."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fasteraa.errors import FasterAAError, Stopped
from fasteraa.methods.config import SearchConfig
from fasteraa.policy.policy import Policy
from fasteraa.runtime.progress import Epoch, Progress, Silent

_log = logging.getLogger(__name__)
# what a run may leave in its folder for others to keep; a checkpoint is for resuming, and large
_FILES = {
    "search": (
        "policy.json",
        "config.toml",
        "preview.png",
        "result.json",
        "summary.txt",
        "methods/*/*.json*",
    ),
    "compare": ("comparison.json", "comparison.md", "comparison.svg", "per_op.json", "per_op.md"),
}
_SECRETS = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")


@dataclass(frozen=True)
class Opening:
    """What a tracker gets when a run begins."""

    folder: Path
    kind: str  # search or compare
    config: Any = None
    resume: bool = False

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.plain() if isinstance(self.config, SearchConfig) else dict(self.config or {})


@dataclass(frozen=True)
class Ending:
    """What a tracker gets when a run ends."""

    status: str  # finished, stopped (by a signal) or failed
    summary: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()


class Tracker(Protocol):
    """Where numbers also go. A call that raises is reported; the tracker is then left alone for the rest of the run.

    Whatever it needs (a package, a server) is looked for when it is made: that is before any work is done.
    """

    name: str

    def start(self, opening: Opening) -> str:
        """A run begins. Returns where it can be looked at, in words."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of an epoch (search) or of a seed (compare). Called from the loop, so it must be quick."""

    def finish(self, ending: Ending) -> None:
        """The run has ended, well or not."""


class Tracking(Silent):
    """Trackers behind another progress; leaving the `with` block ends them, whatever happened in it."""

    def __init__(self, trackers: list[Tracker], opening: Opening, progress: Progress | None = None):
        self._trackers, self._opening, self._progress = trackers, opening, progress or Silent()
        self._summary: dict[str, Any] = {}
        self._begun = False

    def begin(self, config: Any = None) -> None:
        """Tell the trackers that work begins; a search does so by itself."""
        if self._begun:
            return
        self._begun = True
        opening = self._opening
        if config is not None:
            opening = Opening(opening.folder, opening.kind, config, opening.resume)
        self._each(lambda tracker: self.say(f"{tracker.name}: {_clean(tracker.start(opening))}"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._each(lambda tracker: tracker.log(values, step))

    def note(self, summary: Mapping[str, Any]) -> None:
        """Something to keep with the end of the run."""
        self._summary.update(summary)

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # of whatever kind: a tracker is no reason to lose a search
                self._trackers.remove(tracker)
                _log.warning("%s failed and is no longer used: %s", tracker.name, reason(error))

    # --- the progress of a search --------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self._progress.say(text)

    def start(self, epochs: int, steps: int, done: int) -> None:
        self.begin()
        self._progress.start(epochs, steps, done)

    def step(self) -> None:
        self._progress.step()

    def epoch(self, epoch: Epoch) -> None:
        self._progress.epoch(epoch)
        values = {f"search/{name}": value for name, value in asdict(epoch).items() if name != "epoch"}
        self.log(values, epoch.epoch)

    def stop(self) -> None:
        self._progress.stop()

    # --- the end -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._begun:
            return
        status = "finished" if kind is None else "failed"
        if kind is not None and issubclass(kind, Stopped | KeyboardInterrupt):
            status = "stopped"
        folder = self._opening.folder
        files = tuple(file for name in _FILES[self._opening.kind] for file in sorted(folder.glob(name)))
        ending = Ending(status, {"status": status, **_outcome(folder, files), **self._summary}, files)
        self._each(lambda tracker: tracker.finish(ending))


def _outcome(folder: Path, files: tuple[Path, ...]) -> dict[str, Any]:
    """What the policy in the folder says about itself."""
    if folder / "policy.json" not in files:
        return {}
    try:
        policy = Policy.load(folder / "policy.json")
    except FasterAAError:  # not ours to complain about here
        return {}
    race = policy.provenance.get("race", {})
    facts = {"policy": policy.name, "hash": policy.hash, "seconds": policy.provenance.get("seconds")}
    facts |= {"chosen": race.get("chosen"), "race": race.get("sentence")}
    return {name: value for name, value in facts.items() if value is not None}


def reason(error: Exception) -> str:
    """One line, not too long, without what must stay secret."""
    text = _clean(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def _clean(text: str) -> str:
    """Passwords in addresses and the values of variables that hold keys do not go to a terminal or a log."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRETS.search(name.upper()):
            text = text.replace(value, "***")
    return re.sub(r"//[^/\s@]+@", "//***@", text)
