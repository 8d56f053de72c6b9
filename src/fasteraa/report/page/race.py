"""The race on the page: the recommendation, the table of candidates, and the effects of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from fasteraa.report.charts import Forest, row_bar
from fasteraa.report.page.facts import dig, numbers, race_of
from fasteraa.report.run_record import RunRecord
from fasteraa.selection.ranking import percent

_FEW = 3  # trainings from which on a difference has an interval


@dataclass(frozen=True)
class CandidateRow:
    """A candidate in the table of the race."""

    label: str
    chosen: bool
    error: float
    difference: tuple[float, float | None] | None  # to none, with half of its interval
    better: str
    loss: str
    trainings: int
    failed: str
    eliminated: bool = False
    plot: Markup = field(default_factory=Markup)

    @property
    def against_none(self) -> str:
        """`-2.5 ± 0.8`."""
        if self.difference is None:
            return ""
        mean, half = self.difference
        return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")


@dataclass(frozen=True)
class RaceSection:
    """What the page shows of a race; all of it is empty where there was none."""

    sentence: str
    rows: Sequence[CandidateRow]
    scores: Sequence[Mapping[str, Any]]  # of a race by somebody's own training
    not_raced: Sequence[str]
    axis: Markup
    effects: Sequence[Mapping[str, Any]]
    effects_axis: Markup

    @property
    def differences(self) -> bool:
        return any(row.difference for row in self.rows)

    @property
    def sure(self) -> bool:
        """Whether a row has a probability."""
        return any(row.better for row in self.rows)

    @property
    def cut(self) -> bool:
        """Whether an interval leaves the plot."""
        return any("arrow" in row.plot for row in self.rows)


def race_section(run: RunRecord, facts: dict[str, Any]) -> RaceSection:
    """The recommendation, and the table that the race left in the policy, if it is one."""
    race = race_of(facts)
    rows, axis = _candidate_rows(race, run)
    raced, proposed = {row.label for row in rows}, run.result.get("candidates")
    sentence = dig(race, "sentence") or run.result.get("recommendation")
    effects, effects_axis = _effect_rows(dig(race, "effects", "of"))
    return RaceSection(
        sentence=str(sentence) if sentence is not None else "",
        rows=rows,
        scores=score_rows(run.result),
        not_raced=[label for label in proposed if label not in raced] if rows and isinstance(proposed, dict) else [],
        axis=axis,
        effects=effects,
        effects_axis=effects_axis,
    )


def _candidate_rows(race: Any, run: RunRecord) -> tuple[list[CandidateRow], Markup]:
    """The rows with their plots, and the axis under them."""
    table = dig(race, "table")
    listed = [row for row in table if numbers(dig(row, "errors"))] if isinstance(table, list) else []
    rows = [_candidate_row(row, race, run) for row in listed]
    most = max((row.trainings for row in rows), default=0)
    furthest = [row for row in rows if row.trainings == most]
    forest = Forest([row.difference for row in furthest if row.difference and not row.failed])
    with_plots = [replace(row, plot=_plot(row, rows, forest), eliminated=row.trainings < most) for row in rows]
    return with_plots, forest.axis()


def _candidate_row(row: Any, race: Any, run: RunRecord) -> CandidateRow:
    errors, losses = numbers(dig(row, "errors")), numbers(dig(row, "losses"))
    failed = dig(row, "failed") or dig(row, "diverged")
    label = str(dig(row, "candidate"))
    table = run.result.get("table")
    known = next((each for each in table if dig(each, "label") == label), None) if isinstance(table, list) else None
    difference = _difference(known)
    if difference is not None and len(errors) < _FEW:
        difference = difference[0], None  # an interval of two trainings says nothing, and dwarfs all others
    return CandidateRow(
        label=label,
        chosen=dig(row, "candidate") == dig(race, "chosen"),
        error=sum(errors) / len(errors),
        difference=difference,
        better=_short_percent(dig(known, "better")) if numbers([dig(known, "better")]) else "",
        loss=f"{sum(losses) / len(losses):.3f}" if losses else "",
        trainings=len(errors),
        failed=str(failed) if failed else "",
    )


def _difference(row: Any) -> tuple[float, float | None] | None:
    """To none, with half of its interval; of one training there is no interval."""
    mean, half = dig(row, "against_none", "mean"), dig(row, "against_none", "half")
    if not numbers([mean]):
        return None
    return mean, half if numbers([half]) else None


def _plot(row: CandidateRow, rows: Sequence[CandidateRow], forest: Forest) -> Markup:
    """Its difference to none with an interval; where none was not raced, its error as a bar."""
    if not any(each.difference for each in rows):
        return row_bar(row.error, max(each.error for each in rows))
    if row.failed or row.difference is None:
        return Markup("")
    mean, half = row.difference
    return forest.row(mean, half, _kind_of(mean, half))


def _kind_of(mean: float, half: float | None) -> str:
    """good or bad where the interval leaves out zero."""
    if half is None or abs(mean) <= half:
        return ""
    return "good" if mean < 0 else "bad"


def _short_percent(probability: float) -> str:
    """For a narrow column: `>99%`."""
    return percent(probability).replace("more than ", ">").replace("under ", "<")


def score_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a race by somebody's own training, as its result.json has them."""
    table = result.get("table") if "maximize" in result else None
    rows = [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []
    return [
        {
            "label": str(row.get("label")),
            "chosen": row.get("label") == result.get("chosen"),
            "score": f"{row['score']:.5g}" if numbers([row.get("score")]) else "",
            "runs": len(numbers(row.get("scores"))),
            "better": _short_percent(row["better"]) if numbers([row.get("better")]) else "",
            "note": str(row["failed"]) if row.get("failed") else "eliminated" if row.get("eliminated") else "",
        }
        for row in rows
    ]


def _effect_rows(of: Any) -> tuple[list[dict[str, Any]], Markup]:
    """What helps first: operation, change of the loss in %, two standard errors of it; and the axis under them."""
    pairs = of.items() if isinstance(of, dict) else ()
    effects = [(str(op), float(pair[0]), 2 * float(pair[1])) for op, pair in pairs if len(numbers(pair)) == 2]
    effects.sort(key=lambda row: row[1])
    forest = Forest([(effect, error) for _, effect, error in effects])
    rows = []
    for op, effect, error in effects:
        kind = _kind_of(effect, error)
        plot = forest.row(effect, error, kind)
        rows.append({"op": op, "effect": effect, "error": error, "kind": kind, "plot": plot})
    return rows, forest.axis()
