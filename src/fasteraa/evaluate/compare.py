"""Several policies, several seeds, one recipe: cells that are trained once and kept, and the table they make."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fasteraa.data.source import whole_and_split
from fasteraa.errors import ConfigError, OutOfTime, RunError, Stopped
from fasteraa.evaluate.arena import Arena, open_arena
from fasteraa.evaluate.listed import Images, ListedSet
from fasteraa.evaluate.recipe import TrainRecipe, default_recipe
from fasteraa.evaluate.statistics import Estimate, estimate, paired
from fasteraa.evaluate.trainer import Diverged, Job, Trained, Until, epochs_done, save_network, train_together
from fasteraa.evaluate.workers import Workers
from fasteraa.policy.artifact import Policy
from fasteraa.policy.find import find_policy
from fasteraa.policy.named import named
from fasteraa.search.folder import RunFolder, as_file_name
from fasteraa.search.lock import alone_in
from fasteraa.search.run import choose_backbone, find_device

YARDSTICKS = ("none", "trivialaugment-wide")  # what every policy is compared with
_MOST_EPOCHS = 240
# Small networks leave most of a GPU idle. On an H200, eight runs of WRN-40-2 side by side take 2.36 ms a step each, one
# alone 3.75; two of WRN-28-10 9.0, one alone 9.3 (batches of 128, 32x32). Larger images keep it busy.
_SIDE_BY_SIDE = 8
_SMALL_STEP = 128 * 32 * 32  # pixels
_ROOM = 3 * 2**30  # bytes for each; a WRN-28-10 takes 1.7 GiB compiled, and, reckoned, 2.4 in our own kernels
Say = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """A row of the table: a label and its policies; run number i takes the i-th, over and over."""

    label: str
    policies: tuple[Policy, ...]

    def policy(self, number: int) -> Policy:
        """The policy of run `number`."""
        return self.policies[number % len(self.policies)]

    @property
    def search_seconds(self) -> float | None:
        """What finding one of them took, calibration and all, if they were found."""
        seconds = [_seconds_of(policy.provenance) for policy in self.policies]
        found = [each for each in seconds if each is not None]
        return sum(found) / len(found) if found else None


def _seconds_of(provenance: Mapping[str, Any]) -> float | None:
    """Of a search and, where it ended with one, of its calibration; a file from elsewhere may say anything."""
    calibration = provenance.get("calibration", {})
    race = calibration.get("seconds", 0.0) if isinstance(calibration, Mapping) else 0.0
    both = (provenance.get("seconds"), race)
    return sum(both) if all(isinstance(each, int | float) for each in both) else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Cell:
    """One training run of the table."""

    label: str
    policy: Policy
    recipe: TrainRecipe
    seed: int

    def key(self, data: Images, held_out: Images) -> str:
        """Whatever would change the outcome."""
        parts = (data.fingerprint, held_out.fingerprint, self.policy.hash, self.recipe.key, self.seed)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def file(self, folder: Path, data: Images, held_out: Images) -> Path:
        """The name is for people; the key decides: one that is there, or was begun, under another label is that one."""
        cells, key = folder / "cells", self.key(data, held_out)
        found = sorted(cells.glob(f"*-{key}.json")) or sorted(cells.glob(f"*-{key}.pt"))
        return found[0].with_suffix(".json") if found else cells / f"{as_file_name(self.label)}-{self.seed}-{key}.json"


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
    """The table of `compare`, and what it was measured on."""

    data: str
    train_images: int
    held_out_images: int
    held_out_from: str
    recipe: TrainRecipe
    device: str  # where the runs were made
    rows: tuple[Row, ...]
    missing: int  # cells that have not been run
    diverged: tuple[str, ...] = ()  # cells that came to nothing, and why
    seen: tuple[str, ...] = ()  # rows whose policy was found on images that errors are measured on
    missing_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # label -> seeds that have not been run
    absent: tuple[str, ...] = ()  # labels without a row: none of their runs came to an error
    twice: int = 0  # held-out images that are among the training images, too

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `comparison.json` holds them."""
        return asdict(self)


# --- who takes part --------------------------------------------------------------------------------------------------


def parse_contenders(given: str | Sequence[str | Policy], seeds: int) -> list[Contender]:
    """`none,trivialaugment-wide,randaugment(2,14),runs/a,found=runs/a+runs/b`, or a list of such and of policies."""
    parts = _parts(given) if isinstance(given, str) else list(given)
    if not parts:
        raise ConfigError("no policy was given; for example: none,trivialaugment-wide,uniform,runs/search/policy.json")
    found = [_of_policy(part) if isinstance(part, Policy) else _contender(part, seeds) for part in parts]
    labels = [each.label for each in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"the policy {label!r} was given twice; name one of them: OTHER={label}")
    return found


def _of_policy(policy: Policy) -> Contender:
    found = Contender(policy.name, (policy,))
    _check_label(found, policy.name)
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _contender(text: str, seeds: int) -> Contender:
    label, equals, paths = text.partition("=")
    if equals and "(" not in label and not Path(text).exists():
        found = Contender(label.strip(), _policies([path.strip() for path in paths.split("+")], seeds))
        _check_label(found, text)
        return found
    policies, name = _policies([text], seeds), text.lower()
    return Contender(name if name in ("random", policies[0].name) else text, policies)  # a name has one spelling


def _policies(names: Sequence[str], seeds: int) -> tuple[Policy, ...]:
    """Of the runs, in their order. `random` is a new one for every run: one alone says little about the rest."""
    if not any(map(_is_random, names)):
        return tuple(map(find_policy, names))
    runs = [(number, names[number % len(names)]) for number in range(max(seeds, len(names)))]
    return tuple(named("random", seed=number) if _is_random(name) else find_policy(name) for number, name in runs)


def _is_random(name: str) -> bool:
    return name.lower() == "random"


def _check_label(contender: Contender, text: str) -> None:
    """Rows are compared with those of the yardsticks, which are found by their labels."""
    label = contender.label
    if not label:
        raise ConfigError(f"a row needs a label before the equals sign, got {text!r}")
    if label in YARDSTICKS and any(policy.hash != named(label).hash for policy in contender.policies):
        raise ConfigError(f"{label!r} is what others are compared with, not a label for another policy, got {text!r}")


def cells_of(contenders: Sequence[Contender], recipe: TrainRecipe, seeds: Sequence[int]) -> list[Cell]:
    """Seed by seed, so that a table cut short is a fair one."""
    return [
        make_cell(contender.label, contender.policy(number), recipe, seed)
        for number, seed in enumerate(seeds)
        for contender in contenders
    ]


def make_cell(label: str, policy: Policy, recipe: TrainRecipe, seed: int) -> Cell:
    """The recipe's cutout follows every policy but `none`; `cutout` is that alone. What they do counts, not a name."""
    if policy.hash == named("none").hash:
        recipe = replace(recipe, cutout=0)
    elif recipe.cutout and policy.hash == named("cutout").hash:
        policy = named("none")
    return Cell(label, policy, recipe, seed)


# --- running --------------------------------------------------------------------------------------------------------


def choose_recipe(data: Images, device: str, network: str = "auto") -> TrainRecipe:
    """That of the network. The small one makes as many steps with few images as with a thousand."""
    side = min(data.size)
    recipe = default_recipe(choose_backbone(network, side, find_device(device)), side)
    if recipe.network != "small":
        return recipe
    return replace(recipe, epochs=min(max(recipe.epochs, 1000 * recipe.epochs // len(data)), _MOST_EPOCHS))


def check_network(recipe: TrainRecipe, network: str) -> None:
    """A recipe has its network."""
    if network not in ("auto", recipe.network):
        raise ConfigError(f"the recipe is one for {recipe.network}, but the network was to be {network}")


def end_of(max_minutes: float | None) -> float:
    """The moment at which so many minutes will have passed."""
    if max_minutes is not None and not max_minutes >= 0:
        raise ConfigError(f"max_minutes must be at least 0, got {max_minutes}")
    return math.inf if max_minutes is None else time.time() + 60 * max_minutes


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")


def run_cells(
    arena: Arena,
    cells: Sequence[Cell],
    jobs: int | None = None,
    say: Say = print,
    until: float = math.inf,
    workers: Workers | None = None,
    fuse: bool | None = None,
) -> bool:
    """Train what is missing; `jobs` of them at once (by default up to eight of small images on a GPU, as many as
    there are cores on a CPU).

    `workers` are processes that are there already and do the work, whatever `jobs` says. `fuse` as in `train_together`.

    A run that diverges is kept as such and takes no other with it.

    False if the moment `until` (time.time()) came first: what was finished is kept, what was begun goes on next time.
    """
    distinct = {cell.key(arena.data, arena.held_out): cell for cell in reversed(cells)}  # whatever their labels
    cells = list(distinct.values())[::-1]
    wanted = [cell for cell in cells if read_cell(arena, cell) is None]
    if len(wanted) < len(cells):
        say(f"{len(cells) - len(wanted)} of {len(cells)} runs are there already")
    done = 0
    try:
        for cell, record in workers.results(arena, wanted) if workers else _results(arena, wanted, jobs, until, fuse):
            done += 1
            outcome = why_diverged(record) or f"{record['error']:.2f}%"
            say(f"{done}/{len(wanted)} {cell.label}, seed {cell.seed}: {outcome} ({record['seconds']:.0f} s)")
    except KeyboardInterrupt as error:
        raise Stopped(
            f"stopped; {done} of {len(wanted)} runs were finished and are kept in {str(arena.folder)!r}: give the same "
            "command again to go on",
            error.args[0] if error.args else signal.SIGINT,
        ) from None
    if done < len(wanted):
        say(f"time is up: {len(wanted) - done} of {len(cells)} runs are missing; give the same command again to go on")
    return done == len(wanted)


def _results(
    arena: Arena, cells: Sequence[Cell], jobs: int | None, until: float, fuse: bool | None = None
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Cells with their records, as they are finished; those for which time ran out are left out.

    On a CPU several at once are processes, on a GPU branches of one graph.
    """
    device = find_device(arena.device)
    on_cpu = device.type == "cpu"
    jobs = min(jobs or ((os.cpu_count() or 1) if on_cpu else _side_by_side(arena, cells, device)), max(len(cells), 1))
    if isinstance(arena.data, ListedSet):
        jobs = 1  # reading the images keeps all cores busy
    if jobs > 1 and on_cpu:
        with start_workers([arena], jobs, until) as workers:
            yield from workers.results(arena, cells)
        return
    for group in _groups(arena, cells, jobs):
        with suppress(OutOfTime):
            yield from zip(group, run_group(arena, group, until=lambda: until, fuse=fuse), strict=True)


def _groups(arena: Arena, cells: Sequence[Cell], jobs: int) -> Iterator[list[Cell]]:
    """So many at once, in their order.

    What shares a graph has the same network and as many steps of the same size, and as many of them behind it. Those
    that cannot go on come last: what they tell ends it all.
    """
    alike: dict[tuple[bool, str, int, int, int], list[Cell]] = {}
    for cell in cells:
        try:
            done, lost = epochs_done(_checkpoint(arena, cell)), False
        except RunError:
            done, lost = 0, True
        alike.setdefault((lost, cell.recipe.network, cell.recipe.epochs, cell.recipe.batch_size, done), []).append(cell)
    for _, kind in sorted(alike.items(), key=lambda each: each[0][0]):
        yield from (kind[first : first + jobs] for first in range(0, len(kind), jobs))


def _side_by_side(arena: Arena, cells: Sequence[Cell], device: torch.device) -> int:
    """How many runs share a GPU by default: several where steps are small and there is memory for them."""
    height, width = arena.data.size
    if max((cell.recipe.batch_size for cell in cells), default=0) * height * width > _SMALL_STEP:
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(_SIDE_BY_SIDE, free // _ROOM))


def start_workers(arenas: Sequence[Arena], jobs: int, until: float = math.inf) -> Workers:
    return Workers(_work, arenas, jobs, max(1, (os.cpu_count() or 1) // jobs), until)


def _work(arena: Arena, cell: Cell, until: Until) -> dict[str, Any]:
    return run_cell(arena, cell, until=until)


def run_cell(arena: Arena, cell: Cell, keep_network: Path | None = None, until: Until | None = None) -> dict[str, Any]:
    return run_group(arena, [cell], keep_network, until)[0]


def run_group(
    arena: Arena,
    cells: Sequence[Cell],
    keep_network: Path | None = None,
    until: Until | None = None,
    fuse: bool | None = None,
) -> list[dict[str, Any]]:
    """Train cells side by side and keep their records (a record that is there already stays as it is)."""
    if until is not None and time.time() > until():
        raise OutOfTime("time was up before the run began")
    paths = [cell.file(arena.folder, arena.data, arena.held_out) for cell in cells]
    jobs = [Job(cell.policy, cell.recipe, cell.seed, _checkpoint(arena, cell)) for cell in cells]
    try:
        found = train_together(arena.data, arena.held_out, jobs, device=arena.device, fuse=fuse, until=until)
    except OutOfTime:
        raise
    except RunError as error:
        names = "; ".join(f"{cell.label}, seed {cell.seed}" for cell in cells)
        raise RunError(f"{names}: {error}") from error
    if keep_network is not None and isinstance(found[0], Trained):
        save_network(keep_network, found[0])
    records = [{**_record(c, trained), "command": arena.command} for c, trained in zip(cells, found, strict=True)]
    for path, record in zip(paths, records, strict=True):
        if not path.exists():
            RunFolder(path.parent).write(path, json.dumps(record, indent=1) + "\n")
    return records


def _checkpoint(arena: Arena, cell: Cell) -> Path:
    return cell.file(arena.folder, arena.data, arena.held_out).with_suffix(".pt")


def _record(cell: Cell, trained: Trained | Diverged) -> dict[str, Any]:
    if isinstance(trained, Diverged):
        known = {"diverged": trained.why, "seconds": round(trained.seconds, 2), "together": trained.together}
        return {"label": cell.label, **known, **trained.provenance}
    return {
        "label": cell.label,
        "error": trained.error,
        "error_top5": trained.error_top5,
        "held_out_loss": trained.held_out_loss,
        "train_loss": trained.train_loss,
        "seconds": round(trained.seconds, 2),
        "setup_seconds": round(trained.setup_seconds, 2),
        "together": trained.together,
        "share_seconds": round(trained.share_seconds, 2),
        "kernels": trained.kernels,
        "steps": trained.steps,
        **trained.provenance,
    }


def read_cell(arena: Arena, cell: Cell) -> dict[str, Any] | None:
    """None if it was not run. One that diverged has no `error`: ask `why_diverged` first."""
    file = cell.file(arena.folder, arena.data, arena.held_out)
    if not file.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        float(record["seconds"]), why_diverged(record) or float(record["error"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(f"the record {str(file)!r} cannot be read ({error}): remove it to run it again") from error
    return record


def why_diverged(record: Mapping[str, Any]) -> str | None:
    """Why a run came to nothing; None if it did not."""
    return str(record["diverged"]) if "diverged" in record else None


# --- the table -------------------------------------------------------------------------------------------------------


def tabulate(arena: Arena, contenders: Sequence[Contender], recipe: TrainRecipe, seeds: Sequence[int]) -> Comparison:
    """From the cells that are there; differences are paired by seed, over the seeds that both have."""
    records: dict[str, dict[int, dict[str, Any]]] = {contender.label: {} for contender in contenders}
    missing: dict[str, tuple[int, ...]] = {}
    diverged = []
    for cell in cells_of(contenders, recipe, seeds):
        record = read_cell(arena, cell)
        if record is None:
            missing[cell.label] = (*missing.get(cell.label, ()), cell.seed)
        elif why := why_diverged(record):
            diverged.append(f"{cell.label}, seed {cell.seed} ({why})")
        else:
            records[cell.label][cell.seed] = record
    errors = {label: {seed: r["error"] for seed, r in found.items()} for label, found in records.items()}
    yardsticks = {name: label for name in YARDSTICKS if (label := _label_of(name, contenders)) is not None}
    rows = [_row(each, records[each.label], errors, yardsticks) for each in contenders if records[each.label]]
    devices = {str(r.get("device", "unknown device")) for found in records.values() for r in found.values()}
    return Comparison(
        arena.data.name,
        len(arena.data),
        len(arena.held_out),
        arena.held_out_from,
        recipe,
        ", ".join(sorted(devices)) or arena.device_name,
        tuple(rows),
        sum(map(len, missing.values())),
        tuple(diverged),
        tuple(each.label for each in contenders if records[each.label] and has_seen(each, arena)),
        missing,
        tuple(each.label for each in contenders if not records[each.label]),
        arena.twice,
    )


def has_seen(contender: Contender, arena: Arena) -> bool:
    """Was one of its policies found on images that errors are measured on? Names decide where fingerprints cannot."""
    return any(_saw(policy.provenance, arena) for policy in contender.policies)


def _saw(provenance: Mapping[str, Any], arena: Arena) -> bool:
    """A search takes all images of its split unless it was told to leave out what is held out here."""
    data, config = provenance.get("data"), provenance.get("config")
    if not isinstance(data, Mapping):
        return False
    if data.get("fingerprint") in (arena.data.fingerprint, arena.held_out.fingerprint):
        return bool(data["fingerprint"] == arena.held_out.fingerprint)
    whole, part = whole_and_split(arena.data.name)
    if whole_and_split(str(data.get("name"))) != (whole, part if arena.share else arena.split):
        return False
    left_out = config.get("held_out", 0.0) if isinstance(config, Mapping) else 0.0
    return not isinstance(left_out, int | float) or not arena.share or arena.seed != 0 or left_out < arena.share


def _cost(record: Mapping[str, Any]) -> float:
    """Seconds of training that were its own; older records know only who shared the last part of them."""
    return float(record.get("share_seconds", record["seconds"] / record.get("together", 1)))


def is_yardstick(name: str, label: str, hashes: Sequence[str]) -> bool:
    """Also under another label."""
    return label == name or set(hashes) == {named(name).hash}


def _label_of(yardstick: str, contenders: Sequence[Contender]) -> str | None:
    hashes = {each.label: [policy.hash for policy in each.policies] for each in contenders}
    return next((label for label, found in hashes.items() if is_yardstick(yardstick, label, found)), None)


def _row(
    contender: Contender,
    records: dict[int, dict[str, Any]],
    errors: dict[str, dict[int, float]],
    yardsticks: Mapping[str, str],
) -> Row:
    mine = errors[contender.label]
    against = {}
    for yardstick, label in yardsticks.items():
        shared = sorted(set(mine) & set(errors[label]))
        if shared and label != contender.label:
            against[yardstick] = paired([mine[s] for s in shared], [errors[label][s] for s in shared])
    return Row(
        contender.label,
        tuple(policy.hash for policy in contender.policies),
        mine,
        estimate(list(mine.values())),
        against,
        contender.search_seconds,
        sum(map(_cost, records.values())) / len(records),
    )


def compare(
    source: Any = None,
    policies: str | Sequence[str | Policy] = "none,trivialaugment-wide,uniform",
    *,
    out: str | Path,
    seeds: int = 3,
    recipe: TrainRecipe | None = None,
    network: str = "auto",
    jobs: int | None = None,
    device: str = "auto",
    max_minutes: float | None = None,
    say: Say = print,
    **data: Any,
) -> Comparison:
    """Train a network with each policy and seed, and put the errors side by side. Finished runs are not run again.

    `policies` are names and files as on the command line, or a list of those and of policies, whose names are their
    labels. `network` is for where there is no `recipe`. Runs that diverged are left out of the rows and named in
    `diverged`.
    """
    until = end_of(max_minutes)
    if recipe is not None:
        check_network(recipe, network)
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    check_jobs(jobs)
    contenders = parse_contenders(policies, seeds)
    arena = open_arena(source, Path(out), device=device, **data)
    for each in arena.warnings:
        say(each)
    recipe = recipe or choose_recipe(arena.data, device, network)
    with alone_in(arena.folder):
        run_cells(arena, cells_of(contenders, recipe, range(seeds)), jobs, say, until)
    return tabulate(arena, contenders, recipe, range(seeds))
