"""A race and a search in words: what to use, how sure that is, and what would say more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from fasteraa.methods.task import PREDICTABLE
from fasteraa.runtime.words import counted
from fasteraa.selection.ranking import PROBABLY, percent
from fasteraa.train.recipe import epochs_words
from fasteraa.train.statistics import Estimate

if TYPE_CHECKING:
    from fasteraa.selection.result import RaceResult, Result, Row

_HOPELESS = 50  # times the budget, for which nobody waits
_BAR = 24  # columns of the longest bar


def search_sentence(result: Result) -> str:
    """What to use, and how sure that is."""
    if result.race is not None:
        end = " Time was up before the race was over (--resume with more --minutes continues it)."
        return race_sentence(result.race) + end * result.race.unfinished
    method = f"Use {result.chosen}: it is what its method proposes, and was not raced."
    if result.policy.does_nothing:
        method = f"Use {result.chosen}: nothing was measured that speaks for another policy."
    return " ".join(filter(None, (method, result.note, _ended_early(result))))


def _ended_early(result: Result) -> str:
    early = {label: each.get("done") for label, each in result.details.items() if not each.get("finished", True)}
    words = [f"{label} ended early{f', after {done}' if done else ''}" for label, done in early.items()]
    return f"{' and '.join(words)} (--resume continues)." if words else ""


def race_sentence(race: RaceResult) -> str:
    """The recommendation, its difference to no augmentation, and how sure that is."""
    advice = _unlearned(race) or _for_longer(race) or _hopeful(race)
    return " ".join(filter(None, (_recommendation(race), _ahead(race), _too_short(race), advice)))


def _recommendation(race: RaceResult) -> str:
    chosen, how = race.chosen, _trainings_words(race)
    row = next(row for row in race.table if row.label == chosen.label)
    held_out = "balanced held-out error" if race.metric == "balanced-error" else "held-out error"
    if race.is_unpredictable:
        return (
            f"Use none: trainings of {_epochs_range(race)} do not predict one of {epochs_words(race.epochs_to_come)}, "
            f"more than {PREDICTABLE} times as long ({row.error:.1f}% {held_out}, {how})."
        )
    if chosen.label == "none":
        return (
            f"Use none: do not augment these images. No policy is better{_after(race)} with a probability of "
            f"{PROBABLY:.0%} (without augmentation {row.error:.1f}% {held_out}, {how})."
        )
    if race.none is None or row.against_none is None:
        return f"Use {row.label}: {row.error:.1f}% {held_out} ({how})."
    # what a probability rests on beside these trainings
    elsewhere = ", fine-tunings of other sets included" if chosen.shares else ""
    return (
        f"Use {row.label}: {row.error:.1f}% {held_out} against {race.none.error:.1f}% without augmentation "
        f"({how}, difference {difference_words(row.against_none)}"
        + ("" if row.better is None else f"; {_probably(race, row.better)}{elsewhere}")
        + ")."
    )


def _trainings_words(race: RaceResult) -> str:
    part = f", {race.images} of {race.all_images} images" if race.images < race.all_images else ""
    trainings = counted(len(race.chosen.errors), "training")
    return f"{trainings} of {_epochs_range(race)} of {race.recipe.network_words}{part}"


def _epochs_range(race: RaceResult) -> str:
    """`12 epochs`, `7 to 12 epochs`."""
    least, most = race.least_epochs, race.recipe.epochs
    return epochs_words(most) if least == most else f"{least} to {epochs_words(most)}"


def _probably(race: RaceResult, better: float) -> str:
    return f"better{_after(race)} with a probability of {percent(better)}"


def _after(race: RaceResult) -> str:
    """The length that a probability holds for, where the race's trainings are shorter."""
    return f" after {epochs_words(race.epochs_to_come)}" if race.chosen.length > 1 else ""


def _ahead(race: RaceResult) -> str:
    """Who did better in the race and was not chosen, and why."""
    chosen = race.chosen
    if race.is_unpredictable:
        return ""
    rest = [t for t in race.trials[1:] if not t.failed and len(t.errors) == len(chosen.errors)]
    best = min(rest, key=lambda trial: trial.error, default=None)
    if best is None or round(best.error, 1) >= round(chosen.error, 1):
        return _undecided(race) if chosen.label == "none" else ""
    if chosen.label == "none":
        sure = race.better.get(best.label, 0.0)
        return (
            f"{best.label} has fewer errors ({best.error:.1f}%), but is {_probably(race, sure)} "
            f"only{_what_would_tell(race, sure)}."
        )
    losses = f"{best.error:.1f}%, loss {best.score:.3f} against {chosen.score:.3f}"
    if best.score > chosen.score:
        return f"{best.label} has fewer errors but a higher loss ({losses})."
    if chosen.length > 1:
        return f"{best.label} did better ({losses}) but is easier to learn, so longer trainings gain less by it."
    return f"{best.label} did better ({losses}), by less than so few images can tell."


def _what_would_tell(race: RaceResult, sure: float) -> str:
    """The budget with which a difference that stays as it is would be probable enough; trainings grow as 1/z²."""
    z = NormalDist().inv_cdf(min(max(sure, 1e-6), 1 - 1e-6))
    factor = (NormalDist().inv_cdf(PROBABLY) / z) ** 2 if z > 0 else math.inf
    if factor > _HOPELESS or factor <= 1:
        return ""
    if race.counted:
        count = math.ceil(factor * race.counted)
        return f": about {counted(count, 'training')} would tell (--race-trainings {count})"
    minutes = max(2, math.ceil(factor * race.seconds / 60))
    return f": a race of about {counted(minutes, 'minute')} would tell (--race-minutes {minutes})"


def _undecided(race: RaceResult) -> str:
    """Where `none` was chosen for lack of evidence: which policy may help, and what would tell."""
    label, sure = max(race.better.items(), key=lambda pair: pair[1], default=("", 0.0))
    if sure <= 1 - PROBABLY:
        return ""
    return f"The race could not tell: {label} is {_probably(race, sure)}{_what_would_tell(race, sure)}."


def _too_short(race: RaceResult) -> str:
    if race.longer is None:
        return ""
    epochs, minutes = race.longer
    return (
        f"Trainings this short say little about longer ones: {epochs_words(epochs)} would say more, and take about "
        f"{counted(minutes, 'minute')} (--race-minutes {minutes})."
    )


def _unlearned(race: RaceResult) -> str:
    """Where the network has hardly learned its training images at the length of the user's training."""
    none, epochs = race.none, race.learning_epochs
    if none is None or epochs is None:
        return ""
    return (
        f"Train longer before you augment: after {epochs_words(race.recipe.epochs)} of {race.recipe.network_words} "
        f"without augmentation the loss is still {none.loss:.2f} on training images and {none.score:.2f} on held-out "
        f"ones. Race again for {epochs_words(epochs)} (--train-epochs {epochs})."
    )


def _for_longer(race: RaceResult) -> str:
    """What a longer training would have, where that is something else."""
    other = race.for_longer
    if other is None:
        return ""
    times = round(other.epochs / race.epochs_to_come)
    return (
        f"For a training of {epochs_words(other.epochs)}, {times} times as long, these trainings say {other.label}: "
        f"better with a probability of {percent(other.better)} (--train-epochs {other.epochs})."
    )


def _hopeful(race: RaceResult) -> str:
    """Where `none` was chosen for a short training: that it is for this length."""
    if race.chosen.label != "none" or race.is_unpredictable or not race.is_for_short_training:
        return ""
    epochs = epochs_words(race.epochs_to_come)
    return f"This is for trainings of {epochs}: longer ones gain more by augmentation (--train-epochs)."


def difference_words(difference: Estimate) -> str:
    """`-2.5 ± 0.8 points`; of one training there is no interval, and that of two says nothing."""
    if difference.n > 2:
        return f"{difference.mean:+.1f} ± {difference.half:.1f} points"
    return f"{difference.mean:+.1f} points, {'one training' if difference.n == 1 else 'two trainings'}"


def bars(table: Sequence[Row]) -> str:
    """A line for each candidate."""
    width = max(len(row.label) for row in table)
    top = max(row.error for row in table)
    lines = [f"  {'':{width}}  {'':{_BAR}}  error %    loss  trainings"]
    for row in table:
        bar = "\u2588" * max(1, round(_BAR * row.error / top)) if top else ""
        shown = "failed" if row.failed else "eliminated" if row.eliminated else bar
        lines.append(f"  {row.label:{width}}  {shown:{_BAR}}  {row.error:7.1f}  {row.loss:6.3f}  {row.trainings:9d}")
    return "\n".join(lines)
