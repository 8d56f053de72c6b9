"""The constants that hold what did well on other data, and how they are made.

    python3 tools/defaults.py                                        # print them, from results/defaults and results/
    python3 tools/defaults.py OUT.json NAME=SOURCE ... [--no-flip NAME,...]      # measure operations on other images

- `policy.named.EFFECTS`: by how many % the error changes when images meet an operation once. Policies are drawn at
  random (each operation is in one half of the time), each is trained once, and a line is put through the errors of each
  set; the constants are means over the sets of results/defaults/operations.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fasteraa.methods.op_effects import features
from fasteraa.methods.space import operations_to_test
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import EFFECTS

RESULTS = Path(__file__).resolve().parent.parent / "results"
RIDGE, SPREAD = 0.5, 6.0  # a little pull to zero; of the errors of a set, in %: MNIST would outweigh all others
NETWORK, LEAST_EPOCHS, LEAST_STEPS, MANY_IMAGES = "wrn-16-2", 60, 1500, 2_000
Row = Mapping[str, Any]


# --- operations ------------------------------------------------------------------------------------------------------


def draw(rng: Random) -> dict[str, Any]:
    ops: list[str] = []
    while len(ops) < 4:
        ops = [op for op in operations_to_test(None) if rng.random() < 0.5]
    dose, warps, others = (rng.choice(values) for values in ((1.0, 2.0, 3.0), (0.35, 0.7, 1.0), (0.6, 1.0)))
    return {"ops": ops, "dose": dose, "warps": warps, "others": others}


def drawn_policy(row: Row) -> Policy:
    """One stage more than an image is to meet operations, each at work as often as that needs."""
    stages = round(row["dose"]) + 1

    def choice(op: str) -> Choice:
        most = row["warps"] if OPS[op].geometric else row["others"]
        return Choice(op, row["dose"] / stages, (0.0, most) if OPS[op].span else None)

    return Policy((SubPolicy((tuple(map(choice, row["ops"])),) * stages),), "drawn")


def effects() -> dict[str, dict[str, float]]:
    """Operation -> set -> by how many % the error changes when an image is augmented by it once."""
    tables, ops = json.loads((RESULTS / "defaults" / "operations.json").read_text()), operations_to_test(None)
    by_set = {}
    for name, table in tables.items():
        rows = [row for row in table["runs"] if "ops" in row]
        x = np.array([[*features(drawn_policy(row), ops), _far(row)] for row in rows])
        y = np.log([row["error"] for row in rows])
        x, y = x - x.mean(0), y - y.mean()
        by_set[name] = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y * SPREAD / y.std())
    return {op: {name: float(line[number]) for name, line in by_set.items()} for number, op in enumerate(ops)}


def _far(row: Row) -> float:
    """How far operations other than warps go."""
    others = row["dose"] * sum(not OPS[op].geometric for op in row["ops"]) / len(row["ops"])
    return float(3 * math.sqrt(others) * (row["others"] - 0.8))


def measure(out: Path, sources: list[str], without_flip: list[str], count: int, jobs: int | None) -> None:
    """Train with drawn policies, as results/defaults/operations.json was made. Hold out images that no test uses."""
    from fasteraa.train.job import TrainJob
    from fasteraa.train.recipe import TrainRecipe
    from fasteraa.train.run_cache import RunCache
    from fasteraa.train.runner import make_runner, run_jobs
    from fasteraa.train.split import open_split

    tables = json.loads(out.read_text()) if out.exists() else {}
    for name, source in (pair.split("=", 1) for pair in sources):
        split = open_split(source)
        batch = 128 if len(split.train) >= MANY_IMAGES else 64
        epochs = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / max(len(split.train) // batch, 1)))
        recipe = TrainRecipe(
            network=NETWORK, epochs=epochs, batch_size=batch, learning_rate=0.1 * batch / 128, weight_decay=5e-4,
            cutout=0, flip=name not in without_flip,
        )  # fmt: skip
        rng = Random(f"{name} 0")
        rows = [draw(rng) for _ in range(count)]
        planned = [TrainJob(f"drawn-{n}", drawn_policy(row), recipe, 0, split) for n, row in enumerate(rows)]
        with make_runner("local", RunCache(out.with_suffix("") / name).open(), jobs=jobs) as runner:
            outcomes = run_jobs(runner, planned, print)
        runs = [{"error": outcomes[job.key].error, **row} for job, row in zip(planned, rows, strict=True)]
        tables[name] = {"images": len(split.train), "held_out": len(split.held_out), "epochs": epochs, "batch": batch}
        tables[name]["runs"] = runs
        out.write_text(json.dumps(tables) + "\n")


def show() -> None:
    table = effects()
    print(f"operation         EFFECTS   mean     sd  {'  '.join(f'{name:>12}' for name in next(iter(table.values())))}")
    for op, by_set in sorted(table.items(), key=lambda row: EFFECTS[row[0]]):
        each = "  ".join(f"{effect:+12.1f}" for effect in by_set.values())
        values = list(by_set.values())
        print(f"{op:16} {EFFECTS[op]:+8.1f} {np.mean(values):+6.1f} {np.std(values):6.1f}  {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("sources", nargs="*", metavar="NAME=SOURCE")
    parser.add_argument("--no-flip", default="", metavar="NAME,...")
    parser.add_argument("--drawn", type=int, default=54)
    parser.add_argument("--jobs", type=int)
    given = parser.parse_args()
    if given.out is None:
        show()
    else:
        measure(given.out, given.sources, given.no_flip.split(","), given.drawn, given.jobs)


if __name__ == "__main__":
    main()
