"""What `fasteraa search`, `race`, `config` and `preview` do between parsing and printing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fasteraa.cli.echo import echo
from fasteraa.errors import ConfigError
from fasteraa.methods import DEFAULT_METHODS, METHODS, Method, Published, load_method, make_methods
from fasteraa.methods.config import SearchConfig, make_config, paper_settings, read_config, read_tables
from fasteraa.runtime.documents import quoted
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.settings_file import settings_text

if TYPE_CHECKING:
    from fasteraa.selection.result import Result

PRESETS = ("paper",)
_UNLIMITED = 1_000_000  # trainings: more than any method as published
GIVEN = ("given",)  # the method of a race: policies that somebody brings


@dataclass(frozen=True)
class Asked:
    """The settings of a run: defaults, then the preset, then the TOML file, then flags."""

    config: SearchConfig
    race: RaceConfig | None
    methods: tuple[str, ...]
    methods_of_file: tuple[str, ...] | None = None
    of_methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of their own
    training: RaceConfig | None = None  # of methods that train, where there is no race
    note: str = ""  # about the preset

    @property
    def trains(self) -> bool:
        """Whether anything is trained beside the critic of a search: by a race, or by the first method."""
        return self.race is not None or self.training is not None

    def make_methods(self) -> list[Method]:
        return make_methods(self.methods, self.of_methods)


def effective(
    flags: Mapping[str, Any],
    config: Path | None,
    preset: str | None = None,
    source: str | None = None,
    race: bool | None = None,
    race_flags: Mapping[str, Any] | None = None,
    methods: str | None = None,
    minutes: float | None = None,
) -> Asked:
    """`race` and `methods` None leave it to the file, where there is one. `minutes` limits everything together."""
    tables = read_tables(config) if config is not None else {}
    set_search, set_training, set_methods = _assigned(flags.get("set_", ()))
    search, note = _search_settings(flags, config, preset, source, set_search)
    run = _table(tables, "run")
    raced = run.get("race", True) if race is None else race
    of_file = _methods(run.get("methods"))
    chosen = tuple(_list(methods)) if methods else of_file or DEFAULT_METHODS
    trains = raced or load_method(chosen[0]).trains  # without a race the first method alone is asked
    if set_training and not trains:
        raise ConfigError(f"--set train.{next(iter(set_training))} has no effect without a race (--race)")
    published = _published(chosen if raced else chosen[:1], source) if preset else {}
    training = _training_settings(tables, race_flags or {}, set_training, published, minutes) if trains else None
    return Asked(
        config=search,
        race=training if raced else None,
        methods=chosen,
        methods_of_file=of_file,
        of_methods=_of_methods(_table(tables, "methods"), published, set_methods, chosen),
        training=None if raced else training,
        note=note,
    )


def _search_settings(
    flags: Mapping[str, Any], config: Path | None, preset: str | None, source: str | None, assigned: Mapping[str, Any]
) -> tuple[SearchConfig, str]:
    """Those of the preset, of the file, of `--set` and of flags, the later over the earlier; a note on the preset."""
    of_preset, note = _preset(preset, source)
    of_file = read_config(config) if config is not None else {}
    parsers = {"ops": _list, "window": parse_window}
    given = {name: parsers[name](value) if name in parsers else value for name, value in flags.items()}
    given.pop("set_", None)
    return make_config({**of_preset, **of_file, **assigned, **given}), note


def _training_settings(
    tables: Mapping[str, Any],
    flags: Mapping[str, Any],
    assigned: Mapping[str, Any],
    published: Mapping[str, Published],
    minutes: float | None,
) -> RaceConfig:
    """Those of the race, or of methods that train: what was published, the file, `--set` and flags, in this order."""
    given = {**_table(tables, "race"), **flags}
    of_preset, train_of_preset = _published_training(published, given, minutes)
    settings = {**of_preset, **given}
    if "minutes" in flags and (count := settings.get("trainings")) is not None:
        raise ConfigError(f"--race-minutes has no effect on a race of {count} trainings: --minutes ends it")
    settings["train"] = {**train_of_preset, **_table(tables, "train"), **assigned}
    return _race_config(settings)


def _published(names: Sequence[str], source: str | None) -> dict[str, Published]:
    """What `--preset` makes of each method."""
    return {name: load_method(name).published(_set_name(source)) for name in names}


def _published_training(
    published: Mapping[str, Published], given: Mapping[str, Any], minutes: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the race and of its training: a method that trains runs to its end, unless there is a limit."""
    unlimited = minutes is None and not {"minutes", "trainings"} & given.keys()
    settings: dict[str, Any] = {}
    if unlimited and any(load_method(name).trains and any(each) for name, each in published.items()):
        settings["trainings"] = _UNLIMITED
    training = {name: each.training for name, each in published.items() if each.training}
    if not training:
        return settings, {}
    first, *others = training
    if any(training[other] != training[first] for other in others):
        raise ConfigError(
            f"--preset paper: {', '.join(training)} were published with different trainings, and in a race all "
            "trainings are alike: search with one of them"
        )
    of_race = {name: value for name, value in training[first].items() if name != "train"}
    return settings | of_race, dict(training[first].get("train", {}))


def _assigned(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
    """What `--set` gives to the search (NAME=...), to the training (train.NAME=...), to methods (METHOD.NAME=...)."""
    settings: dict[str, Any] = {}
    train: dict[str, Any] = {}
    of_methods: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, value = assignment(text)
        owner, dot, rest = name.partition(".")
        if dot and owner == "train":
            train[rest] = value
        elif dot and owner in METHODS.names():
            of_methods.setdefault(owner, {})[rest] = value
        else:
            settings[name] = value
    return settings, train, of_methods


def _of_methods(
    of_file: Mapping[str, Any],
    published: Mapping[str, Published],
    given: Mapping[str, Mapping[str, Any]],
    chosen: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Settings of the methods that take part: those that were published, those of the file, those that were given."""
    for name in given:
        if name not in chosen:
            raise ConfigError(
                f"--set {name}.{next(iter(given[name]))} has no effect without that method: --methods {name},..."
            )
    of_preset = {name: each.settings for name, each in published.items()}
    return {name: {**of_preset.get(name, {}), **_table(of_file, name), **given.get(name, {})} for name in chosen}


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
    if asked.methods_of_file is None or (asked.methods_of_file == GIVEN) == (command == "race"):
        return
    other = "race" if command == "search" else "search"
    where = f"the run in {str(out)!r}" if resume else f"the config {str(file)!r}"
    raise ConfigError(f"{where} is for fasteraa {other}: give it to that command")


def _preset(name: str | None, source: str | None) -> tuple[dict[str, Any], str]:
    """Settings, and a note where nothing was published for these images."""
    if name is None:
        return {}, ""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; choices: {', '.join(PRESETS)}")
    from fasteraa.data.paper_subsets import RECIPES

    name_of = _set_name(source)
    if name_of not in RECIPES:
        unknown = f"--preset paper: nothing was published for {quoted(name_of)}"
        return paper_settings(), f"{unknown}, so the search takes all images and the settings for CIFAR-10"
    subset = RECIPES[name_of]
    images = {"subset": subset.subset, "size": subset.size, "classes": subset.classes}
    return {**paper_settings(name_of), **{name: value for name, value in images.items() if value is not None}}, ""


def _set_name(source: str | None) -> str:
    """As the authors call it; ImageNet may lie anywhere."""
    from fasteraa.data.imagenet import find_imagenet
    from fasteraa.data.named import IMAGENET

    if source is not None and find_imagenet(Path(source)) is not None:
        return IMAGENET
    return source or "sample"


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def parse_window(text: str) -> tuple[int, int]:
    """`0,4095`."""
    if re.fullmatch(r"\s*-?[0-9]{1,9}\s*,\s*-?[0-9]{1,9}\s*", text) is None:
        raise ConfigError(f"--window takes two whole numbers, LOW,HIGH, got {quoted(text)}")
    low, high = map(int, text.split(","))
    return low, high


def print_config(flags: Mapping[str, Any], config: Path | None) -> None:
    """What a search would accept, and nothing else: a file that --config takes."""
    asked = effective(flags, config)
    methods = asked.make_methods()
    for method in methods:
        method.check(asked.config)
    echo(settings_text(asked.config, asked.race, methods, explain=True), nl=False)


def assignment(text: str) -> tuple[str, Any]:
    """`learning_rate=0.002`; the value is TOML, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes NAME=VALUE, got {quoted(text)}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--set takes numbers of at most 300 digits and lists of a few levels, got {quoted(text)}"
        ) from error


def run_search(
    source: str | None,
    out: Path,
    asked: Asked,
    resume: bool,
    trackers: Sequence[str],
    as_json: bool = False,
    **options: Any,
) -> None:
    from fasteraa.api import search
    from fasteraa.report.trackers import track
    from fasteraa.runtime.progress import Silent, for_this_terminal
    from fasteraa.runtime.ranks import own_rank

    run = partial(
        search,
        source,
        asked.config,
        methods=asked.make_methods(),
        race=asked.race or False,
        training=asked.training,
        out=out,
        resume=resume,
        **options,
    )
    if own_rank() > 0:  # rank 0 of torchrun writes and prints
        run()
        return
    shown = Silent() if as_json else for_this_terminal()
    with track(*trackers, folder=out, config=asked.config, progress=shown, resume=resume) as progress:
        if asked.note:
            progress.say(asked.note)
        result = run(progress=progress)
    print_result(result, as_json)


def run_race(
    policies: str, source: str | None, out: Path, asked: Asked, resume: bool, as_json: bool = False, **options: Any
) -> None:
    from fasteraa.api import race
    from fasteraa.runtime.progress import Silent, for_this_terminal
    from fasteraa.selection.result import Result

    progress = Silent() if as_json else for_this_terminal()
    result = race(policies, source, asked.config, race=asked.race, out=out, resume=resume, progress=progress, **options)
    assert isinstance(result, Result)  # our own trainings judged
    print_result(result, as_json)


def print_result(result: Result, as_json: bool = False) -> None:
    """The summary; as JSON what result.json has."""
    from fasteraa.cli.tables import print_json
    from fasteraa.report.outputs import result_dict
    from fasteraa.report.summary import summarise

    if as_json:
        print_json(result_dict(result))
        return
    echo(f"\n{summarise(result)}")


def write_preview(
    source: str | None,
    policy: str,
    out: Path,
    size: int | None,
    columns: int,
    seed: int,
    data_root: Path | None,
    window: str | None = None,
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
    data = load(
        source,
        size=size,
        data_root=data_root,
        seed=seed,
        at_most=max(columns, 64),
        broken_budget=1.0,
        window=None if window is None else parse_window(window),
    )
    order = slice(None) if data.masks is not None else alternating(data.labels)
    sheet = draw_sheet(chosen, data.images[order], columns, seed=seed, masks=data.masks)
    with replacing(out, DataError) as partial:
        sheet.save(partial)
