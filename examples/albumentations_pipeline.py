"""A policy in an albumentations pipeline, with a mask and boxes, and as a file that loads without fasteraa.

python examples/albumentations_pipeline.py [policy.json]
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for news otherwise

import albumentations as A
import numpy as np

import fasteraa
from fasteraa.data import load
from fasteraa.export import report, write


def main(policy="trivialaugment-wide", count=10):
    policy = fasteraa.load(policy)
    pipeline = A.Compose(
        [
            A.HorizontalFlip(p=0.5),
            policy.to_albumentations(),  # on uint8, before Normalize
            A.Normalize(),
        ],
        bbox_params=A.BboxParams("pascal_voc", label_fields=["names"]),
    )
    outs = []
    for image in load(subset=count).images.permute(0, 2, 3, 1).numpy():
        mask = (image[..., 0] > 0).astype(np.uint8)
        outs.append(pipeline(image=image, mask=mask, bboxes=[[4, 4, 24, 24]], names=["thing"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        print(*report(policy, "albumentations", native=True), sep="\n")
        write(policy, "albumentations", path, native=True)  # albumentations' own transforms: approximate
        native = A.Compose([A.load(path), A.Normalize()])
        outs.append(native(image=image))
    return outs


if __name__ == "__main__":
    main(*sys.argv[1:])
