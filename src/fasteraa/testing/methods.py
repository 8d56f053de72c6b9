"""Checks for a method: same seed same candidates, a killed run continues, the budget is kept, no fold judges its own.

>>> check_method(MyMethod)

Trainings are scripted (`fasteraa.testing.runners.ScriptedRunner`), so that the checks take seconds.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from fasteraa.data import ImageSet, load
from fasteraa.errors import FasterAAError, Stopped
from fasteraa.methods import Budget, Candidate, Method
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.task import FOLDS, Task
from fasteraa.policy.policy import Policy
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.progress import Epoch, Silent
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.testing.runners import SMALL, Script, ScriptedRunner, by_key
from fasteraa.train.job import TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import fold_splits

_QUICK, _SLOW = 1e-6, 1.0  # seconds of an image in an epoch: a machine, and the same one while others use it
_ROUNDED = 1e-6  # parts of a training, in sum
_LABEL = re.compile(r"[\w.-]+")
Make = Callable[[], Method]
Summary = list[tuple[Any, ...]]


def check_method(
    make_method: Make,
    *,
    config: SearchConfig | None = None,
    data: ImageSet | None = None,
    trainings: int = 20,
    seconds: float = 600.0,
) -> None:
    """AssertionError unless a method keeps what `fasteraa.methods.Method` promises.

    `make_method` makes the method, mostly its class; it is called many times. The method is asked for candidates on a
    few images (`data`) with a budget of `trainings`, and with one of `seconds` on a machine that slows down after the
    run was killed.
    """
    config = config or SearchConfig(epochs=4, batch_size=16, sub_policies=2, critic="small")
    with TemporaryDirectory() as scratch:
        bench = _Bench(make_method, data or load(None, size=8, subset=60), config, Path(scratch))
        _check_name(make_method())
        for budget in (Budget(trainings=trainings), Budget(seconds)):
            whole = bench.run("whole", budget)
            assert whole.candidates, f"with {budget} there is no candidate"
            _check_candidates(bench, whole.candidates)
            _check_folds(whole)
            _check_repeats(bench, budget, whole)
            _check_killed_in_trainings(bench, budget, whole)
            _check_killed_in_steps(bench, budget, whole)
            if whole.trained and budget.trainings is None:
                _check_late(bench, budget, whole)
        for count in (0, 1, trainings // 2, trainings):
            asked = sum(job.share for job in bench.run("budget", Budget(trainings=count)).trained)
            assert asked <= count + _ROUNDED, f"a budget of {count} trainings was spent on {asked:g}"
        _check_operations(bench, Budget(trainings=trainings))
        _check_trouble(bench, Budget(trainings=trainings))


# --- a method at work --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """What came of asking a method once."""

    candidates: list[Candidate]
    trained: list[TrainJob]
    steps: int
    epochs: int
    killed: bool = False

    @property
    def summary(self) -> Summary:
        """What must be the same again."""
        return [
            (each.label, each.policy.hash, each.expected, {fold: p.hash for fold, p in each.on_folds.items()})
            for each in self.candidates
        ]


class _Crash(BaseException):
    """As if the process had been killed: nothing has time to be saved."""


class _Killer(Silent):
    """Counts steps and epochs, and does something at one of the steps."""

    def __init__(self, at: int | None = None, kill: Callable[[], None] = lambda: None):
        self.steps, self.epochs, self.at, self.kill = 0, 0, at, kill

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.kill()

    def epoch(self, epoch: Epoch) -> None:
        self.epochs += 1


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _crash() -> None:
    raise _Crash


@dataclass
class _Bench:
    """Images, settings and folders to ask a method with."""

    make_method: Make
    data: ImageSet
    config: SearchConfig
    scratch: Path
    folders: int = 0

    def run(
        self,
        name: str,
        budget: Budget,
        *,
        folder: Path | None = None,
        resume: bool = False,
        stop_after: int | None = None,
        progress: _Killer | None = None,
        image_seconds: float = _QUICK,
        script: Script = by_key,
        until: float = math.inf,
        config: SearchConfig | None = None,
        data: ImageSet | None = None,
        in_folder: bool = True,
    ) -> _Run:
        """Ask a new one, in a new folder unless one is given."""
        folder, progress = folder or self.new_folder(name), progress or _Killer()
        cache = RunCache(folder / "race").open()
        runner = ScriptedRunner(cache, script, image_seconds=image_seconds, stop_after=stop_after)
        method, data, config = self.make_method(), data or self.data, config or self.config
        task = Task(
            data,
            config,
            "cpu",
            recipe=replace(SMALL, epochs=200),
            folds=tuple(fold_splits(data, FOLDS, config.seed)) if method.trains else (),
            folder=RunFolder(folder) if in_folder else None,
            resume=resume,
            decisions=Decisions(cache.folder / "schedule.json" if in_folder else None, "check"),
            progress=progress,
            until=until,
        )
        try:
            candidates, killed = list(method.candidates(task, budget, runner)), False
        except (Stopped, KeyboardInterrupt, _Crash):
            candidates, killed = [], True
        return _Run(candidates, runner.trained, progress.steps, progress.epochs, killed)

    def new_folder(self, name: str) -> Path:
        self.folders += 1
        folder = self.scratch / f"{self.folders}-{name}"
        folder.mkdir()
        return folder


# --- what is checked ---------------------------------------------------------------------------------------------


def _check_name(method: Method) -> None:
    assert isinstance(method, Method), f"a method is a fasteraa.methods.Method, got a {type(method).__name__}"
    assert _LABEL.fullmatch(method.name), f"a name has no spaces and commas, since users type it, got {method.name!r}"


def _check_candidates(bench: _Bench, candidates: Sequence[Candidate]) -> None:
    for each in candidates:
        assert isinstance(each, Candidate), f"a candidate is a Candidate(label, policy), got a {type(each).__name__}"
        assert _LABEL.fullmatch(each.label), f"a label is a name without spaces and commas, got {each.label!r}"
        for policy in (each.policy, *each.on_folds.values()):
            file = bench.scratch / "policy.json"
            policy.save(file)
            assert Policy.load(file).hash == policy.hash, f"the policy of {each.label!r} is another once it is saved"
    labels = [each.label for each in candidates]
    assert len(set(labels)) == len(labels), f"labels must differ, got {', '.join(labels)}"


def _check_folds(whole: _Run) -> None:
    """What was made with the held-out images of a fold would seem better there than it is."""
    trained = dict.fromkeys(job.split.name for job in whole.trained)
    for each in whole.candidates:
        missing = [fold for fold in trained if fold not in each.on_folds]
        assert not missing, (
            f"{each.label!r} comes of trainings on {', '.join(missing)}, and would race there itself: on_folds must "
            "say what races in its place, made without these"
        )


def _check_repeats(bench: _Bench, budget: Budget, whole: _Run) -> None:
    again = bench.run("again", budget)
    assert again.summary == whole.summary, f"the same seed and {budget}, other candidates: {_difference(whole, again)}"
    assert [job.key for job in again.trained] == [job.key for job in whole.trained], "other trainings, the same seed"
    without = bench.run("without", budget, in_folder=False)
    assert without.summary == whole.summary, f"other candidates without a folder: {_difference(whole, without)}"


def _check_killed_in_trainings(bench: _Bench, budget: Budget, whole: _Run) -> None:
    """Ctrl-C after some trainings; then the machine is slower."""
    count = len(whole.trained)
    for after in sorted({0, 1, count // 2, count - 1} & set(range(count))):
        folder = bench.new_folder("killed")
        begun = bench.run("", budget, folder=folder, stop_after=after)
        assert begun.killed, f"Ctrl-C after {after} trainings did not get through"
        rest = bench.run("", budget, folder=folder, resume=True, image_seconds=_SLOW)
        _check_continued(whole, begun, rest, f"killed after {after} of {count} trainings")


def _check_killed_in_steps(bench: _Bench, budget: Budget, whole: _Run) -> None:
    """Ctrl-C, and the power going off, in some steps of a method that reports steps."""
    for at in sorted({1, whole.steps // 2, whole.steps} & set(range(1, whole.steps + 1))):
        for kill in (_interrupt, _crash):
            folder = bench.new_folder("killed")
            begun = bench.run("", budget, folder=folder, progress=_Killer(at, kill))
            assert begun.killed, f"Ctrl-C in step {at} did not get through"
            rest = bench.run("", budget, folder=folder, resume=True, image_seconds=_SLOW)
            _check_continued(whole, begun, rest, f"killed in step {at} of {whole.steps}")


def _check_continued(whole: _Run, begun: _Run, rest: _Run, when: str) -> None:
    assert rest.summary == whole.summary, f"{when} and run again, other candidates: {_difference(whole, rest)}"
    keys = [job.key for job in (*begun.trained, *rest.trained)]
    assert keys == [job.key for job in whole.trained], f"{when} and run again, other trainings"


def _check_late(bench: _Bench, budget: Budget, whole: _Run) -> None:
    """All trainings would take twice the time: it ends with what it has, and resumed it is the same run."""
    pace = 2 * budget.seconds / sum(job.share for job in whole.trained)
    clock, folder = _Clock(), bench.new_folder("late")

    def script(job: TrainJob) -> Mapping[str, Any]:
        clock.now += pace * job.share
        return by_key(job)

    with patch.object(time, "time", clock):
        late = bench.run("", budget, folder=folder, script=script)
        again = bench.run("", budget, folder=folder, resume=True, script=script)
    count = len(late.trained)
    assert count < len(whole.trained), (
        f"its trainings took twice the {budget.seconds:g} seconds of its budget and it made all {count}: "
        "fasteraa.methods.black_box.TimeShare ends in time"
    )
    when = f"with time for {count} of {len(whole.trained)} trainings"
    _check_continued(late, late, again, when)


class _Clock:
    """In place of time.time."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def _check_operations(bench: _Bench, budget: Budget) -> None:
    """A user's choice of operations is kept to; of one operation there may be no candidate."""
    for ops in (("rotate", "invert", "brightness"), ("rotate",)):
        for each in bench.run("ops", budget, config=replace(bench.config, ops=ops)).candidates:
            for policy in (each.policy, *each.on_folds.values()):
                assert set(policy.ops) <= set(ops), f"{each.label!r} has operations beside {ops}: {policy.ops}"


def _check_trouble(bench: _Bench, budget: Budget) -> None:
    """What cannot be done is said as a FasterAAError, or there are no candidates; anything else is a crash."""
    _check_said(bench, "every training failed", budget, script=lambda job: {"diverged": "the loss was not finite"})
    _check_said(bench, "time was up", budget, until=time.time())
    images, classes = bench.data.images, bench.data.classes
    few = ImageSet.of(images[:4].contiguous(), torch.tensor([0, 0, 1, 1]), classes, "four images")
    _check_said(bench, "there were four images", budget, data=few)
    one_class = ImageSet.of(images, torch.zeros_like(bench.data.labels), classes, "one class")
    _check_said(bench, "all images were of one class", budget, data=one_class)


def _check_said(bench: _Bench, trouble: str, budget: Budget, **given: Any) -> None:
    try:
        candidates = bench.run("trouble", budget, **given).candidates
    except FasterAAError:
        return
    except Exception as error:
        raise AssertionError(f"{trouble}, and the method ended with {type(error).__name__}: {error}") from error
    _check_candidates(bench, candidates)


def _difference(one: _Run, other: _Run) -> str:
    """The first candidate that is not the same."""
    for mine, theirs in zip(one.summary, other.summary, strict=False):
        if mine != theirs:
            return f"{mine} and {theirs}"
    return f"{len(one.summary)} and {len(other.summary)} of them"
