"""Summaries and preview sheets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fasteraa.methods import Candidate
from fasteraa.methods.op_effects import Effects
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.report import preview
from fasteraa.report.outputs import result_dict
from fasteraa.report.preview import augmented, draw_sheet, shown_size
from fasteraa.report.summary import changes, mass, summarise
from fasteraa.selection.ranking import Trial
from fasteraa.selection.result import RaceResult, Result
from fasteraa.train.recipe import TrainRecipe


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


def searched(start, end, **more):
    """A gradient search that was not raced."""
    return Result(end, (Candidate("faster-aa", end), Candidate("faster-aa-start", start)), None, **more)


def test_changes_and_words():
    start, found = policy(0.8, 0.2), policy(0.1, 0.9)
    assert [row[0] for row in changes(start, found)] == ["rotate", "flip", "invert"]
    text = summarise(searched(start, found))
    assert text.startswith("Use faster-aa: it is what its method proposes, and was not raced.")
    assert "gained:     rotate (5.6% to 25.3%)" in text
    assert "suppressed: invert (7.5% to 0.9%)" in text
    assert "faster-aa: About " in text
    assert "sub-polic" not in text  # `fasteraa show` prints the policy in full


def test_what_else_is_known_without_a_race():
    details = {"faster-aa": {"finished": False, "done": "2 of 20 epochs"}, "mine": {"finished": False}}
    text = summarise(searched(policy(0.8, 0.2), policy(0.8, 0.2), note="There was no race: why.", details=details))
    first = text.split("\n\n")[0]
    assert "There was no race: why. faster-aa ended early, after 2 of 20 epochs and mine ended early (--resume" in first


def raced(chosen="uniform"):
    """Three candidates, of which one was eliminated after the first training and one failed."""
    candidates = {name: Candidate(name, Policy.named(name)) for name in ("none", "uniform", "general", "uniform-x2")}
    trials = {
        "uniform": Trial(candidates["uniform"], (20.0, 22.0), (1.0, 1.1), (0.5, 0.7), 200),
        "none": Trial(candidates["none"], (30.0, 31.0), (0.5, 0.6), (0.9, 0.8), 200),
        "general": Trial(candidates["general"], (40.0,), (1.2,), (1.25,), 100),
        "uniform-x2": Trial(candidates["uniform-x2"], (90.0,), (), (2.3,), 100, failed="the loss was not finite"),
    }
    first = trials.pop(chosen)
    race = RaceResult(first, (first, *trials.values()), 3, TrainRecipe(network="small", epochs=40), 10.0, 300, 300)
    effects = Effects(
        {"invert": 12.3, "flip": 1.0, "rotate": -3.0}, {"invert": 2.0, "flip": 1.5, "rotate": 1.2}, 1.0, 54
    )
    return Result(first.policy, tuple(candidates.values()), None, race=race, effects=effects)


def test_the_summary_of_a_race():
    answer, words, table, operations = summarise(raced()).split("\n\n")
    assert answer.startswith("Use uniform: 21.0% held-out error against 30.5% without augmentation (2 trainings of 40")
    assert words == "uniform: About one medium operation an image, drawn evenly from 17 kinds."
    bar, full = "\u2588" * 6, "\u2588" * 8  # the widest is that of 90%, over 24 columns
    assert [line.split() for line in table.splitlines()] == [
        ["error", "%", "loss", "trainings"],
        ["uniform", bar, "21.0", "0.600", "2"],
        ["none", full, "30.5", "0.850", "2"],
        ["general", "eliminated", "40.0", "1.250", "1"],
        ["uniform-x2", "failed", "90.0", "2.300", "1"],
    ]
    assert operations.splitlines()[0].endswith("± two standard errors, from 54 trainings")
    assert operations.splitlines()[1:] == [
        "  help     rotate -3 ± 2",
        "  harm     invert +12 ± 4",
        "  unclear  flip",
    ]


def test_the_summary_names_policies_that_are_level_with_the_chosen_one():
    result = raced()
    trials = [
        replace(trial, errors=(21.0, 23.0), losses=(1.0, 1.0), scores=(0.55, 0.72), images=200)
        if trial.label == "general"
        else trial
        for trial in result.race.trials
    ]
    _, _, table, _ = summarise(replace(result, race=replace(result.race, trials=tuple(trials)))).split("\n\n")
    assert table.splitlines()[-1] == ("More trainings would separate general from uniform (a larger --race-minutes).")


def test_the_summary_says_when_it_hardly_matters_which_of_them_is_taken():
    result = raced()
    scores = {"uniform": (0.5, 0.7), "general": (0.505, 0.707), "none": (0.9, 1.26)}
    trials = [
        replace(trial, errors=(21.0, 23.0), scores=scores[trial.label], images=100_000)
        for trial in result.race.trials
        if trial.label in scores
    ]
    *_, table, _ = summarise(replace(result, race=replace(result.race, trials=tuple(trials)))).split("\n\n")
    assert table.splitlines()[-1] == "general did about as well: no other choice is expected to gain 2% of the loss."


def test_operations_of_a_summary_fit_a_terminal_and_say_when_nothing_is_clear():
    """Of seventeen effects with their errors nobody reads three lines to learn that none is known."""
    names = [f"operation_{number}" for number in range(17)]
    result = raced()
    vague = Effects(dict.fromkeys(names, 3.0), dict.fromkeys(names, 4.5), 1.0, 18)
    said = summarise(replace(result, effects=vague)).split("\n\n")[-1]
    assert said == "No operation clearly helps or harms: 18 trainings show effects on the loss to ± 9 % at best."
    clear = replace(vague, of=dict.fromkeys(names, -20.0))
    lines = summarise(replace(result, effects=clear)).split("\n\n")[-1].splitlines()[1:]
    assert len(lines) > 3
    assert all(len(line) <= 100 for line in lines)
    assert [line[:11] for line in lines] == ["  help     ", *[" " * 11] * (len(lines) - 1)]


def test_the_summary_ends_with_files_and_the_next_command(tmp_path):
    data = SimpleNamespace(masks=None)
    files = summarise(replace(raced(), folder=tmp_path, data=data)).split("\n\n")[-1].splitlines()
    assert files == [
        f"policy   {tmp_path / 'policy.json'}  {Policy.named('uniform').hash[:19]}",
        f"picture  {tmp_path / 'preview.png'}",
        f"python   fasteraa.load({str(tmp_path)!r}).transform(pool=train_images)   # pool: images to mix in, a list or "
        "uint8 (N, 3, H, W)",
        f"details  fasteraa show {tmp_path}",
        f"next     fasteraa report {tmp_path}",
    ]


def test_the_result_as_plain_values():
    """What the page and others read."""
    found = result_dict(raced())
    assert (found["chosen"], found["policy"]) == ("uniform", Policy.named("uniform").hash)
    assert found["recommendation"] == summarise(raced()).split("\n\n")[0]
    rows = {row["label"]: row for row in found["table"]}
    assert rows["uniform"]["against_none"]["mean"] == -9.5
    assert rows["none"]["against_none"] is None
    assert rows["general"]["against_none"] == {"mean": 10.0, "half": None, "n": 1, "p": None}  # JSON has no infinity
    assert [rows[name]["eliminated"] for name in rows] == [False, False, True, True]
    assert rows["uniform-x2"]["failed"] == "the loss was not finite"
    assert found["effects"]["of"] == {"invert": [12.3, 2.0], "flip": [1.0, 1.5], "rotate": [-3.0, 1.2]}
    assert found["candidates"] == {
        name: Policy.named(name).hash for name in ("none", "uniform", "general", "uniform-x2")
    }


def test_the_sheet_shows_originals_and_augmented_images():
    images = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8)
    inverted = Policy((SubPolicy(((Choice("invert"),),)), SubPolicy(((Choice("flip"),),), 0.5)), "both")
    sheet = np.asarray(draw_sheet(inverted, images, columns=3)).transpose(2, 0, 1)
    larger = lambda image: image.numpy().repeat(3, 1).repeat(3, 2)  # noqa: E731  pixels stay squares
    tops = [
        place
        for place in range(sheet.shape[1] - 192)
        if (sheet[:, place:, 14:][:, :192, :192] == larger(images[0])).all()
    ]
    assert len(tops) == 1
    for column in range(3):
        strip = sheet[:, :, 14 + column * 200 :][:, :, :192]
        expected = (images[column], 255 - images[column], images[column].flip(2))
        places = [place_of(strip, larger(image)) for image in expected]
        assert places == sorted(places)
    assert (sheet.min(axis=(0, 1)) == 255).mean() < 0.2  # no part of it is white


def place_of(strip, tile):
    """Where a tile lies in a column of the sheet."""
    (place,) = [
        top for top in range(strip.shape[1] - tile.shape[1]) if (strip[:, top : top + tile.shape[1]] == tile).all()
    ]
    return place


def test_under_each_image_is_what_was_done_to_it():
    """In the words of its draw; each is drawn for itself."""
    images = torch.full((30, 3, 16, 16), 100, dtype=torch.uint8)
    policy = Policy((SubPolicy(((Choice("invert", 0.5),), (Choice("brightness", 1.0, 1.0, sign="-"),))),))
    out, words = augmented(policy, images, 30, torch.Generator().manual_seed(0))
    assert {tuple(each) for each in words} == {("brightness x0.10",), ("invert", "brightness x0.10")}
    for image, each in zip(out, words, strict=True):
        assert image.unique().tolist() == [15 if "invert" in each else 10]
    shifted = augmented(
        Policy(
            (
                SubPolicy(
                    ((Choice("translate_x", 1.0, 0.5),),),
                ),
            )
        ),
        images,
        1,
        torch.Generator(),
    )[1]
    assert shifted in ([["translate_x 22%"]], [["translate_x -22%"]])


@pytest.mark.parametrize(
    ("size", "shown"), [((28, 28), (168, 168)), ((32, 32), (160, 160)), ((300, 200), (168, 112)), ((96, 48), (192, 96))]
)
def test_images_keep_their_shape_on_a_sheet(size, shown):
    assert shown_size(*size) == shown


def test_less_than_a_third_of_a_sheet_is_white():
    images = torch.zeros(6, 3, 28, 28, dtype=torch.uint8)
    policy = Policy((SubPolicy(((Choice("rotate", 1.0, 0.5),), (Choice("shear_x", 1.0, 0.5),))),) * 10)
    assert (np.asarray(draw_sheet(policy, images)) > 245).all(-1).mean() < 1 / 3


def test_a_policy_that_chooses_among_operations_has_several_rows(monkeypatch):
    """Six of one sub-policy, three of each of two, another draw in each."""
    drawn = []
    monkeypatch.setattr(preview, "augmented", lambda policy, *rest: drawn.append(policy) or augmented(policy, *rest))
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    wide = SubPolicy(((Choice("invert"), Choice("flip")),))
    for subs, rows in (((wide,), 6), ((wide, wide), 6), ((wide,) * 4, 4)):
        drawn.clear()
        draw_sheet(Policy(subs), images)
        assert len(drawn) == rows


def test_sheets_of_every_kind():
    small, large = torch.zeros(2, 3, 9, 5, dtype=torch.uint8), torch.zeros(2, 3, 300, 200, dtype=torch.uint8)
    for images in (small, large):
        for name in ("none", "uniform", "trivialaugment-wide", "random"):
            assert draw_sheet(Policy.named(name), images).height > 60
    assert (
        draw_sheet(Policy.named("random(40,1)"), small).height
        < 1.5 * draw_sheet(Policy.named("random(10,1)"), small).height
    )
