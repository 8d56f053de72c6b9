"""Ranks of torchrun: who is lost is named, once; a run under torchrun is killed, stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fasteraa import api
from fasteraa.errors import ConfigError, RankLost
from fasteraa.runtime import ranks
from fasteraa.runtime.ranks import Watch, rank_device


class Store:
    """torchrun's, in this process."""

    def __init__(self):
        self.values = {}

    def add(self, name, number):
        self.values[name] = self.values.get(name, 0) + number
        return self.values[name]

    def set(self, name, text):
        self.values[name] = text.encode()

    def get(self, name):
        return self.values[name]


@pytest.fixture
def watches():
    store = Store()
    return [Watch(store, rank, 3) for rank in range(3)]


def beat(watches, times):
    for _ in range(times):
        for watch in watches:
            watch.beat()


def test_the_rank_that_is_lost_is_named_by_the_first(watches):
    beat(watches, 3)
    beat([watches[0], watches[2]], ranks._LOST)
    assert watches[0].trouble is None  # one sign was still there to be seen
    beat([watches[0], watches[2]], 1)
    for watch in (watches[0], watches[2]):
        assert watch.trouble.startswith("rank 1 of 3 has ended")
        assert watch.told_by == 0


def test_the_first_rank_is_missed_by_the_others_and_the_second_says_so(watches):
    beat(watches, 3)
    for watch in watches[1:]:
        watch.patience = ranks._LOST_IN_TROUBLE  # a sum has failed
    beat(watches[1:], ranks._LOST_IN_TROUBLE + 1)
    assert [watch.trouble.partition(" has")[0] for watch in watches[1:]] == ["rank 0 of 3"] * 2
    assert {watch.told_by for watch in watches[1:]} <= {0, 1}
    assert watches[1].told_by == 1


def test_a_rank_that_is_still_loading_is_not_missed(watches):
    beat(watches[1:], 2 * ranks._LOST)
    assert watches[1].trouble is None
    beat(watches, 1)
    beat(watches[1:], ranks._LOST + 1)
    assert watches[1].trouble.startswith("rank 0 of 3 has ended")


def test_a_rank_that_is_lost_before_its_first_sign_is_missed_once_a_sum_has_failed(watches):
    """Ranks that sum have loaded."""
    watches[1].patience = ranks._LOST_IN_TROUBLE
    beat(watches[1:], ranks._LOST_IN_TROUBLE + 1)
    assert watches[1].trouble.startswith("rank 0 of 3 has ended")


def test_who_ends_well_is_not_missed(watches):
    beat(watches, 2)
    watches[1].end(None)
    beat([watches[0], watches[2]], 2 * ranks._LOST)
    assert watches[0].trouble is None
    assert watches[2].trouble is None


def test_a_reason_reaches_everybody(watches):
    beat(watches, 2)
    watches[2].end("there is no folder 'images'")
    beat(watches[:2], 1)
    assert watches[0].trouble == "rank 2 of 3: there is no folder 'images'"


def test_an_error_that_a_lost_rank_causes_is_told_as_such(watches, monkeypatch):
    watches[0].trouble = "rank 1 of 3 has ended"
    with pytest.raises(RankLost, match="rank 1 of 3"), watches[0].explaining():
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(RankLost), watches[0].explaining():
        raise KeyboardInterrupt(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), watches[0].explaining():
        raise KeyboardInterrupt(signal.SIGINT)
    monkeypatch.setattr(ranks, "_BEAT_S", 0.001)
    with pytest.raises(RuntimeError, match="of our own"), watches[1].explaining():
        raise RuntimeError("of our own")


def test_a_process_that_hangs_is_ended(watches, monkeypatch, capsys):
    """The main thread may wait for a GPU that waits for the lost rank."""
    codes = []
    monkeypatch.setattr(ranks, "_BEAT_S", 0.001)
    monkeypatch.setattr(ranks, "_GRACE_S", 0.01)

    def leave(code):
        codes.append(code)
        watches[0]._over.set()

    watches[0].leave, watches[0].trouble = leave, "rank 1 of 3 has ended"
    watches[0].run()
    assert codes == [RankLost.exit_code]
    assert capsys.readouterr().err == "fasteraa: rank 1 of 3 has ended\n"


def test_nobody_waits_for_ever_for_the_group_to_end():
    """NCCL waits for ranks that have gone and for graphs that are still held."""
    over = threading.Event()
    assert not ranks._leave(over.wait, seconds=0.05)
    over.set()
    assert ranks._leave(lambda: None)

    def fail():
        raise RuntimeError("Connection closed by peer")

    assert ranks._leave(fail)


def test_devices_of_ranks(monkeypatch):
    assert rank_device("cuda:7") == "cuda:7"  # nobody launched it
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert rank_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="--device takes auto or cpu, got 'cuda:7'"):
        rank_device("cuda:7")


def test_other_commands_are_refused_and_one_rank_says_so(fasteraa, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    code, _, said = fasteraa("apply", "--out", "x")
    assert code == 2
    assert "start every other command without it" in said
    assert "so --jobs 2 has no place" in fasteraa("compare", "--jobs", "2")[2]
    assert "methods published" in fasteraa("search", "--methods", "published")[2]
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert "1 of 2 machines idle: add --no-race" in fasteraa("search")[2]
    monkeypatch.setenv("RANK", "1")
    assert fasteraa("ops") == (2, "", "")


# --- under torchrun --------------------------------------------------------------------------------------------------


def start(count, out, *more):
    settings = ("--no-race", "--subset", 64, "--batch-size", 16, "--size", 16, "--ops", "flip,sample_pairing,rotate")
    words = ["--standalone", "--nproc-per-node", count, "-m", "fasteraa", "search", "--out", out, *settings, *more]
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def ended(run):
    """Its exit code; what it says is read, so that it never waits for a reader."""
    said = run.communicate(timeout=240)[0]
    return run.returncode and said


def wait_for(folder, epochs):
    latest = time.monotonic() + 120
    while time.monotonic() < latest:
        if metrics(folder).exists() and len(distances(folder)) >= epochs:
            return
        time.sleep(0.1)
    pytest.fail("the search did not begin")


def metrics(folder):
    return folder / "methods" / "faster-aa" / "metrics.jsonl"


def distances(folder):
    return [json.loads(line)["distance"] for line in metrics(folder).read_text().splitlines()]


def rank_process(agent, rank):
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    of = {int(re.search(rb"\0RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())[1]): int(pid) for pid in children}
    return of[rank]


@pytest.mark.alone
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_run_continues_with_another_number(killed, tmp_path):
    whole = start(1, tmp_path / "whole", "--epochs", 6)
    assert ended(whole) == 0
    run = start(2, tmp_path / "run", "--epochs", 2000)
    wait_for(tmp_path / "run", 2)
    began = time.monotonic()
    os.kill(rank_process(run.pid, killed), signal.SIGKILL)
    said = run.communicate(timeout=120)[0]
    assert time.monotonic() - began < 30  # torchrun itself would take as long
    lines = [line for line in said.splitlines() if line.startswith("fasteraa:")]
    assert lines == [
        f"fasteraa: rank {killed} of 2 has ended (it was killed, or its machine was lost): add --resume to continue "
        "from the last checkpoint, with any number of ranks"
    ]
    assert said.startswith("2 ranks (gloo, on CPUs) share every batch of the gradient search\n")
    done = len(distances(tmp_path / "run"))
    again = start(3, tmp_path / "run", "--resume", "--epochs", max(done, 6))
    assert ended(again) == 0
    expected = distances(tmp_path / "whole")[:6]
    assert distances(tmp_path / "run")[:3] == pytest.approx(expected[:3], rel=0.02)  # rounding grows with the steps


def compared(count, out, *more):
    """`fasteraa compare` in a process of its own, or shared by ranks."""
    settings = ("--policies", "none,uniform", "--seeds", 2, "--network", "small", "--subset", 64, "--size", 16)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count] if count else []
    words = [*ranks, "-m", "fasteraa", "compare", "--device", "cpu", "--batch-size", 16, "--set", "precision=float32"]
    command = [sys.executable, *map(str, (*words, *settings, "--out", out, *more))]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def losses(folder):
    records = [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*.json"))]
    return {(record["label"], record["seed"]): record["held_out_loss"] for record in records}


@pytest.mark.alone
def test_a_killed_rank_ends_a_shared_training_which_continues(tmp_path):
    """Nothing that was finished is trained again, and the numbers are those of one process."""
    run = compared(2, tmp_path / "run", "--epochs", 60, "--lr", 0.001)
    latest = time.monotonic() + 120
    while not losses(tmp_path / "run") and time.monotonic() < latest:
        time.sleep(0.05)
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    said = run.communicate(timeout=120)[0]
    lines = [line for line in said.splitlines() if line.startswith("fasteraa:")]
    assert len(lines) == 1
    assert lines[0].startswith("fasteraa: rank 1 of 2 has ended")
    assert said.startswith("2 ranks (gloo, on CPUs) share every batch of each training\n")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "runs").glob("*.json")}
    assert ended(compared(3, tmp_path / "run", "--epochs", 60, "--lr", 0.001)) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert ended(compared(0, tmp_path / "alone", "--epochs", 60, "--lr", 0.001)) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), rel=0.05)


@pytest.mark.alone
def test_ranks_with_other_settings_are_named(tmp_path):
    script = tmp_path / "differs.py"
    script.write_text(
        "import os, fasteraa\n"
        "config = fasteraa.SearchConfig(subset=64, batch_size=16, size=16, epochs=1, seed=int(os.environ['RANK']))\n"
        "fasteraa.search(None, config, methods='faster-aa', race=False)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "all ranks must have the same seed: rank 0 has 0, rank 1 has 1" in done.stderr


def test_weights_of_a_critic_are_known_by_their_content(tmp_path):
    """A path may lead to another file on another machine."""
    config = api.SearchConfig(critic="timm:resnet10t", critic_weights=str(tmp_path / "weights.pt"))
    facts = []
    for content in (b"one", b"another"):
        (tmp_path / "weights.pt").write_bytes(content)
        facts.append(api._facts(config, None, [], SimpleNamespace(fingerprint="images")))
    assert [name for name in facts[0] if facts[0][name] != facts[1][name]] == ["content of critic_weights"]
    own = replace(config, critic_weights="pretrained")
    assert "content of critic_weights" not in api._facts(own, None, [], SimpleNamespace(fingerprint="images"))
