"""`fasteraa reproduce NAME --quick` for every name, and what is kept, cut short and said."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fasteraa.data import load
from fasteraa.errors import ConfigError, DataError, RaceError, RunError, Stopped
from fasteraa.methods.config import make_config, read_config
from fasteraa.policy import Policy
from fasteraa.policy.named import named
from fasteraa.reproduce import TABLES, LineResult, Reproduction, reproduce, search_store, searches, setting, trainings
from fasteraa.reproduce.plot import to_svg
from fasteraa.reproduce.render import caption, summary, to_dict, to_markdown
from fasteraa.reproduce.result import standings
from fasteraa.reproduce.search_store import sample_sub_policies
from fasteraa.reproduce.setting import parse_sources
from fasteraa.selection import pipeline
from fasteraa.train.runner import Engine
from fasteraa.train.runner.local import LocalRunner

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One folder for all tables: they share searches and runs."""
    return tmp_path_factory.mktemp("reproduce")


def quick(name, out, **options):
    said = []
    result = reproduce(name, out, quick=True, jobs=1, say=said.append, **options)
    return result, said


@pytest.mark.parametrize("name", [name for name in TABLES if name != "equal-budget-5"])  # as equal-budget
def test_every_table_runs(name, shared):
    result, _ = quick(name, shared)
    table = TABLES[name]
    ours = [row for row in result.lines if row.line.policy is not None]
    assert len(result.lines) == len(table.lines)
    assert all(len(row.values) == 1 for row in ours)
    assert all(0 <= value <= 100 for row in ours for value in row.values.values())
    assert all(row.remark.endswith("not searched for this table") for row in result.lines if row.line.policy is None)
    folder = shared / name
    page = (folder / "table.md").read_text()
    assert page.startswith(f"{table.title}; {table.unit}. QUICK:")
    ranked = 2 + len({line.label for line in table.lines}) if table.ranked else 0
    assert page.count("\n|") == 2 + len(table.lines) + ranked
    assert f"{len(ours)} of {len(ours)} numbers were measured in full" in page
    content = json.loads((folder / "table.json").read_text(), parse_constant=pytest.fail)
    assert [line["paper"] for line in content["lines"]] == [line.paper for line in table.lines]
    assert content["quick"]
    root = ElementTree.parse(folder / "table.svg").getroot()
    marks = [each.get("class") for each in root.iter(f"{SVG}circle")]
    plotted = [row for row in ours if name != "equal-budget" or row.line.measure == "error"]  # one scale has one unit
    assert marks.count("mean") == len(plotted) + 1  # and one in the legend
    rings = 0 if name == "equal-budget" else sum(line.paper is not None for line in table.lines) + 1
    assert marks.count("ring") == rings


def test_a_quick_table_says_which_network_made_our_number(tmp_path):
    result, said = quick("reduced-cifar10", tmp_path, only="cutout")
    assert "| reduced-cifar10 | wrn-28-10 (ours: small) | cutout | 22.5 |" in to_markdown(result)
    assert "reduced-cifar10, wrn-28-10 (ours: small), cutout" in to_svg(result)
    assert {line["network"] for line in to_dict(result)["lines"]} == {"small"}
    assert [text.split(",")[0] for text in said] == ["1/1 cutout small"]


def test_the_papers_search_may_have_our_critic(tmp_path):
    result, _ = quick("reduced-cifar10", tmp_path, only="Faster AA", norm_free=True)
    assert result.table.title.endswith(", norm-free critic")
    (row,) = [row for row in result.lines if row.values]
    assert (row.line.label, row.line.recipe) == ("Faster AA, norm-free critic", "cifar/wrn-28-10")
    (file,) = (tmp_path / "searches").glob("*/config.toml")
    config = read_config(file)
    assert (config["critic_norm"], config["chunk_size"], config["objective"]) == ("none", 1, "paper")


def test_recipes_may_be_tuned_first(tmp_path):
    """On held-out training images, and the table says to what; without a run the same table follows."""
    result, said = quick("reduced-cifar10", tmp_path, only="cutout", tune=True)
    assert sum(text.startswith("6/6 none, learning rate") for text in said) == 1
    assert any("the best of 6 without a policy on held-out training images" in text for text in result.remarks)
    again, _ = quick("reduced-cifar10", tmp_path, only="cutout", tune=True, table_only=True)
    values = {row.line.label: row.values for row in result.lines}
    assert [row.values for row in again.lines if row.line.label == "cutout"] == [values["cutout"]]


def test_standings():
    """Ranks are shared by equals; significance is that of paired seeds."""

    def row(data, label, *values):
        line = replace(TABLES["quality"].lines[0], data=data, label=label)
        return LineResult(line, dict(enumerate(values)), "")

    rows = (
        row("a", "none", 10.0, 11.0, 12.0),
        row("a", "x", 9.0, 10.1, 11.0),
        row("a", "y", 14.0, 9.0, 10.0),
        row("b", "none", 5.0, 5.0),
        row("b", "x", 6.0, 6.1),
        row("c", "x"),
    )
    result = Reproduction(TABLES["quality"], rows, 3, False, (), ())
    first, second, third = standings(result, ("none",))
    assert (first.label, first.rank, first.sets) == ("x", 1.5, 2)
    assert (second.label, second.rank) == ("none", 1.75)  # 2.5 of 3, shared with y, and 1 of 2
    assert (third.label, third.rank, third.sets) == ("y", 2.5, 1)
    assert (first.better["none"], first.worse["none"]) == (1, 1)
    page = to_markdown(result)
    assert "| a | wrn-28-10 | x | 24.3 | 10.03 ± 2.49 | 3 | 1 | -0.97 ± 0.14 (p 0.001) | - |  |" in page
    assert "| b | wrn-28-10 | none | 24.3 | 5.00 ± 0.00 | 2 | 1 | - | - |  |" in page
    assert "| c |" not in page
    assert "Nothing was run on c." in page
    assert (third.better["none"], third.worse["none"]) == (0, 0)
    assert "| x | 1.50 | 2 | 1 / 1 |" in to_markdown(result)


def test_equal_errors_share_a_rank_whatever_their_order():
    line = replace(TABLES["quality"].lines[0], data="a")
    errors = {"none": (12.3, 14.7, 12.1), "x": (12.1, 12.3, 14.7)}  # whose sums differ in the last digit
    rows = tuple(LineResult(replace(line, label=label), dict(enumerate(each)), "") for label, each in errors.items())
    result = Reproduction(TABLES["quality"], rows, 3, False, (), ())
    assert [standing.rank for standing in standings(result, ("none",))] == [1.5, 1.5]


def test_lines_with_and_without_a_race_share_the_search(shared):
    """Its own policy stays beside the one that the race chose."""
    quick("quality", shared)
    folders = [race.parent for race in (shared / "searches").glob("fashion-mnist-*/race")]
    assert len(folders) == 3
    for folder in folders:
        plain, raced = (Policy.load(folder / name) for name in ("methods/faster-aa/faster-aa.json", "policy.json"))
        assert "race" not in plain.provenance
        assert raced.provenance["race"]["folds"] >= 2
        assert raced.provenance["data"] == plain.provenance["data"]


def test_a_search_is_told_once(tmp_path):
    """With what tells it from others; the race continues from it."""
    _, said = quick("quality", tmp_path, only=["ants-and-bees"])
    told = [text.split(":")[0] for text in said if text.startswith("search ")]
    what = "search on 40 images of ants-and-bees, {}, L = 10, K = 2, seed 0"
    assert told == [what.format("paper"), what.format("diverse")]


def test_searches_and_races_flip_as_the_network_is_trained(tmp_path, monkeypatch):
    """Not SVHN: a race of mirrored digits is about other data."""
    raced = []

    def race(candidates, task, *_, **__):
        raced.append(task.recipe)
        raise RaceError("enough")

    monkeypatch.setattr(pipeline, "run_race", race)
    with pytest.raises(RunError, match="enough"):
        quick("quality", tmp_path, only=["search and race"])
    configs = {path.name: make_config(read_config(path / "config.toml")) for path in (tmp_path / "searches").iterdir()}
    assert {name.split("-")[0] for name, config in configs.items() if not config.flip} == {"svhn"}
    assert sorted(recipe.flip for recipe in raced) == [False] + [True] * (len(configs) - 1)


def test_nothing_is_run_twice(shared, monkeypatch):
    before, _ = quick("policy-training", shared)
    monkeypatch.setattr(searches, "run_search", lambda *_, **__: pytest.fail("searched again"))
    monkeypatch.setattr(LocalRunner, "train_group", lambda *_, **__: pytest.fail("trained again"))
    after, said = quick("policy-training", shared)
    assert [row.values for row in after.lines] == [row.values for row in before.lines]
    assert said == ["3 of 3 runs are there already"]


def test_top_five_errors_are_those_of_the_same_runs(shared):
    result, _ = quick("imagenet", shared)
    records = [json.loads(file.read_text()) for file in (shared / "runs").glob("baseline-small-0-*.json")]
    (record,) = [record for record in records if record["data"]["name"] == "imagenet"]
    top1, top5 = (row.values[0] for row in result.lines if row.line.label == "baseline")
    assert (top1, top5) == (record["error"], record["error_top5"])
    assert top5 < top1


def test_tables_share_their_searches(tmp_path):
    """L = 10 and K = 2 are the search of the CIFAR-10 table."""
    quick("cifar10", tmp_path)
    quick("sub-policies", tmp_path)
    quick("operation-count", tmp_path)
    names = [path.name for path in (tmp_path / "searches").iterdir() if path.name.startswith("cifar10-4000-L10-K2-0-")]
    assert len(names) == 1


def test_reduced_networks_are_trained_on_the_images_of_the_search(tmp_path):
    quick("reduced-cifar10", tmp_path)
    (folder,) = (tmp_path / "searches").iterdir()
    searched = Policy.load(folder / "policy.json").provenance["data"]["fingerprint"]
    records = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*.json")]
    trained = {r["data"]["fingerprint"] for r in records if r["data"]["images"] == 30}
    assert trained == {searched}


def test_policies_of_a_search_differ_by_seed_and_are_paired_with_runs(tmp_path):
    result, said = quick("policy-training", tmp_path, seeds=2)
    assert [row.ours.n for row in result.lines] == [2, 2, 2]
    assert sum(text.startswith("search on 30 images of cifar10") for text in said) == 2
    policies = [Policy.load(file).hash for file in sorted((tmp_path / "searches").glob("*/policy.json"))]
    used = [json.loads(file.read_text())["policy"]["hash"] for file in sorted(tmp_path.glob("runs/trained*.json"))]
    assert sorted(policies) == sorted(used)
    assert len(set(used)) == 2


def test_sampled_sub_policies():
    policy = named("random", sub_policies=20)
    kept = sample_sub_policies(policy, 5, 0)
    assert len(kept.sub_policies) == 5
    assert all(sub in policy.sub_policies for sub in kept.sub_policies)
    assert kept == sample_sub_policies(policy, 5, 0)
    assert kept != sample_sub_policies(policy, 5, 1)
    assert sample_sub_policies(policy, None, 0) is policy
    assert sample_sub_policies(policy, 20, 0) is policy


def test_a_time_limit_leaves_a_table_that_says_so(tmp_path):
    result, said = quick("policy-training", tmp_path, minutes=0)
    assert said[-1].startswith("time is up: 2 of 2 runs are missing")
    assert [row.remark for row in result.lines] == ["not run", "not run", "not in the paper; not run"]
    assert (
        "0 of 3 numbers were measured in full, 0 in part, 3 not at all."
        in (tmp_path / "policy-training" / "table.md").read_text()
    )
    ElementTree.parse(tmp_path / "policy-training" / "table.svg")
    full, _ = quick("policy-training", tmp_path)
    assert [len(row.values) for row in full.lines] == [1, 1, 1]


def test_a_table_from_what_is_there(shared, monkeypatch):
    quick("policy-training", shared)
    monkeypatch.setattr(searches, "run_search", lambda *_, **__: pytest.fail("searched"))
    result, said = quick("policy-training", shared, seeds=2, table_only=True)
    assert [row.ours.n for row in result.lines] == [1, 1, 1]
    assert [row.remark for row in result.lines] == ["1 of 2 runs", "1 of 2 runs", "not in the paper; 1 of 2 runs"]
    assert "0 of 3 numbers were measured in full, 3 in part" in summary(result)
    assert said == []


def test_only_some_lines(tmp_path):
    result, _ = quick("cifar10", tmp_path, only=["WRN-40-2", "trivial"])
    (run,) = [row for row in result.lines if row.values]
    assert (run.line.network, run.line.label) == ("wrn-40-2", "TrivialAugment (wide)")
    result, _ = quick("cifar10", tmp_path, only="WRN-40-2")
    run = {row.line.network for row in result.lines if row.values}
    assert run == {"wrn-40-2"}
    assert sum(row.remark.endswith("not asked for") for row in result.lines) == 20  # they may have been run before
    assert "20 more were not asked for: --table-only without --only shows them, too." in to_markdown(result)
    assert "Ours: one run for every number; runs on " in caption(result)
    with pytest.raises(ConfigError, match="no line of cifar10 that can be run has 'wrn' and 'PBA'"):
        quick("cifar10", tmp_path, only=["wrn", "PBA"])


def test_a_part_takes_no_place_of_the_whole_table(shared):
    quick("policy-training", shared)
    folder = shared / "policy-training"
    whole = {file: file.read_text() for file in folder.glob("table.*")}
    part, _ = quick("policy-training", shared, only="Random policies", table_only=True)
    assert {file: file.read_text() for file in whole} == whole
    assert (folder / "table-only-random-policies.md").read_text() == to_markdown(part)
    everything, _ = quick("policy-training", shared, only="wrn-28-10", table_only=True)
    assert everything.file == "table"


def test_a_whole_name_is_not_part_of_another(tmp_path):
    result, _ = quick("quality", tmp_path, only=["Reduced-CIFAR10", "none"])
    assert [row.line.data for row in result.lines if row.values] == ["reduced-cifar10"]


def test_ctrl_c_still_leaves_a_table(tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise Stopped("stopped", 2)

    monkeypatch.setattr(trainings, "run_jobs", stop)
    with pytest.raises(Stopped):
        quick("policy-training", tmp_path)
    assert "3 not at all" in (tmp_path / "policy-training" / "table.md").read_text()


# --- real data stands in -------------------------------------------------------------------------------------------


def test_a_search_that_fails_does_not_end_the_others(tmp_path, monkeypatch):
    """An objective may diverge on some data; the rest of the table is made, and says so."""
    plain = searches.run_search

    def search(data, config, **given):
        if config.objective == "paper":
            raise RunError("a loss was not finite in epoch 1")
        return plain(data, config, **given)

    monkeypatch.setattr(searches, "run_search", search)
    result, said = quick("quality", tmp_path, only=["ants-and-bees"])
    empty = [row.line.label for row in result.lines if row.line.data == "ants-and-bees" and not row.values]
    assert empty == ["Faster AA, norm-free critic"]
    assert any("a loss was not finite" in text for text in said)
    assert "A search failed, ants-and-bees" in to_markdown(result)


def test_a_run_that_diverges_is_a_remark(tmp_path, monkeypatch):
    from fasteraa.train.training import Training

    step = Training.step

    def diverging(self, images, labels):
        return step(self, images, labels) + (math.nan if self.recipe.cutout else 0.0)

    monkeypatch.setattr(Training, "step", diverging)
    result, _ = quick("reduced-cifar10", tmp_path, only=["cutout"])
    assert not any(row.values for row in result.lines)
    assert "A run diverged, reduced-cifar10, cutout" in to_markdown(result)


def test_nothing_but_failures_is_an_error(tmp_path, monkeypatch):
    def search(*_, **__):
        raise RunError("a loss was not finite in epoch 1")

    monkeypatch.setattr(searches, "run_search", search)
    with pytest.raises(RunError, match="a loss was not finite"):
        quick("gpu-hours", tmp_path)


@pytest.fixture
def source(tmp_path):
    train, test = load(None, subset=60, size=8), load(None, split="test", subset=20, size=8)
    pixels = {"x_train": train.images.numpy(), "x_test": test.images.numpy()}
    np.savez(tmp_path / "small.npz", y_train=train.labels.numpy(), y_test=test.labels.numpy(), **pixels)
    return str(tmp_path / "small.npz")


@pytest.fixture
def short_trainings(monkeypatch):
    """By the paper's recipes but for length and network."""
    real = setting.find_recipe
    monkeypatch.setattr(setting, "find_recipe", lambda name: replace(real(name), network="small", epochs=1))


def test_a_file_in_place_of_a_named_set_is_said(source, tmp_path, short_trainings):
    """The recipe of the paper but for length: a line of it runs on a file, and the page tells what differs."""
    result = reproduce(
        "svhn", tmp_path / "out", seeds=1, only=["baseline"], sources={"svhn": source}, device="cpu", jobs=1, say=str
    )
    assert sum(bool(row.values) for row in result.lines) == 1
    assert "stands in for svhn with its split train, not train+extra" in to_markdown(result)
    assert "QUICK" not in caption(result)
    reduced = reproduce(
        "reduced-cifar10", tmp_path / "out", seeds=1, only=["baseline"], sources={"cifar10": source}, device="cpu",
        jobs=1, say=str,
    )  # fmt: skip
    assert f"Reduced-cifar10: trained on 60 images of {source}, not on 4000." in to_markdown(reduced)
    assert not any(row.comparable for row in reduced.lines)
    fewer = reproduce(
        "cifar10", tmp_path / "out", seeds=1, only=["baseline"], sources={"cifar10": source}, device="cpu", subset=20,
        jobs=1, say=str,
    )  # fmt: skip
    assert f"Cifar10: trained on 20 images of {source}, not on 50000." in to_markdown(fewer)
    assert 'class="ring"' not in to_svg(fewer)
    (line,) = [row for row in fewer.lines if row.values and row.line.network == "wrn-40-2"]
    assert line.remark == "trained on 20 images, not on 50000"  # beside the paper's number
    other = reproduce(
        "cifar100", tmp_path / "out", seeds=1, only=["baseline", "wrn-40-2"], sources={"cifar100": source},
        device="cpu", jobs=1, say=str,
    )  # fmt: skip
    assert f"Cifar100: trained on 10 classes of {source}, not on 100." in to_markdown(other)
    assert to_dict(other)["lines"][0]["comparable"] is False


def test_trainings_and_searches_of_a_table_run_where_it_is_asked_for(source, tmp_path, monkeypatch, short_trainings):
    """On a cluster, or on the GPUs that are named."""
    asked = []

    def fake_runner(name, cache, **settings):
        asked.append((name, settings["device"], settings.get("devices"), settings.get("address")))
        return LocalRunner(cache, device="cpu", jobs=1)

    def fake_search(*given, engine, device, devices, address, **more):
        asked.append((engine, device, devices, address))
        raise RunError("no search here")

    monkeypatch.setattr(trainings, "make_runner", fake_runner)
    monkeypatch.setattr(searches, "run_search", fake_search)
    monkeypatch.setattr(Engine, "check", lambda self: None)
    given = {"seeds": 1, "sources": {"svhn": source}, "say": str}
    where = {"engine": "ray", "address": "head:6379"}
    reproduce("svhn", tmp_path / "cluster", only=["baseline"], **where, **given)
    with pytest.raises(RunError, match="no search here"):
        reproduce("svhn", tmp_path / "cluster", only=["Faster AA"], **where, **given)
    reproduce("svhn", tmp_path / "gpus", only=["baseline"], devices="cpu,cpu", **given)
    assert asked == [("ray", "auto", None, "head:6379")] * 3 + [("local", "auto", "cpu,cpu", None)]


def test_nothing_is_said_of_trainings_and_searches_that_were_not_made(source, tmp_path):
    given = {"seeds": 1, "device": "cpu", "table_only": True, "say": str}
    page = to_markdown(reproduce("svhn", tmp_path / "out", sources={"svhn": source}, **given))
    page += to_markdown(reproduce("imagenet", tmp_path / "out", sources={"imagenet": source}, **given))
    assert "trained on" not in page
    assert "searched on" not in page
    assert "stands in" not in page


def test_a_search_on_fewer_classes_is_said(source, tmp_path, short_searches):
    result = reproduce(
        "gpu-hours", tmp_path / "out", seeds=1, only=["imagenet"], sources={"imagenet": source}, device="cpu", say=str
    )
    assert "- Imagenet: searched on 10 classes, not on 120." in to_markdown(result)


def test_lines_that_are_left_out_read_no_images(source, tmp_path, monkeypatch):
    """Nor is it said that theirs are not there."""
    monkeypatch.setattr(search_store, "load", lambda *_, **__: pytest.fail("read images to search on"))
    given = {"only": ["ants-and-bees", "none"], "sources": {"ants-and-bees": source}, "data_root": tmp_path}
    result = reproduce("quality", tmp_path / "out", table_only=True, device="cpu", say=str, **given)
    assert result.remarks == (f"the images of ants-and-bees are those of {source}",)


def test_a_file_with_as_many_images_is_said(source, tmp_path, monkeypatch, short_trainings):
    """Nobody knows whether they are the same ones."""
    data = {"reduced-cifar10": replace(trainings.DATA["reduced-cifar10"], subset=60)}
    monkeypatch.setattr(trainings, "DATA", {**trainings.DATA, **data})
    result = reproduce(
        "reduced-cifar10", tmp_path / "out", seeds=1, only=["baseline"], sources={"cifar10": source}, device="cpu",
        jobs=1, say=str,
    )  # fmt: skip
    assert all(row.comparable for row in result.lines)
    assert f"- The images of cifar10 are those of {source}." in to_markdown(result)


def test_a_set_without_a_known_number_of_images_says_that_a_part_was_taken(source, tmp_path, short_trainings):
    given = {"only": ["ants-and-bees", "none"], "sources": {"ants-and-bees": source}, "seeds": 1, "device": "cpu"}
    result = reproduce("quality", tmp_path / "out", subset=20, jobs=1, say=str, **given)
    assert f"Ants-and-bees: trained on 20 images of {source}, not on all." in to_markdown(result)


@pytest.fixture
def short_searches(monkeypatch):
    """Of the paper's settings but for length and size."""
    real, short = search_store.make_config, {"critic": "small", "epochs": 1, "batch_size": 20, "critic_norm": "none"}
    monkeypatch.setattr(search_store, "make_config", lambda settings: real({**settings, **short}))


def test_a_search_on_fewer_images_is_said(source, tmp_path, short_searches):
    """Its hours are not the paper's, and a line that says 50,000 was not searched on them."""
    given = {"sources": {"cifar10": source}, "seeds": 1, "device": "cpu", "jobs": 1, "say": str}
    hours = reproduce("gpu-hours", tmp_path / "out", only=["cifar10"], **given)
    (line,) = [row for row in hours.lines if row.values]
    assert not line.comparable
    assert line.remark == "searched on 60 images, not on 4000"
    assert sum(row.comparable for row in hours.lines) == len(hours.lines) - 1
    wanted = next(line.policy for line in TABLES["data-size"].lines if line.label.endswith("50,000, L = 10"))
    assert wanted.images is None  # all of them
    assert wanted.planned == 50_000


def test_a_search_is_found_by_its_images_wherever_they_lie(source, tmp_path, short_searches):
    given = {"only": ["cifar10"], "seeds": 1, "device": "cpu", "jobs": 1, "say": str}
    first = reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": source}, **given)
    moved = Path(source).rename(tmp_path / "elsewhere.npz")
    again = reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": str(moved)}, table_only=True, **given)
    assert [row.values for row in again.lines] == [row.values for row in first.lines]
    train = load(None, subset=50, size=8)
    np.savez(source, x_train=train.images.numpy(), y_train=train.labels.numpy())
    with pytest.raises(RunError, match="nothing with these images"):
        reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": source}, table_only=True, **given)
    reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": source}, **given)
    assert len(list((tmp_path / "out" / "searches").iterdir())) == 2


def test_searches_are_found_without_their_images(source, tmp_path, short_searches):
    """By the fingerprints that they keep, unless there are several of a kind."""
    given = {"only": ["cifar10"], "seeds": 1, "device": "cpu", "jobs": 1, "say": str, "data_root": tmp_path}
    first = reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": source}, **given)
    alone = reproduce("gpu-hours", tmp_path / "out", table_only=True, **given)
    assert [row.values for row in alone.lines] == [row.values for row in first.lines]
    assert (
        "- The searches on cifar10 were found without its images, by the fingerprints that they keep."
        in to_markdown(alone)
    )
    train = load(None, subset=50, size=8)
    np.savez(source, x_train=train.images.numpy(), y_train=train.labels.numpy())
    reproduce("gpu-hours", tmp_path / "out", sources={"cifar10": source}, **given)
    with pytest.raises(DataError, match="there are searches on 2 sets of images for cifar10, and without the images"):
        reproduce("gpu-hours", tmp_path / "out", table_only=True, **given)


def test_a_file_without_test_images_is_said(tmp_path, short_trainings):
    train = load(None, subset=60, size=8)
    np.savez(tmp_path / "train.npz", x_train=train.images.numpy(), y_train=train.labels.numpy())
    result = reproduce(
        "cifar10", tmp_path / "out", seeds=1, only=["baseline"], sources={"cifar10": str(tmp_path / "train.npz")},
        device="cpu", jobs=1, say=str,
    )  # fmt: skip
    assert (
        "train.npz has no test images: errors are those on 20% of the training images, which searches saw."
        in to_markdown(result)
    )


def test_test_images_that_are_trained_on_are_said(tmp_path, short_trainings):
    train, test = load(None, subset=60, size=8), load(None, split="test", subset=20, size=8)
    x_test = np.concatenate([test.images.numpy(), train.images.numpy()[:2]])
    y_test = np.concatenate([test.labels.numpy(), train.labels.numpy()[:2]])
    file = tmp_path / "twice.npz"
    np.savez(file, x_train=train.images.numpy(), y_train=train.labels.numpy(), x_test=x_test, y_test=y_test)
    given = {"only": ["ants-and-bees", "none"], "sources": {"ants-and-bees": str(file)}, "seeds": 1, "device": "cpu"}
    result = reproduce("quality", tmp_path / "out", jobs=1, say=str, **given)
    assert "- Ants-and-bees: 2 of the 22 held-out images are among the training images, too" in to_markdown(result)


def test_missing_data_is_an_error_or_a_remark(tmp_path):
    with pytest.raises(DataError, match="imagenet is not at"):
        reproduce("imagenet", tmp_path / "out", data_root=tmp_path, seeds=1, device="cpu", say=str)
    with pytest.raises(DataError, match="not one number of imagenet is known without its images: imagenet is not at"):
        reproduce("imagenet", tmp_path / "out", data_root=tmp_path, table_only=True, device="cpu", say=str)
    assert not (tmp_path / "out" / "imagenet").exists()
    with pytest.raises(DataError, match="ants-and-bees is not found by its name alone: --source ants-and-bees=FOLDER"):
        reproduce("quality", tmp_path / "out", only=["ants-and-bees", "none"], seeds=1, device="cpu", say=str)


def test_without_images_it_is_not_said_that_nothing_was_run(source, tmp_path, short_searches, short_trainings):
    given = {"seeds": 1, "device": "cpu", "data_root": tmp_path, "jobs": 1, "say": str}
    sources = {"ants-and-bees": source, "imagenette": source}
    reproduce("quality", tmp_path / "out", only=["none"], sources=sources, **given)
    reproduce("quality", tmp_path / "out", only=["imagenette-1000", "Faster AA"], sources=sources, **given)
    result = reproduce("quality", tmp_path / "out", table_only=True, sources={"ants-and-bees": source}, **given)
    (hidden,) = [row for row in result.lines if (row.line.data, row.line.label) == ("imagenette-1000", "none")]
    assert hidden.remark == "unknown without the images"
    assert "1 of 77 numbers were measured in full, 0 in part, 9 not at all; 67 are unknown" in summary(result)
    assert "Nothing was run on" not in to_markdown(result)
    assert "- No data: imagenette" in to_markdown(result)
    assert "were found without" not in to_markdown(result)
    assert result.file == "table-without-cifar10-cifar100-svhn-fashion-mnist-imagenette"


def test_a_table_without_a_number_takes_no_place_of_another(source, tmp_path, short_searches, short_trainings):
    given = {"seeds": 1, "device": "cpu", "data_root": tmp_path, "jobs": 1, "say": str}
    full = reproduce("policy-training", tmp_path / "out", sources={"cifar10": source}, **given)
    page = tmp_path / "out" / "policy-training" / "table.md"
    with pytest.raises(DataError, match="is known without its images"):
        reproduce("gpu-hours", tmp_path / "new", table_only=True, **given)
    shutil.rmtree(tmp_path / "out" / "searches")
    with pytest.raises(DataError, match="is known without its images"):
        reproduce("policy-training", tmp_path / "out", table_only=True, **given)
    other = tmp_path / "other.npz"
    train = load(None, subset=50, size=8)
    np.savez(other, x_train=train.images.numpy(), y_train=train.labels.numpy())
    with pytest.raises(RunError, match=r"nothing with these images and settings is in .*table\.md stays as it is"):
        reproduce("policy-training", tmp_path / "out", table_only=True, sources={"cifar10": str(other)}, **given)
    assert page.read_text() == to_markdown(full)


def test_sources():
    assert parse_sources(["cifar10=a.npz", "svhn=b"]) == {"cifar10": "a.npz", "svhn": "b"}
    assert set(parse_sources(["a.npz"]).values()) == {"a.npz"}
    with pytest.raises(ConfigError, match="no data set 'mnist' takes part; choices: ants-and-bees, cifar10"):
        reproduce("cifar10", "nowhere", sources={"mnist": "a"})


# --- pages -----------------------------------------------------------------------------------------------------------


def made(name, *values):
    lines = TABLES[name].lines
    rows = [LineResult(line, dict(enumerate(v)), "") for line, v in zip(lines, values, strict=False)]
    rows += [LineResult(line, {}, "not run") for line in lines[len(values) :]]
    return Reproduction(TABLES[name], tuple(rows), 3, False, ("something differs",), ("runs on a device",))


def test_numbers_with_n_and_interval():
    page = to_markdown(made("sub-policies", [4.0, 4.5, 5.0], [4.25], [4.0, 4.0, 4.0]))
    lines = page.splitlines()
    assert "| cifar10 | wrn-40-2 | L = 1 | - | 4.50 ± 1.24 | 3 |  |" in lines
    assert "| cifar10 | wrn-40-2 | L = 2 | - | 4.25 | 1 |  |" in lines
    assert "| cifar10 | wrn-40-2 | L = 10 | 3.7 | - | - | not run |" in lines
    assert lines[-3:] == [
        "2 of 7 numbers were measured in full, 1 in part, 4 not at all.",
        "",
        "- Something differs.",
    ]
    assert "runs on a device. " in lines[0]
    assert "| 18.60 ± 6.67 | 2 |" in to_markdown(made("sub-policies", [19.12, 18.07]))  # 18.595, in binary a bit less
    hours = to_markdown(made("gpu-hours", [], [], [], [0.0123]))
    assert "| cifar10 | - | Faster AA | 0.23 | 0.012 | 1 |  |" in hours.splitlines()


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("values", [(), ([3.0],), ([0.0], [100.0, 0.0]), ([5.0, 5.0],)])
def test_pictures_are_well_formed(name, values):
    root = ElementTree.fromstring(to_svg(made(name, *values)))
    for mark in (*root.iter(f"{SVG}circle"), *root.iter(f"{SVG}line")):
        numbers = [float(mark.get(key)) for key in ("cx", "cy", "x1", "x2", "y1", "y2") if mark.get(key)]
        assert all(math.isfinite(each) and 0 <= each <= 1200 for each in numbers)


def test_a_curve_joins_what_was_measured():
    root = ElementTree.fromstring(to_svg(made("operation-count", [5.0, 5.2], [4.0, 4.1], [], [3.0, 3.1])))
    (curve,) = root.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in curve.get("points").split()]
    assert len(heights) == 3
    assert heights == sorted(heights)  # fewer errors are lower in the picture
    assert not list(ElementTree.fromstring(to_svg(made("operation-count", [5.0]))).iter(f"{SVG}polyline"))


def test_a_picture_shows_every_run_and_intervals_of_three():
    kinds = [mark.get("class") for mark in ElementTree.fromstring(to_svg(made("operation-count", [5.0, 5.2])))]
    runs = kinds.count("dot faint")
    assert (runs, kinds.count("mean"), kinds.count("ring")) == (1 + 2, 1 + 1, 1 + 1)  # legend, marks
    assert "interval" not in kinds
    kinds = [mark.get("class") for mark in ElementTree.fromstring(to_svg(made("operation-count", [5.0, 5.2, 5.1])))]
    assert (kinds.count("dot faint"), kinds.count("interval")) == (1 + 3, 1)


def test_a_picture_says_how_many_runs_where_it_shows_no_interval():
    picture = to_svg(made("reduced-cifar10", [20.0], [18.0, 18.5], [14.0, 14.5, 14.2]))
    assert ", baseline (n = 1)<" in picture
    assert ", cutout (n = 2)<" in picture
    assert ", AA<" in picture


def test_policies_on_several_sets_have_a_scale_for_each():
    """63 and 66% on one set are far apart, and so are 8.9 and 9.2% on another; the fewest errors come first."""
    errors = {"a": {"none": 66.0, "cutout": 63.0}, "b": {"none": 9.2, "cutout": 8.9}}
    line = TABLES["quality"].lines[1]
    rows = [
        LineResult(replace(line, data=data, label=label, paper=None), {0: error}, "")
        for data, by_label in errors.items()
        for label, error in by_label.items()
    ]
    marks = list(ElementTree.fromstring(to_svg(Reproduction(TABLES["quality"], tuple(rows), 1, False, (), ()))))
    names = [mark.text for mark in marks if "name" in (mark.get("class") or "")]
    one = [f"{label} (n = 1)" for label in ("cutout", "none")]
    assert names == ["a, wrn-28-10", *one, "b, wrn-28-10", *one]
    places = [float(mark.get("cx")) for mark in marks if mark.get("class") == "mean"][1:]  # without the legend's
    assert places[1] - places[0] > 100
    assert places[3] - places[2] > 100


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(fasteraa, tmp_path):
    code, text, _ = fasteraa("reproduce")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == list(TABLES)
    code, text, error = fasteraa("reproduce", "policy-training", "--quick", "--out", tmp_path / "out", "--jobs", 1)
    assert (code, error) == (0, "")
    assert "3 of 3 numbers were measured in full" in text
    assert str(tmp_path / "out" / "policy-training" / "table.md") in text
    assert (tmp_path / "out" / "policy-training" / "table.svg").exists()
    commands = {json.loads(file.read_text())["command"] for file in (tmp_path / "out" / "runs").glob("*.json")}
    assert commands == {f"fasteraa reproduce policy-training --quick --out {tmp_path / 'out'} --jobs 1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar-10"], "did you mean 'cifar10'"),
        (["cifar10", "--source", "mnist=a.npz"], "no data set 'mnist'"),
        (["cifar10", "--device", "gpu"], "unknown device 'gpu'"),
        (["cifar10", "--minutes", "-1"], "minutes must be at least 0"),
        (["cifar10", "--only", "nothing"], "no line of cifar10"),
        (["imagenet", "--data-root", "nowhere"], "imagenet is not at nowhere"),
    ],
)
def test_mistakes(fasteraa, arguments, message, tmp_path):
    code, _, error = fasteraa("reproduce", *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not Path("nowhere").exists()
