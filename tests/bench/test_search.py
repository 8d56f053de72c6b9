"""The benchmark of a search step runs anywhere, takes turns, and keeps what it measured."""

import json

from typer.testing import CliRunner

from fasteraa.bench.search import CRITIC, FAST, PLAIN, Setting, run
from fasteraa.cli.app import app
from fasteraa.methods.config import SearchConfig

TINY = SearchConfig(batch_size=4, ops=("flip", "invert"), epochs=3)


def test_tables_and_ratios():
    side, subs, stages, batch = run(Setting(TINY, "cpu", 8, images=41), steps=1, rounds=1)
    assert [row.name for row in side.rows] == [PLAIN, FAST, CRITIC]
    assert [row.name for row in subs.rows] == ["sub_policies = 10", "sub_policies = 80"]
    assert len(stages.rows) == 4
    for table in (side, subs, stages, batch):
        assert all(0 < row.milliseconds < 60_000 and row.peak_mib is None for row in table.rows)
    for row, steps in zip(batch.rows, (30, 15, 6), strict=True):  # 41 images, 3 epochs: 10, 5 and 2 steps each
        assert round(1000 * row.search_seconds / row.milliseconds) == steps


def test_the_command_appends_its_record(tmp_path):
    out = tmp_path / "search.jsonl"
    tiny = ["--steps", "1", "--rounds", "1", "--size", "8", "--batch-size", "4", "--device", "cpu", "--no-scaling"]
    for _ in range(2):
        done = CliRunner().invoke(app, ["bench", "search", *tiny, "--set", 'ops=["flip"]', "--out", str(out)])
        assert done.exit_code == 0, done.output
    assert "critic alone" in done.output
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first["bench"] == "search"
    assert first["settings"]["batch_size"] == 4
    assert {"cpu", "torch", "commit"} <= set(second["machine"])
    assert len(second["tables"]) == 1
