"""A race by fine-tuning on few images: what other sets say about each policy, and how measurements add up.

On 10 to 200 images hardly a difference is larger than its noise, so what policies did on other sets counts. It comes
in two parts. What policies have in common on a set: there augmentation helps, or not. And what each has alone. So the
measurement of one policy says something about all of them. `finetune_prior.json` holds the numbers, fitted to
training images of other sets by `tools/finetune_prior.py`, which also says how well they predict a set that they were
not fitted to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from fasteraa.methods import Budget, Candidate, Expected
from fasteraa.methods.published import RACED_FINE_TUNING
from fasteraa.methods.task import Task
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.selection.schedule import REPEATS, trainings_of_rounds
from fasteraa.train.job import TrainJob
from fasteraa.train.runner import Runner
from fasteraa.train.split import Split

_FURTHEST = 3.0  # standard errors by which a prediction moves what was measured, at most, as in ranking
SHARED_NOISE = 0.5  # of the variance of a difference to `none`: that of `none`, which all differences have in common
_UNKNOWN = 1.0  # spread of what nothing is known about


@cache
def _prior() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("fasteraa.selection").joinpath("finetune_prior.json").read_text("utf-8"))
    return content


@cache
def _by_hash() -> dict[str, str]:
    return {named(name).hash: name for name in _prior()["effects"]}


def expected_effect(policy: Policy) -> Expected:
    """What a policy does to fine-tunings on average, and how that varies from set to set.

    Of a policy that was not measured elsewhere it is that of its number of operations.
    """
    prior, name = _prior(), _by_hash().get(policy.hash)
    if name is not None:
        return Expected(prior["effects"][name], math.hypot(prior["common"], prior["alone"]), prior["common"])
    line = prior["line"]
    effect = line["level"] + line["operations"] * operations_per_image(policy)
    return Expected(effect, math.hypot(prior["common"], prior["alone"], line["spread"]), prior["common"])


def operations_per_image(policy: Policy) -> float:
    """Operations that an image passes through, on average."""
    passes = sum(number * share for number, share in enumerate(policy.strength.passes))
    return passes * sum(often for _, often in policy.scaled().exposures())


def with_expected_effects(candidates: Sequence[Candidate]) -> list[Candidate]:
    """In the order in which a small budget keeps them: `none`, then the best on other sets."""
    none = [each for each in candidates if each.label == "none"]
    others = [_expecting(each) for each in candidates if each.label != "none"]
    return [*none, *sorted(others, key=lambda each: each.expected.effect if each.expected else 0.0)]


def _expecting(candidate: Candidate) -> Candidate:
    """Unless its method says what it expects. Of a schedule, as it is on average over the training."""
    if candidate.expected is not None:
        return candidate
    return replace(candidate, expected=expected_effect(candidate.policy.flattened()))


def methods_budget(left: Budget, task: Task, runner: Runner) -> Budget:
    """What a whole race of the usual candidates leaves over, for methods that train.

    What they learn from a few fine-tunings on few images is less than what these tell about the candidates.
    """
    count = sum(trainings_of_rounds(len(RACED_FINE_TUNING), REPEATS[0]))
    split = task.folds[0]
    assert isinstance(split, Split)
    cost = 0.0
    if left.trainings is None and math.isfinite(left.seconds):
        cost = count * runner.estimate([TrainJob("none", named("none"), task.recipe, task.seed, split)])
    return left.less(left.cost(cost, count))


# --- what was measured and what is expected, of all policies together -----------------------------------------------


def weighed_together(
    measured: Sequence[tuple[float, float]], expected: Sequence[Expected | None]
) -> list[tuple[float, float]]:
    """Means and spreads of differences to `none`, given what was measured (with its noise) and what is expected.

    By Bayes' rule for normal distributions. What no noise explains counts as it was measured.
    """
    means, noise = np.array(measured, dtype=float).reshape(-1, 2).T
    known = [each or Expected(0.0, _UNKNOWN) for each in expected]
    effects = np.array([each.effect for each in known])
    shared = np.array([each.shared for each in known])
    prior = np.outer(shared, shared)
    np.fill_diagonal(prior, [each.spread**2 for each in known])
    errors = SHARED_NOISE * np.outer(noise, noise)
    np.fill_diagonal(errors, noise**2)
    gain = prior @ np.linalg.inv(prior + errors)
    away = effects + gain @ (means - effects) - means
    away = np.clip(away, -_FURTHEST * noise, _FURTHEST * noise)
    variances = np.diag(prior - gain @ prior)
    return [(float(m), math.sqrt(max(v, 0.0))) for m, v in zip(means + away, variances, strict=True)]


def error_margin(error: float, images: int) -> float:
    """Points of error, measured on so many images, that say nothing: one standard error."""
    share = min(max(error / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / max(images, 1))
