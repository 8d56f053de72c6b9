"""Processes side by side: what becomes of them when something ends before its time."""

import os
import signal

import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import RunError
from fasteraa.evaluate.arena import Arena
from fasteraa.evaluate.workers import Workers, _interrupt_on_terminate


def die(arena, cell, until):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_was_killed_is_one_sentence(tmp_path):
    images, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    data = ImageSet.of(images, labels, ("a", "b"), "black")
    arena = Arena(data, data, "itself", tmp_path, "cpu")
    with pytest.raises(RunError, match="was ended from outside"), Workers(die, [arena], 2, 1) as workers:
        list(workers.results(arena, [1, 2]))


def test_terminate_interrupts_and_says_so():
    with _interrupt_on_terminate(), pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.args == (signal.SIGTERM,)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_is_there_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with _interrupt_on_terminate():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
