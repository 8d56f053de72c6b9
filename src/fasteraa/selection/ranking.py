"""Which candidate is better, and how sure that is: each against `none`, on the same images, in one number.

That number is the logarithm of a candidate's loss relative to that of `none`. The loss on held-out images says as much
as the errors of two and a half times as many images, and goes up and down with the error, percent for percent. It is
weighed against what cheap measurements on these images predict (`selection.prior`), by how noisy each is. And where
the trainings of the race are shorter than the one to come, it is carried on to that length: what a policy makes hard to
learn is learned late. Where every class is to count alike, balanced errors are compared in the place of losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import NamedTuple

from fasteraa.methods import Candidate, Expected
from fasteraa.methods.task import FOLDS, PREDICTABLE
from fasteraa.policy.policy import Policy
from fasteraa.selection.finetuning import SHARED_NOISE, error_margin, weighed_together
from fasteraa.selection.prior import FIRST, PriorOf, longer_difference, longer_spread
from fasteraa.train.statistics import residual_spread

# standard errors by which a prediction moves what was measured, at most (limited translation, Efron and Morris)
_FURTHEST = 3.0
PROBABLY = 0.8  # with which a policy must be better than `none` to be chosen
CLEAR = 0.02  # of the loss: what another choice may gain on average where more trainings are not worth their time
_LOSS_NOISE = 0.62  # of a loss, relative to it, as a share of that of an error, relative to that
# of the logarithm of a loss relative to that of `none`, by the seeds of one training of each: results/adapt
SEED_NOISE = 0.06
_LEAST_LOSS = 1e-6  # a logarithm needs one


class Difference(NamedTuple):
    """Logarithm of a loss relative to that of `none`: -0.1 is about ten percent less. One standard deviation of it."""

    mean: float
    spread: float

    @property
    def better(self) -> float:
        """The probability that it is below 0; without a spread a difference is certain."""
        if not self.spread:
            return 0.5 if self.mean == 0 else float(self.mean < 0)
        return 0.5 * (1 + math.erf(-self.mean / self.spread / math.sqrt(2)))


@dataclass(frozen=True)
class Trial:
    """A candidate and how it did: an error in % for each training, one after the other on the folds."""

    candidate: Candidate
    errors: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()  # training loss at the end: how hard the policy makes it
    scores: tuple[float, ...] = ()  # loss on the held-out images
    images: int = 0  # held out from its trainings, each once
    length: float = 1.0  # of the training to come, as a multiple of those of the race
    folds: int = FOLDS  # of the race
    by_error: bool = False  # errors are compared in the place of losses
    prior: PriorOf = FIRST  # the lines that carry differences on
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
    def shares(self) -> bool:
        """Whether what is expected of it depends on how others do on these images."""
        return self.expected is not None and self.expected.shared > 0

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

    @property
    def logarithms(self) -> list[float]:
        """Of what is compared, for each training: of losses, or of errors, where no error counts as half of one."""
        if not self.by_error:
            return [math.log(max(score, _LEAST_LOSS)) for score in self.scores]
        half = 50 * min(len(self.errors), self.folds) / max(self.images, 1)
        return [math.log(max(error, half)) for error in self.errors]

    @property
    def by_fold(self) -> list[float]:
        """The mean logarithm on each fold: another training there has another seed, and the same images."""
        return [fmean(self.logarithms[fold :: self.folds]) for fold in range(min(len(self.errors), self.folds))]

    @property
    def noise(self) -> float:
        """One standard error of the logarithm of what is compared, and about that of a difference to another's.

        It knows that other images could have been held out, not that another seed would have trained otherwise.
        """
        share = min(max(self.error / 100, 1 / max(self.images, 2)), 1 - 1 / max(self.images, 2))
        return (1.0 if self.by_error else _LOSS_NOISE) * math.sqrt((1 - share) / (share * max(self.images, 1)))

    @property
    def unlearned(self) -> float:
        """The training loss as a share of the loss on held-out images: what longer trainings can still learn."""
        return 0.0 if self.loss is None else self.loss / max(self.score, _LEAST_LOSS)


def differences(trials: Sequence[Trial]) -> list[Difference]:
    """Of trials on the same images, each to `none`; where that is missing, to the first of them."""
    none = next((trial for trial in trials if trial.label == "none"), trials[0])
    between = _training_noise(trials)
    if any(trial.shares for trial in trials):
        return _together(trials, none, between)
    return [_difference(trial, none, max(trial.noise, between)) for trial in trials]


def _together(trials: Sequence[Trial], none: Trial, between: float) -> list[Difference]:
    """Of fine-tunings, where what was measured of one policy says something about the others."""
    others = [trial for trial in trials if trial is not none]
    level = fmean(none.logarithms)
    measured = [(fmean(trial.logarithms) - level, max(trial.noise, between)) for trial in others]
    weighed = iter(weighed_together(measured, [trial.expected for trial in others]))
    return [Difference(0.0, 0.0) if trial is none else Difference(*next(weighed)) for trial in trials]


def _difference(trial: Trial, none: Trial, noise: float) -> Difference:
    if trial is none:
        return Difference(0.0, 0.0)
    measured = Difference(fmean(trial.logarithms) - fmean(none.logarithms), noise)
    if trial.length > 1 and not trial.failed and not none.failed:
        measured = _carried_on(measured, trial.unlearned - none.unlearned, trial.length, trial.prior)
    return _weighed(measured, trial.expected)


def _carried_on(now: Difference, unlearned: float, length: float, prior: PriorOf) -> Difference:
    """To the length of the training to come: its noise shrinks with it, and the line is off by some more."""
    mean, noise = (longer_difference(*each, length, prior) for each in ((now.mean, unlearned), (now.spread, 0.0)))
    return Difference(mean, math.hypot(noise, longer_spread(length, prior)))


def _weighed(measured: Difference, expected: Expected | None) -> Difference:
    """Moved towards what was predicted, as far as its noise allows; what no noise explains counts as it is."""
    if expected is None or not measured.spread:
        return measured
    share = measured.spread**2 / (expected.spread**2 + measured.spread**2)
    furthest = _FURTHEST * measured.spread
    away = min(max(share * (expected.effect - measured.mean), -furthest), furthest)
    return Difference(measured.mean + away, measured.spread * math.sqrt(1 - share))


def _training_noise(trials: Sequence[Trial]) -> float:
    """One standard error of a difference, by how differently candidates do from training to training.

    What comes of seeds is less in a mean of many trainings, what comes of a fold's images only in one of several
    folds. Of few trainings by chance nothing may be seen of it: seeds alone make a difference on any images.
    """
    least = SEED_NOISE / math.sqrt(len(trials[0].scores))
    return max(least, *(_mean_spread(rows) for rows in ([t.logarithms for t in trials], [t.by_fold for t in trials])))


def _mean_spread(rows: Sequence[Sequence[float]]) -> float:
    """One standard error of the difference of two rows' means."""
    return (residual_spread(rows) or 0.0) * math.sqrt(2 / len(rows[0]))


def best_of(measured: list[Trial], count: int) -> list[Trial]:
    """The `count` that stay, the best first: none that failed, and `none` in any case."""
    best = _ranked([trial for trial in measured if not trial.failed])[:count]
    return best + [trial for trial in measured if trial.label == "none" and trial not in best]


def keep_first(trials: list[Trial], count: int) -> list[Trial]:
    """So many of them, the first; `none` in the place of the last where it would be left out."""
    first = trials[:count]
    left = [trial for trial in trials[count:] if trial.label == "none"]
    return [*first[: count - len(left)], *left]


def choose(trials: Sequence[Trial], by_loss: bool = False) -> Trial:
    """The lowest expected loss of those that came furthest and are probably better than `none`, else `none`.

    Where the training to come is that of the race, what has more errors than `none` is not chosen, unless the loss
    alone counts; on the few images of a fine-tuning, more by one standard error. What failed loses.
    """
    finalists = _finalists(trials)
    none = next((trial for trial in finalists if trial.label == "none"), None)
    if none is None:
        return _ranked(finalists)[0]
    better = better_than_none(trials)
    likely = [each for each in finalists if better.get(each.label, 0.0) >= PROBABLY]
    good = [each for each in likely if by_loss or each.length > 1 or each.error <= none.error + _margin(each)]
    return next(trial for trial in _ranked([*good, none]) if trial is not none) if good else none


def is_clear(trials: Sequence[Trial], by_loss: bool = False) -> bool:
    """Whether more trainings would hardly make the choice better."""
    return regret(trials, by_loss) < CLEAR


def regret(trials: Sequence[Trial], by_loss: bool = False) -> float:
    """What another choice would gain on average, at most, as a share of the loss; infinite if nobody can know.

    For each finalist that is not chosen: how often it is the better one in truth, times by how much. The sum of these
    is at least what whoever knew the truth would gain.
    """
    chosen, finalists = choose(trials, by_loss), _finalists(trials)
    if finalists[0].length > PREDICTABLE:
        return math.inf
    known = dict(zip((trial.label for trial in finalists), differences(finalists), strict=True))
    own = known.pop(chosen.label)
    return sum(expected_gain(own.mean - other.mean, apart(own.spread, other.spread)) for other in known.values())


def apart(one: float, other: float) -> float:
    """The spread of the difference between two differences to `none`, whose noise is in both."""
    return math.sqrt(max(one**2 + other**2 - 2 * SHARED_NOISE * one * other, 0.0))


def expected_gain(mean: float, spread: float) -> float:
    """The mean of a normal distribution of which what is below 0 counts as 0."""
    if not spread:
        return max(mean, 0.0)
    normal = NormalDist()
    return mean * normal.cdf(mean / spread) + spread * normal.pdf(mean / spread)


def _margin(trial: Trial) -> float:
    """Points of error that few images do not tell."""
    return error_margin(trial.error, trial.images) if trial.shares else 0.0


def percent(probability: float) -> str:
    """`93%`, and never certainty."""
    if 0.005 <= probability < 0.995:
        return f"{probability:.0%}"
    return "more than 99%" if probability > 0.5 else "under 1%"


def better_than_none(trials: Sequence[Trial]) -> dict[str, float]:
    """The probability that a candidate's loss is below that of `none` in the training to come, for finalists.

    Of one much longer than the race's trainings nobody knows any.
    """
    finalists = _finalists(trials)
    if not any(trial.label == "none" for trial in finalists) or finalists[0].length > PREDICTABLE:
        return {}
    pairs = zip(finalists, differences(finalists), strict=True)
    return {trial.label: difference.better for trial, difference in pairs if trial.label != "none"}


def _finalists(trials: Sequence[Trial]) -> list[Trial]:
    sound = [trial for trial in trials if not trial.failed]
    furthest = max(len(trial.errors) for trial in sound)
    return [trial for trial in sound if len(trial.errors) == furthest]


def _ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Of equal losses the lower error is first; of equal errors, `none`."""
    if not trials:
        return []
    pairs = zip(differences(trials), trials, strict=True)
    return [t for _, t in sorted(pairs, key=lambda pair: (pair[0].mean, pair[1].error, pair[1].label != "none"))]
