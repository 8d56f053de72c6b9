"""What should a race have among its candidates? Many policies, one short training each, several sets of images.

    PYTHONPATH=src python3 tools/candidates.py OUT NAME=SOURCE ... [--epochs 100] [--batch-size 128] [--seed 0]

SOURCE is whatever `fasteraa compare` takes. Each policy is trained once on all training images and measured on all test
images; OUT/NAME.json holds the errors, OUT/NAME/cells the records. Trained without a cutout after the policy.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasteraa.train.split import Arena
    from fasteraa.policy import Choice, Policy

GEOMETRY = ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"]
COLOURS = [
    "solarize", "posterize", "invert", "contrast", "color", "brightness", "sharpness", "auto_contrast", "equalize",
]  # fmt: skip
OBJECTIVES = ("paper", "diverse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", nargs="+", metavar="NAME=SOURCE")
    parser.add_argument("--network", default="wrn-16-2")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=14)
    given = parser.parse_args()
    from fasteraa.train.split import open_arena
    from fasteraa.comparison.compare import Cell, read_cell, run_cells
    from fasteraa.train.recipe import TrainRecipe

    rate = 0.1 * given.batch_size / 128
    recipe = TrainRecipe(network=given.network, epochs=given.epochs, batch_size=given.batch_size, learning_rate=rate)
    recipe = replace(recipe, weight_decay=5e-4, cutout=0)
    for pair in given.sources:
        name, _, source = pair.partition("=")
        arena = open_arena(source, given.out / name, size=given.size)
        cells = [Cell(label, policy, recipe, given.seed) for label, policy in policies(arena, given.seed).items()]
        run_cells(arena, cells, jobs=given.jobs, say=lambda text: None, fuse=False)
        records = {cell.label: read_cell(arena, cell) for cell in cells}
        errors = {label: round(record["error"], 2) for label, record in records.items() if record is not None}
        (given.out / f"{name}.json").write_text(json.dumps(errors, indent=1) + "\n")
        print(f"{name}: {', '.join(f'{label} {error}' for label, error in sorted(errors.items(), key=lambda e: e[1]))}")


def policies(arena: Arena, seed: int) -> dict[str, Policy]:
    """What people use without a search, parts of it, and what searches find, each passed once and twice."""
    from fasteraa.policy import Policy
    from fasteraa.methods.config import SearchConfig
    from fasteraa.methods.faster_aa.run import search

    few = {"batch_size": 64} if len(arena.data) < 2_000 else {}
    plain = ("none", "cutout", "randaugment(2,9)", "randaugment(2,14)", "randaugment(3,14)", "trivialaugment-wide")
    names = [*plain, *(f"autoaugment-{kind}" for kind in ("cifar10", "svhn", "imagenet"))]
    found = {name: Policy.named(name) for name in names} | {"random": Policy.named("random", seed=seed)}
    parts = {"uniform": None, "geometry": GEOMETRY, "colours": COLOURS}
    once = {label: Policy.named("uniform", ops=ops) for label, ops in parts.items()}
    for objective in OBJECTIVES:
        once[objective] = search(arena.data, SearchConfig(seed=seed, objective=objective, **few)).policy
    holes = ("cutout", "sample_pairing")
    whole = Policy.named("uniform", ops=[op for op in once["uniform"].ops if op not in holes])
    once |= {"no holes": whole, "no holes, mild geometry": mild(whole, 0.4), "autoaugments": together(found)}
    found |= once | {f"{label}, 2 passes": policy.with_strength(2) for label, policy in once.items()}
    found["randaugment(2,14), mild geometry"] = mild(found["randaugment(2,14)"], 0.5)
    return found | {"uniform, 3 passes": once["uniform"].with_strength(3)}


def mild(policy: Policy, share: float) -> Policy:
    """Warps by at most that share of what they were."""

    def lessen(choice: Choice) -> Choice:
        if choice.op not in GEOMETRY:
            return choice
        low, high = (share * end for end in choice.range)
        return replace(choice, magnitude=low if low == high else (low, high))

    subs = [
        replace(sub, stages=tuple(tuple(map(lessen, stage)) for stage in sub.stages)) for sub in policy.sub_policies
    ]
    return replace(policy, sub_policies=tuple(subs))


def together(policies: dict[str, Policy]) -> Policy:
    """AutoAugment's three, each as often."""
    three = [policy for label, policy in policies.items() if label.startswith("autoaugment")]
    spans = {op: span for policy in three for op, span in policy.spans.items()}
    return replace(three[0], sub_policies=tuple(sub for each in three for sub in each.sub_policies), spans=spans)


if __name__ == "__main__":
    main()
