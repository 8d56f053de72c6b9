"""A policy inside a DALI pipeline, by DALI's own operators. No GPU is needed: this is its CPU backend.

python examples/dali_pipeline.py [policy.json]
"""

import sys

from nvidia.dali import fn, pipeline_def
from nvidia.dali.auto_aug import auto_augment

import fasteraa
from fasteraa.data import load


def main(policy="trivialaugment-wide", count=20):
    images = list(load(subset=count).images.permute(0, 2, 3, 1).contiguous().numpy())  # uint8 RGB (H, W, C)
    found = fasteraa.load(policy).to_dali()

    @pipeline_def(batch_size=count, num_threads=1, device_id=None, enable_conditionals=True, seed=0)
    def pipeline():
        pictures = fn.external_source(source=lambda: images, layout="HWC")  # yours: fn.decoders.image(...)
        return auto_augment.apply_auto_augment(found, pictures)

    made = pipeline()
    made.build()
    (out,) = made.run()
    return images, [out.at(index) for index in range(count)]


if __name__ == "__main__":
    main(*sys.argv[1:])
