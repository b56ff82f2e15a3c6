"""Intervals of a share and of a rank correlation: exact ends, shares of trials, and what has no interval."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from ostools.ground.errors import InputError
from ostools.theory.statistics.intervals import spearman_interval, wilson


@pytest.mark.parametrize("asked", [1, 2, 30, 10**6])
def test_exact_ends(asked: int) -> None:
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert wilson(0, asked).low == 0.0
    assert wilson(0, asked).high == pytest.approx(z2 / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).low == pytest.approx(asked / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).high == 1.0


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
    assert all(math.isnan(end) for end in spearman_interval(correlation, 3))
    assert spearman_interval(1.0, 9) == (1.0, 1.0)
