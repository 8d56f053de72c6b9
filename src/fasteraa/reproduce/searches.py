"""Making the searches of a table that are not there yet, as `fasteraa.search` does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fasteraa.api import search as run_search
from fasteraa.data import ImageSet
from fasteraa.errors import DataError, RaceError, RunError, Stopped
from fasteraa.methods import DEFAULT_METHODS
from fasteraa.reproduce.schema import Search
from fasteraa.reproduce.search_store import SearchStore
from fasteraa.reproduce.smoke import quick_race
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.config import RaceConfig

GRADIENT_ONLY = ("faster-aa",)  # the paper's search; no policy is trained with


def make_searches(store: SearchStore, search: Search) -> list[str]:
    """One for every seed; why some failed. One that fails does not end the others, which are hours of work."""
    setting, failures = store.setting, []
    missing = sorted(set(range(setting.seeds)) - store.policies(search).keys())
    if not missing or store.lacks_images(search):
        return []
    images = store.images(search)
    for seed in missing:
        if setting.time_left:
            try:
                _make(store, search, images, seed)
            except Stopped:
                raise
            except (RunError, DataError) as error:
                failures.append(f"{store.folder(search, seed).name}: {error}")
                setting.say(failures[-1])
    return failures


def _make(store: SearchStore, search: Search, images: ImageSet, seed: int) -> None:
    gradient = replace(search, race_minutes=0.0)
    with _stop_says_how_to_continue(store.setting.out):
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
        device=setting.device,
        minutes=None if math.isinf(left) else max(left, 0.0),
    )
    end = "finished" if result.finished else "time is up, not finished"
    setting.say(
        f"search on {len(images)} images of {search.source}, {config.objective}, L = {config.sub_policies}, "
        f"K = {config.operation_count}, seed {seed}: {end} ({result.policy.provenance['seconds']:.0f} s)"
    )


def _race(store: SearchStore, search: Search, images: ImageSet, seed: int) -> None:
    """As `fasteraa search` does, in the folder of the search."""
    setting, began = store.setting, time.monotonic()
    result = run_search(
        images,
        store.config(search, seed),
        methods=GRADIENT_ONLY if setting.quick else DEFAULT_METHODS,
        race=quick_race() if setting.quick else RaceConfig(minutes=search.race_minutes),
        out=store.folder(search, seed),
        resume=True,
        device=setting.device,
        jobs=1 if setting.quick else None,
    )
    if result.race is None:
        raise RaceError(result.note)
    seconds = time.monotonic() - began
    setting.say(f"race on {search.source}, seed {seed}: {result.race.sentence()} ({seconds:.0f} s)")


@contextmanager
def _stop_says_how_to_continue(out: Path) -> Iterator[None]:
    try:
        yield
    except Stopped as error:
        raise Stopped(
            f"stopped in a search; everything is kept in {str(out)!r}: give the same command again to continue",
            error.signal,
        ) from error
