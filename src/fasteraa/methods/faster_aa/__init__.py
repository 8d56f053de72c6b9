"""Faster AutoAugment (Hataya et al., 2019): a policy found by backpropagation, against a critic.

`run` is the loop, `step` one update of critic and policy, `objective` what they are after, as pure functions.
"""

from __future__ import annotations

import math
import time

from fasteraa.data import ImageSet
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.files import NAME, GradientFiles
from fasteraa.methods.method import Budget, Candidate, Method
from fasteraa.methods.task import Task
from fasteraa.runtime.device import find_device
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.train.runner import Runner

_SIDE = {"cpu": 32, "cuda": 64}  # of the images that a critic sees, where a large network is fine-tuned


class FasterAA(Method):
    """What the critic lets pass: the found policy at several strengths, as it was halfway, and where it began."""

    name = NAME

    def check(self, config: SearchConfig) -> None:
        from fasteraa.methods.faster_aa.run import check_critic

        check_critic(config)

    def check_resumable(self, folder: RunFolder, config: SearchConfig) -> None:
        from fasteraa.methods.faster_aa.run import check_resumable

        check_resumable(GradientFiles(folder.path), config)

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        from fasteraa.methods.faster_aa.run import gradient_search

        result = gradient_search(
            _small_enough(task),
            task.config,
            out=task.folder.path if task.folder else None,
            resume=task.resume,
            device=task.device,
            seconds=max(task.until - time.time(), 0.0) if task.until < math.inf else math.inf,
            progress=task.progress,
            ranks=task.ranks,
        )
        done = f"{len(result.epochs)} of {result.planned} epochs"
        if not result.finished:
            task.say(f"the gradient search ended early, after {done}")
        policies = {
            "faster-aa": result.policy,
            "faster-aa-mild": result.policy.with_strength(magnitude=0.5, probability=0.5),
            "faster-aa-x2": result.policy.with_strength(2),
            "faster-aa-start": result.start,
            "faster-aa-halfway": result.halfway,
        }
        origin = result.policy.provenance
        details = {"epochs": result.epochs, "finished": result.finished, "done": done, "origin": origin}
        return [
            Candidate(label, policy, details=details if label == self.name else {})
            for label, policy in policies.items()
            if policy is not None
        ]


def _small_enough(task: Task) -> ImageSet:
    """Images of a fine-tuning are large: the critic sees them smaller, unless a network was named for it.

    The network that is fine-tuned sees them at the size of its input.
    """
    if task.config.critic_weights is not None and task.config.critic == task.recipe.network and task.recipe.input_size:
        return task.data if min(task.data.size) <= task.recipe.input_size else task.data.resized(task.recipe.input_size)
    most = _SIDE["cpu" if find_device(task.device).type == "cpu" else "cuda"]
    if not task.recipe.fine_tunes or task.config.critic != "auto" or min(task.data.size) <= most:
        return task.data
    task.say(f"the critic sees the images at {most} pixels (--critic NAME: at their size)")
    return task.data.resized(most)
