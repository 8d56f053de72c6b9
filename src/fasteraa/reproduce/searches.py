"""Making the searches of a table that are not there yet, as `fasteraa.search` does."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fasteraa.api import search as run_search
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, DataError, RaceError, RunError, Stopped
from fasteraa.methods import DEFAULT_METHODS, Method, load_method
from fasteraa.reproduce.schema import Search
from fasteraa.reproduce.search_store import SearchStore
from fasteraa.reproduce.setting import Setting
from fasteraa.reproduce.smoke import quick_race
from fasteraa.runtime.documents import plain
from fasteraa.runtime.files import write_atomic
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.signals import explain_stop
from fasteraa.selection.config import RaceConfig
from fasteraa.selection.result import Result

COST = "cost.json"  # in the folder of a search with a budget: what it took
_ROOM = 1.15  # times its budget: starting, and writing the result
_QUICK_TRAININGS = 16  # half of them are enough for every method: pba wants eight
GRADIENT_ONLY = ("faster-aa",)  # the paper's search; no policy is trained with


def make_searches(store: SearchStore, search: Search) -> list[str]:
    """One for every seed; why some failed. One that fails does not end the others, which are hours of work."""
    setting, failures = store.setting, []
    missing = sorted(set(store.seeds(search)) - store.policies(search).keys())
    if not missing or store.lacks_images(search):
        return []
    images = store.images(search)
    for seed in missing:
        if setting.time_left:
            why = _tried_to_make(store, search, images, seed)
            if why:
                failures.append(f"{store.folder(search, seed).name}: {why}")
                setting.say(failures[-1])
    return failures


def _tried_to_make(store: SearchStore, search: Search, images: ImageSet, seed: int) -> str:
    """Why it failed; empty if it did not. A method that breaks in any way must not end those of others."""
    try:
        _make(store, search, images, seed)
    except Stopped:
        raise
    except (RunError, DataError, ConfigError) as error:
        return str(error)
    except Exception as error:
        if not search.budgeted:
            raise
        return f"{type(error).__name__}: {error}"
    return ""


def _make(store: SearchStore, search: Search, images: ImageSet, seed: int) -> None:
    if search.budgeted:
        _ask_methods(store, search, images)
        return
    gradient = replace(search, race_minutes=0.0)
    with explain_stop(_stopped(store.setting)):
        if store.read(gradient, seed) is None:
            _search(store, gradient, images, seed)
        if search.race_minutes and store.read(gradient, seed) and store.setting.time_left:
            _race(store, search, images, seed)


def _search(store: SearchStore, search: Search, images: ImageSet, seed: int) -> None:
    setting, config, folder = store.setting, store.config(search, seed), store.folder(search, seed)
    left = (setting.until - time.time()) / 60
    result = run_search(
        images,
        config,
        methods=GRADIENT_ONLY,
        race=False,
        out=folder,
        resume=RunFolder(folder).config.exists(),
        **_where(setting),
        minutes=None if math.isinf(left) else max(left, 0.0),
    )
    end = "finished" if result.finished else "time is up, not finished"
    setting.say(
        f"search on {len(images)} images of {search.source}, {config.objective}, L = {config.sub_policies}, "
        f"K = {config.operation_count}, seed {seed}: {end} ({result.policy.provenance['seconds']:.0f} s)"
    )


def _race(store: SearchStore, search: Search, images: ImageSet, seed: int) -> None:
    """As `fasteraa search` does, in the folder of the search."""
    setting, began, folder = store.setting, time.monotonic(), store.folder(search, seed)
    result = run_search(
        images,
        store.config(search, seed),
        methods=GRADIENT_ONLY if setting.quick else DEFAULT_METHODS,
        race=quick_race() if setting.quick else RaceConfig(minutes=search.race_minutes),
        out=folder,
        resume=RunFolder(folder).config.exists(),
        **_where(setting),
        jobs=1 if setting.quick else None,
    )
    if result.race is None:
        raise RaceError(result.note)
    seconds = time.monotonic() - began
    setting.say(f"race on {search.source}, seed {seed}: {result.race.sentence()} ({seconds:.0f} s)")


def _ask_methods(store: SearchStore, search: Search, images: ImageSet) -> None:
    """As `fasteraa search --methods ...` does: one method with its time and no race, or all of them and a race."""
    setting, folder, minutes = store.setting, store.folder(search, 0), search.minutes or search.race_minutes
    if time.time() + _ROOM * 60 * minutes > setting.until and not setting.quick:
        setting.say(f"{folder.name}: needs {_ROOM * minutes:g} minutes, which are not left; the same command continues")
        return
    methods = _available(search.methods, setting)
    race: RaceConfig | bool = RaceConfig(minutes=search.race_minutes) if search.race_minutes else False
    began = time.monotonic()
    with explain_stop(_stopped(setting)):
        result = run_search(
            images,
            store.config(search, 0),
            methods=methods,
            race=quick_race(_QUICK_TRAININGS) if setting.quick else race,
            out=folder,
            resume=RunFolder(folder).config.exists(),
            **_where(setting),
            minutes=search.minutes or None if not setting.quick else None,
            jobs=1 if setting.quick else None,
        )
    seconds = time.monotonic() - began
    names = [each.name for each in methods]
    facts = {"methods": names, "minutes": minutes, "seconds": seconds}
    chosen = {"chosen": result.policy.name, "device": setting.engine.device, "tried": _tried(result)}
    write_atomic(folder / COST, json.dumps(plain({**facts, **chosen}), indent=1) + "\n")
    setting.say(f"{', '.join(names)} on {search.source}: {result.policy.name} ({seconds:.0f} s)")


def _where(setting: Setting) -> dict[str, Any]:
    engine = setting.engine
    return {"engine": engine.name, "device": engine.device, "devices": engine.devices, "address": engine.address}


def _tried(result: Result) -> dict[str, Any]:
    """What each candidate's method tried: fold and score, in its order."""
    return {label: details["tried"] for label, details in result.details.items() if "tried" in details}


def _available(names: Sequence[str], setting: Setting) -> list[Method]:
    """Those that can be made; a method whose package is missing is left out of several, and an error alone."""
    methods: list[Method] = []
    for name in names:
        try:
            kind = load_method(name)
            methods.append(kind.reduced() if setting.quick else kind())
        except ConfigError as error:
            if len(names) == 1:
                raise
            setting.say(f"racing without {name}: {error}")
    return methods


def _stopped(setting: Setting) -> str:
    return f"stopped in a search; everything is kept in {str(setting.out)!r}: give the same command again to continue"
