"""Searches are found again by a key of their settings: what changes those, or how they are written, searches all anew.

The searches in results/ were made with the settings that these keys are of.
"""

import math
from pathlib import Path

import pytest

from fasteraa.reproduce.declare import Search
from fasteraa.reproduce.engine import Setting, _Made
from fasteraa.reproduce.tables import TABLES

KEYS = {
    "cifar10": {
        "cifar10-4000-L10-K2-0-dc94f4564e52",
    },
    "operation-count": {
        "cifar10-4000-L10-K1-0-2bfb70c3f72c",
        "cifar10-4000-L10-K2-0-dc94f4564e52",
        "cifar10-4000-L10-K3-0-c51ecdff92bb",
        "cifar10-4000-L10-K4-0-9546cb2dd7e7",
    },
    "quality": {
        "ants-and-bees-all-L10-K2-0-e4be665d06ab",
        "ants-and-bees-all-diverse-L10-K2-0-e4857a8bc79b",
        "cifar10-4000-L10-K2-0-208038865c9f",
        "cifar10-4000-diverse-L10-K2-0-9c33f7ac91f9",
        "cifar100-4000-L10-K2-0-b36fd2b3870b",
        "cifar100-4000-diverse-L10-K2-0-0391a0a089f9",
        "fashion-mnist-1000-L10-K2-0-af525e5625bc",
        "fashion-mnist-1000-diverse-L10-K2-0-37ff8fe93363",
        "fashion-mnist-300-L10-K2-0-83f35883a3c2",
        "fashion-mnist-300-diverse-L10-K2-0-a6fd2d61790b",
        "fashion-mnist-4000-L10-K2-0-682b392f873e",
        "fashion-mnist-4000-diverse-L10-K2-0-81b5da91a8d2",
        "imagenette-1000-L10-K2-0-4d3f917ff7c2",
        "imagenette-1000-diverse-L10-K2-0-f462eec9053e",
        "svhn-1000-L10-K2-0-bae13b7f6fc9",
        "svhn-1000-diverse-L10-K2-0-01cbf44ad9bd",
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_searches_keep_their_keys(name):
    setting = Setting(
        out=Path("out"), seeds=1, device="cpu", data_root=None, sources={}, subset=None, quick=False, until=math.inf,
        say=print,
    )  # fmt: skip
    made = _Made(setting, TABLES[name], [])
    searches = [line.policy for line in TABLES[name].lines if isinstance(line.policy, Search)]
    assert {made._folder(wanted, 0).name for wanted in searches} == KEYS[name]
