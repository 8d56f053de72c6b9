"""Foreign policies: Fast AutoAugment's semantics, PBA's distribution, and damaged files."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from fasteraa.errors import PolicyError
from fasteraa.ops import OPS, Pair, hard_pillow
from fasteraa.policy import Policy
from fasteraa.policy.importers import (
    _PBA_OPS,
    FAST_NAMES,
    _pba_choice,
    import_file,
    read_fast_autoaugment,
    read_foreign,
    read_pba,
)

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
LEVELS = [0.0, 0.05, 0.123456789, 0.25, 0.5, 0.61, 0.75, 0.99, 1.0]


def affine(*coefficients):
    return IMAGE.transform(IMAGE.size, Image.Transform.AFFINE, coefficients)


# what Fast AutoAugment does with a level, before its random mirroring
FAST = {
    "ShearX": lambda x: affine(1, 0.6 * x - 0.3, 0, 0, 1, 0),
    "ShearY": lambda x: affine(1, 0, 0, 0.6 * x - 0.3, 1, 0),
    "TranslateX": lambda x: affine(1, 0, (0.9 * x - 0.45) * 30, 0, 1, 0),
    "TranslateY": lambda x: affine(1, 0, 0, 0, 1, (0.9 * x - 0.45) * 40),
    "TranslateXAbs": lambda x: affine(1, 0, 10 * x, 0, 1, 0),
    "TranslateYAbs": lambda x: affine(1, 0, 0, 0, 1, 10 * x),
    "Rotate": lambda x: IMAGE.rotate(60 * x - 30),
    "AutoContrast": lambda x: ImageOps.autocontrast(IMAGE),
    "Invert": lambda x: ImageOps.invert(IMAGE),
    "Equalize": lambda x: ImageOps.equalize(IMAGE),
    "Flip": lambda x: ImageOps.mirror(IMAGE),
    "Solarize": lambda x: ImageOps.solarize(IMAGE, 256 * x),
    "Posterize": lambda x: ImageOps.posterize(IMAGE, int(4 + 4 * x)),
    "Posterize2": lambda x: ImageOps.posterize(IMAGE, max(1, int(4 * x))),
    **{
        name: (lambda x, name=name: getattr(ImageEnhance, name)(IMAGE).enhance(1.8 * x + 0.1))
        for name in ("Contrast", "Color", "Brightness", "Sharpness")
    },
}


@pytest.mark.parametrize("name", FAST)
def test_fast_autoaugment_level_for_level(name):
    for level in LEVELS:
        policy = read_fast_autoaugment(json.dumps([[[name, 0.5, level]]]))
        ((choice,),) = policy.sub_policies[0].stages
        assert choice.probability == 0.5
        wanted = np.asarray(FAST[name](level)).astype(int)
        signs = {"+": (1.0,), "-": (-1.0,), None: (1.0,), "random": (1.0, -1.0)}[choice.sign]
        pair = Pair(None, (0.5, 0.5), policy.fill, policy.hole_fill)
        made = [
            np.asarray(hard_pillow(OPS[choice.op], IMAGE, choice.range[0], sign, pair, policy.spans)) for sign in signs
        ]
        # factors such as 1.8 * x + 0.1 and 1 + 0.9 m may round to neighbouring floats: a level may go the other way
        gaps = [np.abs(one.astype(int) - wanted) for one in made]
        near = [
            g.max() <= 1 and (g > 0).mean() < 0.01
            if name in FAST and OPS[choice.op].family.name == "blend"
            else not g.any()
            for g in gaps
        ]
        assert any(near), (name, level)
        assert (len(signs) == 2) == (name[:5] in ("Shear", "Trans", "Rotat"))


def test_fast_autoaugment_cutout_and_pairing():
    policy = read_fast_autoaugment('[[["Cutout", 1.0, 1.0], ["SamplePairing", 0.2, 0.5]]]')
    cut, pair = (stage[0] for stage in policy.sub_policies[0].stages)
    assert policy.span("cutout").value(cut.magnitude) == 0.2
    assert policy.span("sample_pairing").value(pair.magnitude) == 0.2
    pixels = read_fast_autoaugment('[[["CutoutAbs", 1.0, 0.5]]]')
    assert (pixels.span("cutout").value(0.5), pixels.span("cutout").unit) == (10, "px")
    assert set(FAST) | {"Cutout", "CutoutAbs", "SamplePairing"} == set(FAST_NAMES)


# some of what Fast AutoAugment's autoaug_paper_cifar10() returns
PAPER = """[
    [('Invert', 0.1, 7.0), ('Contrast', 0.2, 0.6000000000000001)], [('Rotate', 0.7, 0.6), ('TranslateXAbs', 0.3, 0.9)],
    [('AutoContrast', 0.5, 8.0), ('Equalize', 0.9, 2.0)], [('ShearY', 0.2, 0.85), ('Posterize2', 0.3, 0.5)],
    [('Solarize', 0.5, 0.80078125), ('Invert', 0.0, 3.0)], [('Flip', 0.5, None)],
]"""


def test_a_level_that_nothing_uses_may_be_anything(tmp_path):
    (tmp_path / "paper.txt").write_text(PAPER)
    ((path, policy),) = import_file(tmp_path / "paper.txt", tmp_path / "paper.json")
    plain = [choice for choice in policy.choices() if OPS[choice.op].span is None]
    assert [choice.op for choice in plain] == ["invert", "auto_contrast", "equalize", "invert", "flip"]
    assert {choice.magnitude for choice in plain} == {None}
    assert Policy.load(path) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a Fast AutoAugment"),
        ("import os", "neither a Fast AutoAugment"),
        ("{[]: 1}", "neither a Fast AutoAugment"),
        ("[" * 100_000, "neither a Fast AutoAugment"),
        ("[[['Rotate', 0.5, " + "9" * 5000 + "]]]", "neither a Fast AutoAugment"),
        ("[[['Rotate', 0.5, 0x" + "f" * 5000 + "]]]", "level must be in .0, 1., got .*too large"),
        ("[[['Rotate', 0x" + "f" * 5000 + ", 0.5]]]", "probability must be in .0, 1., got .*too large"),
        ("[[[" + "9" * 4000 + ", 0.5, 0.5]]]", "unknown operation 999"),
        ("[[[['Rotate'] * 3, 0.5, 0.5]]]", "neither a Fast AutoAugment"),
        ("[[[['Rotate'], 0.5, 0.5]]]", r"unknown operation \['Rotate'\]: choices: ShearX"),
        ("[[['" + "x" * 10**5 + "', 0.5, 0.5]]]", "unknown operation 'xxx"),
        ("[['" + "x" * 10**5 + "']]", "must be .name, probability, level., got 'xxx"),
        ("['" + "\x1b" * 10**5 + "']", "must be a list of operations, got "),
        ("[[['Invert', 1.5, 7.0]]]", "probability must be"),
        ("[]", "must be a list of sub-policies"),
        ("[3]", r"must be a list of operations, got 3 \(sub-policy 1\)"),
        ("[[['Rotate', 0.5]]]", r"\[name, probability, level\]"),
        ("[[['Rotat', 0.5, 0.5]]]", "did you mean 'Rotate'"),
        ("[[['Rotate', 0.5, 1.5]]]", r"level must be in \[0, 1\], got 1.5 for op 'Rotate' \(sub-policy 1\)"),
        ("[[['Rotate', 1.5, 0.5]]]", "probability must be"),
        ("[[['CutoutAbs', 1.0, 0.5], ['Cutout', 1.0, 0.5]]]", "both in pixels"),
    ],
)
def test_damaged_lists(text, message):
    for read in (read_fast_autoaugment, read_foreign):
        with pytest.raises(PolicyError, match=message) as told:
            read(text)
        assert len(str(told.value)) < 500
        assert str(told.value).isprintable()


def schedule_line(trial, clone, epoch, old, new):
    return repr([trial, clone, epoch + 1, epoch, old, new])


def numbers(**entries):
    """60 numbers: (probability, level) for 15 operations, twice. `rotate=(3, 4)` or `rotate2=(3, 4)`."""
    flat = [0] * 60
    for name, (probability, level) in entries.items():
        index = _PBA_OPS.index(name.removesuffix("2")) + (15 if name.endswith("2") else 0)
        flat[2 * index : 2 * index + 2] = probability, level
    return flat


FIRST = numbers(rotate=(10, 3))
LATER = numbers(rotate=(3, 5), invert=(10, 0), solarize=(7, 2), rotate2=(5, 5), cutout2=(1, 9))


def simulate(entries, rounds, rng):
    """PBA's own procedure: shuffle, apply each with its probability until the count is used up."""
    seen = Counter()
    for _ in range(rounds):
        count = rng.choices([0, 1, 2], [0.2, 0.3, 0.5])[0]
        done = []
        order = entries[:]
        rng.shuffle(order)
        for op, probability, level in order:
            if len(done) == count:
                break
            if rng.random() < probability:
                done.append((op, level))
        seen[tuple(done)] += 1
    return seen


def test_pba_distribution_is_exact():
    text = "\n".join([schedule_line("x", "y", 3, FIRST, LATER)])
    (start, first), (later_start, later) = read_pba(text)
    assert (start, later_start) == (0, 3)
    assert [sub.weight for sub in first.sub_policies] == pytest.approx([0.2, 0.8])
    assert sum(sub.weight for sub in later.sub_policies) == pytest.approx(1)
    entries = [("rotate", 0.3, 5), ("invert", 1.0, 0), ("solarize", 0.7, 2), ("rotate", 0.5, 5), ("cutout", 0.1, 9)]
    rounds = 200_000
    seen = simulate(entries, rounds, random.Random(0))
    expected = {}
    for sub in later.sub_policies:
        key = tuple(stage[0] for stage in sub.stages)
        expected[key] = expected.get(key, 0) + sub.weight
    for done, count in seen.items():
        chance = expected[tuple(_pba_choice(op, level) for op, level in done)]
        assert abs(count / rounds - chance) < 6 * (chance * (1 - chance) / rounds) ** 0.5


def test_pba_arithmetic():
    spans = read_pba(schedule_line("x", "y", 3, FIRST, LATER))[0][1].span
    value = lambda op, level: spans(op).value(_pba_choice(op, level).range[0])  # noqa: E731
    assert [value("posterize", level) for level in (0, 2, 3, 5, 8, 10)] == [4, 4, 3, 2, 1, 1]
    assert [value("solarize", level) for level in (0, 1, 9, 10)] == [256, 231, 26, 0]
    assert [value("translate_x", level) for level in (0, 7, 10)] == pytest.approx([0, 7, 10])
    assert [value("rotate", level) for level in (0, 7, 10)] == pytest.approx([0, 21, 30])
    assert value("brightness", 10) == pytest.approx(1.9)
    assert _pba_choice("brightness", 0).sign == "-"
    assert _pba_choice("brightness", 0).magnitude == pytest.approx(1.0)


def test_pba_lines_of_other_trials_are_dropped():
    text = "\n".join(
        [
            schedule_line("a", "b", 1, LATER, LATER),
            schedule_line("x", "y", 3, FIRST, LATER),
            schedule_line("z", "x", 9, LATER, FIRST),
        ]
    )
    assert [start for start, _ in read_pba(text)] == [0, 3, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (repr(["x", "y", 3, 3, FIRST, [1, 2]]), "must hold 60 numbers"),
        (repr(["x", "y", 3, 3, FIRST, [11] * 60]), r"in 0\.\.10"),
        (repr(["x", "y", 3, "3", FIRST, LATER]), "line 1 must be"),
        (repr(["x", "y", 3, -3, FIRST, LATER]), r"the epochs in line 1 must be in 0\.\.1,000,000, got -3"),
        (repr(["x", "y", 3, 3, FIRST, LATER]).replace("3, 3", "3, 0x" + "f" * 5000, 1), "the epochs in line 1 must be"),
        (repr(["x", "y", 3, 3, {"policy": 1}, LATER]), "must hold 60 numbers"),
        ("\n".join([repr(["x", "y", 3, 3, FIRST, LATER])] * 301), "must have at most 300 lines, got 301"),
        (
            schedule_line("x", "y", 9, FIRST, LATER) + "\n" + schedule_line("z", "x", 3, LATER, FIRST),
            "must not decrease",
        ),
    ],
)
def test_damaged_schedules(text, message):
    for read in (read_pba, read_foreign):
        with pytest.raises(PolicyError, match=message) as told:
            read(text)
        assert len(str(told.value)) < 500


def test_of_phases_that_begin_together_the_last_counts(tmp_path):
    (tmp_path / "schedule.txt").write_text(schedule_line("x", "y", 0, FIRST, LATER))
    ((_, policy),) = import_file(tmp_path / "schedule.txt", tmp_path / "all.json")
    ((_, first),) = import_file(tmp_path / "schedule.txt", tmp_path / "one.json", epoch=0)
    assert policy.hash == first.hash == read_pba(schedule_line("x", "y", 3, FIRST, LATER))[1][1].hash


def test_files(tmp_path):
    text = schedule_line("x", "y", 3, FIRST, LATER)
    (tmp_path / "schedule.txt").write_text(text)
    written = import_file(tmp_path / "schedule.txt", tmp_path / "out")
    assert [path.name for path, _ in written] == ["epoch-0000.json", "epoch-0003.json"]
    assert Policy.load(tmp_path / "out" / "epoch-0003.json") == written[1][1]
    ((path, policy),) = import_file(tmp_path / "schedule.txt", tmp_path / "one.json", epoch=2)
    assert policy == written[0][1]
    assert Policy.load(path) == policy
    with pytest.raises(PolicyError, match="could not be read"):
        import_file(tmp_path / "none.txt", tmp_path / "x.json")


def test_an_own_policy_needs_no_import(tmp_path):
    Policy.named("none").save(tmp_path / "own.json")
    with pytest.raises(PolicyError, match="is a policy of fasteraa already"):
        import_file(tmp_path / "own.json", tmp_path / "new.json")
    (tmp_path / "words.txt").write_text("hello")
    with pytest.raises(PolicyError, match=r"words.txt': neither a Fast AutoAugment list .* a line\)$"):
        import_file(tmp_path / "words.txt", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
