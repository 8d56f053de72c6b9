"""What cheap measurements on these images predict of a policy, before it is trained with.

A network that was trained without a policy looks at held-out images that each policy has augmented. How much worse it
does there, and how far it was from learning its own training images by heart, predict what training with the policy
will do to the loss: a network that has learned them by heart gains by augmentation, one that is still learning loses.
`prior.json` holds the lines that say how much, fitted to many sets of images by `tools/prior.py`, which also says how
well they predict a set that they were not fitted to. Each network that was measured has its own. With another those of
the first order candidates, and what is expected is no effect, give or take as much as was measured with such a network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fasteraa.errors import ConfigError
from fasteraa.methods import Candidate, Expected
from fasteraa.methods.task import PREDICTABLE, Task
from fasteraa.policy.policy import Policy
from fasteraa.runtime.device import find_device
from fasteraa.runtime.documents import read_json
from fasteraa.selection.finetuning import operations_per_image, with_expected_effects
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.metrics import Measured
from fasteraa.train.runner import Runner, run_jobs

if TYPE_CHECKING:
    from torch import Tensor

    from fasteraa.train.affinity import CleanNetwork

_LEAST_LOSS = 1e-3
_FITTED = (-4.0, 0.0)  # the range of `unlearned` in the sets that the lines were fitted to
_FEATURES = 7  # of `Traits`
_BASE = 4.0  # it was fitted to trainings of four times the length


class PriorOf(NamedTuple):
    """Whose lines are meant: of a file, or of the package; of a network, or of the first in the file."""

    file: str = ""
    network: str = ""

    @property
    def has_own_lines(self) -> bool:
        """Whether the network has lines of its own."""
        return self.network in read_prior(self.file)["networks"]

    @property
    def lines(self) -> dict[str, Any]:
        networks: dict[str, dict[str, Any]] = read_prior(self.file)["networks"]
        return networks.get(self.network) or next(iter(networks.values()))


FIRST = PriorOf()


@dataclass(frozen=True)
class Traits:
    """What is measured of a policy without training with it."""

    harder: float  # logarithm of the clean network's loss on augmented images, relative to plain ones
    confused: float  # share of the images that it sees wrong only when they are augmented
    operations: float  # that an image passes through, on average
    unlearned: float  # logarithm of the clean network's training loss, relative to that on held-out images

    @classmethod
    def of(cls, policy: Policy, plain: Measured, augmented: Measured, train_loss: float) -> Traits:
        low, high = _FITTED
        held_out = max(plain.loss, _LEAST_LOSS)
        return cls(
            harder=math.log(max(augmented.loss, _LEAST_LOSS) / held_out),
            confused=(augmented.error - plain.error) / 100,
            operations=operations_per_image(policy),
            unlearned=min(max(math.log(max(train_loss, _LEAST_LOSS) / held_out), low), high),
        )

    def after(self, length: float, prior: PriorOf = FIRST) -> Traits:
        """In trainings `length` times as long, by which more is learned by heart."""
        learned = prior.lines["longer"]["learned"] * _quadruplings(length)
        return replace(self, unlearned=max(self.unlearned - learned, _FITTED[0]))

    @property
    def features(self) -> list[float]:
        """Each alone, and what it means for a network that has much to learn."""
        own = [self.harder, self.confused, self.operations]
        return [*own, self.unlearned, *(value * self.unlearned for value in own)]


@cache
def read_prior(file: str = "") -> dict[str, Any]:
    """The lines in a file that `tools/prior.py fit` wrote; without one, those that come with the package."""
    if not file:
        return _checked(json.loads(files("fasteraa.selection").joinpath("prior.json").read_text()), "prior.json")
    return _checked(read_json(file, ConfigError, nan=False), repr(file))


def _checked(content: Any, where: str) -> dict[str, Any]:
    """ConfigError unless there is a finite number for every feature of every network."""
    try:
        spreads = [content["other networks"]["spread"]]
        for lines in content["networks"].values():
            line, longer = lines["effect"], lines["longer"]
            rows = [np.array(line[name], float) for name in ("means", "scales", "weights")]
            covariance = np.array(line["covariance"], float)
            own = np.array([line["level"], *(longer[name] for name in ("difference", "unlearned", "learned"))], float)
            spreads += [line["spread"], longer["spread"], *rows[1]]
            shapes = {row.shape for row in rows} == {(_FEATURES,)} and covariance.shape == (_FEATURES + 1,) * 2
            if not shapes or not all(np.isfinite(each).all() for each in (*rows, covariance, own)):
                raise ConfigError(f"{where} is no prior of a race: it needs {_FEATURES} finite weights a network")
        sound = all(math.isfinite(each) and each > 0 for each in spreads)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where} is no prior of a race: tools/prior.py fit makes one") from error
    if len(spreads) == 1 or not sound:
        raise ConfigError(f"{where} is no prior of a race: it needs a network, and positive scales")
    return dict(content)


def predict(traits: Traits, prior: PriorOf = FIRST) -> Expected:
    """The effect of training with the policy, and how far such predictions are off on other sets.

    The further these measurements are from those that the line was fitted to, the less is known.
    """
    line = prior.lines["effect"]
    columns = zip(traits.features, line["means"], line["scales"], strict=True)
    z = np.array([1.0, *((value - mean) / scale for value, mean, scale in columns)])
    effect = z @ np.array([line["level"], *line["weights"]])
    return Expected(float(effect), math.sqrt(line["spread"] ** 2 + float(z @ np.array(line["covariance"]) @ z)))


# --- longer trainings ------------------------------------------------------------------------------------------------


def longer_difference(difference: float, unlearned: float, length: float, prior: PriorOf = FIRST) -> float:
    """A difference to `none` in trainings `length` times as long.

    `unlearned`: how much more of its loss the policy still has to learn than `none` has.
    """
    line, steps = prior.lines["longer"], _quadruplings(length)
    return float(difference * (1 + line["difference"]) ** steps + steps * line["unlearned"] * unlearned)


def longer_spread(length: float, prior: PriorOf = FIRST) -> float:
    """How far such a prediction is off on other sets, one standard deviation."""
    return float(prior.lines["longer"]["spread"] * math.sqrt(_quadruplings(length)))


def _quadruplings(length: float) -> float:
    return math.log(min(max(length, 1.0), PREDICTABLE)) / math.log(_BASE)


# --- candidates ------------------------------------------------------------------------------------------------------


def with_prior(candidates: Sequence[Candidate], task: Task, runner: Runner, seed: int, epochs: int) -> list[Candidate]:
    """In the order in which a small budget keeps them: `none`, then the best by what is predicted on these images.

    It is predicted for the length of the training to come. So far from it that no line was checked there, and of a
    network that the lines were not fitted to, the predictions order candidates and no more. The one training that this
    needs, of `none` on the first fold, is the first of the race. Nothing is predicted, and candidates stay in their
    order, where that training does no better than guessing: such a network cannot see what a policy does to an image.
    Of fine-tuning, for which the lines were not fitted, other sets say what is expected; of linear probes nothing does.
    """
    first = [each for each in candidates if each.label == "none"]
    others = [each for each in candidates if each.label != "none"]
    no_effect = Expected(0.0, read_prior(task.prior)["other networks"]["spread"])
    if task.recipe.fine_tunes:
        ordered = with_expected_effects(candidates)  # which those of linear probes do not follow: results/finetune
        return _expecting(ordered, candidates, no_effect) if task.recipe.freeze else ordered
    if not first or not others:
        return [*first, *others]
    job = replace(task.job("none", first[0].policy, fold=0, seed=seed, epochs=epochs), keep_network=True)
    outcome = run_jobs(runner, [job]).get(job.key)
    network = runner.cache.network(job)
    if outcome is None or outcome.failed or not network.exists():
        return [*first, *others]
    from fasteraa.train.affinity import load_clean  # it brings trainings along: seconds

    clean = load_clean(network, job, find_device(task.device))
    if is_guessing(clean.plain.error, job.split.held_out.labels):
        return [*first, *others]
    length, prior = task.recipe.epochs / epochs, PriorOf(task.prior, task.recipe.network)
    predicted = [_predicted(each, clean, job, outcome, length, prior) for each in others]
    ordered = sorted(predicted, key=lambda each: each.expected.effect if each.expected else 0.0)
    if length <= PREDICTABLE and prior.has_own_lines:
        return [*first, *ordered]
    return _expecting([*first, *ordered], candidates, no_effect if length <= PREDICTABLE else None)


def _expecting(ordered: Sequence[Candidate], given: Sequence[Candidate], otherwise: Expected | None) -> list[Candidate]:
    """In this order, with what a method says that it expects; of the others but `none`, the same."""
    own = {each.label: each.expected for each in given}
    return [each if each.label == "none" else replace(each, expected=own[each.label] or otherwise) for each in ordered]


def is_guessing(error: float, labels: Tensor) -> bool:
    """An error in % that naming the commonest class of these images has too, within two standard errors."""
    wrong = 1 - float(labels.bincount().max()) / len(labels)
    return error / 100 > wrong - 2 * math.sqrt(wrong * (1 - wrong) / len(labels))


def _predicted(
    candidate: Candidate, clean: CleanNetwork, job: TrainJob, outcome: Outcome, length: float, prior: PriorOf
) -> Candidate:
    """Unless its method says what it expects. Of a schedule, as it is on average over the training."""
    if candidate.expected is not None:
        return candidate
    policy = candidate.policy_on(job.split.name).flattened()
    traits = Traits.of(policy, clean.plain, clean.measure(policy), outcome.train_loss)
    return replace(candidate, expected=predict(traits.after(length, prior), prior))
