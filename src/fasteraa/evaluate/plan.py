"""What a race was planned to be, kept from its beginning on: one that was stopped goes on as the same race.

The plan follows from seconds that were measured, and those would be others the next time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fasteraa.errors import RunError
from fasteraa.search.folder import RunFolder


@dataclass(frozen=True)
class Round:
    """Runs of one fold, or of all of them."""

    runs: int
    epochs: int
    seconds: float | None = None  # None until it is over

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
    repeats: int = 1  # folds of a round: one after the other, or all every time
    seeds: tuple[int, ...] = ()  # of the trainings on each fold of each round
    epochs: int = 0
    setup_seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """What it has taken, a round that is not over left out."""
        return self.setup_seconds + sum(each.seconds or 0.0 for each in self.rounds)

    def begin(self, runs: int, epochs: int) -> None:
        """A round, with what it will be."""
        self.rounds.append(Round(runs, epochs))
        self.save()

    def end(self, seconds: float) -> None:
        """The last round."""
        self.rounds[-1] = replace(self.rounds[-1], seconds=seconds)
        self.save()

    def check(self, folds: int) -> None:
        """That it is one for so many folds, as it is unless somebody changed the file."""
        if self.repeats not in (1, folds) or len(self.seeds) != folds * self.repeats:
            raise _unreadable(self.file, f"{len(self.seeds)} seeds for {folds} rounds of {self.repeats} folds")

    def save(self) -> None:
        content = {name: value for name, value in asdict(self).items() if name != "file"}
        RunFolder(self.file.parent).write(self.file, json.dumps(content, indent=1) + "\n")


def read_plan(file: Path, of: str) -> Plan | None:
    """None if there is none, or one of another race."""
    if not file.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        content["rounds"] = [Round(**each) for each in content["rounds"]]
        content |= {name: tuple(content[name]) for name in ("candidates", "seeds")}
        plan = Plan(file, **content)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _unreadable(file, error) from error
    return plan if plan.of == of else None


def _unreadable(file: Path, why: object) -> RunError:
    return RunError(f"the plan {str(file)!r} cannot be read ({why}): remove it to plan the race anew")
