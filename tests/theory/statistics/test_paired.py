"""Paired differences: coverage by enumeration, agreement with McNemar's exact test, and cases in
closed form.
"""

import numpy as np
import pytest
from scipy.stats import beta, binomtest, multinomial

from ostools.ground.errors import InputError
from ostools.theory.statistics.answers import mcnemar, paired_difference


def outcomes(n: int) -> list[tuple[int, int]]:
    return [(gained, lost) for gained in range(n + 1) for lost in range(n + 1 - gained)]


def least_coverage(n: int, level: float, grid: int) -> float:
    """The least probability, over a grid of (p_gained, p_lost), that the interval holds their
    difference.
    """
    pairs = np.array(outcomes(n))
    ends = np.array([paired_difference(*pair, n, level) for pair in outcomes(n)])
    counts = np.column_stack([pairs, n - pairs.sum(1)])
    least = 1.0
    for gained in np.linspace(0, 1, grid):
        for lost in np.linspace(0, 1 - gained, grid):
            within = (ends[:, 0] <= gained - lost + 1e-9) & (gained - lost - 1e-9 <= ends[:, 1])
            shares = [gained, lost, max(0.0, 1 - gained - lost)]
            least = min(least, float(multinomial.pmf(counts, n, shares)[within].sum()))
    return least


@pytest.mark.parametrize(
    ("n", "level", "grid"),
    [
        (5, 0.95, 15),
        (12, 0.95, 15),
        pytest.param(24, 0.95, 41, marks=pytest.mark.slow),
        pytest.param(24, 0.9, 41, marks=pytest.mark.slow),
        pytest.param(40, 0.99, 31, marks=pytest.mark.slow),
    ],
)
def test_the_interval_covers_the_difference_at_its_level(n: int, level: float, grid: int) -> None:
    assert least_coverage(n, level, grid) >= level


@pytest.mark.parametrize("n", [6, 14])
def test_it_leaves_zero_out_exactly_where_mcnemars_exact_test_rejects(n: int) -> None:
    for gained, lost in outcomes(n):
        low, high = paired_difference(gained, lost, n)
        assert (low > 0 or high < 0) == (mcnemar(gained, lost) < 0.05), (gained, lost)
        assert low <= (gained - lost) / n <= high
        assert (-high, -low) == pytest.approx(paired_difference(lost, gained, n), abs=1e-12)


def test_mcnemar_is_the_sign_test() -> None:
    for gained, lost in outcomes(9):
        expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-12)


def test_closed_forms() -> None:
    """None answered otherwise: Clopper and Pearson's upper end of a share of 0. All: 2 t - 1 of
    theirs of t, on the side of 0 that the data do not clear."""
    zero = 1 - 0.025 ** (1 / 24)
    assert paired_difference(0, 0, 24) == pytest.approx((-zero, zero), rel=1e-12)
    low, high = paired_difference(5, 7, 12)
    assert low == pytest.approx(2 * beta.ppf(0.025, 5, 8) - 1, rel=1e-12)
    assert high == pytest.approx(2 * beta.ppf(0.975, 6, 7) - 1, rel=1e-12)
    assert paired_difference(1, 0, 1) == pytest.approx((-0.95, 1.0), rel=1e-12)


def test_the_lower_end_is_the_quantile_that_its_docstring_says() -> None:
    """By drawing Q and T; 3 gained and 1 lost of 20 lies below 0, 9 and 1 above."""
    rng = np.random.default_rng(0)
    for gained, lost in ((3, 1), (9, 1)):
        t = rng.beta(gained, lost + 1, 400_000)
        d = gained + lost
        q = np.where(t > 0.5, rng.beta(d, 20 - d + 1, t.size), rng.beta(d + 1, 20 - d, t.size))
        expected = np.quantile(q * (2 * t - 1), 0.025)
        assert paired_difference(gained, lost, 20).low == pytest.approx(float(expected), abs=2e-3)


@pytest.mark.parametrize(
    ("counts", "level"),
    [((-1, 0, 3), 0.95), ((2, 2, 3), 0.95), ((0, 0, 0), 0.95), ((1, 1, 3), 1.0)],
)
def test_refuses_what_is_no_count(counts: tuple[int, int, int], level: float) -> None:
    with pytest.raises(
        InputError, match=r"expected (counts of at least 0|a level between 0 and 1)"
    ):
        paired_difference(*counts, level)
