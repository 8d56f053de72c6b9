"""The product: `search`, `race`, `compare` and `apply`. The command line parses, calls one of these and prints.

Methods propose policies, a runner judges them by training, the race decides.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from fasteraa._version import __version__
from fasteraa.comparison.candidates import parse_candidates
from fasteraa.comparison.contenders import Contender, jobs_of, parse_contenders
from fasteraa.comparison.evaluation import Evaluation, run_evaluation
from fasteraa.comparison.setup import Setup, check_network_builds, set_up
from fasteraa.comparison.table import Comparison, tabulate
from fasteraa.comparison.tune import tuned_each
from fasteraa.data import ImageSet, load
from fasteraa.data.decode import CPU_SIDE
from fasteraa.data.image_folder import check_beside
from fasteraa.data.large import HELD, reporting
from fasteraa.data.load import as_size, check_window, load_validation
from fasteraa.data.source import canonical_split
from fasteraa.errors import ConfigError, OutOfTime, Stopped, choices_hint
from fasteraa.methods import DEFAULT_METHODS, Candidate, Method, make_methods
from fasteraa.methods.config import PRETRAINED, SearchConfig, check_same, make_config, read_config
from fasteraa.methods.faster_aa import FasterAA
from fasteraa.methods.given import Given
from fasteraa.methods.task import Task
from fasteraa.nets.weights import digest
from fasteraa.policy.policy import Policy
from fasteraa.policy.resolve import load_policy
from fasteraa.report.outputs import raced_policy, write_result, write_scores
from fasteraa.runtime.arguments import checks_types
from fasteraa.runtime.clock import end_of
from fasteraa.runtime.decisions import check_decisions
from fasteraa.runtime.device import find_device, first_device, gpu_count
from fasteraa.runtime.lock import exclusive
from fasteraa.runtime.packages import check_torchvision
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.progress import Lines, Progress, Silent
from fasteraa.runtime.ranks import Ranks, launched, node_count, open_ranks, own_rank, rank_device
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.signals import explain_stop
from fasteraa.selection.config import METRICS, RaceConfig, with_critic_weights
from fasteraa.selection.folds import without_training
from fasteraa.selection.pipeline import propose_and_race
from fasteraa.selection.prior import read_prior
from fasteraa.selection.recipe import fine_tuning
from fasteraa.selection.result import Result
from fasteraa.selection.score_race import ScoreResult, race_scores
from fasteraa.selection.settings_file import check_same_race, write_settings
from fasteraa.train.command import Command, visible_gpus
from fasteraa.train.function_key import function_key
from fasteraa.train.recipe import TrainRecipe, image_side, interpolation
from fasteraa.train.runner import Engine, Say, run_jobs
from fasteraa.train.tune import tuned

if TYPE_CHECKING:
    from fasteraa.offline.run import Applied, Execute


APPLY_ENGINES = ("local", "ray")


@checks_types()
def search(
    source: Any = None,
    config: SearchConfig | None = None,
    *,
    methods: str | Method | Sequence[str | Method] = DEFAULT_METHODS,
    race: RaceConfig | bool = True,
    training: RaceConfig | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    data_root: str | Path | None = None,
    minutes: float | None = None,
    engine: str = "local",
    jobs: int | None = None,
    devices: str | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Find the policy to use for labelled images: methods propose, and short trainings decide.

    `source` is anything `fasteraa.data.load` takes (a folder of class folders, a manifest, a named set, arrays, a
    Dataset of (image, label) or (image, mask)); None is the embedded sample. Without a race (`race=False`, or images
    with masks) the policy is that of the first method, with masks of the first that trains nothing; `training` is then
    what that method trains, if it does, and what this may cost. With `out` everything is kept in that folder, and
    `resume` continues a run found there. `minutes` limits everything together. With `RaceConfig(trainings=N)` the same
    seed and settings give the same policy on the same machine. Trainings use every GPU of the machine (`devices="0,1"`:
    these), or with `engine="ray"` the cluster at `address`. Under torchrun all ranks share the gradient search; the
    first races and writes, the others return what the gradient search found.
    """
    config, progress = config or SearchConfig(), progress or Silent()
    settings = RaceConfig() if race is True else race or None
    if settings is not None and training is not None:
        raise ConfigError("training is for methods without a race (race=False): a race says itself what is trained")
    judged = settings or training
    config = with_critic_weights(config, judged)
    chosen_methods = make_methods(methods)
    end = end_of(minutes)
    asked = str(device)
    trainer = Engine(name=engine, device=asked, jobs=jobs, devices=devices, address=address)
    device = rank_device(first_device(asked, devices))
    _check_names(config, judged, device, chosen_methods, trainer)
    if out is not None and not str(out):
        raise ConfigError("out must name a folder, got ''")
    if resume and out is None:
        raise ConfigError("resume needs the folder of the run: out=...")
    with ExitStack() as stack:
        ranks = stack.enter_context(_ranks(device, chosen_methods, settings, engine, progress))
        folder = RunFolder(Path(out)) if out is not None and ranks.is_first else None
        if folder is not None:
            check_beside(source, folder.path)
            stack.enter_context(folder.removed_if_empty())
            _open(folder, config, settings, chosen_methods, resume)
            stack.enter_context(exclusive(folder.path))
        with reporting(progress.say):
            data = _load(source, config, judged, device, data_root)
        ranks.check_alike(_facts(config, settings, chosen_methods, data))
        _check_with_images(config, judged, data, chosen_methods, progress.say)
        validation = _validation(source, settings, data, data_root, config)
        if folder is not None:
            stack.enter_context(folder.restored_if_refused() if resume else nullcontext())
            folder.keep_broken(data.broken, progress.say)
        task = Task(
            data, config, device, folder=folder, resume=resume, progress=progress, ranks=ranks, validation=validation
        )
        if folder is not None:
            write_settings(folder, config, settings, chosen_methods, training)
            if not resume:
                shown = None if asked == "auto" else asked
                folder.keep_source(source, data_root=data_root, device=shown, minutes=minutes)
        with _says_how_to_continue(folder):
            result = propose_and_race(task, chosen_methods, settings, end, trainer, training)
        return result if folder is None else _written(result, folder, source, config, data_root)


@checks_types()
def race(
    candidates: Sequence[str | Policy | Candidate] | str,
    source: Any = None,
    config: SearchConfig | None = None,
    *,
    train: Callable[..., float] | None = None,
    key: str | None = None,
    seeds: int = 3,
    maximize: bool = False,
    race: RaceConfig | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    data_root: str | Path | None = None,
    minutes: float | None = None,
    engine: str = "local",
    jobs: int | None = None,
    devices: str | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Result | ScoreResult:
    """Race these policies (names, files, policies): which of them is best to train with?

    On images (`source`) our own trainings judge, as in a search. With `train`, a function of (policy, seed, out) that
    gives a score (lower is better, unless `maximize`), anything does. Finished runs are kept in `out`, and the same
    call continues; `key` names the function there, in the place of its code. `minutes` limits everything together.
    """
    given = {"source": source, "config": config, "data_root": data_root, "devices": devices, "address": address}
    given |= {"device": None if str(device) == "auto" else device, "engine": None if engine == "local" else engine}
    of_functions = {"key": key, "seeds": None if seeds == 3 else seeds, "maximize": maximize or None}
    if train is None:
        _refuse_unused(of_functions, "without train=")
    else:
        if race is not None:
            usual = RaceConfig(minutes=race.minutes)
            given |= {f"race.{name}": True for name in race.fields() if getattr(race, name) != getattr(usual, name)}
        _refuse_unused(given, "with train=, which reads its own images and trains in its own way")
    chosen = parse_candidates(candidates, (progress or Silent()).say)
    if train is not None:
        return _race_by_scores(
            chosen,
            train,
            key=key,
            out=Path("runs/race" if out is None else out),
            seeds=seeds,
            maximize=maximize,
            seconds=math.inf if race is None else 60 * race.minutes,
            until=end_of(minutes),
            jobs=jobs,
            say=(progress or Silent()).say,
        )
    if len(chosen) == 1:
        raise ConfigError("a race needs a policy that does something to images, to race against none")
    return search(
        source,
        config,
        methods=[Given(chosen)],
        race=race or RaceConfig(),
        out=out,
        resume=resume,
        device=device,
        data_root=data_root,
        minutes=minutes,
        engine=engine,
        jobs=jobs,
        devices=devices,
        address=address,
        progress=progress,
    )


def _refuse_unused(given: Mapping[str, object], where: str) -> None:
    """Who gives an argument expects an effect."""
    if names := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect {where}")


def _race_by_scores(
    candidates: list[Candidate],
    train: Callable[..., float],
    *,
    out: Path,
    key: str | None,
    jobs: int | None,
    **options: Any,
) -> ScoreResult:
    """A command gets a GPU of its own; without `jobs` there are as many runs at once as GPUs."""
    folder, is_command = RunFolder(out), isinstance(train, Command)
    if isinstance(train, Command):
        train.check({each.label: each.policy for each in candidates})
    gpus = visible_gpus(gpu_count()) if is_command else ()
    key = key or (train.key if isinstance(train, Command) else function_key(train))
    more = {"key": key, "jobs": jobs or max(1, len(gpus)), "gpus": gpus, **options}
    again = "give the same command again" if is_command else "call it again"
    with folder.removed_if_empty():
        folder.open_scores()
        with exclusive(out), _says_how_to_continue(folder, again):
            result = race_scores(candidates, train, folder=folder.scores, **more)
            write_scores(result, folder)
    return result


# --- a search, step by step ------------------------------------------------------------------------------------------


@contextmanager
def _ranks(
    device: str, methods: Sequence[Method], race: RaceConfig | None, engine: str, progress: Progress
) -> Iterator[Ranks]:
    """Under torchrun all ranks share the gradient search; rank 0 alone races, so on several machines Ray must."""
    shared = methods if race is not None else methods[:1]
    if launched() and FasterAA.name not in [method.name for method in shared]:
        raise ConfigError(
            f"torchrun's ranks share the gradient search ({FasterAA.name}), which is not among the methods "
            f"{', '.join(method.name for method in shared)}: start it without torchrun"
        )
    if node_count() > 1 and race is not None and engine == "local":
        raise ConfigError(
            f"a race on rank 0 would leave {node_count() - 1} of {node_count()} machines idle: add --no-race, or race "
            "on all of them with --engine ray"
        )
    with open_ranks(find_device(device)) as ranks:
        if ranks.joined:
            progress.say(f"{ranks.words()} share every batch of the gradient search")
        yield ranks


def _facts(
    config: SearchConfig, race: RaceConfig | None, methods: Sequence[Method], data: ImageSet
) -> dict[str, object]:
    """What all ranks must have in common."""
    return {
        "version of fasteraa": __version__,
        "version of torch": torch.__version__,
        "methods": [method.name for method in methods],
        "race": race is not None,
        **config.plain(),
        **_content_of_weights(config),
        "images": data.fingerprint,
    }


def _content_of_weights(config: SearchConfig) -> dict[str, object]:
    """Files of one name on several machines need not be the same."""
    if config.critic_weights in (None, PRETRAINED):
        return {}
    return {"content of critic_weights": digest(config.critic_weights)}


def _check_names(
    config: SearchConfig, race: RaceConfig | None, device: str, methods: Sequence[Method], trainer: Engine
) -> None:
    """Before images are read: a wrong name would be noticed after the work."""
    find_device(device)
    if own_rank() == 0:  # the others train nothing
        trainer.check()
    if race is not None:
        check_torchvision()
        read_prior(race.prior)
    for method in methods:
        method.check(config)
    if race is not None and race.network is not None:
        check_network_builds(race.network, config.size, race.pretrained, race.weights)
    elif race is not None and race.fine_tunes:
        fine_tuning(config, race)


def _critic_words(config: SearchConfig) -> str:
    """What a critic of timm's begins with, where weights were given for the race."""
    if config.critic_weights is None:
        return f"the critic {config.critic} begins with random weights: those given are for the race (critic_weights)"
    return f"the critic {config.critic} begins with the weights of the race; its norm layers keep their statistics"


def _check_with_images(
    config: SearchConfig, race: RaceConfig | None, data: ImageSet, methods: Sequence[Method], say: Say
) -> None:
    """What suits images is known only when they are read."""
    if data.masks is not None:
        without_training(methods, data)
    if race is None:
        return
    if race.network is not None and config.size is None and data.masks is None:
        side = fine_tuning(config, race).input_size if race.fine_tunes else 0  # images are larger than what is cropped
        check_network_builds(race.network, side or min(data.size), race.pretrained, race.weights)
    if race.fine_tunes and config.critic.startswith("timm:"):
        say(_critic_words(config))


def _written(
    result: Result, folder: RunFolder, source: Any, config: SearchConfig, data_root: str | Path | None
) -> Result:
    """In its folder; a policy that a race chose stays there."""
    if result.race is None and (raced := raced_policy(folder)) is not None:
        stays = f"{str(folder.policy)!r} stays as it was, {raced.name}: a race chose it."
        return replace(result, note=" ".join(filter(None, (result.note, stays))))
    write_result(result, folder, source, config, data_root)
    return result


def _open(
    folder: RunFolder, config: SearchConfig, race: RaceConfig | None, methods: Sequence[Method], resume: bool
) -> None:
    if not resume:
        folder.open_new()
        return
    folder.check_old()
    settings = read_config(folder.config)
    check_same(config, settings, folder.path, but=("batch_size",))  # images may be fewer
    for method in methods:
        method.check_resumable(folder, make_config(settings))
    schedule = folder.race / "schedule.json"
    check_decisions(schedule)
    if schedule.exists() or raced_policy(folder) is not None:
        check_same_race(folder, config, race, methods)


def _load(
    source: Any, config: SearchConfig, race: RaceConfig | None, device: str, data_root: str | Path | None
) -> ImageSet:
    """At the size of the search; where a network is fine-tuned, at the size and by the filter that it expects."""
    recipe = fine_tuning(config, race) if race is not None and race.fine_tunes else None
    size = as_size(config.size if recipe is None else image_side(recipe))
    if isinstance(source, ImageSet):
        size = size or source.size
        changed = config.subset, config.classes, config.held_out, config.window, race is not None and race.group_by
        if size == source.size and not any(changed):
            return source
    data = load(
        source,
        size=size,
        interpolation="bilinear" if recipe is None else interpolation(recipe),
        largest=CPU_SIDE if find_device(device).type == "cpu" else None,
        subset=config.subset,
        large=HELD,
        classes=config.classes,
        held_out=config.held_out,
        group_by="" if race is None else race.group_by,
        seed=config.seed,
        data_root=data_root,
        broken_budget=config.broken_budget,
        ignore_index=config.ignore_index,
        window=config.window,
    )
    return replace(data, window=source.window) if isinstance(source, ImageSet) else data


def _validation(
    source: Any, race: RaceConfig | None, data: ImageSet, data_root: str | Path | None, config: SearchConfig
) -> ImageSet | None:
    if race is None or not race.validation:
        return None
    filter_ = interpolation(fine_tuning(config, race)) if race.fine_tunes else "bilinear"
    return load_validation(
        source, race.validation, data, data_root=data_root, interpolation=filter_, group_by=race.group_by
    )


def _says_how_to_continue(folder: RunFolder | None, how: str = "add resume=True") -> AbstractContextManager[None]:
    """Where there is a folder."""
    if folder is None:
        return nullcontext()
    words = f"stopped; everything that was finished is kept in {str(folder.path)!r}: {how} to continue"
    return explain_stop(words, unless="resume=True")


# --- comparing -------------------------------------------------------------------------------------------------------


@checks_types()
def compare(
    source: Any = None,
    policies: str | Sequence[str | Policy] = "none,trivialaugment-wide,uniform",
    *,
    out: str | Path,
    seeds: int = 3,
    recipe: TrainRecipe | None = None,
    network: str = "auto",
    pretrained: bool = False,
    weights: str = "",
    train: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    device: str | torch.device = "auto",
    minutes: float | None = None,
    per_op: bool = False,
    tune: bool = False,
    tune_lr: bool | str = False,
    metric: str = "error",
    engine: str = "local",
    devices: str | None = None,
    address: str | None = None,
    command: str | None = None,
    progress: Progress | None = None,
    **data: Any,
) -> Comparison:
    """Train a network with each policy and seed, and put the errors side by side. Finished runs are not run again.

    `policies` are names and files as on the command line, or a list of those and of policies, whose names are their
    labels. `network` is for where there is no `recipe`, with `pretrained` (timm's own) or `weights` (a file) it is
    fine-tuned; `train` changes settings of the recipe. `tune` takes the best learning rate and weight decay of a small
    grid for all, measured without a policy; `tune_lr` takes for each policy the best learning rate of three, on
    held-out training images, `tune_lr="none"` for all the one that is best without a policy.
    `metric` is what the table holds: error, balanced-error (every class counts alike) or loss. With `validation` (a
    split or a folder) errors are measured on those images, with `group_by` no group of images is split.
    Runs that failed are left out of the rows and named in `diverged`. Table, plot and data are written to `out`.
    Lines of progress are printed unless `progress` takes them. Under torchrun all ranks share every training; the
    first alone writes.
    """
    check_torchvision()
    progress = progress or (Lines() if own_rank() == 0 else Silent())
    until, folder, say = end_of(minutes), Path(out), progress.say
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}: {choices_hint(metric, METRICS)}")
    if tune_lr not in (True, False, "none"):
        raise ConfigError(f"tune_lr must be True (for each policy), 'none' (for all on none) or False, got {tune_lr!r}")
    contenders = parse_contenders(policies, seeds)
    trained: dict[str, Any] = {
        "recipe": recipe,
        "network": network,
        "pretrained": pretrained,
        "weights": weights,
        "train": train,
    }
    trainer = Engine(name=engine, device=str(device), jobs=jobs, devices=devices, address=address)
    with reporting(say), set_up(source, folder, trainer, command=command, **trained, **data) as setup:
        if not setup.ranks.is_first:
            return cast(Comparison, setup.train_along())
        for warning in setup.split.warnings:
            say(warning)
        if tune or tune_lr == "none":
            best = tuned(setup.runner, setup.split, setup.recipe, say, rates_only=not tune)
            setup = replace(setup, recipe=best)
        if tune_lr is True:
            contenders = tuned_each(setup.runner, setup.split, setup.recipe, contenders, say)
        with exclusive(folder):
            comparison = _compared(setup, contenders, range(seeds), metric, folder, until, say)
            if per_op:
                _measured_per_op(setup, contenders, folder, until, say)
        setup.tell_end(comparison)
    return comparison


def _compared(
    setup: Setup,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    metric: str,
    folder: Path,
    until: float,
    say: Say,
) -> Comparison:
    from fasteraa.report.comparison import publish  # here and below: torchvision, which a search does not wait for

    planned = jobs_of(contenders, setup.recipe, seeds, setup.split)
    say(setup.words(len(planned)))
    try:
        run_jobs(setup.runner, planned, say, until, estimate=True)
    finally:  # a table of what is there, also on Ctrl-C
        comparison = tabulate(setup.runner.cache, setup.split, contenders, setup.recipe, seeds, setup.device, metric)
        publish(comparison, folder)
    return comparison


def _measured_per_op(setup: Setup, contenders: Sequence[Contender], folder: Path, until: float, say: Say) -> None:
    from fasteraa.comparison.per_op import per_op
    from fasteraa.report.comparison import publish_per_op

    try:
        publish_per_op(per_op(setup.runner, setup.split, setup.recipe, contenders, until), folder)
    except OutOfTime:
        say("per operation: time is up, nothing was measured; give the same command again to continue")


@checks_types()
def evaluate(
    source: Any = None,
    policy: str | Policy = "none",
    *,
    out: str | Path,
    seed: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Train a network once with one policy: a single run of `compare`, kept in the same folder.

    `settings` are those of `compare` that say what is trained: recipe, network, train, device, size, subset, ...
    """
    return run_evaluation(source, policy, Path(out), seed, progress=progress, **settings)


# --- applying --------------------------------------------------------------------------------------------------------


@checks_types()
def apply(
    source: Any = None,
    policy: str | Path | Policy = "trivialaugment-wide",
    *,
    out: str | Path,
    copies: int = 1,
    seed: int = 0,
    format: str = "shards",
    split: str = "train",
    encoding: str = "auto",
    size: int | tuple[int, int] | None = None,
    shard_size: int = 5000,
    window: tuple[int, int] | None = None,
    broken_budget: float = 0.01,
    workers: int | None = None,
    device: str | torch.device = "auto",
    data_root: str | Path | None = None,
    engine: str = "local",
    address: str | None = None,
    say: Say = print,
) -> Applied:
    """Write an augmented copy of a data set: `copies` of every image, as WebDataset shards or as image folders.

    `source` is anything `fasteraa.data.load` takes; masks follow their images. What is written depends on the source,
    the policy and the settings, not on the number of `workers` or the engine. The same call continues what was
    interrupted. With `engine="ray"` the cores of the cluster at `address` do it, on a disk that all nodes see.
    """
    from fasteraa.offline.job import ApplyJob, open_images
    from fasteraa.offline.run import make_folder, run_job

    chosen, folder = policy if isinstance(policy, Policy) else load_policy(policy), Path(out)
    if chosen.scheduled:
        raise ConfigError(
            f"written copies belong to no epoch, so they cannot follow the schedule of {chosen.name!r}: apply "
            "policy.flattened(), its mean (of a search by pba: candidates/pba-flat.json)"
        )
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if engine not in APPLY_ENGINES:
        raise ConfigError(f"unknown engine {engine!r}: {choices_hint(engine, APPLY_ENGINES)}")
    if engine == "ray" and str(device) not in ("auto", "cpu"):
        raise ConfigError(f"on a cluster cores apply the policy, so --device {device} has no place: leave it out")
    Engine(name=engine, device="auto", address=address).check()
    check_beside(source, folder)
    job = ApplyJob(
        source=str(source) if isinstance(source, Path) else source,
        data_root=None if data_root is None else str(data_root),
        split=canonical_split(split) or split,
        policy=chosen.to_json(),
        out=str(folder),
        seed=seed,
        copies=copies,
        format=format,
        encoding=encoding,
        size=as_size(size),
        shard_size=shard_size,
        window=check_window(window),
        device="cpu" if engine == "ray" else str(find_device(str(device))),
    )
    with reporting(say):
        images = open_images(job)
    about = {"name": images.name, "images": len(images), "fingerprint": images.fingerprint}
    make_folder(folder)
    execute = _executor(engine, address, workers, images.fingerprint)
    with exclusive(folder):
        try:
            return run_job(replace(job, window=images.window), about, execute, broken_budget, say)
        except KeyboardInterrupt as stopped:
            number = next(iter(stopped.args), signal.SIGINT)
            raise Stopped(
                f"stopped; finished shards are kept in {str(folder)!r}: give the same command again to continue", number
            ) from None


def _executor(engine: str, address: str | None, workers: int | None, fingerprint: str) -> Execute:
    if engine == "ray":
        from fasteraa.offline.cluster import on_cluster

        return partial(on_cluster, address=address, fingerprint=fingerprint, workers=workers)
    from fasteraa.offline.processes import in_processes

    return partial(in_processes, workers=workers or core_count())
