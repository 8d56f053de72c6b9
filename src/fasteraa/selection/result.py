"""What came of a race and of a search, as data: the table, the choice, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fasteraa.methods import Candidate
from fasteraa.methods.task import PREDICTABLE
from fasteraa.policy.policy import Policy
from fasteraa.selection.ranking import Trial, better_than_none, choose, is_clear
from fasteraa.selection.recommendation import bars, race_sentence, search_sentence
from fasteraa.selection.schedule import Round
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.statistics import Estimate, paired

if TYPE_CHECKING:
    from fasteraa.data import ImageSet
    from fasteraa.methods.op_effects import Effects

_NEARLY = 0.8  # of the epochs that are informative
# Training loss of `none` as a share of its held-out loss, from which on longer trainings gain more than any policy. By
# four times the epochs the loss of the one set above it fell by 60 % (the error from 30 to 10), others by 11 % at most.
_UNLEARNED = 0.8
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

    @cached_property
    def none(self) -> Trial | None:
        """No augmentation, where it was raced."""
        return next((trial for trial in self.trials if trial.label == "none" and not trial.failed), None)

    @cached_property
    def better(self) -> dict[str, float]:
        """The probability that a finalist is better than none, by its label."""
        return better_than_none(self.trials)

    @cached_property
    def table(self) -> tuple[Row, ...]:
        most = max(len(trial.errors) for trial in self.trials)
        return tuple(self._row(trial, most) for trial in self.trials)

    def _row(self, trial: Trial, most: int) -> Row:
        against, none = None, self.none
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
            better=self.better.get(trial.label),
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
    def is_unpredictable(self) -> bool:
        """Whether none was chosen because the training to come is too long for this race to predict."""
        return self.chosen.label == "none" and self.chosen.length > PREDICTABLE

    @property
    def is_for_short_training(self) -> bool:
        """Whether a longer training than the one to come would gain more by augmentation."""
        return not self.recipe.fine_tunes and self.epochs_to_come < _LONG

    @property
    def learning_epochs(self) -> int | None:
        """Epochs of a race in which the network learns its training images; None if it has, or nobody knows."""
        recipe, none = self.recipe, self.none
        blurred = recipe.fine_tunes or recipe.label_smoothing or recipe.mixup or recipe.cutmix  # losses say less there
        if none is None or none.loss is None or none.length > 1 or blurred or none.unlearned < _UNLEARNED:
            return None
        return _LONGER[0] * recipe.epochs

    @cached_property
    def for_longer(self) -> ForLonger | None:
        """By the trainings of this race alone; None if that is the same choice, or `none`, or cannot be predicted."""
        times = next((times for times in _LONGER if times * self.chosen.length <= PREDICTABLE), None)
        if times is None or not self.is_for_short_training:
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
        return race_sentence(self)

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
        return search_sentence(self)

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


def best_guess(candidates: Sequence[Candidate]) -> Candidate:
    """Without a race the first that augments at all: `none` is what others are compared with, not a proposal."""
    return next((each for each in candidates if not each.policy.does_nothing), candidates[0])


def chosen_policy(candidate: Candidate, origin: Mapping[str, Any], race: RaceResult | None, **more: Any) -> Policy:
    """The candidate as it goes into the file: where it was made, and the whole table of the race."""
    provenance = {**origin, **candidate.policy.provenance, "candidate": candidate.label}
    if race is not None:
        provenance["race"] = {**race.provenance(), **more}
    return replace(candidate.policy, name=candidate.label, provenance=provenance)
