"""The learning rate from a small grid, on held-out training images: for each policy in the same way, or on `none`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fasteraa.comparison.contenders import Contender
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.train.job import TrainJob, make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Runner, Say, run_jobs
from fasteraa.train.split import Split

FACTORS = (1 / 3, 1.0, 3.0)  # of the recipe's learning rate
_KEPT = 0.75  # of the training images that are trained on, to choose


def tuned(runner: Runner, split: Split, recipe: TrainRecipe, say: Say, seed: int = 0) -> TrainRecipe:
    """The recipe with the rate of the lowest loss without a policy; test images are not looked at."""
    (rate,) = _best_rates(runner, split, recipe, {"none": named("none")}, say, seed).values()
    return replace(recipe, learning_rate=rate)


def tuned_each(
    runner: Runner, split: Split, recipe: TrainRecipe, contenders: Sequence[Contender], say: Say, seed: int = 0
) -> list[Contender]:
    """Every contender with the rate that is best for its policy, of several for the first."""
    policies = {each.label: each.policy(0) for each in contenders}
    rates = _best_rates(runner, split, recipe, policies, say, seed)
    return [replace(each, learning_rate=rates[each.label]) for each in contenders]


def _best_rates(
    runner: Runner, split: Split, recipe: TrainRecipe, policies: dict[str, Policy], say: Say, seed: int
) -> dict[str, float]:
    if not isinstance(split.train, ImageSet):
        raise ConfigError("the learning rate is tuned on images in memory: take a --subset, or a smaller --size")
    train, held_out = split.train.split(_KEPT, seed)
    part = Split(train, held_out, "25% of the training images")
    recipes = [replace(recipe, learning_rate=factor * recipe.learning_rate) for factor in FACTORS]
    jobs = {
        label: [make_job(f"{label}-lr-{each.learning_rate:.3g}", policy, each, seed, part) for each in recipes]
        for label, policy in policies.items()
    }
    outcomes = run_jobs(runner, [job for some in jobs.values() for job in some])

    def best(label: str, some: Sequence[TrainJob]) -> float:
        sound = [(outcomes[job.key].loss, job) for job in some if not outcomes[job.key].failed]
        if not sound:
            raise RunError(
                f"no learning rate of the grid worked for {label}: every training diverged; give a smaller one (--lr)"
            )
        _, chosen = min(sound, key=lambda pair: pair[0])
        losses = ", ".join(f"{job.recipe.learning_rate:.3g} (loss {loss:.3f})" for loss, job in sound)
        rate = chosen.recipe.learning_rate
        say(f"{label}: learning rate {rate:.3g}, of {losses}, on {len(held_out)} held-out training images")
        return rate

    return {label: best(label, some) for label, some in jobs.items()}
