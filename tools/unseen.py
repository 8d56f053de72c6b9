"""Is the policy of a search ever worse than no augmentation? On sets that its prior was not fitted to, on test images.

    python tools/unseen.py run DATA OUT [--minutes 9]      # DATA: NAME.npz each (x_train, y_train, x_test, y_test)
    python tools/unseen.py table results/unseen/zoo.json

For each set `run` fits the prior of the race without that set, searches on a GPU and on two CPU cores (several searches
side by side), and trains one network with every policy on all training images. What is finished is in OUT and is not
done again. `table` compares with `none`: the worst case first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any, NamedTuple

import prior
import torch

from fasteraa._version import commit
from fasteraa.data import load
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.device import device_name, find_device
from fasteraa.runtime.processes import core_count
from fasteraa.train.job import make_job
from fasteraa.train.recipe import TrainRecipe, default_recipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import run_jobs
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.split import Split
from fasteraa.train.statistics import student_cdf
from fasteraa.train.tune import tuned

SEARCHES = ("searched on a GPU", "searched on two cores")
OTHERS = ("trivialaugment-wide", "randaugment-2-14", "autoaugment-cifar10", "uniform-x2", "general-or-trivial")
SEEDS, SEEDS_OF_OTHERS = 5, 3
ADAPT = Path(__file__).resolve().parent.parent / "results" / "adapt"
MEASURED = (ADAPT / "measured.json", ADAPT / "small.json")
_LEAST_S = 30.0  # that must be left for a search to begin


class Plan(NamedTuple):
    """What is the same for all sets."""

    data: Path
    out: Path
    measured: tuple[Path, ...]
    device: str
    network: str
    epochs: int
    minutes: Mapping[str, float]  # of the race of each kind of search
    tune: bool
    end: float
    extra: tuple[str, ...]  # for `fasteraa search`
    have: Mapping[str, Any]  # sets of an earlier record: `none` and the others are not trained again
    trainings: int = 0  # of a race, in the place of minutes: the same on a busy machine

    def folder(self, name: str, kind: str) -> Path:
        return self.out / name / ("gpu" if kind == SEARCHES[0] else "cpu")


# --- searches --------------------------------------------------------------------------------------------------------


def fit_without(plan: Plan, name: str, source: str = "") -> Path:
    """The prior of a race on this set: without it, and without all sets of the source that it was drawn from."""
    file = plan.out / "priors" / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(plan.measured[0].read_text())["sets"]
        prior.fit(plan.measured, [each for each in known if each == name or source[:4] == each[:4]], file)
    return file


def search(plan: Plan, name: str, kind: str, cores: str) -> float:
    """Seconds; 0 where it was there, or where no time is left."""
    folder, began = plan.folder(name, kind), time.time()
    left = plan.end - began
    if (folder / "policy.json").exists() and (folder / "seconds.json").exists():
        return 0.0
    if left < _LEAST_S + 60 * plan.minutes[kind]:
        return 0.0
    settings = folder.with_suffix(".toml")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[race]\nprior = "{plan.out / "priors" / (name + ".json")}"\n')
    words = [sys.executable, "-m", "fasteraa", "search", f"{plan.data / name}.npz", "--out", str(folder)]
    words += ["--config", str(settings), *plan.extra]
    budget = {"trainings": plan.trainings} if plan.trainings else {"minutes": plan.minutes[kind]}
    words += [word for name, value in budget.items() for word in (f"--race-{name}", str(value))]
    words += ["--resume"] if (folder / "config.toml").exists() else []
    words += ["--no-flip"] if prior.is_upright(name) else []
    words += ["--device", plan.device if kind == SEARCHES[0] else "cpu"]
    words = [*(("taskset", "-c", cores) if cores else ()), *words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return 0.0
    if done.returncode:
        print(f"{name}, {kind}: {done.stderr[-2000:] or done.stdout[-2000:]}", flush=True)
        return 0.0
    seconds = time.time() - began
    (folder / "seconds.json").write_text(json.dumps({"seconds": seconds, "cores": cores, **budget}) + "\n")
    print(f"{name}, {kind}: {Policy.load(folder / 'policy.json').name} in {seconds:.0f} s", flush=True)
    return seconds


def begin_searches(plan: Plan, names: Sequence[str], pairs: int, side_by_side: int) -> tuple[list[Future[float]], ...]:
    """On the GPU and on pairs of cores; those on the GPU have the cores that are left."""
    free: SimpleQueue[str] = SimpleQueue()
    for number in range(pairs):
        free.put(f"{2 * number},{2 * number + 1}")

    def on_cores(name: str) -> float:
        cores = free.get()
        try:
            return search(plan, name, SEARCHES[1], cores)
        finally:
            free.put(cores)

    rest = f"{2 * pairs}-{core_count() - 1}" if core_count() > 2 * pairs else ""
    on_gpu, on_cpu = ThreadPoolExecutor(max(side_by_side, 1)), ThreadPoolExecutor(max(pairs, 1))
    return (
        [on_gpu.submit(search, plan, name, SEARCHES[0], rest) for name in names if side_by_side],
        [on_cpu.submit(on_cores, name) for name in names if pairs],
    )


# --- trainings -------------------------------------------------------------------------------------------------------


class Trainings:
    """Of one set: the same network and recipe for every policy."""

    def __init__(self, plan: Plan, name: str):
        self.plan, self.name = plan, name
        file = str(plan.data / f"{name}.npz")
        self.split = Split(load(file), load(file, split="test"), "test images")
        jobs = 20 if find_device(plan.device).type == "cuda" else None
        cache = RunCache(plan.out / name / "runs").open()
        self.runner = LocalRunner(cache, device=plan.device, jobs=jobs, compile=False)
        recipe = replace(default_recipe(plan.network, 32), epochs=plan.epochs, cutout=0)
        self.recipe = replace(recipe, flip=not prior.is_upright(name))
        self.tuned: TrainRecipe | None = None if plan.tune else self.recipe

    def had(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        """By the hash of a policy and the seed."""
        rows = self.plan.have.get(self.name, {}).get("rows", ())
        return {(named(row["label"]).hash, row["seed"]): row for row in rows if row["label"] not in SEARCHES}

    def policies(self) -> dict[str, tuple[Policy, int]]:
        """With the number of seeds; of searches those that are there."""
        known = {"none": (named("none"), SEEDS), **{name: (named(name), SEEDS_OF_OTHERS) for name in OTHERS}}
        for kind in SEARCHES:
            folder = self.plan.folder(self.name, kind)
            if (folder / "seconds.json").exists():
                known[kind] = (Policy.load(folder / "policy.json"), SEEDS)
        return known

    def run(self) -> None:
        if time.time() > self.plan.end:
            return
        began = time.time()
        recipe = self.tuned = self.tuned or tuned(self.runner, self.split, self.recipe, print, rates_only=False)
        had = self.had()
        jobs = [
            make_job(label, policy, recipe, seed, self.split)
            for seed in range(SEEDS)
            for label, (policy, seeds) in self.policies().items()
            if seed < seeds and (policy.hash, seed) not in had
        ]
        jobs = list({job.key: job for job in jobs}.values())  # what chose `none` is trained once
        done = run_jobs(self.runner, jobs, until=self.plan.end)
        print(f"{self.name}: {len(done)} of {len(jobs)} trainings, {time.time() - began:.1f} s", flush=True)

    def record(self) -> dict[str, Any]:
        recipe, rows, had = self.tuned or self.recipe, [], self.had()
        for label, (policy, seeds) in self.policies().items():
            for seed in range(seeds):
                outcome = self.runner.cache.read(make_job(label, policy, recipe, seed, self.split))
                if (policy.hash, seed) in had:
                    rows.append({**had[policy.hash, seed], "label": label})
                elif outcome is not None and not outcome.failed:
                    loss = outcome.loss
                    rows.append({"label": label, "seed": seed, "error": outcome.error, "loss": loss})
        about = {"images": len(self.split.train), "test_images": len(self.split.held_out)}
        rates = {"learning_rate": recipe.learning_rate, "weight_decay": recipe.weight_decay}
        return {**about, "classes": len(self.split.train.classes), **rates, "rows": rows, "searches": self._searches()}

    def _searches(self) -> dict[str, Any]:
        searches = {}
        for kind in SEARCHES:
            folder = self.plan.folder(self.name, kind)
            if (folder / "seconds.json").exists():
                policy, took = Policy.load(folder / "policy.json"), json.loads((folder / "seconds.json").read_text())
                race = policy.provenance.get("race", {})
                searches[kind] = {"chosen": policy.name, **took, "race": race}
        return searches


def run(plan: Plan, names: Sequence[str], pairs: int, side_by_side: int) -> None:
    for name in names:
        fit_without(plan, name)
    on_gpu, on_cpu = begin_searches(plan, names, pairs, side_by_side)
    trainings = [Trainings(plan, name) for name in names]
    for each in on_gpu:  # first: trainings beside them would slow them down
        each.result()
    for one in trainings:
        one.run()
    for each in on_cpu:
        each.result()
    for one in trainings:
        one.run()
    write_record(plan, trainings)


def write_record(plan: Plan, trainings: Sequence[Trainings]) -> None:
    about = {
        "machine": device_name(plan.device), "commit": commit(), "torch": torch.__version__, "network": plan.network,
        "epochs": plan.epochs, "tuned": plan.tune,
    }  # fmt: skip
    sets = {one.name: one.record() for one in trainings}
    (plan.out / "unseen.json").write_text(json.dumps({"about": about, "sets": sets}, indent=1) + "\n")


# --- the table -------------------------------------------------------------------------------------------------------


def errors_of(record: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Label -> seed -> error. A search that chose a policy of the table has the errors of that policy and more."""
    errors: dict[str, dict[int, float]] = {}
    for row in record["rows"]:
        errors.setdefault(row["label"], {})[row["seed"]] = row["error"]
    return errors


def _differences(errors: Mapping[str, Mapping[int, float]], label: str, other: str) -> list[float]:
    ours, theirs = errors.get(label, {}), errors.get(other, {})
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def one_sided(differences: Sequence[float], worse: bool = True) -> float:
    """p of a paired t test that the first is worse (or better); 1 where there is no difference."""
    n = len(differences)
    if n < 2 or not any(differences):
        return 1.0
    mean = fmean(differences)
    error = (sum((each - mean) ** 2 for each in differences) / (n - 1) / n) ** 0.5
    if error == 0:
        return 1.0 if (mean > 0) != worse else 0.0
    return 1 - student_cdf((mean if worse else -mean) / error, n - 1)


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """p values corrected for their number."""
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(values, key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[name]))
        corrected[name] = highest
    return corrected


def ranks(means: Mapping[str, float]) -> dict[str, float]:
    """Equal errors share their ranks."""
    return {
        label: sum(other < mean for other in means.values()) + (1 + sum(other == mean for other in means.values())) / 2
        for label, mean in means.items()
    }


def table(content: Mapping[str, Any]) -> Iterator[str]:
    sets = {name: errors_of(record) for name, record in content["sets"].items()}
    labels = [label for label in ("none", *SEARCHES, *OTHERS) if any(label in errors for errors in sets.values())]
    yield from summary(sets, labels)
    yield ""
    yield f"| set | {' | '.join(labels)} | chosen on a GPU | chosen on two cores |"
    yield "|---" * (len(labels) + 3) + "|"
    searched = [label for label in SEARCHES if label in labels]
    for name in sorted(sets, key=lambda name: -worst(sets[name], searched)):
        chosen = [content["sets"][name]["searches"].get(kind, {}).get("chosen", "") for kind in SEARCHES]
        yield f"| {name} | {' | '.join(cell(sets[name], label) for label in labels)} | {' | '.join(chosen)} |"


def cell(errors: Mapping[str, Mapping[int, float]], label: str) -> str:
    """The error of `none`, of others the difference to it on the same seeds."""
    if label not in errors:
        return ""
    return f"{fmean(errors[label].values()):.1f}" if label == "none" else f"{_mean(errors, label):+.1f}"


def _mean(errors: Mapping[str, Mapping[int, float]], label: str) -> float:
    return fmean(_differences(errors, label, "none") or [0.0])


def worst(errors: Mapping[str, Mapping[int, float]], labels: Sequence[str]) -> float:
    return max((_mean(errors, label) for label in labels if label in errors), default=0.0)


def summary(sets: Mapping[str, Mapping[str, Mapping[int, float]]], labels: Sequence[str]) -> Iterator[str]:
    yield (
        "| policy | worst case, points | mean, points | mean rank | worse than none | better than none "
        "| better than TrivialAugment | worse than TrivialAugment | sets |"
    )
    yield "|---" * 9 + "|"
    whole = {name: errors for name, errors in sets.items() if all(label in errors for label in labels)}
    of_sets = [ranks({label: _mean(errors, label) for label in labels}) for errors in whole.values()]
    for label in labels:
        has = {name: errors for name, errors in sets.items() if label in errors}
        points = [_mean(errors, label) for errors in has.values()]
        rank = f"{fmean(each[label] for each in of_sets):.2f}" if of_sets else ""
        counts = [
            _significant(has, label, other, worse)
            for other, worse in (("none", True), ("none", False), (OTHERS[0], False), (OTHERS[0], True))
        ]
        yield (
            f"| {label} | {max(points):+.1f} | {fmean(points):+.2f} | {rank} | {' | '.join(map(str, counts))} "
            f"| {len(has)} |"
        )


def _significant(
    sets: Mapping[str, Mapping[str, Mapping[int, float]]], label: str, other: str, worse: bool
) -> int | str:
    """Sets on which it is, one-sided with p < 0.05; against `none` corrected by Holm for the number of sets."""
    if label == other:
        return "-"
    values = {name: one_sided(_differences(errors, label, other), worse) for name, errors in sets.items()}
    return sum(p < 0.05 for p in (holm(values) if other == "none" else values).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("data", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--measured", type=Path, nargs="+", default=MEASURED, help="records for the prior")
    running.add_argument("--minutes", type=float, default=9.0)
    running.add_argument("--sets", default="", help="these alone, with commas between them")
    running.add_argument("--network", default="wrn-16-2")
    running.add_argument("--epochs", type=int, default=120)
    running.add_argument("--gpu-minutes", type=float, default=0.75, help="of a race on the GPU")
    running.add_argument("--cpu-minutes", type=float, default=1.5, help="of a race on two cores")
    running.add_argument(
        "--pairs", type=int, default=max(1, (core_count() - 4) // 2), help="of cores, a search on each"
    )
    running.add_argument("--side-by-side", type=int, default=2, help="searches on the GPU")
    running.add_argument("--device", default="auto")
    running.add_argument("--tune", action="store_true", help="learning rate and weight decay, held-out, for each set")
    running.add_argument("--have", type=Path, help="an earlier record: its `none` and fixed policies are taken")
    running.add_argument("--extra", default="", help="more words for fasteraa search")
    tabling = commands.add_parser("table")
    tabling.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "table":
        print("\n".join(table(json.loads(given.file.read_text()))))
        return
    find_device(given.device)
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parent.parent / "src"))
    names = [file.stem for file in sorted(given.data.glob("*.npz"))]
    names = [name for name in names if not given.sets or name in given.sets.split(",")]
    minutes = {SEARCHES[0]: given.gpu_minutes, SEARCHES[1]: given.cpu_minutes}
    end = time.time() + 60 * given.minutes
    have = json.loads(given.have.read_text())["sets"] if given.have else {}
    plan = Plan(
        given.data, given.out, tuple(given.measured), given.device, given.network, given.epochs, minutes, given.tune,
        end, tuple(given.extra.split()), have,
    )  # fmt: skip
    run(plan, names, given.pairs, given.side_by_side)


if __name__ == "__main__":
    main()
