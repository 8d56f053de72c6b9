"""Races in which trainings are scripted or take a moment."""

from dataclasses import dataclass, field

import pytest

from fasteraa.methods import Candidate
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.task import FOLDS, Task
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.progress import Silent
from fasteraa.selection import schedule
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import local
from fasteraa.train.split import fold_splits

from ..train.conftest import levels

REPEATS = schedule.REPEATS
RECIPE = TrainRecipe(network="small", epochs=12, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
WORST = Policy((SubPolicy(((Choice("invert", 0.5),),)),), "inverted")
TWO = [Candidate("none", named("none")), Candidate("inverted", WORST)]
FOUR = [*TWO, Candidate("uniform", named("uniform")), Candidate("flipped", named("random", seed=1, ops=["flip"]))]


@pytest.fixture(autouse=True)
def short_races(monkeypatch):
    """One training of each on each fold, unless a test wants more or an early end; nothing is measured for long."""
    monkeypatch.setattr("fasteraa.selection.ranking.CLEAR", 0.0)
    monkeypatch.setattr(local, "_MEASURED_S", 0.0)
    monkeypatch.setattr(schedule, "REPEATS", ())


def brightness_classes(count=120, side=8):
    return levels(count, apart=115, side=side)


@dataclass
class Said(Silent):
    lines: list = field(default_factory=list)

    def say(self, text):
        self.lines.append(text)


def task_of(data, recipe=RECIPE, folder=None, seed=0, said=None):
    return Task(
        data,
        SearchConfig(seed=seed),
        "cpu",
        recipe=recipe,
        folds=tuple(fold_splits(data, FOLDS, seed)),
        decisions=Decisions(folder / "schedule.json" if folder else None, "test"),
        progress=Said(said if said is not None else []),
    )


def cache_in(folder):
    return RunCache(folder).open()


class ForgetfulRunner(ScriptedRunner):
    """Keeps no networks, so that nothing can be predicted."""

    def _keep_network(self, job):
        pass
