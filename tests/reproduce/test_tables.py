"""The recipes hold the paper's numbers, and every one of them is something we can make."""

import json
import re

import pytest

from fasteraa.errors import ConfigError
from fasteraa.methods.config import make_config
from fasteraa.policy.named import named
from fasteraa.reproduce.equal_budget import PUBLISHED, among_best
from fasteraa.reproduce.published_costs import MeasuredCosts, fast_aa_trial, hours
from fasteraa.reproduce.quality import RACED
from fasteraa.reproduce.schema import DATA, NORM_FREE, OURS, Cost, Search, find_recipe
from fasteraa.reproduce.table_runner import not_ready
from fasteraa.reproduce.tables import TABLES, find_table, with_beside
from fasteraa.runtime.run_folder import RunFolder

NAMES = [
    "gpu-hours", "cifar10", "cifar100", "svhn", "reduced-cifar10", "imagenet", "sub-policies", "operation-count",
    "data-size", "policy-training", "quality", "equal-budget", "equal-budget-5",
]  # fmt: skip


def number(name, label, network="", measure=None):
    (paper,) = (
        line.paper
        for line in TABLES[name].lines
        if line.label == label and network in (line.network, line.data, "") and measure in (None, line.measure)
    )
    return paper


def test_every_table_and_figure_is_there():
    assert list(TABLES) == NAMES
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        find_table("cifar-100")


@pytest.mark.parametrize("name", NAMES)
def test_every_line_can_be_made(name):
    table = TABLES[name]
    for line in table.lines:
        assert line.data in DATA
        assert line.measure == "hours" or find_recipe(line.recipe).network == line.network
        assert line.measure in ("error", "error_top5", "hours")
        if isinstance(line.policy, Search):
            make_config(dict(line.policy.settings))
        elif isinstance(line.policy, Cost):
            assert line.policy.method in PUBLISHED
        elif line.policy is not None:
            named(line.policy)
        else:
            assert line.paper is not None  # else there would be nothing to show
    keys = [(line.data, line.recipe, line.label, line.measure) for line in table.lines]
    assert len(set(keys)) == len(keys)


def test_the_papers_numbers():
    assert number("cifar10", OURS, "wrn-40-2") == 3.7
    assert number("cifar10", "baseline", "wrn-28-10") == 3.9
    assert number("cifar10", "cutout", "shake-shake-26-2x32d") == 3.0
    assert number("cifar10", "Fast AA", "shake-shake-26-2x112d") == 2.0
    assert number("cifar100", f"{OURS}, policy from CIFAR-10", "wrn-28-10") == 17.8
    assert number("cifar100", f"{OURS}, policy from CIFAR-100", "shake-shake-26-2x96d") == 15.0
    assert number("cifar100", "PBA", "wrn-28-10") == 16.7
    assert number("svhn", OURS) == 1.2
    assert number("reduced-cifar10", OURS) == 14.8
    assert number("reduced-cifar10", "baseline") == 24.3
    assert number("imagenet", OURS, measure="error") == 23.5
    assert number("imagenet", OURS, measure="error_top5") == 6.8
    assert number("imagenet", "baseline", measure="error") == 24.1
    assert number("gpu-hours", OURS, "svhn") == 0.061
    assert number("gpu-hours", "AA", "imagenet") == 15000
    assert number("data-size", f"{OURS}, searched on 50,000, L = 10") == 4.1
    assert number("policy-training", "random policies") == 2.7
    assert number("quality", "AutoAugment", "reduced-cifar10") == 14.1
    assert number("reduced-cifar10", "AA") == 14.1


def test_searches_are_the_papers():
    for name, source, images in (("cifar10", "cifar10", 4000), ("svhn", "svhn", 1000), ("imagenet", "imagenet", 6000)):
        (search, *_) = (line.policy for line in TABLES[name].lines if line.label == OURS)
        assert (search.source, search.images) == (source, images)
        config = make_config(dict(search.settings))
        assert (config.sub_policies, config.operation_count, config.epochs) == (10, 2, 20)
        assert config.critic == ("resnet-50" if name == "imagenet" else "wrn-40-2")
        assert (config.critic_norm, config.chunk_size) == ("batch", 16 if name == "imagenet" else 8)
    searches = [line.policy for name, table in TABLES.items() if name != "quality" for line in table.lines]
    configs = [make_config(dict(s.settings)) for s in searches if isinstance(s, Search) and not s.budgeted]
    assert {(config.objective, config.critic_norm) for config in configs} == {("paper", "batch")}
    counts = [make_config(dict(line.policy.settings)).sub_policies for line in TABLES["sub-policies"].lines]
    assert counts == [1, 2, 5, 10, 20, 50, 80]
    depths = [make_config(dict(line.policy.settings)).operation_count for line in TABLES["operation-count"].lines]
    assert depths == [1, 2, 3, 4]
    sampled = TABLES["data-size"].lines[-1].policy
    assert (sampled.images, sampled.keep, sampled.settings["sub_policies"]) == (None, 10, 80)
    assert DATA["svhn"].split == "train+extra"
    assert DATA["reduced-cifar10"].subset == 4000


def test_objectives_of_our_own_table():
    """The paper's and ours; the search before a race is that of the defaults."""
    objectives = {}
    for line in TABLES["quality"].lines:
        if isinstance(line.policy, Search):
            objectives.setdefault(line.label, set()).add(make_config(dict(line.policy.settings)).objective)
    assert objectives == {NORM_FREE: {"paper"}, f"{OURS}, floor on diversity": {"diverse"}, RACED: {"diverse"}}


def test_the_paper_trains_with_its_policies_in_chunks():
    """Sixteen images share a sub-policy where a policy of its search is trained with, and nowhere else."""
    for line in TABLES["reduced-cifar10"].lines:
        if line.policy is not None:
            assert find_recipe(line.recipe).chunk_size == (16 if isinstance(line.policy, Search) else 1)


def test_every_method_has_the_same_budget():
    budgets = {
        line.label: (line.policy.minutes, line.policy.per_seed)
        for line in TABLES["equal-budget"].lines
        if isinstance(line.policy, Search) and len(line.policy.methods) == 1 and line.policy.budgeted
    }
    assert set(budgets.values()) == {(1, False)}
    assert {"faster-aa", "fast-aa", "autoaugment", "dada", "random", "randaugment"} <= budgets.keys()
    assert number("equal-budget", "hours of AA as published") == 5000
    assert number("equal-budget", "hours of Faster AA as published") == 0.23


def test_the_best_methods_get_more_minutes(tmp_path):
    """Once the errors with a minute are there; until then it says what to run first."""
    assert with_beside("gpu-hours") == ["gpu-hours", "equal-budget", "equal-budget-5"]
    assert with_beside("equal-budget") == ["equal-budget"]
    table = TABLES["equal-budget-5"]
    why = "3 best methods of equal-budget, of which 0 are finished in .*: first fasteraa reproduce equal-budget --out"
    with pytest.raises(ConfigError, match=why):
        among_best(table, tmp_path)
    assert re.search(why, not_ready("equal-budget-5", tmp_path))
    errors = {"faster-aa": 20.0, "fast-aa": 19.0, "pba": 18.0, "dada": 17.5, "random": None, "race of all": 10.0}
    lines = [
        {"label": label, "measure": "error", "ours": None if error is None else {"mean": error}}
        for label, error in errors.items()
    ]
    (tmp_path / "equal-budget").mkdir()
    (tmp_path / "equal-budget" / "table.json").write_text(json.dumps({"lines": lines}))
    best = among_best(table, tmp_path)
    labels = {line.label for line in table.lines} - {line.label for line in best.lines}
    assert labels == {"faster-aa", "autoaugment", "random", "randaugment"}
    assert not_ready("equal-budget-5", tmp_path) == ""
    assert among_best(TABLES["equal-budget"], tmp_path) == TABLES["equal-budget"]


def test_published_costs_are_extrapolated_from_what_was_measured():
    seen = MeasuredCosts(training=10.0, paper_step=0.05, default_step=0.02, trial=0.2, dada_step=0.1)
    extrapolated = {method: hours(method, seen) for method in PUBLISHED}
    seconds = {method: round(3600 * value, 6) for method, (value, _) in extrapolated.items()}
    assert seconds == {
        "autoaugment": 15_000 * 6.0, "pba": 160.0, "fast-aa": 5 * (6.0 + 200 * 0.2), "faster-aa": 620 * 0.05,
        "dada": 300 * 0.1, "randaugment": 150.0,
    }  # fmt: skip
    assert all(words.startswith("extrapolated: ") for _, words in extrapolated.values())
    assert extrapolated["faster-aa"][1].endswith("(by our defaults 20.0 ms)")
    assert {hours(method, MeasuredCosts(None, None, None, None, None)) for method in PUBLISHED} == {None}


def test_trials_of_folds_that_go_side_by_side(tmp_path):
    """Two folds with three and two trials of which the longer one took 1.5 s: 0.3 s for each."""
    assert fast_aa_trial(tmp_path) is None
    for name, seconds in (("0-a", (0.4, 0.5, 0.6)), ("1-b", (0.3, 0.2))):
        file = RunFolder(tmp_path).of_method("fast-aa") / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"seconds": each}) + "\n" for each in seconds))
    assert fast_aa_trial(tmp_path) == pytest.approx(0.3)
    measured = MeasuredCosts(None, None, None, 0.3, None)
    assert measured.plain()["trials_per_minute"] == pytest.approx(200)
    file = tmp_path / "timings.json"
    assert MeasuredCosts.of(file) == MeasuredCosts(None, None, None, None, None)
    before = MeasuredCosts(10.0, 0.05, 0.02, 0.2, None)
    file.write_text(json.dumps(before.plain()))
    assert MeasuredCosts.of(file) == before
    assert measured.or_else(before) == MeasuredCosts(10.0, 0.05, 0.02, 0.3, None)
