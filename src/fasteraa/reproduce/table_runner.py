"""A table of the paper again: make or find its searches and trainings, and put our numbers beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fasteraa.errors import ConfigError, DataError, RunError, Stopped
from fasteraa.policy.policy import Policy
from fasteraa.reproduce.equal_budget import among_best
from fasteraa.reproduce.published_costs import MeasuredCosts, dada_step, fast_aa_trial, gradient_step, hours
from fasteraa.reproduce.render import publish
from fasteraa.reproduce.result import LineResult, Reproduction
from fasteraa.reproduce.schema import DATA, Cost, Line, Search, Table, with_norm_free_critic
from fasteraa.reproduce.search_store import SearchStore
from fasteraa.reproduce.searches import make_searches
from fasteraa.reproduce.setting import Setting, check_sources
from fasteraa.reproduce.smoke import quick_sources
from fasteraa.reproduce.tables import find_table
from fasteraa.reproduce.trainings import Trainings, Values
from fasteraa.runtime.clock import end_of
from fasteraa.runtime.device import find_device, first_device
from fasteraa.runtime.documents import plain
from fasteraa.runtime.files import as_file_name, write_atomic
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Engine, Say

RUNS = 3  # of every number, as in the paper


def reproduce(
    name: str,
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int | None = None,
    device: str = "auto",
    devices: str | None = None,
    engine: str = "local",
    address: str | None = None,
    data_root: str | Path | None = None,
    sources: Mapping[str, str] | None = None,
    subset: int | None = None,
    only: str | Sequence[str] = (),
    minutes: float | None = None,
    table_only: bool = False,
    tune: bool = False,
    norm_free: bool = False,
    say: Say = print,
    command: str | None = None,
) -> Reproduction:
    """Make a table of the paper again. Searches and trainings that are in the folder are not made again.

    `sources` names what stands in for a data set (`{"cifar10": "cifar10.npz"}`), `only` picks lines that have
    each of these in data, network or label, `table_only` makes the table from what is there. `tune` takes learning rate
    and weight decay of each data set's trainings from a grid, without a policy. `norm_free` searches with our critic
    where the paper's has batch norm. Trainings use every GPU of the machine (`devices="0,1"`: these), or with
    `engine="ray"` the cluster at `address`. Runs keep `command`.
    """
    table, until = find_table(name), end_of(minutes)
    table = with_norm_free_critic(table) if norm_free else table
    trainer = Engine(
        name=engine,
        device="cpu" if quick else device,
        jobs=1 if quick and jobs is None else jobs,
        devices=devices,
        address=address,
    )
    find_device(first_device(trainer.device, devices))
    if not table_only:
        trainer.check()
    check_sources(sources or {})
    folder = Path(out)
    RunCache(folder).open()
    table = table if only else among_best(table, folder)
    setting = Setting(
        out=folder,
        seeds=seeds if seeds is not None else 1 if quick else RUNS,
        engine=trainer,
        data_root=None if data_root is None else Path(data_root),
        sources=quick_sources(folder) if quick else dict(sources or {}),
        subset=None if quick else subset,
        quick=quick,
        until=until,
        say=say,
        command=command,
        tune=tune,
    )
    runner = TableRunner(setting, table, [only] if isinstance(only, str) else only)
    try:
        runner.collect(run=not table_only)
        result = runner.reproduction()
        runner.check(folder / name / f"{result.file}.md" if table_only else None)
    except Stopped:
        runner.collect(run=False)
        publish(runner.reproduction(), folder / name)
        raise
    publish(result, folder / name)
    return result


def not_ready(name: str, out: Path) -> str:
    """Why a table cannot be made yet; empty if it can."""
    try:
        among_best(find_table(name), out)
    except ConfigError as error:
        return str(error)
    return ""


class TableRunner:
    """The lines of a table that were asked for, with our numbers."""

    def __init__(self, setting: Setting, table: Table, only: Sequence[str]):
        self.setting, self.table, self.only = setting, table, only
        self.lines = {index: line for index, line in enumerate(table.lines) if line.policy is not None}
        for part in only:
            self.lines = _with(self.lines, part)
        if not self.lines:
            raise ConfigError(
                f"no line of {table.name} that can be run has {' and '.join(map(repr, only))} in data, network or label"
            )
        self.searches = SearchStore(setting)
        self.failures: list[str] = []  # of searches
        self.trainings = Trainings(setting, self.searches)
        self.values: dict[int, Values] = {}  # by the index of a line
        self.extrapolations: dict[int, str] = {}  # how the cost of a published setting was extrapolated, by the same

    def collect(self, run: bool) -> None:
        """Searches first, then trainings, data set by data set, so that one of them is in memory at a time."""
        for index, line in self.lines.items():
            if isinstance(line.policy, Search):
                if run:
                    self.failures += make_searches(self.searches, line.policy)
                if line.measure == "hours":
                    self.values[index] = {s: _hours(each) for s, each in self.searches.policies(line.policy).items()}
        trained = {index: line for index, line in self.lines.items() if line.recipe}
        for data in dict.fromkeys(line.data for line in trained.values()):
            on_data = {index: line for index, line in trained.items() if line.data == data}
            self.values |= self.trainings.measure(data, on_data, run)
        self._collect_costs()

    def _collect_costs(self) -> None:
        """Of published settings, once everything is there that they are extrapolated from."""
        costs = {index: line.policy for index, line in self.lines.items() if isinstance(line.policy, Cost)}
        if not costs:
            return
        file = self.setting.out / self.table.name / "timings.json"
        measured = self._measured_costs().or_else(MeasuredCosts.of(file))
        for index, cost in costs.items():
            if (extrapolated := hours(cost.method, measured)) is not None:
                self.values[index], self.extrapolations[index] = {0: extrapolated[0]}, extrapolated[1]
        if measured.training is not None or measured.paper_step is not None:
            write_atomic(file, json.dumps(plain(measured.plain()), indent=1) + "\n")

    def _measured_costs(self) -> MeasuredCosts:
        """From the searches and trainings of this table."""
        by_method: dict[str, Path] = {}
        for line in self.lines.values():
            if isinstance(line.policy, Search) and self.searches.policies(line.policy):
                name = line.policy.methods[0] if len(line.policy.methods) == 1 else "race"
                published = name == "faster-aa" and not line.policy.budgeted
                by_method["paper" if published else name] = self.searches.folder(line.policy, 0)
        none = Path("none")
        return MeasuredCosts(
            training=self.trainings.seconds(),
            paper_step=gradient_step(by_method.get("paper", none)),
            default_step=gradient_step(by_method.get("faster-aa", none)),
            trial=fast_aa_trial(by_method.get("fast-aa", none)),
            dada_step=dada_step(by_method.get("dada", none)),
        )

    def check(self, earlier: Path | None) -> None:
        """An error where there is not one number, and a reason for that or an earlier table that would be lost."""
        if any(self.values.values()):
            return
        if self._missing:
            why = f"not one number of {self.table.name} is known without its images: " if earlier else ""
            raise DataError(why + "; ".join(text.rstrip(".") for text in self._missing.values()))
        if self.failures:
            raise RunError("; ".join(self.failures))
        if earlier and earlier.exists():
            raise RunError(
                f"nothing with these images and settings is in {str(self.setting.out)!r}: {earlier} stays as it is"
            )

    def reproduction(self) -> Reproduction:
        lines = tuple(self._line_result(index, line) for index, line in enumerate(self.table.lines))
        return Reproduction(
            self.table,
            lines,
            self.setting.seeds,
            self.setting.quick,
            tuple(dict.fromkeys(self._remarks())),
            tuple(sorted(self.trainings.devices | set(self._search_devices()))),
            self._file_name(lines),
        )

    # --- a line ----------------------------------------------------------------------------------------------------

    def _line_result(self, index: int, line: Line) -> LineResult:
        values = self.values.get(index, {})
        asked_for = line.policy is None or index in self.lines
        can_tell = index not in self.lines or self._is_known(line)
        words = [line.note] if line.note else []
        if line.policy is None:
            words.append("quoted by the paper; not searched for this table")
        elif index not in self.lines:
            words.append("not asked for")
        elif not values:
            words.append("not run" if can_tell else "unknown without the images")
        elif isinstance(line.policy, Cost):
            words.append(self.extrapolations[index])
        elif len(values) < self.setting.seeds:
            words.append(f"{len(values)} of {self.setting.seeds} runs")
        differences = self._differences(line, asked_for)
        if values and line.paper is not None:
            words += differences
        return LineResult(line, values, "; ".join(words), asked_for, not differences, self._stand_in(line), can_tell)

    def _is_known(self, line: Line) -> bool:
        """Whether what was run of a line can be found: trainings are found by their images."""
        ambiguous = isinstance(line.policy, Search) and self.searches.is_ambiguous(line.policy)
        return line.data not in self.trainings.unread and not ambiguous

    def _differences(self, line: Line, asked_for: bool) -> list[str]:
        """What makes our number of a line one of something else than the paper's; nothing is read if it is left out."""
        searched = self.searches.differences(line.policy) if asked_for and isinstance(line.policy, Search) else []
        trained = self.trainings.differences.get(line.data, []) if line.recipe else []
        return [*(f"trained on {each.actual}, not on {each.planned}" for each in trained), *searched]

    def _stand_in(self, line: Line) -> str:
        network = self.setting.recipe(line).network if line.recipe and line.policy is not None else line.network
        return "" if network == line.network else network

    # --- the whole -------------------------------------------------------------------------------------------------

    @property
    def _missing(self) -> dict[str, str]:
        return {**self.searches.missing, **self.trainings.missing}

    def _remarks(self) -> Iterator[str]:
        """Where this differs from what was planned."""
        yield from self.trainings.remarks
        for index, line in self.lines.items():
            if line.recipe:
                yield from self._remark_on_source(DATA[line.data].source)
            if isinstance(line.policy, Search):
                source = line.policy.source
                yield from self._remark_on_source(source)
                if self.values.get(index) and self.searches.lacks_images(line.policy):
                    yield f"the searches on {source} were found without its images, by the fingerprints that they keep"
                yield from (f"{source}: {text}" for text in self.searches.differences(line.policy))
        yield from (f"no data: {text}" for text in self._missing.values())
        yield from (f"a search failed, {text}" for text in self.failures)

    def _remark_on_source(self, name: str) -> Iterator[str]:
        source = self.setting.source(name)
        if source != name and not self.setting.quick:
            yield f"the images of {name} are those of {source}"

    def _search_devices(self) -> Iterator[str]:
        for line in self.lines.values():
            if isinstance(line.policy, Search):
                for policy in self.searches.policies(line.policy).values():
                    yield f"searches on {policy.provenance.get('device', 'unknown device')}"

    def _file_name(self, lines: Sequence[LineResult]) -> str:
        """Another one for a part of a table, which must not take the place of the whole."""
        parts = ["table"] if all(each.asked_for for each in lines) else ["table-only", *self.only]
        hidden = dict.fromkeys(DATA[each.line.data].source for each in lines if not each.known)
        return as_file_name("-".join([*parts, *(["without", *hidden] if hidden else [])]).lower())


def _with(lines: Mapping[int, Line], part: str) -> dict[int, Line]:
    """Those that have it in data, network or label; where it is a whole name there, only those."""
    names = {index: [text.lower() for text in (each.data, each.network, each.label)] for index, each in lines.items()}
    whole = {index: lines[index] for index, texts in names.items() if part.lower() in texts}
    return whole or {index: lines[index] for index, texts in names.items() if any(part.lower() in t for t in texts)}


def _hours(policy: Policy) -> float:
    return float(policy.provenance["seconds"]) / 3600
