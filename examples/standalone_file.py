"""A policy as one Python file that needs Pillow alone: for code that must not depend on fasteraa or torch.

python examples/standalone_file.py [policy.json]
"""

import random
import runpy
import sys
import tempfile
from pathlib import Path

import fasteraa
from fasteraa.data import load
from fasteraa.export import write
from fasteraa.images import to_pillow


def main(policy="trivialaugment-wide", count=10):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.py"
        write(fasteraa.load(policy), "python", path)  # or: fasteraa export policy.json --to python --out found.py
        Augment = runpy.run_path(str(path))["Augment"]  # in your code: from found import Augment
    augment = Augment(generator=random.Random(0))  # without one, Python's own `random`
    pictures = [to_pillow(image) for image in load(subset=count).images]
    return pictures, [augment(picture) for picture in pictures]


if __name__ == "__main__":
    main(*sys.argv[1:])
