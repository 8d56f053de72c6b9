"""config.toml of a run folder: the settings of a search and its race, written, and compared when a run is resumed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fasteraa.errors import RunError
from fasteraa.methods import Method
from fasteraa.methods.config import SearchConfig, read_tables
from fasteraa.runtime.documents import cut, quoted
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.settings import toml_value
from fasteraa.selection.config import RaceConfig


def write_settings(
    folder: RunFolder,
    config: SearchConfig,
    race: RaceConfig | None,
    methods: Sequence[Method],
    training: RaceConfig | None = None,
) -> None:
    """config.toml: from here on the folder holds a run."""
    folder.write_config(settings_text(config, race, methods, training=training))


def check_same_race(
    folder: RunFolder, config: SearchConfig, race: RaceConfig | None, methods: Sequence[Method]
) -> None:
    """A race that was begun is resumed with its own settings, or more minutes: another would replace its answer."""
    tables = read_tables(folder.config)
    if race is None or not tables["run"].get("race"):
        return
    before = _race_values(tables, methods)
    now = _race_values(tomllib.loads(settings_text(config, race, methods)), methods)
    others = [
        f"{name} = {quoted(before.get(name), 60)}, now {quoted(now.get(name), 60)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if others:
        raise RunError(
            f"the race in {str(folder.path)!r} was begun with {cut('; '.join(others))}: resume it with its own "
            "settings (more minutes are welcome), or choose another folder (--out)"
        )


def _race_values(tables: Mapping[str, Any], methods: Sequence[Method]) -> dict[str, Any]:
    """Whatever makes it another race, by name; a setting that a file of an earlier version lacks is as by default."""
    race = RaceConfig.make(tables.get("race", {})).plain()
    own = {each.name: type(each.settings) for each in methods if each.settings is not None}
    settings = {name: kind.make(tables.get("methods", {}).get(name, {})).plain() for name, kind in own.items()}
    return {
        "methods": tables["run"].get("methods"),
        **{name: value for name, value in race.items() if name not in ("minutes", "train")},
        **{f"train.{name}": value for name, value in tables.get("train", {}).items()},
        **{f"{name}.{key}": value for name, each in settings.items() for key, value in each.items()},
    }


def settings_text(
    config: SearchConfig,
    race: RaceConfig | None,
    methods: Sequence[Method],
    explain: bool = False,
    training: RaceConfig | None = None,
) -> str:
    """All settings of a run as TOML; to `explain`, those of the training that are as its recipe says as well.

    Without a race `training` is that of the methods.
    """
    names = [method.name for method in methods]
    text = (
        config.toml("search") + "\n" + f"[run]\nmethods = {toml_value(names)}\nrace = {toml_value(race is not None)}\n"
    )
    race = race or training
    if race is not None:
        text += "\n" + replace(race, train={}).toml("race")
        rows = _train_rows(race) if explain else "".join(_row(name, value) for name, value in race.train.items())
        text += f"\n[train]\n{rows}" if rows else ""
    own = [method.settings.toml(f"methods.{method.name}") for method in methods if method.settings is not None]
    return "\n".join([text, *own])


def _row(name: str, value: Any) -> str:
    return f"{name} = {toml_value(value)}\n"


def _train_rows(race: RaceConfig) -> str:
    """Every setting of the training with its meaning; those that follow from the images stand as comments."""
    from fasteraa.train.recipe import TrainRecipe

    lines = []
    for name, each in TrainRecipe.fields().items():
        if name in ("pretrained", "weights"):  # settings of the race
            continue
        lines.append(f"# {each.metadata['about']}\n")
        lines.append(_row(name, race.train[name]) if name in race.train else f"# {name} =\n")
    return "".join(lines)
