"""Learning rate and weight decay from a small grid, on held-out training images and without a policy.

The same for every policy: what a policy gains over a baseline that nobody tuned may be the tuning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.train.job import Outcome, TrainJob, make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Runner, Say, run_jobs
from fasteraa.train.split import Split

RATES = (1 / 3, 1.0, 3.0)  # times the recipe's learning rate
DECAYS = (1.0, 10.0)  # times its weight decay: few images want more of it
_KEPT = 0.75  # of the training images that are trained on, to choose


def tuned(
    runner: Runner,
    split: Split,
    recipe: TrainRecipe,
    say: Say,
    seed: int = 0,
    rates_only: bool = True,
    policy: Policy | None = None,
) -> TrainRecipe:
    """The recipe with what had the lowest loss; test images are not looked at. Of fine-tunings the rates alone.

    Without a policy, unless one is given.
    """
    jobs = tuning_jobs(split, recipe, seed, rates_only, policy)
    best = best_of(run_jobs(runner, jobs), jobs, say, rates_only)  # without the cutout, which follows policies alone
    return with_rates_of(recipe, best)


def with_rates_of(recipe: TrainRecipe, best: TrainRecipe) -> TrainRecipe:
    return replace(recipe, learning_rate=best.learning_rate, weight_decay=best.weight_decay)


def tuning_jobs(
    split: Split, recipe: TrainRecipe, seed: int = 0, rates_only: bool = False, policy: Policy | None = None
) -> list[TrainJob]:
    """One for every recipe of the grid."""
    if not isinstance(split.train, ImageSet):
        raise ConfigError("the learning rate is tuned on images in memory: take a --subset, or a smaller --size")
    train, held_out = split.train.split(_KEPT, seed)
    part = Split(train, held_out, "25% of the training images")
    recipes = grid(recipe, rates_only)
    policy = policy or named("none")
    return [make_job(f"{policy.name}, {_words(each, rates_only)}", policy, each, seed, part) for each in recipes]


def grid(recipe: TrainRecipe, rates_only: bool = False) -> list[TrainRecipe]:
    """The recipes to choose from, that which is given first."""
    decays = (1.0,) if rates_only or recipe.fine_tunes else DECAYS
    pairs = sorted(((rate, decay) for rate in RATES for decay in decays), key=lambda pair: pair != (1.0, 1.0))
    return [
        replace(recipe, learning_rate=rate * recipe.learning_rate, weight_decay=decay * recipe.weight_decay)
        for rate, decay in pairs
    ]


def best_of(
    outcomes: Mapping[str, Outcome], jobs: Sequence[TrainJob], say: Say, rates_only: bool = False
) -> TrainRecipe:
    """Of the jobs' recipes that with the lowest loss on the images that they hold out."""
    sound = [
        (outcomes[job.key].loss, job.recipe) for job in jobs if job.key in outcomes and not outcomes[job.key].failed
    ]
    if not sound:
        raise RunError("no learning rate of the grid worked: every training diverged; give a smaller one (--lr)")
    _, best = min(sound, key=lambda pair: pair[0])
    losses = ", ".join(f"{_words(each, rates_only)}: {loss:.3f}" for loss, each in sound)
    count = len(jobs[0].split.held_out)
    say(f"{_words(best, rates_only)}, by the loss on {count} held-out training images ({losses})")
    return best


def _words(recipe: TrainRecipe, rates_only: bool) -> str:
    rate = f"learning rate {recipe.learning_rate:.3g}"
    return rate if rates_only else f"{rate}, weight decay {recipe.weight_decay:.3g}"
