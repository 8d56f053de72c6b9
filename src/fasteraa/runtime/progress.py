"""What a person sees while a search runs."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fasteraa.runtime.documents import printable


@dataclass(frozen=True)
class Epoch:
    """The means of an epoch."""

    epoch: int
    distance: float  # the Wasserstein estimate
    penalty: float
    class_loss: float  # of the critic: originals and augmented images together
    policy_class_loss: float
    change: float  # mean absolute change of the policy's parameters in this epoch
    from_start: float  # and since the start
    seconds: float  # of searching, up to here

    def words(self) -> str:
        """The most telling first: a narrow terminal drops the last."""
        return f"distance {self.distance:.3f}, class loss {self.class_loss:.3f}, change {self.change:.4f}"


@runtime_checkable
class Progress(Protocol):
    """How a run reports. All methods are called from the loop, so they must be quick."""

    def say(self, text: str) -> None:
        """A sentence."""

    def start(self, epochs: int, steps: int, done: int) -> None:
        """The loop begins: `steps` in an epoch, `done` steps already behind us."""

    def step(self) -> None:
        """A step is done."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch is done."""

    def stop(self) -> None:
        """The loop ends, well or not."""


class Silent:
    """For tests and notebooks."""

    def say(self, text: str) -> None: ...
    def start(self, epochs: int, steps: int, done: int) -> None: ...
    def step(self) -> None: ...
    def epoch(self, epoch: Epoch) -> None: ...
    def stop(self) -> None: ...


_LINES = 10


class Lines(Silent):
    """Plain lines, about ten for all epochs: for logs and pipes."""

    def __init__(self) -> None:
        self._epochs = 0

    def say(self, text: str) -> None:
        print(printable(text, keep="\n"), flush=True)

    def start(self, epochs: int, steps: int, done: int) -> None:
        self._epochs = epochs
        self.say(f"searching: {epochs} epochs of {steps} steps" + (f", {done} steps done" if done else ""))

    def epoch(self, epoch: Epoch) -> None:
        if epoch.epoch % max(1, math.ceil(self._epochs / _LINES)) == 0 or epoch.epoch == self._epochs:
            self.say(f"epoch {epoch.epoch}/{self._epochs}: {epoch.words()}, {epoch.seconds:.1f} s")


_BAR = 16  # columns of the bar itself


class Bar(Silent):
    """A bar with epoch, speed, time left and the latest means: for terminals."""

    def __init__(self, console: Any = None) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=_BAR),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
        )
        self._bar = RichProgress(*columns, console=console, refresh_per_second=5)
        self._task: Any = None
        self._began = time.monotonic()
        self._steps = 0
        self._epochs = 0

    def say(self, text: str) -> None:
        self._bar.console.print(printable(text, keep="\n"), markup=False, highlight=False)

    def start(self, epochs: int, steps: int, done: int) -> None:
        self._epochs = epochs
        fields: dict[str, Any] = {"epoch": done // steps + 1, "epochs": epochs, "words": "", "speed": ""}
        self._task = self._bar.add_task("search", total=epochs * steps, completed=done, **fields)
        self._began = time.monotonic()
        self._bar.start()

    def step(self) -> None:
        self._steps += 1
        speed = self._steps / max(time.monotonic() - self._began, 1e-9)
        self._bar.update(self._task, advance=1, speed=f"{speed:.1f} steps/s")

    def epoch(self, epoch: Epoch) -> None:
        self._bar.update(self._task, epoch=epoch.epoch, words=self._room_for(epoch))

    def _room_for(self, epoch: Epoch) -> str:
        """As many of the means as fit beside the rest; the first are the ones to look at."""
        taken = len(f"epoch {self._epochs}/{self._epochs} ") + _BAR + len(" 1000.0 steps/s 0:00:00 ")
        room = self._bar.console.width - taken
        words = epoch.words()
        while len(words) > room and words:
            words = words.rpartition(", ")[0]
        return words

    def stop(self) -> None:
        self._bar.stop()


def for_this_terminal() -> Progress:
    return Bar() if sys.stdout.isatty() else Lines()
