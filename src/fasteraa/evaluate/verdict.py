"""Who won a race, and how sure that is.

A race of few images says little: two policies that are a point apart are told from each other by thousands of held-back
images, not by hundreds. So candidates are compared by their loss on those images, which tells as much as the errors of
two and a half times as many (results/designs) and goes up and down with the error, percent for percent. And a loss is
weighed against what was expected before: the noisier the measurement, the more the expectation counts. What no noise
explains counts as it was measured: an operation may ruin a kind of data.

And a race is short. What a policy makes hard to learn is learned late: those with a high training loss gain most by
longer trainings and larger networks (results/quality, results/unseen), so a part of that is taken off their loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fasteraa.evaluate.candidates import Candidate, Expected
from fasteraa.evaluate.effects import Effects
from fasteraa.evaluate.plan import Round
from fasteraa.evaluate.recipe import TrainRecipe
from fasteraa.evaluate.statistics import Estimate, in_words, leftover, paired
from fasteraa.policy.artifact import Policy

# standard errors by which an expectation moves an error, at most (limited translation, as Efron and Morris call it)
_FURTHEST = 3.0
# what longer trainings take off a loss, relative to it, when a network is as far from fitting as one that guesses;
# from test errors of three sets of results/quality and of five of results/unseen
CREDIT = 0.2
_NEARLY = 0.8  # of the epochs that tell something
_LOSS_NOISE = 0.62  # that of a loss, relative to it, as a share of that of an error, relative to that


@dataclass(frozen=True)
class Trial:
    """A candidate and how it did: an error in % for each training, one after the other on the folds."""

    candidate: Candidate
    errors: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()  # training loss at the end: how hard the policy makes it
    scores: tuple[float, ...] = ()  # loss on the held-back images
    images: int = 0  # held back from its trainings, each as often as it was
    credit: float = 0.0  # for a training loss as that of guessing
    guessing: float = 1.0
    diverged: str | None = None  # why a training of it came to nothing; its error there is that of guessing

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def policy(self) -> Policy:
        return self.candidate.policy

    @property
    def expected(self) -> Expected | None:
        return self.candidate.expected

    @property
    def noise(self) -> float:
        """One standard error of its outlook, which is also about that of a difference to another on the same images.

        It knows that other images could have been held back, not that another seed would have trained otherwise.
        """
        share = min(max(self.error / 100, 1 / max(self.images, 2)), 1 - 1 / max(self.images, 2))
        return _LOSS_NOISE * self.outlook * math.sqrt((1 - share) / (share * max(self.images, 1)))

    @property
    def outlooks(self) -> tuple[float, ...]:
        """What is to be expected of the scores in a longer training, by which candidates are ranked."""
        if self.diverged:
            return self.scores
        pairs = zip(self.scores, self.losses, strict=True)
        return tuple(score * math.exp(-self.credit * min(loss / self.guessing, 1.0)) for score, loss in pairs)

    @property
    def outlook(self) -> float:
        return sum(self.outlooks) / len(self.outlooks)

    @property
    def score(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def loss(self) -> float | None:
        """None if all of its trainings diverged."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True)
class Calibration:
    chosen: Trial
    trials: tuple[Trial, ...]  # the winner first, then by trainings and error
    folds: int
    recipe: TrainRecipe
    seconds: float
    images: int = 0  # that took part
    all_images: int = 0  # that there were
    rounds: tuple[Round, ...] = ()
    effects: Effects | None = None  # of operations, where that was tested
    telling: tuple[int, float] | None = None  # epochs that tell something, and the seconds of a race of those

    def against(self, label: str) -> Estimate | None:
        """The winner's outlook minus that of another, fold by fold, where both were raced."""
        other = next((trial for trial in self.trials if trial.label == label), None)
        if other is None or other.label == self.chosen.label:
            return None
        shared = min(len(self.chosen.scores), len(other.scores))
        return paired(self.chosen.outlooks[:shared], other.outlooks[:shared], overlap=1 / (self.folds - 1))

    def sentence(self) -> str:
        """What was chosen, and how sure that is."""
        return self._choice() + self._uneven() + self._too_short()

    def _choice(self) -> str:
        how = f"{trainings(len(self.chosen.errors))} of {self._epochs()} of {self.recipe.network}{self._part()}"
        words = (
            f"Chosen: {_quoted(self.chosen.label)}, with {self.chosen.error:.1f}% errors on images held back from "
            f"training ({how})"
        )
        rest = [trial for trial in self.trials if trial.label != self.chosen.label and not trial.diverged]
        if not rest:
            return words + "."
        second = rest[0]
        as_far = [trial for trial in rest if len(trial.errors) == len(self.chosen.errors)]
        if second in as_far and second.outlook < self.chosen.outlook:
            better = self._has_fewer(second) or second.score < self.chosen.score
            did = "did better" if better else "is harder to learn and may gain more"
            return (
                f"{words}; {_quoted(second.label)} {did} ({second.error:.1f}%, {self._losses(second)}), but so few "
                "images do not outweigh what was measured on other data."
            )
        fewest = min(as_far, key=lambda trial: trial.error, default=second)
        if fewest in as_far and self._has_fewer(fewest):
            but = (
                "but a higher loss"
                if fewest.score > self.chosen.score
                else "but is easier to learn, so that longer trainings gain less"
            )
            words += f"; {_quoted(fewest.label)} has fewer, {fewest.error:.1f}%, {but} ({self._losses(fewest)})"
            return f"{words}{self._sureness(fewest.label)}."
        return f"{words}; next is {_quoted(second.label)} with {second.error:.1f}%{self._sureness(second.label)}."

    def _uneven(self) -> str:
        """Nothing if all came as far: tables and sentences name errors that are of fewer images than others."""
        if len({len(trial.errors) for trial in self.trials}) == 1:
            return ""
        return " Who has fewer trainings went out earlier, with errors and losses of fewer held-back images."

    def _too_short(self) -> str:
        """Nothing if trainings were long enough, or nearly: a slow machine shortens them a little."""
        if self.telling is None or self._least_epochs() >= _NEARLY * self.telling[0]:
            return ""
        epochs, seconds = self.telling
        minutes = max(2, math.ceil(seconds / 60))
        return (
            f" Trainings as short as that say little about longer ones: {epochs} epochs would say more, and take about "
            f"{minutes} minutes (--calibrate-minutes {minutes})."
        )

    def _losses(self, other: Trial) -> str:
        return f"loss {other.score:.3f} against {self.chosen.score:.3f}"

    def _has_fewer(self, other: Trial) -> bool:
        """Errors, as far as the sentence shows them."""
        return round(other.error, 1) < round(self.chosen.error, 1)

    def _part(self) -> str:
        return f", {self.images} of {self.all_images} images" if self.images < self.all_images else ""

    def _epochs(self) -> str:
        """Later rounds may have had fewer."""
        least = self._least_epochs()
        most = epochs_in_words(self.recipe.epochs)
        return most if least == self.recipe.epochs else f"{least} to {most}"

    def _least_epochs(self) -> int:
        return min((each.epochs for each in self.rounds), default=self.recipe.epochs)

    def _sureness(self, label: str) -> str:
        found = self.against(label)
        if found is None or found.n < 2:
            return "; from one training alone, this is a guess"
        if found.p is not None and found.significant:
            return f", clearly behind ({in_words(found.p)})"
        return "; the difference is within the noise between folds"

    def policy(self, found: Policy) -> Policy:
        """The winner, with the whole story: of the search and of the race."""
        provenance = {**found.provenance, "calibration": self.provenance()}
        name = found.name if self.chosen.policy.sub_policies == found.sub_policies else self.chosen.label
        return replace(self.chosen.policy, name=name, provenance=provenance)

    def words(self) -> str:
        """The table and the sentence."""
        width = max(len(trial.label) for trial in self.trials)
        lines = [
            f"  {trial.label:{width}}  {trial.error:5.1f}% errors, loss {trial.score:.3f}, "
            f"{trainings(len(trial.errors))}{f' ({trial.diverged})' if trial.diverged else ''}"
            for trial in self.trials
        ]
        return "\n".join([*lines, self.sentence(), *self._effects()])

    def _effects(self) -> list[str]:
        if self.effects is None:
            return []
        return [
            f"When images meet an operation once, the loss on held-back images changes by % (two standard errors, "
            f"{self.effects.trainings} trainings): {self.effects.words()}."
        ]

    def provenance(self) -> dict[str, Any]:
        """For the artifact: the whole table."""
        return {
            "chosen": self.chosen.label,
            "sentence": self.sentence(),
            "network": self.recipe.network,
            "epochs": self.recipe.epochs,
            "images": self.images,
            "all_images": self.all_images,
            "folds": self.folds,
            "rounds": [{"runs": each.runs, "epochs": each.epochs} for each in self.rounds],
            "seconds": round(self.seconds, 1),
            "credit": self.chosen.credit,
            **({"effects": self.effects.table()} if self.effects else {}),
            "table": [
                {
                    "candidate": trial.label,
                    "hash": trial.policy.hash,
                    "errors": [round(error, 3) for error in trial.errors],
                    "losses": [round(score, 4) for score in trial.scores],
                    "training_loss": None if trial.loss is None else round(trial.loss, 4),
                    **({"expected": list(trial.expected)} if trial.expected else {}),
                    **({"diverged": trial.diverged} if trial.diverged else {}),
                }
                for trial in self.trials
            ],
        }


def _quoted(label: str) -> str:
    """A comma in a label must not look like one of the sentence, nor the policy `none` like nobody."""
    return f"'{label}'" if "," in label or label == "none" else label


def trainings(count: int) -> str:
    return f"{count} training{'s' * (count > 1)}"


def epochs_in_words(count: int) -> str:
    return f"{count} epoch{'s' * (count > 1)}"


def estimates(trials: Sequence[Trial]) -> list[float]:
    """The outlooks of trials on the same images, each moved towards what was expected as far as its noise allows.

    Expectations are relative to the middling trial; where that has no loss, all are expected to have none.
    """
    level = median([trial.outlook / trial.expected.error for trial in trials if trial.expected] or [0.0])
    noise = _training_noise(trials)
    return [_weighed(trial, level, max(trial.noise, noise)) for trial in trials]


def _weighed(trial: Trial, level: float, noise: float) -> float:
    if trial.expected is None or not noise:
        return trial.outlook
    spread = level * trial.expected.spread
    away = noise**2 / (spread**2 + noise**2) * (level * trial.expected.error - trial.outlook)
    return trial.outlook + min(max(away, -_FURTHEST * noise), _FURTHEST * noise)


def _training_noise(trials: Sequence[Trial]) -> float:
    """One standard error of a difference, by how differently candidates do from fold to fold, each with its own seed.

    Where many images are held back, trainings differ by more than the choice of the images explains.
    """
    spread = leftover([trial.outlooks for trial in trials])
    return 0.0 if spread is None else spread * math.sqrt(2 / len(trials[0].scores))


def better_half(measured: list[Trial], count: int) -> list[Trial]:
    """The `count` who go on, the best first: not who diverged, and `none` in any case."""
    best = _ranked([trial for trial in measured if not trial.diverged])[:count]
    return best + [trial for trial in measured if trial.label == "none" and trial not in best]


def first_ones(trials: list[Trial], count: int) -> list[Trial]:
    """So many of them, the first; `none` in the place of the last where it would be left out."""
    kept = trials[:count]
    left = [trial for trial in trials[count:] if trial.label == "none"]
    return [*kept[: count - len(left)], *left]


def choose(trials: Sequence[Trial]) -> Trial:
    """The lowest estimate of those that came furthest; `none` if it is as low. Who diverged loses."""
    sound = [trial for trial in trials if not trial.diverged]
    furthest = max(len(trial.errors) for trial in sound)
    return _ranked([trial for trial in sound if len(trial.errors) == furthest])[0]


def _ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Of equal estimates the lower error is first; of equal errors, `none`."""
    pairs = zip(estimates(trials), trials, strict=True)
    return [trial for _, trial in sorted(pairs, key=lambda pair: (pair[0], pair[1].error, pair[1].label != "none"))]
