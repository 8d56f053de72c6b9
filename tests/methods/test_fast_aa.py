"""Fast AutoAugment's trials: suggested in this process or in others, they are the same; and what they may cost."""

import math
import os
import signal
from dataclasses import replace

import pytest

from fasteraa.errors import RunError
from fasteraa.methods import Budget
from fasteraa.methods.fast_aa import FastAASettings, FoldTrials, Journal, Trial, payable_trials, try_all
from fasteraa.methods.space import Space
from fasteraa.methods.tpe import Apart, Tpe, ready, suggesters

from .planted import RECIPE, scripted, task_of

SPACE = Space(("rotate", "invert", "brightness"), sub_policies=1)


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
        with pytest.raises(RunError, match=r"a process that suggests trials ended, .*--resume continues"):
            try_all([fold], lambda text: None)
        assert ready([tpe]) == [tpe]
    assert not tpe._process.is_alive()


def test_time_ends_the_trials_of_a_fold():
    known = [Trial((0, 0, 0) * 2, 0.5, 3.0)]
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
    assert planned == {"trainings": folds, "epochs": 90, "trials": 200, "trial_seconds": (8 * 60 - 90) * folds}
    counted = payable_trials(task, Budget(trainings=folds + 1), runner, FastAASettings(trials=10_000))
    passes = 3 * 90 * task.train_images / (5 * len(task.folds[0].held_out))  # those of a training, in trials
    assert counted == {"trainings": folds + 1, "epochs": 90, "trials": math.floor(passes / folds)}
    assert payable_trials(task, Budget(1.0), runner, FastAASettings())["trainings"] == 0


def test_tpe_learns():
    """On a score that a number decides alone, later trials are better than the first, which are drawn."""
    scores = []
    tpe = Tpe(SPACE.names, SPACE.sizes)
    for seed in range(40):
        code = tpe.ask(seed)
        scores.append(abs(code[1] - 7) + abs(code[4] - 2))
        tpe.tell(scores[-1])
    assert sum(scores[-10:]) < 0.6 * sum(scores[:10])
