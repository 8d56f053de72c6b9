"""A policy on whole batches, on a GPU if there is one: as a function, and inside a kornia container.

python examples/gpu_batch.py [policy.json]
"""

import sys
import time

import kornia.augmentation as K
import torch

import fasteraa
from fasteraa.data import load


def main(policy="trivialaugment-wide", count=500):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = fasteraa.load(policy)
    images = load(subset=count).images.to(device)  # uint8 (B, 3, H, W)

    start = time.perf_counter()
    augmented = policy(images)  # a draw of its own for every image
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"{count / (time.perf_counter() - start):.0f} images/s on {device} (first call)")

    # kornia's containers take float images in [0, 1]; masks, boxes and points go with them
    pipeline = K.AugmentationSequential(policy.to_kornia(), K.RandomErasing(p=0.2), data_keys=["input", "mask"])
    floats, masks = pipeline(images / 255, (images[:, :1] > 0).float())
    return augmented, floats, masks


if __name__ == "__main__":
    main(*sys.argv[1:])
