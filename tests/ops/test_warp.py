"""What the tests of every operation do not reach."""

from dataclasses import replace

import pytest
import torch

from fasteraa.ops import OPS, warp
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


def shift_matrix(*shifts):
    return torch.tensor([[1.0, 0, x, 0, 1, y] for x, y in shifts], dtype=torch.float64)


def test_shifted_images_are_copied_and_not_looked_up(monkeypatch):
    image = torch.randint(0, 256, (10, 3, 5, 7), dtype=torch.uint8)
    ends = [(6, 0), (7, -4), (-7, 5), (-6, 4), (0, -5), (1e300, 0.2), (0, -1e12)]
    matrix = shift_matrix((0, 0), (2.4, -1), (-2.6, 3.5), *ends)
    fill = (9, 200, 30)
    expected = nearest(image[:8], matrix[:8], fill, False)  # look-ups hold no larger numbers
    monkeypatch.setattr(warp, "source_index", None)
    moved = nearest(image, matrix, fill, False, shifted=True)
    assert torch.equal(moved[:8], expected)
    assert (moved[8:] == torch.tensor(fill, dtype=torch.uint8).view(3, 1, 1)).all()
    apart = image.transpose(2, 3).contiguous().transpose(2, 3)  # another order in memory
    assert torch.equal(nearest(apart, matrix, fill, False, shifted=True), moved)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_whose_rounding_parts_a_row_is_looked_up(axis):
    """An ulp below half a pixel: from some pixel on the sum is rounded up to the next one."""
    shift = [[0.0, 0.0], [0.0, 0.0]]
    shift[1][axis] = 0.5 - 2.0**-52
    image = torch.randint(0, 256, (2, 1, 40, 40), dtype=torch.uint8)
    expected = nearest(image, shift_matrix(*shift), 7, False)
    first, last = (expected[1, 0], image[1, 0]) if axis else (expected[1, 0].T, image[1, 0].T)
    assert torch.equal(first[0], last[0])
    assert torch.equal(first[38], last[39])
    assert torch.equal(nearest(image, shift_matrix(*shift), 7, False, shifted=True), expected)


def test_which_rows_shift():
    assert [row.name for row in OPS.values() if row.geometric and warp.shifts(row)] == ["translate_x", "translate_y"]
    for other in ((2, 0, 0, 0, 1, 0), (1, 1, 0, 0, 1, 0), (1, 0, 0, 1, 1, 0), (1, 0, 0, 0, 2, 0)):
        assert not warp.shifts(replace(OPS["flip"], rule=lambda v, width, height, other=other: other))
