"""Everything about speed that needs a GPU, in one call: tests, benchmarks, profiles, whole searches, precisions.

    PYTHONPATH=src python3 tools/gpu.py OUT [--images FILE.npz] [--seconds 560] [--only tests,bench,...]

Each part is a process of its own, so that one that fails takes nothing with it; what it prints goes to OUT/PART.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FASTERAA = [sys.executable, "-m", "fasteraa"]


def parts(out: Path, images: str) -> dict[str, list[list[str]]]:
    """Name -> commands, the most telling first."""
    record = ["--out", str(out / "search.jsonl")]
    bench = [*FASTERAA, "bench", "search", *record]
    me = [sys.executable, __file__, str(out), "--images", images, "--inside"]
    marked = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    whole = [*FASTERAA, "search", images, "--out"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    kernels = sorted(str(path) for path in (ROOT / "tests").rglob("test_kernels*.py"))
    return {
        "kernels": [[*pytest, *kernels]],
        "apply": [
            [*FASTERAA, "bench", "apply", "--device", "cuda", "--out", str(out / "apply.jsonl")],
            [*me, "applied"],
        ],
        "profile": [[*me, "profile"]],
        "tests": [[*pytest, "--continue-on-collection-errors", *(path for path in marked if path not in kernels)]],
        "bench": [bench, *([*bench, "--no-scaling", "--set", f"precision={name}"] for name in ("bf16", "float32"))],
        "whole": [[*whole, str(out / "cold")], [*whole, str(out / "warm")]],
        "large": [[*bench, "--no-scaling", "--size", "224", "--images", "6000", "--steps", "5", "--rounds", "2"]],
        "compare": [[*me, "compare"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", default="")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--only", default="")
    parser.add_argument("--inside", choices=tuple(INSIDE))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.inside:
        INSIDE[given.inside](given.images)
        return
    end = time.monotonic() + given.seconds
    carried = ROOT / ".carry" / "py"  # packages that the machine lacks
    paths = [str(ROOT / "src"), *([str(carried)] if carried.is_dir() else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRITON_CACHE_DIR": str(given.out / ".triton"),
        "PYTHONUNBUFFERED": "1",
    }
    for name, commands in parts(given.out, given.images).items():
        if given.only and name not in given.only.split(","):
            continue
        for command in commands:
            run(name, command, given.out / f"{name}.txt", end - time.monotonic(), environment)
    for folder in ("cold", "warm", ".triton"):
        subprocess.run(["rm", "-rf", str(given.out / folder)], check=False)


def run(name: str, command: list[str], log: Path, seconds: float, environment: dict[str, str]) -> None:
    began = time.monotonic()
    with log.open("a") as file:
        print("$", *command[1:], file=file, flush=True)
        if seconds < 5:
            print("no time left", file=file)
            return
        try:
            code: object = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = "out of time"
        print(f"-> {code} after {time.monotonic() - began:.1f} s\n", file=file)
    print(f"== {name}: {code}, {time.monotonic() - began:.1f} s", flush=True)
    print("\n".join(log.read_text().splitlines()[-60:])[-6000:], flush=True)


def profile(_: str) -> None:
    """Where the time of a replayed step goes, by kernel."""
    import torch

    from fasteraa.bench import search as bench
    from fasteraa.search import SearchConfig

    device = torch.device("cuda")
    for precision in ("tf32", "bf16"):
        for augment in (True, False):
            setting = bench.Setting(SearchConfig(precision=precision), "cuda")
            runner = bench._Runner(setting, setting.config, augment, "wrn-40-2", device)
            runner.time(5)
            milliseconds = 1000 * runner.time(30)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                runner.time(4)
            kernels = [event for event in seen.key_averages() if event.device_time_total > 0]
            total = sum(event.self_device_time_total for event in kernels) / 4000
            count = sum(event.count for event in kernels) // 4
            what = "whole step" if augment else "critic alone"
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
    from fasteraa.search.step import Step

    def plain_recorded(step: fast.WrittenOut) -> fast.Recorded:
        return fast.Recorded(Step(step.critic, step.policy, step.normalise, step.config))

    def contiguous(step: fast.WrittenOut) -> fast.Recorded:
        step.critic.to(memory_format=torch.contiguous_format)
        step.format = torch.contiguous_format
        return fast.Recorded(step)

    ways = {"plain step, recorded": plain_recorded, "written out, contiguous": contiguous, "written out, eager": None}
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


def compare(images: str) -> None:
    """Do precisions, and the plain and the fast step, lead to the same losses and policies?"""
    import torch

    import fasteraa
    from fasteraa.search import SearchConfig

    runs: list[tuple[str, SearchConfig]] = []
    for seed in (0, 1):
        for precision in ("tf32", "bf16", "float32"):
            config = SearchConfig(seed=seed, precision=precision)
            runs.append((f"fast {precision} seed {seed}", config))
    runs.append(("fast tf32 seed 0 again", SearchConfig()))
    runs.append(("plain tf32 seed 0", SearchConfig(fast=False)))
    masses = {}
    for name, config in runs:
        began = time.monotonic()
        result = fasteraa.search(images or None, config, device="cuda")
        print(f"\n{name}: {time.monotonic() - began:.1f} s, loop {result.epochs[-1].seconds:.1f} s")
        for row in result.epochs[::4] + result.epochs[-1:]:
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
                return augment(policy, batch, generator)

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
        for row in OPS.values():
            choice = Choice(row.name, 1.0, (0.0, 1.0) if row.span else None, sign="random" if row.signed else None)
            alone = Policy((SubPolicy(((choice,),)),))
            _, whole = per_call(lambda alone=alone, batch=batch: augment(alone, batch, generator), 50)
            print(f"  {row.name:15s} one stage {whole:7.1f} us", flush=True)


INSIDE = {"profile": profile, "compare": compare, "applied": applied}

if __name__ == "__main__":
    main()
