"""Print measurements as tables with their ratios, and keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fasteraa.bench.apply import COPY, Table
from fasteraa.bench.machine import describe_machine
from fasteraa.bench.search import PLAIN, Timing
from fasteraa.runtime.files import append_line

if TYPE_CHECKING:
    from rich.console import Console

    from fasteraa.bench.offline import OfflineSpeed


def publish(tables: Sequence[Table], out: Path | None, as_json: bool = False) -> None:
    """A table for each size; as JSON, the record that `out` gets."""
    from rich.table import Table as RichTable

    machine, console = describe_machine(), _console()
    if _keep({"bench": "apply", "machine": machine, "tables": [asdict(table) for table in tables]}, out, as_json):
        return
    for table in tables:
        peer, where = table.best_peer, "one thread" if table.device == "cpu" else table.device
        shown = RichTable(title=f"{table.size}x{table.size}, AutoAugment CIFAR-10, {where}")
        for column in ("contender", "against Pillow", "images/s", f"/ {peer.name}"):
            shown.add_column(column, justify="left" if column in ("contender", "against Pillow") else "right")
        for row in sorted(table.rows, key=lambda row: -row.images_per_second):
            ratio = row.images_per_second / peer.images_per_second
            shown.add_row(row.name, row.exact, f"{row.images_per_second:,.0f}", f"{ratio:,.2f}")
        console.print(shown)
        console.print(_remark(table))
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))


def _remark(table: Table) -> str:
    """The ratio that the benchmark is about."""
    largest = table.largest_batch
    if any(row.name == COPY for row in table.rows):
        return f"{largest.name}: {largest.images_per_second / table.speed(COPY):.2f} of the speed of a {COPY}"
    single = table.speed("fasteraa, Pillow image")
    return f"{largest.name}: {largest.images_per_second / single:.2f} times one Pillow image after the other"


def publish_search(
    tables: Sequence[Timing], settings: Mapping[str, Any], out: Path | None, as_json: bool = False
) -> None:
    """Each table's ratios are to its second row where there is a plain step, and to its first elsewhere."""
    from rich.table import Table as RichTable

    machine, console = describe_machine(), _console()
    rows = [asdict(table) for table in tables]
    if _keep({"bench": "search", "machine": machine, "settings": dict(settings), "tables": rows}, out, as_json):
        return
    for table in tables:
        reference = table.rows[1 if table.rows[0].name == PLAIN else 0]
        shown = RichTable(title=f"{table.title}: {table.backbone} on {table.device}")
        for column in ("step", "ms", f"/ {reference.name}", "a search, s", "start, s", "peak MiB"):
            shown.add_column(column, justify="left" if column == "step" else "right")
        for row in table.rows:
            ratio, peak = row.milliseconds / reference.milliseconds, "" if row.peak_mib is None else f"{row.peak_mib:,}"
            seconds = (f"{row.search_seconds:.1f}", f"{row.start_seconds:.1f}")
            shown.add_row(row.name, f"{row.milliseconds:.2f}", f"{ratio:.2f}", *seconds, peak)
        console.print(shown)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))


def publish_offline(speed: OfflineSpeed, out: Path | None, as_json: bool = False) -> None:
    """A line, and the machine."""
    machine, console = describe_machine(), _console()
    ratios = {"ratio": round(speed.ratio, 3), "cpu_ratio": round(speed.cpu_ratio, 3)}
    limits = {"limit": speed.limit, "shares": {name: round(share, 3) for name, share in speed.shares.items()}}
    if _keep({"bench": "offline", "machine": machine, **ratios, **limits, **asdict(speed)}, out, as_json):
        return
    memory = "" if speed.peak_mib is None else f"; at most {speed.peak_mib:,} MiB in a worker"
    console.print(
        f"{speed.images_per_second:,.0f} images a second ({speed.images:,} images of {speed.size}x{speed.size}, "
        f"{speed.copies} copies, {speed.workers} workers, {speed.device}, {speed.seconds:.1f} s): {speed.ratio:.2f} of "
        f"policy and encoding alone, {speed.cpu_ratio:.2f} by processor time{memory}",
        highlight=False,
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in speed.shares.items())
    console.print(f"What limits it: {speed.limit} (of a worker's time {shares})", highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if Console().is_terminal else 120)


def _keep(record: Mapping[str, Any], out: Path | None, as_json: bool) -> bool:
    """In the file, if there is one; and printed, if JSON was asked for."""
    if out is not None:
        append_line(out, record)
    if as_json:
        print(json.dumps(record, indent=1))
    return as_json
