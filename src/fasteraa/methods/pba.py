"""Population-based augmentation (Ho et al., 2019): a schedule of policies, found while a population of networks trains.

All trials begin without augmentation. Every few epochs the worst quarter continues from the weights and the policy of
trials of the best quarter, with the policy changed at random. What the best trial in the end has trained with, epoch by
epoch, is the schedule. The settings are the paper's. There are two populations, each with the held-out images of a fold
of its own, so that what races on a fold was never rewarded there.

Every operation stands twice in the list, each time with a probability (0 to 10) and a magnitude (0 to 9). An image gets
none of them (0.2), one (0.3) or two (0.5), of those that say yes. How many an image gets, and how often each operation,
is exactly as in PBA. Two are drawn independently of each other here, so that they may be the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Self

from fasteraa.methods.black_box import (
    LEAST_FOLDS,
    TimeShare,
    Tried,
    best_first,
    candidates_of,
    lengths,
    plan,
    too_little,
)
from fasteraa.methods.method import Budget, Candidate, Method, Published
from fasteraa.methods.space import MAGNITUDES, PROBABILITIES, Code, Space, space_of
from fasteraa.methods.task import Task
from fasteraa.ops import find
from fasteraa.policy.importers import PBA_COUNTS, yes_counts
from fasteraa.policy.policy import Choice, Policy, SubPolicy
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner, run_jobs

POPULATIONS = LEAST_FOLDS  # on a fold each
LEAST = 4  # trials: of fewer there is no quarter
_STEPS = 3  # a number changes by at most so much, unless it is drawn again
_LINES = 10  # of progress


@dataclass(frozen=True, kw_only=True)
class PbaSettings(Settings):
    """`about` of each field is its help."""

    trials: int = setting(16, "Networks of a population, at most.", least=LEAST)
    interval: int = setting(3, "Epochs after which the worst are replaced.", least=1)
    epochs: int | None = setting(
        None, "Of each training (the paper: 200); None: what the budget pays for, as of every method.", least=1
    )
    replaced: float = setting(0.25, "The share of trials that is replaced by as many of the best.", above=0, below=0.5)
    resampled: float = setting(
        0.2, "The chance that a number is drawn again; else it changes a little.", least=0, most=1
    )
    sample_pairing: bool = setting(True, "Among the operations (the paper: not), unless --ops names them.")


class PopulationBased(Method):
    """The schedule of the best trial, and its mean over the training."""

    name = "pba"
    trains = True
    settings_class = PbaSettings
    settings: PbaSettings

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """CIFAR-10 or SVHN: its networks, with crop, flip and cutout on the former. Ours: a cosine on SVHN, too, where
        theirs has steps of a tenth at 80 and 120 epochs.
        """
        svhn = source == "svhn"
        train = {"learning_rate": 0.1, "weight_decay": 5e-3 if svhn else 5e-4, "batch_size": 128, "clip": 5.0}
        train |= {"warmup": 0.0, "cutout": 0 if svhn else 16}
        train |= {"crop": 0.0, "flip": False} if svhn else {}
        epochs = 160 if svhn else 200
        return Published(
            {"epochs": epochs, "sample_pairing": False}, {"network": "wrn-40-2", "epochs": epochs, "train": train}
        )

    @classmethod
    def reduced(cls) -> Self:
        return cls(PbaSettings(trials=LEAST, interval=60))

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        settings = self.settings
        space = space_of(task.config, settings.sample_pairing)
        if space is None or len(task.folds) < POPULATIONS:
            return []
        share = TimeShare(task, self.name, budget)
        planned = plan(task, self.name, settings, lambda: payable(task, space, budget, runner, settings))
        count, epochs = planned["trainings"] // POPULATIONS, planned["epochs"]  # trials of a population
        if not count:
            return too_little(task, self.name, POPULATIONS * LEAST, epochs)
        what = (
            f"{POPULATIONS} populations of {count} trainings of {epochs_words(epochs)} of {task.recipe.network_words}"
        )
        task.say(f"pba: {what}, the worst are replaced every {epochs_words(settings.interval)}")
        populations = [Population(task, space, settings, fold, count, epochs) for fold in range(POPULATIONS)]
        rows, done = evolve(task, runner, populations, epochs, settings.interval, share)
        if done < epochs and done <= settings.interval:
            task.say("pba: no policies, nothing was selected yet and all have trained without augmentation")
            return []
        tried = [
            Tried(population.schedule(trial, done), population.fold_name, trial.error)
            for population in populations
            for trial in population.trials
            if trial.error < math.inf
        ]
        return [replace(each, details={"tried": rows}) for each in candidates_of(tried, best)]


def best(tried: Sequence[Tried]) -> dict[str, Policy]:
    schedule = best_first(tried)[0]
    return {
        "pba": replace(schedule, name="pba"),
        "pba-flat": replace(schedule.flattened(), name="pba-flat"),
    }


# --- what a budget pays for ------------------------------------------------------------------------------------------


def payable(task: Task, space: Space, budget: Budget, runner: Runner, settings: PbaSettings) -> dict[str, int]:
    """Up to `trials` for each population, of the shortest informative length; what is left over makes them longer.

    None where those are too few.
    """
    least, longest = lengths(task, settings.epochs)
    if budget.trainings is not None:
        trials, epochs = min(budget.trainings // POPULATIONS, settings.trials), longest
    else:
        populations = [Population(task, space, settings, fold, settings.trials, longest) for fold in range(POPULATIONS)]
        cost = {
            epochs: POPULATIONS * seconds
            for epochs, seconds in training_seconds(populations, longest, runner).items()
            if epochs >= least
        }
        trials = math.floor(min(budget.seconds / cost[least], settings.trials))
        epochs = max((each for each in cost if trials * cost[each] <= budget.seconds), default=least)
    if trials < LEAST:
        return {"trainings": 0, "epochs": least}
    return {"trainings": POPULATIONS * trials, "epochs": epochs}


def training_seconds(populations: Sequence[Population], longest: int, runner: Runner) -> dict[int, float]:
    """Of one training of 1 to so many epochs, in parts, while those of all populations share the device."""
    interval, part = populations[0].settings.interval, {0: 0.0}  # seconds of a part of so many epochs
    for length in range(min(interval, longest), 0, -1):  # the usual one first: what it costs to begin is by its number
        jobs = [job for population in populations for job in population.jobs(0, length)]
        part[length] = runner.estimate(jobs) / len(jobs)
    return {
        epochs: max(epochs // interval * part.get(interval, 0.0) + part[epochs % interval], 1e-9)
        for epochs in range(1, longest + 1)
    }


# --- the population --------------------------------------------------------------------------------------------------


@dataclass
class PopulationMember:
    """A network that trains: its seed, the numbers of its policy, and all that was before them."""

    seed: int
    numbers: Code
    history: tuple[tuple[int, Code], ...] = ()  # (epoch from which on, numbers)
    after: str = ""  # the key of its last part
    error: float = math.inf  # after it; infinite if it diverged
    seconds: float = 0.0  # of it


class Population:
    """Trials on a fold; all begin without augmentation, each from a seed of its own."""

    def __init__(self, task: Task, space: Space, settings: PbaSettings, fold: int, count: int, epochs: int):
        self.task, self.space, self.settings, self.fold, self.epochs = task, space, settings, fold, epochs
        self.fold_name = task.folds[fold].name
        self.rng = Random(f"pba {task.seed} {fold}")
        nothing = (0,) * (4 * len(space.ops))  # probability and magnitude of every operation, twice
        self.trials = [PopulationMember(task.seed + POPULATIONS * number + fold, nothing) for number in range(count)]

    def jobs(self, first: int, last: int) -> list[TrainJob]:
        """The next part of each trial."""
        jobs = []
        for number, trial in enumerate(self.trials):
            label = f"pba-{self.fold}-{number}"
            policy = Policy(tuple(sub_policies(trial.numbers, self.space)), label, self._spans(), self.space.fill)
            whole = self.task.job(label, policy, fold=self.fold, seed=trial.seed, epochs=self.epochs)
            jobs.append(replace(whole, epochs=(first, last), after=trial.after))
        return jobs

    def learn(self, jobs: Sequence[TrainJob], outcomes: Mapping[str, Outcome]) -> None:
        """How each trial did in the part that it has trained."""
        for trial, job in zip(self.trials, jobs, strict=True):
            outcome = outcomes.get(job.key)
            failed = outcome is None or outcome.failed
            trial.error = math.inf if outcome is None or failed else outcome.error
            trial.seconds = 0.0 if outcome is None else outcome.seconds
            trial.history, trial.after = (*trial.history, (job.part[0], trial.numbers)), job.key

    def select(self) -> None:
        """The worst continue from the best, with other numbers; so do all that diverged."""
        ranked = sorted(self.trials, key=lambda trial: trial.error)
        count = max(int(self.settings.replaced * len(ranked)), 1)
        models = [trial for trial in ranked[:count] if trial.error < math.inf]
        lost = [trial for trial in ranked[count:-count] if trial.error == math.inf]
        for trial in [*lost, *ranked[-count:]] if models else ():
            model = self.rng.choice(models)
            trial.history, trial.after, trial.error = model.history, model.after, model.error
            trial.numbers = explored(model.numbers, self.rng, self.settings.resampled)

    @property
    def lowest(self) -> float:
        return min(trial.error for trial in self.trials)

    def schedule(self, trial: PopulationMember, epochs: int | None = None) -> Policy:
        """What a trial has trained with in so many epochs, as a policy that changes during a training."""
        epochs = epochs or self.epochs
        changes = [step for number, step in enumerate(trial.history) if _changed(trial.history, number)]
        ends = [*(first for first, _ in changes), epochs]
        subs = [
            replace(sub, during=(start / epochs, end / epochs))
            for (start, end), (_, numbers) in zip(pairwise(ends), changes, strict=True)
            for sub in sub_policies(numbers, self.space)
        ]
        return Policy(tuple(subs), "pba", self._spans(), self.space.fill)

    def _spans(self) -> Mapping[str, Any]:
        return {op: span for op, span in self.space.spans.items() if op in self.space.ops}


def _changed(history: Sequence[tuple[int, Code]], number: int) -> bool:
    return number == 0 or history[number][1] != history[number - 1][1]


def evolve(
    task: Task, runner: Runner, populations: Sequence[Population], epochs: int, interval: int, share: TimeShare
) -> tuple[list[list[Any]], int]:
    """Train all of them to the end, or as far as their time is enough.

    Fold, error and seconds of every part of every trial; and the epochs that were trained.

    Only the states of the last part are kept, which the next one continues.
    """
    rows: list[list[Any]] = []
    before: list[TrainJob] = []
    last = 0
    share.begin()
    for first in range(0, epochs, interval):
        last = min(first + interval, epochs)
        jobs = [population.jobs(first, last) for population in populations]
        everyone = [job for each in jobs for job in each]
        outcomes = run_jobs(runner, everyone)
        runner.cache.drop_states(job.key for job in before)
        before = everyone
        for population, theirs in zip(populations, jobs, strict=True):
            population.learn(theirs, outcomes)
        lowest = min(population.lowest for population in populations)
        if any(population.lowest == math.inf for population in populations):
            break
        rows += [
            [each.fold_name, trial.error, round(trial.seconds, 3)] for each in populations for trial in each.trials
        ]
        if last == epochs or first * _LINES // epochs != last * _LINES // epochs:
            task.say(f"pba: {epochs_words(last)} of {epochs}, the best accuracy is {100 - lowest:.1f} %")
        if share.over(last, epochs, "epochs"):
            break
        if last < epochs:
            for population in populations:
                population.select()
    runner.cache.drop_states(job.key for job in before)
    return rows, last


# --- its numbers -----------------------------------------------------------------------------------------------------


def explored(numbers: Sequence[int], rng: Random, resampled: float) -> Code:
    """Each number drawn again, or up to three steps up or down, within its limits: probabilities 0 to 10, magnitudes
    0 to 9.
    """
    changed = []
    for place, number in enumerate(numbers):
        most = (MAGNITUDES if place % 2 else PROBABILITIES) - 1
        if rng.random() < resampled:
            changed.append(rng.randint(0, most))
        else:
            step = rng.randint(0, _STEPS) * rng.choice((-1, 1))
            changed.append(min(max(number + step, 0), most))
    return tuple(changed)


def sub_policies(numbers: Sequence[int], space: Space) -> list[SubPolicy]:
    """PBA's rule: of those operations that say yes, in a random order, an image gets the first none, one or two.

    An operation comes first with the chance p E[1 / (1 + R)], where R counts the others that say yes, and is the only
    one with p P(R = 0). The first and the second of two are alike.
    """
    choices = [
        (numbers[2 * place] / (PROBABILITIES - 1), _choice(op, numbers[2 * place + 1]))
        for place, op in enumerate([*space.ops, *space.ops])
    ]
    says_yes = [p for p, _ in choices]
    one, two = [], []
    for place, (p, choice) in enumerate(choices):
        others = yes_counts([each for other, each in enumerate(says_yes) if other != place and each])
        first, only = p * sum(chance / (1 + count) for count, chance in enumerate(others)), p * others[0]
        one.append(replace(choice, weight=PBA_COUNTS[1] * first + PBA_COUNTS[2] * only))
        two.append(replace(choice, weight=max(first - only, 0.0)))
    stages = [tuple(choice for choice in stage if choice.weight) for stage in (one, two)]
    weights = [sum(choice.weight for choice in stages[0]), PBA_COUNTS[2] * sum(choice.weight for choice in stages[1])]
    drawn = [
        SubPolicy((stage,) * (number + 1), weights[number])
        for number, stage in enumerate(stages)
        if weights[number] > 0
    ]
    return [SubPolicy((), max(1 - sum(weights), 0.0)), *drawn]


def _choice(op: str, magnitude: int) -> Choice:
    return Choice(op, 1.0, magnitude / (MAGNITUDES - 1) if find(op).span else None)
