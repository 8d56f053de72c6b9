"""Runs: seeds, resuming after any kind of end, trouble with numbers and disks, and what is left in the folder."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from PIL import Image

import fasteraa
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError, RunError
from fasteraa.methods.config import SearchConfig, read_config
from fasteraa.methods.faster_aa import run as run_module
from fasteraa.methods.faster_aa.step import Step, soft_policy
from fasteraa.nets import choose_network
from fasteraa.ops import Span
from fasteraa.policy import Policy
from fasteraa.runtime.device import find_device

from .conftest import Stop, StopAfter


def search(data, config, **options):
    return fasteraa.search(data, config, device="cpu", **options)


def test_same_seed_same_hash_and_other_seed_other_hash(tiny, quick):
    one, two = (search(tiny, quick) for _ in range(2))
    other = search(tiny, replace(quick, seed=1))
    assert one.policy.hash == two.policy.hash
    assert one.policy.hash != other.policy.hash
    assert one.policy.hash != one.start.hash
    assert one.start.hash == Policy.named("random", sub_policies=2, seed=0, ops=quick.ops).hash
    assert torch.initial_seed() == 0  # the caller's generator was left alone


@pytest.mark.parametrize(("device", "size", "side"), [("cpu", None, 32), ("cuda", None, 128), ("cpu", 40, 40)])
def test_a_cpu_searches_on_small_images(quick, tmp_path, device, size, side):
    """Unless it is asked for another size: its time goes with the pixels."""
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (200, 180), {"a": "red", "b": "blue"}[name]).save(tmp_path / name / "1.png")
    data = run_module._load(tmp_path, replace(quick, size=size), torch.device(device), None)
    assert data.size == (side, side)


def test_threads_take_turns_and_leave_torch_as_it_was(tiny, quick):
    alone, found = search(tiny, quick).policy.hash, []
    threads = [threading.Thread(target=lambda: found.append(search(tiny, quick).policy.hash)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 3
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_switched_off(mode, tiny, quick):
    with mode():
        inside = search(tiny, quick).policy.hash
    assert inside == search(tiny, quick).policy.hash


@pytest.mark.parametrize("name", ["policy.json", "found.json", "start.json", "metrics.jsonl"])
def test_what_lies_in_a_folder_is_not_overwritten(tiny, quick, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"holds {name}, which the search would overwrite"):
        search(tiny, quick, out=tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_large_batches_on_several_threads_repeat_themselves(quick):
    """From 32,768 values on, torch adds the gradient of an indexed tensor in whatever order its threads come."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        images = torch.randint(256, (4096, 3, 8, 8), dtype=torch.uint8)
        data = ImageSet.of(images, torch.arange(4096) % 2, ("a", "b"), "noise")
        large = replace(quick, batch_size=4096, sub_policies=1, ops=None, epochs=2)
        assert len({search(data, large).policy.hash for _ in range(2)}) == 1
    finally:
        torch.set_num_threads(threads)
    assert not torch.are_deterministic_algorithms_enabled()


def test_any_moment_of_the_trajectory_is_a_policy(tiny, quick, tmp_path):
    """Halfway through three epochs is what a search of one epoch ends with."""
    config = replace(quick, spans={"rotate": Span(0, 10, "degree")}, fill=(1, 2, 3), choice_temperature=0.5)
    result, short = (search(tiny, replace(config, epochs=count), out=tmp_path / str(count)) for count in (3, 1))
    moments = torch.load(tmp_path / "3" / "checkpoint.pt", weights_only=True)["trajectory"]
    assert [soft_policy(config, each).freeze().hash for each in (moments[0], moments[-1])] == [
        result.start.hash, result.policy.hash,
    ]  # fmt: skip
    assert result.halfway.hash == short.policy.hash
    assert short.halfway is None


def test_the_result_and_the_folder(tiny, quick, tmp_path):
    result = search(tiny, quick, out=tmp_path / "run")
    assert result.finished
    assert len(result.epochs) == 3
    assert Policy.load(tmp_path / "run" / "policy.json") == result.policy
    start = Policy.load(tmp_path / "run" / "start.json")
    assert (start.hash, start.sub_policies) == (result.start.hash, result.start.sub_policies)
    assert start.provenance["data"]["images"] == 64  # for whoever looks while it runs
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row["change"] > 0 for row in rows)
    provenance = result.policy.provenance
    assert provenance["data"]["fingerprint"] == tiny.fingerprint
    assert provenance["config"]["epochs"] == 3
    assert provenance["finished"]
    assert provenance["backbone"] == "small"
    assert provenance["precision"] == "float32"
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"config.toml", "metrics.jsonl", "checkpoint.pt", "policy.json", "start.json"}


def test_a_run_with_what_is_gone_can_go_on(tiny, quick, tmp_path):
    """0.1.0 kept the floor in checkpoints, and had one more setting."""
    search(tiny, replace(quick, epochs=2), out=tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.pt"
    floor = {"start_dose": torch.tensor(0.2), "start_spread": torch.tensor(1.0)}
    torch.save(torch.load(file, weights_only=True) | {"goal": {"state": floor, "optimiser": None}}, file)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("[search]", "[search]\nallowance = 1.0"))
    resumed = search(tiny, quick, out=tmp_path / "run", resume=True)
    assert resumed.policy.hash == search(tiny, quick).policy.hash
    assert "allowance" not in config.read_text()


@pytest.mark.parametrize("steps", [1, 4, 6, 11])
def test_resume_ends_as_if_nothing_had_happened(tiny, quick, tmp_path, steps):
    whole = search(tiny, quick, out=tmp_path / "whole")
    with pytest.raises(Stop):
        search(tiny, quick, out=tmp_path / "cut", progress=StopAfter(steps))
    resumed = search(tiny, quick, out=tmp_path / "cut", resume=True)
    assert resumed.policy.hash == whole.policy.hash
    assert [replace(e, seconds=0) for e in resumed.epochs] == [replace(e, seconds=0) for e in whole.epochs]
    lines = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_checkpoints_that_would_take_too_long_are_left_out(tiny, quick, tmp_path, monkeypatch):
    """The first epoch is saved, the second is not: a crash in the third costs both, and nothing else."""
    monkeypatch.setattr(run_module, "_WORK_PER_SAVE", 1e9)
    cut = tmp_path / "cut"
    with pytest.raises(Stop):
        search(tiny, quick, out=cut, progress=StopAfter(11))
    assert len((cut / "metrics.jsonl").read_text().splitlines()) == 2
    assert torch.load(cut / "checkpoint.pt", weights_only=True)["epoch"] == 1
    resumed = search(tiny, quick, out=cut, resume=True)
    assert resumed.policy.hash == search(tiny, quick).policy.hash
    lines = (cut / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert torch.load(cut / "checkpoint.pt", weights_only=True)["epoch"] == 3  # the last is saved in any case


def test_max_minutes_ends_early_with_a_valid_policy(tiny, quick, tmp_path):
    result = search(tiny, quick, out=tmp_path / "run", max_minutes=0)
    assert not result.finished
    assert Policy.load(tmp_path / "run" / "policy.json").hash == result.start.hash
    rest = search(tiny, quick, out=tmp_path / "run", resume=True)
    assert rest.finished
    assert rest.policy.hash == search(tiny, quick).policy.hash


def test_more_epochs_may_be_added(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    longer = search(tiny, quick, out=tmp_path / "run", resume=True)
    assert longer.policy.hash == search(tiny, quick).policy.hash


def test_fewer_epochs_than_done_are_refused_and_more_are_remembered(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=2), out=tmp_path / "run")
    with pytest.raises(RunError, match="has 2 epochs behind it, more than epochs = 1"):
        search(tiny, replace(quick, epochs=1), out=tmp_path / "run", resume=True)
    search(tiny, quick, out=tmp_path / "run", resume=True)
    assert read_config(tmp_path / "run" / "config.toml")["epochs"] == quick.epochs == 3


def test_folders_are_not_mixed_up(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already: add --resume"):
        search(tiny, quick, out=tmp_path / "run")
    with pytest.raises(RunError, match="started with seed = 0, now it is 5"):
        search(tiny, replace(quick, seed=5), out=tmp_path / "run", resume=True)
    other = ImageSet.of(tiny.images.flip(0), tiny.labels, tiny.classes, "other")
    with pytest.raises(RunError, match="had other data"):
        search(other, quick, out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="holds no run to resume"):
        search(tiny, quick, out=tmp_path / "new", resume=True)
    with pytest.raises(ConfigError, match="resume needs the folder"):
        search(tiny, quick, resume=True)


def test_a_damaged_checkpoint_is_named(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"checkpoint.*could not be read"):
        search(tiny, quick, out=tmp_path / "run", resume=True)


def test_nothing_in_a_checkpoint_is_executed(tiny, quick, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    torch.save({"critic": Evil()}, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(RunError, match="could not be read"):
        search(tiny, quick, out=tmp_path / "run", resume=True)
    assert not (tmp_path / "executed").exists()


def test_a_loss_that_is_not_finite_stops_the_run(tiny, quick, tmp_path, monkeypatch):
    whole, calls = Step.__call__, []

    def step(self, *arguments):
        calls.append(1)
        return whole(self, *arguments) * (float("nan") if len(calls) > 6 else 1.0)

    monkeypatch.setattr(Step, "__call__", step)
    with pytest.raises(RunError, match=r"not finite in epoch 2\. The last good state \(epoch 1\).*learning_rate"):
        search(tiny, quick, out=tmp_path / "run")
    monkeypatch.setattr(Step, "__call__", whole)
    assert search(tiny, quick, out=tmp_path / "run", resume=True).policy.hash == search(tiny, quick).policy.hash


def test_the_last_good_state_is_the_last_that_was_saved(tiny, quick, tmp_path, monkeypatch):
    whole, calls = Step.__call__, []

    def step(self, *arguments):
        calls.append(1)
        return whole(self, *arguments) * (float("nan") if len(calls) > 10 else 1.0)

    monkeypatch.setattr(Step, "__call__", step)
    monkeypatch.setattr(run_module, "_WORK_PER_SAVE", 1e9)
    with pytest.raises(RunError, match=r"not finite in epoch 3\. The last good state \(epoch 1\)"):
        search(tiny, quick, out=tmp_path / "run")


def test_a_policy_that_is_no_number_any_more_stops_the_run(tiny, quick):
    """Its pixels are no index into a table, which torch says in its own words before the epoch is over."""
    with pytest.raises(
        RunError, match=r"not finite in epoch 1\. Try a lower learning_rate \(--set learning_rate=0.001\)"
    ):
        search(tiny, replace(quick, learning_rate=1e30))


def test_a_folder_that_cannot_be_written_is_noticed_first(tiny, quick, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written: a part of its path is a file"):
        search(tiny, quick, out=tmp_path / "file" / "run")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"a run needs a folder, .*file' is a file"):
            search(tiny, quick, out=tmp_path / "file", resume=resume)


def test_a_full_disk_is_named(tiny, quick, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module.torch, "save", full)
    with pytest.raises(RunError, match="No space left on device"):
        search(tiny, quick, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))  # no partial file


def test_out_of_memory_says_what_to_lower(tiny, quick, monkeypatch):
    def hungry(self, *_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Step, "__call__", hungry)
    with pytest.raises(RunError, match="the GPU ran out of memory: lower --batch-size"):
        search(tiny, quick)

    def hungry_too(self, *_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(Step, "__call__", hungry_too)
    with pytest.raises(RunError, match="the machine ran out of memory: lower --batch-size"):
        search(tiny, quick)


def test_choices_of_network_and_device(quick, tiny):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_network("auto", 32, cpu) == "small"
    assert choose_network("auto", 32, gpu) == "wrn-40-2"
    assert choose_network("auto", 128, gpu) == "resnet-50"
    assert choose_network("wrn-16-1", 32, cpu) == "wrn-16-1"
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        find_device("gpu")
    with pytest.raises(ConfigError, match="device 'meta' is not supported; choices: auto, cpu"):
        find_device("meta")
    with pytest.raises(ConfigError, match="unknown critic_norm"):
        SearchConfig(critic_norm="layer")
    assert search(tiny, replace(quick, epochs=1, critic_norm="batch", backbone="wrn-10-1")).finished


def test_few_images_make_smaller_batches(quick, tmp_path):
    """All of them, or all but one; a run that goes on does so with the batches that it had."""
    nine = ImageSet.of(torch.arange(9).view(9, 1, 1, 1).expand(9, 3, 8, 8).byte(), torch.arange(9) % 2, "ab", "nine")
    config, out = replace(quick, batch_size=128, epochs=1), tmp_path / "run"
    said = StopAfter(1_000)
    assert search(nine, config, out=out, progress=said).policy.provenance["config"]["batch_size"] == 8
    assert "batches of 8 images instead of 128: there are only 9" in said.said
    assert read_config(out / "config.toml")["batch_size"] == 8
    two = replace(config, epochs=2)  # asks for 128 again, as reproduce does
    resumed = search(nine, two, out=out, resume=True).policy
    assert resumed.hash == search(nine, replace(two, batch_size=8)).policy.hash
    with pytest.raises(RunError, match="was started with batch_size = 8, now it is 6"):
        search(nine, replace(two, batch_size=6), out=out, resume=True)
    with pytest.raises(RunError, match="had other data"):  # not: another batch, which only follows from those
        search(ImageSet.of(nine.images[:6], nine.labels[:6], "ab", "six"), two, out=out, resume=True)
    three = ImageSet.of(nine.images[:3], nine.labels[:3], "ab", "three")
    with pytest.raises(DataError, match="a search needs at least 4 images, 'three' has 3"):
        search(three, config)


def test_any_source(quick, tmp_path):
    with pytest.raises(DataError):
        search(tmp_path / "nothing", quick)
    few = search(None, replace(quick, epochs=1, classes=3, subset=60, size=12))
    assert len(few.data.classes) == 3
    assert len(few.data) == 60
    images = torch.randint(0, 256, (40, 3, 10, 10), dtype=torch.uint8)
    pairs = [(image, index % 2) for index, image in enumerate(images)]
    assert search(pairs, replace(quick, epochs=1)).data.size == (10, 10)


# --- signals: real processes ------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, fasteraa
torch.set_num_threads(1)
from fasteraa.data import load
from fasteraa.methods.config import SearchConfig
config = SearchConfig(epochs=6, batch_size=64, sub_policies=2, ops=("flip", "invert"), subset=320, size=12)
result = fasteraa.search(None, config, out=sys.argv[1], resume="--resume" in sys.argv, device="cpu")
print(result.policy.hash)
"""


def start(folder, *arguments):
    command = [sys.executable, "-c", SCRIPT, str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, process):
    end = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """SIGKILL in the middle, SIGTERM in the middle, then to the end: the same policy as in one go."""
    whole, _ = start(tmp_path / "whole").communicate(timeout=600)
    checkpoint = tmp_path / "cut" / "checkpoint.pt"
    with start(tmp_path / "cut") as killed:
        wait_for(checkpoint, killed)
        killed.send_signal(signal.SIGKILL)
    before = checkpoint.stat().st_mtime_ns
    stopped = start(tmp_path / "cut", "--resume")
    while checkpoint.stat().st_mtime_ns == before and stopped.poll() is None:
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    _, error = stopped.communicate(timeout=300)
    assert "stopped by SIGTERM" in error
    assert "add --resume to go on" in error
    resumed, _ = start(tmp_path / "cut", "--resume").communicate(timeout=600)
    assert resumed.strip() == whole.strip() != ""


def test_a_damaged_checkpoint_is_called_that(tiny, quick, tmp_path):
    search(tiny, quick, out=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"junk\n")
    with pytest.raises(RunError, match=r"checkpoint.pt' could not be read: is it damaged\?"):
        search(tiny, quick, out=tmp_path, resume=True)
