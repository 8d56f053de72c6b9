"""Make the searches and the training runs of a table, keep them, and put our numbers beside the paper's."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fasteraa.comparison.compare import Cell, end_of, make_cell, read_cell, run_cells, why_diverged
from fasteraa.data import ImageSet, load, stratify
from fasteraa.data.named import NAMES
from fasteraa.data.resolve import open_source
from fasteraa.errors import ConfigError, DataError, RunError, Stopped
from fasteraa.methods.config import SearchConfig, make_config, to_settings
from fasteraa.methods.faster_aa.run import SearchResult, search
from fasteraa.methods.op_effects import operations_to_test
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.reproduce.render import publish
from fasteraa.reproduce.result import Found, Reproduction
from fasteraa.reproduce.schema import DATA, Line, Search, Table, find_recipe
from fasteraa.reproduce.smoke import QUICK_IMAGES, quick_recipe, quick_search, quick_sources
from fasteraa.reproduce.tables import find_table
from fasteraa.runtime.device import find_device
from fasteraa.runtime.files import as_file_name
from fasteraa.selection.race import calibrate, race_recipe, usual_candidates
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.split import Arena, open_arena, open_folder, twice_words

RUNS = 3  # of every number, as in the paper
Say = Callable[[str], None]
Part = tuple[str, int | None, int | None, int | None]  # of a named set: images, classes, size


@dataclass(frozen=True)
class Setting:
    """Where and with what a table is made."""

    out: Path
    seeds: int
    device: str
    data_root: Path | None
    sources: Mapping[str, str]  # named set -> what stands in for it
    subset: int | None
    quick: bool
    until: float
    say: Say
    command: str | None  # the command line that asked for it

    def source(self, name: str) -> str:
        return self.sources.get(name, name)

    def known_source(self, name: str) -> str:
        """The same; an error if nobody could know where it is."""
        if name not in self.sources and name not in NAMES:
            raise DataError(f"{name} is not found by its name alone: --source {name}=FOLDER tells where it is")
        return self.source(name)

    def recipe(self, line: Line) -> TrainRecipe:
        recipe = find_recipe(line.recipe)
        return quick_recipe(recipe) if self.quick else recipe


def reproduce(
    name: str,
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    sources: Mapping[str, str] | None = None,
    subset: int | None = None,
    only: str | Sequence[str] = (),
    max_minutes: float | None = None,
    table_only: bool = False,
    say: Say = print,
    command: str | None = None,
) -> Reproduction:
    """Do a table of the paper again. Searches and runs that are in the folder are not made again.

    `sources` names what stands in for a data set (`{"cifar10": "cifar10.npz"}`), `only` picks lines that have
    each of these in data, network or label, `table_only` makes the table from what is there. Runs keep `command`.
    """
    table, until = find_table(name), end_of(max_minutes)
    find_device("cpu" if quick else device)
    _check_sources(sources or {})
    folder = Path(out)
    open_folder(folder)
    setting = Setting(
        out=folder,
        seeds=seeds if seeds is not None else 1 if quick else RUNS,
        device="cpu" if quick else device,
        data_root=None if data_root is None else Path(data_root),
        sources=quick_sources(folder) if quick else dict(sources or {}),
        subset=None if quick else subset,
        quick=quick,
        until=until,
        say=say,
        command=command,
    )
    made = _Made(setting, table, [only] if isinstance(only, str) else only)
    try:
        made.collect(1 if quick and jobs is None else jobs, table_only)
        result = made.result()
        made.check(folder / name / f"{result.file}.md" if table_only else None)
    except Stopped:
        made.collect(jobs, table_only=True)
        publish(made.result(), folder / name)
        raise
    publish(result, folder / name)
    return result


def _check_sources(sources: Mapping[str, str]) -> None:
    known = {each.source for each in DATA.values()}
    for name in sources:
        if name not in known:
            raise ConfigError(f"no data set {name!r} takes part; choices: {', '.join(sorted(known))}")


class _Made:
    """What is there of a table, and how to make the rest."""

    def __init__(self, setting: Setting, table: Table, only: Sequence[str]):
        self.setting, self.table, self.only = setting, table, only
        self.chosen = {place: line for place, line in enumerate(table.lines) if line.policy is not None}
        for part in only:
            self.chosen = _with(self.chosen, part)
        if not self.chosen:
            raise ConfigError(
                f"no line of {table.name} that can be run has {' and '.join(map(repr, only))} in data, network or label"
            )
        self.values: dict[int, dict[int, float]] = {}  # place in the table -> seed -> measured
        self.troubles: dict[str, str] = {}  # named set, or searches on it -> why it is not there
        self.closed: set[str] = set()  # data sets to train on that are not there
        self.fingerprints: dict[Part, str | None] = {}  # of what is searched on; None where it is not there
        self.failed: list[str] = []  # searches that came to nothing
        self.unlike: dict[str, list[tuple[str, str]]] = {}  # data set -> what there is, what was planned
        self.remarks: list[str] = []
        self.devices: set[str] = set()

    def collect(self, jobs: int | None, table_only: bool) -> None:
        """Searches first, then runs, data set by data set, so that one of them is in memory at a time."""
        for place, line in self.chosen.items():
            if isinstance(line.policy, Search):
                if not table_only:
                    self._search(line.policy)
                if line.measure == "hours":
                    self.values[place] = {s: _hours(policy) for s, policy in self._policies(line.policy).items()}
        trained = {place: line for place, line in self.chosen.items() if line.recipe}
        for data in dict.fromkeys(line.data for line in trained.values()):
            self._train(data, {p: line for p, line in trained.items() if line.data == data}, jobs, table_only)

    def check(self, earlier: Path | None) -> None:
        """An error where there is not one number, and a reason for that or an earlier table that would be lost."""
        if any(self.values.values()):
            return
        if self.troubles:
            why = f"not one number of {self.table.name} can be told without its images: " if earlier else ""
            raise DataError(why + "; ".join(text.rstrip(".") for text in self.troubles.values()))
        if self.failed:
            raise RunError("; ".join(self.failed))
        if earlier and earlier.exists():
            raise RunError(
                f"nothing with these images and settings is in {str(self.setting.out)!r}: {earlier} stays as it is"
            )

    # --- searches --------------------------------------------------------------------------------------------------

    def _search(self, wanted: Search) -> None:
        missing = sorted(set(range(self.setting.seeds)) - self._policies(wanted).keys())
        if not missing or self._read_fingerprint(wanted) is None:
            return
        data = self._images(wanted)
        for seed in missing:
            if time.time() < self.setting.until:
                try:
                    self._search_once(wanted, data, seed)
                except Stopped:
                    raise
                except (RunError, DataError) as error:  # the others, hours of work, need not end with it
                    self.failed.append(f"{self._folder(wanted, seed).name}: {error}")
                    self.setting.say(self.failed[-1])

    def _search_once(self, wanted: Search, data: ImageSet, seed: int) -> None:
        folder = self._folder(wanted, seed)
        before = self._read(folder / "policy.json")
        left = (self.setting.until - time.time()) / 60
        try:
            result = search(
                data,
                self._config(wanted, seed),
                out=folder,
                resume=(folder / "config.toml").exists(),
                device=self.setting.device,
                max_minutes=None if math.isinf(left) else max(left, 0.0),
            )
        except Stopped as error:
            raise Stopped(
                f"stopped in a search; everything is kept in {str(self.setting.out)!r}: give the same command again to "
                "go on",
                error.signal,
            ) from error
        if before is None:
            self._say_found(wanted, seed, result)
        if wanted.calibrate and result.finished and time.time() < self.setting.until:
            self._calibrate(wanted, result, seed)

    def _say_found(self, wanted: Search, seed: int, result: SearchResult) -> None:
        config, seconds = self._config(wanted, seed), result.policy.provenance["seconds"]
        how = "found" if result.finished else "time is up, not finished"
        self.setting.say(
            f"search on {len(result.data)} images of {wanted.source}, {config.objective}, L = {config.sub_policies}, "
            f"K = {config.operation_count}, seed {seed}: {how} ({seconds:.0f} s)"
        )

    def _calibrate(self, wanted: Search, result: SearchResult, seed: int) -> None:
        """As `fasteraa search` ends; the search itself is shared with lines that do without."""
        file = self._file(wanted, seed)
        config = self._config(wanted, seed)
        recipe = replace(race_recipe(result.data, self.setting.device), crop=config.crop, flip=config.flip)
        candidates = usual_candidates(result.start, result.policy, result.halfway, None)
        found = calibrate(
            result.data,
            candidates[:2] if self.setting.quick else candidates,
            minutes=wanted.calibrate,
            recipe=quick_recipe(recipe) if self.setting.quick else recipe,
            device=self.setting.device,
            folder=file.parent / "calibration",
            seed=seed,
            jobs=1 if self.setting.quick else None,
            ops=() if self.setting.quick else operations_to_test(None),
        )
        found.policy(result.policy).save(file)
        self.setting.say(f"calibrated on {wanted.source}, seed {seed}: {found.sentence()} ({found.seconds:.0f} s)")

    def _config(self, wanted: Search, seed: int) -> SearchConfig:
        settings = {**wanted.settings, "seed": seed}
        return make_config(quick_search(settings) if self.setting.quick else settings)

    def _folder(self, wanted: Search, seed: int) -> Path:
        fingerprint = self._fingerprint(wanted)
        assert fingerprint is not None, "nothing is searched or found without images"
        return self.setting.out / "searches" / search_name(wanted, self._config(wanted, seed), fingerprint)

    def _fingerprint(self, wanted: Search) -> str | None:
        """Of its images or, where they are not there, of those that its searches tell of, if these are the same."""
        read = self._read_fingerprint(wanted)
        told = set() if read else self._told_fingerprints(wanted)
        if len(told) > 1:
            self.troubles[f"searches on {wanted.source}"] = (
                f"there are searches on {len(told)} sets of images for {wanted.source}, and without the images it "
                "cannot be told which is meant"
            )
        return told.pop() if len(told) == 1 else read

    def _told_fingerprints(self, wanted: Search) -> set[str]:
        """Those of finished searches whose names were made with them."""
        configs = [self._config(wanted, seed) for seed in range(self.setting.seeds)]
        return {
            told for name, told in self._told.items() if name in {search_name(wanted, each, told) for each in configs}
        }

    @cached_property
    def _told(self) -> dict[str, str]:
        """Folder of a finished search -> fingerprint of the images that it was made on."""
        found = {file.parent.name: self._read(file) for file in (self.setting.out / "searches").glob("*/policy.json")}
        told = {name: each.provenance.get("data", {}).get("fingerprint") for name, each in found.items() if each}
        return {name: fingerprint for name, fingerprint in told.items() if fingerprint}

    def _read_fingerprint(self, wanted: Search) -> str | None:
        """Of its images, which are read for it once; None if they are not there."""
        part = (wanted.source, wanted.images, wanted.classes, wanted.size)
        if part not in self.fingerprints:
            try:
                self.fingerprints[part] = self._images(wanted).fingerprint
            except DataError as error:
                self.troubles[wanted.source] = str(error)
                self.fingerprints[part] = None
        return self.fingerprints[part]

    def _images(self, wanted: Search) -> ImageSet:
        source = self.setting.known_source(wanted.source)
        images = self._at_most(wanted.images, wanted.source, "train")
        size = None if self.setting.quick else wanted.size
        classes = self._at_most_classes(wanted)
        return load(source, subset=images, classes=classes, size=size, data_root=self.setting.data_root)

    def _policy(self, wanted: Search, seed: int) -> Policy | None:
        return self._read(self._file(wanted, seed))

    @staticmethod
    def _read(file: Path) -> Policy | None:
        """A policy that was searched to the end."""
        policy = Policy.load(file) if file.exists() else None
        return policy if policy is not None and policy.provenance.get("finished") else None

    def _file(self, wanted: Search, seed: int) -> Path:
        return self._folder(wanted, seed) / ("calibrated.json" if wanted.calibrate else "policy.json")

    def _policies(self, policy: str | Search) -> dict[int, Policy]:
        """One for every seed; those that were not found yet are left out."""
        seeds = range(self.setting.seeds)
        if policy == "random":
            return {seed: named("random", seed=seed) for seed in seeds}
        if isinstance(policy, str):
            return dict.fromkeys(seeds, named(policy))
        if self._fingerprint(policy) is None:
            return {}
        found = {seed: self._policy(policy, seed) for seed in seeds}
        return {seed: _kept(each, policy.keep, seed) for seed, each in found.items() if each is not None}

    # --- runs --------------------------------------------------------------------------------------------------------

    def _train(self, data: str, lines: Mapping[int, Line], jobs: int | None, table_only: bool) -> None:
        try:
            arena = self._arena(data)
        except DataError as error:
            self.troubles[DATA[data].source] = str(error)
            self.closed.add(data)
            return
        cells = {place: self._cells(line) for place, line in lines.items()}
        if not table_only:
            ordered = [each[seed] for seed in range(self.setting.seeds) for each in cells.values() if seed in each]
            run_cells(arena, ordered, jobs, self.setting.say, self.setting.until)
        for place, line in lines.items():
            read = {seed: read_cell(arena, cell) for seed, cell in cells[place].items()}
            records = {seed: record for seed, record in read.items() if record and not why_diverged(record)}
            for seed, record in read.items():
                if record and (why := why_diverged(record)):
                    self._remark(f"a run diverged, {data}, {cells[place][seed].label}, seed {seed}: {why}")
            self.values[place] = {seed: float(record[line.measure]) for seed, record in records.items()}
            self.devices |= {f"runs on {record.get('device', 'unknown device')}" for record in records.values()}
        if any(self.values[place] for place in lines):
            self._say_on_what(data, arena)

    def _cells(self, line: Line) -> dict[int, Cell]:
        assert line.policy is not None
        recipe = self.setting.recipe(line)
        label = f"{line.label} {recipe.network}"
        return {seed: make_cell(label, policy, recipe, seed) for seed, policy in self._policies(line.policy).items()}

    def _arena(self, data: str) -> Arena:
        known, source = DATA[data], self.setting.known_source(DATA[data].source)
        split = known.split if source == known.source else "train"
        arena = open_arena(
            source,
            self.setting.out,
            device=self.setting.device,
            data_root=self.setting.data_root,
            split=split,
            size=None if self.setting.quick else known.size,
            subset=self._at_most(self.setting.subset or known.subset, known.source, split),
        )
        if not self.setting.quick:
            self.unlike[data] = self._differences_of(data, arena)
        return replace(arena, command=self.setting.command)

    def _differences_of(self, data: str, arena: Arena) -> list[tuple[str, str]]:
        """What there is and what was planned, where they differ, as far as numbers of images and classes tell."""
        known = DATA[data]
        images = known.images or ("all" if self.setting.subset else None)
        counts = (("images", len(arena.data), images), ("classes", len(arena.data.classes), known.classes))
        return [(f"{count} {what}", f"{planned}") for what, count, planned in counts if planned not in (None, count)]

    def _say_on_what(self, data: str, arena: Arena) -> None:
        """What is to be said of the images that were trained on."""
        known, source = DATA[data], self.setting.source(DATA[data].source)
        if source != known.source and known.split != "train":
            self._remark(f"{source} stands in for {known.source} with its split train, not {known.split}")
        for there, planned in self.unlike.get(data, []):
            self._remark(f"{data}: trained on {there} of {source}, not on {planned}")
        if arena.share:
            self._remark(f"{source} has no test images: errors are those on {arena.held_out_from}, which searches saw")
        for each in arena.broken:
            self._remark(f"left out, could not be read: {each}")
        if arena.twice:
            self._remark(f"{data}: {twice_words(arena.twice, len(arena.held_out))}")

    def _at_most(self, images: int | None, name: str, split: str) -> int | None:
        """So many images, or None where a source that stands in has no more than that."""
        if self.setting.quick:
            return images and QUICK_IMAGES
        source = self.setting.source(name)
        if source == name or images is None:
            return images
        have = len(open_source(source, self.setting.data_root).listing(split))
        return images if have > images else None

    def _at_most_classes(self, wanted: Search) -> int | None:
        source = self.setting.source(wanted.source)
        if source == wanted.source or wanted.classes is None:
            return wanted.classes
        have = len(open_source(source, self.setting.data_root).listing("train").classes)
        return wanted.classes if have > wanted.classes else None

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    # --- the table ---------------------------------------------------------------------------------------------------

    def result(self) -> Reproduction:
        found = tuple(self._found(place, line) for place, line in enumerate(self.table.lines))
        for place, line in self.chosen.items():
            if line.recipe:
                self._say_what_stands_in(DATA[line.data].source)
            if isinstance(line.policy, Search):
                self._say_what_stands_in(line.policy.source)
                policies = self._policies(line.policy).values()
                self.devices |= {f"searches on {each.provenance.get('device', 'unknown device')}" for each in policies}
                if self.values.get(place) and self._read_fingerprint(line.policy) is None:
                    source = line.policy.source
                    self._remark(f"the searches on {source} were found without its images, by what they say of them")
                for text in self._searched_otherwise(line.policy):
                    self._remark(f"{line.policy.source}: {text}")
        self.remarks += [f"no data: {text}" for text in self.troubles.values()]
        self.remarks += [f"a search failed, {text}" for text in self.failed]
        return Reproduction(
            self.table,
            found,
            self.setting.seeds,
            self.setting.quick,
            tuple(self.remarks),
            tuple(sorted(self.devices)),
            self._file_name(found),
        )

    def _file_name(self, found: Sequence[Found]) -> str:
        """Another one for a part of a table, which must not take the place of the whole."""
        parts = ["table"] if all(each.asked_for for each in found) else ["table-only", *self.only]
        hidden = dict.fromkeys(DATA[each.line.data].source for each in found if not each.known)
        return as_file_name("-".join([*parts, *(["without", *hidden] if hidden else [])]).lower())

    def _found(self, place: int, line: Line) -> Found:
        values = self.values.get(place, {})
        asked_for = line.policy is None or place in self.chosen
        known = place not in self.chosen or self._is_known(line)
        words = [line.note] if line.note else []
        if line.policy is None:
            words.append("quoted by the paper; no policy of it here")
        elif place not in self.chosen:
            words.append("not asked for")
        elif not values:
            words.append("not run" if known else "cannot be told without the images")
        elif len(values) < self.setting.seeds:
            words.append(f"{len(values)} of {self.setting.seeds} runs")
        differences = self._differences(line, asked_for)
        if values and line.paper is not None:
            words += differences
        return Found(line, values, "; ".join(words), asked_for, not differences, self._stand_in(line), known)

    def _is_known(self, line: Line) -> bool:
        """Whether it can be told what was run of a line. Runs are found by their images."""
        return line.data not in self.closed and not (isinstance(line.policy, Search) and self._is_doubtful(line.policy))

    def _is_doubtful(self, wanted: Search) -> bool:
        """Several could be meant."""
        return self._read_fingerprint(wanted) is None and len(self._told_fingerprints(wanted)) > 1

    def _stand_in(self, line: Line) -> str:
        trained = self.setting.recipe(line).network if line.recipe and line.policy is not None else line.network
        return "" if trained == line.network else trained

    def _differences(self, line: Line, asked_for: bool) -> list[str]:
        """What makes our number of a line one of something else than the paper's; nothing is read if it is left out."""
        searched = self._searched_otherwise(line.policy) if asked_for and isinstance(line.policy, Search) else []
        unlike = self.unlike.get(line.data, []) if line.recipe else []
        return [*(f"trained on {there}, not on {planned}" for there, planned in unlike), *searched]

    def _searched_otherwise(self, wanted: Search) -> list[str]:
        if self.setting.quick:
            return []
        found = [policy.provenance["data"] for policy in self._policies(wanted).values()]
        counts = (("images", wanted.planned), ("classes", wanted.classes))
        return [
            f"searched on {count} {what}, not on {planned}"
            for what, planned in counts
            for count in sorted({data[what] for data in found} - {planned})
            if planned is not None
        ]

    def _say_what_stands_in(self, name: str) -> None:
        source = self.setting.source(name)
        if source != name and not self.setting.quick:
            self._remark(f"the images of {name} are those of {source}")


def search_name(wanted: Search, config: SearchConfig, fingerprint: str) -> str:
    """The folder of a search. Its key is what decides what is found, so tables share searches, wherever images lie."""
    settings = to_settings(config)
    key = hashlib.sha256(json.dumps([fingerprint, settings], sort_keys=True).encode()).hexdigest()[:12]
    objective = "" if config.objective == "paper" else f"{config.objective}-"
    size = f"L{config.sub_policies}-K{config.operation_count}"
    return f"{wanted.source}-{wanted.images or 'all'}-{objective}{size}-{config.seed}-{key}"


def _with(lines: Mapping[int, Line], part: str) -> dict[int, Line]:
    """Those that have it in data, network or label; where it is a whole name there, only those."""
    names = {place: [text.lower() for text in (each.data, each.network, each.label)] for place, each in lines.items()}
    whole = {place: lines[place] for place, texts in names.items() if part.lower() in texts}
    return whole or {place: lines[place] for place, texts in names.items() if any(part.lower() in t for t in texts)}


def _hours(policy: Policy) -> float:
    return float(policy.provenance["seconds"]) / 3600


def _kept(policy: Policy, keep: int | None, seed: int) -> Policy:
    """So many of its sub-policies, drawn by the seed."""
    if keep is None or keep >= len(policy.sub_policies):
        return policy
    places = np.sort(stratify.shuffled(len(policy.sub_policies), seed, 0)[:keep])
    return replace(policy, sub_policies=tuple(policy.sub_policies[place] for place in places.tolist()))


def parse_sources(texts: Iterable[str]) -> dict[str, str]:
    """`cifar10=FILE.npz` stands in for that set, `FILE.npz` for all of them."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if equals:
            found[name] = source
        else:
            found |= {each.source: text for each in DATA.values()}
    return found
