"""A training as data: what to train with, on which images, from which seed; and what came of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.documents import quoted
from fasteraa.train.metrics import LARGEST
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Split


@dataclass(frozen=True)
class TrainJob:
    """One training. Its key is the cache's key, so nothing runs twice; the label is for people."""

    label: str
    policy: Policy
    recipe: TrainRecipe
    seed: int
    split: Split
    keep_network: bool = False  # its weights, too, as `RunCache.network` names them; no part of the key
    epochs: tuple[int, int] | None = None  # a part of the recipe's schedule, from and up to an epoch; None: all of it
    after: str = ""  # the key of the job whose state it continues; a part leaves its own for others (`RunCache.state`)

    def __post_init__(self) -> None:
        if self.epochs is None:
            if self.after:
                raise ConfigError(f"a whole training continues no other, got after = {self.after!r}")
            return
        first, last = self.epochs
        if not 0 <= first < last <= self.recipe.epochs:
            raise ConfigError(f"a part of {self.recipe.epochs} epochs must be some of them, got {first} to {last}")
        if bool(first) != bool(self.after):
            raise ConfigError(f"a part from epoch {first} on continues {'another' if first else 'no other'} training")

    @cached_property
    def key(self) -> str:
        """Whatever would change the outcome: of a part also which part, and all that was before."""
        train, held_out = self.split.fingerprints
        parts = [train, held_out, self.policy.hash, self.recipe.key, self.seed]
        if self.epochs is not None:
            parts += [*self.epochs, self.after]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def part(self) -> tuple[int, int]:
        """The epochs that it trains, from and up to."""
        return self.epochs or (0, self.recipe.epochs)

    @property
    def share(self) -> float:
        """Of a whole training."""
        first, last = self.part
        return (last - first) / self.recipe.epochs

    @property
    def image_epochs(self) -> int:
        """Images that pass through the network: what a training costs is proportional to it."""
        first, last = self.part
        return len(self.split.train) * (last - first)

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


def make_job(label: str, policy: Policy, recipe: TrainRecipe, seed: int, split: Split) -> TrainJob:
    """The recipe's cutout follows every policy but `none`; `cutout` is that alone. What they do counts, not a name."""
    if policy.hash == named("none").hash:
        recipe = replace(recipe, cutout=0)
    elif recipe.cutout and policy.hash == named("cutout").hash:
        policy = named("none")
    return TrainJob(label, policy, recipe, seed, split)


@dataclass(frozen=True)
class Outcome:
    """What came of a training. One that failed has no error; ask `failed` first."""

    error: float  # % of the held-out images
    loss: float  # on them, at the temperature that suits the network best
    train_loss: float  # mean of the last epoch
    seconds: float  # of training, its own share where several shared a device
    failed: str | None = None  # why it failed
    record: Mapping[str, Any] = field(default_factory=dict)  # all that is kept of it, as in its file
    balanced_error: float = math.nan  # % of each class, mean over the classes
    balanced_loss: float = math.nan

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Outcome:
        """From the record of a run; KeyError, TypeError or ValueError if it cannot be one."""
        together = _number(record, "together", 1, LARGEST, 1)
        whole = _number(record, "seconds", 0, LARGEST)
        seconds = _number(record, "share_seconds", 0, LARGEST, whole / together)
        if "diverged" in record:
            if not isinstance(record["diverged"], str):
                raise TypeError(f"diverged must be text, got {quoted(record['diverged'], 60)}")
            return cls(math.nan, math.nan, math.nan, seconds, record["diverged"], record)
        return cls(
            _number(record, "error", 0, 100),
            _number(record, "held_out_loss", 0, LARGEST, math.nan),
            _number(record, "train_loss", 0, LARGEST, math.nan),
            seconds,
            None,
            record,
            _number(record, "balanced_error", 0, 100, math.nan),
            _number(record, "balanced_loss", 0, LARGEST, math.nan),
        )

    def by(self, metric: str) -> tuple[float, float]:
        """Error in % and loss, as the metric counts images: alike, or each class alike."""
        if metric != "balanced-error":
            return self.error, self.loss
        if math.isnan(self.balanced_error):
            raise RunError(
                "a training in the folder was measured without balanced errors: choose another folder (--out)"
            )
        return self.balanced_error, self.balanced_loss


def _number(record: Mapping[str, Any], name: str, low: float, high: float, without: float | None = None) -> float:
    """A finite one; `without` stands for what an old record does not hold."""
    if without is not None and name not in record:
        return without
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {quoted(value, 60)}")
    if not low <= value <= high:  # which a NaN is not, either
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {quoted(value, 60)}")
    return float(value)
