"""Scales, marks and drawings by hand."""

import re
from xml.etree import ElementTree

import pytest

from fasteraa.report.charts import Forest, chart, row_bar, smoothed, spark
from fasteraa.report.svg import Scale, dot, drawing, error_bar, line, short, text, ticks, x_axis, y_axis

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script> & \"'"


def parsed(marks):
    return ElementTree.fromstring(drawing(100, 50, marks, HOSTILE))


def test_a_scale_by_hand():
    x = Scale(0, 10, 100, 200)
    assert [x(value) for value in (0, 2.5, 10, -1, 11)] == [100, 125, 200, 100, 200]  # outside: at the edge
    assert Scale(0, 10, 200, 100)(2.5) == 175  # upwards
    assert Scale(3, 3, 0, 10)(3) == 5
    assert x.ticks == [0, 2, 4, 6, 8, 10]


def test_scales_around_numbers():
    around = Scale.around([10.0, 20.0], 0, 100, room=0.2)
    assert (around.low, around.high) == (8.0, 22.0)
    assert Scale.around([1.0, 9.0], 0, 1).low == pytest.approx(0.2)
    assert Scale.around([0.1, 9.0], 0, 1).low == 0.0  # errors are not negative
    near = Scale.around([5.0, 5.0], 0, 1, room=0.5)
    assert (near.low, near.high) == (4.75, 5.25)


def test_powers_of_ten():
    scale = Scale.powers([0.02, 30.0, 0.0], 0, 400)
    assert scale.ticks == [0.01, 0.1, 1.0, 10.0, 100.0]
    assert [scale(value) for value in (0.01, 1.0, 100.0, 0.0)] == [0, 200, 400, 0]
    assert Scale.powers([1.0], 0, 1).ticks == [1.0, 10.0]
    assert Scale.powers([0.0], 0, 1).ticks == [1.0, 10.0]


def test_ticks_of_very_small_numbers():
    assert ticks(0.0, 3e-7) == [0.0, 5e-8, 1e-7, 1.5e-7, 2e-7, 2.5e-7, 3e-7]
    assert ticks(0.0, 0.0025) == [0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025]


def test_all_words_are_escaped():
    marks = [text(1, 2, HOSTILE), dot(3, 4, title=HOSTILE), line([(1, 2), (3, 4)], title=HOSTILE)]
    root = parsed([*marks, text(1, 2, "a", HOSTILE)])
    assert root.get("aria-label") == HOSTILE
    assert [each.text for each in root.iter(f"{SVG}title")] == [HOSTILE] * 2
    first, second = root.iter(f"{SVG}text")
    assert (first.text, second.get("class")) == (HOSTILE, HOSTILE)
    assert list(root.iter(f"{SVG}script")) == []


def test_marks_by_hand():
    x = Scale(0, 10, 0, 100)
    root = parsed(
        [error_bar(x, 20, 2, 4), error_bar(x, 20, 2, 4, upwards=True), line([(1, 2)]), line([(1, 2), (3.125, 4)])]
    )
    across, up = root.iter(f"{SVG}line")
    assert [across.get(name) for name in ("x1", "x2", "y1", "y2")] == ["20", "40", "20", "20"]
    assert [up.get(name) for name in ("x1", "x2", "y1", "y2")] == ["20", "20", "20", "40"]
    (point,) = root.iter(f"{SVG}circle")  # a line of one point
    assert (point.get("cx"), point.get("cy"), point.get("class")) == ("1", "2", "dot")
    (curve,) = root.iter(f"{SVG}polyline")
    assert curve.get("points") == "1,2 3.12,4"


def test_an_interval_that_leaves_the_scale_has_arrows_there():
    """Drawn as far as the plot goes, it would look like one that ends there."""
    x, y = Scale(0, 10, 0, 100), Scale(0, 10, 100, 0)

    def tips(mark):
        return [each.get("points").split()[1] for each in parsed([mark]).iter(f"{SVG}polyline")]

    assert tips(error_bar(x, 20, 0, 10)) == []
    assert tips(error_bar(x, 20, -1, 10)) == ["0,20"]
    assert tips(error_bar(x, 20, -1, 11)) == ["0,20", "100,20"]
    assert tips(error_bar(y, 20, -1, 11, upwards=True)) == ["20,100", "20,0"]
    (arrow,) = parsed([error_bar(y, 20, 5, 11, upwards=True)]).iter(f"{SVG}polyline")
    assert arrow.get("points") == "14,6 20,0 26,6"  # it points up


def test_axes_have_a_line_and_a_number_for_each_tick():
    scale = Scale(0, 1, 10, 90)
    for marks, along in ((x_axis(scale, 5, 45), "x1"), (y_axis(scale, 5, 95), "y1")):
        root = parsed(marks)
        assert [float(each.text) for each in root.iter(f"{SVG}text")] == scale.ticks
        assert [float(each.get(along)) for each in root.iter(f"{SVG}line")] == [scale(tick) for tick in scale.ticks]


def test_a_file_knows_light_and_dark_and_a_part_of_a_page_has_no_colours():
    file = drawing(10, 10, [], "a")
    assert "@media(prefers-color-scheme:dark)" in file
    assert parsed([]).find(f"{SVG}rect").get("class") == "paper"
    part = drawing(10, 10, [dot(1, 2)], "a", "errors")
    assert part == (
        '<svg class="errors" viewBox="0 0 10 10" role="img" aria-label="a">'
        '<circle class="dot" cx="1" cy="2" r="4"/></svg>'
    )


def test_rows_of_tables():
    assert 'points="0,25 50,13.5 100,2"' in spark([0.0, 1.0, 2.0], 2.0)
    assert 'width="25"' in row_bar(10.0, 40.0)
    assert spark([1.0], 2.0) == spark([0.0, 0.0], 0.0) == row_bar(1.0, 0.0) == ""


def test_curves():
    html = chart("<losses>", [("a & b", [(1, 2.0), (2, 4.0)]), ("one", [(2, 1.0)])])
    root = ElementTree.fromstring(html)
    assert root.get("aria-label") == "<losses>"
    assert [each.text for each in root.iter("title")] == ["a & b", "one"]
    assert [each.get("class") for each in root.iter() if each.tag in ("polyline", "circle")] == ["line s0", "dot s1"]
    assert [each.text for each in root.iter("text")][-3:] == ["1", "2", "epoch"]
    titled = ElementTree.fromstring(chart("a", [("a", [(1, 2.0), (2, 4.0)])], "tries", "loss"))
    assert [each.text for each in titled.iter("text")][-2:] == ["tries", "loss"]
    assert chart("none", [("a", [])]) == ""


def test_smoothed_curves_by_hand():
    """The average over a fifth of the curve; what was measured is there, too."""
    curve = [(epoch, float(epoch % 2)) for epoch in range(20)]
    assert smoothed(curve[:9]) == curve[:9]
    found = smoothed(curve)
    assert [x for x, _ in found] == list(range(20))
    assert found[10][1] == pytest.approx(2 / 5)  # 8 to 12
    assert found[0][1] == pytest.approx(1 / 3)
    classes = re.findall(r'class="(line[^"]*)"', chart("a", [("a", curve)], smooth=True))
    assert classes == ["line s0 faint", "line s0"]


def test_intervals_beside_a_line_at_zero():
    """On one scale, which holds all of them and zero."""
    forest = Forest([(-2.0, 1.0), (4.0, None)])
    row = ElementTree.fromstring(forest.row(-2.0, 1.0, "good"))
    (zero, reach, middle) = [[float(point.split(",")[0]) for point in each.get("points").split()] for each in row]
    assert reach[0] < middle[0] == middle[1] < reach[1] < zero[0]
    assert middle[0] == pytest.approx(sum(reach) / 2, abs=0.1)
    assert [each.get("class") for each in row] == ["zero", "reach good", "middle good"]
    assert len(list(ElementTree.fromstring(forest.row(4.0, None)))) == 2  # of one training there is no interval
    ticks = [int(each.text) for each in ElementTree.fromstring(forest.axis())]
    assert 0 in ticks
    assert ticks == sorted(ticks)
    assert Forest([]).axis()


def test_long_labels_keep_their_end():
    assert short("runs/photos") == "runs/photos"
    assert short("a" * 40 + "/policy.json", 20) == "..." + "a" * 5 + "/policy.json"
