"""Every method that trains, from images to a policy: one operation ruins these images, one helps, one does nothing.

Dark or bright images under much noise, few of them: networks learn the noise by heart. `contrast` turns the noise and
keeps the mean, so it helps (half of the errors in longer trainings). `invert` makes dark images bright ones, and
`equalize` changes next to nothing. In tens of trainings all find out what harms, over any seed that was tried. What
helps only op-effects finds out, which fits all trainings together: of the others it is only asked to be commoner than
what harms.
"""

from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pytest
import torch

from fasteraa.data import ImageSet
from fasteraa.methods import METHODS, Budget, Method
from fasteraa.methods.autoaugment import AutoAugment, AutoAugmentSettings
from fasteraa.methods.dada import Dada, DadaSettings
from fasteraa.methods.fast_aa import FastAA, FastAASettings
from fasteraa.methods.op_effects import OpEffects, exposures
from fasteraa.methods.pba import PbaSettings, PopulationBased
from fasteraa.methods.randaugment import RandAugmentGrid, RandAugmentSettings
from fasteraa.methods.random import RandomSearch, RandomSettings
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner

from .planted import task_of

pytestmark = pytest.mark.expensive
HARMFUL, HELPFUL, IDLE = OPERATIONS = ("invert", "contrast", "equalize")
CHANCE = 1 / 3


@dataclass(frozen=True)
class Case:
    method: Method
    trainings: int
    epochs: int = 8
    helps: bool = False  # whether it also finds out what helps


CASES = {
    "op-effects": Case(OpEffects(), 36, helps=True),
    "random": Case(RandomSearch(RandomSettings(policies=60)), 60),
    # the published rate is one for thousands of trainings
    "autoaugment": Case(AutoAugment(AutoAugmentSettings(units=20, learning_rate=0.02)), 40),
    "pba": Case(PopulationBased(PbaSettings(trials=8, interval=1)), 16, epochs=12),
    # trained without a policy, its networks can only say what leaves images as they are
    "fast-aa": Case(FastAA(FastAASettings(trials=40, passes=1, kept=4)), 60),
    "dada": Case(Dada(DadaSettings(network="small", batch_size=16, epochs=60, policy_rate=0.05, kept=1)), 300),
}


def noisy_levels(count=90, side=8, apart=20, noise=60):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    level = np.where(labels == 0, 127.5 - apart / 2, 127.5 + apart / 2)[:, None, None, None]
    images = np.clip(level + rng.normal(0, noise, (count, 3, side, side)), 0, 255).astype(np.uint8)
    return ImageSet.of(torch.from_numpy(images), torch.from_numpy(labels).long(), ("dark", "bright"), "noisy levels")


def candidates_of(method, trainings, folder, ops=OPERATIONS, epochs=8, seed=0):
    recipe = TrainRecipe(
        network="small", epochs=epochs, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False
    )
    task = task_of(ops, seed=seed, data=noisy_levels(), recipe=recipe, crop=0.0, flip=False)
    with LocalRunner(RunCache(folder).open(), device="cpu", jobs=1) as runner:
        return method.candidates(task, Budget(trainings=trainings), runner)


def share(candidate, op):
    """Of all that augments an image: the mean over the policy and its versions on folds, which come of more images."""
    policies = [each.flattened() for each in (candidate.policy, *candidate.on_folds.values())]
    met = [exposures(each)[0] for each in policies]
    return fmean(each.get(op, 0.0) / (sum(each.values()) or 1.0) for each in met)


def test_every_method_that_trains_is_here():
    train = {name for name in METHODS.names() if METHODS.load(name).trains}
    assert train == {*CASES, "randaugment"}


@pytest.mark.parametrize("name", CASES)
def test_what_harms_is_rarer_than_by_chance(name, tmp_path):
    case = CASES[name]
    best = candidates_of(case.method, case.trainings, tmp_path, epochs=case.epochs)[0]
    assert share(best, HARMFUL) < 0.8 * CHANCE
    assert share(best, HELPFUL) > 1.5 * share(best, HARMFUL)
    if case.helps:
        assert share(best, HELPFUL) > 1.1 * share(best, IDLE)


def test_the_grid_of_randaugment_finds_how_much(tmp_path):
    """It has no choice of operations. Solarized at magnitude 27 of 30, bright images are dark ones."""
    method = RandAugmentGrid(RandAugmentSettings(n=(1,), m=(3, 27)))
    best, second = candidates_of(method, 6, tmp_path, ops=("solarize",))
    assert [each.policy.name for each in (best, second)] == ["randaugment-1-3", "randaugment-1-27"]
