"""Searches are found again by a key of their images and settings: what changes those, or how they are written, searches
all anew. Those in results/ are found under the names that they have."""

from pathlib import Path

import pytest

from fasteraa.methods.config import make_config
from fasteraa.policy import Policy
from fasteraa.reproduce.schema import Search
from fasteraa.reproduce.search_store import search_name
from fasteraa.reproduce.tables import TABLES

RESULTS = Path(__file__).parents[2] / "results"
MADE = {"quality": (("quality",), 3), "counts": (("sub-policies", "operation-count"), 2), "cifar10": (("cifar10",), 1)}


@pytest.mark.parametrize("folder", MADE)
def test_searches_keep_their_names(folder):
    tables, seeds = MADE[folder]
    searches = [line.policy for name in tables for line in TABLES[name].lines if isinstance(line.policy, Search)]
    configs = [(search, make_config({**search.settings, "seed": s})) for search in searches for s in range(seeds)]
    found = {path.parent.name: Policy.load(path) for path in (RESULTS / folder / "searches").glob("*/policy.json")}
    fingerprints = {policy.provenance["data"]["fingerprint"] for policy in found.values()}
    names = {search_name(search, config, each) for search, config in configs for each in fingerprints}
    assert found
    assert found.keys() <= names
    assert len(found) == len({search_name(search, config, "") for search, config in configs})
