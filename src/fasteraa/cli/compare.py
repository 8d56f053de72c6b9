"""`fasteraa compare` and `fasteraa evaluate`: what a policy does to the error of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasteraa.cli.app import app
from fasteraa.cli.echo import echo
from fasteraa.cli.options import (
    Address,
    AsJson,
    DataRoot,
    Device,
    Devices,
    EndEarly,
    EngineName,
    GroupBy,
    Metric,
    Pretrained,
    RunsAtOnce,
    Size,
    SourceArgument,
    Trackers,
    Validation,
    Weights,
    Window,
    command_line,
)
from fasteraa.cli.search import parse_window

if TYPE_CHECKING:
    from fasteraa.comparison.table import Comparison
    from fasteraa.report.trackers import Tracking
    from fasteraa.train.recipe import TrainRecipe

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The folder (default: runs/compare-DATA); runs that are there are not repeated."),
]
Network = Annotated[str, typer.Option(help="auto, wrn-40-2, wrn-28-10, small, timm:NAME, ...")]
Preset = Annotated[str | None, typer.Option(help="The paper's training: cifar/wrn-40-2, svhn/wrn-28-10, ...")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the images (default: the recipe's).")]
BatchSize = Annotated[int | None, typer.Option(min=2, help="Images of a step (default: the recipe's).")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate (default: the recipe's).")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay (default: the recipe's).")]
Optimizer = Annotated[str | None, typer.Option(help="sgd or adamw (default: the recipe's).")]
Freeze = Annotated[bool | None, typer.Option("--freeze", help="Train the head alone: a linear probe.")]
Cutout = Annotated[int | None, typer.Option(min=0, help="Pixels cut out after every policy but none.")]
Flip = Annotated[bool | None, typer.Option(help="Random horizontal flip; switch it off for text and digits.")]
Subset = Annotated[int | None, typer.Option(min=2, help="Train on this many images, spread evenly over the classes.")]
HeldOut = Annotated[
    float | None, typer.Option(help="Measure on this share of the training images instead of the test images.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting of the training, as NAME=VALUE: learning_rate=0.05.")
]


@app.command("compare")
def compare_command(
    source: SourceArgument = None,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            "-p",
            help="Names, files or run folders, separated by commas; LABEL=A+B+C puts several in one row.",
        ),
    ] = "none,trivialaugment-wide,uniform",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    out: Out = None,
    network: Network = "auto",
    pretrained: Pretrained = False,
    weights: Weights = None,
    preset: Preset = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    weight_decay: WeightDecay = None,
    optimizer: Optimizer = None,
    freeze: Freeze = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    validation: Validation = None,
    group_by: GroupBy = None,
    metric: Metric = None,
    window: Window = None,
    set_: Set = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Take the best learning rate and weight decay of six, measured without a policy."),
    ] = False,
    tune_lr: Annotated[
        bool,
        typer.Option("--tune-lr", help="Take the best learning rate of three for each policy, on training images."),
    ] = False,
    jobs: RunsAtOnce = None,
    per_op: Annotated[bool, typer.Option("--per-op", help="Also measure which operations hurt predictions.")] = False,
    minutes: EndEarly = None,
    device: Device = "auto",
    devices: Devices = None,
    engine: EngineName = "local",
    address: Address = None,
    data_root: DataRoot = None,
    tracker: Trackers = None,
    json_: AsJson = False,
) -> None:
    """Measure the errors of policies, with several seeds.

    A network is trained with each policy and seed; the table has their errors side by side.
    """
    from fasteraa.api import compare
    from fasteraa.errors import RunError
    from fasteraa.report.trackers import track
    from fasteraa.runtime.progress import Lines, Silent
    from fasteraa.runtime.ranks import own_rank

    first = own_rank() == 0  # of torchrun's ranks, which share every training; it alone writes and prints
    progress = Lines() if first and not json_ else Silent()
    out = out or _folder(source)
    given: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "cutout": cutout, "flip": flip}
    given |= {"learning_rate": lr, "weight_decay": weight_decay, "optimizer": optimizer, "freeze": freeze}
    with track(*(tracker or [] if first else []), folder=out, kind="compare", progress=progress) as tracking:
        tracking.begin({"data": source or "sample", "policies": policies, "seeds": seeds, "network": network})
        comparison = compare(
            source,
            policies,
            out=out,
            seeds=seeds,
            recipe=_paper(preset),
            network=network,
            pretrained=pretrained,
            weights=weights or "",
            train=_train_settings(given, set_),
            jobs=jobs,
            device=device,
            devices=devices,
            engine=engine,
            address=address,
            minutes=minutes,
            per_op=per_op,
            tune=tune,
            tune_lr=tune_lr,
            metric=metric or "error",
            validation=validation or "",
            group_by=group_by or "",
            command=command_line(),
            progress=progress,
            data_root=data_root,
            size=size,
            subset=subset,
            held_out=held_out,
            window=None if window is None else parse_window(window),
        )
        if first and json_:
            echo((out / "comparison.json").read_text(encoding="utf-8").rstrip())
        elif first:
            _print(comparison, out, per_op)
        _track(comparison, range(seeds), tracking)
    if first and not json_:
        files = f"table: {out / 'comparison.md'}\nplot:  {out / 'comparison.svg'}\ndata:  {out / 'comparison.json'}"
        echo(files)
    if comparison.diverged:
        raise RunError(
            f"these runs diverged and are not in the table: {'; '.join(comparison.diverged)}; "
            "lower the learning rate (--lr)"
        )


@app.command("evaluate")
def evaluate_command(
    source: SourceArgument = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="A policy file, a run folder, or a name.")] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and draws.")] = 0,
    out: Out = None,
    network: Network = "auto",
    pretrained: Pretrained = False,
    weights: Weights = None,
    preset: Preset = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    weight_decay: WeightDecay = None,
    optimizer: Optimizer = None,
    freeze: Freeze = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    validation: Validation = None,
    group_by: GroupBy = None,
    window: Window = None,
    set_: Set = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    json_: AsJson = False,
) -> None:
    """Measure the error of one policy, with one seed.

    A single run of compare, kept in the same folder.
    """
    from fasteraa.api import evaluate
    from fasteraa.cli.tables import print_json
    from fasteraa.report.comparison import seen_words
    from fasteraa.runtime.documents import plain
    from fasteraa.runtime.progress import Lines
    from fasteraa.runtime.ranks import own_rank

    given: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "cutout": cutout, "flip": flip}
    given |= {"learning_rate": lr, "weight_decay": weight_decay, "optimizer": optimizer, "freeze": freeze}
    evaluation = evaluate(
        source,
        policy,
        out=out or _folder(source),
        seed=seed,
        recipe=_paper(preset),
        network=network,
        pretrained=pretrained,
        weights=weights or "",
        train=_train_settings(given, set_),
        device=device,
        command=command_line(),
        progress=Lines() if own_rank() == 0 and not json_ else None,
        data_root=data_root,
        size=size,
        subset=subset,
        held_out=held_out,
        validation=validation or "",
        group_by=group_by or "",
        window=None if window is None else parse_window(window),
    )
    if own_rank() > 0:  # rank 0 of torchrun prints
        return
    if json_:
        print_json(plain(evaluation.to_dict()))
        return
    echo(evaluation.sentence())
    if evaluation.has_seen:
        echo(seen_words([evaluation.job.label]).strip())


def _paper(preset: str | None) -> TrainRecipe | None:
    from fasteraa.train.recipe import paper_recipe

    return None if preset is None else paper_recipe(preset)


def _train_settings(given: Mapping[str, Any], set_: Sequence[str] | None) -> dict[str, Any]:
    from fasteraa.cli.search import assignment

    flags = {name: value for name, value in given.items() if value is not None}
    return {**dict(assignment(text) for text in set_ or ()), **flags}


def _folder(source: str | None) -> Path:
    """One for each data set: a comparison replaces what its folder holds."""
    from fasteraa.data.image_folder import folder_name
    from fasteraa.data.resolve import SAMPLE
    from fasteraa.runtime.files import as_file_name

    path = Path(os.path.abspath(os.path.expanduser(source or SAMPLE)))
    return Path("runs") / f"compare-{as_file_name(path.stem if path.is_file() else folder_name(path))}"


def _track(comparison: Comparison, seeds: Sequence[int], tracking: Tracking) -> None:
    """The errors of a seed, of all policies, are a row; their means are the result."""
    for seed in seeds:
        errors = {f"error/{row.label}": row.errors[seed] for row in comparison.rows if seed in row.errors}
        if errors:
            tracking.log(errors, seed)
    tracking.note({f"error/{row.label}": row.error.mean for row in comparison.rows})


def _print(comparison: Comparison, out: Path, per_op: bool) -> None:
    from fasteraa.cli.tables import print_table
    from fasteraa.report.comparison import caption, columns, sentence, table_rows

    print_table("Errors", columns(comparison), table_rows(comparison))
    echo(f"{caption(comparison)}\n{sentence(comparison)}")
    page = out / "per_op.md"
    if per_op and page.is_file():
        echo(f"{page.read_text(encoding='utf-8')}\nper operation: {page}, {out / 'per_op.json'}")
