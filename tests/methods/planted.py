"""What tests of methods that train share: a task of few images, and trainings whose outcome is known."""

from fasteraa.methods.config import SearchConfig
from fasteraa.methods.op_effects import exposures
from fasteraa.methods.task import Task
from fasteraa.runtime.progress import Silent
from fasteraa.testing.runners import ScriptedRunner
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.split import fold_splits

from ..train.conftest import planted

OPERATIONS = ("rotate", "invert", "brightness", "sharpness")
RECIPE = TrainRecipe(network="small", epochs=4, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def task_of(ops=OPERATIONS, seed=0, data=None, recipe=RECIPE, folds=3, **settings):
    """On images of which the left half is bright or the right half: to invert them makes each class the other."""
    data = data or planted(90)
    config = SearchConfig(ops=ops, seed=seed, **settings)
    return Task(data, config, "cpu", recipe, tuple(fold_splits(data, folds, seed)), progress=Said())


def harmful_and_helpful(job):
    """To invert does harm, to rotate helps; each fold has a level of its own."""
    met = exposures(job.policy)[0]
    level = {"fold 1": 0.6, "fold 2": 0.9, "fold 3": 1.2}[job.split.name]
    loss = level + 0.4 * met.get("invert", 0.0) - 0.2 * met.get("rotate", 0.0)
    return {"error": 40 * loss, "held_out_loss": loss, "train_loss": 0.1}


def scripted(folder, script=harmful_and_helpful, **options):
    return ScriptedRunner(RunCache(folder).open(), script, **options)


def dose(policy, op):
    """How often an image is augmented by an operation."""
    return exposures(policy)[0].get(op, 0.0)


def summary(candidates):
    return [(each.label, each.policy.hash, {f: p.hash for f, p in each.on_folds.items()}) for each in candidates]
