"""The learning rate from a small grid, on held-out training images and without a policy: the same for every policy."""

from __future__ import annotations

from dataclasses import replace

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.named import named
from fasteraa.train.job import make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.runner import Runner, Say, run_jobs
from fasteraa.train.split import Split

FACTORS = (1 / 3, 1.0, 3.0)  # of the recipe's learning rate
_KEPT = 0.75  # of the training images that are trained on, to choose


def tuned(runner: Runner, split: Split, recipe: TrainRecipe, say: Say, seed: int = 0) -> TrainRecipe:
    """The recipe with the rate of the lowest loss; test images are not looked at."""
    if not isinstance(split.train, ImageSet):
        raise ConfigError("the learning rate is tuned on images in memory: take a --subset, or a smaller --size")
    train, held_out = split.train.split(_KEPT, seed)
    part = Split(train, held_out, "25% of the training images")
    recipes = [replace(recipe, learning_rate=factor * recipe.learning_rate) for factor in FACTORS]
    jobs = [make_job(f"none-lr-{each.learning_rate:.3g}", named("none"), each, seed, part) for each in recipes]
    outcomes = run_jobs(runner, jobs)
    sound = [
        (outcomes[job.key].loss, each) for job, each in zip(jobs, recipes, strict=True) if not outcomes[job.key].failed
    ]
    if not sound:
        raise RunError("no learning rate of the grid worked: every training diverged; give a smaller one (--lr)")
    _, best = min(sound, key=lambda pair: pair[0])
    losses = ", ".join(f"{each.learning_rate:.3g} (loss {value:.3f})" for value, each in sound)
    say(f"learning rate {best.learning_rate:.3g}, of {losses}, on {len(held_out)} held-out training images")
    return best
