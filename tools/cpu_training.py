"""What an epoch of training costs one core, by precision and by how many images are augmented at once.

    python3 tools/cpu_training.py

Processor time, the fastest of five epochs, small network on the embedded sample; other work on the machine matters
little to that.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from fasteraa.data import load
from fasteraa.train import device_batches as feed
from fasteraa.comparison.compare import choose_recipe
from fasteraa.train.trainer import Training
from fasteraa.policy.named import named

WAYS = (("float32", 0), ("float32", feed._AT_ONCE["cpu"]), ("bfloat16", feed._AT_ONCE["cpu"]))


def main() -> None:
    torch.set_num_threads(1)
    for images, size in ((300, 28), (1000, 28), (200, 64)):
        data = load(None, subset=images, size=size)
        recipe = choose_recipe(data, "cpu", "small")
        for policy in ("none", "general"):
            costs = []
            for precision, at_once in WAYS:
                feed._AT_ONCE = {"cpu": at_once}
                training = Training(data, named(policy), replace(recipe, precision=precision), 0, torch.device("cpu"))
                costs.append(min(epoch_seconds(training, number) for number in range(5)))
            told = ", ".join(f"{1000 * cost:.0f}" for cost in costs)
            print(f"{images} images at {size} px, {policy}: {told} ms, ratio {costs[0] / costs[-1]:.2f}")


def epoch_seconds(training: Training, number: int) -> float:
    began = time.process_time()
    for images, labels in training.feed.epoch(number):
        training.step(images, labels)
    return time.process_time() - began


if __name__ == "__main__":
    main()
