"""The learning rate from a grid, for each policy in the same way; test images are not looked at."""

import math
from dataclasses import replace

import pytest

import fasteraa
from fasteraa.comparison.contenders import jobs_of, parse_contenders
from fasteraa.comparison.table import tabulate
from fasteraa.comparison.tune import tuned_each
from fasteraa.errors import ConfigError, RunError
from fasteraa.report.comparison import caption, publish, read_comparison
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.runner import run_jobs
from fasteraa.train.tune import RATES

BEST = {"none": 0.1, "uniform": 0.3}


def script(job):
    """Every policy has a rate that suits it."""
    loss = 0.5 + abs(math.log(job.recipe.learning_rate / BEST[job.policy.name]))
    return {"error": 20.0, "held_out_loss": loss, "train_loss": 0.1, "seconds": 1.0, "device": "a device"}


@pytest.fixture
def runner(cache):
    return ScriptedRunner(cache, script)


def test_each_policy_gets_the_rate_that_suits_it(runner, split, quick):
    recipe, lines = replace(quick, learning_rate=0.1), []
    contenders = tuned_each(runner, split, recipe, parse_contenders("none,uniform", 2), lines.append)
    assert [each.learning_rate for each in contenders] == pytest.approx([0.1, 0.3])
    rates = [job.recipe.learning_rate for job in runner.trained]
    assert sorted(rates) == pytest.approx(sorted([factor * 0.1 for factor in RATES] * 2))
    held_out = {job.split.held_out.fingerprint for job in runner.trained}
    assert len(held_out) == 1
    assert held_out.isdisjoint(split.fingerprints)  # a part of the training images
    assert all(len(job.split.train) + len(job.split.held_out) == len(split.train) for job in runner.trained)
    assert [line.split(",")[0] for line in lines] == ["none: learning rate 0.1", "uniform: learning rate 0.3"]
    assert [job.recipe.learning_rate for job in jobs_of(contenders, recipe, [0], split)] == pytest.approx([0.1, 0.3])


def test_the_table_tells_the_rates(runner, split, quick, tmp_path):
    recipe = replace(quick, learning_rate=0.1)
    contenders = tuned_each(runner, split, recipe, parse_contenders("none,uniform", 1), print)
    run_jobs(runner, jobs_of(contenders, recipe, [0], split))
    table = tabulate(runner.cache, split, contenders, recipe, [0], "cpu")
    assert table.missing == 0
    assert "learning rates none 0.1, uniform 0.3" in caption(table)
    publish(table, tmp_path)
    assert read_comparison(tmp_path / "comparison.json") == table
    plain = tabulate(runner.cache, split, parse_contenders("none", 1), recipe, [0], "cpu")
    assert "learning rate" not in caption(plain)


def test_a_policy_for_which_no_rate_works(cache, split, quick):
    runner = ScriptedRunner(cache, lambda job: {"diverged": "lost", "seconds": 1.0})
    with pytest.raises(RunError, match="no learning rate of the grid worked"):
        tuned_each(runner, split, quick, parse_contenders("uniform", 1), print)


def test_what_may_be_tuned(tmp_path):
    with pytest.raises(ConfigError, match="tune_lr must be True"):
        fasteraa.compare(policies="none", out=tmp_path, tune_lr="all")
