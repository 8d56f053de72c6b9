"""`fasteraa search`, `race` and their neighbours, end to end on small pictures."""

import html
import json
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fasteraa.cli import search as search_module
from fasteraa.cli.search import effective, print_config
from fasteraa.data import large, load
from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.report.outputs import _shown
from fasteraa.report.preview import alternating, draw_sheet
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.recipe import race_recipe
from fasteraa.selection.settings_file import write_settings

QUICK = ["--epochs", 2, "--batch-size", 8, "--sub-policies", 2, "--ops", "flip,invert,rotate", "--device", "cpu"]
TINY = ["--network", "wrn-10-1", "--train-epochs", 1, "--jobs", 1]  # trainings of a race


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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """24 images of 8 x 8 pixels in two classes, which a network tells apart."""
    file = tmp_path_factory.mktemp("pictures") / "pictures.npz"
    x = np.random.default_rng(0).integers(0, 60, (24, 8, 8, 3), dtype=np.uint8)
    y = np.arange(24) % 2
    x[y == 1, :, :4] += 150
    np.savez(file, x_train=x, y_train=y)
    return file


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
    race = ["--race-trainings", 14, "--network", "wrn-10-1", "--train-epochs", 3, "--jobs", 1]
    done = fasteraa("search", photos, "--out", out, "--size", 16, "--tensorboard", *race, *QUICK)
    assert done.returncode == 0, done.stderr
    for words in ("24 images of 2 classes at 16x16", "epoch 2/2: distance", "\n\nUse ", "fasteraa.load("):
        assert words in done.stdout
    policy = Policy.load(out / "policy.json")
    assert set(policy.ops) <= {"flip", "invert", "rotate"}
    assert policy.provenance["data"]["images"] == 24
    told = policy.provenance["race"]
    raced = {row["candidate"] for row in told["table"]}  # those of which most is predicted
    assert "none" in raced
    assert len(raced) >= 5
    assert sum(len(row["errors"]) for row in told["table"]) <= 14
    assert "3 epochs of wrn-10-1" in told["sentence"]
    assert told["length"] == 1  # such trainings were asked for
    assert policy.provenance["candidate"] == told["chosen"] == policy.name
    summary = (out / "summary.txt").read_text()
    assert summary.startswith(told["sentence"])
    assert summary in done.stdout
    result = json.loads((out / "result.json").read_text())
    assert result["recommendation"] == told["sentence"]
    assert {file.stem for file in (out / "candidates").iterdir()} == set(result["candidates"])
    assert Policy.load(out / "candidates" / f"{policy.name}.json").hash == policy.hash
    assert Policy.load(out / "methods/faster-aa/faster-aa.json").provenance["finished"]
    with Image.open(out / "preview.png") as sheet:  # of what is to be used
        data = load(photos, size=16, broken_budget=1.0)
        order = alternating(data.labels)
        assert len(set(data.labels[order[:2]].tolist())) == 2  # classes take turns
        expected = draw_sheet(policy, data.images[order[:64]])
        assert np.array_equal(sheet, expected)
    assert json.loads((out / "broken.jsonl").read_text())["path"].endswith("broken.jpg")
    assert list((out / "tensorboard").iterdir())
    again = fasteraa("search", photos, "--out", out, *QUICK)
    assert (again.returncode, again.stdout) == (2, "")
    assert "holds a run already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--network", "smal"], "did you mean 'small'?"),
        (["--race-minutes", 0], "of the race, minutes must be a positive number, got 0"),
        (["--race-minutes", "inf"], "of the race, minutes must be a positive number, got inf"),
        (["--network", "resnet-50", "--size", 16], "the image side must be at least 32"),
        (["--train-epochs", 0], "of the race, epochs must be a number of at least 1, got 0"),
        (["--race-trainings", 0], "of the race, trainings must be a number of at least"),
        (
            ["--set", "train.learning_rat=1"],
            "of the race, unknown setting 'learning_rat': did you mean 'learning_rate'?",
        ),
        (["--set", "train.epochs=x"], "of the race, epochs must be a whole number, got 'x'"),
        (["--methods", "faster-a"], "unknown method 'faster-a': did you mean 'faster-aa'?"),
        (["--minutes", -1], "minutes must be at least 0, got -1"),
        (["--preset", "papr"], "unknown preset 'papr'; choices: paper"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_the_work(arguments, told, tmp_path, inside):
    done = inside("search", "--out", tmp_path / "run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_network_that_is_not_for_images_so_small_is_noticed_before_the_work(pictures, tmp_path, inside):
    """Without --size it is known only when the images are read."""
    done = inside("search", pictures, "--out", tmp_path / "run", "--network", "resnet-50", *QUICK)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the image side must be at least 32 for network 'resnet-50', got 8" in done.stderr
    assert not (tmp_path / "run" / "config.toml").exists()


def test_data_that_cannot_be_raced_still_have_a_summary(photos, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "bees").symlink_to(photos / "bees")
    done = fasteraa("search", tmp_path / "one", "--out", tmp_path / "run", "--size", 16, *QUICK)
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "run" / "summary.txt").read_text()
    assert summary.startswith("Use faster-aa: it is what its method proposes, and was not raced. There was no race: ")
    assert "a race trains classifiers, which needs images of two classes: there is one" in summary
    assert "suppressed:" in done.stdout
    assert "race" not in Policy.load(tmp_path / "run" / "policy.json").provenance


# --- the race -------------------------------------------------------------------------------------------------------


def test_race(pictures, tmp_path, inside):
    """Of policies that were found elsewhere: images and settings are those of the race."""
    elsewhere = {"data": {"name": "other", "images": 9, "fingerprint": "0"}, "seconds": 3.0}
    Policy((SubPolicy(((Choice("flip", 0.5),),)),), "my own", provenance=elsewhere).save(tmp_path / "mine.json")
    policies = f"uniform,{tmp_path / 'mine.json'},b={tmp_path / 'mine.json'}"
    given = ["race", pictures, "-p", policies, "--out", tmp_path / "run", "--device", "cpu", *TINY]
    done = inside(*given, "--race-trainings", 6, "--set", "train.learning_rate=0.03", "--set", "crop=0.25")
    assert (done.returncode, done.stderr) == (0, "")
    tables = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert tables["run"] == {"methods": ["given"], "race": True}
    assert tables["race"]["trainings"] == 6
    assert tables["train"] == {"learning_rate": 0.03}
    assert tables["search"]["crop"] == 0.25
    policy = Policy.load(tmp_path / "run" / "policy.json")
    assert {row["candidate"] for row in policy.provenance["race"]["table"]} == {"none", "uniform", "my-own", "b"}
    record = json.loads(next((tmp_path / "run" / "race" / "runs").glob("uniform-*.json")).read_text())
    assert (record["recipe"]["learning_rate"], record["recipe"]["crop"]) == (0.03, 0.25)
    again = inside(*given, "--resume")
    assert (again.returncode, again.stderr) == (0, "")
    assert "race, round" not in again.stdout  # nothing was left to train
    assert Policy.load(tmp_path / "run" / "policy.json").provenance["race"] == policy.provenance["race"]
    assert (
        "is for fasteraa race: give it to that command" in inside("search", "-o", tmp_path / "run", "--resume").stderr
    )


def test_where_a_policy_was_made_is_not_where_another_was_found(pictures, tmp_path, inside):
    elsewhere = {"data": {"name": "other", "images": 9, "fingerprint": "0"}, "seconds": 3.0, "method": "x"}
    Policy((SubPolicy(((Choice("invert", 0.5),),)),), "other", provenance=elsewhere).save(tmp_path / "other.json")
    given = ["race", pictures, "-p", f"none,{tmp_path / 'other.json'}", "--out", tmp_path / "run", "--device", "cpu"]
    assert inside(*given, *TINY, "--race-trainings", 2).returncode == 0
    chosen = Policy.load(tmp_path / "run" / "policy.json")
    assert chosen.name == "none"  # which inverted images are not
    assert chosen.provenance["data"]["name"] == "pictures"
    assert chosen.provenance["data"]["size"] == [8, 8]
    assert chosen.provenance["method"] == "race"
    assert "seconds" not in chosen.provenance


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        ("none,FILE,FILE/../mine.json", "two policies are called 'mine'; name one of them: OTHER="),
        ("a=FILE+FILE", "a race takes one policy for each label, 'a' has several"),
        ("none,none", "two policies are called 'none'"),
        ("none,nothing", "no known policy of that name: 'nothing'"),
    ],
)
def test_policies_that_cannot_be_raced(policies, told, tmp_path, inside):
    (tmp_path / "x").mkdir()
    Policy((SubPolicy(((Choice("flip"),),)),), "mine").save(tmp_path / "mine.json")
    given = policies.replace("FILE/..", str(tmp_path / "x/..")).replace("FILE", str(tmp_path / "mine.json"))
    done = inside("race", "-p", given, "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_search_is_raced_when_it_is_resumed(pictures, tmp_path, inside):
    """One without a race stays so, unless it is asked for; settings of a race without one are refused."""
    out = ["--out", tmp_path / "run"]
    assert inside("search", pictures, *out, "--no-race", *QUICK).returncode == 0
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]["race"] is False
    done = inside("search", pictures, *out, "--resume", "--device", "cpu")
    assert (done.returncode, "and was not raced." in done.stdout) == (0, True)
    done = inside("search", pictures, *out, "--resume", "--race-trainings", 9)
    assert done.stderr == "fasteraa: --race-trainings has no effect without a race (--race)\n"
    done = inside(
        "search", pictures, *out, "--resume", "--race", "--race-trainings", 9, *TINY, "--device", "cpu",
        "--set", "train.batch_size=8", "--methods", "faster-aa,published",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "the search was finished" in done.stdout
    tables = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert tables["run"] == {"methods": ["faster-aa", "published"], "race": True}
    assert tables["train"] == {"batch_size": 8}
    assert Policy.load(tmp_path / "run" / "policy.json").provenance["race"]["network"] == "wrn-10-1"
    assert "is for fasteraa search: give it to that command" in inside("race", *out, "--resume").stderr


@pytest.mark.parametrize(("where", "caught"), [("run_race", (signal.SIGTERM,)), ("run_race", ()), ("race_recipe", ())])
def test_stopped_between_the_trainings_of_a_race(pictures, tmp_path, monkeypatch, where, caught, inside):
    """As in one of them, or before them: it says what is kept, and how to continue."""

    def interrupted(*given, **settings):
        raise KeyboardInterrupt(*caught)

    monkeypatch.setattr(f"fasteraa.selection.pipeline.{where}", interrupted)
    given = ["search", pictures, "--out", tmp_path / "run", *QUICK, *TINY, "--race-trainings", 4]
    done = inside(*given, "--methods", "faster-aa,published")
    assert done.returncode == 128 + (signal.SIGTERM if caught else signal.SIGINT)
    where = str(tmp_path / "run")
    assert done.stderr == (
        f"fasteraa: stopped; everything that was finished is kept in {where!r}: add --resume to continue\n"
    )
    assert not (tmp_path / "run" / "policy.json").exists()


@pytest.mark.slow
def test_killed_in_the_race_and_resumed(tmp_path):
    """Whatever the seconds are by then: the schedule stays, and what was trained is not trained again."""
    out = tmp_path / "run"
    arguments = ["search", "--out", str(out), "--subset", "60", "--size", "12", *QUICK]
    arguments += ["--race-minutes", "0.1", "--jobs", "1"]
    process = subprocess.Popen([sys.executable, "-m", "fasteraa", *map(str, arguments)], stdout=subprocess.DEVNULL)
    runs, schedule = out / "race" / "runs", out / "race" / "schedule.json"
    while len(list(runs.glob("[!.]*.json"))) <= 2 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = json.loads(schedule.read_text())
    kept = {file: file.stat().st_mtime_ns for file in runs.glob("[!.]*.json")}  # not what it was writing
    done = fasteraa(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "the race that was begun continues" in done.stdout
    after = json.loads(schedule.read_text())
    for name in ("of", "images", "op-effects"):
        assert after[name] == before[name]
    assert after["setup"]["seconds"] == before["setup"]["seconds"]
    for name in ("candidates", "repeats", "seeds", "epochs"):
        assert after["race"][name] == before.get("race", after["race"])[name]
    rounds = [each["epochs"] for each in before.get("race", {}).get("rounds", [])]
    assert [each["epochs"] for each in after["race"]["rounds"]][: len(rounds)] == rounds
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert Policy.load(out / "policy.json").provenance["race"]["images"] == 60


# --- settings -------------------------------------------------------------------------------------------------------


def test_config_file_flags_and_set(tmp_path):
    (tmp_path / "run.toml").write_text("[search]\nepochs = 7\npenalty = 3.0\n")
    done = fasteraa(
        "config", "--config", tmp_path / "run.toml", "--epochs", 9, "--set", "class_weight=0.5", "--no-flip"
    )
    assert done.returncode == 0
    for line in ("epochs = 9", "penalty = 3.0", "class_weight = 0.5", "flip = false", "sub_policies = 10"):
        assert line in done.stdout.splitlines()


def test_config_prints_a_file_with_everything(tmp_path, capsys):
    given = {"set_": ["train.warmup=2", "random.kept=3"]}
    (tmp_path / "some.toml").write_text("[run]\nmethods = ['random']\n[race]\nminutes = 9.0\n[search]\nepochs = 7\n")
    print_config(given, tmp_path / "some.toml")
    text = capsys.readouterr().out
    (tmp_path / "all.toml").write_text(text)
    printed, asked = effective({}, tmp_path / "all.toml"), effective(given, tmp_path / "some.toml")
    assert (printed.config, printed.race, printed.methods) == (asked.config, asked.race, asked.methods)
    assert [each.settings for each in printed.make_methods()] == [each.settings for each in asked.make_methods()]
    tables = tomllib.loads(text)
    assert set(tables) == {"search", "run", "race", "train", "methods"}
    assert "# learning_rate =" in text.partition("[train]")[2]


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


def test_data_check_says_how_far_it_is(inside, photos, monkeypatch):
    monkeypatch.setattr(large, "_EVERY_S", 0.0)
    assert "reading images: " in inside("data", "check", photos).stdout
    assert "reading images: " not in inside("data", "check", photos, "--json").stdout


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
        (["search", "--critic", "wrn-41-2", "--out", "run"], "depth of a wide resnet"),
        (["search", "--set", "backbone=small", "--out", "run"], "the setting 'backbone' is called 'critic' now"),
        (["search", "--resume", "--out", "run"], "holds no run to resume"),
        (["race", "--resume", "--out", "run"], "holds no run to resume"),
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
        (["--critic", "wrn-41-2"], "depth of a wide resnet"),
        (["--critic", "resnet50"], "did you mean 'resnet-50'"),
        (["--critic", "timm:resnet5"], "did you mean resnet50"),
        (["--critic", "resnet-50", "--size", 16], "the image side must be at least 32"),
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
    arguments = [
        "search",
        "--out",
        str(tmp_path / "run"),
        "--size",
        "12",
        "--no-race",
        *map(str, QUICK[2:]),
        "--epochs",
        "40",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "fasteraa", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / "methods/faster-aa/checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped by SIGINT" in error
    assert "--resume" in error
    done = fasteraa(*arguments, "--resume", "--minutes", "0.02")
    assert done.returncode == 0, done.stderr
    assert "resuming at epoch" in done.stdout
    assert "ended early" in done.stdout


@pytest.mark.parametrize("command", ["search", "race"])
def test_a_run_of_version_01_is_not_resumed(command, tmp_path, inside):
    (tmp_path / "config.toml").write_text('[search]\nepochs = 2\nbackbone = "small"\n')
    done = inside(command, "--resume", "--out", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"fasteraa: the run in {str(tmp_path)!r} is of version 0.1, which this version cannot resume, or lines of "
        "its config.toml are lost: restore the file, or start another run (--out)\n"
    )


def test_the_papers_preset():
    def config(source, **flags):
        return effective(flags, None, "paper", source).config

    imagenet = config("imagenet")
    assert (imagenet.subset, imagenet.classes, imagenet.size) == (6000, 120, 224)
    assert config("cifar10", subset=50).subset == 50
    assert imagenet.objective == "paper"
    assert (imagenet.critic, imagenet.chunk_size) == ("resnet-50", 16)
    cifar = config("cifar10")
    assert (cifar.critic, cifar.critic_norm, cifar.chunk_size, cifar.epochs) == ("wrn-40-2", "batch", 8, 20)
    assert (cifar.choice_temperature, cifar.gate_temperature, cifar.learning_rate) == (0.05, 0.05, 1e-3)
    assert (cifar.beta1, cifar.beta2, cifar.class_weight, cifar.penalty) == (0.0, 0.999, 0.1, 10.0)
    assert config("cifar10", set_=["objective=diverse"]).objective == "diverse"
    assert effective({}, None).config.objective == "diverse"


def test_a_file_has_all_settings_of_a_run_and_flags_are_stronger(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        "[search]\nepochs = 7\n[run]\nmethods = ['faster-aa']\nrace = true\n"
        "[race]\nminutes = 9.0\nnetwork = 'small'\n[train]\nbatch_size = 16\nwarmup = 1\n"
    )
    asked = effective({"set_": ["train.warmup=2", "penalty=3"]}, file, race_flags={"network": "wrn-10-1"})
    assert asked.methods == ("faster-aa",)
    assert (asked.config.epochs, asked.config.penalty) == (7, 3.0)
    assert (asked.race.minutes, asked.race.network) == (9.0, "wrn-10-1")
    assert asked.race.train == {"batch_size": 16, "warmup": 2}
    assert effective({}, file, race=False).race is None
    file.write_text(file.read_text().replace("race = true", "race = false"))
    assert effective({}, file).race is None
    assert effective({}, file, race=True).race.minutes == 9.0


def test_settings_of_a_method_have_its_name_before_theirs(tmp_path):
    """From the shell, in the file of the run, and from there when it is resumed."""
    asked = effective({"set_": ["random.policies=50", "penalty=3"]}, None, methods="published,random,randaugment")
    (published, random, grid) = asked.make_methods()
    assert (published.settings, random.settings.policies, random.settings.kept) == (None, 50, 5)
    assert asked.config.penalty == 3.0
    folder = RunFolder(tmp_path)
    write_settings(folder, asked.config, asked.race, [published, random, grid])
    again = effective({"set_": ["random.kept=2"]}, folder.config)
    assert again.methods == ("published", "random", "randaugment")
    _, random, same = again.make_methods()
    assert (random.settings.policies, random.settings.kept, same.settings) == (50, 2, grid.settings)
    assert [each.name for each in effective({}, folder.config, methods="random").make_methods()] == ["random"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("random.policies=1", "of the method random, policies must be a number of at least 6, got 1"),
        ("random.polices=9", "of the method random, unknown setting 'polices': did you mean 'policies'"),
        ("published.all=9", "the method 'published' has no settings of its own, got all"),
        ("fast-aa.trials=9", "--set fast-aa.trials has no effect without that method: --methods fast-aa,..."),
        ("rando.policies=9", "unknown setting 'rando.policies'"),
    ],
)
def test_wrong_settings_of_a_method(given, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        effective({"set_": [given]}, None, methods="random,published").make_methods()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[search]\nepochs = 1\n[race]\nminute = 1\n",
            "of the race, unknown setting 'minute': did you mean 'minutes'?",
        ),
        ("run = 3\n[search]\n", "[run] must be a table of settings, got run = 3"),
        ("[search]\n[run]\nmethods = 'faster-aa'\n", "methods must be a list of names, got 'faster-aa'"),
        ("[search]\n[run]\nmethods = ['given']\n", "is for fasteraa race: give it to that command"),
        ("[search]\nbackbone = 'small'\n", "is of version 0.1: the setting backbone is called critic now"),
    ],
)
def test_files_that_hold_something_else(text, told, tmp_path, inside):
    (tmp_path / "run.toml").write_text(text)
    done = inside("search", "--config", tmp_path / "run.toml", "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["sample", "cifar10"])
def test_a_known_name_that_is_a_folder_here_is_told(name, photos, tmp_path, inside):
    (tmp_path / name).symlink_to(photos)
    known = inside("data", "check", name, cwd=tmp_path)
    assert f"the folder here is ./{name}\n" in known.stderr
    assert "bees" not in known.stdout
    folder = inside("data", "check", f"./{name}")
    assert (folder.returncode, folder.stderr) == (0, "")
    assert "bees" in folder.stdout


@pytest.mark.parametrize("command", ["search", "race"])
def test_the_command_of_a_report_does_it_again(command, pictures, tmp_path, inside):
    """From the same place, by a shell, with a space in every name."""
    (tmp_path / "my pictures.npz").write_bytes(pictures.read_bytes())
    given = ["my pictures.npz", "--out", "my runs/one", "--race-trainings", 7, "--device", "cpu", *TINY]
    if command == "search":
        given += [*QUICK, "--methods", "faster-aa,published", "--minutes", 60]
    else:
        Policy((SubPolicy(((Choice("flip", 0.5),),)),), "mine").save(tmp_path / "my own.json")
        given += ["-p", "none,uniform,my own.json,other=my own.json"]
    done = inside(command, *given, "--set", "train.learning_rate=0.03", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert inside("report", "my runs/one", "-o", "page.html").returncode == 0
    (line,) = re.findall(f"<code>fasteraa ({command} .*?)</code>", Path("page.html").read_text())
    done = inside(*shlex.split(html.unescape(line)), "--jobs", 1)
    assert (done.returncode, done.stderr) == (0, "")
    again, first = (Policy.load(Path(run) / "policy.json") for run in ("runs/again", "my runs/one"))
    assert again.hash == first.hash  # trainings were counted, so it is the same race
    for what in ("config", "data", "race"):
        assert again.provenance[what] == first.provenance[what]
    kept = [tomllib.loads((Path(run) / "config.toml").read_text()) for run in ("runs/again", "my runs/one")]
    assert kept[0] == kept[1]


# --- published settings ----------------------------------------------------------------------------------------------


def test_published_settings_of_a_method():
    """Its own settings and those of its trainings, as many as it wants unless there is a limit; flags come last."""
    asked = effective({"set_": ["pba.trials=8"]}, None, "paper", "svhn", False, methods="pba")
    (method,) = asked.make_methods()
    assert (method.settings.trials, method.settings.epochs, method.settings.interval) == (8, 160, 3)
    assert asked.race is None
    training = asked.training
    assert (training.network, training.epochs, training.trainings) == ("wrn-40-2", 160, 1_000_000)
    assert training.train["weight_decay"] == 5e-3
    trained = race_recipe(load(None, size=8, subset=20), "cpu", asked.config, training)
    assert (trained.crop, trained.flip, trained.cutout) == (0.0, False, 0)  # as its authors have SVHN
    cifar = effective({}, None, "paper", "cifar10", False, methods="pba")
    trained = race_recipe(load(None, size=8, subset=20), "cpu", cifar.config, cifar.training)
    assert (trained.crop, trained.flip, trained.cutout) == (0.125, True, 16)
    limited = effective({}, None, "paper", "cifar10", True, {"minutes": 9.0}, "autoaugment")
    assert (limited.race.trainings, limited.race.minutes, limited.race.epochs) == (None, 9.0, 120)
    assert limited.race.train == {"learning_rate": 0.01, "weight_decay": 1e-4, "batch_size": 128, "warmup": 0.0}
    assert effective({}, None, "paper", "cifar10", False, methods="fast-aa", minutes=5.0).training.trainings is None
    assert effective({}, None, "paper", "cifar10").race == RaceConfig()  # of the default methods none was published so
    other = effective({"set_": ["train.learning_rate=0.5"]}, None, "paper", "cifar10", False, methods="autoaugment")
    assert other.training.train["learning_rate"] == 0.5
    with pytest.raises(ConfigError, match="pba, autoaugment were published with different trainings"):
        effective({}, None, "paper", "cifar10", methods="pba,autoaugment")


@pytest.mark.parametrize("methods", ["dada", "random", "dada,fast-aa"])
def test_published_methods_without_trainings_of_their_own_run_to_their_end_too(methods):
    asked = effective({}, None, "paper", "cifar10", False, methods=methods)
    assert (asked.training.trainings, asked.training.network) == (1_000_000, None)
    assert effective({}, None, "paper", "cifar10", False, methods=methods, minutes=5.0).training.trainings is None
    if "," not in methods:
        raced = effective({}, None, "paper", "cifar10", methods=f"faster-aa,{methods}")
        assert raced.race == RaceConfig(trainings=1_000_000)


def test_fast_autoaugment_trains_each_set_as_it_was_published():
    def training(source):
        return effective({}, None, "paper", source, False, methods="fast-aa").training

    svhn, imagenet, cifar = map(training, ("svhn", "imagenet", "cifar10"))
    assert [svhn.train[name] for name in ("learning_rate", "weight_decay", "cutout")] == [0.01, 5e-4, 20]
    assert [cifar.train[name] for name in ("learning_rate", "weight_decay", "cutout")] == [0.1, 2e-4, 16]
    assert (imagenet.network, imagenet.epochs, imagenet.train["cutout"]) == ("resnet-50", 270, 0)


@pytest.mark.parametrize("source", ["rsscn7", "reduced.npz", None])
def test_images_of_ones_own_are_searched_all_with_the_settings_for_cifar10(source):
    asked = effective({}, None, "paper", source, False, methods="pba")
    known = effective({}, None, "paper", "cifar10", False, methods="pba")
    assert asked.config == replace(known.config, subset=None, size=None)
    assert asked.training == known.training
    assert asked.note.startswith(f"--preset paper: nothing was published for '{source or 'sample'}', so the search")
    assert known.note == ""


def test_what_nothing_was_published_for_is_said(inside, tmp_path):
    given = ["--preset", "paper", "--no-race", "--methods", "published", "--subset", 20, "--size", 8]
    done = inside("search", *given, "--out", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "nothing was published for 'sample', so the search takes all images and the settings for CIFAR-10"
        in done.stdout
    )


def test_trainings_of_a_method_without_a_race_are_kept_for_a_resume(tmp_path):
    asked = effective({}, None, race=False, race_flags={"network": "small", "epochs": 7}, methods="random")
    folder = RunFolder(tmp_path)
    write_settings(folder, asked.config, asked.race, asked.make_methods(), asked.training)
    again = effective({}, folder.config)
    assert (again.race, again.training) == (None, asked.training)
    assert again.training.epochs == 7


@pytest.mark.parametrize(
    ("methods", "file_races", "words", "unused"),
    [
        ("random", True, ["--no-race", "--jobs", 2, "--train-epochs", 7], ""),
        ("published", False, ["--methods", "random,published", "--jobs", 2], ""),
        ("published", False, ["--jobs", 2, "--engine", "local"], "--jobs, --engine have"),
        ("published,random", False, ["--network", "small"], "--network has"),  # the first method alone is asked
        ("random", False, ["--methods", "faster-aa", "--train-epochs", 7], "--train-epochs has"),
    ],
)
def test_what_trains_is_known_when_file_and_flags_are_one(
    methods, file_races, words, unused, tmp_path, inside, monkeypatch
):
    file = tmp_path / "c.toml"
    file.write_text(f"[run]\nmethods = {methods.split(',')}\nrace = {str(file_races).lower()}\n")
    ran = []
    monkeypatch.setattr(search_module, "run_search", lambda *given, **where: ran.append(where["jobs"]))
    done = inside("search", "--config", file, "--out", tmp_path / "run", *words)
    assert done.stderr == (f"fasteraa: {unused} no effect without a race (--race)\n" if unused else "")
    assert ran == ([] if unused else [2])
