"""Policies that people use without a search: no augmentation, TrivialAugment, RandAugment, AutoAugment, and ours."""

from __future__ import annotations

from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.task import Task
from fasteraa.policy.named import RACED, RACED_FINE_TUNING, named
from fasteraa.train.runner import Runner


class Published(Method):
    """Every policy of `fasteraa show --list` that races by default; with a choice of operations, those of these."""

    name = "published"

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        ops, raced = task.config.ops, RACED_FINE_TUNING if task.recipe.fine_tunes else RACED
        policies = {name: named(name, **({"ops": ops} if ops and settings else {})) for name, settings in raced.items()}
        return [
            Candidate(name, policy) for name, policy in policies.items() if ops is None or set(policy.ops) <= set(ops)
        ]
