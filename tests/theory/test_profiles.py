"""The test for a U on profiles whose truth is known: how often it errs and sees, and exact cases;
profiles of many texts.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from ostools.ground.errors import InputError
from ostools.theory import profiles
from ostools.theory.profiles import UShape, u_shape
from tests.sets import quick

TIMES = 300


def noise(random: np.random.Generator, count: int, correlation: float) -> np.ndarray:
    """Scatter of 0.3 decades, each token correlated with the one before it; as measured profiles
    scatter.
    """
    values = np.asarray(lfilter([1.0], [1.0, -correlation], random.standard_normal(count + 50)))
    return 0.3 * np.sqrt(1 - correlation**2) * values[50:]


def simulated(
    truth: Callable[[np.ndarray], np.ndarray], count: int, correlation: float
) -> list[UShape]:
    random = np.random.default_rng(count)
    mean = truth(np.linspace(0.0, 1.0, count))
    return [u_shape(mean + noise(random, count, correlation)) for _ in range(TIMES)]


def rate(found: list[UShape], *verdicts: str) -> float:
    return sum(shape.verdict in verdicts for shape in found) / len(found)


MONOTONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "decay from the start": lambda x: -1.0 * np.sqrt(x),
    "fast decay from the start": lambda x: np.exp(-8 * x),
    "recency": lambda x: 1.5 * np.exp(-10 * (1 - x)),
    "straight": lambda x: 2.0 * x,
}


@pytest.mark.parametrize("name", MONOTONE)
def test_a_profile_that_only_rises_or_only_falls_is_no_u(name: str) -> None:
    """One contrast is true here, the other nominally 2.5%."""
    found = simulated(MONOTONE[name], 128, 0.3)
    assert rate(found, "U-shape") <= 0.05
    assert rate(found, "rises at the start only", "rises at the end only") >= 0.7


def test_a_u_is_seen_and_an_inverted_one_is_not_called_a_u() -> None:
    def u(x: np.ndarray) -> np.ndarray:
        return 3.2 * (x - 0.5) ** 2

    assert rate(simulated(u, 128, 0.3), "U-shape") >= 0.7
    assert rate(simulated(u, 256, 0.3), "U-shape") >= 0.95
    assert rate(simulated(lambda x: -u(x), 256, 0.3), "inverted U") >= 0.95


@pytest.mark.parametrize("count", quick([12, 20, 38, 60], 20))
@pytest.mark.parametrize("correlation", quick([0.0, 0.3, 0.5], 0.0, 0.5))
def test_intervals_of_short_prompts_hold(count: int, correlation: float) -> None:
    """Nominally 95%; 2 x 300 contrasts have a standard error of 1%."""
    found = simulated(np.zeros_like, count, correlation)
    held = [
        getattr(shape, end).low <= 0 <= getattr(shape, end).high
        for shape in found
        for end in ("start", "end")
    ]
    assert np.mean(held) >= 0.91


@given(seed=st.integers(0, 10_000), count=st.integers(profiles.SHORTEST, 150))
def test_shift_scale_mirror_and_the_agreement_of_p_with_the_interval(seed: int, count: int) -> None:
    # Blocks mirror exactly only if they are equally long: nine of them below 64 tokens, else
    # fifteen.
    tokens = 15 * (count // 15) if count >= 75 else 9 * (min(count, 63) // 9)
    values = noise(np.random.default_rng(seed), max(18, tokens), 0.3)
    one, shifted, scaled, mirrored = (
        u_shape(v) for v in (values, values + 7.0, 2.0 * values, values[::-1].copy())
    )
    for name in ("start", "end"):
        interval = getattr(one, name)
        assert (interval.p < 0.05) == (not interval.low <= 0 <= interval.high)
        assert getattr(shifted, name).high == pytest.approx(interval.high, abs=1e-9)
        assert getattr(scaled, name).low == pytest.approx(2 * interval.low, abs=1e-9)
    assert (mirrored.start.value, mirrored.end.value) == pytest.approx(
        (one.end.value, one.start.value), abs=1e-12
    )
    assert one.start.value == pytest.approx(one.thirds[0] - one.thirds[1], abs=1e-12)
    assert np.mean(one.thirds) == pytest.approx(values.mean(), abs=1e-12)


def test_shares_and_effective_tokens() -> None:
    assert profiles.shares(np.array([1.0, 3.0])).tolist() == [0.25, 0.75]
    assert profiles.shares(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert profiles.effective_tokens(np.full(8, 1 / 8)) == pytest.approx(8)
    assert profiles.effective_tokens(np.array([0.0, 1.0, 0.0])) == pytest.approx(1)
    assert profiles.effective_tokens(np.zeros(0)) == 0.0


@pytest.mark.parametrize(("pos", "bins"), [(8, 4), (8, 8), (7, 3), (5, 8), (64, 32), (1, 1)])
def test_every_token_counts_in_a_bin_by_the_part_of_it_that_lies_there(pos: int, bins: int) -> None:
    """Against fractions, interval by interval."""
    shares = [Fraction(i + 1, pos * (pos + 1) // 2) for i in range(pos)]

    def inside(i: int, place: int) -> Fraction:
        end, start = (
            min(Fraction(i + 1, pos), Fraction(place + 1, bins)),
            max(Fraction(i, pos), Fraction(place, bins)),
        )
        return max(end - start, Fraction(0))

    expected = [
        bins * sum(share * pos * inside(i, place) for i, share in enumerate(shares))
        for place in range(bins)
    ]
    (found,) = profiles.binned(np.array([[float(share) for share in shares]]), bins)
    assert sum(expected) == bins
    np.testing.assert_allclose(found, [float(value) for value in expected], rtol=1e-14)


def test_the_interval_is_over_texts() -> None:
    texts = np.random.default_rng(0).normal(size=(9, 4))
    low, high = profiles.interval_of_mean(texts)
    error = texts.std(0, ddof=1) / 3 * stats.t.ppf(0.975, 8)
    np.testing.assert_allclose((high - low) / 2, error, rtol=0.25)
    assert np.isnan(profiles.interval_of_mean(texts[:5])).all()


@pytest.mark.parametrize("texts", [3, 4, 5, 6, 9])
def test_an_interval_of_few_texts_holds_the_mean_as_often_as_it_says(texts: int) -> None:
    """Of a normal's mean in 95% of cases, within 2%; where it would hold it less often, there is
    none."""
    low, high = profiles.interval_of_mean(np.random.default_rng(1).normal(size=(texts, 4000)))
    assert ((low <= 0) & (high >= 0)).mean() > 0.93 or np.isnan([low, high]).all()


def test_the_ends_are_tested_as_by_students_t() -> None:
    contrasts = np.random.default_rng(2).normal(0.3, 1, size=(12, 2))
    ends = profiles.ends_over_texts(contrasts)
    for found, values in zip((ends.start, ends.end), contrasts.T, strict=True):
        known: Any = stats.ttest_1samp(values, 0.0)
        low, high = known.confidence_interval(0.95)
        expected = (values.mean(), low, high, known.pvalue)
        np.testing.assert_allclose(
            (found.value, found.low, found.high, found.p), expected, rtol=1e-10
        )


def test_a_rank_correlation_needs_three_values() -> None:
    rising = np.arange(4.0)
    found = [profiles.rank_correlation(rising[:n], rising[:n] ** 2) for n in (2, 3, 4)]
    assert found == pytest.approx([np.nan, 1.0, 1.0], nan_ok=True)


def test_bins_are_at_most_the_tokens_of_the_shortest_window() -> None:
    assert [profiles.checked_bins(bins, [20, 16]) for bins in (1, 15, 16)] == [1, 15, 16]
    with pytest.raises(
        InputError, match="bins: expected at most 16, the tokens of the shortest, found 17"
    ):
        profiles.checked_bins(17, [20, 16])
