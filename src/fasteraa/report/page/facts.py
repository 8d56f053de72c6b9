"""What a run folder says about its run: where the policy comes from, and the rows of "About the run"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fasteraa.report.run_record import RunRecord
from fasteraa.runtime.clock import duration
from fasteraa.runtime.words import counted
from fasteraa.train.recipe import epochs_words


def provenance(run: RunRecord) -> dict[str, Any]:
    """Where the policy comes from, as its file says; before there is one, what is known of its start."""
    origins = (each.provenance for each in (run.policy, run.gradient, run.start) if each is not None)
    return dict(next(filter(None, origins), {}))


def with_masks(facts: dict[str, Any]) -> bool:
    return bool(dig(facts, "data", "task") == "segmentation")


def dig(value: Any, *keys: str) -> Any:
    """A piece of a document that anybody may have written; None where it is not as ours."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def numbers(values: Any) -> list[float]:
    """None of them if one is something else."""
    return values if isinstance(values, list) and all(type(value) in (int, float) for value in values) else []


def time_words(seconds: Any) -> str | None:
    """None for what is no time: a stranger wrote it."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return duration(seconds) if is_number and 0 <= seconds < 1e9 else None


def fact_rows(run: RunRecord, facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    data, size = dig(facts, "data"), dig(facts, "data", "size")
    if dig(data, "name") is not None:
        sides = f" at {size[0]} x {size[1]} pixels" if isinstance(size, list) and len(size) == 2 else ""
        marked = "with masks of" if with_masks(facts) else "of"
        what = f"{dig(data, 'images')} images {marked} {dig(data, 'classes')} classes{sides}"
        yield "Images", f"{data['name']}: {what}"
    if run.setup.methods:
        yield "Methods", ", ".join(run.setup.methods)
    if run.by_gradient:
        seconds = facts.get("seconds", run.metrics[-1].get("seconds") if run.metrics else None)
        epochs = f"{len(run.metrics)} of {epochs_words(run.planned)}"
        yield "Gradient search", f"{time_words(seconds) or 'unknown time'}, {epochs}"
        if facts.get("backbone") is not None:
            yield "Critic's network", str(facts["backbone"])
    if (race := _race_words(race_of(facts))) is not None:
        yield "Race", race
    if facts.get("device") is not None:
        yield "Device", str(facts["device"])
    if isinstance(facts.get("peak_memory_mib"), int):
        yield "Peak GPU memory", f"{facts['peak_memory_mib']} MiB"
    if run.policy is not None:
        yield "Policy", f"{run.policy.name} ({run.policy.hash[:19]})"
    if dig(data, "fingerprint") is not None:
        yield "Fingerprint of the images", str(data["fingerprint"])[:16]
    versions = facts.get("versions")
    if isinstance(versions, dict):
        yield "Versions", ", ".join(f"{name} {number}" for name, number in versions.items())
    yield "Run folder", str(run.folder)


def race_of(facts: dict[str, Any]) -> Any:
    """What the race left in the policy; version 0.1 called it otherwise."""
    return facts.get("race", facts.get("calibration"))


def _race_words(race: Any) -> str | None:
    """`1 min 20 s, 24 trainings of up to 60 epochs of small, 3 folds`, as far as it is known."""
    table = dig(race, "table")
    if not isinstance(table, list):
        return None
    trainings = counted(sum(len(numbers(dig(row, "errors"))) for row in table), "training")
    epochs, folds = dig(race, "epochs"), dig(race, "folds")
    length = f" of up to {epochs_words(epochs)} of {dig(race, 'network')}" if isinstance(epochs, int) else ""
    parts = [time_words(dig(race, "seconds")), f"{trainings}{length}"]
    parts.append(counted(folds, "fold") if isinstance(folds, int) else None)
    return ", ".join(part for part in parts if part)
