"""`fasteraa reproduce`: the paper's tables and figures."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fasteraa.cli.app import app
from fasteraa.cli.echo import echo
from fasteraa.cli.errors import refuse_unused
from fasteraa.cli.options import (
    Address,
    AsJson,
    DataRoot,
    Device,
    Devices,
    EndEarly,
    EngineName,
    RunsAtOnce,
    command_line,
)


@app.command("reproduce")
def reproduce_command(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="The table or figure; all are listed if left out.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data and networks on the CPU, in seconds.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder (default: runs/reproduce); runs that are there are not repeated."),
    ] = None,
    data_root: DataRoot = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="FILE.npz in place of the named sets, or NAME=FILE.npz for one; may be given several times."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of every number (default: 3, as the paper).")] = None,
    subset: Annotated[int | None, typer.Option(min=2, help="Train networks on this many images.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only lines with this in data, network or label; of several, with all."),
    ] = None,
    jobs: RunsAtOnce = None,
    minutes: EndEarly = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing: make the table from what is there.")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Take learning rate and weight decay from a small grid first, without a policy."),
    ] = False,
    norm_free: Annotated[
        bool,
        typer.Option("--norm-free", help="Search with our critic: no batch norm, and draws for each image."),
    ] = False,
    device: Device = "auto",
    devices: Devices = None,
    engine: EngineName = "local",
    address: Address = None,
    json_: AsJson = False,
) -> None:
    """Run a table of the paper, beside the paper's own numbers."""
    if name is None:
        unused = [each for each in context.params if each not in ("name", "json_")]
        refuse_unused(context, unused, "without the name of a table")
        _list(json_)
        return
    if quick:
        refuse_unused(context, ("device", "devices", "data_root", "source", "subset"), "with --quick")
    if table_only:
        refuse_unused(context, ("jobs", "minutes", "devices", "engine", "address"), "with --table-only")
    from fasteraa.cli.tables import print_json, print_table
    from fasteraa.reproduce.render import caption, remarks, rows_of, summary
    from fasteraa.reproduce.setting import parse_sources
    from fasteraa.reproduce.table_runner import not_ready, reproduce
    from fasteraa.reproduce.tables import with_beside
    from fasteraa.runtime.clock import end_of

    folder = out or Path("runs/reproduce-quick" if quick else "runs/reproduce")
    end = end_of(minutes)
    documents: list[Any] = []
    for each in with_beside(name):
        if each != name and not only and (why := not_ready(each, folder)):
            echo(f"left out: {why}", err=True)
            continue
        result = reproduce(
            each,
            folder,
            quick=quick,
            seeds=seeds,
            jobs=jobs,
            device=device,
            devices=devices,
            engine=engine,
            address=address,
            data_root=data_root,
            sources=parse_sources(source or ()),
            subset=subset,
            only=only or (),
            minutes=None if math.isinf(end) else max((end - time.time()) / 60, 0.0),
            table_only=table_only,
            tune=tune,
            norm_free=norm_free,
            say=(lambda text: None) if json_ else echo,
            command=command_line(),
        )
        file = folder / result.table.name / result.file
        if json_:
            documents.append(json.loads(Path(f"{file}.json").read_text(encoding="utf-8")))
            continue
        print_table(result.table.title, *rows_of(result))
        echo("\n".join([caption(result), summary(result), *remarks(result)]))
        echo(f"table: {file}.md\nplot:  {file}.svg\ndata:  {file}.json")
    if json_:
        print_json(documents)


def _list(as_json: bool) -> None:
    from fasteraa.cli.tables import print_json
    from fasteraa.reproduce.tables import TABLES

    runnable = {name: sum(line.policy is not None for line in table.lines) for name, table in TABLES.items()}
    if as_json:
        rows = [(name, table.title, runnable[name], len(table.lines)) for name, table in TABLES.items()]
        print_json([dict(zip(("name", "title", "runnable", "numbers"), row, strict=True)) for row in rows])
        return
    for name, table in TABLES.items():
        ours = runnable[name]
        echo(f"{name:16} {table.title}; {ours} of its {len(table.lines)} numbers can be run")
