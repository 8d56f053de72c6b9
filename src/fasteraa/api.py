"""The product: `search`, `race` and `compare`. The command line parses, calls one of these and prints.

Methods propose policies, a runner judges them by training, the race decides.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fasteraa.data import ImageSet, load
from fasteraa.data.decode import CPU_SIDE
from fasteraa.data.image_folder import check_beside
from fasteraa.errors import ConfigError, OutOfTime, Stopped
from fasteraa.methods import DEFAULT_METHODS, Budget, Candidate, Method, make_methods
from fasteraa.methods.config import SearchConfig, check_same, read_config
from fasteraa.methods.faster_aa.run import check_critic, check_resumable
from fasteraa.methods.task import Task
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.policy.resolve import load_policy
from fasteraa.report.outputs import write_result, write_scores
from fasteraa.runtime.decisions import check_decisions
from fasteraa.runtime.device import device_name, find_device
from fasteraa.runtime.files import as_file_name
from fasteraa.runtime.lock import exclusive
from fasteraa.runtime.packages import check_torchvision
from fasteraa.runtime.progress import Progress, Silent
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.config import RaceConfig, fine_tuning, write_settings
from fasteraa.selection.pipeline import propose_and_race
from fasteraa.selection.result import Result
from fasteraa.selection.score_race import ScoreResult, race_scores
from fasteraa.train.command import main_module_key
from fasteraa.train.recipe import (
    TrainRecipe,
    check_network,
    choose_recipe,
    epochs_words,
    finetune_recipe,
    image_side,
    interpolation,
)
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Runner, Say, make_runner, run_jobs
from fasteraa.train.split import Split, open_split

if TYPE_CHECKING:
    from fasteraa.comparison.table import Comparison


def search(
    source: Any = None,
    config: SearchConfig | None = None,
    *,
    methods: str | Sequence[str | Method] = DEFAULT_METHODS,
    race: RaceConfig | bool = True,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    data_root: str | Path | None = None,
    minutes: float | None = None,
    engine: str = "local",
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Find the policy to use for labelled images: methods propose, short trainings on held-out images decide.

    `source` is anything `fasteraa.data.load` takes (a folder of class folders, a manifest, a named set, arrays, a
    Dataset of (image, label) or (image, mask)); None is the embedded sample. Without a race (`race=False`, or images
    with masks) the policy is that of the first method. With `out` everything is kept in that folder, and `resume`
    continues a run found there. `minutes` limits everything together. With `RaceConfig(trainings=N)` the same seed and
    settings give the same policy on the same machine.
    """
    config, progress = config or SearchConfig(), progress or Silent()
    settings = RaceConfig() if race is True else race or None
    chosen_methods = make_methods(methods)
    end = _end_of(minutes)
    _check_names(config, settings, device)
    folder = RunFolder(Path(out)) if out is not None else None
    if folder is not None:
        check_beside(source, folder.path)
        _open(folder, config, resume)
    elif resume:
        raise ConfigError("resume needs the folder of the run: out=...")
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(exclusive(folder.path))
        data = _load(source, config, settings, device, data_root)
        if settings is not None and settings.network is not None and config.size is None and data.masks is None:
            check_network_builds(settings, min(data.size))  # what suits the images is known only now
        task = Task(data, config, device, folder=folder, resume=resume, progress=progress)
        if folder is not None:
            write_settings(folder, config, settings, [method.name for method in chosen_methods])
            if not resume:
                shown = None if device == "auto" else device
                folder.keep_source(source, data_root=data_root, device=shown, minutes=minutes)
        with _stop_says_how_to_continue(folder):
            result = propose_and_race(task, chosen_methods, settings, end, engine, jobs)
        if folder is not None:
            write_result(result, folder, source, config, data_root)
    return result


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
    device: str = "auto",
    data_root: str | Path | None = None,
    engine: str = "local",
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Result | ScoreResult:
    """Race these policies (names, files, policies): which of them is best to train with?

    On images (`source`) our own trainings judge, as in a search. With `train`, a function of (policy, seed, out) that
    gives a score (lower is better, unless `maximize`), anything does: `key` names it in the cache in `out`.
    """
    given = _named_candidates(candidates) if isinstance(candidates, str) else [_candidate(each) for each in candidates]
    chosen = _with_none(given)
    if train is not None:
        return _race_by_scores(
            chosen,
            train,
            key=key or main_module_key(train),
            out=Path("runs/race" if out is None else out),
            seeds=seeds,
            maximize=maximize,
            seconds=math.inf if race is None else 60 * race.minutes,
            jobs=jobs or 1,
            say=(progress or Silent()).say,
        )
    return search(
        source,
        config,
        methods=[Given(chosen)],
        race=race or RaceConfig(),
        out=out,
        resume=resume,
        device=device,
        data_root=data_root,
        engine=engine,
        jobs=jobs,
        progress=progress,
    )


def _race_by_scores(candidates: list[Candidate], train: Callable[..., float], out: Path, **options: Any) -> ScoreResult:
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out), _stop_says_how_to_continue(RunFolder(out)):
        result = race_scores(candidates, train, folder=out / "scores", **options)
        write_scores(result, RunFolder(out))
    return result


@dataclass
class Given(Method):
    """Candidates that somebody brings."""

    given: Sequence[Candidate]
    name: str = field(default="given", init=False)

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        return list(self.given)


def _named_candidates(text: str) -> list[Candidate]:
    """`none,runs/a,mine=policy.json`: a policy is called by its name, unless it is given another."""
    from fasteraa.comparison.contenders import parse_contenders, split_names

    candidates: dict[str, Candidate] = {}
    for part, contender in zip(split_names(text), parse_contenders(text, 1), strict=True):
        if len(contender.policies) > 1:
            raise ConfigError(f"a race takes one policy for each label, {contender.label!r} has several")
        (policy,) = contender.policies
        is_label = part != contender.label and part.startswith(contender.label)  # LABEL=PATH
        label = contender.label if is_label else _label(policy)
        if label in candidates:
            raise ConfigError(f"two policies are called {label!r}; name one of them: OTHER={contender.label}")
        candidates[label] = Candidate(label, policy)
    return list(candidates.values())


def _candidate(given: str | Policy | Candidate) -> Candidate:
    if isinstance(given, Candidate):
        return given
    policy = given if isinstance(given, Policy) else load_policy(given)
    return Candidate(_label(policy), policy)


def _label(policy: Policy) -> str:
    """One that can be typed."""
    return as_file_name(policy.name) or "policy"


def _with_none(candidates: list[Candidate]) -> list[Candidate]:
    """What does nothing is what the others must beat: it takes part, and under its name."""
    none = named("none")
    if not any(each.policy.hash == none.hash for each in candidates):
        return [Candidate("none", none), *candidates]
    return [replace(each, label="none") if each.policy.hash == none.hash else each for each in candidates]


# --- a search, step by step ------------------------------------------------------------------------------------------


def _check_names(config: SearchConfig, race: RaceConfig | None, device: str) -> None:
    """Before images are read: a wrong name would be noticed after the work."""
    find_device(device)
    if race is not None:
        check_torchvision()
    check_critic(config)
    if race is not None and race.network is not None:
        check_network_builds(race, config.size)


def check_network_builds(race: RaceConfig, size: int | None) -> None:
    """Once, without images: weights that do not fit and unknown names are noticed here."""
    from fasteraa.nets import build
    from fasteraa.runtime.seeds import seeded

    assert race.network is not None
    with seeded(0):
        build(race.network, 2, size, pretrained=race.pretrained, weights=race.weights or None)


def _open(folder: RunFolder, config: SearchConfig, resume: bool) -> None:
    if not resume:
        folder.open_new()
        return
    folder.check_old()
    settings = read_config(folder.config)
    check_same(config, settings, folder.path, but=("batch_size",))  # images may be fewer
    check_resumable(folder, settings)
    check_decisions(folder.race / "schedule.json")


def _load(
    source: Any, config: SearchConfig, race: RaceConfig | None, device: str, data_root: str | Path | None
) -> ImageSet:
    """At the size of the search; where a network is fine-tuned, at the size and by the filter that it expects."""
    if isinstance(source, ImageSet):
        return source
    recipe = fine_tuning(config, race) if race is not None and race.fine_tunes else None
    return load(
        source,
        size=config.size if recipe is None else image_side(recipe),
        interpolation="bilinear" if recipe is None else interpolation(recipe),
        largest=CPU_SIDE if find_device(device).type == "cpu" else None,
        subset=config.subset,
        classes=config.classes,
        held_out=config.held_out,
        seed=config.seed,
        data_root=data_root,
        broken_budget=config.broken_budget,
        ignore_index=config.ignore_index,
        window=config.window,
    )


def _end_of(minutes: float | None) -> float:
    """The moment (time.monotonic()) at which so many minutes will have passed."""
    if minutes is not None and not minutes >= 0:
        raise ConfigError(f"minutes must be at least 0, got {minutes}")
    return math.inf if minutes is None else time.monotonic() + 60 * minutes


@contextmanager
def _stop_says_how_to_continue(folder: RunFolder | None) -> Iterator[None]:
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        if folder is None or (isinstance(stopped, Stopped) and "--resume" in str(stopped)):
            raise
        number = stopped.signal if isinstance(stopped, Stopped) else next(iter(stopped.args), signal.SIGINT)
        raise Stopped(
            f"stopped; everything that was finished is kept in {str(folder.path)!r}: add --resume to continue", number
        ) from None


# --- comparing -------------------------------------------------------------------------------------------------------


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
    device: str = "auto",
    max_minutes: float | None = None,
    per_op: bool = False,
    tune_lr: bool = False,
    engine: str = "local",
    command: str | None = None,
    say: Say = print,
    **data: Any,
) -> Comparison:
    """Train a network with each policy and seed, and put the errors side by side. Finished runs are not run again.

    `policies` are names and files as on the command line, or a list of those and of policies, whose names are their
    labels. `network` is for where there is no `recipe`, with `pretrained` (timm's own) or `weights` (a file) it is
    fine-tuned; `train` changes settings of the recipe, `tune_lr` takes the best learning rate of three for all.
    Runs that failed are left out of the rows and named in `diverged`. Table, plot and data are written to `out`.
    """
    check_torchvision()
    from fasteraa.comparison.contenders import jobs_of, parse_contenders
    from fasteraa.comparison.per_op import per_op as measure_per_op
    from fasteraa.comparison.table import tabulate
    from fasteraa.comparison.tune import tuned
    from fasteraa.report.comparison import publish, publish_per_op

    until = math.inf if max_minutes is None else time.time() + 60 * _checked(max_minutes)
    if recipe is not None:
        check_network(recipe, network)
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    contenders, folder = parse_contenders(policies, seeds), Path(out)
    with make_runner(engine, RunCache(folder), device=device, jobs=jobs, command=command) as runner:
        if pretrained or weights:
            recipe = finetune_recipe(network, pretrained=pretrained, weights=weights, side=data.get("size"))
            data = {**data, "size": image_side(recipe), "interpolation": interpolation(recipe)}
        split = open_split(source, folder=folder, **data)
        runner.cache.open()
        for warning in split.warnings:
            say(warning)
        recipe = recipe or choose_recipe(len(split.train), min(split.train.size), device, network)
        recipe = TrainRecipe.make({**recipe.plain(), **(train or {})})
        if tune_lr:
            recipe = tuned(runner, split, recipe, say)
        planned = jobs_of(contenders, recipe, range(seeds), split)
        say(_what_comes(split, recipe, device, len(planned)))
        with exclusive(folder):
            try:
                run_jobs(runner, planned, say, until)
            finally:  # a table of what is there, also on Ctrl-C
                comparison = tabulate(runner.cache, split, contenders, recipe, range(seeds), device)
                publish(comparison, folder)
            if per_op:
                try:
                    publish_per_op(measure_per_op(runner, split, recipe, contenders, until), folder)  # type: ignore[arg-type]
                except OutOfTime:
                    say("per operation: time is up, nothing was measured; give the same command again to continue")
    return comparison


def _checked(minutes: float) -> float:
    if not minutes >= 0:
        raise ConfigError(f"max_minutes must be at least 0, got {minutes}")
    return minutes


def _what_comes(split: Split, recipe: TrainRecipe, device: str, count: int) -> str:
    height, width = split.train.size
    what = f"{count} run{'s' * (count != 1)} of {recipe.network} for {epochs_words(recipe.epochs)}"
    return (
        f"{split.train.name}: {len(split.train)} images at {height}x{width}, {what} on {device_name(device)}; measured "
        f"on {len(split.held_out)} images ({split.name})"
    )
