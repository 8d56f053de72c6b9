"""The benchmark of `fasteraa apply` runs anywhere and keeps what it measured."""

import json

import pytest

from fasteraa.bench.offline import Generated, OfflineSpeed, write_files


def test_the_command_appends_its_record(fasteraa, tmp_path):
    out = tmp_path / "offline.jsonl"
    code, said, _ = fasteraa(
        "bench", "offline", "--images", 6000, "--copies", 1, "--seconds", 0.1, "--size", 8, "--out", out
    )
    assert code == 0
    assert "of policy and encoding alone" in said
    record = json.loads(out.read_text())
    assert (record["bench"], record["images"], record["copies"], record["workers"]) == ("offline", 6000, 1, 2)
    assert min(record["ratio"], record["cpu_ratio"], record["images_per_second"], record["peak_mib"]) > 0
    assert record["machine"]["commit"]


def test_files_that_are_read_and_what_limits(fasteraa, tmp_path):
    out = tmp_path / "offline.jsonl"
    flags = ("--images", 40, "--copies", 1, "--seconds", 0.1, "--size", 24, "--workers", 1, "--jpeg", "--out", out)
    code, said, _ = fasteraa("bench", "offline", *flags)
    assert code == 0
    assert "What limits it: " in said
    record = json.loads(out.read_text())
    assert record["jpeg"]
    assert min(record[name] for name in ("reading_s", "policy_s", "encoding_s")) > 0
    files = sorted((write_files(tmp_path, 30, 8)).rglob("*.jpg"))
    assert len(files) == 30
    assert len({file.parent for file in files}) == 10


def test_ratios():
    found = OfflineSpeed(10, 1, 32, 2, "cpu", 1.0, 80.0, 100.0, 90.0, 120.0, None, True, 0.005, 0.01, 0.0025)
    assert (found.ratio, found.cpu_ratio) == (0.8, 0.75)
    rest = {"starting, drawing, writing and waiting": 0.3}
    assert found.shares == pytest.approx({"reading": 0.2, "the policy": 0.4, "encoding": 0.1, **rest})
    assert found.limit == "the policy"


def test_generated_images_differ():
    images = Generated(300, 8)
    assert len({images[place][0].tobytes() for place in range(300)}) == 300
    assert {label for _, label in map(images.__getitem__, range(10))} == set(range(10))
