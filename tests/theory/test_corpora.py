"""Profiles over relative position: exact where they can be constructed, intervals by another's statistics."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ostools.theory import profiles


@pytest.mark.parametrize(("pos", "bins"), [(8, 4), (8, 8), (7, 3), (5, 8), (64, 32), (1, 1)])
def test_every_token_counts_in_a_bin_by_the_part_of_it_that_lies_there(pos: int, bins: int) -> None:
    """Against fractions, interval by interval."""
    shares = [Fraction(i + 1, pos * (pos + 1) // 2) for i in range(pos)]
    expected = []
    for place in range(bins):
        total = Fraction(0)
        for i, share in enumerate(shares):
            low, high = (
                max(Fraction(i, pos), Fraction(place, bins)),
                min(Fraction(i + 1, pos), Fraction(place + 1, bins)),
            )
            total += share * max(high - low, Fraction(0)) * pos
        expected.append(bins * total)
    (found,) = profiles.binned(np.array([[float(share) for share in shares]]), bins)
    assert sum(expected) == bins
    np.testing.assert_allclose(found, [float(value) for value in expected], rtol=1e-14)


def test_the_interval_is_over_texts() -> None:
    texts = np.random.default_rng(0).normal(size=(9, 4))
    low, high = profiles.interval_of_mean(texts)
    error = texts.std(0, ddof=1) / 3 * stats.t.ppf(0.975, 8)
    np.testing.assert_allclose((high - low) / 2, error, rtol=0.25)
    assert np.isnan(profiles.interval_of_mean(texts[:2])).all()


@pytest.mark.parametrize("pos", [15, 60, 61, 63, 64, 127])
def test_contrasts_are_those_of_one_profile(pos: int) -> None:
    values = np.random.default_rng(pos).normal(size=(3, pos))
    for row, found in zip(values, profiles.end_contrasts(values), strict=True):
        shape = profiles.u_shape(row)
        np.testing.assert_allclose(found, [shape.start.value, shape.end.value], rtol=1e-12, atol=1e-14)


def test_the_ends_are_tested_as_by_students_t() -> None:
    contrasts = np.random.default_rng(2).normal(0.3, 1, size=(12, 2))
    ends = profiles.ends_over_texts(contrasts)
    for found, values in zip((ends.start, ends.end), contrasts.T, strict=True):
        known: Any = stats.ttest_1samp(values, 0.0)
        low, high = known.confidence_interval(0.95)
        expected = (values.mean(), low, high, known.pvalue)
        np.testing.assert_allclose((found.value, found.low, found.high, found.p), expected, rtol=1e-10)
