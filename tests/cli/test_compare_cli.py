"""`fasteraa compare` and `fasteraa evaluate`, end to end on tiny pictures."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fasteraa._version import commit
from fasteraa.cli import compare
from fasteraa.policy.named import named
from fasteraa.train.group import Group
from fasteraa.train.runner import local


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 60, (40, 8, 8, 3), dtype=np.uint8)
    y = np.arange(40) % 2
    x[y == 1, :, :4] += 150
    np.savez(tmp_path / "pictures.npz", x_train=x[:32], y_train=y[:32], x_test=x[32:], y_test=y[32:])
    return str(tmp_path / "pictures.npz")


QUICK = ("--epochs", 1, "--batch-size", 8, "--device", "cpu", "--network", "small")


def test_compare_writes_a_table_and_trains_nothing_twice(fasteraa, source, tmp_path):
    out = tmp_path / "out"
    arguments = ("compare", source, "-p", "none,uniform", "--seeds", 2, "--out", out, "--jobs", 1, *QUICK)
    code, text, error = fasteraa(*arguments)
    assert (code, error) == (0, "")
    assert "4/4 uniform, seed 1:" in text
    assert "measured on 8 images (test images)" in text
    assert (out / "comparison.md").read_text().count("\n|") == 4
    assert json.loads((out / "comparison.json").read_text())["missing"] == 0
    assert (out / "comparison.svg").exists()
    code, text, _ = fasteraa(*arguments)
    assert code == 0
    assert "4 of 4 runs are there already" in text
    assert json.loads(fasteraa(*arguments, "--json")[1]) == json.loads((out / "comparison.json").read_text())
    code, text, _ = fasteraa("evaluate", source, "-p", "uniform", "--seed", 1, "--out", out, *QUICK)
    assert code == 0
    assert "uniform, seed 1:" in text
    assert len(list((out / "runs").iterdir())) == 4  # the same training


def test_evaluate_says_what_it_will_do_and_what_was_kept(fasteraa, source, tmp_path, monkeypatch):
    arguments = ("evaluate", source, "--out", tmp_path / "out", *QUICK)
    code, text, _ = fasteraa(*arguments)
    first, second, *_ = text.splitlines()
    assert code == 0
    assert "1 run of the small network for 1 epoch on" in first
    assert second.startswith("1 training, about ")
    json.loads(fasteraa(*arguments, "--json")[1])

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "train_together", stopped)
    code, _, error = fasteraa(*arguments, "--seed", 1)
    assert code == 130
    assert "give the same command again to continue" in error


def test_every_data_set_has_a_folder_of_its_own(fasteraa, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {
        source: "compare-pictures",
        "./more v2.0/": "compare-more-v2.0",
        "photos/train": "compare-photos-train",
        "": "compare-sample",
        "hf:me/photos": "compare-photos",
    }
    (tmp_path / "more v2.0").mkdir()
    assert {given: compare._folder(given).name for given in folders} == folders
    fasteraa("evaluate", "nowhere", *QUICK)
    assert not (tmp_path / "runs").exists()
    code, text, _ = fasteraa("compare", source, "-p", "none", "--seeds", 1, "--jobs", 1, *QUICK)
    assert (code, "table: runs/compare-pictures/comparison.md" in text) == (0, True)
    fasteraa("evaluate", source, *QUICK)
    assert len(list((tmp_path / "runs" / "compare-pictures" / "runs").iterdir())) == 1


def test_evaluate_random_is_a_run_of_compare(fasteraa, source, tmp_path):
    fasteraa("evaluate", source, "-p", "random", "--seed", 2, "--out", tmp_path / "out", *QUICK)
    (file,) = (tmp_path / "out" / "runs").iterdir()
    record = json.loads(file.read_text())
    assert record["policy"]["hash"] == named("random", seed=2).hash
    assert record["command"].startswith(f"fasteraa evaluate {source} -p random --seed 2 ")
    assert record["commit"] == commit()


def test_evaluate_says_that_the_search_saw_its_images(fasteraa, source, tmp_path):
    given = ("evaluate", source, "--out", tmp_path / "out", "--held-out", 0.3, *QUICK, "-p")
    for left_out, flattered in ((0.0, True), (0.3, False)):
        origin = {"data": {"name": "pictures"}, "config": {"held_out": left_out}}
        replace(named("uniform"), provenance=origin).save(tmp_path / "mine.json")
        code, text, _ = fasteraa(*given, tmp_path / "mine.json")
        assert (code, "may be too low" in text) == (0, flattered)


def test_images_that_cannot_be_read_are_named(fasteraa, tmp_path):
    for number in range(40):
        folder = tmp_path / "photos" / ("train" if number < 20 else "test") / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 99, 0)).save(folder / f"{number}.png")
    bad = tmp_path / "photos" / "test" / "1" / "bad.png"
    bad.write_bytes(b"no image")
    arguments = ("compare", tmp_path / "photos", "-p", "none", "--seeds", 1, "--jobs", 1, *QUICK)
    code, text, _ = fasteraa(*arguments, "--out", tmp_path / "out")
    assert code == 0
    assert text.count(f"left out, could not be read: {bad} (not an image") == 1
    bad.rename(tmp_path / "photos" / "train" / "1" / "bad.png")  # of a set that is split, both parts tell
    code, text, _ = fasteraa(*arguments, "--out", tmp_path / "out", "--held-out", 0.5)
    assert code == 0
    assert text.count("left out, could not be read:") == 1


def test_any_setting_of_the_training_can_be_set(fasteraa, source, tmp_path):
    """A flag is stronger; evaluate asks for the same training with the same settings."""
    given = ("--set", "learning_rate=0.02", "--set", "epochs=7", "--set", "optimizer=sgd", *QUICK, "--out", tmp_path)
    code, _, error = fasteraa("compare", source, "-p", "none", "--seeds", 1, "--jobs", 1, *given)
    assert (code, error) == (0, "")
    recipe = json.loads((tmp_path / "comparison.json").read_text())["recipe"]
    assert (recipe["learning_rate"], recipe["epochs"], recipe["batch_size"]) == (0.02, 1, 8)
    assert fasteraa("evaluate", source, *given)[0] == 0
    assert len(list((tmp_path / "runs").glob("*.json"))) == 1


def test_per_op(fasteraa, source, tmp_path):
    out = tmp_path / "out"
    code, text, _ = fasteraa(
        "compare", source, "-p", "none,random", "--seeds", 1, "--out", out, "--per-op", "--jobs", 1, *QUICK
    )
    assert code == 0
    assert "Sub-policies of random, the most harmful first:" in text
    page = (out / "per_op.md").read_text()
    assert page.count("\n| sharpness |") == 1
    assert page.count("\n| flip |") == 1
    assert all("plain images (test images)" in each and "(--held-out 0.2)" in each for each in (page, text))
    assert len(json.loads((out / "per_op.json").read_text())["ops"]) == page.split("\n\n")[1].count("\n") - 1


def test_per_op_tells_policies_of_the_same_name_apart(fasteraa, source, tmp_path):
    """All that are found on one set are called the same."""
    for number in (0, 1, 2):
        replace(named("random", seed=number), name="found on photos").save(tmp_path / f"{number}.json")
    rows = f"none,{tmp_path / '0.json'},both={tmp_path / '1.json'}+{tmp_path / '2.json'}"
    fasteraa("compare", source, "-p", rows, "--seeds", 1, "--out", tmp_path, "--per-op", "--jobs", 1, *QUICK)
    page = (tmp_path / "per_op.md").read_text()
    assert f"Sub-policies of {tmp_path / '0.json'}, the most harmful first:" in page
    assert "Sub-policies of both (the first of 2), the most harmful first:" in page


def test_per_op_keeps_to_the_time_limit_and_ends_with_a_signal(fasteraa, source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    arguments = ("compare", source, "-p", "uniform", "--seeds", 1, "--out", out, "--per-op", "--jobs", 1, *QUICK)
    code, text, _ = fasteraa(*arguments, "--minutes", 0)
    assert code == 0
    assert "per operation: time is up, nothing was measured; give the same command again to continue" in text
    assert not (out / "per_op.md").exists()
    code, text, _ = fasteraa("evaluate", source, "-p", "uniform", "--out", out, *QUICK)
    assert code == 0

    def one_epoch(group):
        group.epoch += 1
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Group, "one_epoch", one_epoch)
        code, text, error = fasteraa(*arguments)
    assert code == 128 + signal.SIGTERM
    assert error.startswith("fasteraa: stopped while a network was trained to measure operations")
    assert "1 of 1 runs are there already" in text
    (checkpoint,) = (out / "runs").glob("none-0-*.pt")
    checkpoint.unlink()  # of an epoch that was none
    code, text, _ = fasteraa(*arguments)
    assert code == 0
    assert (out / "per_op.md").exists()


def test_a_run_that_diverges_is_named_and_the_others_are_kept(fasteraa, source, tmp_path, monkeypatch):
    from fasteraa.train.training import Training

    step = Training.step

    def diverging(self, images, labels):
        return step(self, images, labels) + (math.nan if self.feed.policy.name == "uniform" and self.seed else 0.0)

    monkeypatch.setattr(Training, "step", diverging)
    out, given = tmp_path / "out", ("compare", source, "-p", "none,uniform", "--seeds", 2, "--jobs", 1, *QUICK)
    for _ in range(2):  # the second time there is nothing to do, and it is as wrong
        code, text, error = fasteraa(*given, "--out", out)
        assert code == 2
        assert error == (
            "fasteraa: these runs diverged and are not in the table: uniform, seed 1 (the training loss was not "
            "finite in epoch 1); lower the learning rate (--lr)\n"
        )
    assert "4 of 4 runs are there already" in text
    told = "Diverged, excluded from the means: uniform, seed 1 (the training loss was not finite in epoch 1)."
    assert told in text
    assert told in (out / "comparison.md").read_text()
    assert (out / "comparison.md").read_text().count("\n|") == 4
    code, text, error = fasteraa("evaluate", source, "-p", "uniform", "--seed", 1, "--out", out, *QUICK)
    assert (code, error.count("\n")) == (2, 1)
    assert "uniform, seed 1: the training loss was not finite" in error
    assert error.endswith("; lower the learning rate (--lr)\n")


def test_a_time_limit_writes_the_table_from_what_is_there(fasteraa, source, tmp_path):
    code, text, _ = fasteraa(
        "compare", source, "--out", tmp_path / "out", "--minutes", 0, "--jobs", 1, "--seeds", 1, *QUICK
    )
    assert code == 0
    assert "time is up: 3 of 3 runs are missing" in text
    assert "There are no runs yet." in (tmp_path / "out" / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nowhere"], "'nowhere' is neither a file or folder"),
        (["compare", "-p", "nothing"], "no known policy of that name"),
        (["compare", "-p", ","], "no policy was given"),
        (["compare", "-p", "none,none"], "'none' was given twice"),
        (["compare", "--preset", "cifar/wrn-40-3"], "did you mean 'cifar/wrn-40-2'"),
        (["compare", "--network", "wrn-41-2", "-p", "none", "--jobs", "1"], "depth of a wide resnet"),
        (["compare", "--device", "gpu"], "unknown device 'gpu'"),
        (["compare", "--held-out", "1.5"], "held-out share must be in (0, 1), got 1.5"),
        (["compare", "--minutes", "-1"], "minutes must be at least 0"),
        (["compare", "--set", "learning_rat=1"], "did you mean 'learning_rate'?"),
        (["compare", "--set", "epochs=0"], "epochs must be a number of at least 1, got 0"),
        (["evaluate", "--set", "warmup"], "--set takes NAME=VALUE, got 'warmup'"),
        (["compare", "--subset", "3"], "subset must lie between 10"),
        (["evaluate", "-p", "none,uniform"], "evaluate takes one policy"),
        (["evaluate", "-p", "missing.json"], "missing.json"),
    ],
)
def test_mistakes_end_with_one_line(fasteraa, arguments, message, tmp_path):
    code, _, error = fasteraa(*arguments, "--out", tmp_path / "out")
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal(source, tmp_path, jobs, number):
    """To the command alone, as `kill -INT` does; a terminal sends it to the workers, too."""
    out = tmp_path / "out"
    arguments = ["compare", source, "--out", out, "--jobs", jobs, "-p", "none,uniform", "--seeds", 40, *QUICK]
    arguments += ["--epochs", 20]  # long enough not to be over before the signal comes
    process = subprocess.Popen(
        [sys.executable, "-m", "fasteraa", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not _records(out) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 128 + number, error
    assert error.startswith("fasteraa: stopped; ")
    assert "give the same command again to continue" in error
    assert len(error.strip().splitlines()) == 1
    assert "runs are missing" in (out / "comparison.md").read_text()
    assert _records(out)


def _records(out):
    """Whole ones: a record that is being written has a dot before its name."""
    return list((out / "runs").glob("[!.]*.json"))


@pytest.fixture
def uneven(tmp_path):
    """Class folders with files by patient, few of one class, and validation images."""
    rng = np.random.default_rng(0)
    for part, patients in (("train", range(8)), ("val", range(20, 24))):
        for patient in patients:
            for number in range(3 if patient % 4 else 1):
                place = tmp_path / "scans" / part / ("rare" if patient % 4 == 0 else "common")
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
                    place / f"p{patient}_{number}.png"
                )
    return tmp_path / "scans"


def test_another_metric_groups_and_validation_images(fasteraa, uneven, tmp_path):
    flags = (
        "-p",
        "none",
        "--seeds",
        1,
        "--jobs",
        1,
        *QUICK,
        "--lr",
        0.01,
        "--weight-decay",
        0.01,
        "--optimizer",
        "adamw",
    )
    out = tmp_path / "out"
    code, text, error = fasteraa(
        "compare", uneven, "--validation", "val", "--metric", "balanced-error", "--out", out, *flags
    )
    assert (code, error) == (0, "")
    assert "measured on 10 images (validation images)" in text
    assert "none: balanced error" in text
    written = json.loads((out / "comparison.json").read_text())
    assert (written["metric"], written["recipe"]["learning_rate"], written["recipe"]["optimizer"]) == (
        "balanced-error", 0.01, "adamw",
    )  # fmt: skip
    assert "| policy | balanced error % |" in (out / "comparison.md").read_text()
    code, text, error = fasteraa("compare", uneven, "--validation", "val", "--metric", "loss", "--out", out, *flags)
    assert "1 of 1 runs are there already" in text  # what is measured is all kept
    assert "none: loss 0." in text
    grouped = ("--held-out", 0.3, "--group-by", r"^(p\d+)_")
    code, text, error = fasteraa("evaluate", uneven, *grouped, "--out", tmp_path / "more", *QUICK, "--lr", 0.01)
    assert (code, error) == (0, "")
    code, _, error = fasteraa("compare", uneven, "--metric", "accuracy", "--out", out, *flags)
    assert code == 2
    assert "unknown metric 'accuracy': choices: error, balanced-error, loss" in error


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_weights_need_a_network_and_are_checked_before_images_are_read(fasteraa, tmp_path, command):
    pytest.importorskip("timm")
    flags = ("no-such-folder", "--weights", tmp_path / "none.pth", "--out", tmp_path / "out")
    assert "need the network that they are for: --network timm:NAME" in fasteraa(command, *flags)[2]
    (tmp_path / "none.pth").write_bytes(b"nothing")
    said = fasteraa(command, *flags, "--network", "timm:test_resnet")[2]
    assert "none.pth" in said
    assert "weights_only" not in said
