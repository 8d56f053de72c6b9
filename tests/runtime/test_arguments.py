"""Arguments of a wrong type: one sentence that names the argument, what it may be and what it is."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fasteraa
import fasteraa.data
from fasteraa.errors import ConfigError, DataError, PolicyError
from fasteraa.runtime.arguments import checks_types


@checks_types(DataError)
def bake(
    what: Any,
    minutes: float | None = None,
    *,
    cakes: int = 1,
    fan: bool = False,
    where: str | Path = "oven",
    toppings: str | Sequence[str] = (),
    taste: Callable[[], bool] | None = None,
    sizes: Mapping[str, int] | None = None,
    **extra: Any,
) -> "Unknown":  # noqa: F821
    """A recipe."""
    return minutes


def test_what_fits_is_passed_on():
    assert bake(object(), np.float32(2.5)) == 2.5
    assert bake(1, minutes=3, cakes=np.int64(2), where=Path("grill"), toppings={"nuts"}, taste=lambda: True) == 3
    assert bake(1, None, fan=True, sizes={"tin": 3}, sugar=5) is None
    assert (bake.__name__, bake.__doc__) == ("bake", "A recipe.")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": "a"}, "minutes must be a number, got 'a'"),
        ({"minutes": True}, "minutes must be a number, got True"),
        ({"cakes": 1.5}, "cakes must be a whole number, got 1.5"),
        ({"cakes": None}, "cakes must be a whole number, got None"),
        ({"fan": "yes"}, "fan must be True or False, got 'yes'"),
        ({"where": 5}, "where must be text or a path, got 5"),
        ({"where": b"oven"}, "where must be text or a path, got b'oven'"),
        ({"toppings": 5}, "toppings must be text or a list, got 5"),
        ({"taste": "good"}, "taste must be a function, got 'good'"),
        ({"sizes": ["tin"]}, r"sizes must be a dict, got \['tin'\]"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(DataError, match=f"^{message}$"):
        bake(1, **given)


def test_by_position_too():
    with pytest.raises(DataError, match=r"^minutes must be a number, got 'a'$"):
        bake(1, "a")


def test_python_counts_arguments_itself():
    with pytest.raises(TypeError, match=r"bake\(\) takes from 1 to 2 positional arguments but 4 were given"):
        bake(1, 2, 3, 4)
    with pytest.raises(TypeError, match=r"bake\(\) missing 1 required positional argument: 'what'"):
        bake()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fasteraa.search(config={"epochs": 1}), r"config must be a SearchConfig, got \{'epochs': 1\}"),
        (lambda: fasteraa.search(race={"minutes": 1}), "race must be a RaceConfig, True or False, got .*"),
        (lambda: fasteraa.search(race="yes"), "race must be a RaceConfig, True or False, got 'yes'"),
        (lambda: fasteraa.search(race=False, training={"minutes": 1}), "training must be a RaceConfig, got .*"),
        (lambda: fasteraa.search(minutes="a"), "minutes must be a number, got 'a'"),
        (lambda: fasteraa.search(out=5), "out must be text or a path, got 5"),
        (lambda: fasteraa.search(methods=5), "methods must be text, a Method or a list, got 5"),
        (lambda: fasteraa.search(devices=[0, 1]), r"devices must be text, got \[0, 1\]"),
        (lambda: fasteraa.search(progress=True), "progress must be a Progress, got True"),
        (lambda: fasteraa.race(5), "candidates must be a list or text, got 5"),
        (lambda: fasteraa.race([5]), "a policy is a name, .* or a Policy, got 5"),
        (lambda: fasteraa.race("general", train=5), "train must be a function, got 5"),
        (lambda: fasteraa.compare(policies=[5], out="c"), "a policy is a name, .* or a Policy, got 5"),
        (lambda: fasteraa.compare(recipe={"epochs": 1}, out="c"), "recipe must be a TrainRecipe, got .*"),
        (lambda: fasteraa.compare(subset="a", out="c"), "subset must be a whole number, got 'a'"),
        (lambda: fasteraa.apply(copies="a", out="c"), "copies must be a whole number, got 'a'"),
        (lambda: fasteraa.apply(policy=5, out="c"), "policy must be text, a path or a Policy, got 5"),
    ],
)
def test_functions_of_the_product(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        call()
    assert not list(tmp_path.iterdir())


def test_policies_and_images():
    for load in (fasteraa.load, fasteraa.Policy.load, fasteraa.load("general").save):
        with pytest.raises(PolicyError, match=r"must be text or a path, got 5"):
            load(5)
    with pytest.raises(DataError, match=r"a data set must be map-style .* got dict"):
        fasteraa.search({"train": []})
    with pytest.raises(DataError, match="size must be a whole number or a list, got 'a'"):
        fasteraa.data.load(None, size="a")
