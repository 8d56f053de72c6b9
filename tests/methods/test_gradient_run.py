"""The gradient search: seeds, resuming after any kind of end, trouble with numbers and disks, what it leaves behind."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError, RunError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa import run as run_module
from fasteraa.methods.faster_aa.run import gradient_search
from fasteraa.methods.faster_aa.step import Step, soft_policy
from fasteraa.nets import choose_network
from fasteraa.ops import Span
from fasteraa.policy import Policy
from fasteraa.runtime.checkpoint import save_checkpoint
from fasteraa.runtime.device import find_device

from .conftest import Stop, StopAfter


def search(data, config, **options):
    return gradient_search(data, config, device="cpu", **options)


def test_same_seed_same_hash_and_other_seed_other_hash(tiny, quick):
    one, two = (search(tiny, quick) for _ in range(2))
    other = search(tiny, replace(quick, seed=1))
    assert one.policy.hash == two.policy.hash
    assert one.policy.hash != other.policy.hash
    assert one.policy.hash != one.start.hash
    assert one.start.hash == Policy.named("random", sub_policies=2, seed=0, ops=quick.ops).hash
    assert torch.initial_seed() == 0  # the caller's generator was left alone


def test_threads_take_turns_and_leave_torch_as_it_was(tiny, quick):
    alone, hashes = search(tiny, quick).policy.hash, []
    threads = [threading.Thread(target=lambda: hashes.append(search(tiny, quick).policy.hash)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hashes == [alone] * 3
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_switched_off(mode, tiny, quick):
    with mode():
        inside = search(tiny, quick).policy.hash
    assert inside == search(tiny, quick).policy.hash


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
    moments = torch.load(tmp_path / "3" / "methods/faster-aa/checkpoint.pt", weights_only=True)["trajectory"]
    assert [soft_policy(config, each).freeze().hash for each in (moments[0], moments[-1])] == [
        result.start.hash, result.policy.hash,
    ]  # fmt: skip
    assert result.halfway.hash == short.policy.hash
    assert short.halfway is None


def test_the_result_and_the_folder(tiny, quick, tmp_path):
    result = search(tiny, quick, out=tmp_path / "run")
    assert result.finished
    assert len(result.epochs) == result.planned == 3
    assert Policy.load(tmp_path / "run" / "methods/faster-aa/faster-aa.json") == result.policy
    start = Policy.load(tmp_path / "run" / "methods/faster-aa/start.json")
    assert (start.hash, start.sub_policies) == (result.start.hash, result.start.sub_policies)
    assert start.provenance["data"]["images"] == 64  # for whoever looks while it runs
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "methods/faster-aa/metrics.jsonl").read_text().splitlines()
    ]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row["change"] > 0 for row in rows)
    provenance = result.policy.provenance
    assert provenance["data"]["fingerprint"] == tiny.fingerprint
    assert provenance["config"]["epochs"] == 3
    assert provenance["finished"]
    assert provenance["backbone"] == "small"
    assert provenance["precision"] == "float32"
    files = {path.name for path in (tmp_path / "run" / "methods" / "faster-aa").iterdir()}
    assert files == {"metrics.jsonl", "checkpoint.pt", "faster-aa.json", "start.json"}


@pytest.mark.parametrize("steps", [1, 4, 6, 11])
def test_resume_ends_as_if_nothing_had_happened(tiny, quick, tmp_path, steps):
    whole = search(tiny, quick, out=tmp_path / "whole")
    with pytest.raises(Stop):
        search(tiny, quick, out=tmp_path / "cut", progress=StopAfter(steps))
    resumed = search(tiny, quick, out=tmp_path / "cut", resume=True)
    assert resumed.policy.hash == whole.policy.hash
    assert [replace(e, seconds=0) for e in resumed.epochs] == [replace(e, seconds=0) for e in whole.epochs]
    lines = (tmp_path / "cut" / "methods/faster-aa/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_checkpoints_that_would_take_too_long_are_left_out(tiny, quick, tmp_path, monkeypatch):
    """The first epoch is saved, the second is not: a crash in the third costs both, and nothing else."""
    monkeypatch.setattr(run_module, "_WORK_PER_SAVE", 1e9)
    cut = tmp_path / "cut"
    with pytest.raises(Stop):
        search(tiny, quick, out=cut, progress=StopAfter(11))
    assert len((cut / "methods/faster-aa/metrics.jsonl").read_text().splitlines()) == 2
    assert torch.load(cut / "methods/faster-aa/checkpoint.pt", weights_only=True)["epoch"] == 1
    resumed = search(tiny, quick, out=cut, resume=True)
    assert resumed.policy.hash == search(tiny, quick).policy.hash
    lines = (cut / "methods/faster-aa/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert (
        torch.load(cut / "methods/faster-aa/checkpoint.pt", weights_only=True)["epoch"] == 3
    )  # the last is saved in any case


def test_the_end_of_the_time_leaves_a_valid_policy(tiny, quick, tmp_path):
    result = search(tiny, quick, out=tmp_path / "run", seconds=0)
    assert not result.finished
    assert result.epochs == []
    assert Policy.load(tmp_path / "run" / "methods/faster-aa/faster-aa.json").hash == result.start.hash
    rest = search(tiny, quick, out=tmp_path / "run", resume=True)
    assert rest.finished
    assert rest.policy.hash == search(tiny, quick).policy.hash


def test_more_epochs_may_be_added(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    longer = search(tiny, quick, out=tmp_path / "run", resume=True)
    assert longer.policy.hash == search(tiny, quick).policy.hash


def test_fewer_epochs_than_done_are_refused(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=2), out=tmp_path / "run")
    with pytest.raises(RunError, match="has 2 epochs behind it, more than epochs = 1"):
        search(tiny, replace(quick, epochs=1), out=tmp_path / "run", resume=True)


def test_checkpoints_are_not_mixed_up(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    with pytest.raises(RunError, match="started with seed = 0, now it is 5"):
        search(tiny, replace(quick, seed=5), out=tmp_path / "run", resume=True)
    other = ImageSet.of(tiny.images.flip(0), tiny.labels, tiny.classes, "other")
    with pytest.raises(RunError, match="had other data"):
        search(other, quick, out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="had other backbone"):
        search(tiny, replace(quick, critic="wrn-10-1"), out=tmp_path / "run", resume=True)


def test_a_damaged_checkpoint_is_named(tiny, quick, tmp_path):
    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    checkpoint = tmp_path / "run" / "methods/faster-aa/checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"checkpoint.* is damaged"):
        search(tiny, quick, out=tmp_path / "run", resume=True)


def test_nothing_in_a_checkpoint_is_executed(tiny, quick, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    search(tiny, replace(quick, epochs=1), out=tmp_path / "run")
    save_checkpoint(tmp_path / "run" / "methods/faster-aa/checkpoint.pt", {"critic": Evil()})
    with pytest.raises(RunError, match=r"is damaged \(Weights only load failed"):
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


def test_a_full_disk_is_named(tiny, quick, tmp_path, monkeypatch):
    def full(path, mode="r", **_):
        if "w" in mode and "checkpoint" in path.name:
            raise OSError(28, "No space left on device")
        return opened(path, mode)

    opened = Path.open
    monkeypatch.setattr(Path, "open", full)
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
    assert choose_network("auto", 32, on_cpu=True) == "small"
    assert choose_network("auto", 32, on_cpu=False) == "wrn-40-2"
    assert choose_network("auto", 128, on_cpu=False) == "resnet-50"
    assert choose_network("wrn-16-1", 32, on_cpu=True) == "wrn-16-1"
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        find_device("gpu")
    with pytest.raises(ConfigError, match="device 'meta' is not supported; choices: auto, cpu"):
        find_device("meta")
    with pytest.raises(ConfigError, match="unknown critic_norm"):
        SearchConfig(critic_norm="layer")
    assert search(tiny, replace(quick, epochs=1, critic_norm="batch", critic="wrn-10-1")).finished


def numbered(count):
    """So many images, each of one level, its number."""
    images = torch.arange(count).view(count, 1, 1, 1).expand(count, 3, 8, 8).byte()
    return ImageSet.of(images, torch.arange(count) % 2, ("a", "b"), f"the first {count}")


def test_few_images_make_smaller_batches(quick, tmp_path):
    """All of them, or all but one; a resumed run keeps the batches that it had."""
    config, out = replace(quick, batch_size=128, epochs=1), tmp_path / "run"
    progress = StopAfter(1_000)
    assert search(numbered(9), config, out=out, progress=progress).policy.provenance["config"]["batch_size"] == 8
    assert "batches of 8 images instead of 128: there are only 9" in progress.said
    two = replace(config, epochs=2)  # asks for 128 again
    resumed = search(numbered(9), two, out=out, resume=True).policy
    assert resumed.hash == search(numbered(9), replace(two, batch_size=8)).policy.hash
    with pytest.raises(RunError, match="was started with batch_size = 8, now it is 6"):
        search(numbered(9), replace(two, batch_size=6), out=out, resume=True)
    with pytest.raises(RunError, match="had other data"):  # not: another batch, which only follows from those
        search(numbered(6), two, out=out, resume=True)
    with pytest.raises(DataError, match="a search needs at least 4 images, 'the first 3' has 3"):
        search(numbered(3), config)


def test_unknown_names_are_noticed_before_any_work(tiny, quick, tmp_path):
    with pytest.raises(ConfigError, match="a network must have a known name, got 'wrn-40'; did you mean 'wrn-40-2'"):
        search(tiny, replace(quick, critic="wrn-40"), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        gradient_search(tiny, quick, device="gpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_called_that(tiny, quick, tmp_path):
    search(tiny, quick, out=tmp_path)
    (tmp_path / "methods/faster-aa/checkpoint.pt").write_bytes(b"junk\n")
    with pytest.raises(RunError, match=r"checkpoint.pt' is damaged \(it is too short\)"):
        search(tiny, quick, out=tmp_path, resume=True)
