"""What a race was planned to be, kept from its beginning on: one that was stopped goes on as the same race.

The plan follows from seconds that were measured, and those would be others the next time.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fasteraa.errors import RunError
from fasteraa.search.folder import RunFolder


@dataclass(frozen=True)
class Round:
    """Runs of the candidates that are left."""

    runs: int
    epochs: int
    seconds: float | None = None  # None until it is over

    def __post_init__(self) -> None:
        whole = type(self.runs) is int and type(self.epochs) is int and min(self.runs, self.epochs) > 0
        if not whole or (self.seconds is not None and not 0 <= self.seconds < math.inf):
            raise ValueError(f"{self.runs} runs of {self.epochs} epochs in {self.seconds} seconds")

    @property
    def epoch_seconds(self) -> float:
        """Of one run."""
        return (self.seconds or 0.0) / (self.runs * self.epochs)


@dataclass
class Plan:
    """A race and the rounds it has come to; whatever changes it writes it to its file."""

    file: Path
    of: str  # a hash of what it was made for; for anything else there is another race
    images: int
    image_seconds: float  # of one run in an epoch, as measured before the race
    candidates: tuple[str, ...] = ()
    heats: tuple[int, ...] = ()  # trainings of a candidate in each round
    seeds: tuple[int, ...] = ()  # of those trainings, one after the other
    epochs: int = 0
    setup_seconds: float = 0.0
    experiment: Round | None = None  # before the race: which operations help?
    rounds: list[Round] = field(default_factory=list)
    minutes: float = 0.0  # that it was given
    over: bool = False  # a race that is over may be run anew with more time, one that was stopped goes on

    @property
    def seconds(self) -> float:
        """What it has taken, a round that is not over left out."""
        return self.setup_seconds + sum(each.seconds or 0.0 for each in (self.experiment, *self.rounds) if each)

    def begin(self, runs: int, epochs: int) -> None:
        """A round, with what it will be."""
        self.rounds.append(Round(runs, epochs))
        self.save()

    def end(self, seconds: float) -> None:
        """The last round."""
        self.rounds[-1] = replace(self.rounds[-1], seconds=seconds)
        self.save()

    def save(self) -> None:
        content = {name: value for name, value in asdict(self).items() if name != "file"}
        RunFolder(self.file.parent).write(self.file, json.dumps(content, indent=1) + "\n")


def read_plan(file: Path, of: str) -> Plan | None:
    """None if there is none, or one of another race."""
    if not file.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["of"] != of:  # that of another version may have other fields
            return None
        content["rounds"] = [Round(**each) for each in content["rounds"]]
        content["experiment"] = None if content["experiment"] is None else Round(**content["experiment"])
        content |= {name: tuple(content.get(name, ())) for name in ("candidates", "heats", "seeds")}
        plan = Plan(file, **content)
        if len(plan.seeds) != sum(plan.heats) or len(plan.rounds) > len(plan.heats):
            raise ValueError(f"{len(plan.seeds)} seeds for {sum(plan.heats)} trainings, {len(plan.rounds)} rounds")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(f"the plan {str(file)!r} cannot be read ({error}): remove it to plan the race anew") from error
    return plan
