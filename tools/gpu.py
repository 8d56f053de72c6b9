"""Everything about speed that needs a GPU, in one call: tests, benchmarks, profiles, whole searches, precisions.

    PYTHONPATH=src python3 tools/gpu.py OUT [--images FILE.npz] [--seconds 560] [--only kernels,apply,...]

Parts run in the order given, each command as a process of its own, so that one that fails or takes too long takes
nothing with it. OUT/log.txt holds all they print, OUT/*.jsonl what was measured; the terminal gets the end of each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fasteraa.methods.config import SearchConfig

ROOT = Path(__file__).resolve().parent.parent
FASTERAA = [sys.executable, "-m", "fasteraa"]


class Part(NamedTuple):
    commands: list[list[str]]
    seconds: float = 120  # of each command, at most
    shown: int = 800  # characters of the end of each command's output
    telling: str = ""  # which of its lines are shown: those that match


def parts(out: Path, images: str, scratch: Path) -> dict[str, Part]:
    """Name -> part, the most telling first."""
    bench = [*FASTERAA, "bench", "search", "--out", str(out / "search.jsonl")]
    apply = [*FASTERAA, "bench", "apply", "--device", "cuda", "--out", str(out / "apply.jsonl")]
    me = [sys.executable, __file__, str(out), "--images", images, "--inside"]
    whole = [*FASTERAA, "search", images, "--no-calibrate", "--out"]
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-m", "gpu", "-p", "no:cacheprovider"]
    marked = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    kernels = [path for path in marked if Path(path).name.startswith("test_kernels")]
    others = [path for path in marked if path not in kernels]
    precisions = [[*bench, "--no-scaling", "--set", f"precision={name}"] for name in ("bf16", "float32")]
    ends = r"epoch (1|2|20)/|Error|fasteraa:"  # of a search: the first epoch holds the recording
    large = [*bench, "--no-scaling", "--size", "224", "--images", "6000", "--steps", "5", "--rounds", "2"]
    return {
        "cold": Part([[*whole, str(scratch / "cold")]], 120, 400, ends),  # nothing has been compiled or read yet
        "parity": Part([[sys.executable, "-m", "fasteraa.testing.parity", "cuda"]], 60, 400),
        "kernels": Part([[*pytest, *kernels]], 150, 1500),
        "apply": Part([[*apply, "--seconds", "1"]], 60, 2800),
        "search": Part([[*bench, "--no-scaling"]], 60, 1200),
        "warm": Part([[*whole, str(scratch / "warm")]], 60, 400, ends),
        "soft": Part([[*me, "soft"]], 90, 3000),
        "in-torch": Part([[*whole, str(scratch / "in-torch"), "--set", "kernels=false"]], 60, 400, ends),
        "repeat": Part(
            [[*whole, str(scratch / f"repeat-{i}"), "--set", "deterministic=true"] for i in (1, 2)]
            + [[*FASTERAA, "show", str(scratch / f"repeat-{i}")] for i in (1, 2)],
            60,
            400,
            ends + "|sha256",
        ),
        "resume": Part([[*pytest, "-k", "goes_on", str(ROOT / "tests/search/test_fast.py")]], 40, 300),
        "applied": Part([[*me, "applied"]], 60, 2000),
        "training": Part([[*me, "training"]], 120, 5000),
        "tests": Part([[*pytest, "--continue-on-collection-errors", *others]], 180),
        "precisions": Part(precisions),
        "scaling": Part([bench], 200, 2400),
        "profile": Part([[*me, "profile"]]),
        "large": Part([large], 200),
        "compare": Part([[*me, "compare"]], 200, 4000),
        "plain": Part([[*me, "plain"]], 300, 4000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", default="", help="for whole searches; noise of the size of reduced CIFAR-10")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--only", default="")
    parser.add_argument("--inside", choices=tuple(INSIDE))
    given = parser.parse_args()
    if given.inside:
        INSIDE[given.inside](given.images)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        images = given.images or noise(Path(scratch) / "noise.npz")
        known = parts(given.out, images, Path(scratch))
        chosen = given.only.split(",") if given.only else list(known)
        if not set(chosen) <= set(known):
            parser.error(f"unknown parts in --only {given.only}; choices: {', '.join(known)}")
        run_all([(name, known[name]) for name in chosen], given.out / "log.txt", given.seconds, Path(scratch))


def noise(path: Path) -> str:
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(path, images=rng.integers(0, 256, (4000, 32, 32, 3), dtype=np.uint8), labels=np.arange(4000) % 10)
    return str(path)


def run_all(chosen: list[tuple[str, Part]], log: Path, seconds: float, scratch: Path) -> None:
    end = time.monotonic() + seconds
    settings = {
        "PYTHONPATH": str(ROOT / "src"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),  # the parts' own, and one for all of them
        "PYTHONUNBUFFERED": "1",
    }
    for name, part in chosen:
        for command in part.commands:
            left = min(part.seconds, end - time.monotonic())
            code, took, said = run(command, log, left, {**os.environ, **settings})
            shown = "\n".join(line for line in said.splitlines() if re.search(part.telling, line))
            print(f"== {name}: {code}, {took:.1f} s\n{shown.strip()[-part.shown :]}", flush=True)


def run(command: list[str], log: Path, seconds: float, environment: dict[str, str]) -> tuple[object, float, str]:
    """Exit status, seconds and output of a command, which is also added to the log."""
    if seconds < 5:
        return "no time left", 0.0, ""
    began = time.monotonic()
    with log.open("a") as file:
        print("$", *command[1:], file=file, flush=True)
        start = file.tell()
        try:
            code: object = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = "out of time"
    took = time.monotonic() - began
    said = log.read_bytes()[start:].decode(errors="replace")
    with log.open("a") as file:
        print(f"-> {code} after {took:.1f} s\n", file=file)
    return code, took, said


def profile(_: str) -> None:
    """Where the time of a replayed step goes, by kernel."""
    import torch

    from fasteraa.bench import search as bench
    from fasteraa.methods.config import SearchConfig

    device = torch.device("cuda")
    for precision in ("tf32", "bf16"):
        for what, augment, kernels in (
            ("whole step", True, True),
            ("whole step, in plain torch", True, False),
            ("critic alone", False, True),
            ("critic alone, in plain torch", False, False),
        ):
            setting = bench.Setting(SearchConfig(precision=precision, kernels=kernels), "cuda")
            runner = bench._Runner(setting, setting.config, augment, "wrn-40-2", device)
            runner.time(5)
            milliseconds = 1000 * runner.time(30)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                runner.time(4)
            kernels = [event for event in seen.key_averages() if event.device_time_total > 0]
            total = sum(event.self_device_time_total for event in kernels) / 4000
            count = sum(event.count for event in kernels) // 4
            print(f"\n{what}, {precision}: {milliseconds:.2f} ms per step, {total:.2f} ms in {count} kernels, ", end="")
            print(f"start {runner.start_seconds:.1f} s, peak {runner.peak_mib} MiB")
            for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:35]:
                share = event.self_device_time_total / 4000
                print(f"{share:8.3f} ms {event.count // 4:5d} x  {event.key[:110]}", flush=True)

    variants()


def variants() -> None:
    """What each choice is worth: the same step made in other ways."""
    import torch

    from fasteraa.bench import search as bench
    from fasteraa.search import SearchConfig, fast
    from fasteraa.methods.faster_aa.step import Step

    def plain_recorded(step: fast.ManualGradStep) -> fast.Recorded:
        return fast.Recorded(Step(step.critic, step.policy, step.normalise, step.config))

    ways = {"plain step, recorded": plain_recorded, "written out, eager": None}
    for precision in ("tf32", "bf16"):
        for name, change in ways.items():
            config = SearchConfig(precision=precision)
            setting = bench.Setting(config, "cuda")
            make = bench._make

            def other(*given: object, make: object = make, change: object = change) -> object:
                made = make(*given)  # type: ignore[operator]
                return made.step if change is None else change(made.step)  # type: ignore[operator]

            bench._make = other  # type: ignore[assignment]
            try:
                runner = bench._Runner(setting, config, True, "wrn-40-2", torch.device("cuda"))
                print(f"{name}, {precision}: {1000 * runner.time(10):.2f} ms, start {runner.start_seconds:.1f} s")
            except Exception as error:
                print(f"{name}, {precision}: {error!r}")
            finally:
                bench._make = make


def training(images: str) -> None:
    """Where the time of a training step goes, by kernel: fused, captured, alone and with another beside it."""
    import torch

    from fasteraa.data import load
    from fasteraa.train.recipe import TrainRecipe
    from fasteraa.train.trainer import Group, Training
    from fasteraa.policy import Policy

    data, device = load(images), torch.device("cuda")
    for network, together, name in (
        ("wrn-40-2", 1, "none"),
        ("wrn-40-2", 1, "trivialaugment-wide"),
        ("wrn-40-2", 8, "trivialaugment-wide"),
        ("wrn-28-10", 1, "none"),
        ("wrn-28-10", 1, "trivialaugment-wide"),
        ("wrn-28-10", 1, "none"),
        ("wrn-28-10", 1, "trivialaugment-wide"),
        ("wrn-28-10", 2, "trivialaugment-wide"),
    ):
        recipe = TrainRecipe(network=network, epochs=8)
        policy = Policy.named(name)
        members = [Training(data, policy, recipe, seed, device) for seed in range(together)]
        group = Group(members, fuse=True)
        group.record()
        group.one_epoch()
        steps = members[0].feed.steps
        began = time.perf_counter()
        for _ in range(5):
            group.one_epoch()
        milliseconds = 1000 * (time.perf_counter() - began) / 5 / steps
        label = f"{network} ({group.kernels}), {together} together, {name}"
        print(f"\n{label}: {milliseconds:.2f} ms per step of all", flush=True)
        if together > 1 or name == "none":
            continue
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            group.one_epoch()
            torch.cuda.synchronize()
        kernels = [event for event in seen.key_averages() if event.self_device_time_total > 0]
        total = sum(event.self_device_time_total for event in kernels) / 1000 / steps
        count = sum(event.count for event in kernels) // steps
        print(f"{total:.2f} ms in {count} kernels")
        for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:22]:
            share = event.self_device_time_total / 1000 / steps
            print(f"{share:8.3f} ms {event.count / steps:6.1f} x  {event.key[:120]}", flush=True)


def compare(images: str) -> None:
    """Do precisions lead to the same losses and policies?"""
    from fasteraa.methods.config import SearchConfig

    runs: list[tuple[str, SearchConfig]] = []
    for seed in (0, 1, 2):
        for precision in ("tf32", "bf16"):
            config = SearchConfig(seed=seed, precision=precision)
            runs.append((f"fast {precision} seed {seed}", config))
    runs.append(("fast tf32 seed 0 again", SearchConfig()))
    runs.append(("fast float32 seed 0", SearchConfig(precision="float32")))
    searched(images, runs)


def plain(images: str) -> None:
    """Do the plain and the fast step? Five epochs: a plain step takes fifty times as long."""
    from fasteraa.methods.config import SearchConfig

    short = SearchConfig(epochs=5)
    runs = [
        ("fast", short),
        ("fast, seed 1", replace(short, seed=1)),
        ("fast, tf32", replace(short, precision="tf32")),
        ("fast, in torch", replace(short, kernels=False)),
        ("plain", replace(short, fast=False, kernels=False)),
    ]
    searched(images, runs)


def searched(images: str, runs: list[tuple[str, SearchConfig]]) -> None:
    """Losses and shares of operations, and how far the latter are from each other."""
    import torch

    import fasteraa

    masses = {}
    for name, config in runs:
        began = time.monotonic()
        result = fasteraa.search(images or None, config, device="cuda")
        print(f"\n{name}: {time.monotonic() - began:.1f} s, loop {result.epochs[-1].seconds:.1f} s")
        for row in result.epochs[:: max(1, len(result.epochs) // 5)]:
            print(f"  {row.epoch:3d} distance {row.distance:7.3f} penalty {row.penalty:7.3f} ", end="")
            print(f"class {row.class_loss:6.3f} policy class {row.policy_class_loss:6.3f} moved {row.from_start:.4f}")
        mass: dict[str, float] = {}
        for choice in result.policy.choices():
            mass[choice.op] = mass.get(choice.op, 0.0) + choice.weight * choice.probability
        total = sum(mass.values())
        masses[name] = {op: value / total for op, value in mass.items()}
        print("  " + ", ".join(f"{op} {value:.3f}" for op, value in sorted(masses[name].items(), key=lambda x: -x[1])))
    ops = sorted({op for mass in masses.values() for op in mass})
    table = torch.tensor([[mass.get(op, 0.0) for op in ops] for mass in masses.values()])
    print("\ntotal variation between the shares of operations:")
    for name, row in zip(masses, torch.cdist(table, table, p=1) / 2, strict=True):
        print("  " + " ".join(f"{value:.3f}" for value in row.tolist()), name)
    print(json.dumps(masses))


def applied(_: str) -> None:
    """Where the time of applying a policy goes: host, device, by kernel, and with each operation alone."""
    import torch

    from fasteraa.ops import OPS
    from fasteraa.policy import Choice, Policy, SubPolicy
    from fasteraa.policy.apply import augment

    def per_call(call: object, calls: int = 200) -> tuple[float, float]:
        """Microseconds: until the host is free, and until the device is done."""
        for _ in range(5):
            call()  # type: ignore[operator]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()  # type: ignore[operator]
        host = time.perf_counter() - began
        torch.cuda.synchronize()
        return 1e6 * host / calls, 1e6 * (time.perf_counter() - began) / calls

    generator = torch.Generator("cuda").manual_seed(0)
    for count, side in ((4096, 32), (256, 224)):
        batch = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, device="cuda")
        copied = per_call(lambda batch=batch: batch.clone())
        print(f"\n{count} images of {side}x{side}: copy {copied[1]:.1f} us")
        for name in ("autoaugment-cifar10", "trivialaugment-wide", "uniform"):
            policy = Policy.named(name)

            def call(policy: Policy = policy, batch: torch.Tensor = batch) -> torch.Tensor:
                return augment(policy, batch, generator, kernels=True)

            host, whole = per_call(call)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                for _ in range(10):
                    call()
                torch.cuda.synchronize()
            kernels = [event for event in seen.key_averages() if event.self_device_time_total > 0]
            device = sum(event.self_device_time_total for event in kernels) / 10
            print(
                f"{name}: {whole:.1f} us a call ({count / whole:.1f} M images/s), host {host:.1f}, device {device:.1f}"
            )
            for event in sorted(kernels, key=lambda event: -event.self_device_time_total):
                print(f"{event.self_device_time_total / 10:8.1f} us {event.count // 10:3d} x  {event.key[:80]}")
            recorded = policy.captured(batch, torch.Generator("cuda").manual_seed(0), kernels=True)
            ways = {
                "recorded": lambda recorded=recorded, batch=batch: recorded(batch),
                "recorded, no copies": lambda recorded=recorded: recorded(recorded.batch, copy=False),
            }
            for way, again in ways.items():
                host, whole = per_call(again)
                print(f"  {way}: {whole:.1f} us a call ({count / whole:.1f} M images/s), host {host:.1f}", flush=True)
        for row in OPS.values():
            choice = Choice(row.name, 1.0, (0.0, 1.0) if row.span else None, sign="random" if row.signed else None)
            alone = Policy((SubPolicy(((choice,),)),))
            _, whole = per_call(lambda alone=alone, batch=batch: augment(alone, batch, generator, kernels=True), 50)
            print(f"  {row.name:15s} one stage {whole:7.1f} us", flush=True)


def soft(_: str) -> None:
    """The soft policy alone, forward and backward in a CUDA graph: plain torch, kernels, kernels with other tiles."""
    import torch

    from fasteraa.ops.kernels import soft as kernels
    from fasteraa.policy.soft import SoftPolicy

    def graph_of(policy: SoftPolicy, images: torch.Tensor, by_kernels: bool) -> torch.cuda.CUDAGraph:
        draw, come = policy.draw(len(images)), torch.randn_like(images)

        def step() -> None:
            policy.zero_grad()
            policy(images, draw, kernels=by_kernels).backward(come)

        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            step()
        return graph

    def microseconds(graph: torch.cuda.CUDAGraph, calls: int = 50) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            graph.replay()
        start.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return 1000 * start.elapsed_time(end) / calls

    for shape in ((64, 3, 32, 32), (128, 3, 32, 32), (32, 3, 224, 224)):
        images = torch.rand(shape, device="cuda")
        policy = SoftPolicy(10, 2).cuda()
        if shape[2] == 32:
            print(f"{shape}: plain torch {microseconds(graph_of(policy, images, False)):.1f} us")
        chosen = kernels._TILE, kernels._WARPS_OF_TILE
        for tile, warps in (chosen, (128, 4), (128, 8), (256, 4), (512, 8)):
            kernels._TILE, kernels._WARPS_OF_TILE = tile, warps
            graph = graph_of(policy, images, True)
            print(f"{shape}: kernels, tiles of {tile}, {warps} warps: {microseconds(graph):.1f} us", flush=True)
            if (tile, warps) == chosen:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                    for _ in range(10):
                        graph.replay()
                    torch.cuda.synchronize()
                for event in sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:12]:
                    print(f"{event.self_device_time_total / 10:8.1f} us {event.count // 10:3d} x  {event.key[:80]}")
        kernels._TILE, kernels._WARPS_OF_TILE = chosen


INSIDE = {
    "profile": profile,
    "compare": compare,
    "plain": plain,
    "applied": applied,
    "soft": soft,
    "training": training,
}

if __name__ == "__main__":
    main()
