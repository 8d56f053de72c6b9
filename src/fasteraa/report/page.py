"""The report: one HTML file that needs nothing else, made from a run folder.

Names of policies, data and operations may come from strangers: the template escapes all of them, and the page forbids
itself every script but its own and every address but its own pictures.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from fasteraa._version import __version__
from fasteraa.ops import OPS
from fasteraa.policy.describe import describe_choice, describe_sub_policy, strength_words
from fasteraa.policy.policy import Choice, Policy
from fasteraa.report.charts import Series, chart, spark
from fasteraa.report.comparison import COLUMNS, caption, sentence, table_rows, to_svg
from fasteraa.report.gallery import Strip, data_uri, images_of, strips
from fasteraa.report.run_record import EARLY, FINISHED, METRICS, RACING, SEARCHING, RunRecord, read_run
from fasteraa.report.summary import changes
from fasteraa.runtime.files import write_atomic
from fasteraa.runtime.run_folder import RunFolder

STATES = {
    SEARCHING: "The search is under way, or was stopped",
    RACING: "The search has ended; how much of the policy to apply is being measured, or that was stopped",
    EARLY: "The search ended early",
    FINISHED: "The search is finished",
}


@dataclass
class Options:
    """What the page is made from, beside the run folder."""

    comparison: Path | None = None
    source: str | None = None
    data_root: Path | None = None
    _images: dict[Any, Tensor | None] = field(default_factory=dict)

    def images(self, story: RunRecord) -> Tensor | None:
        """Read once, however often the page is made."""
        facts = provenance(story)
        name, size, seed = dig(facts, "data", "name"), dig(facts, "data", "size"), 0
        if story.config is not None:
            seed = story.config.seed
            size = size if story.config.size else None  # a CPU searches on smaller ones than one likes to look at
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
    story = read_run(run, options.comparison)
    script = _part("page.js")
    template = _environment().from_string(_part("page.html"))
    return template.render(
        view(story, options),
        live=live,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_part("page.css")),
    )


def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _part(name: str) -> str:
    return files("fasteraa.report").joinpath(name).read_text(encoding="utf-8")


def view(story: RunRecord, options: Options) -> dict[str, Any]:
    """Everything the template shows."""
    facts = provenance(story)
    found, policy = story.found, story.policy
    images = options.images(story)
    return {
        "title": f"Augmentation for {dig(facts, 'data', 'name') or story.folder.resolve().name}",
        "version": __version__,
        "state": STATES[story.state],
        "unfinished": story.state in (SEARCHING, RACING),
        "done": len(story.metrics),
        "planned": story.planned,
        "facts": list(_facts(story, facts)),
        "masks": with_masks(facts),
        "policy": policy,
        "policy_words": _words(policy),
        "strength": strength_words(policy) if policy is not None else [],
        "replaced": policy is not None and found is not None and policy.sub_policies != found.sub_policies,
        "calibration": _calibration(facts),
        "charts": _charts(story),
        "metrics": story.metrics,
        "metric_names": METRICS,
        "heat": _heat(story.start, found),
        "masses": _masses(story),
        "gallery": _gallery(images, policy, found),
        "preview": None if story.preview is None else data_uri(story.preview, "image/png"),
        "comparison": _comparison(story),
        "harm": [] if story.harm is None else list(blocks(story.harm)),
        "config": story.config_text,
        "command": _command(story, facts),
        "code": _code_for_masks(story) if with_masks(facts) else _code(story),
    }


def provenance(story: RunRecord) -> dict[str, Any]:
    """Where the policy says it comes from; before there is one, what its start tells."""
    told = story.policy or story.start
    return {} if told is None else dict(told.provenance)


def with_masks(facts: dict[str, Any]) -> bool:
    return bool(dig(facts, "data", "task") == "segmentation")


def dig(value: Any, *keys: str) -> Any:
    """A piece of a document that anybody may have written; None where it is not as ours."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def duration(seconds: Any) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _facts(story: RunRecord, facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    data, size = dig(facts, "data"), dig(facts, "data", "size")
    if dig(data, "name") is not None:
        sides = f" at {size[0]} x {size[1]} pixels" if isinstance(size, list) and len(size) == 2 else ""
        marked = "with masks of" if with_masks(facts) else "of"
        what = f"{dig(data, 'images')} images {marked} {dig(data, 'classes')} classes{sides}"
        yield "Searched on", f"{data['name']}: {what}"
        yield "Fingerprint of the data", str(dig(data, "fingerprint"))[:16]
    seconds = facts.get("seconds", story.metrics[-1].get("seconds") if story.metrics else None)
    epochs = f"{len(story.metrics)} of {story.planned} epochs"
    yield "Time of the search", f"{duration(seconds) or 'unknown'}, {epochs}"
    for label, key in (("Device", "device"), ("Critic's network", "backbone"), ("Method", "method")):
        if facts.get(key) is not None:
            yield label, str(facts[key])
    if isinstance(facts.get("peak_memory_mib"), int):
        yield "Peak GPU memory", f"{facts['peak_memory_mib']} MiB"
    versions = facts.get("versions")
    if isinstance(versions, dict):
        yield "Versions", ", ".join(f"{name} {number}" for name, number in versions.items())
    if story.policy is not None:
        yield "Policy", f"{story.policy.name} ({story.policy.hash[:19]})"
    yield "Run folder", str(story.folder)


def _words(policy: Policy | None) -> list[str]:
    return [] if policy is None else [describe_sub_policy(policy, sub) for sub in policy.sub_policies]


# --- tables and curves -----------------------------------------------------------------------------------------

_CHARTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Distance", "How far the critic tells augmented images from originals (Wasserstein)", (("distance", "distance"),)),
    (
        "Classification losses",
        "Of the critic, and of the policy's augmented images",
        (("class_loss", "critic"), ("policy_class_loss", "policy")),
    ),
    ("Gradient penalty", "Of the critic", (("penalty", "penalty"),)),
    (
        "Average parameter change",
        "Mean absolute change of the policy's parameters",
        (("change", "in the epoch"), ("from_start", "since the start")),
    ),
)


def _charts(story: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for title, about, lines in _CHARTS:
        series: list[Series] = [
            (label, [(number, row[key]) for number, row in enumerate(story.metrics, 1) if key in row])
            for key, label in lines
        ]
        svg = chart(f"{title} by epoch", series)
        if svg:
            legend = [label for label, _ in series] if len(series) > 1 else []
            shown.append({"title": title, "about": about, "svg": svg, "legend": legend})
    return shown


def _masses(story: RunRecord) -> list[dict[str, Any]]:
    """A row per operation, from the one that gained most to the one that lost most."""
    if story.masses:
        pairs = [(op, path[0], path[-1], path) for op, path in story.masses.items()]
        pairs.sort(key=lambda row: row[1] - row[2])
    elif story.start is not None and story.found is not None:
        pairs = [(op, before, after, ()) for op, before, after in changes(story.start, story.found)]
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


def _heat(start: Policy | None, found: Policy | None) -> dict[str, Any] | None:
    """Operations by stages of sub-policies, before and after."""
    if found is None:
        return None
    sides = {"after": found} if start is None else {"before": start, "after": found}
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


def _calibration(facts: dict[str, Any]) -> dict[str, Any] | None:
    """The table that calibration left in the policy, if it is one."""
    table = dig(facts, "calibration", "table")
    if not isinstance(table, list):
        return None
    rows = []
    for row in table:
        if errors := _numbers(dig(row, "errors")):
            loss, diverged, held = dig(row, "training_loss"), dig(row, "diverged"), _numbers(dig(row, "losses"))
            rows.append(
                {
                    "label": str(dig(row, "candidate")),
                    "error": sum(errors) / len(errors),
                    "trainings": len(errors),
                    "held_back_loss": f"{sum(held) / len(held):.3f}" if held else "",
                    "loss": str(diverged) if diverged else f"{loss:.2f}" if type(loss) in (int, float) else "",
                    "chosen": dig(row, "candidate") == dig(facts, "calibration", "chosen"),
                }
            )
    told = dig(facts, "calibration", "sentence")
    return {
        "rows": rows,
        "sentence": str(told) if told is not None else "",
        "effects": _effects(dig(facts, "calibration", "effects", "of")),
    }


def _numbers(values: Any) -> list[float]:
    """None of them if one is something else."""
    return values if isinstance(values, list) and all(type(value) in (int, float) for value in values) else []


def _effects(of: Any) -> list[tuple[str, float, float]]:
    """What helps first: operation, change of the loss in %, two standard errors of it."""
    found = []
    for op, pair in of.items() if isinstance(of, dict) else ():
        if len(_numbers(pair)) == 2:
            found.append((str(op), float(pair[0]), 2 * float(pair[1])))
    return sorted(found, key=lambda each: each[1])


def _comparison(story: RunRecord) -> dict[str, Any] | None:
    found = story.comparison
    if found is None:
        return None
    return {
        "columns": COLUMNS,
        "rows": table_rows(found),
        "caption": caption(found),
        "sentence": sentence(found),
        "picture": data_uri(to_svg(found).encode(), "image/svg+xml"),
    }


def blocks(markdown: str) -> Iterable[dict[str, Any]]:
    """The paragraphs and tables that `harm_markdown` writes."""
    for part in re.split(r"\n\s*\n", markdown.strip()):
        lines = part.splitlines()
        if len(lines) > 1 and all(line.startswith("|") for line in lines):
            rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
            last = len(rows[0]) - 1
            yield {"head": rows[0], "rows": [[*row[:last], " | ".join(row[last:])] for row in rows[2:]]}
        else:
            yield {"text": " ".join(lines)}


def _gallery(images: Tensor | None, policy: Policy | None, found: Policy | None) -> list[Strip]:
    return [] if images is None else strips(images, policy, found)


# --- doing it again, and using it ------------------------------------------------------------------------------


_FLAGS = ("device", "no-calibrate", "calibrate-minutes", "calibrate-network", "calibrate-epochs")


def _command(story: RunRecord, facts: dict[str, Any]) -> str:
    """With the source as it was given; a run from Python may have had an object that only has a name."""
    known = story.asked_for
    name = dig(facts, "data", "name")
    source = known.get("source", None if name == "sample" else name)
    words = ["fasteraa search"] if source is None else ["fasteraa search", _quoted(str(source))]
    if (root := known.get("data_root")) is not None:
        words += ["--data-root", _quoted(root)]
    if story.config is not None:
        words += ["--config", _quoted(str(RunFolder(story.folder).config))]
    for flag in _FLAGS:
        if (value := known.get(flag)) is not None:
            words += [f"--{flag}", *([_quoted(value)] if value else [])]
    return " ".join([*words, "--out runs/again"])


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./:-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _code(story: RunRecord) -> list[tuple[str, str]]:
    load, pool = _beginning(story)
    file = str(RunFolder(story.folder).policy)
    return [
        ("torchvision, or any Dataset of Pillow images", f"{load}transform = policy.transform({', '.join(pool)})"),
        ("Whole batches, on any device", f"{load}batch = policy(batch)  # uint8 (B, 3, H, W)"),
        (
            "timm",
            f"import timm.data\n{load}"
            "transform = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)\n"
            f"transform = policy.to_timm({', '.join(['transform', *pool])})",
        ),
        (
            "albumentations",
            f"import albumentations as A\n{load}"
            f"transform = A.Compose([policy.to_albumentations({', '.join(pool)}), A.Normalize()])",
        ),
        ("A file that needs Pillow alone", f"fasteraa export {_quoted(file)} --to python --out augment.py"),
    ]


def _code_for_masks(story: RunRecord) -> list[tuple[str, str]]:
    """Where image and mask share a draw; what comes from outside the image counts for no class."""
    load, pool = _beginning(story)
    options = ", ".join([*pool, "mask_fill=255"])
    return [
        (
            "torchvision",
            f"from torchvision import tv_tensors\n{load}transform = policy.transform({options})\n"
            "image, mask = transform(image, tv_tensors.Mask(mask))  # mask: whole numbers (H, W)",
        ),
        (
            "albumentations",
            f"import albumentations as A\n{load}"
            f"transform = A.Compose([policy.to_albumentations({options}), A.Normalize()])\n"
            "both = transform(image=array, mask=numbers)  # uint8 (H, W, 3) and (H, W)",
        ),
    ]


def _beginning(story: RunRecord) -> tuple[str, list[str]]:
    """The lines that load the policy, and what its transforms must be given."""
    pairs = story.policy is not None and "sample_pairing" in story.policy.ops
    file = str(RunFolder(story.folder).policy)
    return f"import fasteraa\n\npolicy = fasteraa.load({file!r})\n", ["pool=train_images"] * pairs
