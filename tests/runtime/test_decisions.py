"""What a clock decided is decided once: saved before use, read by a resumed run, forgotten when it is for another."""

import json

import pytest

from fasteraa.errors import RunError
from fasteraa.runtime.decisions import Decisions


@pytest.fixture
def file(tmp_path):
    return tmp_path / "race" / "schedule.json"


def never():
    raise AssertionError("it was decided already")


def test_a_decision_is_saved_before_anybody_uses_it(file):
    """Whoever is killed right after finds it."""
    decided = Decisions(file, "a").decide("images", lambda: {"count": 300})
    assert decided == {"count": 300}
    assert json.loads(file.read_text())["images"] == {"count": 300}


def test_nothing_is_saved_of_a_decision_that_failed(file):
    def fail():
        raise ValueError("no images")

    decisions = Decisions(file, "a")
    with pytest.raises(ValueError, match="no images"):
        decisions.decide("images", fail)
    assert decisions.get("images") == {}
    assert not file.exists()
    assert decisions.decide("images", lambda: {"count": 3}) == {"count": 3}


def test_it_is_made_once(file):
    decisions = Decisions(file, "a")
    decisions.decide("images", lambda: {"count": 300})
    assert decisions.decide("images", never) == {"count": 300}


def test_a_resumed_run_reads_it(file):
    first = Decisions(file, "a")
    first.decide("images", lambda: {"count": 300})
    first.decide("race", lambda: {"repeats": [1, 1, 3], "epochs": 60})
    resumed = Decisions(file, "a")
    assert resumed.decide("images", never) == {"count": 300}
    assert resumed.decide("race", never) == {"repeats": [1, 1, 3], "epochs": 60}


def test_what_is_for_something_else_is_forgotten(file):
    """Other images, methods, recipe or seed: its hash is another one."""
    Decisions(file, "a").decide("images", lambda: {"count": 300})
    other = Decisions(file, "b")
    assert other.get("images") == {}
    assert other.decide("images", lambda: {"count": 50}) == {"count": 50}
    assert Decisions(file, "b").decide("images", never) == {"count": 50}
    assert Decisions(file, "a").get("images") == {}


def test_values_can_be_added(file):
    decisions = Decisions(file, "a")
    decisions.decide("setup", lambda: {"seconds": 1.5})
    decisions.note("setup", {"over": True})
    decisions.note("extra", {"count": 2})
    resumed = Decisions(file, "a")
    assert resumed.get("setup") == {"seconds": 1.5, "over": True}
    assert resumed.get("extra") == {"count": 2}


def test_forgetting_some_or_all(file):
    decisions = Decisions(file, "a")
    for name in ("one", "two", "three"):
        decisions.note(name, {"count": 1})
    decisions.forget("two")
    assert [bool(Decisions(file, "a").get(name)) for name in ("one", "two", "three")] == [True, False, True]
    decisions.forget()
    assert not any(Decisions(file, "a").get(name) for name in ("one", "two", "three"))


def test_without_a_file_it_lives_as_long_as_the_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    decisions = Decisions(None, "a")
    decisions.decide("images", lambda: {"count": 300})
    assert decisions.decide("images", never) == {"count": 300}
    assert Decisions(None, "a").get("images") == {}
    assert list(tmp_path.iterdir()) == []


def test_what_was_never_decided_is_empty(file):
    assert Decisions(file, "a").get("images") == {}
    assert not file.exists()


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_a_file_that_was_cut_is_a_run_error_that_names_it(file, share):
    Decisions(file, "a").decide("images", lambda: {"count": 300})
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(
        RunError, match=r"the schedule '.*schedule\.json' cannot be read .*: remove it to plan the race"
    ):
        Decisions(file, "a")


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", "{}", '{"of": "a", "images": 3}', "\udcff{}"])
def test_a_file_of_something_else_is_one(file, content):
    file.parent.mkdir()
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=r"the schedule '.*schedule\.json' cannot be read") as error:
        Decisions(file, "a")
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_left_as_it_is(file):
    file.parent.mkdir()
    file.write_text("{")
    with pytest.raises(RunError):
        Decisions(file, "a")
    assert file.read_text() == "{"
