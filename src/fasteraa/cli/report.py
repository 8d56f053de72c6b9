"""`fasteraa report`: a run as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasteraa.cli.app import app
from fasteraa.cli.echo import echo
from fasteraa.cli.errors import refuse_unused
from fasteraa.cli.options import DataRoot, warn_of_hidden_folder


@app.command("report")
def report_command(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a search.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page to write (default: report.html in the run folder).")
    ] = None,
    comparison: Annotated[
        Path | None, typer.Option(help="A folder of fasteraa compare; its table goes into the page.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            callback=warn_of_hidden_folder,
            help="The images for the gallery (default: those of the search, if known by name).",
        ),
    ] = None,
    data_root: DataRoot = None,
    serve: Annotated[bool, typer.Option("--serve", help="Follow the run in a browser, on this machine alone.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where --serve listens; 0 takes a free port.")] = 8717,
) -> None:
    """Write one HTML page about a search.

    It shows what to use, how that was chosen, and what it does to images; --serve follows a run that has not ended.
    """
    from fasteraa.errors import ConfigError
    from fasteraa.report.page import Options, write_report

    options = Options(comparison, source, data_root)
    if not serve:
        refuse_unused(context, ("port",), "without --serve")
        target = run / "report.html" if out is None else out
        write_report(run, target, options)
        echo(str(target))
        return
    if out is not None:
        raise ConfigError("--serve writes no file: leave out --out, or --serve")
    from fasteraa.report.serve import make_server

    server = make_server(run, port, options)
    host, bound = server.server_address[:2]
    print(f"http://{host!s}:{bound}/ (Ctrl-C ends it)", flush=True)
    server.serve_forever()
