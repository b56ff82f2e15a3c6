"""Wilson's interval: against scipy, at its exact ends, and how often it holds what it should."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from ostools.ground.errors import InputError
from ostools.theory.statistics.intervals import spearman_interval, wilson


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize(("right", "asked"), [(0, 1), (1, 1), (3, 7), (50, 100), (1, 1000), (999, 1000), (10, 10)])
def test_is_scipys(right: int, asked: int, level: float) -> None:
    own = binomtest(right, asked).proportion_ci(confidence_level=level, method="wilson")
    assert wilson(right, asked, level) == pytest.approx((own.low, own.high), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("asked", [1, 2, 30, 10**6])
def test_exact_ends(asked: int) -> None:
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert wilson(0, asked).low == 0.0
    assert wilson(0, asked).high == pytest.approx(z2 / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).low == pytest.approx(asked / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).high == 1.0


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0.01, 0.999))
def test_laws(asked: int, share: float, level: float) -> None:
    right = share * asked  # not whole: a mean over samples
    low, high = wilson(right, asked, level)
    assert 0 <= low <= high <= 1
    assert low - 1e-12 <= share <= high + 1e-12
    mirrored = wilson(asked - right, asked, level)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)
    # Each end is a p that the score test just rejects.
    z = NormalDist().inv_cdf((1 + level) / 2)
    for end in (low, high):
        assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / asked), abs=1e-7)


def test_holds_the_probability_about_as_often_as_it_says() -> None:
    asked = 40
    for p in (0.1, 0.3, 0.5, 0.85):
        held = sum(
            float(binom.pmf(k, asked, p))
            for k in range(asked + 1)
            if wilson(k, asked).low <= p <= wilson(k, asked).high
        )
        assert held == pytest.approx(0.95, abs=0.035)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0), "at least one trial, found 0"),
        ((0, math.inf), "at least one trial, found inf"),
        ((0, math.nan), "at least one trial, found nan"),
        ((3, 2), "from 0 to the 2 trials, found 3"),
        ((-1, 2), "found -1"),
        ((math.nan, 2), "found nan"),
        ((1, 2, 1.0), "level between 0 and 1, found 1.0"),
    ],
)
def test_refuses(arguments: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        wilson(*arguments)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.5])
def test_ranks_have_bonett_and_wrights_interval(correlation: float) -> None:
    """Fisher's z with variance (1 + r^2 / 2) / (n - 3); 1.96 is what tables print."""
    low, high = spearman_interval(correlation, 23)
    half = 1.959963984540054 * math.sqrt((1 + correlation**2 / 2) / 20)
    assert (math.atanh(low), math.atanh(high)) == pytest.approx(
        (math.atanh(correlation) - half, math.atanh(correlation) + half)
    )
