"""Finished trainings: found by their keys, written once, and named when they are damaged."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fasteraa.errors import RunError
from fasteraa.policy.named import named
from fasteraa.train.job import TrainJob
from fasteraa.train.run_cache import RunCache, pack

RECORD = {"error": 25.0, "held_out_loss": 0.7, "train_loss": 0.5, "seconds": 2.0}


@pytest.fixture
def job(split, quick):
    return TrainJob("uniform, 2 passes", named("uniform"), quick, 3, split)


def test_a_full_disk_is_noticed_before_anything_is_trained(tmp_path, monkeypatch):
    """It takes an empty file, but nothing that is written to one."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(RunError, match="could not be written: No space left on device"):
        RunCache(tmp_path / "runs").open()


def test_what_was_written_is_read_whatever_its_label(cache, job):
    assert cache.read(job) is None
    cache.write(job, RECORD)
    (file,) = cache.runs.iterdir()
    assert file.name == f"uniform-2-passes-3-{job.key}.json"
    again = replace(job, label="other")
    assert cache.file(again) == file
    assert cache.read(again).error == 25.0
    assert dict(cache.read(again).record) == RECORD
    assert cache.read(replace(job, seed=4)) is None


def test_a_record_that_is_there_stays_as_it_is(cache, job):
    cache.write(job, RECORD)
    cache.write(replace(job, label="other"), {**RECORD, "error": 50.0})
    assert len(list(cache.runs.iterdir())) == 1
    assert cache.read(job).error == 25.0


def test_a_checkpoint_lies_beside_the_record_and_is_found_under_another_label(cache, job):
    assert cache.checkpoint(job) == cache.file(job).with_suffix(".pt")
    cache.checkpoint(job).write_bytes(b"begun")
    assert cache.checkpoint(replace(job, label="other")) == cache.checkpoint(job)


def test_a_record_without_the_weights_that_are_asked_for_is_none(cache, job):
    keeping = replace(job, keep_network=True)
    assert keeping.key == job.key
    cache.write(job, RECORD)
    assert cache.read(job) is not None
    assert cache.read(keeping) is None
    file = cache.network(keeping)
    assert file == cache.folder / "networks" / f"uniform-2-passes-3-{job.key}.pt"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    assert cache.read(keeping).error == 25.0
    assert cache.network(replace(keeping, label="other")) == file


def test_of_a_run_that_failed_no_weights_are_expected(cache, job):
    cache.write(job, {"diverged": "the loss was not finite", "seconds": 1.0})
    assert cache.read(replace(job, keep_network=True)).failed == "the loss was not finite"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"error": 3.0}', '{"error": "many", "seconds": 1}', '{"error": 3, "seconds": 1, "together": 0}'],
)
def test_a_damaged_record_is_named(cache, job, content):
    cache.write(job, RECORD)
    cache.file(job).write_text(content)
    with pytest.raises(RunError, match=rf"3-{job.key}\.json' cannot be read .*: remove it to run it again"):
        cache.read(job)


@pytest.mark.parametrize("change", [{"seed": 4}, {"policy": named("none")}])
def test_the_record_of_another_training_is_named(cache, job, change):
    """Copied in a file of its own or in the packed one: whole, and not of this policy and seed."""
    cache.write(job, RECORD)
    other = replace(job, **change)
    shutil.copy(cache.file(job), cache.file(other))
    with pytest.raises(RunError, match=rf"{other.key}\.json' cannot be read \(it is of another training\): remove it"):
        cache.read(other)
    again = packed(cache, job)
    file = again.folder / "runs.json"
    file.write_text(file.read_text().replace(f'{job.key}": {{', f'{other.key}": {{'))
    with pytest.raises(RunError, match=r"runs\.json' cannot be read \(it is of another training\)"):
        again.read(other)


def test_a_record_that_does_not_say_whose_it_is_is_read(cache, job):
    """As earlier versions wrote them."""
    cache.file(job).write_text(json.dumps(RECORD))
    assert cache.read(job).error == 25.0


def test_a_folder_that_cannot_be_written_is_noticed_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file' could not be written"):
        RunCache(tmp_path / "file").open()


# --- one file of many records ----------------------------------------------------------------------------------------


def packed(cache, *jobs):
    for number, job in enumerate(jobs):
        cache.write(job, {**RECORD, "error": float(number)})
    pack(cache.folder, sorted(cache.runs.glob("*.json")))
    for file in cache.runs.glob("*.json"):
        file.unlink()
    return RunCache(cache.folder)


def test_packed_records_are_read_and_are_not_run_again(cache, job):
    jobs = [replace(job, seed=seed) for seed in range(3)]
    again = packed(cache, *jobs)
    assert [again.read(each).error for each in jobs] == [0.0, 1.0, 2.0]
    assert again.read(replace(job, seed=9)) is None
    more = packed(cache, replace(job, seed=9))
    assert [more.read(replace(job, seed=seed)).error for seed in (2, 9)] == [2.0, 0.0]  # what was packed before stays
    assert list(json.loads((cache.folder / "runs.json").read_text())) == sorted(
        replace(job, seed=seed).key for seed in (0, 1, 2, 9)
    )


def test_a_file_of_its_own_comes_before_a_packed_record(cache, job):
    again = packed(cache, job)
    again.write(job, {**RECORD, "error": 75.0})
    assert again.read(job).error == 75.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 3}'])
def test_damaged_packed_records_are_named(cache, job, content):
    (cache.folder / "runs.json").write_text(content)
    with pytest.raises(RunError, match=r"runs\.json' cannot be read .*: remove the file to run them again"):
        cache.read(job)
    with pytest.raises(RunError, match=r"runs\.json' cannot be read"):
        pack(cache.folder, [])


def test_a_packed_record_that_cannot_be_one_is_named(cache, job):
    (cache.folder / "runs.json").write_text(json.dumps({job.key: {"error": 3.0}}))
    with pytest.raises(RunError, match=r"runs\.json' cannot be read \('seconds'\)"):
        cache.read(job)
