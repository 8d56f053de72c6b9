"""A comparison in words, as Markdown, JSON and a picture."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fasteraa.comparison.per_op import Drop, OpHarm, PerOp, SubPolicyHarm
from fasteraa.comparison.table import Comparison, ComparisonRow
from fasteraa.errors import RunError
from fasteraa.policy.named import named
from fasteraa.report.comparison import (
    caption,
    columns,
    difference,
    interval,
    per_op_markdown,
    publish,
    publish_per_op,
    read_comparison,
    sentence,
    to_markdown,
    to_svg,
)
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.statistics import estimate, paired

SVG = "{http://www.w3.org/2000/svg}"


def row(label, errors, none=None):
    against = {} if none is None else {"none": paired(errors, none)}
    return ComparisonRow(label, ("sha256:0",), dict(enumerate(errors)), estimate(errors), against, None, 12.0)


def table(*rows, missing=0):
    return Comparison("some <data>", 100, 50, "test images", TrainRecipe(cutout=16), "a device", rows, missing)


NONE = [20.0, 21.0, 20.5]


@pytest.fixture
def comparison():
    return table(
        row("none", NONE), row("good & <better>", [15.0, 15.9, 15.6], NONE), row("bad", [25.0, 26.1, 25.4], NONE)
    )


def test_numbers_in_words():
    assert interval(estimate([1.0, 2.0, 3.0])) == "2.00 ± 2.48"
    assert interval(estimate([7.0])) == "7.00"
    assert difference(None, 1) == "-"
    assert difference(paired([1.0], [2.5]), 1) == "-1.50"
    assert difference(paired([1.0], [1.001]), 1) == "+0.00"
    assert difference(paired([15.0, 15.9, 15.6], NONE), 3) == "-5.00 ± 0.25 (p < 0.001)"
    assert difference(paired([20.0, 22.0], [20.1, 21.0]), 2).endswith("(p 0.563)")
    assert difference(paired([20.0, 22.0], [20.1, 21.0]), 3).endswith("(p 0.563, n = 2)")  # a seed is missing there
    assert difference(paired([1.0], [2.5]), 2) == "-1.50 (n = 1)"


def test_all_with_the_lowest_error_are_named():
    """Whatever the order of their errors; sums differ by it in the last digit."""
    text = sentence(table(row("none", [12.3, 14.7, 12.1]), row("a", [12.1, 12.3, 14.7]), row("b", [13.0, 13.1, 13.3])))
    assert text.startswith("Lowest error: a with 13.03 ± 3.59%, none with 13.03 ± 3.59%. ")


def test_the_lowest_error_is_that_of_the_seeds_that_all_have():
    """The third seed is a hard one, which the worse policy has not met."""
    hard, easy = row("good", [10.0, 11.0, 30.0]), row("lucky", [12.0, 13.0])
    assert (
        sentence(table(hard, easy)) == "Lowest error on the runs that all have (seeds 0, 1): good with 10.50 ± 6.35%."
    )
    apart = replace(easy, errors={3: 12.0, 4: 13.0})
    assert sentence(table(hard, apart)) == "No seed has a run of every policy, so there is no ranking."


def test_one_seed_allows_no_test(comparison):
    alone = table(row("none", [20.0]), row("a", [15.0], [20.0]))
    assert sentence(alone) == "Lowest error: a with 15.00%. No test against none: a test takes two seeds."
    some = table(*comparison.rows, row("a", [15.0], [20.0]), row("b", [14.0]))
    assert sentence(some).endswith("clearly worse: bad; not tested, with fewer than two seeds: b, a.")


def test_the_sentence_tells_the_truth_either_way(comparison):
    text = sentence(comparison)
    assert text.startswith("Lowest error: good & <better> with 15.50 ± ")
    assert "Clearly better than none (p < 0.05): good & <better>; clearly worse: bad." in text
    assert "trivialaugment" not in text  # it did not take part
    assert sentence(table(row("none", NONE), row("a", [20.5, 20.8, 20.9], NONE))).endswith(
        "(p < 0.05): no policy; clearly worse: no policy."
    )
    assert sentence(table()) == "There are no runs yet."
    assert sentence(table(row("none", [3.0]))) == "none: error 3.00%."


def test_a_yardstick_that_did_not_take_part_has_no_column(comparison):
    head, line, *rows = (each for each in to_markdown(comparison).splitlines() if each.startswith("|"))
    assert head == "| policy | error % | n | against none | training s |"
    assert {each.count("|") for each in (line, *rows)} == {head.count("|")}
    both = {"none": paired([15.0, 16.0], [20.0, 21.0]), "trivialaugment-wide": paired([15.0, 16.0], [18.0, 19.1])}
    full = table(*comparison.rows, replace(row("a", [15.0, 16.0]), against=both))
    assert "| against none | against trivialaugment-wide | training s |" in to_markdown(full)


def test_without_a_search_there_is_no_column_for_its_seconds():
    assert columns(table(row("a", NONE))) == ("policy", "error %", "n", "training s")
    some = table(row("a", NONE), replace(row("b", NONE), search_seconds=7.0))
    assert columns(some) == ("policy", "error %", "n", "search s", "training s")
    head, _, *rows = (each for each in to_markdown(some).splitlines() if each.startswith("|"))
    assert [each.split("|")[-3].strip() for each in (head, *rows)] == ["search s", "-", "7"]


def test_runs_that_diverged_are_named_and_kept(comparison, tmp_path):
    lost = replace(comparison, diverged=("none, seed 3 (why)", "bad, seed 4 (why)"))
    assert sentence(lost).endswith(" Diverged, excluded from the means: none, seed 3 (why); bad, seed 4 (why).")
    assert sentence(replace(table(), diverged=("a",))) == "No run has an error. Diverged, excluded from the means: a."
    publish(lost, tmp_path)
    assert read_comparison(tmp_path / "comparison.json") == lost
    content = json.loads((tmp_path / "comparison.json").read_text())
    (tmp_path / "comparison.json").write_text(json.dumps({**content, "held_out_images": 9}))
    with pytest.raises(RunError, match="its content does not match its digest"):
        read_comparison(tmp_path / "comparison.json")
    del content["diverged"], content["sha256"]  # as older versions wrote it
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    assert read_comparison(tmp_path / "comparison.json") == comparison


def test_runs_and_policies_that_are_missing_are_named(comparison, tmp_path):
    early = replace(comparison, missing=3, missing_seeds={"none": (3,), "late": (0, 2)}, absent=("late",))
    assert " 3 runs are missing: none, seed 3; late, seeds 0, 2." in to_markdown(early)
    assert "| late | - | 0 | - | - |" in to_markdown(early)
    publish(early, tmp_path)
    assert read_comparison(tmp_path / "comparison.json") == early
    old = replace(early, missing_seeds={}, absent=())  # as older versions wrote it
    assert " 3 runs are missing. " in sentence(old) + " "


def test_markdown(comparison):
    text = to_markdown(replace(comparison, missing=2, rows=(*comparison.rows, row("a|b", [1.0]))))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "2 runs are missing." in text
    assert "cutout of 16 pixels after every policy but none" in text
    assert "error after the last epoch on 50 images (test images)" in caption(comparison)
    assert "a device" in caption(comparison)


@pytest.mark.parametrize("errors", [[7.0], [7.0, 7.0], [0.0, 0.0], [100.0], [1.0, 90.0]])
def test_every_picture_is_well_formed(comparison, errors):
    for each in (comparison, table(row("one", errors)), table()):
        root = ElementTree.fromstring(to_svg(each))
        for circle in root.iter(f"{SVG}circle"):
            assert 0 <= float(circle.get("cx")) <= 760
        for line in root.iter(f"{SVG}line"):
            assert all(math.isfinite(float(line.get(end))) for end in ("x1", "x2", "y1", "y2"))
    root = ElementTree.fromstring(to_svg(table(row("one", errors))))
    assert len(list(root.iter(f"{SVG}circle"))) == len(errors)
    assert len([each for each in root.iter(f"{SVG}line") if each.get("class") == "interval"]) == (len(errors) > 1)


def test_the_picture_says_that_an_interval_leaves_it():
    assert "an arrow" not in to_svg(table(row("one", [20.0, 20.1, 20.2, 20.3])))
    assert "an arrow: the interval leaves the plot" in to_svg(table(row("one", [20.0, 22.0])))
    assert "an arrow" not in to_svg(table(row("one", [20.0])))


def test_the_picture_ranks_policies_and_lower_is_left(comparison):
    root = ElementTree.fromstring(to_svg(comparison))
    names = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert names == ["good & <better>", "none", "bad"]
    places = [float(each.get("x")) for each in root.iter(f"{SVG}rect") if each.get("class") == "mean"]
    assert places == sorted(places)
    ticks = [
        float(text.text) for text in root.iter(f"{SVG}text") if text.get("class") == "tick" and "error" not in text.text
    ]
    assert 3 <= len(ticks) <= 8
    assert ticks == sorted(ticks)


def test_files(comparison, tmp_path):
    publish(table(row("none", [3.0])), tmp_path)
    found = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert found["rows"][0]["error"] == {"mean": 3.0, "half": None, "n": 1, "p": None}  # one run has no interval
    assert found["rows"][0]["errors"] == {"0": 3.0}
    assert found["recipe"]["network"] == "wrn-40-2"
    assert (tmp_path / "comparison.md").read_text() == to_markdown(table(row("none", [3.0])))
    ElementTree.parse(tmp_path / "comparison.svg")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".svg"}


def test_what_hurts_in_markdown():
    ops = [OpHarm("brightness", {0.5: Drop(3.25, 1.0), 1.0: Drop(9.0, 1.5)}), OpHarm("flip", {1.0: Drop(-0.1, 0.2)})]
    subs = [(named("autoaugment-svhn"), [SubPolicyHarm(2, Drop(4.0, 0.5))])]
    measured = PerOp(91.5, 400, "20% of the training images", False, ops, subs)
    lines = per_op_markdown(measured).splitlines()
    assert "Accuracy on 400 plain images (20% of the training images): 91.50%." in lines[0]
    assert "--held-out" not in lines[0]
    assert "These are the test images: to choose" in per_op_markdown(replace(measured, on_test_images=True))
    assert "| operation | at 0.5 | at 1 |" in lines
    assert "| brightness | +3.2 (±1.0) | +9.0 (±1.5) |" in lines
    assert "| flip |  | -0.1 (±0.2) |" in lines
    assert any(line.startswith("| +4.0 (±0.5) | 3. ") for line in lines)


def test_what_hurts_in_json(tmp_path):
    policy = named("autoaugment-svhn")
    ops, subs = [OpHarm("flip", {1.0: Drop(-0.1, math.inf)})], [(policy, [SubPolicyHarm(2, Drop(4.0, 0.5))])]
    measured = PerOp(91.5, 400, "test images", True, ops, subs)
    publish_per_op(measured, tmp_path)
    assert (tmp_path / "per_op.md").read_text() == per_op_markdown(measured)
    assert json.loads((tmp_path / "per_op.json").read_text()) == {
        "accuracy": 91.5,
        "images": 400,
        "held_out_from": "test images",
        "on_test_images": True,
        "ops": [{"op": "flip", "at": {"1.0": {"points": -0.1, "half": None}}}],
        "policies": [
            {
                "name": policy.name,
                "hash": policy.hash,
                "sub_policies": [{"number": 2, "drop": {"points": 4.0, "half": 0.5}}],
            }
        ],
    }


def test_losses_by_operation_go_with_the_comparison_that_they_are_of(comparison, tmp_path):
    measured = PerOp(80.0, 50, "test images", True, [OpHarm("invert", {1.0: Drop(20.0, 3.0)})], [])
    more_seeds = table(*(row(each.label, [*each.errors.values(), 22.0]) for each in comparison.rows))
    others = [
        table(row("none", NONE)),
        replace(comparison, recipe=TrainRecipe(cutout=8)),
        replace(comparison, train_images=99),
        replace(comparison, rows=tuple(replace(each, hashes=("sha256:1",)) for each in comparison.rows)),
    ]
    for then, stay in ((comparison, True), (more_seeds, True), *((other, False) for other in others)):
        publish(comparison, tmp_path)
        publish_per_op(measured, tmp_path)
        publish(then, tmp_path)
        assert [(tmp_path / name).exists() for name in ("per_op.json", "per_op.md")] == [stay, stay]
    publish_per_op(measured, tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    publish(comparison, tmp_path)
    assert not (tmp_path / "per_op.md").exists()
