"""Events for TensorBoard in the folder of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fasteraa.report.trackers.tracking import Ending, Opening


class TensorBoard:
    name = "tensorboard"

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = SummaryWriter
        self._writer: Any = None

    def start(self, opening: Opening) -> str:
        folder = opening.folder / "tensorboard"
        self._writer = self._make(str(folder))
        self._writer.add_text("config", _code(json.dumps(opening.settings, indent=1)))
        return f"events in {str(folder)!r}; see them with: tensorboard --logdir {opening.folder}"

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, ending: Ending) -> None:
        try:
            self._writer.add_text("result", _code(json.dumps(dict(ending.summary), indent=1)))
            for file in ending.files:
                self._add(file)
        finally:
            self._writer.close()

    def _add(self, file: Path) -> None:
        if file.suffix == ".png":
            import numpy
            from PIL import Image

            with Image.open(file) as image:
                self._writer.add_image(file.stem, numpy.asarray(image.convert("RGB")), dataformats="HWC")
        elif file.suffix in (".txt", ".md"):
            self._writer.add_text(file.stem, _code(file.read_text(encoding="utf-8")))


def _code(text: str) -> str:
    """Markdown that TensorBoard shows as it stands."""
    return "".join(f"    {line}\n" for line in text.splitlines())
