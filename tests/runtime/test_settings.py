"""Settings check themselves, whoever makes them: types, limits, choices, and the way to TOML and back."""

import tomllib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.runtime.settings import Settings, setting, toml_value
from fasteraa.selection.config import RaceConfig
from fasteraa.train.recipe import TrainRecipe


@dataclass(frozen=True, kw_only=True)
class Oven(Settings):
    degrees: float = setting(180.0, "How hot.", above=0, below=300)
    minutes: int = setting(40, "How long.", least=1)
    weight: float | None = setting(None, "Of the cake.", least=0)
    fan: bool = setting(False, "Hot air.")
    rack: str = setting("middle", "Where the tin stands.", choices=("top", "middle", "bottom"))
    notes: tuple[str, ...] | None = setting(None, "What to look out for.")
    extra: Mapping[str, Any] = field(default_factory=dict, metadata={"about": "Whatever else."})

    def _converted(self, name, value):
        return dict(value) if name == "extra" else super()._converted(name, value)


CHANGED = Oven(
    degrees=200, minutes=3, weight=1.5, fan=True, rack="top", notes=('say "ah"', "back\\slash", "größe"),
    extra={"icing": {"sugar": 2, "lemon": True}},
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": "40"}, "minutes must be a whole number, got '40'"),
        ({"minutes": 2.5}, "minutes must be a whole number, got 2.5"),
        ({"minutes": 2.0}, "minutes must be a whole number, got 2.0"),
        ({"minutes": True}, "minutes must be a whole number, got True"),
        ({"minutes": None}, "minutes must be a whole number, got None"),
        ({"degrees": "hot"}, "degrees must be a number, got 'hot'"),
        ({"degrees": True}, "degrees must be a number, got True"),
        ({"fan": 1}, "fan must be true or false, got 1"),
        ({"rack": 3}, "rack must be text, got 3"),
        ({"notes": "one"}, "notes must be a list, got 'one'"),
    ],
)
def test_types(given, message):
    for make in (Oven.make, lambda given: Oven(**given), lambda given: replace(Oven(), **given)):
        with pytest.raises(ConfigError, match=message):
            make(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": 0}, "minutes must be a number of at least 1, got 0"),
        ({"degrees": 0}, r"degrees must be a positive number, got 0\.0"),
        ({"degrees": -1}, r"degrees must be a positive number, got -1\.0"),
        ({"degrees": 300}, r"degrees must be below 300, got 300\.0"),
        ({"degrees": float("nan")}, "degrees must be a positive number, got nan"),
        ({"weight": float("inf")}, "weight must be a number of at least 0, got inf"),
        ({"weight": float("nan")}, "weight must be a number of at least 0, got nan"),
    ],
)
def test_limits(given, message):
    with pytest.raises(ConfigError, match=message):
        Oven(**given)


def test_limits_are_of_values_that_are_allowed():
    assert Oven(minutes=1, weight=0, degrees=299.9).weight == 0.0
    assert Oven(weight=None).weight is None


def test_choices():
    with pytest.raises(ConfigError, match=r"unknown rack 'botom': did you mean 'bottom'.*choices: top, middle, bottom"):
        Oven(rack="botom")


def test_unknown_names():
    with pytest.raises(
        ConfigError, match=r"unknown setting 'degree': did you mean 'degrees'.*choices: degrees, minutes"
    ):
        Oven.make({"degree": 3})


def test_whole_numbers_are_numbers_and_lists_are_tuples():
    oven = Oven(degrees=200, notes=["a"])
    assert type(oven.degrees) is float
    assert oven.notes == ("a",)
    assert hash(oven.notes)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_whole_numbers_of_numpy_are_pythons(kind):
    oven = Oven(minutes=kind(7), degrees=kind(7))
    assert type(oven.minutes) is int
    assert type(oven.degrees) is float
    assert oven == Oven(minutes=7, degrees=7)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_of_numpy_are_pythons(kind):
    oven = Oven(degrees=kind(0.5), weight=kind(2))
    assert type(oven.degrees) is type(oven.weight) is float
    assert oven == Oven(degrees=0.5, weight=2)
    with pytest.raises(ConfigError, match="minutes must be a whole number"):
        Oven(minutes=kind(2))


def test_truth_values_of_numpy_are_not_numbers():
    with pytest.raises(ConfigError, match="minutes must be a whole number"):
        Oven(minutes=np.True_)


def test_settings_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Oven().minutes = 3


@pytest.mark.parametrize("oven", [Oven(), CHANGED])
def test_toml_round_trip(oven):
    text = oven.toml("oven")
    assert Oven.make(tomllib.loads(text)["oven"]) == oven
    for name, each in Oven.fields().items():
        if name != "extra":
            assert f"# {each.metadata['about']}\n" in text


def test_settings_without_a_value_stand_as_comments():
    assert "# Of the cake.\n# weight =\n" in Oven().toml("oven")
    assert "weight" not in Oven().plain()


def test_plain_values_are_those_of_json():
    plain = CHANGED.plain()
    assert plain["notes"] == ['say "ah"', "back\\slash", "größe"]
    assert type(plain["notes"]) is list
    assert Oven.make(plain) == CHANGED


@pytest.mark.parametrize("value", [True, False, 3, 2.5, 1e-9, 1e300, "plain", 'a "b" \\ c', [1, 2], ["a", 'b"'], []])
def test_values_in_toml(value):
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@pytest.mark.parametrize("kind", [SearchConfig, RaceConfig, TrainRecipe])
def test_every_kind_of_settings_says_what_each_means_and_survives_toml(kind):
    assert all(each.metadata["about"] for each in kind.fields().values())
    assert kind.make(tomllib.loads(kind().toml("table"))["table"]) == kind()
    assert kind.make(kind().plain()) == kind()
