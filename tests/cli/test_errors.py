"""Mistakes in the words of a command, Ctrl-C, and output that nobody takes: one line, an exit code, no traceback."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest


def fasteraa(*arguments, **options):
    command = [sys.executable, "-m", "fasteraa", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["config", "--set", f"seed={'9' * 5000}"], "--set takes numbers of at most 300 digits"),
        (["config", "--set", f"fill={'[' * 5000}"], "lists of a few levels"),
        (["config", "--set", "x" * 5000], "--set takes NAME=VALUE"),
        (["config", "--seed", "9" * 5000], "wrong value"),
        (["config", f"--{'x' * 5000}"], "no such flag"),
        (["x" * 5000], "commands: "),
        (["config", "--sub-policies", "1000", "--operation-count", "100"], "at most 2000 stages in all"),
        (["export", "trivialaugment-wide", "--to", "python", "-o", "."], "it is a folder"),
        (["export", "trivialaugment-wide", "--to", "python", "-o", "/dev/null"], "it is a device"),
    ],
    ids=range(9),
)
def test_words_of_any_length_end_with_one_short_line(words, part, inside, tmp_path):
    done = inside(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr) <= 510
    assert len(done.stderr.splitlines()) == 1


def test_escapes_in_names_do_not_reach_the_terminal(inside, tmp_path):
    name = os.fsdecode(b"a\x1b[31m\xe9.py")
    done = inside("export", "trivialaugment-wide", "--to", "python", "-o", tmp_path / name)
    assert done.returncode == 0
    assert (tmp_path / name).exists()
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["serch"], ["'serch'", "commands: apply, bench, compare,", "see fasteraa --help"]),
        (["data", "chek"], ["'chek'", "commands: check", "see fasteraa data --help"]),
        (["search", "--epohcs", "3"], ["no such flag --epohcs: did you mean --epochs?", "see fasteraa search --help"]),
        (["search", "--no-flp"], ["did you mean --no-flip?"]),
        (["search", "--epochs", "x"], ["wrong value 'x' for --epochs", "integer", "see fasteraa search --help"]),
        (["search", "--epochs=1.5"], ["wrong value '1.5' for --epochs"]),
        (["search", "--epochs"], ["'--epochs' requires an argument", "see fasteraa search --help"]),
        (["search", "my", "photos"], ["(photos)", "a name with spaces goes in quotes"]),
        (["preview", "--columns", "0"], ["wrong value '0' for --columns", "1"]),
        (["show"], ["show takes a policy: a file, a run folder or a name (fasteraa show --list)"]),
        (["import", "x.txt"], ["'--out'", "(The policy file to write", "see fasteraa import --help"]),
        (["-x"], ["no such flag -x", "see fasteraa --help"]),
    ],
    ids=" ".join,
)
def test_wrong_words_end_with_one_line_and_2(words, parts):
    done = fasteraa(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for part in ["fasteraa: ", *parts]:
        assert part.lower() in done.stderr.lower()


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["search", "--calibrate"], "--race"),
        (["search", "--no-calibrate"], "--no-race"),
        (["search", "--calibrate-minutes", "3"], "--race-minutes"),
        (["search", "--calibrate-network=small"], "--network"),
        (["search", "--calibrate-epochs", "3"], "--train-epochs"),
        (["search", "--max-minutes", "3"], "--minutes"),
        (["compare", "--max-minutes", "3"], "--minutes"),
        (["reproduce", "--max-minutes", "3"], "--minutes"),
        (["search", "--backbone", "small"], "--critic"),
        (["config", "--backbone", "small"], "--critic"),
        (["bench", "search", "--backbone", "small"], "--critic"),
        (["search", "cifar10", "--recipe"], "--preset paper"),
        (["compare", "--recipe", "cifar/wrn-40-2"], "--preset NAME"),
        (["evaluate", "--recipe=cifar/wrn-40-2"], "--preset NAME"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_flag_of_version_01_names_the_new_one(words, new, inside, tmp_path):
    done = inside(*words, cwd=tmp_path)
    old = next(word for word in words if word.startswith("--")).partition("=")[0]
    command = " ".join(["fasteraa", *words[: 2 if words[0] == "bench" else 1]])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fasteraa: the flag {old} is called {new} now; see {command} --help\n"
    assert list(tmp_path.iterdir()) == []


def test_only_flags_that_are_there_are_named(inside):
    """A race has no preset."""
    assert "no such flag --max-minutes; see" in inside("bench", "search", "--max-minutes", "3").stderr
    assert "no such flag --recipe: did you mean" in inside("race", "--recipe").stderr


@pytest.mark.parametrize(
    "words",
    [["search", "-o", ""], ["search", "--out="], ["compare", "--out", ""], ["report", "run", "-o", ""]],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(words, inside, tmp_path):
    done = inside(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "fasteraa: --out must name a file or folder, got ''\n")
    assert list(tmp_path.iterdir()) == []
    assert "--config must name a file" in inside("search", "--config", "", "--out", "run").stderr


@pytest.mark.parametrize(
    "words",
    [
        ["report", ""], ["import", "", "-o", "a.json"], ["show", ""], ["preview", "", "-p", "none"],
        ["export", "", "--to", "json", "-o", "a.json"], ["search", "", "-o", "run"], ["compare", "", "-o", "run"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_argument_is_not_the_current_folder(words, inside, tmp_path):
    (tmp_path / "policy.json").write_text("{}")
    done = inside(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "fasteraa: an argument must not be empty, got ''\n")
    assert [file.name for file in tmp_path.iterdir()] == ["policy.json"]


@pytest.mark.parametrize("words", [["data"], ["--help"], ["search", "--help"]], ids=" ".join)
def test_help_is_no_mistake(words):
    done = fasteraa(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: fasteraa")


def test_without_words_it_says_what_to_type_first():
    done = fasteraa()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Type this first:\n  fasteraa search photos/" in done.stdout


@pytest.mark.parametrize("after", ["raise", "raise ImportError('half loaded')"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_an_import(tmp_path, name, after):
    """Also when the package that is being imported makes another error of it."""
    (tmp_path / "torch.py").write_text(
        f"import os, signal\ntry:\n    os.kill(os.getpid(), signal.{name})\nexcept KeyboardInterrupt:\n    {after}\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = fasteraa("show", "random", env={**os.environ, "PYTHONPATH": paths})
    assert done.stderr == f"fasteraa: stopped by {name} before it was done\n"
    assert done.returncode == 128 + getattr(signal, name)


SLOW = """
import pathlib, time, PIL.Image
def open_slowly(*given, **settings):
    pathlib.Path("reading").touch()
    time.sleep(600)
PIL.Image.open = open_slowly
"""


def test_a_signal_while_images_are_read(tmp_path):
    """An image that takes long holds nobody up."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)  # Python imports it before anything else
    (tmp_path / "slow.png").write_bytes(b"an image")
    (tmp_path / "all.csv").write_text("path,label\nslow.png,a\n")
    command = [sys.executable, "-m", "fasteraa", "data", "check", "all.csv"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    while not (tmp_path / "reading").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert error == "fasteraa: stopped by SIGINT before it was done\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["ops", "config"])
def test_output_that_cannot_be_written(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fasteraa", words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr == "fasteraa: standard output could not be written: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_output_that_is_closed_is_no_error():
    words = ["sh", "-c", f"'{sys.executable}' -m fasteraa config >&-"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search", "--no-race", "--race-minutes", "5"], "--race-minutes has no effect without a race (--race)"),
        (
            ["search", "--race-trainings", "4", "--race-minutes", "5"],
            "--race-minutes has no effect on a race of 4 trainings: --minutes ends it",
        ),
        (
            ["search", "--no-race", "--network=small", "--train-epochs", "3"],
            "--network, --train-epochs have no effect without a race (--race)",
        ),
        (
            ["search", "--no-race", "--race-trainings", "9", "--pretrained", "--weights", "x", "--jobs", "2"],
            "--race-trainings, --pretrained, --weights, --jobs have no effect without a race (--race)",
        ),
        (
            ["search", "--no-race", "--set", "train.epochs=3"],
            "--set train.epochs has no effect without a race (--race)",
        ),
        (["report", "run", "--port", "9000"], "--port has no effect without --serve"),
        (["reproduce", "--quick"], "--quick has no effect without the name of a table"),
        (["reproduce", "svhn", "--quick", "--device", "cuda"], "--device has no effect with --quick"),
        (["reproduce", "svhn", "--table-only", "--jobs", "2"], "--jobs has no effect with --table-only"),
        (
            ["evaluate", "--preset", "cifar/wrn-28-10", "--network", "small", "--subset", "20"],
            "the recipe is one for wrn-28-10, but the network was to be small",
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_flags_without_an_effect_are_refused(words, told, inside, tmp_path):
    done = inside(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"fasteraa: {told}\n")


def test_a_full_disk_keeps_the_old_file(inside, tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    commands = {
        "a.py": ["export", "trivialaugment-wide", "--to", "python"],
        "a.json": ["export", "trivialaugment-wide", "--to", "json"],
        "a.png": ["preview", "--policy", "trivialaugment-wide", "--size", "16", "--columns", "2"],
    }
    monkeypatch.setattr(os, "fsync", full)
    for name, words in commands.items():
        (tmp_path / name).write_text("old")
        done = inside(*words, "--out", tmp_path / name)
        assert (done.returncode, name in done.stderr) == (2, True), done.stderr
        assert (tmp_path / name).read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(commands)
