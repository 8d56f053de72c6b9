"""Policies that people use without a search: no augmentation, TrivialAugment, RandAugment, AutoAugment, and ours."""

from __future__ import annotations

from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.task import Task
from fasteraa.policy.named import named
from fasteraa.train.runner import Runner

# What races by default, and whether it can be made of a choice of operations: of the policies that were measured on
# seventeen sets (results/adapt), those without which the best of the rest does worse; what people use; and what races
# on other sets chose (results/unseen).
RACED = {
    "none": False,
    "randaugment-2-9": False,
    "general-mild": True,
    "trivialaugment-wide": False,
    "uniform-x2": True,
    "general-or-trivial": True,
    "general": True,
    "autoaugment-cifar10": False,
    "randaugment-2-14": False,
    "uniform": True,
    "color-ops-x2": False,
    "randaugment-3-14": False,
    "uniform-half": True,
    "autoaugment-svhn": False,
    "autoaugment-imagenet": False,
}


# What races where a pretrained network is fine-tuned, the likeliest first: crop and flip come with every training.
RACED_FINE_TUNING = {
    "none": False,
    "trivialaugment-wide": False,
    "randaugment-m9": False,
    "three-augment": False,
    "general-mild": True,
    "uniform-half": True,
    "general-or-trivial": True,
    "uniform-x2": True,
}


class PublishedPolicies(Method):
    """Every policy of `fasteraa show --list` that races by default; with a choice of operations, those of these."""

    name = "published"

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        ops, raced = task.config.ops, RACED_FINE_TUNING if task.recipe.fine_tunes else RACED
        policies = {name: named(name, **({"ops": ops} if ops and settings else {})) for name, settings in raced.items()}
        return [
            Candidate(name, policy) for name, policy in policies.items() if ops is None or set(policy.ops) <= set(ops)
        ]
