"""The table: errors by seed, differences paired by seed, and which policies have seen the held-out images."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fasteraa.comparison.contenders import Contender, jobs_of, parse_contenders
from fasteraa.comparison.table import has_seen, tabulate
from fasteraa.data import load
from fasteraa.data.load import load_validation
from fasteraa.policy.named import named
from fasteraa.report.comparison import publish, read_comparison
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.runner import run_jobs
from fasteraa.train.split import open_split

WHY = "the training loss was not finite in epoch 1"


def planned(job):
    error = 20.0 + job.seed + (5.0 if job.policy.name == "none" else 0.0) + (0.5 if job.seed == 1 else 0.0)
    return {"error": error, "held_out_loss": 0.5, "train_loss": 0.1, "seconds": 1.0, "device": "a device"}


@pytest.fixture
def runner(cache):
    return ScriptedRunner(cache, planned)


def table_of(runner, split, recipe, policies="none,uniform", seeds=2):
    contenders = parse_contenders(policies, seeds) if isinstance(policies, str) else policies
    run_jobs(runner, jobs_of(contenders, recipe, range(seeds), split))
    return tabulate(runner.cache, split, contenders, recipe, range(seeds), "cpu")


def test_a_comparison_prints_its_rows_the_best_first(runner, split, quick):
    comparison = table_of(runner, split, quick)
    assert repr(comparison).endswith("2 policies, 4 runs, 0 missing>")
    head, *rows = str(comparison).splitlines()
    assert head.startswith(f"error on {len(split.held_out)} images of ")
    assert [row.split()[:2] for row in rows] == [["uniform", "20.750"], ["none", "25.750"]]


def test_differences_are_paired_by_seed_over_shared_seeds(runner, split, quick):
    table_of(runner, split, quick, seeds=3)
    for name in ("none-2", "uniform-1"):
        (file,) = runner.cache.runs.glob(f"{name}-*.json")
        file.unlink()
    table = tabulate(runner.cache, split, parse_contenders("none,uniform", 3), quick, range(3), "cpu")
    assert (table.missing, table.missing_seeds) == (2, {"none": (2,), "uniform": (1,)})
    assert (table.device, table.train_images, table.held_out_images) == ("a device", 64, 40)
    none, uniform = table.rows
    assert none.errors == {0: 25.0, 1: 26.5}
    assert uniform.errors == {0: 20.0, 2: 22.0}
    assert uniform.error.mean == pytest.approx(21.0)
    assert uniform.against["none"].mean == pytest.approx(-5.0)
    assert uniform.against["none"].n == 1
    assert "none" not in none.against
    assert "trivialaugment-wide" not in uniform.against
    assert uniform.train_seconds == 1.0


def test_a_yardstick_is_found_under_another_label(runner, split, quick):
    uniform, nothing = table_of(runner, split, quick, "uniform,nothing=none").rows
    assert uniform.against.keys() == {"none"}
    assert nothing.against == {}


def test_runs_that_failed_are_in_no_mean(runner, split, quick):
    def script(job):
        failed = (job.policy.name, job.seed) == ("none", 1)
        return {"diverged": WHY, "seconds": 1.0} if failed else planned(job)

    runner.script = script
    table = table_of(runner, split, quick)
    assert [dict(row.errors) for row in table.rows] == [{0: 25.0}, {0: 20.0, 1: 21.5}]
    assert table.rows[1].against["none"].n == 1
    assert table.diverged == (f"none, seed 1 ({WHY})",)
    assert table.missing == 0


def test_a_row_of_which_nothing_is_there_is_absent(runner, split, quick):
    table_of(runner, split, quick, "none")
    table = tabulate(runner.cache, split, parse_contenders("none,uniform", 2), quick, range(2), "cpu")
    assert [row.label for row in table.rows] == ["none"]
    assert (table.absent, table.missing_seeds) == (("uniform",), {"uniform": (0, 1)})


def test_a_run_under_another_label_is_in_the_row_of_the_label_asked_for(runner, split, quick):
    table_of(runner, split, quick, "uniform", 1)
    (row,) = table_of(runner, split, quick, "other=uniform", 1).rows
    assert (row.label, len(runner.trained)) == ("other", 1)


# --- who has seen the held-out images --------------------------------------------------------------------------------


def test_a_policy_found_on_the_images_held_out_is_named(runner, split, quick, data, tmp_path):
    found = replace(named("uniform"), provenance={"data": {"name": data.name}})
    elsewhere = replace(named("cutout"), provenance={"data": {"name": "other photos"}})
    strange = replace(named("random"), provenance={"data": "planted"})
    careful, less = (
        replace(found, provenance={**found.provenance, "config": {"held_out": share}}) for share in (0.2, 0.1)
    )
    policies = {"a": found, "b": elsewhere, "c": strange, "d": careful, "e": less}
    contenders = [Contender(label, (policy,)) for label, policy in policies.items()]
    for images, seen in ((split, ()), (replace(split, share=0.2), ("a", "e"))):
        table = table_of(runner, images, quick, contenders, 1)
        assert table.seen == seen
        publish(table, tmp_path)
        assert read_comparison(tmp_path / "comparison.json") == table
        assert ("may be too low: a, e." in (tmp_path / "comparison.md").read_text()) == bool(seen)


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
    measured_on_val = open_split(photos)
    measured_on_train = open_split(photos, held_out=0.2)
    of_train_alone = open_split(photos / "train")
    for size in (4, 8):  # with another size, fingerprints tell nothing
        on_train, on_val = found_on(photos / "train", size), found_on(photos / "val", size)
        assert not has_seen(on_train, measured_on_val)
        assert has_seen(on_val, measured_on_val)
        for split in (measured_on_train, of_train_alone):
            assert has_seen(on_train, split)
            assert has_seen(found_on(photos, size), split)
            assert not has_seen(found_on(photos / "train", size, held_out=0.2), split)
            assert not has_seen(on_val, split)


def test_the_same_images_are_known_under_another_name(tmp_path):
    photos = photographs(tmp_path / "photos", "train/ants", "train/bees", "val/ants", "val/bees")
    split = open_split(photos)
    (photos / "val").rename(tmp_path / "elsewhere")
    assert has_seen(found_on(tmp_path / "elsewhere", 8), split)


def test_images_that_chose_the_policy_have_been_seen(tmp_path):
    """A race took them as its validation images, at whatever size."""
    photos = photographs(tmp_path / "photos", "train/ants", "train/bees", "val/ants", "val/bees")
    others = photographs(tmp_path / "others", "ants", "bees")
    by_split, by_folder = open_split(photos), open_split(photos, validation=str(others))
    for size in (4, 8):
        for judge, seen in (("val", by_split), (str(others), by_folder)):
            validation = load_validation(
                photos, judge, load(photos, size=size), data_root=None, interpolation="bilinear"
            )
            policy = replace(named("uniform"), provenance={"race": {"validation": validation.about()}})
            found = Contender("found", (policy,))
            assert [has_seen(found, each) for each in (by_split, by_folder)] == [seen is by_split, seen is by_folder]
            assert not has_seen(found, open_split(photos, held_out=0.2))
    assert has_seen(found_on(others, 4), by_folder)
    assert not has_seen(found_on(photos / "val", 4), by_folder)
    for damaged in ([], {"validation": 1}, {"validation": {}}):
        policy = replace(named("uniform"), provenance={"race": damaged})
        assert not has_seen(Contender("found", (policy,)), by_split)


def test_images_that_were_left_out_by_another_seed_have_been_seen(tmp_path):
    photos = photographs(tmp_path / "photos", "ants", "bees")
    found = found_on(photos, 8, held_out=0.2)
    assert not has_seen(found, open_split(photos))
    assert has_seen(found, open_split(photos, seed=1))
