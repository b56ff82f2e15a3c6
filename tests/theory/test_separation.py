"""Areas under the ROC curve against scipy's Mann-Whitney, by hand, and how often their intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from ostools.ground.errors import InputError
from ostools.theory.statistics.separation import area, newcombe


def rows(values, above, groups=None):
    values = np.asarray(values, dtype=float)
    return values, np.asarray(above, dtype=bool), np.arange(len(values)) if groups is None else np.asarray(groups)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20))
@settings(max_examples=60, deadline=None)
def test_it_is_mann_whitneys_u_of_all_pairs(drawn) -> None:
    values, above, groups = rows([value for value, _ in drawn], [kind for _, kind in drawn])
    found = area(values, above, groups // 3)
    if above.all() or not above.any():
        assert math.isnan(found.value)
        assert (found.pairs, found.why) == (0, "no two rows to compare")
        return
    u = mannwhitneyu(values[above], values[~above]).statistic
    assert found.value == pytest.approx(u / (above.sum() * (~above).sum()), abs=1e-14)
    assert area(-values, above, groups // 3).value == pytest.approx(1 - found.value, abs=1e-14)
    assert area(values, ~above, groups // 3).value == pytest.approx(1 - found.value, abs=1e-14)
    assert area(np.exp(values), above, groups // 3) == found  # ranks alone count


def test_within_strata_by_hand() -> None:
    """Over all rows the value follows the stratum; within one it says the opposite, or nothing."""
    values, above, groups = rows([1, 2, 11, 12], [False, False, True, True])
    strata = np.array([0, 0, 1, 1])
    assert area(values, above, groups).value == 1
    assert area(values, above, groups, strata).pairs == 0
    values, above, groups = rows([1, 2, 3, 11, 12, 13], [True, False, False, True, True, False])
    found = area(values, above, groups, np.array([0, 0, 0, 1, 1, 1]))
    assert (found.value, found.pairs) == (0.0, 4)
    assert area(values, above, groups).value == pytest.approx(4 / 9)


def test_complete_separation_is_certain_only_with_many_groups() -> None:
    for n, low in ((3, None), (10, 0.6), (60, 0.9)):
        values = np.arange(2.0 * n)
        found = area(values, values >= n, np.tile(np.arange(n), 2))
        assert found.value == 1
        if low is None:
            assert math.isnan(found.low)
            assert found.why == "too few groups for an interval: 3"
        else:
            assert low < found.low < 1
            assert found.high == 1
    # Many rows of few groups are no more than those groups.
    many = area(np.arange(2000.0), np.arange(2000) >= 1000, np.arange(2000) % 10)
    few = area(np.arange(20.0), np.arange(20) >= 10, np.arange(20) % 10)
    assert (many.low, many.high) == (few.low, few.high)


def test_a_constant_says_nothing() -> None:
    found = area(np.ones(40), np.arange(40) % 2 == 0, np.arange(40) % 10)
    assert found.value == 0.5
    assert found.low < 0.5 < found.high


def test_rows_that_are_one_kind_but_for_one_group_have_no_interval() -> None:
    found = area(np.arange(30.0), np.arange(30) < 3, np.arange(30) // 3)
    assert found.value == 0
    assert math.isnan(found.low)
    assert found.why == "too few groups hold both kinds for an interval"


@pytest.mark.parametrize("strata", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_where_there_is_no_relation_the_interval_holds_a_half_as_often_as_it_says(strata: bool) -> None:
    """Values and kinds that both hang together within a group, and not with each other."""
    generator, held = np.random.default_rng(0), 0
    for _ in range(120):
        groups = np.repeat(np.arange(12), 4)
        values = generator.normal(size=12)[groups] + 0.3 * generator.normal(size=48)
        above = generator.normal(size=12)[groups] + 0.7 * generator.normal(size=48) > 0
        found = area(values, above, groups, np.tile(np.arange(4), 12) if strata else None)
        held += math.isnan(found.low) or found.low <= 0.5 <= found.high
    assert held / 120 >= 0.92


def test_newcombes_interval() -> None:
    """Newcombe (2006) contains the value, mirrors, shrinks, and its ends are where the score test just rejects."""
    for value, m, n in ((0.8, 12, 20), (1.0, 5, 9), (0.0, 5, 9), (0.5, 30, 30)):
        low, high = newcombe(value, m, n, 0.95)
        assert 0 <= low <= value <= high <= 1
        mirrored = newcombe(1 - value, m, n, 0.95)
        assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-6)
        wider = newcombe(value, m // 2, n // 2, 0.95)
        assert wider[1] - wider[0] > high - low
        for end in (low, high):
            if 0 < end < 1:
                spread = 1 + ((m + n) / 2 - 1) * ((1 - end) / (2 - end) + end / (1 + end))
                assert abs(value - end) == pytest.approx(
                    1.959964 * math.sqrt(end * (1 - end) * spread / (m * n)), rel=1e-4
                )


def test_refuses_what_is_not_finite() -> None:
    with pytest.raises(InputError, match="expected finite values"):
        area(*rows([1.0, math.nan], [True, False]))
