"""The report: one HTML file that needs nothing else, made from a run folder.

Names of policies, data and operations may come from strangers: the template escapes all of them, and the page forbids
itself every script but its own and every address but its own pictures.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from fasteraa._version import __version__
from fasteraa.ops import OPS
from fasteraa.policy.describe import describe_choice, describe_sub_policy, operations_words, strength_words
from fasteraa.policy.describe import sentence as sentence_of
from fasteraa.policy.named import is_name, named
from fasteraa.policy.policy import Choice, Policy
from fasteraa.report.charts import Forest, Series, chart, row_bar, spark
from fasteraa.report.comparison import caption, columns, sentence, table_rows, to_svg
from fasteraa.report.gallery import GAP, Gallery, data_uri, gallery_of, images_of
from fasteraa.report.run_record import (
    COMPARE,
    COMPARING,
    EARLY,
    FINISHED,
    METRICS,
    RACE,
    RACING,
    SEARCHING,
    RunRecord,
    read_run,
)
from fasteraa.report.summary import changes
from fasteraa.runtime.clock import duration
from fasteraa.runtime.files import as_file_name, write_atomic
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.ranking import percent

STATES = {
    SEARCHING: "The gradient search is under way, or was stopped",
    RACING: "The race is under way, or was stopped",
    COMPARING: "The comparison is under way, or was stopped",
    EARLY: "The search ended early",
}


@dataclass
class Options:
    """What the page is made from, beside the run folder."""

    comparison: Path | None = None
    source: str | None = None
    data_root: Path | None = None
    _images: dict[Any, Tensor | None] = field(default_factory=dict)

    def images(self, run: RunRecord) -> Tensor | None:
        """Read once, however often the page is made."""
        facts = provenance(run)
        name, size, seed = dig(facts, "data", "name"), dig(facts, "data", "size"), 0
        if run.config is not None:
            seed = run.config.seed
            size = size if run.config.size else None  # a CPU searches on smaller ones than one likes to look at
        sides = (
            (size[0], size[1])
            if isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
            else None
        )
        key = (str(name), sides, seed)
        if key not in self._images:
            self._images[key] = images_of(
                name if isinstance(name, str) else None, self.source, sides, self.data_root, seed
            )
        return self._images[key]


def write_report(run: Path, out: Path, options: Options | None = None) -> None:
    """Make the page of a run; all of it or nothing."""
    write_atomic(out, make_page(run, options or Options()))


def make_page(run: Path, options: Options, live: bool = False) -> str:
    record = read_run(run, options.comparison)
    script = _part("page.js")
    template = _environment().from_string(_part("page.html"))
    return template.render(
        view(record, options),
        live=live,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_part("page.css")),
    )


def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _part(name: str) -> str:
    return files("fasteraa.report").joinpath(name).read_text(encoding="utf-8")


_FEW = 3  # trainings from which on a difference has an interval
# section -> what the menu calls it; the answer comes first
_SECTIONS = {
    "result": "What to use",
    "use": "Use it",
    "candidates": "How it was chosen",
    "effects": "Which operations help",
    "gallery": "What it does",
    "policy": "The policy",
    "comparison": "Comparison",
    "per-op": "Which operations hurt",
    "tried": "What was tried",
    "heat": "By sub-policy",
    "curves": "Epoch by epoch",
    "operations": "Operations",
    "about": "About the run",
    "repeat": "Do it again",
}
_OF_GRADIENT_SEARCH = ("curves", "operations")
_OF_COMPARISON = ("comparison", "per-op")


def view(run: RunRecord, options: Options) -> dict[str, Any]:
    """Everything the template shows."""
    facts = provenance(run)
    shown = run.gradient or run.policy
    race, tried = _race(run, facts), _tried(run)
    idle = run.policy is not None and not run.policy.ops
    second = _runner_up(run, race["rows"]) if idle else None
    images = None if run.kind == COMPARE or (idle and second is None) else options.images(run)
    gallery = _gallery(images, second or run.policy or run.gradient)
    heat = _heat(run.start, shown)
    sections = _sections(run, bool(race["effects"]), bool(tried))
    if run.gradient is None and heat is not None and len(run.policy.sub_policies if run.policy else ()) == 1:
        sections.pop("heat", None)  # the policy in words says all of it
    if idle:  # there is nothing to say of it
        idle_ones = ["policy"] + ["gallery"] * (gallery is None) + ["heat"] * (run.gradient is None)
        sections = {name: words for name, words in sections.items() if name not in idle_ones}
    return {
        "title": _title(run, facts),
        "version": __version__,
        "state": _state_words(run),
        "searching": run.state == SEARCHING,
        "sections": sections,
        "idle": idle,
        "runner_up": second.name if second is not None else "",
        "done": len(run.metrics),
        "planned": run.planned,
        "facts": list(_facts(run, facts)),
        "masks": with_masks(facts),
        "policy": run.policy,
        "policy_words": _words(run.policy),
        "strength": strength_words(run.policy) if run.policy is not None else [],
        "policy_sentence": sentence_of(run.policy) if run.policy is not None else "",
        "race": race,
        "charts": _charts(run),
        "tried": tried,
        "metrics": run.metrics,
        "metric_names": METRICS,
        "heat": heat,
        "heat_is_gradient": run.gradient is not None,
        "masses": _masses(run),
        "gallery": gallery,
        "gap": GAP,
        "preview": None if run.preview is None else data_uri(run.preview, "image/png"),
        "comparison": _comparison(run),
        "per_op": [] if run.per_op is None else list(blocks(run.per_op)),
        "setup": run.setup,
        "command": _command(run, facts),
        "check": _check_commands(run, facts),
        "code": _code_for_masks(run) if with_masks(facts) else _code(run),
    }


def _title(run: RunRecord, facts: dict[str, Any]) -> str:
    if run.kind == COMPARE:
        return f"Comparison on {run.comparison.data if run.comparison else run.folder.resolve().name}"
    name = dig(facts, "data", "name") or run.folder.resolve().name
    return f"Augmentation for {'the embedded sample (Fashion-MNIST)' if name == 'sample' else name}"


def _state_words(run: RunRecord) -> str:
    if run.state == FINISHED:
        return f"The {'comparison' if run.kind == COMPARE else run.kind} is finished."
    words = STATES[run.state]
    if run.state == SEARCHING:
        words += f": {len(run.metrics)} of {run.planned} epochs"
    if run.state == RACING:
        words += f": {run.trainings} training{'s' * (run.trainings != 1)} finished"
    return f"{words}."


def _sections(run: RunRecord, effects: bool, tried: bool) -> dict[str, str]:
    """Without those that a folder of this kind never fills."""
    if run.kind == COMPARE:
        return {name: _SECTIONS[name] for name in _OF_COMPARISON}
    left_out = [*(() if run.by_gradient else _OF_GRADIENT_SEARCH)]
    left_out += ["effects"] * (not effects) + ["tried"] * (not tried) + ["per-op"] * (run.per_op is None)
    named_so = _SECTIONS if run.comparison is not None else {**_SECTIONS, "comparison": "Is it so?"}
    return {name: words for name, words in named_so.items() if name not in left_out}


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


def time_words(seconds: Any) -> str | None:
    """None for what is no time: a stranger wrote it."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return duration(seconds) if is_number and 0 <= seconds < 1e9 else None


def _facts(run: RunRecord, facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
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
        epochs = f"{len(run.metrics)} of {run.planned} epochs"
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
    count = sum(len(_numbers(dig(row, "errors"))) for row in table)
    epochs, folds = dig(race, "epochs"), dig(race, "folds")
    length = f" of up to {epochs} epochs of {dig(race, 'network')}" if isinstance(epochs, int) else ""
    parts = [time_words(dig(race, "seconds")), f"{count} training{'s' * (count != 1)}{length}"]
    return ", ".join([part for part in parts if part] + ([f"{folds} folds"] if isinstance(folds, int) else []))


def _words(policy: Policy | None) -> list[str]:
    """A line for each sub-policy; of a policy with a schedule one for each of its parts."""
    if policy is None:
        return []
    if policy.scheduled:
        return [f"{part}: {operations_words(part.policy)}" for part in policy.parts]
    return [describe_sub_policy(policy, sub) for sub in policy.sub_policies]


# --- tables and curves -----------------------------------------------------------------------------------------

_CHARTS: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Distance",
        "Between augmented images and originals, by the critic",
        "Wasserstein distance",
        (("distance", "distance"),),
    ),
    (
        "Classification losses",
        "Of the critic on originals, and on the policy's augmented images",
        "cross entropy",
        (("class_loss", "critic"), ("policy_class_loss", "policy")),
    ),
    ("Gradient penalty", "Of the critic", "penalty", (("penalty", "penalty"),)),
    (
        "Average parameter change",
        "Mean absolute change of the policy's parameters",
        "change",
        (("change", "in the epoch"), ("from_start", "since the start")),
    ),
)


def _charts(run: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for title, about, unit, lines in _CHARTS:
        series: list[Series] = [
            (label, [(number, row[key]) for number, row in enumerate(run.metrics, 1) if key in row])
            for key, label in lines
        ]
        svg = chart(f"{title} by epoch", series, y_title=unit, smooth=True)
        if svg:
            legend = [label for label, _ in series] if len(series) > 1 else []
            shown.append({"title": title, "about": about, "svg": svg, "legend": legend})
    return shown


def _tried(run: RunRecord) -> list[dict[str, Any]]:
    """For each method the best score over what it cost, a line for each fold: a lower score is better."""
    tried, shown = dig(run.result, "tried"), []
    for label, rows in tried.items() if isinstance(tried, dict) else ():
        scores: dict[str, list[tuple[float, float]]] = {}
        known = [row for row in rows if _is_try(row)] if isinstance(rows, list) else []
        costs = [row[2] if len(row) > 2 else 0.0 for row in known]
        timed = sum(costs) > 0
        for row, cost in zip(known, accumulate(costs) if timed else count(1), strict=False):
            fold = scores.setdefault(str(row[0]), [])
            fold.append((cost, min([row[1], *(score for _, score in fold[-1:])])))
        axis = "seconds" if timed else "policies tried"
        svg = chart(f"best score of {label} by {axis}", list(scores.items()), axis, "best score")
        if svg:
            words = f"{len(known)} tries" + (f", {time_words(sum(costs))}" if timed else "")
            shown.append({"title": label, "about": words, "svg": svg, "legend": list(scores)})
    return shown


def _is_try(row: Any) -> bool:
    """Fold, score and maybe seconds."""
    numbers = row[1:] if isinstance(row, list) and len(row) in (2, 3) else []
    return bool(numbers) and all(type(each) in (int, float) and math.isfinite(each) for each in numbers)


def _masses(run: RunRecord) -> list[dict[str, Any]]:
    """A row per operation, from the one that gained most to the one that lost most."""
    if run.masses:
        pairs = [(op, path[0], path[-1], path) for op, path in run.masses.items()]
        pairs.sort(key=lambda row: row[1] - row[2])
    elif run.start is not None and run.gradient is not None:
        pairs = [(op, before, after, ()) for op, before, after in changes(run.start, run.gradient)]
    else:
        return []
    most = max((value for *_, path in pairs for value in path), default=0.0)
    return [
        {"op": op, "before": before, "after": after, "change": after - before, "spark": spark(path, most)}
        for op, before, after, path in pairs
    ]


@dataclass(frozen=True)
class _Cell:
    """One operation in one stage: shares of choosing it, its probability, its magnitude; None where it is not there."""

    chosen: float
    probability: float
    magnitude: float | None
    words: str

    @property
    def applied(self) -> float:
        return self.chosen * self.probability


MEASURES = {
    "chosen": "How often the stage chooses it",
    "probability": "Probability once chosen",
    "magnitude": "Magnitude",
    "applied": "How often it is applied",
}


def _heat(start: Policy | None, end: Policy | None) -> dict[str, Any] | None:
    """Operations by stages of sub-policies, before and after."""
    if end is None:
        return None
    sides = {"after": end} if start is None else {"before": start, "after": end}
    grids = {side: _grid(policy) for side, policy in sides.items()}
    columns = sorted({place for grid in grids.values() for place, _ in grid})
    named = {op for grid in grids.values() for _, op in grid}
    ops = [op for op in OPS if op in named]
    spots = [(place, op) for op in ops for place in columns]
    values = {
        side: {name: [_rounded(getattr(grid.get(s), name, None)) for s in spots] for name in MEASURES}
        for side, grid in grids.items()
    }
    words = {side: [grid[s].words if s in grid else "" for s in spots] for side, grid in grids.items()}
    subs = (
        [[stage for sub_, stage in columns if sub_ == sub] for sub in range(1, max(sub for sub, _ in columns) + 1)]
        if columns
        else []
    )
    return {
        "ops": ops,
        "columns": columns,
        "subs": [len(stages) for stages in subs],
        "values": values,
        "words": words,
        "sides": list(sides),
        "measures": MEASURES,
        "shown": values["after"]["chosen"],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _grid(policy: Policy) -> dict[tuple[tuple[int, int], str], _Cell]:
    """((sub-policy, stage), operation) -> what the policy does there."""
    grid: dict[tuple[tuple[int, int], str], _Cell] = {}
    for number, sub in enumerate(policy.sub_policies, 1):
        for k, stage in enumerate(sub.stages, 1):
            total = sum(choice.weight for choice in stage)
            for op in dict.fromkeys(choice.op for choice in stage):
                same = [choice for choice in stage if choice.op == op]
                grid[(number, k), op] = _cell(policy, same, total)
    return grid


def _cell(policy: Policy, same: Sequence[Choice], total: float) -> _Cell:
    """An operation may stand several times in a stage, at several magnitudes: their mean by weight."""
    weight = sum(choice.weight for choice in same)
    shares = [choice.weight / weight if weight else 1 / len(same) for choice in same]
    middles = [None if choice.magnitude is None else sum(choice.range) / 2 for choice in same]
    magnitude = None if None in middles else sum(s * m for s, m in zip(shares, middles, strict=True) if m is not None)
    words = describe_choice(policy, same[0]) + (f" and {len(same) - 1} more" if len(same) > 1 else "")
    probability = sum(share * choice.probability for share, choice in zip(shares, same, strict=True))
    return _Cell(weight / total, probability, magnitude, f"chosen {weight / total:.0%}, {words}")


# --- what was measured -----------------------------------------------------------------------------------------


def _race(run: RunRecord, facts: dict[str, Any]) -> dict[str, Any]:
    """The recommendation, and the table that the race left in the policy, if it is one."""
    race = race_of(facts)
    table = dig(race, "table")
    rows = (
        [_race_row(row, race, run) for row in table if _numbers(dig(row, "errors"))] if isinstance(table, list) else []
    )
    most = max((row["trainings"] for row in rows), default=0)
    furthest = [row for row in rows if row["trainings"] == most] or rows
    forest = Forest([row["difference"] for row in furthest if row["difference"] and not row["failed"]])
    for row in rows:
        row |= {"plot": _candidate_plot(row, rows, forest), "eliminated": row["trainings"] < most}
    raced = {row["label"] for row in rows}
    proposed = run.result.get("candidates")
    sentence = dig(race, "sentence") or run.result.get("recommendation")
    effects = _effects(dig(race, "effects", "of"))
    effects_forest = Forest([(row["effect"], row["error"]) for row in effects])
    for row in effects:
        kind = _kind_of(row["effect"], row["error"])
        row |= {"plot": effects_forest.row(row["effect"], row["error"], kind), "kind": kind}
    return {
        "sentence": str(sentence) if sentence is not None else "",
        "rows": rows,
        "scores": _scores(run.result),
        "differences": _with_differences(rows),
        "sure": any(row["better"] for row in rows),
        "axis": forest.axis(),
        "cut": any("arrow" in row["plot"] for row in rows),
        "not_raced": [label for label in proposed if label not in raced] if rows and isinstance(proposed, dict) else [],
        "effects": effects,
        "effects_axis": effects_forest.axis(),
    }


def _with_differences(rows: Sequence[dict[str, Any]]) -> bool:
    return any(row["difference"] for row in rows)


def _candidate_plot(row: dict[str, Any], rows: Sequence[dict[str, Any]], forest: Forest) -> Markup:
    """Its difference to none with an interval; where none was not raced, its error as a bar."""
    if not _with_differences(rows):
        return row_bar(row["error"], max(each["error"] for each in rows))
    if row["failed"] or row["difference"] is None:
        return Markup("")
    mean, half = row["difference"]
    return forest.row(mean, half, _kind_of(mean, half))


def _kind_of(mean: float, half: float | None) -> str:
    """good or bad where the interval leaves out zero."""
    if half is None or abs(mean) <= half:
        return ""
    return "good" if mean < 0 else "bad"


def _scores(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a race by somebody's own training, as its result.json has them."""
    table = result.get("table") if "maximize" in result else None
    rows = [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []
    return [
        {
            "label": str(row.get("label")),
            "chosen": row.get("label") == result.get("chosen"),
            "score": f"{row['score']:.5g}" if _numbers([row.get("score")]) else "",
            "runs": len(_numbers(row.get("scores"))),
            "better": _short_percent(row["better"]) if _numbers([row.get("better")]) else "",
            "note": str(row["failed"]) if row.get("failed") else "eliminated" if row.get("eliminated") else "",
        }
        for row in rows
    ]


def _race_row(row: Any, race: Any, run: RunRecord) -> dict[str, Any]:
    errors, losses = _numbers(dig(row, "errors")), _numbers(dig(row, "losses"))
    failed = dig(row, "failed") or dig(row, "diverged")
    label = str(dig(row, "candidate"))
    table = run.result.get("table")
    known = next((each for each in table if dig(each, "label") == label), None) if isinstance(table, list) else None
    difference = _difference(known)
    if difference is not None and len(errors) < _FEW:
        difference = difference[0], None  # an interval of two trainings says nothing, and dwarfs all others
    return {
        "label": label,
        "chosen": dig(row, "candidate") == dig(race, "chosen"),
        "error": sum(errors) / len(errors),
        "difference": difference,
        "against_none": _difference_words(difference),
        "better": _short_percent(dig(known, "better")) if _numbers([dig(known, "better")]) else "",
        "loss": f"{sum(losses) / len(losses):.3f}" if losses else "",
        "trainings": len(errors),
        "failed": str(failed) if failed else "",
    }


def _short_percent(probability: float) -> str:
    """For a narrow column: `>99%`."""
    return percent(probability).replace("more than ", ">").replace("under ", "<")


def _difference(row: Any) -> tuple[float, float | None] | None:
    """To none, with half of its interval; of one training there is no interval."""
    mean, half = dig(row, "against_none", "mean"), dig(row, "against_none", "half")
    if not _numbers([mean]):
        return None
    return mean, half if _numbers([half]) else None


def _difference_words(difference: tuple[float, float | None] | None) -> str:
    """`-2.5 ± 0.8`."""
    if difference is None:
        return ""
    mean, half = difference
    return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def _numbers(values: Any) -> list[float]:
    """None of them if one is something else."""
    return values if isinstance(values, list) and all(type(value) in (int, float) for value in values) else []


def _effects(of: Any) -> list[dict[str, Any]]:
    """What helps first: operation, change of the loss in %, two standard errors of it."""
    pairs = of.items() if isinstance(of, dict) else ()
    rows = [(str(op), float(pair[0]), 2 * float(pair[1])) for op, pair in pairs if len(_numbers(pair)) == 2]
    return [{"op": op, "effect": effect, "error": error} for op, effect, error in sorted(rows, key=lambda row: row[1])]


def _comparison(run: RunRecord) -> dict[str, Any] | None:
    table = run.comparison
    if table is None:
        return None
    return {
        "columns": columns(table),
        "rows": table_rows(table),
        "caption": caption(table),
        "sentence": sentence(table),
        "picture": Markup(to_svg(table, "errors")),
    }


def blocks(markdown: str) -> Iterable[dict[str, Any]]:
    """The paragraphs and tables that `per_op_markdown` writes."""
    for part in re.split(r"\n\s*\n", markdown.strip()):
        lines = part.splitlines()
        if len(lines) > 1 and all(line.startswith("|") for line in lines):
            rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
            last = len(rows[0]) - 1
            yield {"head": rows[0], "rows": [[*row[:last], " | ".join(row[last:])] for row in rows[2:]]}
        else:
            yield {"text": " ".join(lines)}


def _runner_up(run: RunRecord, rows: Sequence[dict[str, Any]]) -> Policy | None:
    """The best policy that was not chosen, as the run folder has it."""
    for row in rows:
        file = RunFolder(run.folder).candidates / f"{as_file_name(row['label'])}.json"
        if not (row["chosen"] or row["failed"]) and file.is_file():
            return replace(Policy.load(file), name=row["label"])
    return None


def _gallery(images: Tensor | None, policy: Policy | None) -> Gallery | None:
    return None if images is None or policy is None else gallery_of(images, policy)


# --- doing it again, and using it ------------------------------------------------------------------------------


def _command(run: RunRecord, facts: dict[str, Any]) -> str:
    """With the source as it was given, and the rest from config.toml; a run from Python may have had an object that
    only has a name.
    """
    asked, name = run.asked_for, dig(facts, "data", "name")
    source = asked.get("source", None if name == "sample" else name)
    words = ["fasteraa", run.kind, *([] if source is None else [_quoted(str(source))])]
    if run.kind == RACE:
        words += ["--policies", _quoted(",".join(_raced_policies(run)))]
    if RunFolder(run.folder).scores.is_dir():
        return " ".join([*words, "--out runs/again -- YOUR COMMAND"])
    if run.config is not None and not run.setup.old:
        words += ["--config", _quoted(str(RunFolder(run.folder).config))]
    for flag in ("data_root", "device", "minutes"):
        if (value := asked.get(flag)) is not None:
            words += [f"--{flag.replace('_', '-')}", _quoted(value)]
    return " ".join([*words, "--out runs/again"])


def _check_commands(run: RunRecord, facts: dict[str, Any]) -> str:
    """What measures the policy on test images, and what makes this page again with the table."""
    source = run.asked_for.get("source")
    images = "" if source is None and dig(facts, "data", "name") == "sample" else f" {_quoted(str(source or 'IMAGES'))}"
    folder = _quoted(str(run.folder))
    return (
        f"fasteraa compare{images} --policies none,trivialaugment-wide,chosen={folder} --per-op --out runs/compared\n"
        f"fasteraa report {folder} --comparison runs/compared"
    )


def _raced_policies(run: RunRecord) -> list[str]:
    """By name where there is one, else by their files in the run folder."""
    folder, given = RunFolder(run.folder).candidates, run.result.get("candidates")
    if not isinstance(given, dict):
        return [row["label"] for row in _scores(run.result)]
    labels = given
    return [
        label if is_name(label) and named(label).hash == value else f"{label}={folder / as_file_name(label)}.json"
        for label, value in labels.items()
    ]


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./:-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _code(run: RunRecord) -> list[tuple[str, str]]:
    load = _beginning(run)
    policy = run.policy
    pairs = policy is not None and "sample_pairing" in policy.ops
    dali = 'policy.without("sample_pairing").to_dali()' if pairs else "policy.to_dali()"
    file = str(RunFolder(run.folder).policy)
    tabs = {
        "torchvision": f"{load}# for Pillow images, before the conversion to float\ntransform = policy.transform()",
        "batches": f"{load}# uint8 (B, 3, H, W), on any device\nbatch = policy(batch)",
        "timm": (
            f"import timm.data\n{load}"
            "transform = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)\n"
            "transform = policy.to_timm(transform)"
        ),
        "albumentations": (
            f"import albumentations as A\n{load}transform = A.Compose([policy.to_albumentations(), A.Normalize()])"
        ),
        "kornia": (
            f"import kornia.augmentation as K\n{load}"
            "# for floats in [0, 1]\ntransform = K.AugmentationSequential(policy.to_kornia())"
        ),
        "DALI": (
            f"from nvidia.dali.auto_aug import auto_augment\n{load}policy = {dali}\n\n"
            "# in a pipeline with enable_conditionals=True, uint8 (H, W, 3):\n"
            "# images = auto_augment.apply_auto_augment(policy, images)"
        ),
        "Keras": (
            'import os\n\nos.environ.setdefault("KERAS_BACKEND", "torch")  # the layer needs it\n'
            f"{load}# the first layer of the model, for images in [0, 255]\nlayer = policy.to_keras()"
        ),
        "plain Python": (
            f"# a file that needs Pillow alone\nfasteraa export {_quoted(file)} --to python --out augment.py"
        ),
    }
    if policy is not None and policy.scheduled:
        del tabs["DALI"]  # which has no epochs
    return list(tabs.items())


def _code_for_masks(run: RunRecord) -> list[tuple[str, str]]:
    """Where image and mask share a draw; what comes from outside the image counts for no class."""
    load = _beginning(run)
    return [
        (
            "torchvision",
            f"from torchvision import tv_tensors\n{load}transform = policy.transform(mask_fill=255)\n"
            "image, mask = transform(image, tv_tensors.Mask(mask))  # mask: whole numbers (H, W)",
        ),
        (
            "albumentations",
            f"import albumentations as A\n{load}"
            "transform = A.Compose([policy.to_albumentations(mask_fill=255), A.Normalize()])\n"
            "both = transform(image=array, mask=numbers)  # uint8 (H, W, 3) and (H, W)",
        ),
    ]


def _beginning(run: RunRecord) -> str:
    """The lines that load the policy."""
    return f"import fasteraa\n\npolicy = fasteraa.load({str(RunFolder(run.folder).policy)!r})\n"
