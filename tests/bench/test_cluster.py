"""The smoke test of ranks ends in time, and says where those stand that do not."""

import sys
import time

import pytest

from fasteraa.bench import cluster


def test_what_hangs_is_ended_and_says_where_it_stands(tmp_path, capsys):
    code = (
        "import threading, time\ndef stuck_here():\n    print('begun', flush=True)\n    time.sleep(600)\nstuck_here()"
    )
    run = cluster._Process("hangs", ["-c", code], tmp_path)
    latest = time.monotonic() + 60
    while not run.said() and time.monotonic() < latest:
        time.sleep(0.05)
    assert run.wait(time.monotonic()) is None
    said = capsys.readouterr().err
    assert "hangs has not ended" in said
    assert "in stuck_here" in said
    assert run.process.returncode is not None


def test_what_fails_is_told(tmp_path, capsys):
    run = cluster._Process("fails", ["-c", "raise SystemExit('no such thing')"], tmp_path)
    assert run.wait(time.monotonic() + 60) is None
    assert "fails ended with code 1" in capsys.readouterr().err
    assert "no such thing" in run.said()
    assert cluster._Process("works", ["-c", ""], tmp_path).wait(time.monotonic() + 60) is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds ranks in /proc")
@pytest.mark.alone
def test_ranks_search_and_train_as_one_process(tmp_path):
    row = cluster.smoke(2, tmp_path, seconds=240, device="cpu")
    assert row["passed"]
    assert row["fast-step"]["largest_difference"] < 0.01
    alone, shared = row["training"]["train_losses"]
    assert shared == pytest.approx(alone, rel=0.01)


def test_a_race_is_simulated_by_measured_times():
    row = cluster.simulate()
    assert row["simulated"]
    assert row["race_seconds"][1] > row["race_seconds"][8] > row["race_seconds"][64]
    assert row["seconds_of_3000_trainings"][1000] < 10
