"""Learning rate and weight decay from a grid: on held-out training images, without a policy."""

from dataclasses import replace

import pytest

from fasteraa.errors import RunError
from fasteraa.policy.named import named
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import Split
from fasteraa.train.tune import grid, tuned

from .conftest import levels

RECIPE = TrainRecipe(network="small", epochs=2, learning_rate=0.1, weight_decay=1e-3)


def by_recipe(job):
    """Best with three times the rate and ten times the decay."""
    recipe = job.recipe
    loss = 1 + abs(recipe.learning_rate - 0.3) + 10 * abs(recipe.weight_decay - 1e-2)
    return {"error": 10 * loss, "held_out_loss": loss, "train_loss": 0.1}


@pytest.fixture
def split():
    return Split(levels(40, apart=115), replace(levels(20, apart=115), name="test"), "test images")


def test_the_best_rate_and_decay_are_taken_for_all(split, tmp_path):
    runner, said = ScriptedRunner(RunCache(tmp_path).open(), by_recipe), []
    best = tuned(runner, split, RECIPE, said.append, rates_only=False)
    assert (best.learning_rate, best.weight_decay) == (pytest.approx(0.3), pytest.approx(1e-2))
    assert replace(best, learning_rate=0.1, weight_decay=1e-3) == RECIPE
    assert len(runner.trained) == 6
    assert "learning rate 0.3, weight decay 0.01, by the loss on 10 held-out training images" in said[-1]
    assert tuned(runner, split, RECIPE, said.append, rates_only=False) == best
    assert len(runner.trained) == 6  # it is kept in the run


def test_no_test_image_and_no_policy_takes_part(split, tmp_path):
    runner = ScriptedRunner(RunCache(tmp_path).open(), by_recipe)
    tuned(runner, split, RECIPE, print, rates_only=False)
    known = split.train.images.flatten(1).unique(dim=0).tolist()
    for job in runner.trained:
        assert job.policy.hash == named("none").hash
        assert all(row in known for row in job.split.held_out.images.flatten(1).tolist())
        assert (len(job.split.train), len(job.split.held_out)) == (30, 10)


def test_the_rate_alone(split, tmp_path):
    runner = ScriptedRunner(RunCache(tmp_path).open(), by_recipe)
    best = tuned(runner, split, RECIPE, print)
    assert (best.learning_rate, best.weight_decay) == (pytest.approx(0.3), 1e-3)
    assert len(runner.trained) == 3


def test_of_fine_tunings_the_rates_alone_are_tuned():
    recipes = grid(replace(RECIPE, pretrained=True))
    assert [each.weight_decay for each in recipes] == [1e-3] * 3
    assert recipes[0].learning_rate == 0.1  # that which is given first: of equal losses it stays


def test_rates_that_diverge_are_left_out(split, tmp_path):
    def half(job):
        return {"diverged": "the loss was not finite"} if job.recipe.learning_rate > 0.2 else by_recipe(job)

    assert tuned(ScriptedRunner(RunCache(tmp_path / "a").open(), half), split, RECIPE, print).learning_rate == 0.1
    runner = ScriptedRunner(RunCache(tmp_path / "b").open(), lambda job: {"diverged": "the loss was not finite"})
    with pytest.raises(RunError, match="no learning rate of the grid worked"):
        tuned(runner, split, RECIPE, print)
