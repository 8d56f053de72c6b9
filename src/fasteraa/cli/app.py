"""Every command of `fasteraa`. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fasteraa._version import __version__
from fasteraa.cli.echo import echo
from fasteraa.cli.errors import refuse_unused
from fasteraa.cli.export import TARGET_NAMES, export_command
from fasteraa.cli.options import (
    Address,
    AsJson,
    BatchSize,
    ConfigFile,
    Critic,
    DataRoot,
    Device,
    Devices,
    EngineName,
    Epochs,
    Flip,
    GroupBy,
    HeldOut,
    Jobs,
    Judge,
    Metric,
    Minutes,
    Network,
    OperationCount,
    Ops,
    Preset,
    Pretrained,
    RaceMinutes,
    RaceTrainings,
    Resume,
    SearchSize,
    Seed,
    Set,
    Size,
    SourceArgument,
    SubPolicies,
    Subset,
    Trackers,
    TrainEpochs,
    Tune,
    Validation,
    Weights,
    Window,
)
from fasteraa.cli.race import WithCommand, command_after
from fasteraa.methods import DEFAULT_METHODS, METHODS

_ORDER = (
    *("search", "report", "show", "preview", "compare", "export", "apply", "race", "data", "evaluate", "hub", "import"),
    *("ops", "config", "reproduce", "bench"),
)
_WELCOME = """Find the image augmentation policy that makes your training better, and apply it exactly.

Type this first:
  fasteraa search photos/          two to three minutes; photos/ has a folder of images for each class.
                                   Without photos/: an embedded sample
Then:
  fasteraa report runs/search      what to use and why, on one page
  fasteraa compare photos/ -p none,chosen=runs/search      check it on test images
  fasteraa export runs/search --to python --out augment.py
  fasteraa --help                  all commands
  fasteraa --install-completion    the Tab key completes commands and options"""


class _InOrder(TyperGroup):
    """Commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(
            super().list_commands(ctx), key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)
        )


app = typer.Typer(
    name="fasteraa",
    help="Find the image augmentation policy that makes your training better, and apply it exactly.",
    cls=_InOrder,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Look at data before searching on it.", no_args_is_help=True)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="Measure speed, side by side with other libraries.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.command("export")(export_command)


def _version(asked: bool) -> None:
    if asked:
        echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        echo(_WELCOME)


@app.command("ops")
def list_ops(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table, as the docs have it.")] = False,
    json_: AsJson = False,
) -> None:
    """Print the table of operations."""
    from fasteraa.cli.tables import OPS_COLUMNS, markdown_table, op_rows, print_json, print_table

    if json_:
        print_json([dict(zip(OPS_COLUMNS, row, strict=True)) for row in op_rows()])
    elif markdown:
        echo(markdown_table(OPS_COLUMNS, op_rows()))
    else:
        print_table("Operations", OPS_COLUMNS, op_rows())


@app.command("search")
def search_command(
    context: typer.Context,
    source: SourceArgument = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder.")] = Path("runs/search"),
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods that propose policies, separated by commas: {', '.join(METHODS.builtin)}.",
            show_default=",".join(DEFAULT_METHODS),
        ),
    ] = None,
    race: Annotated[
        bool | None,
        typer.Option(help="Decide by short trainings, measured on held-out images.", show_default="race"),
    ] = None,
    race_minutes: RaceMinutes = None,
    race_trainings: RaceTrainings = None,
    network: Network = None,
    pretrained: Pretrained = False,
    weights: Weights = None,
    train_epochs: TrainEpochs = None,
    tune: Tune = None,
    judge: Judge = None,
    metric: Metric = None,
    validation: Validation = None,
    group_by: GroupBy = None,
    minutes: Minutes = None,
    seed: Seed = None,
    epochs: Epochs = None,
    subset: Subset = None,
    held_out: HeldOut = None,
    window: Window = None,
    preset: Preset = None,
    size: SearchSize = None,
    ops: Ops = None,
    sub_policies: SubPolicies = None,
    operation_count: OperationCount = None,
    batch_size: BatchSize = None,
    critic: Critic = None,
    flip: Flip = None,
    set_: Set = None,
    jobs: Jobs = None,
    device: Device = "auto",
    devices: Devices = None,
    engine: EngineName = "local",
    address: Address = None,
    data_root: DataRoot = None,
    resume: Resume = False,
    tracker: Trackers = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as --tracker tensorboard.")] = False,
    json_: AsJson = False,
) -> None:
    """Find the policy to use for your images."""
    from fasteraa.cli.search import check_command, effective, run_search

    file = config or _own_settings(out, resume)
    asked = effective(_flags(locals()), file, preset, source, race, _race_flags(locals()), methods, minutes)
    check_command(asked, file, out, resume, "search")
    if not asked.trains:
        of_training = (*_RACE_FLAGS.values(), "jobs", "devices", "engine", "address")
        refuse_unused(context, of_training, "without a race (--race)")
    trackers = [*(tracker or []), *(["tensorboard"] if tensorboard else [])]
    where = {"jobs": jobs, "device": device, "devices": devices, "engine": engine, "address": address}
    run_search(source, out, asked, resume, trackers, json_, data_root=data_root, minutes=minutes, **where)


@app.command("race", cls=WithCommand)
def race_command(
    context: typer.Context,
    source: SourceArgument = None,
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "-p", help="Names, files or run folders, separated by commas; LABEL=FILE names one."
        ),
    ] = "none,trivialaugment-wide,general-or-trivial",
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder.")] = Path("runs/race"),
    config: ConfigFile = None,
    race_minutes: RaceMinutes = None,
    race_trainings: RaceTrainings = None,
    network: Network = None,
    pretrained: Pretrained = False,
    weights: Weights = None,
    train_epochs: TrainEpochs = None,
    tune: Tune = None,
    judge: Judge = None,
    metric: Metric = None,
    validation: Validation = None,
    group_by: GroupBy = None,
    minutes: Minutes = None,
    seed: Seed = None,
    subset: Subset = None,
    held_out: HeldOut = None,
    window: Window = None,
    size: SearchSize = None,
    flip: Flip = None,
    set_: Set = None,
    jobs: Jobs = None,
    device: Device = "auto",
    devices: Devices = None,
    engine: EngineName = "local",
    address: Address = None,
    data_root: DataRoot = None,
    resume: Resume = False,
    seeds: Annotated[int, typer.Option(min=1, help="With -- COMMAND: at most this many seeds for each policy.")] = 3,
    to: Annotated[str, typer.Option(help=f"With -- COMMAND: the format of {{policy}}: {TARGET_NAMES}.")] = "json",
    maximize: Annotated[bool, typer.Option("--maximize", help="With -- COMMAND: a larger score is better.")] = False,
    run_minutes: Annotated[float | None, typer.Option(help="With -- COMMAND: a limit on each run, in minutes.")] = None,
    json_: AsJson = False,
) -> None:
    """Choose the best of your policies by short trainings.

    On your images, or by your own command:

    fasteraa race -p none,trivialaugment-wide --seeds 3 -- python train.py --aug {policy} --seed {seed} --out {out}
    """
    from fasteraa.cli.race import race_command as race_by_command
    from fasteraa.cli.search import check_command, effective, run_race

    if (words := command_after(context)) is not None:
        own: dict[str, Any] = {"to": to, "seeds": seeds, "maximize": maximize, "run_minutes": run_minutes}
        return race_by_command(
            words, policies, out, minutes=minutes, race_minutes=race_minutes, jobs=jobs, json_=json_, **own
        )
    file = config or _own_settings(out, resume)
    asked = effective(_flags(locals()), file, race=True, race_flags=_race_flags(locals()))
    check_command(asked, file, out, resume, "race")
    where = {"jobs": jobs, "device": device, "devices": devices, "engine": engine, "address": address}
    run_race(policies, source, out, asked, resume, json_, data_root=data_root, minutes=minutes, **where)


def _own_settings(out: Path, resume: bool) -> Path | None:
    """The settings of a run that is resumed."""
    from fasteraa.runtime.run_folder import RunFolder

    if not resume:
        return None
    folder = RunFolder(out)
    folder.check_old()
    return folder.config


_RACE_FLAGS = {
    "minutes": "race_minutes",
    "trainings": "race_trainings",
    "network": "network",
    "pretrained": "pretrained",
    "weights": "weights",
    "epochs": "train_epochs",
    "tune": "tune",
    "judge": "judge",
    "metric": "metric",
    "validation": "validation",
    "group_by": "group_by",
}


def _race_flags(given: dict[str, Any]) -> dict[str, Any]:
    """The flags that stand for settings of the race, as given on the command line."""
    values = {name: given[flag] for name, flag in _RACE_FLAGS.items()}
    return {name: value for name, value in values.items() if value is not None and value is not False}


@app.command("config")
def config_command(
    config: ConfigFile = None,
    seed: Seed = None,
    epochs: Epochs = None,
    subset: Subset = None,
    held_out: HeldOut = None,
    window: Window = None,
    size: SearchSize = None,
    ops: Ops = None,
    sub_policies: SubPolicies = None,
    operation_count: OperationCount = None,
    batch_size: BatchSize = None,
    critic: Critic = None,
    flip: Flip = None,
    set_: Set = None,
) -> None:
    """Print the settings of a search as TOML.

    Settings of the search, of the race and of its trainings, in the format of --config.
    """
    from fasteraa.cli.search import print_config

    print_config(_flags(locals()), config)


def _flags(given: dict[str, Any]) -> dict[str, Any]:
    """The flags that stand for settings of a search, as given on the command line."""
    names = ("seed", "epochs", "subset", "held_out", "size", "ops", "sub_policies", "operation_count", "batch_size")
    return {name: given[name] for name in (*names, "window", "critic", "flip", "set_") if given.get(name) is not None}


@app.command("preview")
def preview(
    source: SourceArgument = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="A policy file, a run folder, or a name.")] = "uniform",
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture to write.")] = Path("sheet.png"),
    size: Size = None,
    columns: Annotated[int, typer.Option(min=1, help="Images shown of each sub-policy.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of images and of all draws.")] = 0,
    window: Window = None,
    data_root: DataRoot = None,
) -> None:
    """Draw images with and without a policy, as one picture.

    A row for each sub-policy, and under each image what was done to it.
    """
    from fasteraa.cli.search import write_preview

    write_preview(source, policy, out, size, columns, seed, data_root, window)
    echo(str(out))


@data_app.command("check")
def data_check(source: SourceArgument = None, data_root: DataRoot = None, json_: AsJson = False) -> None:
    """Count images, classes, sizes, modes, duplicates and broken files."""
    from fasteraa.cli.tables import print_json
    from fasteraa.data import check
    from fasteraa.data.large import reporting
    from fasteraa.runtime.progress import Lines, Silent

    with reporting((Silent() if json_ else Lines()).say):
        report = check(source, data_root=data_root)
    if json_:
        print_json(report.to_dict())
        return
    for line in report.lines():
        echo(line)


PolicyArgument = Annotated[
    str | None,
    typer.Argument(help="A policy file, a run folder, or a name such as 'trivialaugment-wide'.", show_default=False),
]


@app.command("show")
def show(
    policy: PolicyArgument = None,
    discrete: Annotated[bool, typer.Option(help="Keep only the likeliest operation of each stage.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all names, one per line.")] = False,
    json_: AsJson = False,
) -> None:
    """Print a policy in words, or the names of all that need no file."""
    from fasteraa.cli.tables import print_json
    from fasteraa.errors import ConfigError
    from fasteraa.policy.named import descriptions
    from fasteraa.policy.resolve import load_policy

    if list_ or policy is None:
        if not list_:
            raise ConfigError("show takes a policy: a file, a run folder or a name (fasteraa show --list)")
        if json_:
            print_json(descriptions())
            return
        width = max(map(len, descriptions()))
        echo("\n".join(f"{name:{width}}  {line}" for name, line in descriptions().items()))
        return
    chosen = load_policy(policy)
    shown = chosen.discretize() if discrete else chosen
    words = shown.to_json() if json_ else shown.describe()
    legend = "One of the operations in brackets is drawn; each has its share, name, probability and strength."
    echo(words if json_ or "[" not in words else f"{words}\n{legend}")


@app.command("import")
def import_policy(
    file: Annotated[Path, typer.Argument(help="Fast AutoAugment's list of sub-policies, or a PBA schedule.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy file to write; a folder for a whole schedule.")],
    epoch: Annotated[int | None, typer.Option(help="Of a schedule, take only the policy of this epoch.")] = None,
) -> None:
    """Turn a policy of another system into a policy file."""
    from fasteraa.policy.importers import import_file

    for path, policy in import_file(file, out, epoch):
        echo(f"{path}: {policy.describe().splitlines()[0]}")


@bench_app.command("apply")
def bench_apply(
    size: Annotated[list[int] | None, typer.Option(min=8, help="Image side; may be given several times.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each contender and size.")] = 2.0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Append the measurement to this JSON-lines file.")] = None,
    json_: AsJson = False,
) -> None:
    """Measure images per second, beside other libraries.

    On one CPU thread or on a GPU, beside torchvision v2, timm and kornia.
    """
    from fasteraa.bench import report

    sizes = tuple(size or (32, 224))
    if device == "cpu":
        from fasteraa.bench.apply import run

        report.publish(run(sizes, seconds), out, json_)
    else:
        from fasteraa.bench.apply_gpu import run_gpu

        report.publish(run_gpu(sizes, seconds, device=device), out, json_)


@bench_app.command("search")
def bench_search(
    steps: Annotated[int, typer.Option(min=1, help="Steps in a round; the plain step takes a fifth of them.")] = 25,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each contender; the median counts.")] = 3,
    size: Annotated[int, typer.Option(min=8, help="Image side.")] = 32,
    images: Annotated[int, typer.Option(min=1, help="Images of the search that the times are estimated for.")] = 4000,
    batch_size: BatchSize = None,
    critic: Critic = None,
    set_: Set = None,
    device: Device = "auto",
    scaling: Annotated[bool, typer.Option(help="Also measure more sub-policies, stages and images.")] = True,
    out: Annotated[Path | None, typer.Option(help="Append the measurement to this JSON-lines file.")] = None,
    json_: AsJson = False,
) -> None:
    """Measure milliseconds per step of a search.

    Plain with chunks of 8, fast (on a GPU: by kernels and without), and the critic alone.
    """
    from fasteraa.bench import report
    from fasteraa.bench.search import Setting, run
    from fasteraa.cli.search import effective

    given = {"batch_size": batch_size, "critic": critic, "set_": set_}
    flags = {name: value for name, value in given.items() if value is not None}
    config = effective(flags, None, race=False).config
    setting = Setting(config, device, size, images)
    settings = {**config.plain(), "size": size, "images": images, "steps": steps, "rounds": rounds}
    report.publish_search(run(setting, steps, rounds, scaling), settings, out, json_)


@bench_app.command("offline")
def bench_offline(
    images: Annotated[int, typer.Option(min=1, help="Generated images.")] = 100_000,
    size: Annotated[int, typer.Option(min=8, help="Image side.")] = 32,
    copies: Annotated[int, typer.Option(min=1, help="Augmented copies of each.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for the policy and the encoder alone.")] = 5.0,
    jpeg: Annotated[bool, typer.Option("--jpeg", help="Read and write JPEG files instead of arrays.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Append the measurement to this JSON-lines file.")] = None,
    json_: AsJson = False,
) -> None:
    """Measure fasteraa apply, beside its parts.

    Images per second, beside the policy and the encoder alone; what limits it; and the memory of its workers.
    """
    from fasteraa.bench import report
    from fasteraa.bench.offline import run_offline

    report.publish_offline(run_offline(images, size, copies, workers, device, seconds, jpeg), out, json_)


from fasteraa.cli import apply as _apply  # noqa: E402, F401  (registers its commands)
from fasteraa.cli import compare as _compare  # noqa: E402, F401
from fasteraa.cli import hub as _hub  # noqa: E402, F401
from fasteraa.cli import report as _report  # noqa: E402, F401
from fasteraa.cli import reproduce as _reproduce  # noqa: E402, F401
