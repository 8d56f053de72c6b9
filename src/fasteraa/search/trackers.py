"""Metrics for other programs, behind the same protocol as the progress bar."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fasteraa.errors import ConfigError
from fasteraa.search.progress import Epoch, Progress


class TensorBoard:
    """Passes everything on to another progress, and writes the means of each epoch as scalars."""

    def __init__(self, inner: Progress, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("TensorBoard is not installed: pip install 'fasteraa[tensorboard]'") from error
        writer: Any = SummaryWriter
        self._writer = writer(str(folder / "tensorboard"))
        self._inner = inner

    def say(self, text: str) -> None:
        self._inner.say(text)

    def start(self, epochs: int, steps: int, done: int) -> None:
        self._inner.start(epochs, steps, done)

    def step(self) -> None:
        self._inner.step()

    def epoch(self, epoch: Epoch) -> None:
        self._inner.epoch(epoch)
        for name, value in asdict(epoch).items():
            if name != "epoch":
                self._writer.add_scalar(f"search/{name}", value, epoch.epoch)

    def stop(self) -> None:
        self._inner.stop()
        self._writer.close()


def with_tensorboard(progress: Progress, folder: Path) -> Progress:
    return TensorBoard(progress, folder)
