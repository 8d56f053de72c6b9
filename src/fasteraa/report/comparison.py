"""A comparison as a table in words, as Markdown and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fasteraa.comparison.contenders import YARDSTICKS
from fasteraa.comparison.per_op import PerOp
from fasteraa.comparison.table import Comparison, ComparisonRow, is_yardstick
from fasteraa.errors import FasterAAError, RunError
from fasteraa.policy.describe import describe_sub_policy
from fasteraa.report.svg import Scale, bar, dot, drawing, error_bar, short, text, x_axis
from fasteraa.runtime.documents import cut, plain, read_json
from fasteraa.runtime.files import sealed, unsealed, write_atomic
from fasteraa.runtime.words import counted
from fasteraa.train.recipe import TrainRecipe, epochs_words
from fasteraa.train.split import twice_words
from fasteraa.train.statistics import Estimate, estimate, p_words

_UNITS = {"error": ("error", "%"), "balanced-error": ("balanced error", "%"), "loss": ("loss", "")}

_NO_RUNS = Estimate(math.nan, math.inf, 0)


def columns(comparison: Comparison) -> tuple[str, ...]:
    """The heads of the table, by what it holds."""
    against = (f"against {name}" for name in _compared_with(comparison))
    search = ["search s"] if _has_search(comparison) else []
    return ("policy", " ".join(filter(None, _UNITS[comparison.metric])), "n", *against, *search, "training s")


def _has_search(comparison: Comparison) -> bool:
    return any(row.search_seconds is not None for row in comparison.rows)


def _compared_with(comparison: Comparison) -> list[str]:
    """A yardstick that did not take part has no column."""
    return [name for name in YARDSTICKS if any(name in row.against for row in comparison.rows)]


def _digits(comparison: Comparison) -> int:
    return 3 if comparison.metric == "loss" else 2


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Those with errors, then those without."""
    digits, yardsticks = _digits(comparison), _compared_with(comparison)
    nothing = ["-", "0", *("-" for _ in columns(comparison)[3:])]
    search = _has_search(comparison)
    rows = [_cells(row, digits, yardsticks, search) for row in comparison.rows]
    return [*rows, *([label, *nothing] for label in comparison.absent)]


def _cells(row: ComparisonRow, digits: int, yardsticks: Sequence[str], search: bool) -> list[str]:
    seconds = "-" if row.search_seconds is None else f"{row.search_seconds:.0f}"
    return [
        row.label,
        interval(row.error, digits),
        str(row.error.n),
        *(difference(row.against.get(name), row.error.n, digits) for name in yardsticks),
        *([seconds] if search else []),
        f"{row.train_seconds:.0f}",
    ]


def interval(estimated: Estimate, digits: int = 2) -> str:
    return f"{estimated.mean:.{digits}f}" + (f" ± {estimated.half:.{digits}f}" if math.isfinite(estimated.half) else "")


def difference(estimated: Estimate | None, runs: int, digits: int = 2) -> str:
    """`-1.20 ± 0.35 (p 0.004)`; negative is fewer errors. Of fewer seeds than the row has runs, it shows how many."""
    if estimated is None:
        return "-"
    spread = f" ± {estimated.half:.{digits}f}" if math.isfinite(estimated.half) else ""
    mean = round(estimated.mean, digits) + 0.0  # no -0.00
    words = [] if estimated.p is None else [p_words(estimated.p)]
    words += [] if estimated.n == runs else [f"n = {estimated.n}"]
    return f"{mean:+.{digits}f}{spread}" + (f" ({', '.join(words)})" if words else "")


def sentence(comparison: Comparison) -> str:
    """The ranking, missing and diverged runs, and the rows to trust less."""
    lost = f" Diverged, excluded from the means: {'; '.join(comparison.diverged)}." if comparison.diverged else ""
    overlap = comparison.overlap_count
    twice = f" {twice_words(overlap, comparison.held_out_images)}." if overlap else ""
    return _ranking(comparison) + _missing_words(comparison) + lost + seen_words(comparison.seen) + twice


def _missing_words(comparison: Comparison) -> str:
    if not comparison.missing:
        return ""
    verb = "is" if comparison.missing == 1 else "are"
    which = "; ".join(f"{label}, {_seeds_words(seeds)}" for label, seeds in comparison.missing_seeds.items())
    return f" {counted(comparison.missing, 'run')} {verb} missing{': ' if which else ''}{which}."


def _seeds_words(seeds: Sequence[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))


def seen_words(labels: Sequence[str]) -> str:
    """Whose search saw what errors are measured on."""
    if not labels:
        return ""
    return (
        " The search saw the held-out images (unless it had other images of the same name), so these errors may be "
        f"too low: {', '.join(labels)}."
    )


def _ranking(comparison: Comparison) -> str:
    if not comparison.rows:
        return "No run has an error." if comparison.diverged else "There are no runs yet."
    ranked = sorted(comparison.rows, key=lambda row: row.error.mean)
    if len(ranked) == 1:
        what, unit = _UNITS[comparison.metric]
        value = f"{interval(ranked[0].error, _digits(comparison))}{unit}"
        return f"{ranked[0].label}: {what} {value}."
    present = [name for name in YARDSTICKS if any(is_yardstick(name, row.label, row.hashes) for row in ranked)]
    return " ".join([_lowest(ranked, comparison), *(_test(ranked, name) for name in present)])


def _test(ranked: Sequence[ComparisonRow], yardstick: str) -> str:
    others = [row for row in ranked if not is_yardstick(yardstick, row.label, row.hashes)]
    untested = [row.label for row in others if row.against.get(yardstick, _NO_RUNS).n < 2]
    if len(untested) == len(others):
        return f"No test against {yardstick}: a test takes two seeds."
    ahead, behind = ([row.label for row in others if _clear(row, yardstick, sign)] for sign in (-1, 1))
    better, worse = (", ".join(labels) or "no policy" for labels in (ahead, behind))
    rest = f"; not tested, with fewer than two seeds: {', '.join(untested)}" if untested else ""
    return f"Clearly better than {yardstick} (p < 0.05): {better}; clearly worse: {worse}{rest}."


def _lowest(rows: Sequence[ComparisonRow], comparison: Comparison) -> str:
    """By the seeds that all rows have: some seeds are harder than others."""
    shared = sorted(set.intersection(*(set(row.errors) for row in rows)))
    if not shared:
        return "No seed has a run of every policy, so there is no ranking."
    estimates = {row.label: estimate([row.errors[seed] for seed in shared]) for row in rows}
    least = min(each.mean for each in estimates.values())
    what, unit = _UNITS[comparison.metric]
    lowest = [
        f"{label} with {interval(each, _digits(comparison))}{unit}"
        for label, each in estimates.items()
        if math.isclose(each.mean, least)
    ]
    uneven = any(len(row.errors) > len(shared) for row in rows)
    where = f" on the runs that all have ({_seeds_words(shared)})" if uneven else ""
    return f"Lowest {what}{where}: {', '.join(lowest)}."


def _clear(row: ComparisonRow, yardstick: str, sign: int) -> bool:
    against = row.against.get(yardstick)
    return against is not None and against.significant and against.mean * sign > 0


def caption(comparison: Comparison) -> str:
    recipe, count = comparison.recipe, comparison.held_out_images
    cutout = f", cutout of {recipe.cutout} pixels after every policy but none" if recipe.cutout else ""
    training = f"{recipe.network_words} on {comparison.train_images} images, {epochs_words(recipe.epochs)}{cutout}"
    rates = ", ".join(
        f"{row.label} {row.learning_rate:.3g}" for row in comparison.rows if row.learning_rate is not None
    )
    training += f", learning rates {rates}" if rates else ""
    return (
        f"{comparison.data}: {training}; {_UNITS[comparison.metric][0]} "
        f"after the last epoch on {count} images ({comparison.held_out_from}), mean over seeds with its 95% "
        f"interval (Student); differences{' in points' * (comparison.metric != 'loss')}, paired by seed; "
        f"{comparison.device}."
    )


def to_markdown(comparison: Comparison) -> str:
    lines = [f"| {' | '.join(columns(comparison))} |", "|" + "---|" * len(columns(comparison))]
    lines += map(markdown_row, table_rows(comparison))
    return f"{caption(comparison)}\n\n" + "\n".join(lines) + f"\n\n{sentence(comparison)}\n"


def markdown_row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(part.replace("|", "\\|") for part in parts) + " |"


def publish(comparison: Comparison, folder: Path) -> None:
    """comparison.json, comparison.md and comparison.svg. Losses by operation that are of another comparison go."""
    if _subject_in(folder) != _subject(comparison):
        for name in _PER_OP:
            (folder / name).unlink(missing_ok=True)
    write_atomic(folder / "comparison.json", json.dumps(sealed(plain(comparison.to_dict())), indent=1) + "\n")
    write_atomic(folder / "comparison.md", to_markdown(comparison))
    write_atomic(folder / "comparison.svg", to_svg(comparison))


def _subject(comparison: Comparison) -> tuple[Any, ...]:
    """What losses by operation are about: images, training and policies; seeds may be added."""
    images = (comparison.data, comparison.train_images, comparison.held_out_images, comparison.held_out_from)
    return *images, plain(asdict(comparison.recipe)), {row.label: row.hashes for row in comparison.rows}


def _subject_in(folder: Path) -> tuple[Any, ...] | None:
    """That of the comparison in a folder; None if there is none, or it is damaged."""
    try:
        return _subject(read_comparison(folder / "comparison.json"))
    except RunError:
        return None


def read_comparison(path: Path) -> Comparison:
    """What `publish` wrote; a file of an earlier version has no digest."""
    content = read_json(path)
    try:
        content = unsealed(content)
        recipe = TrainRecipe(**content["recipe"])
        rows = tuple(_row(row) for row in content["rows"])
        facts = {name: kind(content[name]) for name, kind in _FACTS.items()}
        diverged, seen, absent = (tuple(map(str, content.get(name, ()))) for name in ("diverged", "seen", "absent"))
        missing = {str(k): tuple(map(int, seeds)) for k, seeds in content.get("missing_seeds", {}).items()}
        return Comparison(
            recipe=recipe,
            rows=rows,
            diverged=diverged,
            seen=seen,
            missing_seeds=missing,
            absent=absent,
            overlap_count=int(content.get("overlap_count", content.get("twice", 0))),
            metric=_known_metric(content.get("metric", "error")),
            **facts,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, FasterAAError) as error:
        raise RunError(f"{str(path)!r} is no comparison that fasteraa compare wrote: {cut(error)}") from error


def _known_metric(value: Any) -> str:
    if value not in _UNITS:
        raise ValueError(f"unknown metric {cut(value)}")
    return str(value)


_FACTS: dict[str, Any] = {
    "data": str, "train_images": int, "held_out_images": int, "held_out_from": str, "device": str, "missing": int,
}  # fmt: skip


def _row(row: dict[str, Any]) -> ComparisonRow:
    searched = row["search_seconds"]
    return ComparisonRow(
        label=str(row["label"]),
        hashes=tuple(map(str, row["hashes"])),
        errors={int(seed): float(error) for seed, error in row["errors"].items()},
        error=_estimate(row["error"]),
        against={str(name): _estimate(value) for name, value in row["against"].items()},
        search_seconds=None if searched is None else float(searched),
        train_seconds=float(row["train_seconds"]),
        learning_rate=None if row.get("learning_rate") is None else float(row["learning_rate"]),
    )


def _estimate(fields: dict[str, Any]) -> Estimate:
    half, p = fields["half"], fields["p"]
    return Estimate(
        float(fields["mean"]),
        math.inf if half is None else float(half),
        int(fields["n"]),
        None if p is None else float(p),
    )


# --- the picture -----------------------------------------------------------------------------------------------------

_WIDTH, _RIGHT, _LINE, _TOP = 760, 90, 28, 16
_LETTER = 7.5  # as wide as one of a name is drawn


def to_svg(comparison: Comparison, kind: str | None = None) -> str:
    """A line per policy: a dot per seed, the mean and its interval; lower is better. `kind` as in `svg.drawing`."""
    rows = sorted(comparison.rows, key=lambda row: row.error.mean)
    if not rows:
        return drawing(_WIDTH, 40, [text(20, 24, "No run has an error.")], "errors by policy", kind)
    names = [short(row.label) for row in rows]
    left = 24 + _LETTER * max(map(len, names))
    x = Scale.around([error for row in rows for error in row.errors.values()], left, _WIDTH - _RIGHT, room=0.15)
    bottom = _TOP + _LINE * len(rows) + 6
    marks = x_axis(x, _TOP, bottom)
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        y = _TOP + _LINE * (number + 0.5)
        marks += [text(left - 12, y + 4, name, "name"), *_row_marks(row, x, y)]
    title = f"{columns(comparison)[1]}, {comparison.data}"
    means = [row.error for row in rows if math.isfinite(row.error.half)]
    if any(each.mean - each.half < x.low or each.mean + each.half > x.high for each in means):
        title += " (an arrow: the interval leaves the plot)"
    marks.append(text((left + _WIDTH - _RIGHT) / 2, bottom + 31, title, "tick"))
    return drawing(_WIDTH, bottom + 36, marks, "errors by policy", kind)


def _row_marks(row: ComparisonRow, x: Scale, y: float) -> list[str]:
    marks = []
    if math.isfinite(row.error.half):
        marks.append(error_bar(x, y, row.error.mean - row.error.half, row.error.mean + row.error.half))
    marks += [dot(x(error), y) for error in row.errors.values()]
    marks.append(bar(x(row.error.mean) - 1.5, y - 8, 3, 16, "mean"))
    return [*marks, text(_WIDTH - _RIGHT + 12, y + 4, f"{row.error.mean:.2f}")]


# --- what hurts ------------------------------------------------------------------------------------------------------

_PER_OP = ("per_op.json", "per_op.md")


def publish_per_op(measured: PerOp, folder: Path) -> None:
    """per_op.json and per_op.md."""
    write_atomic(folder / "per_op.json", json.dumps(plain(_per_op_dict(measured)), indent=1) + "\n")
    write_atomic(folder / "per_op.md", per_op_markdown(measured))


def _per_op_dict(measured: PerOp) -> dict[str, Any]:
    """A policy by its name and hash; the numbers of its sub-policies count from 0, as in its file."""
    policies = [
        {"name": policy.name, "hash": policy.hash, "sub_policies": [asdict(each) for each in harms]}
        for policy, harms in measured.policies
    ]
    return {**vars(measured), "ops": [asdict(each) for each in measured.ops], "policies": policies}


_CHOOSE = (
    " These are the test images: to choose operations by this table, measure it on a part of the training images "
    "(--held-out 0.2), or errors on the test images will flatter the choice."
)


def per_op_markdown(measured: PerOp) -> str:
    """Loss of accuracy, in points, operation by operation and sub-policy by sub-policy."""
    levels = sorted({level for each in measured.ops for level in each.at})
    lines = [
        f"Accuracy on {measured.images} plain images ({measured.held_out_from}): {measured.accuracy:.2f}%. Points lost "
        "when every image passes through one operation (95% interval over images in brackets); the network was trained "
        f"without a policy.{_CHOOSE if measured.on_test_images else ''}",
        "",
        "| operation | " + " | ".join(f"at {level:g}" for level in levels) + " |",
        "|---|" + "---|" * len(levels),
    ]
    for each in measured.ops:
        shown = [f"{each.at[v].points:+.1f} (±{each.at[v].half:.1f})" if v in each.at else "" for v in levels]
        lines.append(f"| {each.op} | {' | '.join(shown)} |")
    for policy, harms in measured.policies:
        lines += [
            "",
            f"Sub-policies of {policy.name}, the most harmful first:",
            "",
            "| points lost | sub-policy |",
            "|---|---|",
        ]
        for harm in harms:
            words = describe_sub_policy(policy, policy.sub_policies[harm.number])
            lost = f"{harm.drop.points:+.1f} (±{harm.drop.half:.1f})"
            lines.append(markdown_row([lost, f"{harm.number + 1}. {words}"]))
    return "\n".join(lines) + "\n"
