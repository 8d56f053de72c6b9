"""The benchmark of applying a policy runs anywhere and keeps what it measured."""

import json

import pytest
from typer.testing import CliRunner

from fasteraa.bench import report
from fasteraa.bench.apply import COPY
from fasteraa.bench.apply_gpu import run_gpu
from fasteraa.cli.app import app


@pytest.mark.filterwarnings("ignore")  # other libraries' own
def test_the_gpu_table(monkeypatch, capsys):
    """On the CPU, where it says nothing about speed: every contender is called and counted."""
    monkeypatch.setattr("fasteraa.bench.apply_gpu.BATCHES", {8: 6})
    (table,) = run_gpu((8,), 0.005, 1, "cpu")
    names = [row.name for row in table.rows]
    assert names[0] == "fasteraa, batch of 6"
    assert {COPY, "fasteraa, batch of 6, recorded", "fasteraa, batch of 6, recorded, no copies"} <= set(names)
    assert all(row.images_per_second > 0 for row in table.rows)
    assert table.best_peer.name == "torchvision v2, uint8 tensor"
    assert table.largest_batch.name == "fasteraa, batch of 6"
    report.publish([table], None)
    said = capsys.readouterr().out
    report.publish([table], None, as_json=True)
    record = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in record["tables"][0]["rows"]] == names
    share = table.speed("fasteraa, batch of 6") / table.speed(COPY)
    assert f"fasteraa, batch of 6: {share:.2f} of the speed of a copy of the batch" in said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_command_appends_its_record(device, tmp_path):
    out = tmp_path / "apply.jsonl"
    arguments = ["--size", "8", "--seconds", "0.01", "--device", device, "--out", str(out)]
    out.write_text('{"bench": "earlier"}\n')
    done = CliRunner().invoke(app, ["bench", "apply", *arguments])
    assert done.exit_code == 0, done.output
    assert "torchvision v2, uint8 tensor" in done.output
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first["bench"] == "earlier"
    assert second["bench"] == "apply"
    assert second["tables"][0]["size"] == 8
    assert second["tables"][0]["device"] == device
