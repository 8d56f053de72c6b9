"""One training with one policy: a single run of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasteraa.comparison.contenders import jobs_of, parse_contenders
from fasteraa.comparison.setup import set_up
from fasteraa.comparison.table import has_seen
from fasteraa.data.large import reporting
from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.policy import Policy
from fasteraa.runtime.progress import Progress, Silent
from fasteraa.runtime.ranks import launched
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Engine, run_jobs


@dataclass(frozen=True)
class Evaluation:
    """What came of it."""

    job: TrainJob
    outcome: Outcome
    has_seen: bool  # the policy was made with images that it is measured on

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        job, outcome = self.job, self.outcome
        numbers = {name: getattr(outcome, name) for name in ("error", "loss", "train_loss", "seconds")}
        about = {"label": job.label, "policy": job.policy.hash, "seed": job.seed, "network": job.recipe.network}
        return {**about, "epochs": job.recipe.epochs, **numbers, "has_seen": self.has_seen}

    def sentence(self) -> str:
        split, recipe = self.job.split, self.job.recipe
        return (
            f"{self.job}: {self.outcome.error:.2f}% errors on {len(split.held_out)} images ({split.name}), "
            f"{recipe.network_words} trained for {epochs_words(recipe.epochs)} in {self.outcome.seconds:.0f} s"
        )


def run_evaluation(
    source: Any,
    policy: str | Policy,
    folder: Path,
    seed: int,
    device: str = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """`settings` are those of `set_up`."""
    say = (progress or Silent()).say
    contenders = parse_contenders(policy if isinstance(policy, str) else [policy], seed + 1)
    if len(contenders) > 1:
        raise ConfigError(f"evaluate takes one policy, got {policy!r}; fasteraa compare takes several")
    trainer = Engine(device=device, jobs=None if launched() else 1)
    with reporting(say), set_up(source, folder, trainer, **settings) as setup:
        job = jobs_of(contenders, setup.recipe, range(seed + 1), setup.split)[-1]
        if setup.ranks.is_first:
            say(setup.words(1))
            outcome = run_jobs(setup.runner, [job], say, estimate=progress is not None)[job.key]
            setup.tell_end(outcome)
        else:
            outcome = setup.train_along()
    if outcome.failed:
        raise RunError(f"{job}: {outcome.failed}; lower the learning rate (--lr)")
    return Evaluation(job, outcome, has_seen(contenders[0], setup.split))
