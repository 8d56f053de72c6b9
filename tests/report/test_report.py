"""Summaries and preview sheets."""

import numpy as np
import pytest
import torch

from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.report.preview import draw_sheet
from fasteraa.report.summary import changes, mass, summarise


def policy(invert, rotate):
    stage = (Choice("invert", invert, weight=1.0), Choice("rotate", rotate, 0.5, 3.0))
    return Policy((SubPolicy((stage, (Choice("flip", 1.0),)), 3.0), SubPolicy(((Choice("flip", 0.5),),), 1.0)))


def test_mass_by_hand():
    """Three quarters of the images take the first sub-policy; a stage counts a half."""
    found = mass(policy(0.8, 0.4))
    assert found["invert"] == pytest.approx(0.75 * 0.25 * 0.8 / 2)
    assert found["rotate"] == pytest.approx(0.75 * 0.75 * 0.4 / 2)
    assert found["flip"] == pytest.approx((0.75 * 1.0 + 0.25 * 0.5) / 2)
    assert mass(Policy.named("none")) == {}


def test_changes_and_words():
    start, found = policy(0.8, 0.2), policy(0.1, 0.9)
    assert [row[0] for row in changes(start, found)] == ["rotate", "flip", "invert"]
    text = summarise(start, found)
    assert "gained:     rotate (5.6% to 25.3%)" in text
    assert "suppressed: invert (7.5% to 0.9%)" in text
    assert "1. (75%)" in text


def test_the_sheet_shows_originals_and_augmented_images():
    images = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8)
    inverted = Policy((SubPolicy(((Choice("invert"),),)), SubPolicy(((Choice("flip"),),), 0.5)), "both")
    sheet = np.asarray(draw_sheet(inverted, images, columns=3)).transpose(2, 0, 1)
    top, left, step = 12 + 15 + 4, 12, 64 + 4
    tile = lambda row, column: sheet[:, top + row * step :, left + column * step :][:, :64, :64]  # noqa: E731
    for column in range(3):
        assert (tile(0, column) == images[column].numpy()).all()
        assert (tile(1, column) == 255 - images[column].numpy()).all()
        assert (tile(2, column) == images[column].flip(2).numpy()).all()
    assert sheet.shape[1] == 2 * 12 + 15 + 3 * step


def test_a_policy_that_chooses_among_operations_has_several_rows():
    """Six of one sub-policy, three of each of two, another draw in each."""
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    wide = SubPolicy(((Choice("invert"), Choice("flip")),))
    for subs, rows in (((wide,), 1 + 6), ((wide, wide), 1 + 6), ((wide,) * 4, 1 + 4)):
        sheet = np.asarray(draw_sheet(Policy(subs), images))
        assert sheet.shape[0] == 2 * 12 + 15 + rows * (64 + 4)
    sheet = np.asarray(draw_sheet(Policy((wide,)), images, columns=4)).transpose(2, 0, 1)
    top, step = 12 + 15 + 4, 64 + 4
    shown = {sheet[:, top + row * step :, 12 : 12 + 4 * step][:, :64].tobytes() for row in range(1, 7)}
    assert len(shown) > 1


def test_sheets_of_every_kind():
    small, large = torch.zeros(2, 3, 9, 5, dtype=torch.uint8), torch.zeros(2, 3, 300, 200, dtype=torch.uint8)
    for images in (small, large):
        for name in ("none", "uniform", "trivialaugment-wide", "random"):
            assert draw_sheet(Policy.named(name), images).height > 60
    assert (
        draw_sheet(Policy.named("random(40,1)"), small).height == draw_sheet(Policy.named("random(20,1)"), small).height
    )
