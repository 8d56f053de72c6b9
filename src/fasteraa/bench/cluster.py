"""What engines cost: a search under torchrun, Ray's overhead, and a simulation of a race on many GPUs.

    python -m fasteraa.bench.cluster smoke      # ranks under torchrun beside plain processes; nccl on a GPU
    python -m fasteraa.bench.cluster overhead   # the same trainings by the local runner and on a Ray cluster
    python -m fasteraa.bench.cluster simulate   # the rounds of a race on 1 to 1,000 GPUs, by measured times

Each prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fasteraa.bench.machine import describe_machine
from fasteraa.errors import FasterAAError
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.policy.policy import Policy
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.schedule import REPEATS, TYPICAL_CANDIDATES, trainings_of_rounds

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
    """A race with all of its rounds, and 3,000 independent trainings (a thousand policies, three seeds)."""
    rounds = trainings_of_rounds(TYPICAL_CANDIDATES, REPEATS[0])
    full = group_seconds(SIDE_BY_SIDE)
    return {
        "bench": "simulated race",
        "simulated": True,
        "trainings": rounds,
        "trainings_per_minute_of_one_gpu": round(60 * SIDE_BY_SIDE / full, 1),
        "race_seconds": {gpus: round(race_seconds(gpus, rounds), 1) for gpus in GPUS},
        "seconds_of_3000_trainings": {gpus: round(race_seconds(gpus, [3000]), 1) for gpus in GPUS},
    }


# --- ranks under torchrun --------------------------------------------------------------------------------------------

_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost", "--nproc-per-node"]
# of a process that is to abort: where every thread of Python stands; of NCCL: what it does
_TALKATIVE = {
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    "NCCL_DEBUG": "INFO",
    "TORCH_CPP_LOG_LEVEL": "WARNING",
}
_SHOWN = 3_000  # characters of a log that did not end as it should


def smoke(ranks: int = 1, out: Path | None = None, seconds: float = 60.0, device: str = "auto") -> dict[str, Any]:
    """The same search and the same training in plain processes and under torchrun, all at once.

    First the steps that ranks are made of, one by one. What has not ended in time says where its threads stand.
    """
    began = time.monotonic()
    with nullcontext(out) if out is not None else TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        network = _name_seconds()
        torchrun = [*_TORCHRUN, str(ranks)]
        probe = _Process("probe", [*torchrun, "-m", "fasteraa.bench.cluster", "probe", "--device", device], folder)
        stages = {"probe": probe.wait(began + seconds / 2)}
        print(probe.said(), file=sys.stderr, flush=True)
        runs = {
            f"{what}-{how}": _Process(
                f"{what}-{how}", [*launcher, "-m", "fasteraa", *words, "--device", device], folder
            )
            for what, words in _commands().items()
            for how, launcher in (("alone", []), ("shared", torchrun))
        }
        with ThreadPoolExecutor(len(runs)) as pool:
            stages |= zip(runs, pool.map(lambda run: run.wait(began + seconds), runs.values()), strict=True)
        row = {"bench": "torchrun smoke", "ranks": ranks, "machine": describe_machine(), "network": network}
        return {**row, "seconds": stages, "passed": None not in stages.values(), **_compared(folder)}


def _commands() -> dict[str, list[str]]:
    """Words of the command line by the folder they fill; a fast step is captured on a GPU, sums over ranks and all."""
    short = ["--epochs", "2", "--batch-size", "64"]
    search = ["search", "--no-race", "--subset", "256", *short]
    return {
        **{f"{step}-step": [*search, "--set", f"fast={fast}"] for step, fast in (("fast", "true"), ("plain", "false"))},
        "training": [
            "evaluate",
            "--network",
            "small",
            "--policy",
            "trivialaugment-wide",
            *short,
            "--set",
            "precision=float32",
        ],
    }


class _Process:
    """One command, with a log of its own and a time limit."""

    def __init__(self, name: str, words: Sequence[str], folder: Path):
        self.log, self.began = folder / f"{name}.log", time.monotonic()
        out = [] if name == "probe" else ["--out", str(folder / name)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *words, *out],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **_TALKATIVE}, start_new_session=True,
            )  # fmt: skip

    def wait(self, until: float) -> float | None:
        """Its seconds; None, and the end of its log on stderr, if it failed or did not end in time."""
        try:
            code = self.process.wait(max(until - time.monotonic(), 0.1))
            why = f"ended with code {code}"
        except subprocess.TimeoutExpired:
            code, why = -1, "has not ended"
            self._dump()
        seconds = time.monotonic() - self.began
        if code == 0:
            return round(seconds, 1)
        print(f"--- {self.log.stem} {why} after {seconds:.0f} s\n{self.said()}", file=sys.stderr, flush=True)
        return None

    def _dump(self) -> None:
        """SIGABRT makes Python print the stacks of all threads: of the ranks, or of the process itself."""
        mine = self.process.pid
        children = Path(f"/proc/{mine}/task/{mine}/children")
        for pid in [int(word) for word in children.read_text().split()] if children.exists() else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with suppress(ProcessLookupError):
            os.killpg(mine, signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with suppress(ProcessLookupError):
            os.killpg(mine, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-_SHOWN:]


def _name_seconds() -> dict[str, Any]:
    """A machine whose name nobody resolves makes torchrun and gloo wait."""
    began = time.monotonic()
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError as error:
        address = str(error)
    named = time.monotonic()
    socket.getfqdn()
    return {"address": address, "name_s": round(named - began, 2), "full_name_s": round(time.monotonic() - named, 2)}


def _compared(folder: Path) -> dict[str, Any]:
    """How far two runs of the same differ; rounding alone makes some."""
    rows: dict[str, Any] = {}
    for step in ("fast-step", "plain-step"):
        with suppress(FasterAAError, OSError, AttributeError):
            alone, shared = folder / f"{step}-alone", folder / f"{step}-shared"
            rows[step] = {
                "same_policy": Policy.load(alone / "policy.json").hash == Policy.load(shared / "policy.json").hash,
                "largest_difference": _difference(RunFolder(alone), RunFolder(shared)),
            }
    with suppress(OSError, ValueError):
        records = [next((folder / f"training-{how}" / "runs").glob("*.json"), None) for how in ("alone", "shared")]
        losses = [json.loads(record.read_text())["train_loss"] for record in records if record is not None]
        rows["training"] = {"train_losses": losses}
    return rows


def _difference(one: RunFolder, other: RunFolder) -> float:
    """Of the policies' parameters at the end."""
    states = [GradientFiles(folder.path).load_checkpoint("cpu") for folder in (one, other)]
    first, second = (state["trajectory"][-1] for state in states if state is not None)
    return float((first - second).abs().max())


def probe(device: str = "auto") -> None:
    """Under torchrun: what ranks need, step by step, with a line before each."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"rank {os.environ.get('RANK', 0)} {time.monotonic() - began:6.2f} s  {text}", flush=True)

    say("import torch")
    import torch

    from fasteraa.runtime.cuda_graph import capture
    from fasteraa.runtime.device import find_device
    from fasteraa.runtime.ranks import open_ranks, rank_device

    place = find_device(rank_device(device))
    say(f"join the others, on {place}")
    with open_ranks(place) as ranks:
        say(f"a number of each of {ranks.size} ranks")
        ranks.largest(ranks.rank)
        tensor = torch.ones(1000, device=place)
        say("a first sum")
        ranks.sum_([tensor])
        say(f"which is {float(tensor[0]):.0f}")
        if place.type == "cuda":
            say("capture a sum")
            graph, _ = capture(lambda: ranks.sum_([tensor]), place)
            say("replay it")
            graph.replay()
            torch.cuda.synchronize()
            say("let the graph go")
            graph.reset()
            del graph
        say("leave")
    say("left")


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
    parser.add_argument("what", choices=("smoke", "probe", "overhead", "simulate"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the folder for logs and runs (default: one that is removed)")
    parser.add_argument("--seconds", type=float, default=60.0, help="until stacks are dumped")
    parser.add_argument("--trainings", type=int, default=200)
    given = parser.parse_args()
    if given.what == "probe":
        probe(given.device)
        return
    if given.what == "smoke":
        row = smoke(given.ranks, given.out, given.seconds, given.device)
    else:
        row = overhead(given.trainings) if given.what == "overhead" else simulate()
    text = json.dumps(row)
    print(text)
    if given.out is not None and given.what == "smoke":
        (given.out / "smoke.json").write_text(f"{text}\n")
    if not row.get("passed", True):
        sys.exit(1)


if __name__ == "__main__":
    main()
