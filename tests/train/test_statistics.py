"""Student's interval and the paired test: against scipy, and against numbers worked out by hand."""

import math

import numpy as np
import pytest

from fasteraa.train.statistics import (
    Estimate,
    estimate,
    p_words,
    paired,
    residual_spread,
    student_cdf,
    student_quantile,
)

FREEDOMS = [1, 2, 3, 4, 5, 8, 9, 29, 30]


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_student_against_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (-12.0, -2.5, -0.3, 0.0, 0.7, 3.1, 40.0):
        assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for p in (0.005, 0.025, 0.3, 0.5, 0.9, 0.975):
        assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9, abs=1e-9)


def test_student_by_hand():
    assert student_cdf(1.0, 1) == pytest.approx(0.75)  # Cauchy: 1/2 + atan(1) / pi
    assert student_cdf(math.sqrt(2), 2) == pytest.approx(0.5 + 0.5 / math.sqrt(2))  # 1/2 + t / (2 sqrt(2 + t^2))
    assert student_quantile(0.975, 2) == pytest.approx(4.30265, abs=1e-5)  # as every table has it


def test_estimate_by_hand():
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.n, found.p) == (2.0, 3, None)
    assert found.half == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)
    alone = estimate([7.0])
    assert (alone.mean, alone.half, alone.n) == (7.0, math.inf, 1)
    assert not alone.significant


def test_paired_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = [14.2, 13.9, 14.8, 14.1], [15.0, 14.1, 15.9, 14.6]
    found = paired(ours, theirs)
    expected = stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval()
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert found.significant == (expected.pvalue < 0.05)


def test_pairing_uses_the_differences_and_not_the_spread_of_the_runs():
    found = paired([10.0, 20.0, 30.0], [11.0, 21.1, 30.9])
    assert found.mean == pytest.approx(-1.0)
    assert found.half < 0.3
    assert found.significant


def test_a_p_value_is_never_below_nought():
    """1 less a probability that rounding took above 1."""
    differences = [11.75 + (0.5 if number % 2 else -0.5) for number in range(17)]
    assert paired(differences, [0.0] * 17).p == 0.0
    assert [p_words(p) for p in (0.0, 0.0009, 0.001, 0.0304)] == ["p < 0.001", "p < 0.001", "p 0.001", "p 0.030"]


def test_equal_differences_claim_nothing():
    assert paired([1.0, 2.0], [2.0, 3.0]).p is None
    assert not paired([1.0, 2.0], [2.0, 3.0]).significant
    assert paired([0.1 + 0.2, 0.3], [0.1, 0.1]).p is None  # equal but for rounding
    assert paired([3.0], [1.0]) == Estimate(2.0, math.inf, 1)
    with pytest.raises(ValueError, match="longer"):
        paired([1.0], [1.0, 2.0])


def test_folds_of_one_set_are_less_sure_than_runs():
    """Nadeau and Bengio: (1/n + held-out/training) in the place of 1/n; five folds make 0.45 of 0.2."""
    ours, theirs = [14.2, 13.9, 14.8, 14.1, 15.0], [15.0, 14.1, 15.9, 14.6, 15.2]
    runs, folds = paired(ours, theirs), paired(ours, theirs, overlap=0.25)
    assert folds.half == pytest.approx(1.5 * runs.half)
    assert folds.mean == runs.mean
    assert folds.p > runs.p


def test_the_residual_spread_is_what_neither_row_nor_column_explains():
    assert residual_spread([[1.0, 2.0, 5.0], [11.0, 12.0, 15.0]]) == pytest.approx(0.0)
    assert residual_spread([[0.0, 0.0], [0.0, 4.0]]) == pytest.approx(2.0)  # four times one, one degree of freedom
    noise = np.random.default_rng(0).normal(0, 3.0, (60, 40))
    table = noise + np.arange(60)[:, None] * 5 + np.arange(40) * 2
    assert residual_spread(table.tolist()) == pytest.approx(3.0, rel=0.05)
    assert residual_spread([[1.0, 2.0]]) is None
    assert residual_spread([[1.0], [2.0]]) is None
    assert residual_spread([]) is None
