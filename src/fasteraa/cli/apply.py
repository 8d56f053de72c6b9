"""`fasteraa apply`: an augmented copy of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasteraa.cli.app import app
from fasteraa.cli.echo import echo
from fasteraa.cli.options import Address, DataRoot, Device, SourceArgument


@app.command("apply")
def apply_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write; the same command continues there.")],
    source: SourceArgument = None,
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="A policy file, a run folder, or a name.")
    ] = "trivialaugment-wide",
    copies: Annotated[int, typer.Option(min=1, help="Augmented copies of every image.")] = 1,
    format_: Annotated[
        str, typer.Option("--format", help="shards (WebDataset's tar files), or folder (a folder for each class).")
    ] = "shards",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Tasks at once (default: cores); the result does not depend on it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="All draws, and the order of images in shards.")] = 0,
    split: Annotated[str, typer.Option(help="The images to augment: train, val or test.")] = "train",
    size: Annotated[
        int | None, typer.Option(help="Scale and crop images to this side (default: they keep theirs).")
    ] = None,
    encoding: Annotated[str, typer.Option(help="png, jpg, or auto: jpg for what is JPEG, png for all else.")] = "auto",
    shard_size: Annotated[int, typer.Option(min=1, help="Augmented images in a shard.")] = 5000,
    window: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Levels of images with more than 8 bits that become 0 and 255."),
    ] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    engine: Annotated[
        str, typer.Option("--engine", help="What runs the tasks: local (processes here) or ray (a cluster).")
    ] = "local",
    address: Address = None,
) -> None:
    """Write augmented copies of a data set.

    As shards or as image folders.
    """
    from fasteraa.api import apply
    from fasteraa.cli.search import parse_window

    made = apply(
        source,
        policy,
        out=out,
        copies=copies,
        format=format_,
        workers=workers,
        seed=seed,
        split=split,
        size=size,
        encoding=encoding,
        shard_size=shard_size,
        window=None if window is None else parse_window(window),
        device=device,
        data_root=data_root,
        engine=engine,
        address=address,
        say=echo,
    )
    echo(made.words())
