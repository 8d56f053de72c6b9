"""Fast AutoAugment's trials: suggested in this process or in others, they are the same; and what they may cost."""

import math
import os
import signal
from dataclasses import replace
from random import Random

import pytest

from fasteraa.errors import RunError
from fasteraa.methods import Budget, fast_aa
from fasteraa.methods.fast_aa import FastAA, FastAASettings, FoldTrials, Journal, PolicyTrial, payable_trials, try_all
from fasteraa.methods.space import Space
from fasteraa.methods.tpe import Apart, Tpe, ready, suggesters
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner

from ..train.conftest import levels
from .planted import RECIPE, dose, scripted, summary, task_of

SPACE = Space(("rotate", "invert", "brightness"), sub_policies=1)
SPACE_OF_TWO = Space(("rotate", "invert"))


class Scorer:
    """What the trials on a fold ask: here a number made of the policy."""

    def __init__(self, fold):
        self.fold = fold

    def error(self, policy, seed):
        return (int(policy.hash[-6:], 16) + seed % 7) % 1000 / 1000


def fold_trials(number, tpe, count=4, seconds=math.inf, file=None):
    return FoldTrials(SPACE, Scorer(f"fold {number}"), Journal(file, SPACE.sizes), count, seconds, number, tpe)


def tried(apart, count=4, files=(None, None)):
    with suggesters(SPACE.names, SPACE.sizes, 2, apart) as tpe:
        folds = [fold_trials(number, each, count, file=files[number]) for number, each in enumerate(tpe)]
        try_all(folds, lambda text: None)
        return [[(each.code, each.error) for each in fold.trials] for fold in folds]


def test_processes_suggest_what_this_one_would(tmp_path):
    """Also after a kill: what is in the journals counts, and the next suggestions are those of one go."""
    whole = tried(apart=False, count=14)  # beyond the ten that TPE begins with
    files = [tmp_path / f"{number}.jsonl" for number in range(2)]
    assert tried(apart=True, count=11, files=files) == [each[:11] for each in whole]
    assert tried(apart=True, count=14, files=files) == whole
    assert whole[0] != whole[1]
    assert len({code for code, _ in whole[0]}) > 10


def test_a_process_that_ends_is_reported(tmp_path):
    with suggesters(SPACE.names, SPACE.sizes, 1, apart=True) as (tpe,):
        assert isinstance(tpe, Apart)
        fold = fold_trials(0, tpe)
        os.kill(tpe._process.pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"a process that suggests trials ended, .*resume=True continues"):
            try_all([fold], lambda text: None)
        assert ready([tpe]) == [tpe]
    assert not tpe._process.is_alive()


def test_time_ends_the_trials_of_a_fold():
    known = [PolicyTrial((0, 0, 0) * 2, 0.5, 3.0)]
    with suggesters(SPACE.names, SPACE.sizes, 1, apart=False) as (tpe,):
        for seconds, asks in ((2.9, False), (3.1, True)):
            fold = fold_trials(0, tpe, seconds=seconds)
            fold.trials = list(known)
            assert fold.ask() is asks
        fold.trials = []
        assert fold.ask()  # one in any case


def test_folds_share_what_the_networks_leave(tmp_path):
    """The folds take turns, so each has all of the time that is left; trainings are counted by their forward passes."""
    task = task_of(recipe=replace(RECIPE, epochs=200, batch_size=6))
    folds = len(task.folds)
    runner = scripted(tmp_path, image_seconds=1 / 60)  # a second for an epoch
    planned = payable_trials(task, Budget(8 * 60 * folds), runner, FastAASettings())
    assert planned.pop("seconds") == pytest.approx(8 * 60 * folds, abs=5)
    assert planned == {"trainings": folds, "epochs": 90, "trials": 200}
    task = replace(task, decisions=Decisions(tmp_path / "schedule.json", "a race"))
    assert FastAA()._left(task, {"seconds": 100.0}, 30.0) == 70.0  # by what the networks really took
    assert FastAA()._left(task, {"seconds": 100.0}, 90.0) == 70.0  # and the same when it continues
    assert FastAA()._left(task, {}, 90.0) == math.inf
    counted = payable_trials(task, Budget(trainings=folds + 1), runner, FastAASettings(trials=10_000))
    passes = 3 * 90 * task.train_images / (5 * len(task.folds[0].held_out))  # those of a training, in trials
    assert counted == {"trainings": folds + 1, "epochs": 90, "trials": math.floor(passes / folds)}
    assert payable_trials(task, Budget(1.0), runner, FastAASettings())["trainings"] == 0


@pytest.mark.parametrize(
    ("ops", "settings", "count"),
    [
        (None, {}, 16),
        (None, FastAA.published().settings, 15),  # without sample pairing
        (("rotate", "sample_pairing"), FastAA.published().settings, 2),
    ],
)
def test_operations_that_are_searched(tmp_path, monkeypatch, ops, settings, count):
    class Asked(Exception):
        pass

    def asked(names, sizes, *given):
        raise Asked(sizes[0])

    monkeypatch.setattr(fast_aa, "suggesters", asked)
    with pytest.raises(Asked, match=f"^{count}$"):
        FastAA.with_settings(settings).candidates(task_of(ops), Budget(trainings=9), scripted(tmp_path))


def test_tpe_learns():
    """On a score that a number decides alone, later trials are better than the first, which are drawn."""
    scores = []
    tpe = Tpe(SPACE.names, SPACE.sizes)
    for seed in range(40):
        code = tpe.ask(seed)
        scores.append(abs(code[1] - 7) + abs(code[4] - 2))
        tpe.tell(scores[-1])
    assert sum(scores[-10:]) < 0.6 * sum(scores[:10])


@pytest.mark.slow
def test_planted_truth(tmp_path):
    """Inverted, dark images are bright ones: what is kept inverts less than what is drawn. Killed, it continues."""
    data = levels(90, apart=75)
    task = task_of(("rotate", "invert"), data=data, recipe=replace(RECIPE, epochs=12))
    method, budget = FastAA(FastAASettings(trials=24, passes=1, kept=4)), Budget(trainings=60)
    with LocalRunner(RunCache(tmp_path / "whole").open(), device="cpu", jobs=1) as runner:
        whole = method.candidates(task, budget, runner)
    together, _ = whole
    assert len(together.details["tried"]) == 3 * 24
    drawn = [dose(SPACE_OF_TWO.decode(SPACE_OF_TWO.draw(Random(seed))), "invert") for seed in range(100)]
    assert dose(together.policy, "invert") < 0.6 * sum(drawn) / len(drawn)
    killed = replace(task, folder=RunFolder(tmp_path / "run"))
    append, lines = Journal.append, []

    def stop(journal, trial):
        append(journal, trial)
        lines.append(1)
        if len(lines) == 17:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", stop)
        with (
            LocalRunner(RunCache(tmp_path / "killed").open(), device="cpu", jobs=1) as runner,
            pytest.raises(KeyboardInterrupt),
        ):
            method.candidates(killed, budget, runner)
    with LocalRunner(RunCache(tmp_path / "killed").open(), device="cpu", jobs=1) as runner:
        assert summary(method.candidates(killed, budget, runner)) == summary(whole)
