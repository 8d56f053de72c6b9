"""`fasteraa compare` and `fasteraa evaluate`: what a policy does to the error of a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasteraa.cli.app import DataRoot, Size, SourceArgument, Trackers, app, command_line

if TYPE_CHECKING:
    from fasteraa.evaluate.arena import Arena
    from fasteraa.evaluate.compare import Comparison, Contender
    from fasteraa.evaluate.recipe import TrainRecipe
    from fasteraa.policy.artifact import Policy
    from fasteraa.search.trackers import Tracking

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The folder (default: runs/compare-DATA); what is found there is not run again."),
]
Network = Annotated[str, typer.Option(help="auto, wrn-40-2, wrn-28-10, small, timm:NAME, ...")]
Recipe = Annotated[str | None, typer.Option(help="The paper's settings: cifar/wrn-40-2, svhn/wrn-28-10, ...")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the images (default: by the recipe).")]
BatchSize = Annotated[int | None, typer.Option(min=2, help="Images of a step (default: by the recipe).")]
Cutout = Annotated[int | None, typer.Option(min=0, help="Pixels cut out after every policy but none.")]
Flip = Annotated[bool | None, typer.Option(help="Random horizontal flip; switch it off for text and digits.")]
Subset = Annotated[int | None, typer.Option(min=2, help="Train on so many images, evenly over the classes.")]
HeldOut = Annotated[
    float | None, typer.Option(help="Measure on this share of the training images instead of the test images.")
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
    recipe: Recipe = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once (default: up to 8 small ones on a GPU, cores on a CPU).")
    ] = None,
    per_op: Annotated[bool, typer.Option("--per-op", help="Also measure what each operation does to guesses.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="End early; the same command goes on.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    tracker: Trackers = None,
) -> None:
    """Train a network with each policy and several seeds, and put the errors side by side."""
    from fasteraa.errors import RunError, Stopped
    from fasteraa.evaluate.compare import cells_of, end_of, parse_contenders, run_cells, tabulate
    from fasteraa.report.comparison import publish
    from fasteraa.search.lock import alone_in
    from fasteraa.search.progress import Lines
    from fasteraa.search.trackers import track

    out = out or _folder(source)
    until, contenders = end_of(max_minutes), parse_contenders(policies, seeds)
    with track(*(tracker or []), folder=out, kind="compare", progress=Lines()) as tracking:
        arena = _arena(source, out, device=device, data_root=data_root, size=size, subset=subset, held_out=held_out)
        chosen = _recipe(arena, network, recipe, epochs=epochs, batch_size=batch_size, cutout=cutout, flip=flip)
        typer.echo(_describe(arena, chosen))
        tracking.begin({"data": arena.data.name, "policies": policies, "seeds": seeds, **asdict(chosen)})
        told = partial(tabulate, arena, contenders, chosen, range(seeds))
        with alone_in(out):
            try:
                run_cells(arena, cells_of(contenders, chosen, range(seeds)), jobs, typer.echo, until)
            except Stopped:
                publish(told(), out)
                raise
        comparison = told()
        publish(comparison, out)
        _print(comparison)
        if per_op:
            typer.echo(_per_op(arena, chosen, contenders, out, until))
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
    recipe: Recipe = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    cutout: Cutout = None,
    flip: Flip = None,
    subset: Subset = None,
    size: Size = None,
    held_out: HeldOut = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Train a network once with one policy: a single cell of compare, kept in the same folder."""
    from fasteraa.errors import ConfigError, RunError
    from fasteraa.evaluate.compare import cells_of, has_seen, parse_contenders, read_cell, run_cells, why_diverged
    from fasteraa.report.comparison import seen_words

    contenders = parse_contenders(policy, seed + 1)
    if len(contenders) > 1:
        raise ConfigError(f"evaluate takes one policy, got {policy!r}; fasteraa compare takes several")
    folder = out or _folder(source)
    arena = _arena(source, folder, device=device, data_root=data_root, size=size, subset=subset, held_out=held_out)
    chosen = _recipe(arena, network, recipe, epochs=epochs, batch_size=batch_size, cutout=cutout, flip=flip)
    typer.echo(_describe(arena, chosen))
    cell = cells_of(contenders, chosen, range(seed + 1))[-1]
    run_cells(arena, [cell], 1, lambda text: None)
    record = read_cell(arena, cell)
    assert record is not None
    if why := why_diverged(record):
        raise RunError(f"{cell.label}, seed {seed}: {why}; try a larger --batch-size")
    typer.echo(
        f"{cell.label}, seed {seed}: {record['error']:.2f}% errors on {len(arena.held_out)} images "
        f"({arena.held_out_from}), trained in {record['seconds']:.0f} s"
    )
    if has_seen(contenders[0], arena):
        typer.echo(seen_words([cell.label]).strip())


def _folder(source: str | None) -> Path:
    """One for each data set, as its name tells: a comparison takes the place of what was there of another."""
    from fasteraa.data.folder import folder_name
    from fasteraa.data.resolve import SAMPLE
    from fasteraa.search.folder import as_file_name

    path = Path(os.path.abspath(os.path.expanduser(source or SAMPLE)))
    return Path("runs") / f"compare-{as_file_name(path.stem if path.is_file() else folder_name(path))}"


def _arena(source: str | None, folder: Path, **data: Any) -> Arena:
    from fasteraa.evaluate.arena import open_arena

    return replace(open_arena(source, folder, **data), command=command_line())


def _recipe(arena: Arena, network: str, name: str | None, **changes: Any) -> TrainRecipe:
    from fasteraa.evaluate.compare import check_network, choose_recipe
    from fasteraa.evaluate.recipe import paper_recipe

    if name is None:
        recipe = choose_recipe(arena.data, arena.device, network)
    else:
        recipe = paper_recipe(name)
        check_network(recipe, network)
    return replace(recipe, **{key: value for key, value in changes.items() if value is not None})


def _describe(arena: Arena, recipe: TrainRecipe) -> str:
    from fasteraa.evaluate.verdict import epochs_in_words

    height, width = arena.data.size
    training = f"{recipe.network} for {epochs_in_words(recipe.epochs)}"
    return (
        f"{arena.data.name}: {len(arena.data)} images at {height}x{width}, {training} "
        f"on {arena.device_name}; measured on {len(arena.held_out)} images ({arena.held_out_from})"
        + "".join(f"\n{each}" for each in arena.warnings)
    )


def _track(comparison: Comparison, seeds: Sequence[int], tracking: Tracking) -> None:
    """The errors of a seed, of all policies, are a row; their means are the result."""
    for seed in seeds:
        errors = {f"error/{row.label}": row.errors[seed] for row in comparison.rows if seed in row.errors}
        if errors:
            tracking.log(errors, seed)
    tracking.note({f"error/{row.label}": row.error.mean for row in comparison.rows})


def _print(comparison: Any) -> None:
    from fasteraa.cli.tables import print_table
    from fasteraa.report.comparison import COLUMNS, caption, sentence, table_rows

    print_table("Errors", COLUMNS, table_rows(comparison))
    typer.echo(f"{caption(comparison)}\n{sentence(comparison)}")


def _per_op(arena: Arena, recipe: TrainRecipe, contenders: list[Contender], out: Path, until: float) -> str:
    """The network of `none` with seed 0, trained again only if its weights are not there."""
    from fasteraa.errors import OutOfTime
    from fasteraa.evaluate.harm import Harms, harm_of_ops, harm_of_sub_policies
    from fasteraa.evaluate.judge import judge_of
    from fasteraa.ops import OPS
    from fasteraa.report.comparison import harm_markdown, publish_harm

    try:
        judge = judge_of(arena, recipe, lambda: until)
    except OutOfTime:
        return "per operation: time is up, nothing was measured; give the same command again to go on"
    ops = harm_of_ops(judge, list(OPS.values()))
    policies = [_first_of(each) for each in contenders]
    subs = [(policy, harm_of_sub_policies(judge, policy)) for policy in policies if len(policy.sub_policies) > 1]
    harms = Harms(judge.accuracy, len(judge.labels), arena.held_out_from, not arena.share, ops, subs)
    publish_harm(harms, out)
    return f"{harm_markdown(harms)}\nper operation: {out / 'per_op.md'}, {out / 'per_op.json'}"


def _first_of(contender: Contender) -> Policy:
    """By the label of its row: policies that were found on the same data have the same name."""
    count = len({policy.hash for policy in contender.policies})
    label = contender.label if count == 1 else f"{contender.label} (the first of {count})"
    return replace(contender.policy(0), name=label)
