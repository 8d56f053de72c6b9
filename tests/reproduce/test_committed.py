"""What earlier versions searched and trained is found again: by the keys of searches and of trainings.

A change of what keys are made of, or of how that is written, would make everything again. Here it fails, on results/.
"""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fasteraa.errors import DataError
from fasteraa.methods.config import check_same, make_config, read_config
from fasteraa.policy.named import named
from fasteraa.reproduce import search_store
from fasteraa.reproduce.schema import Search, with_norm_free_critic
from fasteraa.reproduce.search_store import SearchStore, StoredSearch, pack, read_packed, search_name
from fasteraa.reproduce.setting import Setting
from fasteraa.reproduce.tables import TABLES
from fasteraa.train.job import make_job
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Engine
from fasteraa.train.split import Split

RESULTS = Path(__file__).parents[2] / "results"
MADE = {"quality": (("quality",), 3), "counts": (("sub-policies", "operation-count"), 2), "cifar10": (("cifar10",), 1)}
ON = {  # data set of a table -> name and number of the images that were trained on
    "reduced-cifar10": ("cifar10r", 4000), "cifar10": ("cifar10r", 4000), "reduced-cifar100": ("cifar100r", 4000),
    "reduced-svhn": ("svhnr", 1000), "imagenette-1000": ("imagenette", 1000), "ants-and-bees": ("ants", 244),
    **{f"fashion-{count}": ("fashion-mnist", count) for count in (300, 1000, 4000)},
}  # fmt: skip
NORM_FREE = ("counts", "cifar10")  # made by `reproduce --norm-free`
FILES = {"quality": "quality/table", "sub-policies": "counts/sub-policies", "operation-count": "counts/operations"}


def lines_of(folder, name):
    """Of a table, as they were when its numbers were made."""
    return (with_norm_free_critic(TABLES[name]) if folder in NORM_FREE else TABLES[name]).lines


@pytest.mark.parametrize("folder", MADE)
def test_searches_keep_their_names(folder, tmp_path):
    tables, seeds = MADE[folder]
    searches = [line.policy for name in tables for line in lines_of(folder, name) if isinstance(line.policy, Search)]
    configs = [(search, make_config({**search.settings, "seed": s})) for search in searches for s in range(seeds)]
    kept = read_packed(RESULTS / folder / "searches.json")
    fingerprints = {each.policy.provenance["data"]["fingerprint"] for each in kept.values()}
    names = {search_name(search, config, each): config for search, config in configs for each in fingerprints}
    assert kept
    assert kept.keys() <= names.keys()
    assert len(kept) == len({search_name(search, config, "") for search, config in configs})
    for name, each in kept.items():
        (tmp_path / "config.toml").write_text(each.config)
        check_same(names[name], read_config(tmp_path / "config.toml"), tmp_path)  # made with these settings


def test_packed_searches_are_those_of_the_folders(tmp_path):
    for name, parts in {"one": ("policy.json",), "two": ("policy.json", "methods/faster-aa/faster-aa.json")}.items():
        for number, part in enumerate(parts):
            named("random", seed=number).save(tmp_path / "searches" / name / part)
        (tmp_path / "searches" / name / "config.toml").write_text(f"# {name}\n")
    kept = {name: StoredSearch.of(tmp_path / "searches" / name) for name in ("one", "two")}
    assert (kept["one"].gradient, kept["two"].gradient.hash) == (None, named("random", seed=1).hash)
    pack(tmp_path)
    assert read_packed(tmp_path / "searches.json") == kept
    assert read_packed(tmp_path / "none.json") == {}
    (tmp_path / "searches.json").write_text("[]")
    with pytest.raises(DataError, match="must hold an object for each search"):
        read_packed(tmp_path / "searches.json")


@pytest.fixture
def store(request, monkeypatch):
    """The searches of a folder of results/, without their images."""

    def load(source, **_):
        raise DataError(f"{source} is not here")

    monkeypatch.setattr(search_store, "load", load)
    return SearchStore(
        Setting(
            out=RESULTS / request.param[0], seeds=request.param[1], engine=Engine(device="cpu", jobs=1), data_root=None,
            sources={"ants-and-bees": "ants-and-bees"}, subset=None, quick=False, until=math.inf, say=str, command=None,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("store", "name"),
    [(("quality", 3), "quality"), (("counts", 2), "sub-policies"), (("counts", 2), "operation-count")],
    indirect=["store"],
)
def test_every_number_is_found_again(store, name):
    """By the search, its policy, the recipe and the images' fingerprints, which records keep."""
    cache = RunCache(store.setting.out)
    images = splits(cache)
    lines = json.loads((RESULTS / f"{FILES[name]}.json").read_text())["lines"]
    for line, kept in zip(lines_of(store.setting.out.name, name), lines, strict=True):
        policies = store.policies(line.policy)
        assert len(policies) == store.setting.seeds
        for seed, policy in policies.items():
            outcome = cache.read(make_job(line.label, policy, store.setting.recipe(line), seed, images[ON[line.data]]))
            assert outcome is not None, f"{line.data}, {line.label}, seed {seed}"
            assert outcome.error == kept["values"][str(seed)]


def splits(cache):
    """(Name, images) -> what was trained on, as far as keys know of it."""
    records = json.loads((cache.folder / "runs.json").read_text()).values()
    return {
        (record["data"]["name"], record["data"]["images"]): Split(
            *(SimpleNamespace(fingerprint=record[part]["fingerprint"]) for part in ("data", "held_out")), "test images"
        )
        for record in records
    }


def test_a_packed_search_with_a_budget_is_found(tmp_path):
    """So that a table of methods at an equal budget can be made from what is kept of it."""
    setting = SimpleNamespace(out=tmp_path, quick=False)
    search = Search(source="cifar10", methods=("pba",), minutes=1.0, per_seed=False, settings={})
    store = SearchStore(setting)
    store._fingerprint = lambda search: "f" * 64
    assert store.read(search, 0) is None
    folder = store.folder(search, 0)
    named("random", seed=3).save(folder / "policy.json")
    assert store.read(search, 0).hash == named("random", seed=3).hash
    pack(tmp_path)
    shutil.rmtree(tmp_path / "searches")
    again = SearchStore(setting)
    again._fingerprint = store._fingerprint
    assert again.read(search, 0).hash == named("random", seed=3).hash
