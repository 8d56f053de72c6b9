"""Tables for people and for the docs, made from the same rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

OPS_COLUMNS = ("name", "family", "unit", "at 0", "at 1", "signed", "discrete", "gradient", "what it does")


def op_rows() -> list[tuple[str, ...]]:
    from fasteraa.ops import OPS

    rows: list[tuple[str, ...]] = []
    for row in OPS.values():
        span = row.span
        unit, zero, one = (span.unit, f"{span.at_zero:g}", f"{span.at_one:g}") if span else ("", "", "")
        if span and row.signed:  # both directions
            one = f"{span.value(1.0, -1.0):g} / {one}"
        yes = ("yes" if row.signed else "", "yes" if row.discrete else "")
        rows.append((row.name, row.family.name, unit, zero, one, *yes, row.gradient, row.doc))
    return rows


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def print_json(value: Any) -> None:
    """For programs: as it is, whatever the width of the terminal."""
    print(json.dumps(value, indent=1))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")  # not cut: a path that is too long continues in the next line
    for row in rows:
        table.add_row(*row)
    console = Console()
    # piped output has no width to fit
    (console if console.is_terminal else Console(width=160)).print(table)
