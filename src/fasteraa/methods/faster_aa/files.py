"""What the gradient search leaves in the folder of a run, written so that a crash at any moment leaves it readable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fasteraa.runtime.checkpoint import load_checkpoint, save_checkpoint
from fasteraa.runtime.files import append_line, write_atomic
from fasteraa.runtime.run_folder import RunFolder

NAME = "faster-aa"  # of the method, and of its folder


class GradientFiles:
    """By name."""

    def __init__(self, run: Path, folder: Path | None = None):
        self.run = run  # what users call the run
        folder = folder or RunFolder(run).of_method(NAME)
        self.policy = folder / "faster-aa.json"
        self.start = folder / "start.json"
        self.metrics = folder / "metrics.jsonl"
        self.checkpoint = folder / "checkpoint.pt"

    @classmethod
    def to_read(cls, run: Path) -> Self:
        """Those of any version: once they lay beside the policy."""
        files = cls(run)
        return files if files.policy.parent.is_dir() else cls(run, run)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        save_checkpoint(self.checkpoint, state)

    def load_checkpoint(
        self, device: Any, fields: Mapping[str, Any] | None = None, *, mmap: bool = False, sealed: bool = True
    ) -> dict[str, Any] | None:
        """Tensors and plain values alone, with these fields: nothing in the file is executed."""
        return load_checkpoint(self.checkpoint, device, fields or {}, mmap=mmap, sealed=sealed)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        append_line(self.metrics, row)

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Those of a checkpoint: epochs that it does not know are about to be run again."""
        content = "".join(json.dumps(row) + "\n" for row in rows)
        if content or self.metrics.exists():
            write_atomic(self.metrics, content)
