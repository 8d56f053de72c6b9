"""What black-box methods share: what a budget pays for, and candidates that no image judges which helped to make them.

Such a method tries policies on folds and keeps the best. Measured again on the same held-out images, the best would
seem better than they are. So what races on a fold is made, in the same way, of what was tried on the other folds.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.space import space_of
from fasteraa.methods.task import LONG, Task
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.settings import Settings
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import EndingRunner, Runner, Say, run_jobs

LEAST_FOLDS = (
    2  # on so many a method must have tried policies: what races on one is made of what was tried on the others
)
_LINES = 10  # of progress
FEWEST = 6  # trainings; of fewer the best says nothing
LATE = 1.1  # times its share of the time: nothing is begun that would end later
LATEST = 1.3  # times its share: what was begun is stopped


class Tried(NamedTuple):
    """A policy and how it did on a fold; a lower score is better."""

    policy: Policy
    fold: str
    score: float
    seconds: float = 0.0  # that it took


class BlackBox(Method):
    """A method that trains with policies of its own making and keeps the best of them."""

    trains = True
    settings: Settings

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        if space_of(task.config) is None or len(task.folds) < LEAST_FOLDS:
            return []
        share = TimeShare(task, self.name, budget)
        planned = plan(task, self.name, self.settings, lambda: self.payable(task, budget, runner))
        if not planned["trainings"]:
            return too_little(task, self.name, self.fewest(task), planned["epochs"])
        return candidates_of(self.tried(task, planned, runner, share), self.best)

    @abstractmethod
    def most(self, task: Task) -> int:
        """Trainings, for which it has any use."""

    def fewest(self, task: Task) -> int:
        return FEWEST

    def payable(self, task: Task, budget: Budget, runner: Runner) -> Mapping[str, Any]:
        """What the budget pays for: `trainings`, 0 where those are too few, and the `epochs` of each."""
        return payable_trainings(task, budget, runner, self.most(task), getattr(self.settings, "epochs", None))

    def jobs(self, task: Task, planned: Mapping[str, Any]) -> list[TrainJob]:
        """The trainings, where all are known from the beginning."""
        return []

    def tried(self, task: Task, planned: Mapping[str, Any], runner: Runner, share: TimeShare) -> list[Tried]:
        """What came of all trainings at once. A method that learns from some for the next ones has its own."""
        jobs = self.jobs(task, planned)
        if not jobs:
            return []
        task.say(f"{self.name}: {self.words(task, jobs)}")
        outcomes = share.run(runner, jobs, tenths(task, self.name, len(jobs)))
        return tried_by([job for job in jobs if job.key in outcomes], outcomes)

    def words(self, task: Task, jobs: Sequence[TrainJob]) -> str:
        return trainings_words(task, len(jobs), jobs[0].recipe.epochs)

    @abstractmethod
    def best(self, tried: Sequence[Tried]) -> Mapping[str, Policy]:
        """What is made of what was tried, by label, the best guess first."""


# --- what a budget pays for ------------------------------------------------------------------------------------------


def plan(task: Task, name: str, settings: Settings, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What a clock decided for a method, or decides now; for other settings it decides again."""
    given = settings.plain()
    stored = task.decisions.get(name).get("settings", given)
    if {**type(settings)().plain(), **stored} != given:  # what an earlier version did not know is as by default
        task.decisions.forget(name)
    return task.decisions.decide(name, lambda: {**make(), "settings": given})


class TimeShare:
    """What a method may take, from now on, on a machine that may be slower than was measured.

    Where it ended is kept before anybody acts on it: a resumed run ends there, too. A number of trainings has no end.
    """

    def __init__(self, task: Task, name: str, budget: Budget, late: float = LATE):
        self.task, self.name = task, name
        self.end, self.latest = (time.time() + times * budget.seconds for times in (late, LATEST))
        self.begin()

    def begin(self) -> None:
        """The first batch of a loop, once it is planned."""
        self.before = time.time()

    def over(self, done: int, planned: int, what: str) -> bool:
        """After a batch of a loop: must that be the last, as another one like it would end too late?"""
        ended, now = self.task.decisions.get(self.name).get("ended"), time.time()
        batch, self.before = now - self.before, now
        if ended is not None:
            return done >= int(ended)
        if done >= planned or now + batch <= self.end:
            return False
        self.task.decisions.note(self.name, {"ended": done})
        self._say(done, planned, what)
        return True

    def run(self, runner: Runner, jobs: Sequence[TrainJob], say: Say = lambda text: None) -> dict[str, Outcome]:
        """Of trainings that are all known those that end in time."""
        if "finished" not in self.task.decisions.get(self.name):
            outcomes = run_jobs(_InTime(runner, self.end), jobs, say, self.latest, continues=False)
            if all(job.key in outcomes for job in jobs):
                return outcomes
            finished = [job.key for job in jobs if runner.cache.read(job) is not None]  # some end side by side
            self.task.decisions.note(self.name, {"finished": finished})
            self._say(len(finished), len(jobs), "trainings")
        keys = set(self.task.decisions.get(self.name)["finished"])
        return run_jobs(runner, [job for job in jobs if job.key in keys])

    def _say(self, done: int, planned: int, what: str) -> None:
        self.task.say(
            f"{self.name}: its time is up after {done} of {planned} {what}, the machine is slower than was measured"
        )


class _InTime(EndingRunner):
    """Begins no training that would end too late: after the longest wait so far, unless all of them end sooner."""

    def run(self, jobs: Iterable[TrainJob], until: float = math.inf) -> Iterator[tuple[TrainJob, Outcome]]:
        jobs, longest = list(jobs), 0.0
        first = before = time.time()
        for done, each in enumerate(self.runner.run(jobs, until), 1):
            now = time.time()
            longest, before = max(longest, now - before), now
            first = now if done == 1 else first  # the wait for the first one is also for what starts
            yield each
            rest = (now - first) / (done - 1) * (len(jobs) - done) if done > 1 else math.inf
            if now + min(longest, rest) > self.end:
                return


def lengths(task: Task, epochs: int | None) -> tuple[int, int]:
    """The least and the most epochs of a training: so many, or the shortest informative length and somewhat more."""
    if epochs is not None:
        return (min(epochs, task.recipe.epochs),) * 2
    least = task.informative_epochs()
    return least, min(task.recipe.epochs, int(LONG * least))


def payable_trainings(
    task: Task, budget: Budget, runner: Runner, most: int, epochs: int | None = None
) -> dict[str, int]:
    """Up to `most` trainings of the shortest informative length; what is left over makes them longer.

    None where those are too few. With `epochs` all have that length.
    """
    least, longest = lengths(task, epochs)
    if budget.trainings is not None:
        count = min(budget.trainings, most)
    else:
        epoch = epoch_seconds(task, runner)
        count = math.floor(min(most, budget.seconds / (least * epoch)))
        longest = math.floor(min(longest, budget.seconds / (max(count, 1) * epoch)))
    return {"trainings": count, "epochs": longest} if count >= FEWEST else {"trainings": 0, "epochs": least}


def epoch_seconds(task: Task, runner: Runner) -> float:
    """Of one training on a fold; as many as there are folds share the device."""
    jobs = [task.job("uniform", named("uniform"), fold=fold, seed=0) for fold in range(len(task.folds))]
    return max(runner.estimate(jobs) / (len(jobs) * task.recipe.epochs), 1e-9)


def trainings_words(task: Task, count: int, epochs: int) -> str:
    return f"{count} trainings of {epochs_words(epochs)} of {task.recipe.network_words}"


def tenths(task: Task, name: str, count: int) -> Say:
    """Of the lines about so many trainings every tenth part, and none about a few."""
    numbers, step = itertools.count(1), math.ceil(count / _LINES)

    def say(text: str) -> None:
        if next(numbers) % step == 0 and count > _LINES:
            task.say(f"{name}: {text}")

    return say


def too_little(task: Task, name: str, trainings: int, epochs: int) -> list[Candidate]:
    """No candidates, and why; what it needs is kept for who names the time."""
    task.decisions.note(name, {"needs": [trainings, epochs]})
    task.say(f"{name}: no policies, its share of the race must pay for {trainings} trainings of {epochs_words(epochs)}")
    return []


# --- what was tried --------------------------------------------------------------------------------------------------


def tried_by(jobs: Sequence[TrainJob], outcomes: Mapping[str, Outcome]) -> list[Tried]:
    """By the loss on held-out images; a policy of which a training failed was not tried at all.

    What is less than one image of all adds is luck.
    """
    failed = {job.policy.hash for job in jobs if job.key not in outcomes or outcomes[job.key].failed}
    return [
        Tried(
            job.policy,
            job.split.name,
            max(outcomes[job.key].loss, 1 / len(job.split.held_out)),
            outcomes[job.key].seconds,
        )
        for job in jobs
        if job.policy.hash not in failed
    ]


def best_first(tried: Sequence[Tried]) -> list[Policy]:
    """By the mean of their scores, each less the median of its fold: some images are harder than others."""
    folds = dict.fromkeys(each.fold for each in tried)
    level = {fold: median(each.score for each in tried if each.fold == fold) for fold in folds}
    scores: dict[str, list[float]] = {}
    for each in tried:
        scores.setdefault(each.policy.hash, []).append(each.score - level[each.fold])
    policies = {each.policy.hash: each.policy for each in tried}
    return sorted(policies.values(), key=lambda policy: fmean(scores[policy.hash]))


def rows_of(tried: Sequence[Tried]) -> list[list[Any]]:
    """For the report: fold, score and seconds of each, in their order."""
    return [[each.fold, each.score, round(each.seconds, 3)] for each in tried]


Make = Callable[[Sequence[Tried]], Mapping[str, Policy]]  # labels and policies, the best guess first


def candidates_of(tried: Sequence[Tried], make: Make) -> list[Candidate]:
    """What is made of everything, and for each fold what is made of the others; one of those that came out the same."""
    folds = dict.fromkeys(each.fold for each in tried)
    if len(folds) < LEAST_FOLDS:
        return []
    policies = make(tried)
    without = {fold: make([each for each in tried if each.fold != fold]) for fold in folds}
    distinct = {policies[label].hash: label for label in reversed(list(policies))}.values()
    rows = rows_of(tried)
    return [
        Candidate(
            label, policy, on_folds={fold: made[label] for fold, made in without.items()}, details={"tried": rows}
        )
        for label, policy in policies.items()
        if label in distinct and all(label in made for made in without.values())
    ]
