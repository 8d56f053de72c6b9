"""Who takes part in a comparison: rows with a label and one or more policies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fasteraa.errors import ConfigError
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.policy.resolve import load_policy
from fasteraa.runtime.documents import quoted
from fasteraa.train.job import TrainJob, make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Split

YARDSTICKS = ("none", "trivialaugment-wide")  # what every policy is compared with
NO_POLICY = "no policy was given; for example: none,trivialaugment-wide,uniform,runs/search/policy.json"


@dataclass(frozen=True)
class Contender:
    """A row of the table: a label and its policies; run number i takes the i-th, over and over."""

    label: str
    policies: tuple[Policy, ...]
    learning_rate: float | None = None  # that was chosen for it; None: the recipe's

    def policy(self, number: int) -> Policy:
        """The policy of run `number`."""
        return self.policies[number % len(self.policies)]

    def recipe(self, recipe: TrainRecipe) -> TrainRecipe:
        """With its own learning rate, if it has one."""
        return recipe if self.learning_rate is None else replace(recipe, learning_rate=self.learning_rate)

    @property
    def search_seconds(self) -> float | None:
        """What finding one of them took, race and all, if they were found."""
        seconds = [_seconds_of(policy.provenance) for policy in self.policies]
        recorded = [each for each in seconds if each is not None]
        return sum(recorded) / len(recorded) if recorded else None


def _seconds_of(provenance: Mapping[str, Any]) -> float | None:
    """Of a search and, where it ended with one, of its race; a file from elsewhere may say anything."""
    of_race = provenance.get("race", provenance.get("calibration", {}))  # version 0.1 called it calibration
    race = of_race.get("seconds", 0.0) if isinstance(of_race, Mapping) else 0.0
    both = (provenance.get("seconds"), race)
    return sum(both) if all(isinstance(each, int | float) for each in both) else None  # type: ignore[arg-type]


def parse_contenders(given: str | Sequence[str | Policy], seeds: int) -> list[Contender]:
    """`none,trivialaugment-wide,randaugment(2,14),runs/a,found=runs/a+runs/b`, or a list of such and of policies."""
    parts = split_names(given) if isinstance(given, str) else list(given)
    if not parts:
        raise ConfigError(NO_POLICY)
    contenders = [_of_policy(part) if isinstance(part, Policy) else _contender(part, seeds) for part in parts]
    labels = [each.label for each in contenders]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"the policy {label!r} was given twice; name one of them: OTHER={label}")
    return contenders


def _of_policy(policy: Policy) -> Contender:
    contender = Contender(policy.name, (policy,))
    _check_label(contender, policy.name)
    return contender


def split_names(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _contender(text: str, seeds: int) -> Contender:
    if not isinstance(text, str):
        raise ConfigError(f"a policy is a name, the path of a file as text, or a Policy, got {quoted(text)}")
    label, equals, paths = text.partition("=")
    if equals and "(" not in label and not Path(text).exists():
        contender = Contender(label.strip(), _policies([path.strip() for path in paths.split("+")], seeds))
        _check_label(contender, text)
        return contender
    policies, name = _policies([text], seeds), text.lower()
    return Contender(name if name in ("random", policies[0].name) else text, policies)  # a name has one spelling


def _policies(names: Sequence[str], seeds: int) -> tuple[Policy, ...]:
    """Of the runs, in their order. `random` is a new one for every run: one alone says little about the rest."""
    if not any(map(_is_random, names)):
        return tuple(map(load_policy, names))
    runs = [(number, names[number % len(names)]) for number in range(max(seeds, len(names)))]
    return tuple(named("random", seed=number) if _is_random(name) else load_policy(name) for number, name in runs)


def _is_random(name: str) -> bool:
    return name.lower() == "random"


def _check_label(contender: Contender, text: str) -> None:
    """Rows are compared with those of the yardsticks, which are found by their labels."""
    label = contender.label
    if not label:
        raise ConfigError(f"a row needs a label before the equals sign, got {text!r}")
    if label in YARDSTICKS and any(policy.hash != named(label).hash for policy in contender.policies):
        raise ConfigError(f"{label!r} is what others are compared with, not a label for another policy, got {text!r}")


def jobs_of(contenders: Sequence[Contender], recipe: TrainRecipe, seeds: Sequence[int], split: Split) -> list[TrainJob]:
    """Seed by seed, so that a table cut short is a fair one."""
    return [
        make_job(contender.label, contender.policy(number), contender.recipe(recipe), seed, split)
        for number, seed in enumerate(seeds)
        for contender in contenders
    ]
