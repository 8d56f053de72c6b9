"""What a few runs tell: Student's interval of a mean, and the paired test of a difference.

Seeds are few and whole degrees of freedom have a closed form, so nothing beyond the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over n runs; `half` is half of its 95% interval (infinite for one run), `p` that of a test against 0."""

    mean: float
    half: float
    n: int
    p: float | None = None

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < 0.05


def student_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    for j in range(2 + freedom % 2, freedom, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    odd = 2 / math.pi * (theta + (sine * total if freedom > 1 else 0.0))
    return 0.5 + 0.5 * (odd if freedom % 2 else sine * total)


def student_quantile(p: float, freedom: int) -> float:
    """The t that `student_cdf` maps to p, by bisection."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def estimate(values: Sequence[float], level: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Mean and interval. The interval is about the runs' spread, not about other test images."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return Estimate(mean, math.inf, n)
    return Estimate(mean, student_quantile(0.5 + level / 2, n - 1) * _standard_error(values, mean, overlap), n)


def paired(ours: Sequence[float], theirs: Sequence[float], overlap: float = 0.0) -> Estimate:
    """ours - theirs, run by run (the same seeds), with the p value of the paired t test.

    Runs on folds of one set share training images, so their spread is smaller than that of other sets would be:
    `overlap`, held-out images as a share of training images, makes up for it (Nadeau and Bengio, 2003).
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    difference = estimate(differences, overlap=overlap)
    if difference.n < 2:
        return difference
    error = _standard_error(differences, difference.mean, overlap)
    if error < 1e-9 * max(abs(difference.mean), 1):
        return difference  # equal differences (on few test images that happens) say nothing about their spread
    beyond = 2 * (1 - student_cdf(abs(difference.mean) / error, difference.n - 1))
    return Estimate(difference.mean, difference.half, difference.n, max(beyond, 0.0))  # rounding may go a hair below


def p_words(p: float) -> str:
    """`p 0.012`; no p value is nought."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def residual_spread(rows: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation of what neither its row nor its column explains; None if there are fewer than two."""
    high, wide = len(rows), len(rows[0]) if rows else 0
    if high < 2 or wide < 2:
        return None
    row_means, column_means = (
        [sum(row) / wide for row in rows],
        [sum(column) / high for column in zip(*rows, strict=True)],
    )
    mean = sum(row_means) / high
    left = [rows[i][j] - row_means[i] - column_means[j] + mean for i in range(high) for j in range(wide)]
    return math.sqrt(sum(value**2 for value in left) / ((high - 1) * (wide - 1)))


def _standard_error(values: Sequence[float], mean: float, overlap: float = 0.0) -> float:
    n = len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) * (1 / n + overlap))
