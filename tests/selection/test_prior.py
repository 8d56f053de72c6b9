"""What is expected before anything is measured, and in which order a small budget keeps candidates."""

from fasteraa.methods import Budget, Candidate, Expected
from fasteraa.methods.op_effects import WEIGHTED
from fasteraa.methods.published import Published
from fasteraa.policy.named import RACED, named
from fasteraa.selection.prior import expected, with_prior
from fasteraa.selection.schedule import LEAST_CANDIDATES

from .conftest import brightness_classes, task_of

GRADIENT = ("faster-aa", "faster-aa-x2", "faster-aa-start", "faster-aa-halfway", "faster-aa-x3")


def labelled(*labels):
    return [Candidate(label, named("none")) for label in labels]


def usual():
    return [
        *labelled(*GRADIENT),
        *labelled(*WEIGHTED),
        *Published().candidates(task_of(brightness_classes(12)), Budget(), None),
    ]


def test_something_is_expected_of_all_that_race_by_default():
    candidates = with_prior(usual())
    assert len(candidates) == len(GRADIENT) + len(WEIGHTED) + len(RACED)
    by_label = {each.label: each.expected for each in candidates}
    assert None not in by_label.values()
    assert by_label["none"].spread >= 4 * by_label["faster-aa"].spread
    assert min(each.error for each in by_label.values()) > 0.9
    assert max(by_label, key=lambda label: by_label[label].error) == "none"


def test_a_small_budget_keeps_what_others_are_compared_with_and_one_of_each_kind():
    without_experiment = [each for each in usual() if each.label not in WEIGHTED]
    least = [each.label for each in with_prior(without_experiment)][:LEAST_CANDIDATES]
    assert {"none", "trivialaugment-wide", "faster-aa-start"} <= set(least)
    assert {"uniform-x2", "faster-aa-x2"} <= set(least)
    assert [each.label for each in with_prior(usual())][2:5] == list(WEIGHTED)


def test_what_nobody_knows_comes_after_the_yardsticks_and_only_what_is_measured_counts():
    ranked = with_prior(labelled("uniform", "mine", "none", "yours", "trivialaugment-wide"))
    assert [each.label for each in ranked] == ["none", "trivialaugment-wide", "mine", "yours", "uniform"]
    assert [each.expected is None for each in ranked] == [False, False, True, True, False]
    assert expected("mine") is None


def test_what_a_method_expects_itself_is_kept():
    mine = Candidate("none", named("none"), Expected(0.5, 0.5))
    assert with_prior([mine])[0].expected == (0.5, 0.5)
