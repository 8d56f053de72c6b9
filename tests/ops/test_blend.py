"""What parity with Pillow sees of the blends only by chance."""

import torch

from fasteraa.ops.blend import smooth


def test_smooth_rounds_every_sum_as_pillow_does():
    """The filter's sum runs from 0 to 13 * 255; the level is the nearest to a 13th of it."""
    total = torch.arange(13 * 255 + 1)
    centre = (total - 8 * 255).clamp(min=0).add(4) // 5
    rest = total - 5 * centre
    around = [(rest - 255 * k).clamp(0, 255) for k in range(8)]
    image = torch.stack([*around[:4], centre, *around[4:]], 1).view(-1, 1, 3, 3).float()
    assert image.max() == 255
    assert (image.sum((1, 2, 3)) + 4 * image[:, 0, 1, 1] == total).all()
    assert (smooth(image, whole=True)[:, 0, 1, 1] == (2 * total + 13) // 26).all()
