"""`fasteraa race -- command`: policies judged by a script that knows nothing of this package."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from fasteraa.export.fidelity import COVERAGE, Coverage, unsupported
from fasteraa.policy import Policy

SCRIPT = """
import json, sys
policy, seed, out = sys.argv[1:]
name = json.load(open(policy))["name"]
if name == "uniform":
    raise SystemExit(3)
score = 0.5 - 0.1 * (name == "cutout") + 0.01 * int(seed)
json.dump({"score": score}, open(out + "/score.json", "w"))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def race(*flags, policies="none,cutout,uniform", words=("{policy}", "{seed}", "{out}")):
    return ["race", "-p", policies, "--out", "run", *flags, "--", sys.executable, "train.py", *words]


def test_a_race_by_a_command(inside, script):
    done = inside(*race("--seeds", 2), cwd=script)
    assert done.returncode == 0, done.stderr
    assert "Use cutout: score 0.405 against 0.505 without augmentation" in done.stdout
    assert "uniform, seed 0: failed, it ended with exit code 3" in done.stdout
    assert Policy.load(script / "run" / "policy.json").hash == Policy.named("cutout").hash
    again = inside(*race("--seeds", 2), cwd=script)
    assert again.stdout.count("seed 0: 0.") == 0  # what was finished is not run again
    assert "Use cutout" in again.stdout
    page = inside("report", "run", cwd=script)
    assert page.returncode == 0, page.stderr
    text = (script / "run" / "report.html").read_text()
    assert "The race is finished" in text
    assert 'id="scores"' in text
    assert "cutout (chosen)" in text


def test_larger_is_better_where_it_is_said(inside, script):
    done = inside(*race("--maximize", "--seeds", 1, policies="none,cutout"), cwd=script)
    assert "Use none: score 0.5" in done.stdout


@pytest.mark.parametrize("target", ["torchvision", "python", "albumentations"])
def test_policies_in_the_format_that_was_asked_for(target, inside, tmp_path):
    if target == "albumentations":
        pytest.importorskip(target)
    code = "import sys; text = open(sys.argv[1]).read(); print('score:', len(text) + ('{' == text[0]))"
    done = inside(
        "race", "-p", "none", "--seeds", 1, "--to", target, "--", sys.executable, "-c", code, "{policy}", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "runs" / "race" / "scores").glob("none-0-*/policy.*")
    assert file.suffix == (".json" if target == "albumentations" else ".py")


def test_a_format_that_cannot_be_written_is_refused_before_the_first_run(inside, script, monkeypatch):
    """A package that is not there, and an operation that the target has not got."""
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    monkeypatch.delitem(sys.modules, "fasteraa.export.kornia", raising=False)
    done = inside(*race("--to", "kornia"), cwd=script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fasteraa: the target 'kornia' needs the package kornia, which is not installed")
    monkeypatch.setitem(COVERAGE, "python", Coverage({}, unsupported("write it")))
    done = inside(*race("--to", "python"), cwd=script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fasteraa: cutout: python cannot do the operation 'cutout': write it")
    assert not (script / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (race("--network", "small"), "--network has no effect on a command: give it to the command itself"),
        (race("--to", "jax"), "--to must be one of torchvision, timm"),
        (race("--run-minutes", 0), "--run-minutes must be above 0, got 0"),
        (race(words=("{policy}", "{lr}")), "a placeholder {lr} that is not known"),
        (["race", "photos", "--", "true", "{policy}"], "reads its own images, got 'photos'"),
        (["race", "--"], "needs the command that trains, after --"),
        (["race", "--seeds", "2"], "--seeds has no effect without a command after --"),
    ],
)
def test_mistakes(flags, message, inside, script):
    done = inside(*flags, cwd=script)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_folder_of_a_search_is_left_alone(inside, script):
    (script / "run").mkdir()
    (script / "run" / "config.toml").write_text("")
    assert "holds a search or a race on images" in inside(*race(), cwd=script).stderr
    (script / "run" / "config.toml").unlink()
    inside(*race("--seeds", 1, policies="none"), cwd=script)
    assert "holds a race by a command" in inside("race", "--out", "run", cwd=script).stderr


def test_ctrl_c_ends_what_runs_and_says_how_to_continue(tmp_path):
    body = "import os, sys, time; open(sys.argv[1] + '.pid', 'w').write(str(os.getpid())); time.sleep(120)"
    (tmp_path / "train.py").write_text(textwrap.dedent(body))
    words = [sys.executable, "-m", "fasteraa", *race("--jobs", "2", policies="none,cutout", words=("{policy}",))]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(pids := list((tmp_path / "run").glob("scores/*/*.pid"))) < 2 or not all(p.read_text() for p in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running = [int(file.read_text()) for file in pids]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "give the same command again to continue" in said
    for pid in running:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list((tmp_path / "run").glob("scores/*/result.json"))
