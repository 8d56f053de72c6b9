"""What commands print: names in it may be a stranger's, so whatever steers a terminal is made visible."""

from __future__ import annotations

import typer

from fasteraa.runtime.documents import printable


def echo(text: object, nl: bool = True, err: bool = False) -> None:
    typer.echo(printable(text, keep="\n\t"), nl=nl, err=err)
