"""Print measurements as tables with their ratios, and keep them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fasteraa.bench.apply import Table
from fasteraa.bench.machine import describe_machine


def publish(tables: Sequence[Table], out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    machine = describe_machine()
    console = Console(width=None if Console().is_terminal else 120)
    for table in tables:
        peer, shown = table.best_peer, RichTable(title=f"{table.size}x{table.size}, AutoAugment CIFAR-10, one thread")
        for column in ("contender", "against Pillow", "images/s", f"/ {peer.name}"):
            shown.add_column(column, justify="left" if column in ("contender", "against Pillow") else "right")
        for row in sorted(table.rows, key=lambda row: -row.images_per_second):
            ratio = row.images_per_second / peer.images_per_second
            shown.add_row(row.name, row.exact, f"{row.images_per_second:,.0f}", f"{ratio:.2f}")
        console.print(shown)
        largest, single = table.largest_batch, table.speed("fasteraa, Pillow image")
        console.print(
            f"{largest.name}: {largest.images_per_second / single:.2f} times one Pillow image after the other"
        )
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            record = {"bench": "apply", "machine": machine, "tables": [asdict(table) for table in tables]}
            file.write(json.dumps(record) + "\n")
