"""Things by name: our own, those of other packages, and what is said about names that are neither."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest

from fasteraa.data import arrays, load
from fasteraa.errors import ConfigError
from fasteraa.methods import METHODS, make_methods
from fasteraa.methods.published import PublishedPolicies
from fasteraa.runtime import registry
from fasteraa.runtime.registry import Registry
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import make_runner


class Mine(PublishedPolicies):
    name = "mine"


TOOLS = Registry("tool", "fasteraa.tools", {"path": "pathlib:Path", "loads": "json:loads"})


@pytest.fixture
def plug_in(monkeypatch):
    """Other packages with these entry points: plug_in(name="module:attribute", ...)."""

    def install(group=TOOLS.group, **points):
        installed = [EntryPoint(name.replace("_", "-"), value, group) for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [each for each in installed if each.group == group])

    return install


def test_our_own_are_imported_when_they_are_asked_for():
    from pathlib import Path

    assert TOOLS.load("path") is Path
    assert Registry("tool", "none", {"gone": "no_such_module:thing"}).names() == ("gone",)


def test_an_unknown_name_lists_the_choices(plug_in):
    plug_in(hammer="os:getpid")
    with pytest.raises(
        ConfigError, match=r"^unknown tool 'pathh': did you mean 'path'\? choices: path, loads, hammer$"
    ):
        TOOLS.load("pathh")
    with pytest.raises(ConfigError, match=r"^unknown tool 'zzz': choices: path, loads, hammer$"):
        TOOLS.load("zzz")


def test_an_entry_point_of_another_package_is_found(plug_in):
    import os

    plug_in(hammer="os:getpid")
    assert TOOLS.names() == ("path", "loads", "hammer")
    assert TOOLS.load("hammer") is os.getpid


def test_entry_points_of_other_groups_are_none_of_ours(plug_in):
    plug_in(group="elsewhere", hammer="os:getpid")
    assert TOOLS.names() == ("path", "loads")


def test_our_own_name_stays_ours(plug_in):
    from pathlib import Path

    plug_in(path="os:getpid")
    assert TOOLS.names() == ("path", "loads")
    assert TOOLS.load("path") is Path


@pytest.mark.parametrize("value", ["no_such_package.module:thing", "os:no_such_attribute"])
def test_a_broken_one_is_one_clear_error(plug_in, value):
    plug_in(hammer=value)
    with pytest.raises(
        ConfigError, match=r"the tool 'hammer' of another package could not be loaded: .*no_such"
    ) as error:
        TOOLS.load("hammer")
    assert "\n" not in str(error.value)
    assert TOOLS.load("loads")  # the others still work


def test_whatever_another_package_raises_while_it_is_imported_is_explained(monkeypatch):
    def load():
        raise RuntimeError("needs a licence")

    broken = SimpleNamespace(name="hammer", load=load)
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    with pytest.raises(ConfigError, match="the tool 'hammer' of another package could not be loaded: needs a licence"):
        TOOLS.load("hammer")


def open_mine(rest, data_root, download):
    """A data source of another package: so many grey images."""
    images = np.arange(int(rest), dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    return arrays.open_arrays(np.broadcast_to(images, (int(rest), 8, 8, 3)).copy(), np.arange(int(rest)) % 2)


def test_data_sources_of_other_packages_are_sources(plug_in):
    plug_in(group="fasteraa.sources", mine=f"{__name__}:open_mine")
    assert load("mine:6").images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_runners_of_other_packages_are_runners(plug_in, tmp_path):
    plug_in(group="fasteraa.runners", mine="fasteraa.testing.runners:ScriptedRunner")
    cache = RunCache(tmp_path)
    runner = make_runner("mine", cache, device="cpu", compile=False)
    assert isinstance(runner, ScriptedRunner)
    assert runner.cache == cache


def test_methods_of_other_packages_are_methods(plug_in, monkeypatch):
    monkeypatch.setattr("fasteraa.methods.given.Mine", Mine, raising=False)
    plug_in(group="fasteraa.methods", mine="fasteraa.methods.given:Mine")
    assert METHODS.names()[-1] == "mine"
    (method,) = make_methods("mine")
    assert isinstance(method, Mine)


@pytest.mark.parametrize("value", ["fasteraa.methods.faster_aa:FasterAA", "fasteraa.methods:make_methods"])
def test_a_method_of_another_package_is_a_method_of_that_name(plug_in, value):
    """A resumed run looks for the names that its methods have."""
    plug_in(group="fasteraa.methods", mine=value)
    with pytest.raises(ConfigError, match="'mine' of another package must be a Method with name = 'mine', got <"):
        make_methods("mine")


def test_methods_are_names_or_made_ones():
    mine = Mine()
    assert make_methods(mine) == make_methods([mine]) == [mine]
    with pytest.raises(ConfigError, match=r"a method is a name or a made Method, as in .*, got <class"):
        make_methods(["published", Mine])
