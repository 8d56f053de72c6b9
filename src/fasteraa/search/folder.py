"""The run folder: what a search leaves behind, written so that a crash at any moment leaves it readable."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fasteraa.errors import RunError, reason
from fasteraa.search.config import BEFORE, SearchConfig, make_config, read_config, to_toml

_MAY_CHANGE = (
    "epochs",
    "fast",
    "kernels",
    "deterministic",
)  # settings with which a run may go on that was begun with others


class RunFolder:
    """What a search writes, by name."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.start = path / "start.json"
        self.policy = path / "policy.json"
        self.found = path / "found.json"
        self.preview = path / "preview.png"
        self.summary = path / "summary.txt"
        self.broken = path / "broken.jsonl"
        self.source = path / "source.json"

    def open_new(self) -> None:
        """Make the folder and see that it can be written, before any work is done."""
        self._check_is_folder()
        if self.config.exists() or self.checkpoint.exists():
            raise RunError(
                f"the folder {str(self.path)!r} holds a run already: add --resume to go on with it, or choose another"
            )
        if left := [each.name for each in (self.policy, self.found, self.start, self.metrics) if each.exists()]:
            raise RunError(
                f"the folder {str(self.path)!r} holds {left[0]}, which the search would overwrite: choose another "
                "(--out)"
            )
        with named_trouble(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.write(self.summary, "the search has not ended yet\n")
            self.summary.unlink()

    def _check_is_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"a run needs a folder, {str(self.path)!r} is a file: choose another (--out)")

    def begin(self, config: SearchConfig) -> None:
        """From here on the folder holds a run."""
        self.write(self.config, to_toml(config))

    def keep_source(self, source: Any, data_root: str | Path | None) -> None:
        """What was searched on, as it was asked for, so that it can be asked for again; a Python object has no name."""
        if source is None or isinstance(source, str | Path):
            named = {"source": None if source is None else str(source)}
            root = {} if data_root is None else {"data_root": str(data_root)}
            self.write(self.source, json.dumps({**named, **root}) + "\n")

    def keep_flags(self, flags: Mapping[str, str]) -> None:
        """What else a command was given that is no setting, beside the source."""
        if known := self.asked_for():
            source = {name: value for name, value in known.items() if name in ("source", "data_root")}
            self.write(self.source, json.dumps({**source, **flags}) + "\n")

    def asked_for(self) -> dict[str, str | None]:
        """What `keep_source` and `keep_flags` wrote; empty if there is nothing."""
        try:
            found = json.loads(self.source.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: value for name, value in pairs if value is None or isinstance(value, str)}

    def open_old(self, config: SearchConfig, but: Collection[str] = ()) -> None:
        """The run in the folder must have been started with the same settings (more epochs are welcome).

        `but` for those that cannot be told before the images are read.
        """
        self._check_is_folder()
        if not self.config.exists():
            raise RunError(f"the folder {str(self.path)!r} holds no run to resume; leave out --resume to start one")
        old = vars(make_config({**BEFORE, **read_config(self.config)}))
        for name, value in vars(config).items():
            if old[name] != value and name not in (*_MAY_CHANGE, *but):
                raise RunError(
                    f"the run in {str(self.path)!r} was started with {name} = {old[name]!r}, now it is {value!r}: "
                    "resume it with its own settings, or start another"
                )

    def write(self, path: Path, content: str | bytes) -> None:
        """All of it or nothing."""
        with self.replacing(path) as partial:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)

    @contextmanager
    def replacing(self, path: Path) -> Iterator[Path]:
        """A partial file to write to; it takes the place of `path` once it is whole and on disk."""
        partial = path.with_name(f".{path.name}.partial{path.suffix}")
        with named_trouble(path):
            try:
                yield partial
                with partial.open("rb+") as file:
                    os.fsync(file.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        with self.replacing(self.checkpoint) as partial:
            try:
                torch.save(state, partial)
            except RuntimeError as error:  # torch says so when a disk is full
                raise OSError(28, f"the checkpoint could not be written ({error})") from error

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """Tensors and plain values alone: nothing in the file is executed."""
        if not self.checkpoint.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.checkpoint, map_location=device, weights_only=True)
        except Exception as error:  # torch's own words are many, or a bare number
            raise RunError(f"the checkpoint {str(self.checkpoint)!r} could not be read: is it damaged?") from error
        return state

    def append_metrics(self, row: dict[str, Any]) -> None:
        with named_trouble(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def cut_metrics(self, epochs: int) -> None:
        """Forget epochs that the checkpoint does not know: they are about to be run again."""
        if self.metrics.exists():
            kept = [line for line in self.metrics.read_text().splitlines() if _epoch_of(line) <= epochs]
            self.write(self.metrics, "".join(line + "\n" for line in kept))


def _epoch_of(line: str) -> float:
    """The epoch of a line of metrics; a line that a crash cut off belongs to no epoch that counts."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def as_file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:60]


@contextmanager
def named_trouble(path: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written becomes one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{str(path)!r} could not be written: {reason(error)}") from error
