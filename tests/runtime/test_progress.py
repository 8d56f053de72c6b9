"""The bar in a terminal: what matters most is whole, whatever the width."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fasteraa.runtime.progress import Bar, Epoch, Lines

EPOCH = Epoch(
    epoch=18, distance=-12.345, penalty=1.0, class_loss=4.605, policy_class_loss=2.3, change=0.0123, from_start=0.1,
    seconds=90.0,
)  # fmt: skip


def shown(width):
    """What the bar leaves on a terminal of that width after 18 of 20 epochs of 31 steps."""
    screen = io.StringIO()
    bar = Bar(Console(file=screen, width=width, force_terminal=True, color_system=None, legacy_windows=False))
    bar.start(20, 31, 0)
    bar._began -= 10  # seconds, so that the speed is one that a machine has
    for _ in range(18 * 31):
        bar.step()
    bar.epoch(EPOCH)
    bar.stop()
    return screen.getvalue().split("\x1b[2K")[-1].replace("\x1b[?25h", "").rstrip("\n")


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (60, ""),
        (80, "distance -12.345"),
        (100, "distance -12.345, class loss 4.605"),
        (140, "distance -12.345, class loss 4.605, change 0.0123"),
    ],
)
def test_a_narrow_terminal_drops_the_least_important(width, words):
    line = shown(width)
    assert len(line.splitlines()) == 1
    assert "epoch 18/20" in line
    assert re.search(r"\d+\.\d steps/s", line)
    assert re.search(r"\d:\d\d:\d\d", line)
    assert line.rstrip().endswith(words)
    assert ("distance" in line) == bool(words)


@pytest.mark.parametrize(
    ("epochs", "done", "shown_epochs"),
    [
        (300, 0, [*range(30, 301, 30)]),
        (3, 0, [1, 2, 3]),
        (25, 0, [3, 6, 9, 12, 15, 18, 21, 24, 25]),
        (300, 100, [*range(120, 301, 30)]),
    ],
)
def test_without_a_terminal_there_are_about_ten_lines(capsys, epochs, done, shown_epochs):
    lines = Lines()
    lines.start(epochs, 31, done * 31)
    for epoch in range(done + 1, epochs + 1):
        lines.epoch(replace(EPOCH, epoch=epoch))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"searching: {epochs} epochs of 31 steps")
    assert [line.split(":")[0] for line in rest] == [f"epoch {epoch}/{epochs}" for epoch in shown_epochs]
