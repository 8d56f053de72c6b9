"""The race turns candidates, a runner and a budget into one policy and a table that says how sure that is.

Candidates are trained for a while on a part of the training images and measured on the rest: all of them on one part,
the better half on another part, and so on, until budget or parts run out (`schedule`). `none` stays to the end: what is
not better than doing nothing is not chosen. Test images are never touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fasteraa.errors import ConfigError, OutOfTime, RaceError
from fasteraa.methods import Budget, Candidate, Expected
from fasteraa.methods.task import FOLDS, Task, shortened
from fasteraa.policy.named import named
from fasteraa.runtime.clock import duration
from fasteraa.runtime.words import counted
from fasteraa.selection.prior import PriorOf, with_prior
from fasteraa.selection.ranking import CLEAR, Trial, best_of, choose, is_clear, keep_first
from fasteraa.selection.result import RaceResult
from fasteraa.selection.schedule import (
    LEAST_CANDIDATES,
    Schedule,
    next_round,
    plan_race,
    plan_words,
    read_schedule,
    save_schedule,
    survivors,
    trainings_of_rounds,
)
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.metrics import effective_images
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner, Say, run_jobs, signs_of_life

_PLAN = "race/plan"


@dataclass
class _Ledger:
    """What was spent before the race, and what its rounds may still cost."""

    budget: Budget
    spent: float

    def left(self, schedule: Schedule) -> float:
        return self.budget.amount - self.spent - schedule.cost


@dataclass
class _Count:
    """How many trainings of the race are done, of how many: a thread says it while they run."""

    done: int = 0
    total: int = 0
    kept: int = 0  # of those that are done, from an earlier run
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0  # seconds until the last one was done

    def plan(self, alive: int, repeats: Sequence[int], most: float) -> None:
        """Rounds to come, and what the budget leaves of them."""
        self.total = self.done + int(min(sum(trainings_of_rounds(alive, repeats)), most))

    def keep(self, count: int) -> None:
        self.done, self.kept = self.done + count, self.kept + count

    def one_more(self) -> None:
        self.done, self.last = self.done + 1, time.monotonic() - self.began

    def words(self, passed: float) -> str:
        """`7 of 16 trainings, about 2 min 4 s left`. The first third says no time: what is trained side by side is done
        at the same time, so the first of them says little. Nor does what is under way: the last that was done counts.
        """
        trained, to_come, left = self.done - self.kept, self.total - self.done, 0.0
        if 2 * trained >= to_come and trained:
            left = self.last * to_come / trained - (passed - self.last)
        return f"{self.done} of {self.total} trainings" + (f", about {duration(left)} left" if left > 0 else "")


def race(
    candidates: Sequence[Candidate],
    task: Task,
    runner: Runner,
    budget: Budget,
    *,
    spent: float = 0.0,
) -> RaceResult:
    """Race the candidates on the task's folds. `spent` of the budget is gone already.

    The training to come is that of the task's recipe: shorter ones of the race are carried on to its length.
    """
    check_candidates(candidates)
    ledger = _Ledger(budget, spent)
    expected = _plan(task, candidates, runner, budget.less(spent))
    trained = _Count()
    with signs_of_life(task.say, trained.words, expected):
        trials = _rounds(task, candidates, runner, ledger, trained)
    schedule = read_schedule(task.decisions)
    chosen = choose(trials, by_loss=task.metric == "loss")
    rest = sorted((t for t in trials if t is not chosen), key=lambda trial: (-len(trial.errors), trial.score))
    return RaceResult(
        chosen=chosen,
        trials=(chosen, *rest),
        folds=len(task.folds),
        metric=task.metric,
        recipe=shortened(task.recipe, schedule.epochs),
        seconds=spent + schedule.cost if budget.trainings is None else math.nan,
        images=sum(len(part) for part in (task.folds[0].train, task.folds[0].held_out)),
        all_images=len(task.data),
        rounds=tuple(each for each in schedule.rounds if each.cost is not None),
        unfinished=any(each.cost is None for each in schedule.rounds),
        counted=budget.trainings or 0,
        informative=_informative(task, schedule, candidates, runner, spent) if budget.trainings is None else None,
    )


def with_none(candidates: Sequence[Candidate], say: Say) -> list[Candidate]:
    """With one `none`, which does nothing and is what the others must beat: what else does nothing is left out."""
    none, kept = Candidate("none", named("none")), []
    for each in candidates:
        if each.label == "none":
            if not each.policy.does_nothing:
                raise ConfigError(f"the label 'none' means no augmentation, got a policy with {each.policy.ops[0]}")
            kept.append(none)
        elif each.policy.does_nothing:
            say(f"{each.label} leaves every image as it is, so it races as none")
        else:
            kept.append(each)
    return kept if any(each is none for each in kept) else [none, *kept]


def check_candidates(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ConfigError("a race needs a candidate")
    for each in candidates:
        if not isinstance(each, Candidate):
            raise ConfigError(f"a candidate is a Candidate(label, policy), got a {type(each).__name__}")
        if each.expected is not None and not (
            math.isfinite(each.expected.effect) and 0 < each.expected.spread < math.inf
        ):
            raise ConfigError(
                f"what is expected of {each.label!r} must be an effect and a positive spread, got {each.expected}"
            )
    if len({candidate.label for candidate in candidates}) < len(candidates):
        raise ConfigError(f"candidates need labels of their own, got {', '.join(each.label for each in candidates)}")


def _plan(task: Task, candidates: Sequence[Candidate], runner: Runner, budget: Budget) -> float:
    """How many are trained for how long follows from a clock, so it is kept first; then who they are.

    That depends on what is predicted of each, which is kept, too: a resumed race predicts nothing else. Gives the
    seconds that the race will take, 0 where nothing was measured.
    """
    policies, epoch = _hashes(candidates), list[float]()

    def planned() -> dict[str, object]:
        epoch.append(_epoch_seconds(task, candidates, runner))
        return {**vars(plan_race(task, candidates, budget, epoch[0])), "rounds": []}

    def ordered() -> dict[str, object]:
        plan = task.decisions.decide(_PLAN, lambda: {**planned(), "policies": policies})
        none = [each for each in candidates if each.label == "none"]
        some = none or candidates if len(plan["candidates"]) == 1 else candidates
        best_first = with_prior(some, task, runner, plan["seeds"][0], plan["epochs"])
        labels = [each.label for each in best_first][: len(plan["candidates"])]
        expected = {each.label: each.expected.numbers for each in best_first if each.expected is not None}
        return {**plan, "candidates": labels, "expected": expected}

    for name in (_PLAN, "race"):
        if task.decisions.get(name) and task.decisions.get(name).get("policies") != policies:
            task.decisions.forget(name)
    task.decisions.decide("race", ordered)
    if not epoch:  # it was planned before
        return 0.0 if budget.trainings is not None else budget.seconds
    schedule = read_schedule(task.decisions)
    for line in plan_words(task, schedule, candidates, epoch[0], budget):
        task.say(line)
    count = sum(trainings_of_rounds(len(schedule.candidates), schedule.repeats))
    return min(count, budget.trainings or count) * schedule.epochs * epoch[0]


def _hashes(candidates: Sequence[Candidate]) -> dict[str, list[object]]:
    """Whatever makes it another race: who is eliminated depends on expectations, too."""
    return {
        each.label: [
            each.policy.hash,
            each.expected.numbers if each.expected else [],
            {f: p.hash for f, p in each.on_folds.items()},
        ]
        for each in candidates
    }


def _epoch_seconds(task: Task, candidates: Sequence[Candidate], runner: Runner) -> float:
    """Of one training on a fold."""
    jobs = [task.job(each.label, each.policy, fold=0, seed=0) for each in candidates]
    return runner.estimate(jobs) / sum(job.recipe.epochs for job in jobs)


def _usual_epoch_seconds(task: Task, candidates: Sequence[Candidate], runner: Runner) -> float:
    """By a clock, so it is kept: a race that is run again says the same."""
    if "usual_epoch_seconds" not in task.decisions.get("race"):
        task.decisions.note("race", {"usual_epoch_seconds": _epoch_seconds(task, candidates, runner)})
    seconds: float = task.decisions.get("race")["usual_epoch_seconds"]
    return seconds


def _trials(task: Task, candidates: Sequence[Candidate], schedule: Schedule) -> list[Trial]:
    """In the order of the schedule, with what was predicted when it was made."""
    by_label = {each.label: each for each in candidates}
    expected = {label: Expected(*values) for label, values in task.decisions.get("race").get("expected", {}).items()}
    length = 1.0 if task.recipe.fine_tunes else task.recipe.epochs / schedule.epochs
    by_error = task.metric == "balanced-error"
    chosen = [replace(by_label[label], expected=expected.get(label)) for label in schedule.candidates]
    prior, folds = PriorOf(task.prior, task.recipe.network), len(task.folds)
    return [Trial(each, length=length, folds=folds, by_error=by_error, prior=prior) for each in chosen]


def _rounds(
    task: Task, candidates: Sequence[Candidate], runner: Runner, ledger: _Ledger, trained: _Count
) -> list[Trial]:
    schedule = read_schedule(task.decisions)
    trials = alive = _trials(task, candidates, schedule)
    for number in range(len(schedule.repeats)):
        if number == len(schedule.rounds):
            payable = next_round(schedule, len(alive), ledger.left(schedule), ledger.budget.trainings is not None)
            if payable is None:
                break
            schedule = schedule.begin(schedule.repeats[number] * payable[0], payable[1])
            save_schedule(task.decisions, schedule)
        alive = keep_first(alive, schedule.rounds[number].trainings // schedule.repeats[number])
        jobs = _jobs_of_round(task, schedule, number, alive)
        counted = ledger.budget.trainings is not None
        trained.plan(len(alive), schedule.repeats[number:], ledger.left(schedule) if counted else math.inf)
        try:
            outcomes, seconds = _train_round(task, runner, number, alive, jobs, trained)
        except OutOfTime:
            if number == 0:
                raise
            task.say(f"time is up: round {number + 1} is left out, and the rounds before it decide")
            break
        if schedule.rounds[number].cost is None:
            schedule = schedule.end(ledger.budget.cost(seconds, sum(map(len, jobs))))
            save_schedule(task.decisions, schedule)
        for block in jobs:
            alive = [_measured(trial, job, outcomes[job.key], task) for trial, job in zip(alive, block, strict=True)]
        done = {trial.label: trial for trial in alive}
        trials = [done.get(trial.label, trial) for trial in trials]
        if all(trial.failed for trial in alive) or _ends_early(task, trials, number, len(schedule.repeats)):
            break
        alive = best_of(alive, survivors(len(alive)))
    if all(trial.failed for trial in trials):
        raise RaceError(f"every training of the race failed ({trials[0].label}: {trials[0].failed})")
    return trials


def _ends_early(task: Task, trials: Sequence[Trial], number: int, rounds: int) -> bool:
    """More rounds would hardly make the choice better. One training of each says too little about its noise."""
    if number == 0 or number == rounds - 1:
        return False
    clear = is_clear(trials, by_loss=task.metric == "loss")
    if clear:
        task.say(f"the race ends after round {number + 1}: no other choice is expected to gain {CLEAR:.0%} of the loss")
    return clear


def _jobs_of_round(task: Task, schedule: Schedule, number: int, alive: Sequence[Trial]) -> list[list[TrainJob]]:
    """A block of jobs for every repeat: one fold after the other and over again, each with its seed."""
    first, epochs = sum(schedule.repeats[:number]), schedule.rounds[number].epochs
    blocks = []
    for place in range(first, first + schedule.repeats[number]):
        fold, seed = place % len(task.folds), schedule.seeds[place]
        name = task.folds[fold].name
        blocks.append(
            [
                task.job(trial.label, trial.candidate.policy_on(name), fold=fold, seed=seed, epochs=epochs)
                for trial in alive
            ]
        )
    return blocks


def _train_round(
    task: Task,
    runner: Runner,
    number: int,
    alive: Sequence[Trial],
    blocks: Sequence[Sequence[TrainJob]],
    trained: _Count,
) -> tuple[dict[str, Outcome], float]:
    """Outcomes, and the seconds of all: runs that were finished before a stop count as many as the rest."""
    jobs = [job for block in blocks for job in block]
    missing = len({job.key for job in jobs if runner.cache.read(job) is None})
    if missing:
        recipe = jobs[0].recipe
        count = counted(len(blocks), "training")
        each = f"{count} of {epochs_words(recipe.epochs)} of {recipe.network_words}"
        task.say(f"race, round {number + 1}: {counted(len(alive), 'candidate')}, {each} each")
    trained.keep(len(jobs) - missing)
    began = time.monotonic()
    outcomes = run_jobs(runner, jobs, finished=trained.one_more)
    if not missing:
        return outcomes, runner.estimate(jobs)
    return outcomes, (time.monotonic() - began) * len({job.key for job in jobs}) / missing


def _measured(trial: Trial, job: TrainJob, outcome: Outcome, task: Task) -> Trial:
    """The same images held out again tell nothing new about other images."""
    labels, metric = job.split.held_out.labels, task.metric
    again = len(trial.errors) >= len(task.folds)
    more = effective_images(labels) if metric == "balanced-error" else len(labels)
    images = trial.images + (0 if again else more)
    if outcome.failed:
        classes = len(set(job.split.train.labels.tolist()))
        errors, scores = (*trial.errors, 100 - 100 / classes), (*trial.scores, math.log(classes))
        return replace(trial, errors=errors, scores=scores, images=images, failed=outcome.failed)
    error, loss = outcome.by(metric)
    return replace(
        trial,
        errors=(*trial.errors, error),
        losses=(*trial.losses, outcome.train_loss),
        scores=(*trial.scores, loss),
        images=images,
    )


def _informative(
    task: Task, schedule: Schedule, candidates: Sequence[Candidate], runner: Runner, spent: float
) -> tuple[int, float]:
    """The shortest informative epochs, and the seconds of this race if it had those.

    One of fewer candidates than usual, for want of time, would have the usual number, on all folds.
    """
    epochs, count, cost = task.informative_epochs(), len(schedule.candidates), schedule.rounds[0].epoch_cost
    if not task.recipe.fine_tunes and count < (usual := min(LEAST_CANDIDATES, len(candidates))):
        count, cost = usual, _usual_epoch_seconds(task, candidates, runner)
    repeats = schedule.repeats + (1,) * (FOLDS - len(schedule.repeats))
    return epochs, spent + sum(trainings_of_rounds(count, repeats)) * epochs * cost
