"""`fasteraa compare` and `fasteraa evaluate`: what a policy does to the error of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasteraa.cli.app import DataRoot, Size, SourceArgument, Trackers, Window, about_race, app, command_line
from fasteraa.cli.search import parse_window

if TYPE_CHECKING:
    from fasteraa.comparison.table import Comparison
    from fasteraa.report.trackers import Tracking
    from fasteraa.train.recipe import TrainRecipe

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The folder (default: runs/compare-DATA); what is found there is not run again."),
]
Network = Annotated[str, typer.Option(help="auto, wrn-40-2, wrn-28-10, small, timm:NAME, ...")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help=about_race("pretrained"))]
Weights = Annotated[str, typer.Option(help=about_race("weights"), show_default=False)]
Preset = Annotated[str | None, typer.Option(help="The paper's training: cifar/wrn-40-2, svhn/wrn-28-10, ...")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the images (default: by the recipe).")]
BatchSize = Annotated[int | None, typer.Option(min=2, help="Images of a step (default: by the recipe).")]
Cutout = Annotated[int | None, typer.Option(min=0, help="Pixels cut out after every policy but none.")]
Flip = Annotated[bool | None, typer.Option(help="Random horizontal flip; switch it off for text and digits.")]
Subset = Annotated[int | None, typer.Option(min=2, help="Train on so many images, evenly over the classes.")]
HeldOut = Annotated[
    float | None, typer.Option(help="Measure on this share of the training images instead of the test images.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting of the training, as NAME=VALUE: learning_rate=0.05.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]


@app.command("compare")
def compare_command(
    source: SourceArgument = None,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            "-p",
            help="Names, files or run folders with commas between; LABEL=A+B+C puts several in one row.",
        ),
    ] = "none,trivialaugment-wide,uniform",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    out: Out = None,
    network: Network = "auto",
    pretrained: Pretrained = False,
    weights: Weights = "",
    preset: Preset = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    window: Window = None,
    set_: Set = None,
    tune_lr: Annotated[
        bool, typer.Option("--tune-lr", help="Take the best learning rate of three, measured without a policy.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once (default: up to 8 small ones on a GPU, cores on a CPU).")
    ] = None,
    per_op: Annotated[bool, typer.Option("--per-op", help="Also measure what each operation does to guesses.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="End early; the same command continues.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    tracker: Trackers = None,
) -> None:
    """Train a network with each policy and several seeds, and put the errors side by side."""
    from fasteraa.api import compare
    from fasteraa.errors import RunError
    from fasteraa.report.trackers import track
    from fasteraa.runtime.progress import Lines

    out = out or _folder(source)
    given = {"epochs": epochs, "batch_size": batch_size, "cutout": cutout, "flip": flip}
    with track(*(tracker or []), folder=out, kind="compare", progress=Lines()) as tracking:
        tracking.begin({"data": source or "sample", "policies": policies, "seeds": seeds, "network": network})
        comparison = compare(
            source,
            policies,
            out=out,
            seeds=seeds,
            recipe=_paper(preset),
            network=network,
            pretrained=pretrained,
            weights=weights,
            train=_train_settings(given, set_),
            jobs=jobs,
            device=device,
            max_minutes=max_minutes,
            per_op=per_op,
            tune_lr=tune_lr,
            command=command_line(),
            say=typer.echo,
            data_root=data_root,
            size=size,
            subset=subset,
            held_out=held_out,
            window=None if window is None else parse_window(window),
        )
        _print(comparison, out, per_op)
        _track(comparison, range(seeds), tracking)
    typer.echo(f"table: {out / 'comparison.md'}\nplot:  {out / 'comparison.svg'}\ndata:  {out / 'comparison.json'}")
    if comparison.diverged:
        raise RunError(
            f"these runs diverged, the table is of the others: {'; '.join(comparison.diverged)}; "
            "try a larger --batch-size"
        )


@app.command("evaluate")
def evaluate_command(
    source: SourceArgument = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="A policy file, a run folder, or a name.")] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and draws.")] = 0,
    out: Out = None,
    network: Network = "auto",
    preset: Preset = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    window: Window = None,
    set_: Set = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Train a network once with one policy: a single run of compare, kept in the same folder."""
    from fasteraa.comparison.contenders import jobs_of, parse_contenders
    from fasteraa.comparison.table import has_seen
    from fasteraa.errors import ConfigError, RunError
    from fasteraa.report.comparison import seen_words
    from fasteraa.train.recipe import TrainRecipe, check_network, choose_recipe
    from fasteraa.train.run_cache import RunCache
    from fasteraa.train.runner import make_runner, run_jobs
    from fasteraa.train.split import open_split

    contenders = parse_contenders(policy, seed + 1)
    if len(contenders) > 1:
        raise ConfigError(f"evaluate takes one policy, got {policy!r}; fasteraa compare takes several")
    folder, recipe = out or _folder(source), _paper(preset)
    given = {"epochs": epochs, "batch_size": batch_size, "cutout": cutout, "flip": flip}
    cache = RunCache(folder)
    with make_runner("local", cache, device=device, jobs=1, command=command_line()) as runner:
        split = open_split(
            source,
            folder=folder,
            data_root=data_root,
            size=size,
            subset=subset,
            held_out=held_out,
            window=None if window is None else parse_window(window),
        )
        cache.open()
        if recipe is not None:
            check_network(recipe, network)
        recipe = recipe or choose_recipe(len(split.train), min(split.train.size), device, network)
        recipe = TrainRecipe.make({**recipe.plain(), **_train_settings(given, set_)})
        job = jobs_of(contenders, recipe, range(seed + 1), split)[-1]
        outcome = run_jobs(runner, [job])[job.key]
    if outcome.failed:
        raise RunError(f"{job}: {outcome.failed}; try a larger --batch-size")
    typer.echo(
        f"{job}: {outcome.error:.2f}% errors on {len(split.held_out)} images ({split.name}), {recipe.network} trained "
        f"for {recipe.epochs} epochs in {outcome.seconds:.0f} s"
    )
    if has_seen(contenders[0], split):
        typer.echo(seen_words([job.label]).strip())


def _paper(preset: str | None) -> TrainRecipe | None:
    from fasteraa.train.recipe import paper_recipe

    return None if preset is None else paper_recipe(preset)


def _train_settings(given: Mapping[str, Any], set_: Sequence[str] | None) -> dict[str, Any]:
    from fasteraa.cli.search import assignment

    flags = {name: value for name, value in given.items() if value is not None}
    return {**dict(assignment(text) for text in set_ or ()), **flags}


def _folder(source: str | None) -> Path:
    """One for each data set, as its name tells: a comparison takes the place of what was there of another."""
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
    from fasteraa.report.comparison import COLUMNS, caption, sentence, table_rows

    print_table("Errors", COLUMNS, table_rows(comparison))
    typer.echo(f"{caption(comparison)}\n{sentence(comparison)}")
    if per_op and (out / "per_op.md").is_file():
        typer.echo(f"{(out / 'per_op.md').read_text()}\nper operation: {out / 'per_op.md'}, {out / 'per_op.json'}")
