"""Which operations help, and how much of them? Policies drawn at random, one short training each, many sets of images.

    PYTHONPATH=src python3 tools/designs.py train OUT NAME=SOURCE ... [--designs 54] [--no-flip NAME,NAME] [--minutes 5]
    PYTHONPATH=src python3 tools/designs.py read OUT

A design is a set of operations (each is in it half of the time), how many of them an image meets, and how far warps and
colours go. Each set of images has designs of its own, the same ones every time. `train` measures them, and a few
policies that people use, on the source's held-out images and writes OUT/NAME.json; sources should hold out images that
no comparison is tested on. `read` fits a line to each set: by how many % the error changes when images meet an
operation once, the errors of a set scaled to the same spread. The means are `fasteraa.policy.named.EFFECTS`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

WARPS = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
PLAIN = (
    "none", "trivialaugment-wide", "autoaugment-cifar10", "randaugment(2,14)", "randaugment(3,14)",
)  # fmt: skip
DOSES = (1.0, 2.0, 3.0)
WARPED = (0.35, 0.7, 1.0)
COLOURED = (0.6, 1.0)
LEAST_EPOCHS, LEAST_STEPS = 60, 1500  # of a training
MANY_IMAGES = 2_000
RIDGE = 0.5  # a little pull to zero
SPREAD = 6.0  # of the errors of a set, in %: digits would outweigh all others


@dataclass(frozen=True)
class Design:
    ops: tuple[str, ...]
    dose: float  # operations that an image meets, in the mean
    warps: float  # the largest magnitude of warps
    others: float  # and of the others


def operations() -> list[str]:
    """All but the flip, which the baseline has."""
    from fasteraa.ops import OPS

    return [name for name in OPS if name != "flip"]


def draw(rng: Random) -> Design:
    ops: tuple[str, ...] = ()
    while len(ops) < 4:
        ops = tuple(op for op in operations() if rng.random() < 0.5)
    return Design(ops, rng.choice(DOSES), rng.choice(WARPED), rng.choice(COLOURED))


def policy_of(design: Design):
    """One stage more than what an image meets, each of them at work as often as that needs."""
    from fasteraa.ops import OPS
    from fasteraa.policy import Choice, Policy, SubPolicy

    stages = round(design.dose) + 1
    probability = design.dose / stages

    def choice(op: str) -> Choice:
        most = design.warps if op in WARPS else design.others
        return Choice(op, probability, (0.0, most) if OPS[op].span else None)

    return Policy((SubPolicy((tuple(map(choice, design.ops)),) * stages),), "design")


def train(given: argparse.Namespace) -> None:
    from fasteraa.train.split import open_arena
    from fasteraa.comparison.compare import Cell, read_cell, run_cells
    from fasteraa.train.recipe import TrainRecipe
    from fasteraa.policy import Policy

    until = time.time() + 60 * given.minutes
    for pair in given.sources:
        name, _, source = pair.partition("=")
        arena = open_arena(source, given.out / name, size=given.size)
        batch = 128 if len(arena.data) >= MANY_IMAGES else 64
        epochs = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / max(len(arena.data) // batch, 1)))
        recipe = TrainRecipe(network=given.network, epochs=epochs, batch_size=batch, learning_rate=0.1 * batch / 128)
        recipe = replace(recipe, weight_decay=5e-4, cutout=0, flip=name not in given.no_flip.split(","))
        plain = {label: Policy.named(label) for label in PLAIN}
        plain["uniform, 2 passes"] = Policy.named("uniform").with_strength(2)
        cells = [Cell(label, policy, recipe, given.seed) for label, policy in plain.items()]
        rng = Random(f"{name} {given.seed}")
        designs = {f"design {number}": draw(rng) for number in range(given.designs)}
        cells += [Cell(label, policy_of(design), recipe, given.seed) for label, design in designs.items()]
        began = time.time()
        run_cells(arena, cells, jobs=given.jobs, say=lambda text: None, fuse=False, until=until)
        rows = []
        for cell in cells:
            record = read_cell(arena, cell)
            if record is not None and record.get("error") is not None:
                design = designs.get(cell.label)
                rows.append(
                    {"label": cell.label, "error": round(record["error"], 3)} | (design.__dict__ if design else {})
                )
        table = {
            "set": name,
            "images": len(arena.data),
            "held_out": len(arena.held_out),
            "epochs": epochs,
            "batch": batch,
        }
        (given.out / f"{name}.json").write_text(json.dumps(table | {"runs": rows}, indent=1) + "\n")
        best = sorted(rows, key=lambda row: row["error"])
        print(f"{name}: {len(rows)} of {len(cells)} in {time.time() - began:.0f} s;", end=" ")
        print(", ".join(f"{row['label']} {row['error']}" for row in best if "ops" not in row), end="; designs ")
        print(*(row["error"] for row in best if "ops" in row), flush=True)


def read(given: argparse.Namespace) -> None:
    """What operations do on each set; where there are trainings on folds, what they foretell."""
    from fasteraa.methods.op_effects import operations_to_test

    tables = [json.loads(file.read_text()) for file in sorted(given.out.glob("*.json")) if "runs" in file.read_text()]
    names = operations_to_test(None)
    labels = [*names, "operations beyond two", "the square of that", "warps that go far", "others that go far"]
    found = {}
    for table in tables:
        drawn = [row for row in table["runs"] if "ops" in row]
        x = np.array([features(row, names) for row in drawn])
        y = np.array([math.log(row["error"]) for row in drawn])
        x, y = x - x.mean(0), y - y.mean()
        found[table["set"]] = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y * SPREAD / y.std())
    print("| | mean | sd | " + " | ".join(found) + " |\n|" + "---|" * (len(found) + 3))
    effects = np.array(list(found.values()))
    for column in np.argsort(effects.mean(0)):
        each = " | ".join(f"{value:+.1f}" for value in effects[:, column])
        print(f"| {labels[column]} | {effects[:, column].mean():+.1f} | {effects[:, column].std():.1f} | {each} |")
    for file in sorted((given.out / "folds").glob("*.json")):
        rows = json.loads(file.read_text())
        folds = [row["fold"] for row in rows]
        truth = within([row["others_error"] for row in rows], folds)
        foretold = {name: within([row["held_back"][name] for row in rows], folds) for name in ("error", "loss")}
        words = ", ".join(f"{name} {np.corrcoef(values, truth)[0, 1]:.2f}" for name, values in foretold.items())
        loss = within([row["others_loss"] for row in rows], folds)
        slopes = [each @ truth / (each @ each) for each in (foretold["loss"], loss)]
        print(f"{file.stem}: correlation with the error on other images: {words}; slope of the held-back loss", end=" ")
        print(f"{slopes[0]:.2f}, of the loss on those images {slopes[1]:.2f}")


def features(row: dict, names: list[str]) -> list[float]:
    """Those of an experiment, and how far the others than warps go, which an experiment does not vary."""
    from fasteraa.methods import op_effects as effects

    design = Design(tuple(row["ops"]), row["dose"], row["warps"], row["others"])
    others = row["dose"] * sum(op not in WARPS for op in row["ops"]) / len(row["ops"])
    return [*effects.features(policy_of(design), names), 3 * math.sqrt(others) * (row["others"] - 0.8)]


def within(values: list[float], folds: list[int]) -> np.ndarray:
    """Logarithms, less the mean of each fold."""
    logs, of = np.log(np.array(values)), np.array(folds)
    return logs - np.array([logs[of == fold].mean() for fold in folds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "read"))
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", nargs="*", metavar="NAME=SOURCE")
    parser.add_argument("--network", default="wrn-16-2")
    parser.add_argument("--designs", type=int, default=54)
    parser.add_argument("--size", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=18)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--no-flip", default="", metavar="NAME,...")
    given = parser.parse_args()
    train(given) if given.what == "train" else read(given)


if __name__ == "__main__":
    main()
