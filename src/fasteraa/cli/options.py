"""Flags and arguments that several commands have, each said once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fasteraa.cli.echo import echo
from fasteraa.methods.config import FIELDS
from fasteraa.selection.config import RaceConfig


def about(setting: str) -> str:
    """The help of a setting, from the config that owns it."""
    return str(FIELDS[setting].metadata["about"])


def about_race(setting: str) -> str:
    return str(RaceConfig.fields()[setting].metadata["about"])


def command_line() -> str:
    """The command line as it was given, quoted for a shell."""
    return shlex.join(["fasteraa", *sys.argv[1:]])


def warn_of_hidden_folder(source: str | None) -> str | None:
    """The same word may stand for a known data set and for a folder: say which one is taken."""
    if source is not None:
        from fasteraa.data.resolve import hidden_folder_hint

        if hint := hidden_folder_hint(source):
            echo(f"fasteraa: {hint}", err=True)
    return source


SourceArgument = Annotated[
    str | None,
    typer.Argument(
        callback=warn_of_hidden_folder,
        help="A folder of class folders (or of images/ and masks/), a .csv/.jsonl/.parquet manifest, a named set such "
        "as cifar10, an .npz file, hf:NAME, shards/{000..003}.tar; the embedded sample if left out.",
        show_default=False,
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="Where named sets lie (default: $FASTERAA_DATA_ROOT, ./data).")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings from a TOML file; flags override them.")]
Preset = Annotated[
    str | None,
    typer.Option(
        help="paper: each method's published settings, trainings and number of images, for cifar10, cifar100, svhn or "
        "imagenet; for any other source all images, with the settings for CIFAR-10."
    ),
]
# the settings that have a flag; the others are set in a TOML file or with --set
Seed = Annotated[int | None, typer.Option(help=about("seed"), show_default="0")]
Epochs = Annotated[int | None, typer.Option(help=about("epochs"))]
BatchSize = Annotated[int | None, typer.Option(help=about("batch_size"), show_default="128")]
Subset = Annotated[int | None, typer.Option(help=about("subset"))]
HeldOut = Annotated[float | None, typer.Option(help=about("held_out"), show_default="0")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Window = Annotated[str | None, typer.Option(help=about("window"), metavar="LOW,HIGH")]
Size = Annotated[int | None, typer.Option(help="Image side (default: that of the images).")]
SearchSize = Annotated[int | None, typer.Option(help=about("size"))]
Ops = Annotated[str | None, typer.Option(help=about("ops") + " Names separated by commas.")]
SubPolicies = Annotated[int | None, typer.Option(help=about("sub_policies"), show_default="10")]
OperationCount = Annotated[int | None, typer.Option(help=about("operation_count"), show_default="2")]
Critic = Annotated[str | None, typer.Option(help=about("critic"), show_default="auto")]
Flip = Annotated[bool | None, typer.Option(help=about("flip"), show_default="flip")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any other setting, as NAME=VALUE (see fasteraa config), train.NAME=VALUE or METHOD.NAME=VALUE."
    ),
]
RaceMinutes = Annotated[float | None, typer.Option(help=about_race("minutes"), show_default="1.5")]
RaceTrainings = Annotated[int | None, typer.Option(help=about_race("trainings"))]
Network = Annotated[str | None, typer.Option(help=about_race("network"))]
Pretrained = Annotated[bool, typer.Option("--pretrained", help=about_race("pretrained"))]
Weights = Annotated[str | None, typer.Option(help=about_race("weights"), show_default=False)]
Metric = Annotated[str | None, typer.Option(help=about_race("metric"), show_default="error")]
Validation = Annotated[str | None, typer.Option(help=about_race("validation"), show_default=False)]
GroupBy = Annotated[str | None, typer.Option(help=about_race("group_by"), show_default=False)]
Tune = Annotated[bool | None, typer.Option("--tune", help=about_race("tune"), show_default=False)]
Judge = Annotated[str | None, typer.Option(help=about_race("judge"), show_default="auto")]
TrainEpochs = Annotated[int | None, typer.Option(help=about_race("epochs"))]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trainings at once (default: 20 on each GPU, cores on a CPU).")]
RunsAtOnce = Annotated[
    int | None, typer.Option(min=1, help="Runs at once (default: up to 8 small ones on a GPU, cores on a CPU).")
]
Minutes = Annotated[float | None, typer.Option(help="A limit on everything together, in minutes.")]
EndEarly = Annotated[float | None, typer.Option(help="End after this many minutes; the same command continues.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Devices = Annotated[str | None, typer.Option(help="GPUs for trainings, such as 0,1 (default: all of the machine).")]
EngineName = Annotated[
    str, typer.Option("--engine", help="What trains: local (this machine), ray (a cluster) or another package's.")
]
Address = Annotated[
    str | None, typer.Option(help="ray: HOST:PORT of the cluster's head, or auto (default: the one of this machine).")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker", help="Numbers and results also go to tensorboard, wandb or mlflow; may be given several times."
    ),
]
