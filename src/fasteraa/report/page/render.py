"""The page of a run folder: everything that the template shows, and the template filled in.

Names of policies, data and operations may come from strangers: the template escapes all of them, and the page forbids
itself every script but its own and every address but its own pictures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from fasteraa._version import __version__
from fasteraa.policy.describe import describe_sub_policy, operations_words, strength_words
from fasteraa.policy.describe import sentence as sentence_of
from fasteraa.policy.policy import Policy
from fasteraa.report.gallery import GAP, Gallery, data_uri, gallery_of, images_of
from fasteraa.report.page.comparison import blocks, comparison_section
from fasteraa.report.page.curves import charts, mass_rows, tried_charts
from fasteraa.report.page.facts import dig, fact_rows, provenance, with_masks
from fasteraa.report.page.heat import heat_map
from fasteraa.report.page.race import CandidateRow, race_section
from fasteraa.report.page.snippets import check_commands, code_tabs, code_tabs_for_masks, repeat_command
from fasteraa.report.run_record import (
    COMPARE,
    COMPARING,
    EARLY,
    FINISHED,
    METRICS,
    RACING,
    SEARCHING,
    RunRecord,
    read_run,
)
from fasteraa.runtime.files import as_file_name, write_atomic
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.words import counted
from fasteraa.train.recipe import epochs_words

STATES = {
    SEARCHING: "The gradient search is under way, or was stopped",
    RACING: "The race is under way, or was stopped",
    COMPARING: "The comparison is under way, or was stopped",
    EARLY: "The search ended early",
}

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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["counted"] = counted
    return environment


def _part(name: str) -> str:
    return files("fasteraa.report.page").joinpath(name).read_text(encoding="utf-8")


def view(run: RunRecord, options: Options) -> dict[str, Any]:
    """Everything the template shows."""
    facts = provenance(run)
    shown = run.gradient or run.policy
    race, tried = race_section(run, facts), tried_charts(run)
    idle = run.policy is not None and not run.policy.ops
    second = _runner_up(run, race.rows) if idle else None
    images = None if run.kind == COMPARE or (idle and second is None) else options.images(run)
    gallery = _gallery(images, second or run.policy or run.gradient)
    heat = heat_map(run.start, shown)
    sections = _sections(run, bool(race.effects), bool(tried))
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
        "facts": list(fact_rows(run, facts)),
        "masks": with_masks(facts),
        "policy": run.policy,
        "policy_words": _words(run.policy),
        "strength": strength_words(run.policy) if run.policy is not None else [],
        "policy_sentence": sentence_of(run.policy) if run.policy is not None else "",
        "race": race,
        "charts": charts(run),
        "tried": tried,
        "metrics": run.metrics,
        "metric_names": METRICS,
        "heat": heat,
        "heat_is_gradient": run.gradient is not None,
        "masses": mass_rows(run),
        "gallery": gallery,
        "gap": GAP,
        "preview": None if run.preview is None else data_uri(run.preview, "image/png"),
        "comparison": comparison_section(run.comparison),
        "per_op": [] if run.per_op is None else list(blocks(run.per_op)),
        "setup": run.setup,
        "command": repeat_command(run, facts),
        "check": check_commands(run, facts),
        "code": code_tabs_for_masks(run) if with_masks(facts) else code_tabs(run),
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
        words += f": {len(run.metrics)} of {epochs_words(run.planned)}"
    if run.state == RACING:
        words += f": {counted(run.trainings, 'training')} finished"
    return f"{words}."


def _sections(run: RunRecord, effects: bool, tried: bool) -> dict[str, str]:
    """Without those that a folder of this kind never fills."""
    if run.kind == COMPARE:
        return {name: _SECTIONS[name] for name in _OF_COMPARISON}
    left_out = [*(() if run.by_gradient else _OF_GRADIENT_SEARCH)]
    left_out += ["effects"] * (not effects) + ["tried"] * (not tried) + ["per-op"] * (run.per_op is None)
    named_so = _SECTIONS if run.comparison is not None else {**_SECTIONS, "comparison": "Check it"}
    return {name: words for name, words in named_so.items() if name not in left_out}


def _words(policy: Policy | None) -> list[str]:
    """A line for each sub-policy; of a policy with a schedule one for each of its parts."""
    if policy is None:
        return []
    if policy.scheduled:
        return [f"{part}: {operations_words(part.policy)}" for part in policy.parts]
    return [describe_sub_policy(policy, sub) for sub in policy.sub_policies]


def _runner_up(run: RunRecord, rows: Sequence[CandidateRow]) -> Policy | None:
    """The best policy that was not chosen, as the run folder has it."""
    for row in rows:
        file = RunFolder(run.folder).candidates / f"{as_file_name(row.label)}.json"
        if not (row.chosen or row.failed) and file.is_file():
            return replace(Policy.load(file), name=row.label)
    return None


def _gallery(images: Tensor | None, policy: Policy | None) -> Gallery | None:
    return None if images is None or policy is None else gallery_of(images, policy)
