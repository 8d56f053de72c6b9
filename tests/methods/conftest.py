import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.methods.config import SearchConfig
from fasteraa.runtime.progress import Silent


def bars(count=512, side=16, seed=0, classes=1):
    """White bars on black, anywhere: closed under flips, far from their inverted selves."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 3, side, side)
    kind = torch.randint(2, (count,), generator=generator)
    for index in range(count):
        height, width = (9, 3) if kind[index] else (3, 9)
        top = int(torch.randint(side - height + 1, (1,), generator=generator))
        left = int(torch.randint(side - width + 1, (1,), generator=generator))
        images[index, :, top : top + height, left : left + width] = 0.6 + 0.4 * torch.rand(3, 1, 1, generator=generator)
    names = tuple("ab")[:classes]
    return ImageSet.of((images * 255).to(torch.uint8), kind % classes, names, "bars")


@pytest.fixture
def tiny():
    return bars(64, 12, classes=2)


@pytest.fixture
def quick():
    """The settings of a search that takes a second."""
    return SearchConfig(epochs=3, batch_size=16, sub_policies=2, ops=("flip", "invert", "brightness", "solarize"))


class Stop(Exception):
    pass


class StopAfter(Silent):
    """Ends the run, as a crash would, after so many steps."""

    def __init__(self, steps):
        self.left, self.said = steps, []

    def say(self, text):
        self.said.append(text)

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Stop
