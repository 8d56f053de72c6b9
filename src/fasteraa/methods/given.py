"""Candidates that somebody brings: the method of `fasteraa.race`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.task import Task
from fasteraa.train.runner import Runner


@dataclass
class Given(Method):
    """As they are."""

    given: Sequence[Candidate]
    name: str = field(default="given", init=False)

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        return list(self.given)
