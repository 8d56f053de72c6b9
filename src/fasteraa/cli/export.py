"""`fasteraa export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fasteraa.cli.echo import echo
from fasteraa.export.fidelity import COVERAGE

TARGET_NAMES = ", ".join(target for target in COVERAGE if " " not in target)


def export_command(
    policy: Annotated[str, typer.Argument(help="A policy file, a run folder, or a name.")],
    to: Annotated[str, typer.Option("--to", help=f"The target: {TARGET_NAMES}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write (.json or .yaml for albumentations).")],
    native: Annotated[
        bool, typer.Option("--native", help="albumentations: a tree of its own transforms that loads without fasteraa.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave this operation out: others take its share; may be given several times."),
    ] = None,
) -> None:
    """Write a policy for another library.

    It prints how faithful each operation is there.
    """
    from fasteraa.export import report, write
    from fasteraa.policy.resolve import load_policy

    chosen = load_policy(policy).without(*without or ())
    options = {"native": True} if native else {}
    notes = report(chosen, to, **options)
    write(chosen, to, out, **options)
    for line in [*grouped(notes), str(out)]:
        echo(line)


def grouped(notes: Sequence[str]) -> list[str]:
    """`rotate: exact`, `flip: exact` become `the same pixels: rotate, flip`; other lines stay as they are."""
    from fasteraa.ops import OPS

    names: dict[str, list[str]] = {}
    rest = []
    for line in notes:
        name, colon, how = line.partition(": ")
        if colon and name in OPS:
            names.setdefault(how, []).append(name)
        else:
            rest.append(line)
    return [
        *(f"{'the same pixels' if how == 'exact' else how}: {', '.join(ops)}" for how, ops in names.items()),
        *rest,
    ]
