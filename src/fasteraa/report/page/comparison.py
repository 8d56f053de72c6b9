"""The comparison on the page: its table and picture, and the tables of what hurts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from fasteraa.comparison.table import Comparison
from fasteraa.report.comparison import caption, columns, sentence, table_rows, to_svg


def comparison_section(table: Comparison | None) -> dict[str, Any] | None:
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
