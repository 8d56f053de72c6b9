"""Cells are trained once, belong to what made them, and end up in a table that says what was measured."""

import importlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fasteraa.data import ImageSet, load
from fasteraa.data.resolve import open_source
from fasteraa.data.source import Source
from fasteraa.errors import ConfigError, DataError, OutOfTime, PolicyError, RunError, Stopped
from fasteraa.train.split import Arena, _test_listing, open_arena
from fasteraa.comparison.compare import (
    Contender,
    cells_of,
    choose_recipe,
    compare,
    end_of,
    has_seen,
    make_cell,
    parse_contenders,
    read_cell,
    run_cell,
    run_cells,
    tabulate,
)
from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.trainer import Diverged, Trained, epochs_done
from fasteraa.policy.named import named
from fasteraa.report.comparison import publish, read_comparison

compare_module = importlib.import_module("fasteraa.comparison.compare")  # the room exports a function of that name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"jobs": -1}, "jobs must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"network": "resnet-50", "recipe": TrainRecipe(network="small")}, "a recipe for small|one for small"),
    ],
)
def test_counts_that_make_no_table(given, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        compare(None, "none", out=tmp_path, **given)


def test_policies_in_memory_take_part():
    mine = replace(named("uniform"), name="mine")
    found = parse_contenders([mine, "none", "randaugment(2,14)"], 3)
    assert [each.label for each in found] == ["mine", "none", "randaugment(2,14)"]
    assert found[0].policies == (mine,)
    with pytest.raises(ConfigError, match="what others are compared with"):
        parse_contenders([replace(mine, name="none")], 1)


@pytest.fixture
def arena(data, held_out, tmp_path):
    (tmp_path / "cells").mkdir()
    return Arena(data, held_out, "test images", tmp_path, "cpu")


@pytest.fixture
def quick(tiny):
    return replace(tiny, epochs=1)


def cells(arena, recipe, policies="none,uniform", seeds=2):
    return cells_of(parse_contenders(policies, seeds), recipe, range(seeds))


def noted(calls):
    """Stands in for training: notes what it was asked for, and says a number that depends on it."""

    def train_together(data, held_out, jobs, **options):
        return [trained(job.policy, job.recipe, job.seed) for job in jobs]

    def trained(policy, recipe, seed):
        calls.append((policy.name, seed, recipe.cutout))
        error = 20.0 + seed + (5.0 if policy.name == "none" else 0.0) + (0.5 if seed == 1 else 0.0)
        return Trained(error, 0.0, 0.5, 0.1, 1.0, 0.0, 1, 1.0, "plain", 4, None, None, {"device": "a device"})

    return train_together


@pytest.fixture
def calls(monkeypatch):
    found = []
    monkeypatch.setattr(compare_module, "train_together", noted(found))
    return found


# --- who takes part --------------------------------------------------------------------------------------------------


def test_policies_from_text(tmp_path):
    named("uniform").save(tmp_path / "policy.json")
    named("random", seed=4).save(tmp_path / "b.json")
    text = f"none, randaugment(2,14) ,{tmp_path},found={tmp_path}/policy.json+{tmp_path}/b.json,random"
    found = parse_contenders(text, 3)
    assert [each.label for each in found] == ["none", "randaugment(2,14)", str(tmp_path), "found", "random"]
    assert [len(each.policies) for each in found] == [1, 1, 1, 2, 3]
    assert found[3].policy(0) == found[3].policy(2) == named("uniform")
    assert found[3].policy(1) == named("random", seed=4)


@pytest.mark.parametrize(("text", "label"), [("random", "random"), ("Random", "random"), ("mine=random", "mine")])
def test_random_is_a_new_policy_for_every_seed(quick, text, label):
    (contender,) = parse_contenders(text, 3)
    assert contender.label == label
    hashes = [cell.policy.hash for cell in cells_of([contender], quick, range(3))]
    assert hashes == [named("random", seed=seed).hash for seed in range(3)]


def test_random_among_others_is_new_in_every_run_that_takes_it():
    (contender,) = parse_contenders("mixed=uniform+random", 4)
    assert contender.policies == (
        named("uniform"), named("random", seed=1), named("uniform"), named("random", seed=3),
    )  # fmt: skip
    with pytest.raises(PolicyError, match="no known policy of that name: 'nothing'"):
        parse_contenders("mixed=random+nothing", 1)


def test_a_yardstick_is_found_under_another_label(arena, quick, monkeypatch):
    monkeypatch.setattr(compare_module, "train_together", noted([]))
    contenders = parse_contenders("uniform,nothing=none", 2)
    run_cells(arena, cells_of(contenders, quick, range(2)), 1, str)
    uniform, nothing = tabulate(arena, contenders, quick, range(2)).rows
    assert uniform.against.keys() == {"none"}
    assert nothing.against == {}


def test_a_yardstick_is_found_however_it_is_spelt():
    text = "None,TrivialAugment-Wide,none=none"
    with pytest.raises(ConfigError, match="'none' was given twice"):
        parse_contenders(text, 1)
    assert [each.label for each in parse_contenders("None,TrivialAugment-Wide", 1)] == ["none", "trivialaugment-wide"]


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named("uniform").save(tmp_path / "lr=0.1.json")
    assert parse_contenders("lr=0.1.json", 1)[0].policies == (named("uniform"),)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", ConfigError, "no policy was given"),
        ("none,none", ConfigError, "'none' was given twice; name one of them"),
        ("nothing", PolicyError, "no known policy of that name: 'nothing'"),
        ("a=none+nothing", PolicyError, "no known policy of that name: 'nothing'"),
        ("none,=uniform", ConfigError, "a row needs a label before the equals sign, got '=uniform'"),
        ("none=uniform", ConfigError, "'none' is what others are compared with, not a label for another policy"),
    ],
)
def test_wrong_policies(text, error, words):
    with pytest.raises(error, match=words):
        parse_contenders(text, 1)


def test_cutout_follows_every_policy_but_none(quick):
    recipe = replace(quick, cutout=4)
    none, cutout, uniform = cells_of(parse_contenders("none,cutout,uniform", 1), recipe, [0])
    assert [cell.recipe.cutout for cell in (none, cutout, uniform)] == [0, 4, 4]
    assert [cell.policy.name for cell in (none, cutout, uniform)] == ["none", "none", "uniform"]
    (without,) = cells_of(parse_contenders("cutout", 1), quick, [0])
    assert without.policy == named("cutout")  # no cutout of the recipe's own: the policy of that name


def test_a_policy_is_not_taken_for_another_by_its_name(quick):
    recipe = replace(quick, cutout=4)
    for name in ("none", "cutout"):
        cell = make_cell("mine", replace(named("uniform"), name=name), recipe, 0)
        assert (cell.policy.hash, cell.recipe.cutout) == (named("uniform").hash, 4)
    cell = make_cell("mine", replace(named("none"), name="found on photos"), recipe, 0)
    assert cell.recipe.cutout == 0


def test_seed_by_seed():
    order = [(cell.seed, cell.label) for cell in cells_of(parse_contenders("none,uniform", 2), TrainRecipe(), [0, 1])]
    assert order == [(0, "none"), (0, "uniform"), (1, "none"), (1, "uniform")]


# --- cells -----------------------------------------------------------------------------------------------------------


def test_cells_are_not_run_twice(arena, quick, calls):
    said = []
    run_cells(arena, cells(arena, quick), 1, said.append)
    assert len(calls) == 4
    run_cells(arena, cells(arena, quick, seeds=3), 1, said.append)
    assert calls[4:] == [("none", 2, 0), ("uniform", 2, 0)]
    assert "4 of 6 runs are there already" in said


def test_a_cell_under_another_label_is_the_same_cell(arena, quick, calls):
    run_cells(arena, cells(arena, quick, "uniform", 1), 1, str)
    run_cells(arena, cells(arena, quick, "other=uniform", 1), 1, str)
    assert len(calls) == 1
    said = []
    run_cells(arena, cells(arena, quick, "none,same=none", 1), 1, said.append)
    assert len(calls) == 2
    assert said[0].startswith("1/1 none, seed 0")
    contenders = parse_contenders("other=uniform", 1)
    assert tabulate(arena, contenders, quick, [0]).rows[0].label == "other"


def test_a_run_that_was_begun_under_another_label_goes_on(arena, quick):
    (begun,), (again,) = (cells(arena, replace(quick, epochs=2), name, 1) for name in ("uniform", "other=uniform"))
    moments = iter([math.inf, 0.0])  # time is up after the first epoch
    with pytest.raises(OutOfTime):
        run_cell(arena, begun, until=lambda: next(moments))
    assert len(list((arena.folder / "cells").glob("uniform-0-*.pt"))) == 1
    run_cells(arena, [again], 1, str)
    assert [file.name[:10] for file in (arena.folder / "cells").iterdir()] == ["uniform-0-"]


def test_other_seed_recipe_policy_or_data_is_another_cell(arena, quick, data, held_out):
    (base,) = cells(arena, quick, "uniform", 1)
    other_data = ImageSet.of(data.images.flip(3).contiguous(), data.labels, data.classes, "flipped")
    variants = [
        (base, data, held_out),
        (replace(base, seed=1), data, held_out),
        (replace(base, recipe=replace(quick, epochs=2)), data, held_out),
        (replace(base, policy=named("random")), data, held_out),
        (base, other_data, held_out),
        (base, data, other_data),
    ]
    assert len({cell.key(train, test) for cell, train, test in variants}) == len(variants)
    renamed = replace(base, label="x", policy=replace(base.policy, name="renamed", provenance={"seconds": 3}))
    assert renamed.key(data, held_out) == base.key(data, held_out)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"error": 3.0}', '{"error": "many", "seconds": 1}'])
def test_a_damaged_record_is_named(arena, quick, calls, content):
    run_cells(arena, cells(arena, quick, "uniform", 1), 1, str)
    (file,) = (arena.folder / "cells").glob("*.json")
    file.write_text(content)
    with pytest.raises(RunError, match=r"uniform-0-.*cannot be read.*remove it to run it again"):
        run_cells(arena, cells(arena, quick, "uniform", 1), 1, str)


def test_the_record_holds_what_was_run(arena, quick):
    run_cells(arena, cells(arena, quick, "uniform", 1), 1, str)
    record = read_cell(arena, cells(arena, quick, "uniform", 1)[0])
    assert record["recipe"]["epochs"] == 1
    assert record["policy"]["hash"] == named("uniform").hash
    assert record["data"]["fingerprint"] == arena.data.fingerprint
    assert record["steps"] == 4
    assert not list((arena.folder / "cells").glob("*.pt"))


WHY = "the training loss was not finite in epoch 1"


def test_a_run_that_diverges_is_kept_as_such_and_ends_no_other(arena, quick):
    recipe, said = replace(quick, learning_rate=1e30, clip=0), []
    mixed = [*cells(arena, recipe, "uniform", 1), *cells(arena, quick, "none", 1)]
    assert run_cells(arena, mixed, 1, said.append)
    assert said[0] == f"1/2 uniform, seed 0: {WHY} (0 s)"
    assert said[1].startswith("2/2 none, seed 0: ")
    assert read_cell(arena, mixed[0])["diverged"] == WHY
    assert read_cell(arena, mixed[1])["error"] >= 0
    assert run_cells(arena, mixed, 1, said.append)
    assert said[2:] == ["2 of 2 runs are there already"]


def test_runs_that_diverged_are_in_no_mean(arena, quick, calls, monkeypatch):
    train = compare_module.train_together

    def diverging(data, held_out, jobs, **options):
        if (jobs[0].policy.name, jobs[0].seed) == ("none", 1):
            return [Diverged(WHY, 1.0, 1, {"device": "a device"})]
        return train(data, held_out, jobs, **options)

    monkeypatch.setattr(compare_module, "train_together", diverging)
    run_cells(arena, cells(arena, quick), 1, str)
    found = tabulate(arena, parse_contenders("none,uniform", 2), quick, range(2))
    assert [dict(row.errors) for row in found.rows] == [{0: 25.0}, {0: 20.0, 1: 21.5}]
    assert found.rows[1].against["none"].n == 1
    assert found.diverged == (f"none, seed 1 ({WHY})",)
    assert found.missing == 0


def test_ctrl_c_keeps_finished_cells_and_says_how_to_go_on(arena, quick, calls, monkeypatch):
    train = compare_module.train_together

    def interrupted(*arguments, **options):
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(compare_module, "train_together", interrupted)
    with pytest.raises(Stopped, match=r"2 of 4 runs were finished and are kept .*same command again") as caught:
        run_cells(arena, cells(arena, quick), 1, str)
    assert caught.value.exit_code == 130
    assert len(list((arena.folder / "cells").glob("*.json"))) == 2


def test_a_time_limit_leaves_cells_for_later(arena, quick, calls):
    said = []
    assert not run_cells(arena, cells(arena, quick), 1, said.append, until=0.0)
    assert calls == []
    assert said == ["time is up: 4 of 4 runs are missing; give the same command again to go on"]
    assert run_cells(arena, cells(arena, quick), 1, said.append)
    assert end_of(None) == math.inf
    with pytest.raises(ConfigError, match="max_minutes must be at least 0"):
        end_of(-1)


def losses(arena):
    return [json.loads(file.read_text())["train_loss"] for file in sorted(arena.folder.glob("cells/*.json"))]


@pytest.mark.slow
def test_two_at_once_give_the_same_numbers(arena, quick, tmp_path):
    alone = replace(arena, folder=tmp_path / "alone")
    (alone.folder / "cells").mkdir(parents=True)
    recipe, said = replace(quick, epochs=2, flip=True), []
    run_cells(alone, cells(alone, recipe), 1, str)
    assert run_cells(arena, cells(arena, recipe), 2, said.append)
    contenders = parse_contenders("none,uniform", 2)
    one, two = (tabulate(each, contenders, recipe, [0, 1]) for each in (alone, arena))
    assert [row.errors for row in one.rows] == [row.errors for row in two.rows]
    assert losses(alone) == losses(arena)
    assert len(said) == 4


# --- data ------------------------------------------------------------------------------------------------------------


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def arrays(count, classes, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.array([classes[index % len(classes)] for index in range(count)])
    return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8), labels


def test_test_images_where_there_are_some(tmp_path):
    (x, y), (tx, ty) = arrays(20, "ab"), arrays(6, "ba", 1)
    source = save(tmp_path / "d.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    arena = open_arena(source, tmp_path / "out", device="cpu")
    assert (len(arena.data), len(arena.held_out), arena.held_out_from) == (20, 6, "test images")
    chosen = open_arena(source, tmp_path / "out", device="cpu", held_out=0.25)
    assert (len(chosen.data), len(chosen.held_out), chosen.held_out_from) == (15, 5, "25% of the training images")
    some = open_arena(source, tmp_path / "out", device="cpu", subset=4)
    assert (len(some.data), len(some.held_out)) == (4, 6)


def test_a_fifth_is_held_out_where_there_are_none(tmp_path):
    x, y = arrays(50, "ab")
    source = save(tmp_path / "d.npz", images=x, labels=y)
    arena = open_arena(source, tmp_path / "out", device="cpu")
    assert (len(arena.data), len(arena.held_out), arena.held_out_from) == (40, 10, "20% of the training images")
    assert arena.held_out.counts() == (5, 5)
    seen = {bytes(image.numpy()) for image in arena.data.images}
    assert not seen & {bytes(image.numpy()) for image in arena.held_out.images}
    again = open_arena(source, tmp_path / "out", device="cpu")
    assert again.data.fingerprint == arena.data.fingerprint
    few = open_arena(source, tmp_path / "out", device="cpu", subset=8)
    assert (len(few.data), few.held_out.fingerprint) == (8, arena.held_out.fingerprint)


def test_images_that_are_trained_and_measured_on_are_counted(tmp_path, quick):
    (x, y), (tx, ty) = arrays(20, "ab"), arrays(6, "ab", 1)
    tx[[1, 4]] = x[7]
    source = save(tmp_path / "d.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    said, words = [], "2 of the 6 held-out images are among the training images, too (the same pixels)"
    found = compare(source, "none", out=tmp_path, seeds=1, recipe=quick, jobs=1, device="cpu", say=said.append)
    assert said[0].startswith(words)
    publish(found, tmp_path)
    assert words in (tmp_path / "comparison.md").read_text()
    assert read_comparison(tmp_path / "comparison.json").twice == found.twice == 2
    few = open_arena(source, tmp_path, device="cpu", subset=2)
    assert (few.twice, few.warnings) == (0, [])  # that image is not trained on
    assert replace(few, data=LazyImageSet.of(open_source(source).listing("train"), "d", (8, 8))).twice == 0


def pixels(data):
    return {bytes(image.numpy()) for image in data.images}


def test_a_search_can_leave_to_a_comparison_what_that_holds_out(tmp_path):
    """The same images, whatever is broken among them and however many are searched on."""
    x, y = arrays(50, "ab")
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        file = tmp_path / "photos" / str(label) / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    file.write_bytes(b"no image")
    arena = open_arena(tmp_path / "photos", tmp_path / "out", device="cpu")
    assert arena.share == 0.2
    searched = load(tmp_path / "photos", held_out=0.2)
    assert searched.fingerprint == arena.data.fingerprint
    assert len(pixels(arena.held_out) | pixels(searched)) == 49
    for less in (load(tmp_path / "photos", held_out=0.3), load(tmp_path / "photos", held_out=0.2, subset=20, seed=3)):
        assert not pixels(less) & pixels(arena.held_out)
    assert pixels(load(tmp_path / "photos")) & pixels(arena.held_out)
    with pytest.raises(DataError, match=r"the held-out share must lie between 0 and 1, got -0\.5"):
        load(tmp_path / "photos", held_out=-0.5)


def folders(tmp_path, splits):
    for number, (split, names) in enumerate(splits.items()):
        for name in names:
            place = tmp_path / "pictures" / split / name
            place.mkdir(parents=True)
            for index in range(3):
                Image.new("RGB", (8, 8), (10 * number, ord(name), index)).save(place / f"{index}.png")
    return tmp_path / "pictures"


def test_classes_of_test_images_are_matched_by_name(tmp_path):
    """An .npz with test labels alone of 'b' and 'c', numbered among themselves, still means b and c."""
    train, test = (open_listing(folders(tmp_path / n, {"train": names})) for n, names in (("1", "abc"), ("2", "bc")))
    source = Source("both", {"train": lambda: train, "test": lambda: test})
    matched = _test_listing(source, train.classes)
    assert matched.classes == ("a", "b", "c")
    assert matched.labels.tolist() == [1, 1, 1, 2, 2, 2]


def open_listing(path):
    return open_source(path).listing("train")


def test_unknown_classes_of_test_images_are_named(tmp_path):
    train, test = (open_listing(folders(tmp_path / n, {"train": names})) for n, names in (("1", "ab"), ("2", "bc")))
    source = Source("both", {"train": lambda: train, "test": lambda: test})
    with pytest.raises(DataError, match="classes that the training images lack: c"):
        _test_listing(source, train.classes)


def test_the_held_out_share_is_told_as_it_came_out(tmp_path):
    x, y = np.zeros((50, 8, 8, 3), np.uint8), np.arange(50) % 10
    arena = open_arena((x, y), tmp_path, device="cpu", held_out=0.001)
    assert (len(arena.held_out), arena.held_out_from) == (10, "20% of the training images")
    x, y = np.zeros((400, 8, 8, 3), np.uint8), np.arange(400) % 2
    assert open_arena((x, y), tmp_path, device="cpu", held_out=0.005).held_out_from == "0.5% of the training images"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0] * 10, "that needs two classes; pictures has one"),
        ([0] * 5 + [1] * 5 + [2], "a class needs two images; pictures has one of '2'"),
    ],
)
def test_classes_that_cannot_be_told_apart_or_held_out(tmp_path, labels, words):
    np.savez(tmp_path / "pictures.npz", x_train=np.zeros((len(labels), 8, 8, 3), np.uint8), y_train=labels)
    with pytest.raises(DataError, match=words):
        open_arena(str(tmp_path / "pictures.npz"), tmp_path, device="cpu")


def test_wrong_data_settings(tmp_path):
    x, y = arrays(20, "ab")
    source = save(tmp_path / "d.npz", images=x, labels=y)
    with pytest.raises(ConfigError, match=r"held-out share must be in \(0, 1\), got 1"):
        open_arena(source, tmp_path / "out", device="cpu", held_out=1.0)
    with pytest.raises(ConfigError, match="unknown device"):
        open_arena(source, tmp_path / "out", device="gpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        open_arena(source, tmp_path / "file", device="cpu")
    with pytest.raises(DataError, match="subset must lie between"):
        open_arena(source, tmp_path / "out", device="cpu", subset=99)


def test_recipes_by_device_and_size(data):
    assert choose_recipe(data, "cpu").network == "small"
    assert choose_recipe(data, "cpu", "wrn-40-2").cutout == 4  # half of 8


# --- the table -------------------------------------------------------------------------------------------------------


def test_differences_are_paired_by_seed_over_shared_seeds(arena, quick, calls):
    run_cells(arena, cells(arena, quick, "none,uniform", 3), 1, str)
    for name in ("none-2", "uniform-1"):
        (file,) = (arena.folder / "cells").glob(f"{name}-*.json")
        file.unlink()
    found = tabulate(arena, parse_contenders("none,uniform", 3), quick, range(3))
    assert found.missing == 2
    assert found.device == "a device"
    none, uniform = found.rows
    assert none.errors == {0: 25.0, 1: 26.5}
    assert uniform.errors == {0: 20.0, 2: 22.0}
    assert uniform.error.mean == pytest.approx(21.0)
    assert uniform.against["none"].mean == pytest.approx(-5.0)
    assert uniform.against["none"].n == 1
    assert "none" not in none.against
    assert "trivialaugment-wide" not in uniform.against
    assert uniform.train_seconds == 1.0


def test_search_cost_is_the_mean_of_what_was_found(quick):
    found = Contender("found", tuple(replace(named("uniform"), provenance={"seconds": s}) for s in (10.0, 20.0)))
    assert found.search_seconds == 15.0
    assert Contender("none", (named("none"),)).search_seconds is None


def test_search_cost_is_that_of_calibration_too():
    known = {"seconds": 10.0, "calibration": {"seconds": 90.5}}
    assert Contender("found", (replace(named("uniform"), provenance=known),)).search_seconds == 100.5
    for strange in ({"seconds": "ten"}, {"seconds": 10.0, "calibration": {"seconds": "x"}}):
        assert Contender("found", (replace(named("uniform"), provenance=strange),)).search_seconds is None
    odd = {"seconds": 10.0, "calibration": "none"}
    assert Contender("found", (replace(named("uniform"), provenance=odd),)).search_seconds == 10.0


def test_a_policy_found_on_the_images_held_out_is_named(arena, quick, calls, data, tmp_path):
    found = replace(named("uniform"), provenance={"data": {"name": data.name}})
    elsewhere = replace(named("cutout"), provenance={"data": {"name": "other photos"}})
    strange = replace(named("random"), provenance={"data": "planted"})
    careful, less = (
        replace(found, provenance={**found.provenance, "config": {"held_out": share}}) for share in (0.2, 0.1)
    )
    named_by = {"a": found, "b": elsewhere, "c": strange, "d": careful, "e": less}
    contenders = [Contender(label, (policy,)) for label, policy in named_by.items()]
    for place, seen in ((arena, ()), (replace(arena, share=0.2), ("a", "e"))):
        run_cells(place, cells_of(contenders, quick, [0]), 1, str)
        table = tabulate(place, contenders, quick, [0])
        assert table.seen == seen
        publish(table, tmp_path)
        assert read_comparison(tmp_path / "comparison.json") == table
        assert ("which flatters: a, e." in (tmp_path / "comparison.md").read_text()) == bool(seen)


def photographs(root, *parts, count=10):
    for number, part in enumerate(parts):
        for index in range(count):
            pixels = np.random.default_rng([number, index]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            file = root / part / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return root


def found_on(source, size, **settings):
    """As a search writes it down."""
    data = load(source, size=size, **settings)
    known = {"data": {"name": data.name, "fingerprint": data.fingerprint}, "config": settings}
    return Contender("found", (replace(named("uniform"), provenance=known),))


def test_a_split_folder_is_known_as_a_part_of_the_whole(tmp_path):
    photos = photographs(tmp_path / "photos", "train/ants", "train/bees", "val/ants", "val/bees")
    measured_on_val = open_arena(photos, tmp_path / "out", device="cpu")
    measured_on_train = open_arena(photos, tmp_path / "out", device="cpu", held_out=0.2)
    of_train_alone = open_arena(photos / "train", tmp_path / "out", device="cpu")
    for size in (4, 8):  # with another size, fingerprints tell nothing
        on_train, on_val = found_on(photos / "train", size), found_on(photos / "val", size)
        assert not has_seen(on_train, measured_on_val)
        assert has_seen(on_val, measured_on_val)
        for arena in (measured_on_train, of_train_alone):
            assert has_seen(on_train, arena)
            assert has_seen(found_on(photos, size), arena)
            assert not has_seen(found_on(photos / "train", size, held_out=0.2), arena)
            assert not has_seen(on_val, arena)


def test_the_same_images_are_known_under_another_name(tmp_path):
    photos = photographs(tmp_path / "photos", "train/ants", "train/bees", "val/ants", "val/bees")
    arena = open_arena(photos, tmp_path / "out", device="cpu")
    (photos / "val").rename(tmp_path / "elsewhere")
    assert has_seen(found_on(tmp_path / "elsewhere", 8), arena)


def test_images_that_were_left_out_by_another_seed_have_been_seen(tmp_path):
    photos = photographs(tmp_path / "photos", "ants", "bees")
    found = found_on(photos, 8, held_out=0.2)
    assert not has_seen(found, open_arena(photos, tmp_path / "out", device="cpu"))
    assert has_seen(found, open_arena(photos, tmp_path / "out", device="cpu", seed=1))


def test_compare_from_python(tmp_path, quick, data):
    said = []
    found = compare(data, "none,random", out=tmp_path, seeds=2, recipe=quick, jobs=1, device="cpu", say=said.append)
    assert [row.label for row in found.rows] == ["none", "random"]
    assert found.held_out_images == 13  # 20% of 64
    assert len(found.rows[1].hashes) == 2
    assert found.missing == 0
    assert torch.initial_seed() == 0
    early = compare(data, "none,uniform", out=tmp_path, seeds=2, recipe=quick, jobs=1, max_minutes=0, say=said.append)
    assert early.missing == 2
    assert [row.label for row in early.rows] == ["none"]
    assert (early.absent, early.missing_seeds) == (("uniform",), {"uniform": (0, 1)})


def on_a_gpu(monkeypatch, free):
    """As if there were one: which cells are trained together."""
    groups = []

    def train_together(data, held_out, jobs, **options):
        groups.append([(job.policy.name, job.seed) for job in jobs])
        return noted([])(data, held_out, jobs)

    monkeypatch.setattr(compare_module, "find_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    monkeypatch.setattr(compare_module, "train_together", train_together)
    return groups


@pytest.mark.parametrize(
    ("free", "batch_size", "sizes"),
    [(2**40, 128, [8, 2]), (2**40, 4096, [1] * 10), (7 * 2**30, 128, [2] * 5), (2**20, 128, [1] * 10)],
)
def test_how_many_small_runs_share_a_gpu(arena, quick, monkeypatch, free, batch_size, sizes):
    groups = on_a_gpu(monkeypatch, free)
    run_cells(arena, cells(arena, replace(quick, batch_size=batch_size), seeds=5), say=str)
    assert [len(group) for group in groups] == sizes


def test_a_damaged_checkpoint_ends_it_after_the_others(arena, quick, monkeypatch):
    groups = on_a_gpu(monkeypatch, 2**40)
    first, *others = cells(arena, quick, policies="none", seeds=3)
    file = first.file(arena.folder, arena.data, arena.held_out).with_suffix(".pt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("no checkpoint")
    run_cells(arena, [first, *others], say=str)
    assert groups == [[("none", 1), ("none", 2)], [("none", 0)]]
    with pytest.raises(RunError, match="is no checkpoint, or a damaged one: remove it to start anew"):
        epochs_done(file)


def test_what_shares_a_gpu_is_alike(arena, quick, monkeypatch):
    groups = on_a_gpu(monkeypatch, 2**40)
    longer = cells(arena, replace(quick, epochs=7), policies="uniform", seeds=3)
    mixed = [cell for pair in zip(cells(arena, quick, policies="none", seeds=3), longer, strict=True) for cell in pair]
    assert run_cells(arena, mixed, jobs=2, say=str)
    assert groups == [[("none", 0), ("none", 1)], [("none", 2)], [("uniform", 0), ("uniform", 1)], [("uniform", 2)]]


def test_what_was_begun_goes_on_with_what_stands_at_the_same_epoch(arena, quick, monkeypatch):
    """A policy that is new in the table, or another number of jobs, must not cost what was trained before."""
    groups, wanted = on_a_gpu(monkeypatch, 2**40), cells(arena, replace(quick, epochs=7), seeds=2)
    for cell, epoch in zip(wanted, (3, 0, 5, 3), strict=True):
        if epoch:
            torch.save({"epoch": epoch}, cell.file(arena.folder, arena.data, arena.held_out).with_suffix(".pt"))
    assert run_cells(arena, wanted, say=str)
    assert groups == [[("none", 0), ("uniform", 1)], [("uniform", 0)], [("none", 1)]]
