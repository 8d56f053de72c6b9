"""Do policies seem too good on the images that they were made with?

    python3 tools/flattered.py IMAGES.npz OUT --epochs 100 [--no-flip]

The experiment of a calibration is done on the training images, on three folds. Then the weighted policies race on each
fold, those made of all trainings and those made of the trainings on the other folds, and are trained on all images and
measured on the test images. Losses are told as % above that of `general`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from fasteraa.data import load
from fasteraa.train.split import Arena
from fasteraa.selection.race import race_recipe
from fasteraa.selection.candidates import weighted_candidates
from fasteraa.comparison.compare import Cell, read_cell, run_cells, start_workers
from fasteraa.methods.op_effects import operations_to_test
from fasteraa.methods.experiment import cells_of_experiment, read_experiment
from fasteraa.policy.policy import Policy
from fasteraa.policy.named import named

FIXED = ("general", "trivialaugment-wide", "none")
TRAININGS, JOBS = 54, 2
RACED, TESTED = (50, 51), (60, 61, 62)  # seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help="x_train, y_train, x_test and y_test in an .npz file")
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--no-flip", action="store_true")
    given = parser.parse_args()
    data, test = load(given.images), load(given.images, split="test")
    recipe = replace(race_recipe(data, "cpu"), cutout=0, epochs=given.epochs, flip=not given.no_flip)
    (given.out / "cells").mkdir(parents=True, exist_ok=True)
    folds = [
        Arena(rest, part, f"fold {number}", given.out, "cpu")
        for number, (rest, part) in enumerate(data.folds(3, seed=0), 1)
    ]
    whole = Arena(data, test, "test", given.out, "cpu")
    with start_workers([*folds, whole], JOBS) as workers:
        workers.ready()

        def losses(arena: Arena, policies: dict[str, Policy], seeds: tuple[int, ...]) -> dict[str, list[float]]:
            cells = {
                (label, seed): Cell(label, policy, recipe, seed) for label, policy in policies.items() for seed in seeds
            }
            run_cells(arena, list(cells.values()), JOBS, print, workers=workers)
            found: dict[str, list[float]] = defaultdict(list)
            for (label, _), cell in cells.items():
                record = read_cell(arena, cell)
                assert record is not None
                found[label].append(100 * math.log(record["held_out_loss"]))
            return found

        ops = operations_to_test(None)
        runs = cells_of_experiment(folds, ops, recipe, TRAININGS, seed=0)
        for fold in folds:
            run_cells(fold, [cell for arena, cell in runs if arena is fold], JOBS, print, workers=workers)
        read = read_experiment(runs, ops)
        assert read is not None, "most trainings diverged"
        made, fixed = weighted_candidates(*read), {label: named(label) for label in FIXED}
        raced: dict[str, list[float]] = defaultdict(list)
        for fold in folds:
            of_all = {f"{each.label}, of all folds": each.policy for each in made}
            of_others = {f"{each.label}, of the others": each.on_folds[fold.held_out_from] for each in made}
            for label, found in losses(fold, of_all | of_others | fixed, RACED).items():
                raced[label] += found
        tested = losses(whole, {each.label: each.policy for each in made} | fixed, TESTED)
    for where, table in (("race", raced), ("test", tested)):
        means = {label: float(np.mean(found)) for label, found in table.items()}
        print(json.dumps({where: {label: round(mean - means["general"], 1) for label, mean in means.items()}}))


if __name__ == "__main__":
    main()
