"""Processes side by side: what becomes of them when something ends before its time."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import RunError
from fasteraa.policy.named import named
from fasteraa.runtime.processes import interrupt_on_terminate
from fasteraa.train.job import TrainJob
from fasteraa.train.processes import Workers
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Split


def die(device, jobs, until):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_was_killed_is_one_sentence():
    images, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    data = ImageSet.of(images, labels, ("a", "b"), "black")
    split = Split(data, data, "itself")
    jobs = [TrainJob("none", named("none"), TrainRecipe(), seed, split) for seed in (1, 2)]
    with pytest.raises(RunError, match="was ended from outside"), Workers(die, [split], ["cpu"] * 2, 1) as workers:
        list(workers.results([job] for job in jobs))


SCRIPT = """
import fasteraa
import numpy as np
from fasteraa.train.recipe import TrainRecipe

print("script")
images = np.random.default_rng(0).integers(0, 256, (24, 12, 12, 3), dtype=np.uint8)
recipe = TrainRecipe(network="small", epochs=1, batch_size=4)
table = fasteraa.compare((images, np.arange(24) % 2), ["none"], out="runs", seeds=2, recipe=recipe, jobs=2)
print("runs", len(table.rows[0].errors))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_run_once(tmp_path):
    """Python would have every process import it, and so begin it again."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert (said.count("script"), said[-1]) == (1, "runs 2")


def test_terminate_interrupts_and_says_so():
    with interrupt_on_terminate(), pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.args == (signal.SIGTERM,)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_is_there_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with interrupt_on_terminate():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
