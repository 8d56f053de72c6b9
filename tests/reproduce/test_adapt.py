"""The prior of the race is what `tools/prior.py` makes of results/adapt; what is said of searches on unseen sets."""

import importlib.util
import json
import math
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fasteraa.policy.named import named

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "adapt" / "measured.json"
SMALL = MEASURED.with_name("small.json")


@cache
def tool(name):
    """A script of tools/, which may import another."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def record(*names):
    """Of a few sets, so that nothing takes long."""
    content = tool("prior").read_records([MEASURED])
    return {**content, "sets": {name: content["sets"][name] for name in names}}


def test_the_prior_is_that_of_the_record():
    made = tool("prior").prior_of([json.loads(file.read_text()) for file in (MEASURED, SMALL)])
    kept = json.loads(files("fasteraa.selection").joinpath("prior.json").read_text())
    assert made["other networks"] == pytest.approx(kept["other networks"], abs=1e-3)
    assert list(made["networks"]) == list(kept["networks"]) == ["wrn-16-2", "small"]
    for network, lines in made["networks"].items():
        own = kept["networks"][network]
        assert lines["longer"] == pytest.approx(own["longer"], abs=1e-3)
        for name in ("level", "spread", "weights", "means", "scales"):
            assert lines["effect"][name] == pytest.approx(own["effect"][name], abs=1e-3), name


def test_a_set_that_is_left_out_has_no_part_in_it():
    prior = tool("prior")
    without = prior.fitted(prior.without_sets(record("intel", "chest", "fashion", "cifar10"), ["intel"]))
    assert without["about"]["sets of effect"] == ["chest", "cifar10", "fashion"]
    assert without["effect"] == prior.fitted(record("chest", "fashion", "cifar10"))["effect"]
    with pytest.raises(SystemExit, match="no set cats was measured; there are chest, intel"):
        prior.without_sets(record("intel", "chest"), ["cats"])


def test_the_same_images_of_two_networks_are_left_out_together():
    prior, both = tool("prior"), record("intel", "chest")
    both["sets"] = {f"{name}@{net}": each for name, each in both["sets"].items() for net in ("small", "wrn-16-2")}
    assert prior.without_sets(both, ["intel"])["sets"].keys() == {"chest@small", "chest@wrn-16-2"}
    assert set(prior.effect_rows(both).sets) == {"intel", "chest"}


def test_races_with_another_network_say_how_far_no_effect_is_off(monkeypatch, tmp_path):
    """Losses 0.2 above and 0.2 below those of none, noise of two folds of 400 images at 20 % errors left out."""
    prior, row = tool("prior"), {"errors": [20.0, 20.0], "losses": [1.0, 1.0]}
    table = [{"candidate": "none", **row}] + [
        {"candidate": str(sign), "expected": [0.1, 0.1], **row, "losses": [math.exp(0.2 * sign)]} for sign in (1, -1)
    ]
    race = {"network": "small", "images": 1200, "folds": 3, "table": table}
    races = {"sets": {name: {"searches": {"a": {"race": race}}} for name in ("one", "two")}}
    (tmp_path / "races.json").write_text(json.dumps(races))
    monkeypatch.setattr(prior, "RACES", tmp_path / "races.json")
    rows = prior.raced_elsewhere("wrn-16-2")
    assert [(each.set, each.predicted) for each in prior.raced_elsewhere("wrn-16-2", ["two"])] == [("one", 0.1)] * 2
    assert [each.measured for each in rows] == pytest.approx([0.2, -0.2] * 2)
    assert prior.spread_elsewhere(rows) == pytest.approx(math.sqrt(0.04 - 0.62**2 * 0.8 / (0.2 * 400)))
    assert prior.raced_elsewhere("small") == []


def test_the_error_for_a_network_is_told_with_and_without_its_own_trainings():
    """As the page has it: the lines of a network are better for it than those of the other."""
    prior = tool("prior")
    *_, first, second = prior.errors_by_network(prior.read_records([MEASURED, SMALL]))
    assert first == "| wrn-16-2 | 0.184 | 0.114 | 0.088 | 0.098 | 364 |"
    assert second == "| small | 0.189 | 0.165 | 0.146 | 0.141 | 234 |"
    page = (MEASURED.parent / "README.md").read_text(encoding="utf-8")
    assert "| 0.189 | 0.165 | **0.146** | 0.141 | 234 |" in page


def test_a_length_that_is_not_known_is_guessed_between(tmp_path):
    """What is chosen for a length: the longer, the more is chosen, and the more is lost in short trainings."""
    content = json.loads(SMALL.read_text())
    some = {**content, "sets": {name: content["sets"][name] for name in ("ahcd28", "chest", "dtd10", "intel")}}
    rows = [[each.strip() for each in row.split("|")] for row in tool("decision").guessed_lengths(some, tmp_path)][2:]
    assert [row[1] for row in rows] == ["50 epochs", "100 epochs", "150 epochs", "200 epochs"]
    assert int(rows[0][2][:-1]) < int(rows[-1][2][:-1])
    assert float(rows[-1][5]) < float(rows[0][5]) < 0  # at 200 epochs


def test_races_are_replayed_on_images_that_they_did_not_see(tmp_path):
    decision = tool("decision")
    races = list(decision.replays(record("chest", "fashion", "cifar10", "dtd10"), tmp_path))
    assert {race.set for race in races} == {"chest", "fashion", "cifar10", "dtd10"}
    for race in races:
        assert {len(trial.errors) for trial in race.trials} == {race.folds}
        assert race.truth["none"] == 0
        assert decision.chosen_at(race, 1.1) == "none"  # nothing is that sure
    chosen = [decision.chosen_at(race, 0.8) for race in races]
    assert any(label != "none" for label in chosen)


@pytest.mark.parametrize("means", [(-0.2, -0.15), (0.03, 0.01)])
def test_simulated_races_end_by_what_real_ones_end_by(means, monkeypatch):
    """One where the best is chosen, one where none is."""
    decision, spread = tool("decision"), 0.05
    trials = [
        decision.ranking.Trial(decision.Candidate(label, named("none")), (10.0,), (1.0,), (1.0,), 100)
        for label in ("none", "a", "b")
    ]
    known = {"none": (0.0, 0.0), **{label: (mean, spread) for label, mean in zip("ab", means, strict=True)}}
    difference = decision.ranking.Difference
    monkeypatch.setattr(decision.ranking, "differences", lambda some: [difference(*known[each.label]) for each in some])
    chosen = decision.ranking.choose(trials).label
    assert chosen == ("a" if means[0] < 0 else "none")
    found = decision._regrets(np.array([means]), np.array([min(means)]), np.array([chosen != "none"]), spread)
    assert found == pytest.approx([decision.ranking.regret(trials)])


def test_longer_races_cost_more_trainings_and_early_ends_fewer(monkeypatch, tmp_path):
    decision = tool("decision")
    some = record("chest", "fashion", "cifar10", "dtd10")
    monkeypatch.setattr(decision, "TIMES", 20)
    monkeypatch.setattr(decision, "LONG_DESIGNS", (((1, 1), 0.0), ((1, 1, 2, 4, 8), 0.0), ((1, 1, 2, 4, 8), 0.02)))
    rows = list(decision.long_races(some, list(decision.replays(some, tmp_path, use_prior=False))))[2:]
    short, whole, early = (int(row.split("|")[3]) for row in rows)
    assert short < early < whole == 15 + 9 + 2 * 6 + 4 * 4 + 8 * 3


def test_the_noise_of_none_is_common_to_all_differences():
    """Two policies and none on three folds: what moves none alone moves every difference to it."""
    effects, moved = np.array([[0.0], [-0.2], [0.4]]), np.array([[0.1, -0.1, 0.0], [0.0] * 3, [0.0] * 3])
    parts = tool("decision").Parts.of(effects + moved, 0)
    assert parts.difference == pytest.approx(parts.common) == pytest.approx(0.01)
    steady = tool("decision").Parts.of(effects + np.array([0.5, -0.5, 0.0]), 0)
    assert steady[2:] == pytest.approx((0.0, 0.0, 0.0))
    assert (steady.candidates, steady.folds) == pytest.approx((effects.var(ddof=1), 0.25))


def simulated(truth, noise, repeats, of_none=None, clear=0.0, again=False):
    return tool("decision").simulated_races(np.array(truth), noise, repeats, of_none or repeats, clear, again)


def test_simulated_races_choose_what_is_better_and_never_what_is_clearly_worse():
    quiet = tool("decision").Noise(*[tool("decision").Part(1e-9, 1e-9)] * 2)
    trainings, change, stated, _ = simulated([-0.2, -0.3, 0.1], quiet, (1, 1)).mean(1)
    assert (trainings, change, stated) == pytest.approx((4 + 3, -0.3, 1.0))
    _, change, stated, _ = simulated([0.5] * 5, quiet, (1, 1))
    assert not change.any()
    assert np.isnan(stated).all()


def test_simulated_noise_of_a_fold_stays_however_often_it_is_trained_on():
    """Races that count it again with each training are less often right than they say."""
    part = tool("decision").Part(seed=0.0001, fold=0.01)
    assert part.of_mean(16) == pytest.approx(0.0001 / 16 + 0.01 / 3)
    assert part.of_mean(16, again=True) == pytest.approx(0.0101 / 16)
    noise = tool("decision").Noise(part, part)
    once, again = (simulated([-0.02] * 3 + [0.02] * 3, noise, (2, 14), again=a)[3].mean() for a in (False, True))
    assert once == pytest.approx(1.0, abs=0.3)
    assert again > 3 * once


def test_harm_is_tested_one_sided_and_corrected():
    unseen = tool("unseen")
    assert unseen.one_sided([1.0, 1.1, 0.9]) < 0.01
    assert unseen.one_sided([1.0, 1.1, 0.9], worse=False) > 0.99
    assert unseen.one_sided([0.0, 0.0, 0.0]) == 1.0
    assert unseen.one_sided([1.0]) == 1.0
    assert unseen.holm({"a": 0.01, "b": 0.04, "c": 0.5}) == pytest.approx({"a": 0.03, "b": 0.08, "c": 0.5})
    assert unseen.ranks({"a": 1.0, "b": 2.0, "c": 1.0}) == {"a": 1.5, "b": 3.0, "c": 1.5}


def test_the_table_begins_with_the_worst_case():
    unseen = tool("unseen")

    def rows(label, *errors):
        return [{"label": label, "seed": seed, "error": error, "loss": 1.0} for seed, error in enumerate(errors)]

    gpu, two = unseen.SEARCHES
    search = {gpu: {"chosen": "none"}, two: {"chosen": "uniform"}}
    sets = {
        "fine": {"rows": [*rows("none", 9, 10, 11), *rows(gpu, 9, 10, 11), *rows(two, 8, 8.5, 10)], "searches": search},
        "bad": {
            "rows": [*rows("none", 9, 10, 11), *rows(gpu, 9, 10, 11), *rows(two, 12, 13.1, 14)],
            "searches": search,
        },
    }
    lines = list(unseen.table({"sets": sets}))
    assert f"| {two} | +3.0 | +0.93 | 2.00 | 1 | 1 |" in "\n".join(lines)
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| bad", "| fine"]
    assert lines[-2].endswith("| 10.0 | +0.0 | +3.0 | none | uniform |")


# --- independent trainings -----------------------------------------------------------------------------------------


def usual_set(folder, name, classes=10, side=8):
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 2000), ("test", 400)):
        arrays[f"y_{part}"] = np.arange(count) % classes
        arrays[f"x_{part}"] = random.integers(0, 255, (count, side, side, 3), np.uint8)
        arrays[f"x_{part}"][..., 0] = arrays[f"y_{part}"][:, None, None]  # says the class
    np.savez(folder / f"{name}.npz", **arrays)


def test_cuts_are_drawn_evenly_and_the_same_every_time(tmp_path, monkeypatch):
    independent = tool("independent")
    usual_set(tmp_path, "cifar10")
    cuts = {name: independent.CUTS[name] for name in ("deerhorse600", "grey500")}
    monkeypatch.setattr(independent, "CUTS", {**cuts, "three90": independent.Cut("cifar10", 90, 1, 3)})
    for out in ("a", "b"):
        independent.draw(tmp_path, tmp_path / out)
    both = [dict(np.load(tmp_path / out / "deerhorse600.npz")) for out in ("a", "b")]
    assert all((both[0][name] == both[1][name]).all() for name in both[0])
    assert set(both[0]["x_train"][:, 0, 0, 0]) == {4, 7}
    assert (both[0]["y_train"] == (both[0]["x_train"][:, 0, 0, 0] == 7)).all()
    assert np.bincount(both[0]["y_train"]).tolist() == [200, 200]  # all that there are
    three, grey = (np.load(tmp_path / "a" / f"{name}.npz") for name in ("three90", "grey500"))
    assert np.bincount(three["y_train"]).tolist() == [30, 30, 30]
    assert (grey["x_train"] == grey["x_train"][..., :1]).all()


def test_the_independent_loop_trains_what_is_missing(tmp_path):
    """What chose a policy of the table has its errors; another is trained, and nothing twice."""
    independent, none = tool("independent"), named("none").hash
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    usual_set(data, "mine", 2)
    for label, found, more in (("none", "none", 7), ("mild", "general-mild", 9), ("again", "uniform-half", 9)):
        search = out / "mine" / "cpu"
        search.mkdir(parents=True, exist_ok=True)
        named(found).save(search / "policy.json")
        (search / "seconds.json").write_text(json.dumps({"seconds": 1.0}))
        sets = {"mine": independent.record_of(data / "mine.npz", out, {})}
        sets["mine"]["rows"] = [{"hash": none, "seed": 0, "label": "none", "error": 10.0}]
        if label == "again":  # a search that was repeated and chose another policy
            earlier = {"hash": named("general-mild").hash, "label": independent.SEARCHED, "error": 9.0}
            sets["mine"]["rows"] += [{**earlier, "seed": seed} for seed in range(2)]
        runs = list(independent.missing(sets, data, out, "cpu", 2))
        assert len(runs) == more
        assert runs[0].label == "trivialaugment-wide"
    assert independent.SEARCHED not in independent.errors_of(sets["mine"])
    assert not sets["mine"]["drawn"]
    sets["mine"]["search"]["chosen"] = "none"
    sets["mine"]["rows"].append({"hash": none, "seed": 1, "label": "none", "error": 12.0})
    assert independent.errors_of(sets["mine"])[independent.SEARCHED] == {0: 10.0, 1: 12.0}


def test_a_zoo_is_packed(tmp_path, capsys):
    from PIL import Image

    for part in ("train", "test"):
        for name in ("a", "b"):
            folder = tmp_path / "zoo" / "leaves_64" / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (20, 20), (number, 0, 0)).save(folder / f"{number}.png")
    tool("prior").pack(tmp_path / "zoo", tmp_path / "data", "*_64", 4, 10, 16)
    assert np.load(tmp_path / "data" / "leaves.npz")["x_train"].shape == (4, 16, 16, 3)
    assert "leaves: 4 training images, 6 test images" in capsys.readouterr().out
