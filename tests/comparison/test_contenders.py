"""Who takes part in a comparison: names, files, run folders, several of them in a row."""

from dataclasses import replace

import pytest

from fasteraa.comparison.contenders import Contender, jobs_of, parse_contenders
from fasteraa.errors import ConfigError, PolicyError
from fasteraa.policy.named import named


def test_policies_in_memory_take_part():
    mine = replace(named("uniform"), name="mine")
    contenders = parse_contenders([mine, "none", "randaugment(2,14)"], 3)
    assert [each.label for each in contenders] == ["mine", "none", "randaugment(2,14)"]
    assert contenders[0].policies == (mine,)
    with pytest.raises(ConfigError, match="what others are compared with"):
        parse_contenders([replace(mine, name="none")], 1)


def test_policies_from_text(tmp_path):
    named("uniform").save(tmp_path / "policy.json")
    named("random", seed=4).save(tmp_path / "b.json")
    text = f"none, randaugment(2,14) ,{tmp_path},found={tmp_path}/policy.json+{tmp_path}/b.json,random"
    contenders = parse_contenders(text, 3)
    assert [each.label for each in contenders] == ["none", "randaugment(2,14)", str(tmp_path), "found", "random"]
    assert [len(each.policies) for each in contenders] == [1, 1, 1, 2, 3]
    assert contenders[3].policy(0) == contenders[3].policy(2) == named("uniform")
    assert contenders[3].policy(1) == named("random", seed=4)


@pytest.mark.parametrize(("text", "label"), [("random", "random"), ("Random", "random"), ("mine=random", "mine")])
def test_random_is_a_new_policy_for_every_seed(split, quick, text, label):
    (contender,) = parse_contenders(text, 3)
    assert contender.label == label
    hashes = [job.policy.hash for job in jobs_of([contender], quick, range(3), split)]
    assert hashes == [named("random", seed=seed).hash for seed in range(3)]


def test_random_among_others_is_new_in_every_run_that_takes_it():
    (contender,) = parse_contenders("mixed=uniform+random", 4)
    assert contender.policies == (
        named("uniform"), named("random", seed=1), named("uniform"), named("random", seed=3),
    )  # fmt: skip
    with pytest.raises(PolicyError, match="no known policy of that name: 'nothing'"):
        parse_contenders("mixed=random+nothing", 1)


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


def test_cutout_of_the_recipe_follows_every_policy_but_none(split, quick):
    recipe = replace(quick, cutout=4)
    jobs = jobs_of(parse_contenders("none,cutout,uniform", 1), recipe, [0], split)
    assert [(job.label, job.policy.name, job.recipe.cutout) for job in jobs] == [
        ("none", "none", 0), ("cutout", "none", 4), ("uniform", "uniform", 4),
    ]  # fmt: skip


def test_seed_by_seed(split, quick):
    order = [(job.seed, job.label) for job in jobs_of(parse_contenders("none,uniform", 2), quick, [0, 1], split)]
    assert order == [(0, "none"), (0, "uniform"), (1, "none"), (1, "uniform")]


def found(**provenance):
    return replace(named("uniform"), provenance=provenance)


def test_search_cost_is_the_mean_of_those_that_were_searched_for():
    assert Contender("mine", tuple(found(seconds=s) for s in (10.0, 20.0))).search_seconds == 15.0
    assert Contender("mine", (found(seconds=10.0), named("none"))).search_seconds == 10.0
    assert Contender("none", (named("none"),)).search_seconds is None


@pytest.mark.parametrize("race", ["race", "calibration"])  # version 0.1 called it calibration
def test_search_cost_is_that_of_the_race_too(race):
    assert Contender("mine", (found(**{"seconds": 10.0, race: {"seconds": 90.5}}),)).search_seconds == 100.5
    for strange in ({"seconds": "ten"}, {"seconds": 10.0, race: {"seconds": "x"}}):
        assert Contender("mine", (found(**strange),)).search_seconds is None
    assert Contender("mine", (found(**{"seconds": 10.0, race: "none"}),)).search_seconds == 10.0
