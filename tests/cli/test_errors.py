"""Mistakes in the words of a command, Ctrl-C, and output that nobody takes: one line, an exit code, no traceback."""

import os
import signal
import subprocess
import sys

import pytest


def fasteraa(*arguments, **options):
    command = [sys.executable, "-m", "fasteraa", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["serch"], ["'serch'", "commands: bench, compare,", "see fasteraa --help"]),
        (["data", "chek"], ["'chek'", "commands: check", "see fasteraa data --help"]),
        (["search", "--epohcs", "3"], ["no such flag --epohcs: did you mean --epochs?", "see fasteraa search --help"]),
        (["search", "--no-flp"], ["did you mean --no-flip?"]),
        (["search", "--epochs", "x"], ["wrong value 'x' for --epochs", "integer", "see fasteraa search --help"]),
        (["search", "--epochs=1.5"], ["wrong value '1.5' for --epochs"]),
        (["search", "--epochs"], ["'--epochs' requires an argument", "see fasteraa search --help"]),
        (["search", "my", "photos"], ["(photos)", "a name with spaces goes in quotes"]),
        (["preview", "--columns", "0"], ["wrong value '0' for --columns", "1"]),
        (["show"], ["missing argument 'policy' (A policy file, or a name", "see fasteraa show --help"]),
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


@pytest.mark.parametrize("words", [[], ["data"], ["--help"], ["search", "--help"]], ids=" ".join)
def test_help_is_no_mistake(words):
    done = fasteraa(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: fasteraa")


@pytest.mark.parametrize("after", ["raise", "raise ImportError('half loaded')"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_an_import(tmp_path, name, after):
    """Also when the package that is being imported makes another error of it."""
    (tmp_path / "torch.py").write_text(
        f"import os, signal\ntry:\n    os.kill(os.getpid(), signal.{name})\nexcept KeyboardInterrupt:\n    {after}\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = fasteraa("show", "random", env={**os.environ, "PYTHONPATH": paths})
    assert done.stderr == f"fasteraa: stopped by {name} before it was done\n"
    assert done.returncode == 128 + getattr(signal, name)


def test_a_signal_while_images_are_read(tmp_path):
    """A file that does not answer holds nobody up."""
    os.mkfifo(tmp_path / "slow.png")
    (tmp_path / "all.csv").write_text("path,label\nslow.png,a\n")
    command = [sys.executable, "-m", "fasteraa", "data", "check", str(tmp_path / "all.csv")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open(tmp_path / "slow.png", "wb"):  # opens when the other side does
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert error == "fasteraa: stopped by SIGINT before it was done\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fasteraa", "ops"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["search", "--no-calibrate", "--calibrate-minutes", "5"],
            "--calibrate-minutes has no effect with --no-calibrate",
        ),
        (
            ["search", "--no-calibrate", "--calibrate-network=small", "--calibrate-epochs", "3"],
            "--calibrate-network, --calibrate-epochs have no effect with --no-calibrate",
        ),
        (["report", "run", "--port", "9000"], "--port has no effect without --serve"),
        (["reproduce", "--quick"], "--quick has no effect without the name of a table"),
        (["reproduce", "svhn", "--quick", "--device", "cuda"], "--device has no effect with --quick"),
        (["reproduce", "svhn", "--table-only", "--jobs", "2"], "--jobs has no effect with --table-only"),
        (
            ["evaluate", "--recipe", "cifar/wrn-28-10", "--network", "small", "--subset", "20"],
            "the recipe is one for wrn-28-10, but the network was to be small",
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_flags_without_an_effect_are_refused(words, told, inside, tmp_path):
    done = inside(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"fasteraa: {told}\n")
