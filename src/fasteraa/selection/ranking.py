"""Who is ahead in a race, and how sure that is.

A race of few images says little: two policies that are a point apart are told from each other by thousands of held-out
images, not by hundreds. So candidates are compared by their loss on those images, which tells as much as the errors of
two and a half times as many and goes up and down with the error, percent for percent. A loss is weighed against what
was expected before: the noisier the measurement, the more the expectation counts. What no noise explains counts as it
was measured: an operation may ruin a kind of data.

And a race is short. What a policy makes hard to learn is learned late: those with a high training loss gain most by
longer trainings and larger networks, so a part of that is taken off their loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fasteraa.methods import Candidate, Expected
from fasteraa.policy.policy import Policy
from fasteraa.train.statistics import residual_spread

# standard errors by which an expectation moves an error, at most (limited translation, as Efron and Morris call it)
_FURTHEST = 3.0
# what longer trainings take off a loss, relative to it, when a network is as far from fitting as one that guesses;
# from test errors of three sets of results/quality and of five of results/unseen
CREDIT = 0.2
PROBABLY = 0.8  # with which a policy must be better than `none` to be chosen
_LOSS_NOISE = 0.62  # that of a loss, relative to it, as a share of that of an error, relative to that


@dataclass(frozen=True)
class Trial:
    """A candidate and how it did: an error in % for each training, one after the other on the folds."""

    candidate: Candidate
    errors: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()  # training loss at the end: how hard the policy makes it
    scores: tuple[float, ...] = ()  # loss on the held-out images
    images: int = 0  # held out from its trainings, each as often as it was
    credit: float = 0.0  # for a training loss as that of guessing
    guess_loss: float = 1.0  # of a network that guesses
    failed: str | None = None  # why a training of it failed; its error there is that of guessing

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
        """One standard error of its prediction, which is also about that of a difference to another on the same images.

        It knows that other images could have been held out, not that another seed would have trained otherwise.
        """
        return self._relative_noise * self.prediction

    @property
    def measured_noise(self) -> float:
        """The same of its loss as it was measured."""
        return self._relative_noise * self.score

    @property
    def _relative_noise(self) -> float:
        share = min(max(self.error / 100, 1 / max(self.images, 2)), 1 - 1 / max(self.images, 2))
        return _LOSS_NOISE * math.sqrt((1 - share) / (share * max(self.images, 1)))

    @property
    def predictions(self) -> tuple[float, ...]:
        """What is to be expected of the scores in a longer training, by which candidates are ranked."""
        if self.failed:
            return self.scores
        pairs = zip(self.scores, self.losses, strict=True)
        return tuple(score * math.exp(-self.credit * min(loss / self.guess_loss, 1.0)) for score, loss in pairs)

    @property
    def prediction(self) -> float:
        return sum(self.predictions) / len(self.predictions)

    @property
    def score(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def loss(self) -> float | None:
        """None if all of its trainings failed."""
        return sum(self.losses) / len(self.losses) if self.losses else None


def estimates(trials: Sequence[Trial]) -> list[float]:
    """The predictions of trials on the same images, each moved towards what was expected as far as its noise allows.

    Expectations are relative to the middling trial; where that has no loss, all are expected to have none.
    """
    level = median([trial.prediction / trial.expected.error for trial in trials if trial.expected] or [0.0])
    noise = _training_noise(trials)
    return [_weighed(trial, level, max(trial.noise, noise)) for trial in trials]


def _weighed(trial: Trial, level: float, noise: float) -> float:
    if trial.expected is None or not noise:
        return trial.prediction
    spread = level * trial.expected.spread
    away = noise**2 / (spread**2 + noise**2) * (level * trial.expected.error - trial.prediction)
    return trial.prediction + min(max(away, -_FURTHEST * noise), _FURTHEST * noise)


def _training_noise(trials: Sequence[Trial]) -> float:
    """One standard error of a difference, by how differently candidates do from fold to fold, each with its own seed.

    Where many images are held out, trainings differ by more than the choice of the images explains.
    """
    spread = residual_spread([trial.predictions for trial in trials])
    return 0.0 if spread is None else spread * math.sqrt(2 / len(trials[0].scores))


def best_of(measured: list[Trial], count: int) -> list[Trial]:
    """The `count` that stay, the best first: none that failed, and `none` in any case."""
    best = _ranked([trial for trial in measured if not trial.failed])[:count]
    return best + [trial for trial in measured if trial.label == "none" and trial not in best]


def keep_first(trials: list[Trial], count: int) -> list[Trial]:
    """So many of them, the first; `none` in the place of the last where it would be left out."""
    kept = trials[:count]
    left = [trial for trial in trials[count:] if trial.label == "none"]
    return [*kept[: count - len(left)], *left]


def choose(trials: Sequence[Trial]) -> Trial:
    """The lowest estimate of those that came furthest and are probably better than `none`, as measured on these images.

    What was expected before orders good policies; it does not make one. Those that failed lose.
    """
    finalists = _finalists(trials)
    none = next((trial for trial in finalists if trial.label == "none"), None)
    if none is None:
        return _ranked(finalists)[0]
    better = better_than_none(trials)
    good = [each for each in finalists if better.get(each.label, 0.0) >= PROBABLY and each.error <= none.error]
    return next((trial for trial in _ranked([*good, none]) if trial is not none), none) if good else none


def better_than_none(trials: Sequence[Trial]) -> dict[str, float]:
    """The probability that a candidate's loss is below that of `none`, by trainings on the same folds and seeds."""
    finalists = _finalists(trials)
    none = next((trial for trial in finalists if trial.label == "none"), None)
    if none is None:
        return {}
    noise = _training_noise(finalists)
    return {
        each.label: _below(none.score - each.score, max(each.measured_noise, noise))
        for each in finalists
        if each is not none
    }


def _finalists(trials: Sequence[Trial]) -> list[Trial]:
    sound = [trial for trial in trials if not trial.failed]
    furthest = max(len(trial.errors) for trial in sound)
    return [trial for trial in sound if len(trial.errors) == furthest]


def _below(difference: float, noise: float) -> float:
    """The normal distribution; without noise a difference is certain."""
    if not noise:
        return 0.5 if difference == 0 else float(difference > 0)
    return 0.5 * (1 + math.erf(difference / noise / math.sqrt(2)))


def _ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Of equal estimates the lower error is first; of equal errors, `none`."""
    pairs = zip(estimates(trials), trials, strict=True)
    return [trial for _, trial in sorted(pairs, key=lambda pair: (pair[0], pair[1].error, pair[1].label != "none"))]
