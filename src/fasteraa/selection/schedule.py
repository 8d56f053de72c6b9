"""How many candidates are trained how often and for how long: what a budget pays for, round by round.

What an image costs is measured before anything is planned. After each round what that one really cost says how long the
next ones may be. Everything that follows from a clock is kept in `runtime.decisions`, so that a race that was stopped
continues as the same race.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fasteraa.methods import Budget, Candidate
from fasteraa.methods.task import EXPERIMENT, FOLDS, LEAST_EPOCHS, LONG, PREDICTABLE, Task
from fasteraa.runtime.clock import duration
from fasteraa.runtime.decisions import Decisions, damaged
from fasteraa.runtime.words import counted
from fasteraa.train.recipe import epochs_words

# Trainings of a candidate in each round; a race has all of them only while it is unclear who is best. The next where
# there is no time for trainings somewhat longer than the shortest informative ones. Simulated by `tools/decision.py`.
REPEATS: tuple[tuple[int, ...], ...] = ((1, 1, 2, 4, 8), (1, 1, 2, 4), (1, 1, 2, 2), (1, 1, 2))
_OVER = 1.2  # times the budget that a plan may need before it is said
_SHORTENED = 0.8  # of the epochs, at least, when a machine slows down
LEAST_CANDIDATES = 6  # not fewer than these, the first of the list
_FINALISTS = 3  # in later rounds not fewer than the best two and `none`
_FEWEST = 3  # the first two and `none`: of fine-tunings, and where more leave time for foregone trainings only
LEAST_IMAGES = 1_000  # not fewer than these
LEAST_FINE_TUNING_IMAGES = 200  # they are long, and say something after few epochs on few images
TYPICAL_CANDIDATES = 19  # for which the number of images is planned, before they are known


@dataclass(frozen=True)
class Round:
    """Trainings of the candidates that are left."""

    trainings: int
    epochs: int
    cost: float | None = None  # in the budget's unit; None until it is over

    def __post_init__(self) -> None:
        whole = type(self.trainings) is int and type(self.epochs) is int and min(self.trainings, self.epochs) > 0
        if not whole or (self.cost is not None and not 0 <= self.cost < math.inf):
            raise ValueError(f"{self.trainings} trainings of {self.epochs} epochs at a cost of {self.cost}")

    @property
    def epoch_cost(self) -> float:
        """Of one training."""
        return (self.cost or 0.0) / (self.trainings * self.epochs)


@dataclass(frozen=True)
class Schedule:
    """A race as it was planned, and the rounds it has come to."""

    candidates: tuple[str, ...]
    repeats: tuple[int, ...]  # trainings of a candidate in each round
    seeds: tuple[int, ...]  # of those trainings, one after the other
    epochs: int
    rounds: tuple[Round, ...] = field(default=())

    @property
    def cost(self) -> float:
        """What its rounds have cost, one that is not over left out."""
        return sum(each.cost or 0.0 for each in self.rounds)

    def begin(self, trainings: int, epochs: int) -> Schedule:
        return replace(self, rounds=(*self.rounds, Round(trainings, epochs)))

    def end(self, cost: float) -> Schedule:
        """The last round."""
        return replace(self, rounds=(*self.rounds[:-1], replace(self.rounds[-1], cost=cost)))


def save_schedule(decisions: Decisions, schedule: Schedule) -> None:
    decisions.note("race", asdict(schedule))


def read_schedule(decisions: Decisions) -> Schedule:
    """RunError if somebody damaged it."""
    content: dict[str, Any] = {
        name: value for name, value in decisions.get("race").items() if name not in ("policies", "expected")
    }
    try:
        rounds = tuple(Round(**each) for each in content.pop("rounds", ()))
        lists = {name: tuple(content.pop(name)) for name in ("candidates", "repeats", "seeds")}
        schedule = Schedule(**lists, epochs=content["epochs"], rounds=rounds)
        if not all(isinstance(label, str) for label in schedule.candidates):
            raise ValueError("a label is not text")
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in (*schedule.repeats, *schedule.seeds)):
            raise ValueError("repeats and seeds must be whole numbers")
        if type(schedule.epochs) is not int or schedule.epochs < 1:
            raise ValueError(f"epochs must be a positive number, got {schedule.epochs!r:.40}")
        if len(schedule.seeds) != sum(schedule.repeats) or len(rounds) > len(schedule.repeats):
            raise ValueError(f"{len(schedule.seeds)} seeds for {sum(schedule.repeats)} trainings, {len(rounds)} rounds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(decisions.file, error) from error
    return schedule


# --- what is planned before ----------------------------------------------------------------------------------------


def trainings_of_rounds(count: int, repeats: Sequence[int]) -> list[int]:
    """The trainings of each round, when the first begins with `count` candidates."""
    trainings = []
    for each in repeats:
        trainings.append(each * count)
        count = min(count, survivors(count) + 1)  # none stays, too
    return trainings


def survivors(count: int) -> int:
    """Of so many candidates these stay."""
    return max(min(count, 2), math.ceil(count / 2))


def payable_images(
    images: int,
    classes: int,
    candidates: int,
    epochs: int,
    cost: float,
    budget: Budget,
    experiment: bool = False,
    least: int = LEAST_IMAGES,
) -> int:
    """All images, or where informative trainings on them cannot be paid for, a part of them."""
    if budget.trainings is not None:
        return images
    trainings = max(sum(trainings_of_rounds(candidates, (1,) * FOLDS)), 2 * EXPERIMENT * experiment)
    passes = trainings * epochs
    most = math.floor(budget.seconds / (passes * max(cost, 1e-9)) * FOLDS / (FOLDS - 1))
    return min(images, max(most, least, 2 * classes))


def plan_race(task: Task, candidates: Sequence[Candidate], budget: Budget, epoch: float) -> Schedule:
    """As many candidates and epochs (at most those of the recipe) as the whole race can pay for.

    An epoch of a training costs `epoch` seconds; where trainings are counted, each has as many epochs as are worth it.
    """
    rounds = len(task.folds) if len(task.folds) > 1 else FOLDS
    if budget.trainings is None:
        count, repeats, epochs = payable_race(task, len(candidates), epoch, budget.seconds, rounds)
    else:
        repeats = payable_repeats(len(candidates), 1, 1, budget.trainings, rounds)
        count = countable_candidates(len(candidates), budget.trainings, repeats)
        epochs = int(min(task.recipe.epochs, LONG * task.informative_epochs()))
    return Schedule(
        candidates=tuple(candidate.label for candidate in candidates[:count]),
        repeats=repeats,
        seeds=tuple(task.seed + number for number in range(sum(repeats))),  # one for all would be one start for all
        epochs=epochs,
    )


def plan_words(
    task: Task, schedule: Schedule, candidates: Sequence[Candidate], epoch: float, budget: Budget
) -> list[str]:
    """What the budget pays for, before it is spent: trainings, their length, who is left out, what more would take."""
    count, length = sum(trainings_of_rounds(len(schedule.candidates), schedule.repeats)), schedule.epochs
    if budget.trainings is not None:
        count = min(count, budget.trainings)
    what = f"up to {counted(count, 'training')} of {epochs_words(length)} of {task.recipe.network_words}"
    seconds = "" if budget.trainings is not None else f", {duration(epoch * length)} each"
    lines = [f"the race: {what}{seconds}, of {len(schedule.candidates)} candidates"]
    if len(schedule.candidates) == 1 < len(candidates):
        lines = [f"no race: there is no time for trainings that predict one of {epochs_words(task.recipe.epochs)}"]
    if dropped := [each.label for each in candidates if each.label not in schedule.candidates]:
        lines.append(f"left out, for which the budget does not reach: {', '.join(dropped)}")
    if budget.trainings is None and REPEATS:
        whole = sum(trainings_of_rounds(len(candidates), REPEATS[0])) * epoch * max(length, task.informative_epochs())
        if (dropped or schedule.repeats != REPEATS[0]) and whole > budget.seconds:
            minutes = math.ceil(whole / 60)
            lines.append(f"a clearer result would take about {counted(minutes, 'minute')} (--race-minutes {minutes})")
        if (cost := count * epoch * length) > _OVER * budget.seconds:
            lines.append(
                f"even so it takes longer than is left (about {duration(cost)}, and {duration(budget.seconds)} "
                "are): the first round is run in any case"
            )
    return lines


def payable_repeats(count: int, epochs: float, epoch: float, amount: float, folds: int) -> tuple[int, ...]:
    """As many trainings of all candidates as the budget pays for; one on each fold in any case."""
    for repeats in REPEATS:
        if amount >= epochs * epoch * sum(trainings_of_rounds(count, repeats)):
            return repeats
    return (1,) * folds


def payable_race(task: Task, count: int, epoch: float, amount: float, folds: int) -> tuple[int, tuple[int, ...], int]:
    """Candidates, their trainings in each round, and epochs, when a training's epoch costs `epoch`.

    Nothing is predicted of a training more than `PREDICTABLE` times as long, and the answer is `none`. So rather three
    candidates, and those on fewer folds, than shorter trainings. Where that is still too much, a single one of `none`.
    """
    least, most, tunes = task.informative_epochs(), task.recipe.epochs, task.recipe.fine_tunes
    repeats = payable_repeats(count, min(most, LONG * least), epoch, amount, folds)
    floor, reach = (_FEWEST, 0) if tunes else (LEAST_CANDIDATES, math.ceil(most / PREDICTABLE))
    count, epochs = payable_candidates(count, least, most, epoch, amount, repeats, floor)
    while epochs < reach and (count > _FEWEST or len(repeats) > 1):
        count, repeats = (count - 1, repeats) if count > _FEWEST else (count, repeats[:-1])
        epochs = min(most, max(LEAST_EPOCHS, payable_epochs(count, epoch, amount, repeats)))
    return (count, repeats, epochs) if epochs >= reach else (1, (1,), LEAST_EPOCHS)


def payable_epochs(count: int, epoch: float, amount: float, repeats: Sequence[int]) -> int:
    trainings = sum(trainings_of_rounds(count, repeats))
    return math.floor(amount / (trainings * max(epoch, 1e-9)) + 1e-9)


def payable_candidates(
    count: int,
    least: int,
    most: int,
    epoch: float,
    amount: float,
    repeats: Sequence[int],
    floor: int = LEAST_CANDIDATES,
) -> tuple[int, int]:
    """As many candidates and epochs as the whole race can pay for.

    Candidates are dropped for the `least` epochs that are informative; what is left over pays for more of them.
    """
    while count > floor and payable_epochs(count, epoch, amount, repeats) < least:
        count -= 1
    return count, min(most, max(LEAST_EPOCHS, payable_epochs(count, epoch, amount, repeats)))


def countable_candidates(count: int, trainings: int, repeats: Sequence[int]) -> int:
    """As many as the whole race can pay for; where those are few, as many as its first round can."""
    while count > LEAST_CANDIDATES and sum(trainings_of_rounds(count, repeats)) > trainings:
        count -= 1
    return min(count, max(trainings // repeats[0], 2))


# --- what is decided between rounds --------------------------------------------------------------------------------


def next_round(schedule: Schedule, alive: int, amount: float, counted: bool = False) -> tuple[int, int] | None:
    """Candidates and epochs of the next round; None if `amount` does not pay for one. The first is run in any case.

    When a machine is slower than it was measured, or few of the `counted` trainings are left, fewer candidates stay
    than were to.
    """
    if not schedule.rounds:
        return alive, schedule.epochs
    for count in range(alive, min(alive, _FINALISTS) - 1, -1):
        if counted and schedule.repeats[len(schedule.rounds)] * count <= amount:
            return count, schedule.epochs
        if not counted and (epochs := _next_epochs(schedule, count, amount)) is not None:
            return count, epochs
    return None


def _next_epochs(schedule: Schedule, alive: int, amount: float) -> int | None:
    """By what the last round cost: rather fewer epochs than fewer rounds, but not too few."""
    last = schedule.rounds[-1]
    least = min(schedule.epochs, max(LEAST_EPOCHS, math.ceil(_SHORTENED * schedule.epochs)))
    trainings = trainings_of_rounds(alive, schedule.repeats[len(schedule.rounds) :])
    for count in range(len(trainings), 0, -1):
        affordable = amount / (sum(trainings[:count]) * max(last.epoch_cost, 1e-9))
        if min(last.epochs, math.floor(affordable + 1e-9)) >= least:
            return min(last.epochs, math.floor(affordable + 1e-9))
    return None
