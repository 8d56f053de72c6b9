"""The table of operations: the paper's seventeen, with Fast AutoAugment's ranges, and how a row is declared."""

import pickle

import pytest

from fasteraa.errors import PolicyError
from fasteraa.ops import OPS, Span, find, op, select
from fasteraa.ops.tone import tone

# name: family, span, signed, discrete
PAPER = {
    "shear_x": ("warp", Span(0, 0.3, "slope"), True, False),
    "shear_y": ("warp", Span(0, 0.3, "slope"), True, False),
    "translate_x": ("warp", Span(0, 0.45, "width"), True, False),
    "translate_y": ("warp", Span(0, 0.45, "height"), True, False),
    "rotate": ("warp", Span(0, 30, "degree"), True, False),
    "flip": ("warp", None, False, False),
    "solarize": ("tone", Span(256, 0, "level"), False, True),
    "posterize": ("tone", Span(8, 4, "bit"), False, True),
    "invert": ("tone", None, False, False),
    "contrast": ("blend", Span(1, 1.9, "factor"), True, False),
    "color": ("blend", Span(1, 1.9, "factor"), True, False),
    "brightness": ("blend", Span(1, 1.9, "factor"), True, False),
    "sharpness": ("blend", Span(1, 1.9, "factor"), True, False),
    "auto_contrast": ("tone", None, False, False),
    "equalize": ("tone", None, False, False),
    "cutout": ("erase", Span(0, 0.5, "width"), False, True),
    "sample_pairing": ("blend", Span(0, 0.4, "share"), False, False),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_operations(name):
    row = OPS[name]
    assert (row.family.name, row.span, row.signed, row.discrete) == PAPER[name]
    assert row.doc.endswith(".")


def test_span():
    span = Span(1, 1.9, "factor")
    assert span.value(0.5) == pytest.approx(1.45)
    assert span.value(0.5, -1.0) == pytest.approx(0.55)
    assert span.magnitude(1.45) == pytest.approx(0.5)
    assert Span(256, 0, "level").value(0.25) == 192


def test_find_and_select():
    assert [row.name for row in select(["cutout", "shear_x"])] == ["shear_x", "cutout"]
    assert select(None) == list(OPS.values())
    with pytest.raises(PolicyError, match="unknown operation 'shearx': did you mean 'shear_x'"):
        find("shearx")


def test_a_row_pickles_by_name():
    assert pickle.loads(pickle.dumps(OPS["rotate"])) is OPS["rotate"]


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="'invert' is declared twice"):

        @op(tone, None, pillow=lambda image, v, _: image)
        def invert(xp, level, v):
            return level, 1.0

    assert OPS["invert"].span is None
