"""The command line as a person meets it."""

import json
import subprocess
import sys

import pytest
import typer

from fasteraa.cli.app import _ORDER, app
from fasteraa.cli.tables import print_table
from fasteraa.ops import OPS
from fasteraa.policy import Policy
from fasteraa.reproduce.tables import TABLES
from fasteraa.runtime.files import unsealed


def fasteraa(*arguments, **options):
    command = [sys.executable, "-m", "fasteraa", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_and_version():
    done = fasteraa("--help")
    assert done.returncode == 0
    for command in ("search", "race", "compare", "report", "ops", "show", "import", "bench"):
        assert command in done.stdout
    assert fasteraa("--version").stdout.strip() == "0.2.0"


def test_without_arguments_it_says_what_to_type_first(inside):
    done = inside()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Type this first:\n  fasteraa search photos/" in done.stdout


def test_commands_stand_in_the_order_in_which_people_need_them():
    command = typer.main.get_command(app)
    names = command.list_commands(None)
    assert names == list(_ORDER)  # a new command needs a place there
    assert set(names) == set(command.commands)


def test_tables_for_programs(inside):
    rows = json.loads(inside("ops", "--json").stdout)
    assert {row["name"] for row in rows} == set(OPS)
    assert json.loads(inside("show", "--list", "--json").stdout)["none"]
    assert Policy.from_json(inside("show", "uniform", "--json").stdout) == Policy.named("uniform")


def test_more_tables_for_programs(inside, tmp_path):
    """Nothing else is printed, so that a program can read it."""
    checked = json.loads(inside("data", "check", "--json").stdout)
    assert (checked["images"], checked["ok"], checked["splits"]["test"]["Bag"]) == (3000, True, 200)
    tables = {row["name"]: row for row in json.loads(inside("reproduce", "--json").stdout)}
    assert set(tables) == set(TABLES)
    assert all(0 <= row["runnable"] <= row["numbers"] for row in tables.values())
    small = ("--subset", 40, "--size", 8, "--race-trainings", 5, "--train-epochs", 1, "--jobs", 1, "--device", "cpu")
    raced = inside("race", "-p", "none,uniform", *small, "--out", tmp_path / "run", "--json")
    assert raced.returncode == 0, raced.stderr
    kept = unsealed(json.loads((tmp_path / "run" / "result.json").read_text()))
    assert json.loads(raced.stdout).items() <= kept.items()
    trained = ("--subset", 40, "--epochs", 1, "--held-out", 0.5, "--device", "cpu", "--out", tmp_path / "compared")
    evaluated = json.loads(inside("evaluate", "-p", "uniform", *trained, "--json").stdout)
    assert evaluated["policy"] == Policy.named("uniform").hash
    assert 0 <= evaluated["error"] <= 100


def test_every_command_that_prints_a_table_has_json():
    """The others print a policy, a file's name, or settings."""
    without = {"preview", "report", "export", "apply", "hub", "import", "config"}
    root = typer.main.get_command(app)
    tabled = [*(root.commands[name] for name in set(root.commands) - without)]
    leaves = [leaf for each in tabled for leaf in (each.commands.values() if hasattr(each, "commands") else [each])]
    assert [leaf.name for leaf in leaves if not any("--json" in each.opts for each in leaf.params)] == []


@pytest.mark.parametrize("group", [(), ("data",), ("hub",), ("bench",)])
def test_no_help_is_cut_off_at_80_columns(group, inside, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = inside(*group, "--help").stdout.split("Commands:\n")[1].splitlines()
    assert shown
    assert all(line.rstrip().endswith(".") and not line.rstrip().endswith("...") for line in shown if line.strip())


def test_a_shell_can_ask_what_comes_next(inside, monkeypatch):
    """What `fasteraa --install-completion` sets up."""
    monkeypatch.setenv("_FASTERAA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fasteraa rep")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert inside().stdout.split() == ["report", "reproduce"]
    monkeypatch.setenv("COMP_WORDS", "fasteraa search --race-t")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert inside().stdout.split() == ["--race-trainings"]


def test_ops_table():
    done = fasteraa("ops")
    assert done.returncode == 0
    assert "sample_pairing" in done.stdout
    assert fasteraa("ops", "--markdown").stdout.startswith("| name | family |")


def test_a_path_is_not_cut_in_a_table(capsys):
    path = "/".join(f"folder-{number}" for number in range(30))
    print_table("Errors", ["policy", "error %"], [[path, "1.00"]])
    lines = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert "".join(lines) == path


def test_show_and_import(tmp_path):
    assert "sharpness(80%" in fasteraa("show", "autoaugment-cifar10").stdout
    source = tmp_path / "found.txt"
    source.write_text('[[["Rotate", 0.5, 0.75], ["Invert", 0.2, 0.1]]]')
    done = fasteraa("import", source, "--out", tmp_path / "new" / "policy.json")
    assert done.returncode == 0, done.stderr
    assert Policy.load(tmp_path / "new" / "policy.json").ops == ["rotate", "invert"]
    assert "rotate(50%, ±15.0°)" in fasteraa("show", tmp_path / "new").stdout  # a folder that holds policy.json


def test_the_names_of_all_policies_that_need_no_file(inside):
    done = inside("show", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {"none", "trivialaugment-wide", "general-or-trivial", "uniform-x2", "randaugment-N-M"} <= set(rows)
    assert all(rows.values())
    for name in rows:
        Policy.named(name.replace("N-M", "2-14").replace("L-K-SEED", "10-2-0"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "trivialaugment"], "did you mean 'trivialaugment-wide'"),
        (["show", "missing.json"], "could not be read: No such file"),
        (["import", "missing.txt", "--out", "x.json"], "could not be read"),
        (["race", "-p", "none"], "a race needs a policy that does something to images, to race against none"),
    ],
)
def test_mistakes_end_with_one_line_and_2(arguments, message, tmp_path):
    done = fasteraa(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_wrong_arguments():
    done = fasteraa("shwo")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
