"""What a training step costs when several runs share a GPU as branches of one graph.

PYTHONPATH=src python3 tools/side_by_side.py SOURCE [--network wrn-40-2] [--together 1,2,4,8] [--epochs 10]
"""

from __future__ import annotations

import argparse
import time

from fasteraa.data import load
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.trainer import Group, Training
from fasteraa.policy.named import named
from fasteraa.runtime.device import find_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--network", default="wrn-40-2")
    parser.add_argument("--together", default="1,2,4,8")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    data, device = load(given.source), find_device("auto")
    recipe, policy = TrainRecipe(network=given.network, epochs=given.epochs + 1), named("trivialaugment-wide")
    for count in map(int, given.together.split(",")):
        group = Group([Training(data, policy, recipe, seed, device) for seed in range(count)])
        group.record()
        group.one_epoch()  # warm
        began = time.perf_counter()
        for _ in range(given.epochs):
            group.one_epoch()  # waits for the device at its end
        step = 1e3 * (time.perf_counter() - began) / given.epochs / group.members[0].feed.steps
        told = f"{step:.2f} ms per step of all, {step / count:.2f} per run, setup {group.setup_seconds:.1f} s"
        print(f"{given.network} together {count}: {told}", flush=True)


if __name__ == "__main__":
    main()
