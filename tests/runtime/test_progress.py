"""The bar in a terminal: what matters most is whole, whatever the width."""

import io
import re

import pytest
from rich.console import Console

from fasteraa.runtime.progress import Bar, Epoch

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
