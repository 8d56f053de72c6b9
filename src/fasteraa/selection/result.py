"""What came of a race and of a search, as data: the table, the choice, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from fasteraa.methods import Candidate
from fasteraa.methods.task import PREDICTABLE
from fasteraa.policy.policy import Policy
from fasteraa.selection.ranking import PROBABLY, Trial, better_than_none, choose, is_clear, percent
from fasteraa.selection.schedule import Round
from fasteraa.train.recipe import TrainRecipe, epochs_words
from fasteraa.train.statistics import Estimate, paired

if TYPE_CHECKING:
    from fasteraa.data import ImageSet
    from fasteraa.methods.op_effects import Effects

_HOPELESS = 50  # times the budget, for which nobody waits
_NEARLY = 0.8  # of the epochs that are informative
# Training loss of `none` as a share of its held-out loss, from which on longer trainings gain more than any policy. By
# four times the epochs the loss of the one set above it fell by 60 % (the error from 30 to 10), others by 11 % at most.
_UNLEARNED = 0.8
_BAR = 24  # columns of the longest bar
_LONGER = (4, 2)  # times the epochs, as far as that can be predicted
_LONG = 200  # epochs after which every set of results/adapt gained by augmentation


@dataclass(frozen=True)
class Row:
    """A candidate in the table of a race."""

    label: str
    error: float  # % of held-out images, mean over its trainings
    loss: float
    train_loss: float | None
    trainings: int
    errors: tuple[float, ...]
    losses: tuple[float, ...]
    against_none: Estimate | None  # points of error, paired by fold and seed, with a 95% interval
    better: float | None  # the probability that it is better than none, by losses on these images; of finalists
    eliminated: bool  # it has fewer trainings than those that came furthest
    failed: str | None = None


class ForLonger(NamedTuple):
    """What the same race would choose for a longer training."""

    epochs: int
    label: str
    better: float  # the probability that it is better than none there


@dataclass(frozen=True)
class RaceResult:
    """The winner first, then by trainings and loss."""

    chosen: Trial
    trials: tuple[Trial, ...]
    folds: int
    recipe: TrainRecipe
    seconds: float
    images: int = 0  # that took part
    all_images: int = 0  # that there were
    rounds: tuple[Round, ...] = ()
    counted: int = 0  # the trainings of its budget; 0 where that was a time
    unfinished: bool = False  # the limit on everything ended it in a later round, which is left out
    metric: str = "error"  # of selection.config.METRICS
    informative: tuple[int, float] | None = None  # the shortest informative epochs, and the seconds of a race of those

    def __repr__(self) -> str:
        return f"<RaceResult: {self.chosen.label} of {len(self.trials)} candidates>"

    def __str__(self) -> str:
        return f"{self.sentence()}\n\n{bars(self.table)}"

    @property
    def table(self) -> tuple[Row, ...]:
        none = next((trial for trial in self.trials if trial.label == "none" and not trial.failed), None)
        most = max(len(trial.errors) for trial in self.trials)
        return tuple(self._row(trial, none, most) for trial in self.trials)

    def _row(self, trial: Trial, none: Trial | None, most: int) -> Row:
        against = None
        if none is not None and none is not trial and not trial.failed:
            shared = min(len(trial.errors), len(none.errors))
            against = self._paired(trial.errors[:shared], none.errors[:shared])
        return Row(
            label=trial.label,
            error=trial.error,
            loss=trial.score,
            train_loss=trial.loss,
            trainings=len(trial.errors),
            errors=trial.errors,
            losses=trial.scores,
            against_none=against,
            better=better_than_none(self.trials).get(trial.label),
            eliminated=len(trial.errors) < most,
            failed=trial.failed,
        )

    def _paired(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> Estimate:
        return paired(ours, theirs, overlap=1 / (self.folds - 1) if self.folds > 1 else 0.0)

    def against(self, label: str) -> Estimate | None:
        """The winner's loss minus that of another, fold by fold, where both were raced."""
        other = next((trial for trial in self.trials if trial.label == label), None)
        if other is None or other.label == self.chosen.label:
            return None
        shared = min(len(self.chosen.scores), len(other.scores))
        return self._paired(self.chosen.scores[:shared], other.scores[:shared])

    @property
    def is_clear(self) -> bool:
        """Whether more trainings would hardly make the choice better."""
        return is_clear(self.trials, by_loss=self.metric == "loss")

    @property
    def least_epochs(self) -> int:
        """Later rounds may have had fewer than the recipe."""
        return min((each.epochs for each in self.rounds), default=self.recipe.epochs)

    @property
    def longer(self) -> tuple[int, int] | None:
        """Epochs and minutes of a race that would say more; None if trainings were long enough, or nearly."""
        if self.informative is None or (
            self.least_epochs >= _NEARLY * self.informative[0] and self.chosen.length <= PREDICTABLE
        ):
            return None
        epochs, seconds = self.informative
        return epochs, max(2, math.ceil(seconds / 60))

    @property
    def epochs_to_come(self) -> int:
        """Of the training that the choice is for."""
        return round(self.recipe.epochs * self.chosen.length)

    @property
    def for_longer(self) -> ForLonger | None:
        """By the trainings of this race alone; None if that is the same choice, or `none`, or cannot be predicted."""
        times = next((times for times in _LONGER if times * self.chosen.length <= PREDICTABLE), None)
        if times is None or self.recipe.fine_tunes or self.epochs_to_come >= _LONG:
            return None
        trials = [
            replace(each, length=times * each.length, candidate=replace(each.candidate, expected=None))
            for each in self.trials
        ]
        label, better = choose(trials, by_loss=self.metric == "loss").label, better_than_none(trials)
        if label == self.chosen.label or label not in better:
            return None
        return ForLonger(times * self.epochs_to_come, label, better[label])

    def sentence(self) -> str:
        """The recommendation, its difference to no augmentation, and how sure that is."""
        return " ".join(
            filter(
                None,
                (
                    self._recommendation(),
                    self._ahead(),
                    self._too_short(),
                    self._unlearned() or self._for_longer() or self._hopeful(),
                ),
            )
        )

    def _recommendation(self) -> str:
        least, most = self.least_epochs, self.recipe.epochs
        epochs = epochs_words(most) if least == most else f"{least} to {epochs_words(most)}"
        part = f", {self.images} of {self.all_images} images" if self.images < self.all_images else ""
        count = len(self.chosen.errors)
        how = f"{count} training{'s' * (count > 1)} of {epochs} of {self.recipe.network_words}{part}"
        row = next(row for row in self.table if row.label == self.chosen.label)
        held_out = "balanced held-out error" if self.metric == "balanced-error" else "held-out error"
        if self.chosen.label == "none" and self.chosen.length > PREDICTABLE:
            return (
                f"Use none: trainings of {epochs} do not predict one of {epochs_words(self.epochs_to_come)}, more than "
                f"{PREDICTABLE} times as long ({row.error:.1f}% {held_out}, {how})."
            )
        if self.chosen.label == "none":
            return (
                f"Use none: do not augment these images. No policy is better{self._after} with a probability of "
                f"{PROBABLY:.0%} (without augmentation {row.error:.1f}% {held_out}, {how})."
            )
        none = next((trial for trial in self.trials if trial.label == "none"), None)
        if none is None or row.against_none is None:
            return f"Use {row.label}: {row.error:.1f}% {held_out} ({how})."
        return (
            f"Use {row.label}: {row.error:.1f}% {held_out} against {none.error:.1f}% without augmentation "
            f"({how}, difference {difference_words(row.against_none)}"
            + ("" if row.better is None else f"; {self._probably(row.better)}{self._elsewhere}")
            + ")."
        )

    def _probably(self, better: float) -> str:
        return f"better{self._after} with a probability of {percent(better)}"

    @property
    def _after(self) -> str:
        """The length that a probability holds for, where the race's trainings are shorter."""
        return f" after {epochs_words(self.epochs_to_come)}" if self.chosen.length > 1 else ""

    @property
    def _elsewhere(self) -> str:
        """What a probability rests on beside these trainings."""
        return ", fine-tunings of other sets included" if self.chosen.shares else ""

    def _ahead(self) -> str:
        """Who did better in the race and was not chosen, and why."""
        if self.chosen.label == "none" and self.chosen.length > PREDICTABLE:
            return ""
        rest = [t for t in self.trials[1:] if not t.failed and len(t.errors) == len(self.chosen.errors)]
        best = min(rest, key=lambda trial: trial.error, default=None)
        if best is None or round(best.error, 1) >= round(self.chosen.error, 1):
            return self._undecided() if self.chosen.label == "none" else ""
        if self.chosen.label == "none":
            sure = better_than_none(self.trials).get(best.label, 0.0)
            return (
                f"{best.label} has fewer errors ({best.error:.1f}%), but is {self._probably(sure)} "
                f"only{self._what_would_tell(sure)}."
            )
        losses = f"{best.error:.1f}%, loss {best.score:.3f} against {self.chosen.score:.3f}"
        if best.score > self.chosen.score:
            return f"{best.label} has fewer errors but a higher loss ({losses})."
        if self.chosen.length > 1:
            return f"{best.label} did better ({losses}) but is easier to learn, so longer trainings gain less by it."
        return f"{best.label} did better ({losses}), by less than so few images can tell."

    def _what_would_tell(self, sure: float) -> str:
        """The budget with which a difference that stays as it is would be probable enough; trainings grow as 1/z²."""
        z = NormalDist().inv_cdf(min(max(sure, 1e-6), 1 - 1e-6))
        factor = (NormalDist().inv_cdf(PROBABLY) / z) ** 2 if z > 0 else math.inf
        if factor > _HOPELESS or factor <= 1:
            return ""
        if self.counted:
            count = math.ceil(factor * self.counted)
            return f": about {count} trainings would tell (--race-trainings {count})"
        minutes = max(2, math.ceil(factor * self.seconds / 60))
        return f": a race of about {minutes} minutes would tell (--race-minutes {minutes})"

    def _undecided(self) -> str:
        """Where `none` was chosen for lack of evidence: which policy may help, and what would tell."""
        label, sure = max(better_than_none(self.trials).items(), key=lambda pair: pair[1], default=("", 0.0))
        if sure <= 1 - PROBABLY:
            return ""
        what = self._what_would_tell(sure)
        return f"The race could not tell: {label} is {self._probably(sure)}{what}."

    def _too_short(self) -> str:
        if self.longer is None:
            return ""
        epochs, minutes = self.longer
        return (
            f"Trainings this short say little about longer ones: {epochs} epochs would say more, and take about "
            f"{minutes} minutes (--race-minutes {minutes})."
        )

    def _unlearned(self) -> str:
        """Where the network has hardly learned its training images at the length of the user's training."""
        none = next((trial for trial in self.trials if trial.label == "none" and not trial.failed), None)
        recipe = self.recipe
        blurred = recipe.fine_tunes or recipe.label_smoothing or recipe.mixup or recipe.cutmix  # losses say less there
        if none is None or none.loss is None or none.length > 1 or blurred or none.unlearned < _UNLEARNED:
            return ""
        epochs = _LONGER[0] * recipe.epochs
        return (
            f"Train longer before you augment: after {epochs_words(recipe.epochs)} of {recipe.network_words} without "
            f"augmentation the loss is still {none.loss:.2f} on training images and {none.score:.2f} on held-out ones. "
            f"Race again for {epochs} epochs (--train-epochs {epochs})."
        )

    def _for_longer(self) -> str:
        """What a longer training would have, where that is something else."""
        other = self.for_longer
        if other is None:
            return ""
        times = round(other.epochs / self.epochs_to_come)
        return (
            f"For a training of {other.epochs} epochs, {times} times as long, these trainings say {other.label}: "
            f"better with a probability of {percent(other.better)} (--train-epochs {other.epochs})."
        )

    def _hopeful(self) -> str:
        """Where `none` was chosen for a short training: that it is for this length."""
        epochs, length = self.epochs_to_come, self.chosen.length
        if self.chosen.label != "none" or self.recipe.fine_tunes or epochs >= _LONG or length > PREDICTABLE:
            return ""
        return (
            f"This is for trainings of {epochs_words(epochs)}: longer ones gain more by augmentation (--train-epochs)."
        )

    def provenance(self) -> dict[str, Any]:
        """For the policy file: the whole table."""
        return {
            "chosen": self.chosen.label,
            "sentence": self.sentence(),
            "network": self.recipe.network,
            "epochs": self.recipe.epochs,
            "images": self.images,
            "all_images": self.all_images,
            "folds": self.folds,
            "rounds": [{"runs": each.trainings, "epochs": each.epochs} for each in self.rounds],
            "seconds": None if math.isnan(self.seconds) else round(self.seconds, 1),
            "length": round(self.chosen.length, 3),
            **({} if self.metric == "error" else {"metric": self.metric}),
            **({"for_longer": self.for_longer._asdict()} if self.for_longer else {}),
            "table": [
                {
                    "candidate": trial.label,
                    "hash": trial.policy.hash,
                    "errors": [round(error, 3) for error in trial.errors],
                    "losses": [round(score, 4) for score in trial.scores],
                    "training_loss": None if trial.loss is None else round(trial.loss, 4),
                    **({"expected": trial.expected.numbers} if trial.expected else {}),
                    **({"failed": trial.failed} if trial.failed else {}),
                }
                for trial in self.trials
            ],
        }


@dataclass(frozen=True)
class Result:
    """What a search returns: `policy` is what to use."""

    policy: Policy
    candidates: tuple[Candidate, ...]
    data: ImageSet
    folder: Path | None = None
    race: RaceResult | None = None
    effects: Effects | None = None  # of operations, where op-effects measured them
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # label -> what its method knows
    note: str = ""  # why there was no race, if there was to be one

    def __repr__(self) -> str:
        raced = ", raced" if self.race else ""
        folder = f", in {str(self.folder)!r}" if self.folder else ""
        return f"<Result: {self.chosen} of {len(self.candidates)} candidates{raced}, {len(self.data)} images{folder}>"

    def __str__(self) -> str:
        return "\n\n".join([self.sentence(), *([bars(self.table)] if self.race else [])])

    def sentence(self) -> str:
        """What to use, and how sure that is."""
        if self.race is not None:
            end = " Time was up before the race was over (--resume with more --minutes continues it)."
            return self.race.sentence() + end * self.race.unfinished
        method = f"Use {self.chosen}: it is what its method proposes, and was not raced."
        return " ".join(filter(None, (method, self.note, self._early())))

    def _early(self) -> str:
        early = {label: each.get("done") for label, each in self.details.items() if not each.get("finished", True)}
        words = [f"{label} ended early{f', after {done}' if done else ''}" for label, done in early.items()]
        return f"{' and '.join(words)} (--resume continues)." if words else ""

    @property
    def table(self) -> tuple[Row, ...]:
        """All candidates with errors, losses, trainings and intervals; empty without a race."""
        return self.race.table if self.race else ()

    @property
    def chosen(self) -> str:
        """The label of the policy to use."""
        return self.race.chosen.label if self.race else best_guess(self.candidates).label

    @property
    def for_longer(self) -> ForLonger | None:
        """What the race would choose for a training of more epochs, if that is another policy."""
        return self.race.for_longer if self.race else None

    @property
    def finished(self) -> bool:
        """False if a time limit ended a method early."""
        return all(each.get("finished", True) for each in self.details.values())


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


def best_guess(candidates: Sequence[Candidate]) -> Candidate:
    """Without a race the first that augments at all: `none` is what others are compared with, not a proposal."""
    return next((each for each in candidates if not each.policy.does_nothing), candidates[0])


def chosen_policy(candidate: Candidate, origin: Mapping[str, Any], race: RaceResult | None, **more: Any) -> Policy:
    """The candidate as it goes into the file: where it was made, and the whole table of the race."""
    provenance = {**origin, **candidate.policy.provenance, "candidate": candidate.label}
    if race is not None:
        provenance["race"] = {**race.provenance(), **more}
    return replace(candidate.policy, name=candidate.label, provenance=provenance)


def difference_words(difference: Estimate) -> str:
    """`-2.5 ± 0.8 points`; of one training there is no interval, and that of two says nothing."""
    if difference.n > 2:
        return f"{difference.mean:+.1f} ± {difference.half:.1f} points"
    return f"{difference.mean:+.1f} points, {'one training' if difference.n == 1 else 'two trainings'}"
