"""What `fasteraa search`, `race`, `config` and `preview` do between parsing and printing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig, make_config, read_config, read_tables
from fasteraa.runtime.documents import quoted
from fasteraa.selection.config import RaceConfig

if TYPE_CHECKING:
    from fasteraa.selection.result import Result

PRESETS = ("paper",)
GIVEN = ("given",)  # the method of a race: policies that somebody brings


@dataclass(frozen=True)
class Asked:
    """The settings of a run: defaults, then the preset, then the TOML file, then flags."""

    config: SearchConfig
    race: RaceConfig | None
    methods: tuple[str, ...] | None  # None: the default


def effective(
    flags: Mapping[str, Any],
    config: Path | None,
    preset: str | None = None,
    source: str | None = None,
    race: bool | None = None,
    race_flags: Mapping[str, Any] | None = None,
) -> Asked:
    """`race` None leaves it to the file, where there is one."""
    settings, given, train = _preset(preset, source), dict(flags), {}
    tables = read_tables(config) if config is not None else {}
    settings |= read_config(config) if config is not None else {}
    for text in given.pop("set_", ()):
        name, value = assignment(text)
        if name.startswith("train."):
            train[name.removeprefix("train.")] = value
        else:
            settings[name] = value
    read = {"ops": _list, "window": parse_window}
    settings |= {name: read[name](value) if name in read else value for name, value in given.items()}
    run = _table(tables, "run")
    raced = run.get("race", True) if race is None else race
    if not raced and (train or race_flags):
        idle = f"--set train.{next(iter(train))}" if train else "a setting of the race"
        raise ConfigError(f"{idle} has no effect without a race (--race)")
    race_settings = {**_table(tables, "race"), **(race_flags or {}), "train": {**_table(tables, "train"), **train}}
    return Asked(make_config(settings), _race_config(race_settings) if raced else None, _methods(run.get("methods")))


def _race_config(settings: Mapping[str, Any]) -> RaceConfig:
    try:
        return RaceConfig.make(settings)
    except ConfigError as error:  # the search has epochs, too, and the whole run has minutes
        raise ConfigError(f"of the race, {error}") from error


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{name}] must be a table of settings, got {name} = {table!r}")
    return table


def _methods(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return tuple(given)
    raise ConfigError(f"methods must be a list of names, got {given!r}")


def check_command(asked: Asked, file: Path | None, out: Path, resume: bool, command: str) -> None:
    """A race of given policies has no method that a search could take, and a search has no policies to be given."""
    if asked.methods is None or (asked.methods == GIVEN) == (command == "race"):
        return
    other = "race" if command == "search" else "search"
    where = f"the run in {str(out)!r}" if resume else f"the config {str(file)!r}"
    raise ConfigError(f"{where} is one of fasteraa {other}: give it to that command")


def _preset(name: str | None, source: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; choices: {', '.join(PRESETS)}")
    from fasteraa.data import recipe_for

    subset = recipe_for(source or "sample")
    settings = {"objective": "paper", "subset": subset.subset, "size": subset.size, "classes": subset.classes}
    return {name: value for name, value in settings.items() if value is not None}


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def parse_window(text: str) -> tuple[int, int]:
    """`0,4095`."""
    if re.fullmatch(r"\s*-?[0-9]{1,9}\s*,\s*-?[0-9]{1,9}\s*", text) is None:
        raise ConfigError(f"--window takes two whole numbers, LOW,HIGH, got {quoted(text)}")
    low, high = map(int, text.split(","))
    return low, high


def print_config(flags: Mapping[str, Any], config: Path | None) -> None:
    """What a search would accept, and nothing else."""
    settings = effective(flags, config, race=False).config
    if settings.critic != "auto":  # only then is torch needed
        from fasteraa.methods.faster_aa.run import check_critic

        check_critic(settings)
    typer.echo(settings.toml("search"), nl=False)


def assignment(text: str) -> tuple[str, Any]:
    """`learning_rate=0.002`; the value is TOML, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes NAME=VALUE, got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def run_search(
    source: str | None,
    out: Path,
    asked: Asked,
    methods: str | None,
    resume: bool,
    trackers: Sequence[str],
    **options: Any,
) -> None:
    from fasteraa.api import search
    from fasteraa.methods import DEFAULT_METHODS
    from fasteraa.report.trackers import track
    from fasteraa.runtime.progress import for_this_terminal

    chosen = methods or asked.methods or DEFAULT_METHODS
    with track(*trackers, folder=out, config=asked.config, progress=for_this_terminal(), resume=resume) as progress:
        result = search(
            source,
            asked.config,
            methods=chosen,
            race=asked.race or False,
            out=out,
            resume=resume,
            progress=progress,
            **options,
        )
    print_result(result, out)


def run_race(policies: str, source: str | None, out: Path, asked: Asked, resume: bool, **options: Any) -> None:
    from fasteraa.api import race
    from fasteraa.runtime.progress import for_this_terminal
    from fasteraa.selection.result import Result

    progress = for_this_terminal()
    result = race(policies, source, asked.config, race=asked.race, out=out, resume=resume, progress=progress, **options)
    assert isinstance(result, Result)  # our own trainings judged
    print_result(result, out)


def print_result(result: Result, out: Path) -> None:
    from fasteraa.report.summary import summarise
    from fasteraa.runtime.run_folder import RunFolder

    folder = RunFolder(out)
    masks, pairs = result.data.masks is not None, "sample_pairing" in result.policy.ops
    arguments = ", ".join(["pool=train_images"] * pairs + ["mask_fill=255"] * masks)
    note = "   # it mixes in other images: a list of them, or uint8 (N, 3, H, W)" if pairs else ""
    typer.echo(
        f"\n{summarise(result)}\n\n"
        f"policy   {folder.policy}      (python: fasteraa.load({str(out)!r}).transform({arguments})){note}\n"
        f"preview  {folder.preview}\n"
        f"summary  {folder.summary}\n"
        f"report   fasteraa report {out}"
    )


def write_preview(
    source: str | None, policy: str, out: Path, size: int | None, columns: int, seed: int, data_root: Path | None
) -> None:
    from fasteraa.data import load
    from fasteraa.errors import DataError
    from fasteraa.policy.resolve import load_policy
    from fasteraa.report.preview import alternating, draw_sheet
    from fasteraa.runtime.files import replacing

    chosen = load_policy(policy)
    if out.is_dir() or out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise DataError(f"a picture (--out) must be a file that ends in .png, .jpg or .webp, got {str(out)!r}")
    # partners of sample_pairing come from the images beside those shown; a broken one is not missed here
    data = load(source, size=size, data_root=data_root, seed=seed, at_most=max(columns, 64), broken_budget=1.0)
    order = slice(None) if data.masks is not None else alternating(data.labels)
    sheet = draw_sheet(chosen, data.images[order], columns, seed=seed, masks=data.masks)
    with replacing(out, DataError) as partial:
        sheet.save(partial)
