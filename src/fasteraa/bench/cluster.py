"""What engines cost: a search under torchrun, Ray's overhead, and a simulation of a race on many GPUs.

    python -m fasteraa.bench.cluster smoke      # one rank under torchrun beside a plain process; nccl on a GPU
    python -m fasteraa.bench.cluster overhead   # the same trainings by the local runner and on a Ray cluster
    python -m fasteraa.bench.cluster simulate   # the rounds of a race on 1 to 1,000 GPUs, by measured times

Each prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fasteraa.bench.machine import describe_machine
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.policy.policy import Policy
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.schedule import TYPICAL_CANDIDATES, trainings_of_rounds

# WRN-16-2 on 4,000 images, 60 epochs, on an H200: groups of 9 and of 15 trainings side by side took 17.35 and 26.17
# seconds (results/quality/runs.json, n = 9 and 15). A line through both is what a group takes.
MEASURED = ((9, 17.35), (15, 26.17))
SIDE_BY_SIDE = 20  # trainings of a race on a GPU
GPUS = (1, 8, 64, 1000)


# --- a race on many GPUs, simulated ----------------------------------------------------------------------------------


def group_seconds(count: int) -> float:
    """Of so many trainings side by side on one H200."""
    (few, quick), (many, slow) = MEASURED
    each = (slow - quick) / (many - few)
    return quick + each * (count - few)


def race_seconds(gpus: int, trainings: Sequence[int], seconds: Callable[[int], float] = group_seconds) -> float:
    """Of rounds with so many trainings: a round begins when the one before it is over."""
    total = 0.0
    for count in trainings:
        together = min(SIDE_BY_SIDE, math.ceil(count / gpus))
        groups = math.ceil(count / together)
        total += math.ceil(groups / gpus) * seconds(together)
    return total


def simulate() -> dict[str, Any]:
    """The longest schedule of a race, and 3,000 independent trainings (a thousand policies, three seeds)."""
    rounds = trainings_of_rounds(TYPICAL_CANDIDATES, (1, 3, 9))
    full = group_seconds(SIDE_BY_SIDE)
    return {
        "bench": "simulated race",
        "simulated": True,
        "trainings": rounds,
        "trainings_per_minute_of_one_gpu": round(60 * SIDE_BY_SIDE / full, 1),
        "race_seconds": {gpus: round(race_seconds(gpus, rounds), 1) for gpus in GPUS},
        "seconds_of_3000_trainings": {gpus: round(race_seconds(gpus, [3000]), 1) for gpus in GPUS},
    }


# --- a search under torchrun -----------------------------------------------------------------------------------------


def smoke(ranks: int = 1) -> dict[str, Any]:
    """The same search in a plain process and under torchrun, fast and plain step: seconds, and how far they differ."""
    rows: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        for fast in ("true", "false"):
            alone, shared = Path(scratch) / f"alone-{fast}", Path(scratch) / f"shared-{fast}"
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            seconds = [_search(launch, out, fast) for launch, out in (([], alone), (launcher, shared))]
            rows[f"fast={fast}"] = {
                "alone_s": seconds[0],
                "torchrun_s": seconds[1],
                "same_policy": Policy.load(alone / "policy.json").hash == Policy.load(shared / "policy.json").hash,
                "largest_difference": _difference(RunFolder(alone), RunFolder(shared)),
            }
    return {"bench": "torchrun smoke", "ranks": ranks, "machine": describe_machine(), **rows}


def _search(launcher: Sequence[str], out: Path, fast: str) -> float:
    settings = ["--no-race", "--epochs", "2", "--batch-size", "64", "--set", f"fast={fast}", "--out", str(out)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "fasteraa", "search", *settings], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return round(time.monotonic() - began, 1)


def _difference(one: RunFolder, other: RunFolder) -> float:
    """Of the policies' parameters at the end; rounding alone makes some."""
    states = [GradientFiles(folder.path).load_checkpoint("cpu") for folder in (one, other)]
    first, second = (state["trajectory"][-1] for state in states if state is not None)
    return float((first - second).abs().max())


# --- Ray's overhead --------------------------------------------------------------------------------------------------


def overhead(count: int, cores: int = 2) -> dict[str, Any]:
    """`count` trainings of about a second: seconds by the local runner and by Ray, once all processes are there.

    They take turns in blocks, since the machine may have other work.
    """
    from fasteraa.train.run_cache import RunCache
    from fasteraa.train.runner import make_runner

    jobs = _second_long(count)
    blocks = [jobs[first : first + max(count // 4, 1)] for first in range(0, count, max(count // 4, 1))]
    seconds = {"local": 0.0, "ray": 0.0}
    with TemporaryDirectory() as scratch, _ray_cluster(cores) as address:
        caches = {name: RunCache(Path(scratch) / name).open() for name in seconds}
        with (
            make_runner("local", caches["local"], device="cpu", jobs=cores) as local,
            make_runner("ray", caches["ray"], device="cpu", address=address) as ray,
        ):
            for runner in (local, ray):  # processes are started, images are sent
                runner.prepare([jobs[0].split])
                list(runner.run([replace(job, seed=10**6 + number) for number, job in enumerate(jobs[: 2 * cores])]))
            for block in blocks:
                for name, runner in (("local", local), ("ray", ray)):
                    began = time.monotonic()
                    done = len(list(runner.run(block)))
                    assert done == len(block), f"{done} of {len(block)} trainings"
                    seconds[name] += time.monotonic() - began
    more = seconds["ray"] / seconds["local"] - 1
    rounded = {f"{name}_s": round(each, 1) for name, each in seconds.items()}
    return {"bench": "ray overhead", "trainings": count, "cores": cores, **rounded, "overhead": round(more, 3)}


def _second_long(count: int) -> list[Any]:
    from fasteraa.data import load
    from fasteraa.policy.named import named
    from fasteraa.train.job import TrainJob
    from fasteraa.train.recipe import TrainRecipe
    from fasteraa.train.split import fold_splits

    split = fold_splits(load(None, size=16, subset=120), 2, seed=0)[0]
    recipe = TrainRecipe(network="small", epochs=10, batch_size=20, warmup=1, cutout=0, precision="float32")
    epochs = _epochs_of_a_second(split, recipe)
    recipe = replace(recipe, epochs=epochs)
    return [TrainJob("uniform", named("uniform"), recipe, seed, split) for seed in range(count)]


def _epochs_of_a_second(split: Any, recipe: Any) -> int:
    from fasteraa.policy.named import named
    from fasteraa.train.trainer import train

    began = time.monotonic()
    train(split.train, split.held_out, named("uniform"), recipe, device="cpu")
    began = time.monotonic()
    train(split.train, split.held_out, named("uniform"), recipe, device="cpu")
    return int(max(2, round(recipe.epochs / (time.monotonic() - began))))


@contextmanager
def _ray_cluster(cores: int) -> Any:
    """Of two nodes on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (as the processes of the local runner)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores // 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=cores - cores // 2)
        yield cluster.address
    finally:
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fasteraa.bench.cluster")
    parser.add_argument("what", choices=("smoke", "overhead", "simulate"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--trainings", type=int, default=200)
    given = parser.parse_args()
    if given.what == "smoke":
        row = smoke(given.ranks)
    else:
        row = overhead(given.trainings) if given.what == "overhead" else simulate()
    print(json.dumps(row))


if __name__ == "__main__":
    main()
