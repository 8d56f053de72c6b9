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
