"""Several policies, several seeds, one recipe: cells that are trained once and kept, and the table they make."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing  # lets a pool share tensors with its workers instead of copying them

from fasteraa.data import ImageSet, load
from fasteraa.errors import ConfigError, DataError, RunError
from fasteraa.evaluate.recipe import TrainRecipe, default_recipe
from fasteraa.evaluate.statistics import Estimate, estimate, paired
from fasteraa.evaluate.trainer import Job, Trained, save_network, train_together
from fasteraa.policy.artifact import Policy
from fasteraa.policy.find import find_policy
from fasteraa.policy.named import named
from fasteraa.search.folder import RunFolder
from fasteraa.search.run import choose_backbone, find_device

YARDSTICKS = ("none", "trivialaugment-wide")  # what every policy is compared with
HELD_OUT = 0.2  # of the training images, where a source has no other ones
Say = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """A row of the table: a label and its policies; run number i takes the i-th, over and over."""

    label: str
    policies: tuple[Policy, ...]

    def policy(self, number: int) -> Policy:
        return self.policies[number % len(self.policies)]

    @property
    def search_seconds(self) -> float | None:
        """What finding one of them took, if they were found."""
        found = [policy.provenance["seconds"] for policy in self.policies if "seconds" in policy.provenance]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class Cell:
    """One training run of the table."""

    label: str
    policy: Policy
    recipe: TrainRecipe
    seed: int

    def key(self, data: ImageSet, held_out: ImageSet) -> str:
        """Whatever would change the outcome."""
        parts = (data.fingerprint, held_out.fingerprint, self.policy.hash, self.recipe.key, self.seed)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def file(self, folder: Path, data: ImageSet, held_out: ImageSet) -> Path:
        name = re.sub(r"[^\w.-]+", "-", self.label).strip("-")
        return folder / "cells" / f"{name}-{self.seed}-{self.key(data, held_out)}.json"


@dataclass(frozen=True)
class Row:
    """What the runs of one contender tell."""

    label: str
    hashes: tuple[str, ...]
    errors: Mapping[int, float]  # seed -> % of the held-out images
    error: Estimate
    against: Mapping[str, Estimate]  # yardstick -> difference in points, paired by seed
    search_seconds: float | None
    train_seconds: float  # of a run; of runs side by side, their share


@dataclass(frozen=True)
class Comparison:
    data: str
    train_images: int
    held_out_images: int
    held_out_from: str
    recipe: TrainRecipe
    device: str
    rows: tuple[Row, ...]
    missing: int  # cells that have not been run

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# --- who takes part --------------------------------------------------------------------------------------------------


def parse_contenders(text: str, seeds: int) -> list[Contender]:
    """`none,trivialaugment-wide,randaugment(2,14),runs/a,found=runs/a+runs/b`."""
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    if not parts:
        raise ConfigError("no policy was given; for example: none,trivialaugment-wide,uniform,runs/search/policy.json")
    found = [_contender(part, seeds) for part in parts]
    labels = [each.label for each in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"the policy {label!r} was given twice; name one of them: OTHER={label}")
    return found


def _contender(text: str, seeds: int) -> Contender:
    label, equals, paths = text.partition("=") if "(" not in text.partition("=")[0] else (text, "", "")
    if equals:
        return Contender(label.strip(), tuple(find_policy(path.strip()) for path in paths.split("+")))
    if text.lower() == "random":  # a new one for every seed: one alone says little about the rest
        return Contender("random", tuple(named("random", seed=seed) for seed in range(seeds)))
    return Contender(text, (find_policy(text),))


def cells_of(contenders: Sequence[Contender], recipe: TrainRecipe, seeds: Sequence[int]) -> list[Cell]:
    """Seed by seed, so that a table cut short is a fair one."""
    return [_cell(contender, recipe, number, seed) for number, seed in enumerate(seeds) for contender in contenders]


def _cell(contender: Contender, recipe: TrainRecipe, number: int, seed: int) -> Cell:
    """The recipe's cutout follows every policy but `none`; `cutout` is that alone."""
    policy = contender.policy(number)
    if policy.name == "none":
        recipe = replace(recipe, cutout=0)
    elif policy.name == "cutout" and recipe.cutout:
        policy = named("none")
    return Cell(contender.label, policy, recipe, seed)


# --- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arena:
    """Data, device and folder of a comparison."""

    data: ImageSet
    held_out: ImageSet
    held_out_from: str
    folder: Path
    device: str

    @property
    def device_name(self) -> str:
        place = find_device(self.device)
        return torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"


def open_arena(
    source: Any,
    folder: Path,
    *,
    device: str = "auto",
    data_root: str | Path | None = None,
    size: int | None = None,
    subset: int | None = None,
    held_out: float | None = None,
    seed: int = 0,
) -> Arena:
    """Training images, and the source's test (or val) images; a part of the training images where it has none.

    `held_out` asks for such a part in any case, so that a choice can be made without a look at the test images.
    """
    find_device(device)
    RunFolder(folder / "cells").open_new()
    data = load(source, size=size, subset=subset, seed=seed, data_root=data_root)
    if held_out is None:
        try:
            test = load(source, split="test", size=data.size, seed=seed, data_root=data_root)
            return Arena(data, _matching(test, data), "test images", folder, device)
        except DataError as error:
            if "has no split" not in str(error):
                raise
    share = HELD_OUT if held_out is None else held_out
    if not 0 < share < 1:
        raise ConfigError(f"the held-out share must be in (0, 1), got {share}")
    rest, part = data.split(1 - share, seed)
    return Arena(rest, part, f"{share:.0%} of the training images", folder, device)


def _matching(test: ImageSet, data: ImageSet) -> ImageSet:
    """The test images with the training images' class numbers."""
    if test.classes == data.classes:
        return test
    unknown = sorted(set(test.classes) - set(data.classes))
    if unknown:
        raise DataError(f"the test images have classes that the training images lack: {', '.join(unknown[:5])}")
    number = torch.tensor([data.classes.index(name) for name in test.classes])
    return ImageSet.of(test.images, number[test.labels], data.classes, test.name, test.broken)


def choose_recipe(data: ImageSet, device: str, network: str = "auto") -> TrainRecipe:
    side = min(data.size)
    return default_recipe(choose_backbone(network, side, find_device(device)), side)


def run_cells(arena: Arena, cells: Sequence[Cell], jobs: int | None = None, say: Say = print) -> None:
    """Train what is missing, `jobs` at once: in one graph on a GPU (by default 1), in processes on a CPU (by core)."""
    wanted = [cell for cell in cells if read_cell(arena, cell) is None]
    if len(wanted) < len(cells):
        say(f"{len(cells) - len(wanted)} of {len(cells)} runs are there already")
    on_cpu = find_device(arena.device).type == "cpu"
    results = _in_processes(arena, wanted, jobs) if on_cpu else _in_groups(arena, wanted, jobs or 1)
    for number, (cell, record) in enumerate(results, 1):
        say(
            f"{number}/{len(wanted)} {cell.label}, seed {cell.seed}: {record['error']:.2f}% ({record['seconds']:.0f} s)"
        )


def _in_groups(arena: Arena, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    for first in range(0, len(cells), jobs):
        group = cells[first : first + jobs]
        yield from zip(group, run_group(arena, group), strict=True)


def _in_processes(arena: Arena, cells: Sequence[Cell], jobs: int | None) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """A process for each core: two networks on a core each are faster than one on two."""
    cores = os.cpu_count() or 1
    jobs = min(jobs or cores, len(cells))
    if jobs <= 1:
        yield from _in_groups(arena, cells, 1)
        return
    context, threads = torch.multiprocessing.get_context("spawn"), max(1, cores // jobs)
    with ProcessPoolExecutor(jobs, context, initializer=_begin_worker, initargs=(arena, threads)) as pool:
        waiting = {pool.submit(_work, cell): cell for cell in cells}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_arena: Arena | None = None  # of this worker process


def _begin_worker(arena: Arena, threads: int) -> None:
    global _arena
    _arena = arena
    torch.set_num_threads(threads)


def _work(cell: Cell) -> dict[str, Any]:
    assert _arena is not None
    return run_group(_arena, [cell])[0]


def run_group(arena: Arena, cells: Sequence[Cell], keep_network: Path | None = None) -> list[dict[str, Any]]:
    """Train cells side by side and keep their records (a record that is there already stays as it is)."""
    paths = [cell.file(arena.folder, arena.data, arena.held_out) for cell in cells]
    jobs = [
        Job(cell.policy, cell.recipe, cell.seed, path.with_suffix(".pt"))
        for cell, path in zip(cells, paths, strict=True)
    ]
    results = train_together(arena.data, arena.held_out, jobs, device=arena.device)
    records = [_record(cell, trained) for cell, trained in zip(cells, results, strict=True)]
    for path, record in zip(paths, records, strict=True):
        if not path.exists():
            RunFolder(path.parent).write(path, json.dumps(record, indent=1) + "\n")
    if keep_network is not None:
        save_network(keep_network, results[0])
    return records


def _record(cell: Cell, trained: Trained) -> dict[str, Any]:
    return {
        "label": cell.label,
        "error": trained.error,
        "error_top5": trained.error_top5,
        "train_loss": trained.train_loss,
        "seconds": round(trained.seconds, 2),
        "setup_seconds": round(trained.setup_seconds, 2),
        "together": trained.together,
        "steps": trained.steps,
        **trained.provenance,
    }


def read_cell(arena: Arena, cell: Cell) -> dict[str, Any] | None:
    file = cell.file(arena.folder, arena.data, arena.held_out)
    if not file.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        float(record["error"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(f"the record {str(file)!r} cannot be read ({error}): remove it to run it again") from error
    return record


# --- the table -------------------------------------------------------------------------------------------------------


def tabulate(arena: Arena, contenders: Sequence[Contender], recipe: TrainRecipe, seeds: Sequence[int]) -> Comparison:
    """From the cells that are there; differences are paired by seed, over the seeds that both have."""
    records: dict[str, dict[int, dict[str, Any]]] = {contender.label: {} for contender in contenders}
    missing = 0
    for cell in cells_of(contenders, recipe, seeds):
        record = read_cell(arena, cell)
        if record is None:
            missing += 1
        else:
            records[cell.label][cell.seed] = record
    errors = {label: {seed: r["error"] for seed, r in found.items()} for label, found in records.items()}
    rows = [_row(each, records[each.label], errors) for each in contenders if records[each.label]]
    return Comparison(
        arena.data.name,
        len(arena.data),
        len(arena.held_out),
        arena.held_out_from,
        recipe,
        arena.device_name,
        tuple(rows),
        missing,
    )


def _row(contender: Contender, records: dict[int, dict[str, Any]], errors: dict[str, dict[int, float]]) -> Row:
    mine = errors[contender.label]
    against = {}
    for yardstick in YARDSTICKS:
        shared = sorted(set(mine) & set(errors.get(yardstick, {})))
        if shared and yardstick != contender.label:
            against[yardstick] = paired([mine[s] for s in shared], [errors[yardstick][s] for s in shared])
    return Row(
        contender.label,
        tuple(policy.hash for policy in contender.policies),
        mine,
        estimate(list(mine.values())),
        against,
        contender.search_seconds,
        sum(r["seconds"] / r.get("together", 1) for r in records.values()) / len(records),
    )


def compare(
    source: Any = None,
    policies: str = "none,trivialaugment-wide,uniform",
    *,
    out: str | Path,
    seeds: int = 3,
    recipe: TrainRecipe | None = None,
    network: str = "auto",
    jobs: int | None = None,
    device: str = "auto",
    say: Say = print,
    **data: Any,
) -> Comparison:
    """Train a network with each policy and seed, and put the errors side by side. Finished runs are not run again."""
    arena = open_arena(source, Path(out), device=device, **data)
    contenders = parse_contenders(policies, seeds)
    recipe = recipe or choose_recipe(arena.data, device, network)
    run_cells(arena, cells_of(contenders, recipe, range(seeds)), jobs, say)
    return tabulate(arena, contenders, recipe, range(seeds))
