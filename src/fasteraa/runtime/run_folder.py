"""The run folder: what a search leaves behind, written so that a crash at any moment leaves it readable."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fasteraa.errors import RunError
from fasteraa.runtime.files import explain_os_error, replacing, write_atomic


class RunFolder:
    """What a search writes, by name."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.toml"
        self.policy = path / "policy.json"  # the answer: replaced only by another answer
        self.result = path / "result.json"
        self.summary = path / "summary.txt"
        self.preview = path / "preview.png"
        self.source = path / "source.json"
        self.broken = path / "broken.jsonl"
        self.candidates = path / "candidates"  # what took part, a policy file each
        self.race = path / "race"  # its schedule and its trainings
        # of the gradient search
        self.gradient = path / "faster-aa.json"
        self.start = path / "start.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"

    def open_new(self) -> None:
        """Make the folder and see that it can be written, before any work is done."""
        self._check_is_folder()
        if self.config.exists() or self.checkpoint.exists():
            raise RunError(
                f"the folder {str(self.path)!r} holds a run already: add --resume to go on with it, or choose another"
            )
        if left := [each.name for each in (self.policy, self.gradient, self.start, self.metrics) if each.exists()]:
            raise RunError(
                f"the folder {str(self.path)!r} holds {left[0]}, which the search would overwrite: choose another "
                "(--out)"
            )
        with explain_os_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.summary, "the search has not ended yet\n")
            self.summary.unlink()

    def _check_is_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"a run needs a folder, {str(self.path)!r} is a file: choose another (--out)")

    def keep_source(self, source: Any, **flags: str | Path | float | None) -> None:
        """What was asked for beside the settings, so that it can be asked for again; a Python object has no name."""
        if source is None or isinstance(source, str | Path):
            given = {name: str(value) for name, value in flags.items() if value is not None}
            write_atomic(self.source, json.dumps({"source": source and str(source), **given}) + "\n")

    def asked_for(self) -> dict[str, str | None]:
        """What `keep_source` wrote; empty if there is nothing."""
        try:
            found = json.loads(self.source.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: value for name, value in pairs if value is None or isinstance(value, str)}

    def check_old(self) -> None:
        """There must be a run to resume."""
        self._check_is_folder()
        if not self.config.exists():
            raise RunError(f"the folder {str(self.path)!r} holds no run to resume; leave out --resume to start one")
        if not self._has_run_table():
            raise RunError(
                f"the run in {str(self.path)!r} is of version 0.1, which this version cannot resume: start another "
                "(--out)"
            )

    def _has_run_table(self) -> bool:
        """Version 0.1 wrote the settings of its search alone."""
        try:
            return "run" in tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # whoever reads the settings says so
            return True

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        with replacing(self.checkpoint) as partial:
            import torch

            try:
                torch.save(state, partial)
            except RuntimeError as error:  # torch says so when a disk is full
                raise OSError(28, f"the checkpoint could not be written ({error})") from error

    def load_checkpoint(self, device: Any) -> dict[str, Any] | None:
        """Tensors and plain values alone: nothing in the file is executed."""
        if not self.checkpoint.exists():
            return None
        import torch

        try:
            state: dict[str, Any] = torch.load(self.checkpoint, map_location=device, weights_only=True)
        except Exception as error:  # torch's own words are many, or a bare number
            raise RunError(f"the checkpoint {str(self.checkpoint)!r} could not be read: is it damaged?") from error
        return state

    def append_metrics(self, row: dict[str, Any]) -> None:
        with explain_os_error(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def cut_metrics(self, epochs: int) -> None:
        """Forget epochs that the checkpoint does not know: they are about to be run again."""
        if self.metrics.exists():
            kept = [line for line in self.metrics.read_text().splitlines() if _epoch_of(line) <= epochs]
            write_atomic(self.metrics, "".join(line + "\n" for line in kept))


def _epoch_of(line: str) -> float:
    """The epoch of a line of metrics; a line that a crash cut off belongs to no epoch that counts."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
