"""What the tests of every operation do not reach."""

import torch

from fasteraa.ops.warp import nearest


def test_a_batch_of_masks_gets_a_number_from_outside_and_each_its_own_shift():
    masks = torch.arange(3 * 2 * 4 * 5).view(3, 2, 4, 5)
    shifts = torch.tensor([[1.0, 0, shift, 0, 1, 0] for shift in (0, 2, -1)], dtype=torch.float64)
    moved = nearest(masks, shifts, -7, False)
    assert torch.equal(moved[0], masks[0])
    assert torch.equal(moved[1, :, :, :3], masks[1, :, :, 2:])
    assert (moved[1, :, :, 3:] == -7).all()
    assert torch.equal(moved[2, :, :, 1:], masks[2, :, :, :4])
    assert (moved[2, :, :, :1] == -7).all()
