"""Every command of `fasteraa`. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasteraa._version import __version__

app = typer.Typer(
    name="fasteraa",
    help="Find the best augmentation for your images by backpropagation, and apply it exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench_app = typer.Typer(help="Measure speed, side by side with other libraries.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("ops")
def list_ops(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table, as the docs have it.")] = False,
) -> None:
    """Print the table of operations."""
    from fasteraa.cli.tables import OPS_COLUMNS, markdown_table, op_rows, print_table

    if markdown:
        typer.echo(markdown_table(OPS_COLUMNS, op_rows()))
    else:
        print_table("Operations", OPS_COLUMNS, op_rows())


PolicyArgument = Annotated[str, typer.Argument(help="A policy file, or a name such as 'trivialaugment-wide'.")]


@app.command("show")
def show(
    policy: PolicyArgument, discrete: Annotated[bool, typer.Option(help="One operation per stage.")] = False
) -> None:
    """Print a policy in words."""
    from fasteraa.policy.find import find_policy

    found = find_policy(policy)
    typer.echo((found.discretize() if discrete else found).describe())


@app.command("import")
def import_policy(
    file: Annotated[Path, typer.Argument(help="Fast AutoAugment's list of sub-policies, or a PBA schedule.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy file to write; a folder for a whole schedule.")],
    epoch: Annotated[int | None, typer.Option(help="Of a schedule, take only the policy of this epoch.")] = None,
) -> None:
    """Turn a policy of another system into a policy file."""
    from fasteraa.policy.imports import import_file

    for path, found in import_file(file, out, epoch):
        typer.echo(f"{path}: {found.describe().splitlines()[0]}")


@bench_app.command("apply")
def bench_apply(
    size: Annotated[list[int] | None, typer.Option(help="Image side; may be given several times.")] = None,
    seconds: Annotated[float, typer.Option(help="Time for each contender and size.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="Append the measurement to this JSON-lines file.")] = None,
) -> None:
    """Images per second on one CPU thread, beside torchvision v2, timm and kornia."""
    from fasteraa.bench import report
    from fasteraa.bench.apply import run

    report.publish(run(tuple(size or (32, 224)), seconds), out)
