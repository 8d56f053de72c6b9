"""`fasteraa search` and its neighbours, end to end on small pictures."""

import html
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fasteraa.cli.search import _shown
from fasteraa.data import load
from fasteraa.policy import Policy
from fasteraa.report.preview import alternating, draw_sheet
from fasteraa.methods.config import SearchConfig

QUICK = ["--epochs", 2, "--batch-size", 8, "--sub-policies", 2, "--ops", "flip,invert,rotate", "--device", "cpu"]


def fasteraa(*arguments, **options):
    command = [sys.executable, "-m", "fasteraa", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


def size_of(path):
    with Image.open(path) as image:
        return image.size


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes, several modes, one broken file."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("ants", "bees"):
        (root / name).mkdir()
        for index in range(12):
            image = Image.fromarray(rng.integers(0, 256, (30, 40 - index, 3), dtype=np.uint8))
            mode = ["RGB", "L", "RGBA", "P"][index % 4]
            image.convert(mode).save(root / name / f"{index}.png")
    (root / "bees" / "broken.jpg").write_bytes(b"no picture")
    return root


@pytest.mark.parametrize(("size", "side"), [(None, 128), (32, 32)])
def test_the_preview_shows_photographs_larger_than_a_cpu_searches_on(tmp_path, size, side):
    for name in ("ants", "bees"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (200, 180)).save(tmp_path / name / "1.png")
        Image.new("RGB", (200, 180), "red").save(tmp_path / name / "2.png")
    searched = load(tmp_path, largest=32, held_out=0.5)
    images, masks = _shown(searched, str(tmp_path), SearchConfig(size=size, held_out=0.5), None)
    assert images.shape == (2, 3, side, side)  # not those that were left to a comparison
    assert masks is None


def test_search_on_a_folder(photos, tmp_path):
    out = tmp_path / "run"
    race = ["--calibrate-minutes", 0.01, "--calibrate-network", "wrn-10-1", "--calibrate-epochs", 3]
    done = fasteraa("search", photos, "--out", out, "--size", 16, "--tensorboard", *race, *QUICK)
    assert done.returncode == 0, done.stderr
    for words in ("24 images of 2 classes at 16x16", "epoch 2/2: distance", "suppressed:", "fasteraa.load("):
        assert words in done.stdout
    policy = Policy.load(out / "policy.json")
    assert set(policy.ops) <= {"flip", "invert", "rotate"}
    assert policy.provenance["data"]["images"] == 24
    assert "How much of it to apply:" in done.stdout
    table = policy.provenance["calibration"]["table"]
    assert {"none", "found, 2 passes", "start", "general", "uniform"} <= {row["candidate"] for row in table}
    assert "3 epochs of wrn-10-1" in policy.provenance["calibration"]["sentence"]
    assert policy.provenance["calibration"]["credit"] == 0  # such trainings were asked for
    assert policy.provenance["calibration"]["sentence"] in (out / "summary.txt").read_text()
    assert Policy.load(out / "found.json").provenance["finished"]
    with Image.open(out / "preview.png") as sheet:  # of what is to be used, not of what calibration set aside
        data = load(photos, size=16, broken_budget=1.0)
        order = alternating(data.labels)
        assert len(set(data.labels[order[:2]].tolist())) == 2  # classes take turns
        expected = draw_sheet(policy, data.images[order[:64]])
        assert np.array_equal(sheet, expected)
    assert (out / "summary.txt").read_text().startswith("found on")
    assert json.loads((out / "broken.jsonl").read_text())["path"].endswith("broken.jpg")
    assert list((out / "tensorboard").iterdir())
    again = fasteraa("search", photos, "--out", out, *QUICK)
    assert (again.returncode, again.stdout) == (2, "")
    assert "holds a run already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--calibrate-network", "smal"], "did you mean 'small'?"),
        (["--calibrate-minutes", 0], "--calibrate-minutes must be a positive number, got 0"),
        (["--calibrate-minutes", "inf"], "--calibrate-minutes must be a positive number, got inf"),
        (["--calibrate-network", "resnet-50", "--size", 16], "the image side must be at least 32"),
        (["--calibrate-epochs", 0], "--calibrate-epochs"),
    ],
)
def test_a_race_that_cannot_be_is_refused_before_the_search(arguments, told, tmp_path, inside):
    done = inside("search", "--out", tmp_path / "run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (tmp_path / "run").exists()


def test_data_that_cannot_be_raced_still_have_a_summary(photos, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "bees").symlink_to(photos / "bees")
    done = fasteraa("search", tmp_path / "one", "--out", tmp_path / "run", "--size", 16, *QUICK)
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "run" / "summary.txt").read_text()
    assert "calibration trains classifiers, which needs images of two classes: there is one" in summary
    assert "The policy is as the search found it." in done.stdout
    assert "calibration" not in Policy.load(tmp_path / "run" / "policy.json").provenance


def test_a_network_that_is_not_for_images_so_small_still_leaves_a_summary(photos, tmp_path, monkeypatch):
    """Without --size it is known only when the images are read, as the search begins."""
    from fasteraa.cli import search as module

    monkeypatch.setattr(module, "_check_network", lambda race, size: None)
    flags = {"size": 16, "epochs": 1, "batch_size": 8, "ops": "flip,invert", "set_": ["broken_budget=0.5"]}
    race = module.Race(0.01, "resnet-50")
    module.run_search(str(photos), tmp_path / "run", flags, None, False, "cpu", None, False, None, race, [])
    summary = (tmp_path / "run" / "summary.txt").read_text()
    assert "the image side must be at least 32" in summary
    assert summary.endswith("The policy is as the search found it.\n")


@pytest.mark.parametrize(
    ("where", "caught"), [("calibrate", (signal.SIGTERM,)), ("calibrate", ()), ("race_recipe", ())]
)
def test_stopped_between_the_trainings_of_a_calibration(photos, tmp_path, monkeypatch, where, caught):
    """As in one of them, or before them: it is said that a policy is there, and how to go on."""
    from fasteraa.cli import search as module
    from fasteraa.errors import Stopped

    def interrupted(*given, **settings):
        raise KeyboardInterrupt(*caught)

    monkeypatch.setattr(f"fasteraa.selection.race.{where}", interrupted)
    flags = {"size": 16, "epochs": 1, "batch_size": 8, "ops": "flip,invert", "set_": ["broken_budget=0.5"]}
    race = module.Race(0.01)
    with pytest.raises(Stopped, match="add --resume to calibrate it") as stopped:
        module.run_search(str(photos), tmp_path / "run", flags, None, False, "cpu", None, False, None, race, [])
    assert stopped.value.signal == (signal.SIGTERM if caught else signal.SIGINT)


@pytest.mark.slow
def test_killed_in_calibration_and_resumed(tmp_path):
    """Whatever the seconds are by then: the plan stays, and what was trained is not trained again."""
    out = tmp_path / "run"
    arguments = ["search", "--out", str(out), "--subset", "60", "--size", "12", "--calibrate-minutes", "0.1", *QUICK]
    process = subprocess.Popen([sys.executable, "-m", "fasteraa", *map(str, arguments)], stdout=subprocess.DEVNULL)
    cells = out / "calibration"
    while len(list(cells.glob("*/cells/[!.]*.json"))) <= 2 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = json.loads((out / "calibration" / "race.json").read_text())
    kept = {file: file.stat().st_mtime_ns for file in cells.glob("*/cells/[!.]*.json")}  # not what it was writing
    done = fasteraa(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "calibrating: the race that was begun goes on" in done.stdout
    after = json.loads((out / "calibration" / "race.json").read_text())
    for name in ("candidates", "images", "seeds", "epochs", "setup_seconds"):
        assert after[name] == before[name]
    assert [each["epochs"] for each in after["rounds"]][: len(before["rounds"])] == [
        each["epochs"] for each in before["rounds"]
    ]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert Policy.load(out / "policy.json").provenance["calibration"]["images"] == 60


def test_config_file_flags_and_set(tmp_path):
    (tmp_path / "run.toml").write_text("[search]\nepochs = 7\npenalty = 3.0\n")
    done = fasteraa(
        "config", "--config", tmp_path / "run.toml", "--epochs", 9, "--set", "class_weight=0.5", "--no-flip"
    )
    assert done.returncode == 0
    for line in ("epochs = 9", "penalty = 3.0", "class_weight = 0.5", "flip = false", "sub_policies = 10"):
        assert line in done.stdout.splitlines()


def test_preview_and_data_check(photos, tmp_path):
    sheet = tmp_path / "new" / "sheet.png"
    done = fasteraa("preview", photos, "--policy", "autoaugment-svhn", "--out", sheet, "--size", 24)
    assert done.returncode == 0, done.stderr
    assert size_of(sheet)[1] > 500
    for index in range(4):  # more than the budget: a preview does not mind
        (photos / "ants" / f"broken{index}.png").write_bytes(b"no picture")
    again = fasteraa("preview", photos, "--out", sheet)
    for index in range(4):
        (photos / "ants" / f"broken{index}.png").unlink()
    assert again.returncode == 0, again.stderr
    checked = fasteraa("data", "check", photos)
    assert checked.returncode == 0, checked.stderr
    assert "broken.jpg" in checked.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nowhere", "--out", "run"], "nowhere"),
        (["search", "cifar11", "--out", "run"], "did you mean 'cifar10'"),
        (["search", "--ops", "flip,rotat", "--out", "run"], "did you mean 'rotate'"),
        (["search", "--epochs", "0", "--out", "run"], "epochs must be a number of at least 1"),
        (["search", "--set", "penalty", "--out", "run"], "--set takes NAME=VALUE"),
        (["search", "--set", "penalt=3", "--out", "run"], "did you mean 'penalty'"),
        (["search", "--config", "none.toml", "--out", "run"], "could not be read"),
        (["search", "--device", "gpu", "--out", "run"], "unknown device 'gpu'"),
        (["search", "--backbone", "wrn-41-2", "--out", "run"], "depth of a wide resnet"),
        (["search", "--resume", "--out", "run"], "holds no run to resume"),
        (["search", "--recipe", "--out", "run"], "no recipe for 'sample'"),
        (["preview", "--policy", "nothing"], "no known policy of that name: 'nothing'"),
        (["preview", "--out", "sheet"], "must be a file that ends in .png, .jpg or .webp, got 'sheet'"),
        (["data", "check", "nowhere"], "nowhere"),
    ],
)
def test_mistakes(arguments, message, tmp_path, inside):
    done = inside(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "flip,rotat"], "did you mean 'rotate'"),
        (["--backbone", "wrn-41-2"], "depth of a wide resnet"),
        (["--backbone", "resnet50"], "did you mean 'resnet-50'"),
        (["--backbone", "timm:resnet5"], "did you mean resnet50"),
        (["--backbone", "resnet-50", "--size", 16], "the image side must be at least 32"),
        (["--set", 'spans={rotate={at_zero=0,at_one=9,unit="px"}}'], "must have the unit degree"),
        (["--set", "epochs=x"], "epochs must be a whole number, got 'x'"),
    ],
)
def test_config_refuses_what_search_refuses(arguments, message, tmp_path, inside):
    for command in (["config"], ["search", "nowhere", "--out", tmp_path / "run"]):
        done = inside(*command, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr  # and not that there is no such source: nothing was read
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_interrupted_and_resumed(tmp_path):
    arguments = ["search", "--out", str(tmp_path / "run"), "--size", "12", *map(str, QUICK[2:]), "--epochs", "40"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fasteraa", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped by SIGINT" in error
    assert "--resume" in error
    done = fasteraa(*arguments, "--resume", "--max-minutes", "0.02")
    assert done.returncode == 0, done.stderr
    assert "resuming at epoch" in done.stdout
    assert "ended early" in done.stdout


def test_a_run_from_before_there_was_a_choice_of_objectives_is_resumed(photos, tmp_path, capsys):
    """By the command, which reads the settings of the run: that had the paper's."""
    from fasteraa.cli.search import run_search

    def run(resume, **flags):
        flags |= {"size": 16, "batch_size": 8, "sub_policies": 2, "ops": "flip,invert,rotate"}
        run_search(str(photos), tmp_path, {} if resume else flags, None, False, "cpu", None, resume, None, None, [])

    run(resume=False, epochs=1, set_=["objective=paper", "broken_budget=0.5"])
    file = tmp_path / "config.toml"
    file.write_text(file.read_text().replace('objective = "paper"\n', ""))
    capsys.readouterr()
    run(resume=True)
    assert 'objective = "paper"' in file.read_text()
    assert "the search was finished" in capsys.readouterr().out


def test_the_papers_recipes():
    from fasteraa.cli.search import effective_config

    imagenet = effective_config({}, None, "imagenet")
    assert (imagenet.subset, imagenet.classes, imagenet.size) == (6000, 120, 224)
    assert effective_config({"subset": 50}, None, "cifar10").subset == 50
    assert imagenet.objective == "paper"
    assert effective_config({"set_": ["objective=diverse"]}, None, "cifar10").objective == "diverse"
    assert effective_config({}, None, None).objective == "diverse"


@pytest.mark.parametrize("name", ["sample", "cifar10"])
def test_a_known_name_that_is_a_folder_here_is_told(name, photos, tmp_path, inside):
    (tmp_path / name).symlink_to(photos)
    known = inside("data", "check", name, cwd=tmp_path)
    assert f"the folder here is ./{name}\n" in known.stderr
    assert "bees" not in known.stdout
    folder = inside("data", "check", f"./{name}")
    assert (folder.returncode, folder.stderr) == (0, "")
    assert "bees" in folder.stdout


def test_the_command_of_a_report_does_it_again(photos, tmp_path, monkeypatch):
    """From the same place, by a shell, with a space in every name."""
    from fasteraa.cli.search import Race, run_search
    from fasteraa.report.page import Options, write_report

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").symlink_to(photos)
    flags = {"size": 16, "epochs": 1, "batch_size": 8, "ops": "flip,invert", "set_": ["broken_budget=0.5"]}
    given = (None, False, "cpu", None, False, None)
    run_search("my photos", Path("my runs/one"), flags, *given, Race(0.01, "small", 1), [])
    known = json.loads(Path("my runs/one/source.json").read_text())
    assert known["calibrate-minutes"] == "0.01"
    assert (known["calibrate-network"], known["calibrate-epochs"]) == ("small", "1")
    run_search("my photos", Path("my runs/two"), flags, *given, None, [])
    write_report(Path("my runs/two"), Path("page.html"), Options())
    (command,) = re.findall("<code>fasteraa (search .*?)</code>", Path("page.html").read_text())
    done = fasteraa(*shlex.split(html.unescape(command)))
    assert done.returncode == 0, done.stderr
    again, first = (Policy.load(Path(run) / "policy.json") for run in ("runs/again", "my runs/two"))
    for what in ("config", "data"):
        assert again.provenance[what] == first.provenance[what]
    assert "calibration" not in again.provenance
