"""Odds ratios against closed forms, another optimiser and a sandwich by hand; what has none is refused, and coverage holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student

from ostools.ground.errors import InputError
from ostools.theory.statistics import logistic
from ostools.theory.statistics.logistic import OddsRatio, odds_ratio, separated


def drawn(
    rng: np.random.Generator, groups: int, slope: float, share: float, together: float, rows: int = 5
) -> tuple[Any, Any, Any, Any]:
    """log10 values and held, outcomes and groups: P(above | x, h) is exactly logistic, and rows of a group correlate."""

    def correlated() -> np.ndarray:
        own, shared = rng.standard_normal((groups, rows)), rng.standard_normal((groups, 1))
        return math.sqrt(together) * shared + math.sqrt(1 - together) * own

    h = np.tile(np.linspace(-1, 1, rows), (groups, 1))
    x = 0.8 * correlated() - 0.85 * h
    above = norm.cdf(correlated()) < expit(math.log(share / (1 - share)) + slope * x - 0.5 * h)
    return x.ravel(), h.ravel(), above.ravel(), np.repeat(np.arange(groups), rows)


def by_hand(columns: np.ndarray, above: np.ndarray, groups: np.ndarray, level: float) -> tuple[float, float, float]:
    """The likelihood's maximum by a general optimiser; the sandwich group by group."""

    def loss(b: np.ndarray) -> float:
        z = columns @ b
        return float(np.logaddexp(0, z).sum() - z[above].sum())

    def slope(b: np.ndarray) -> np.ndarray:
        return columns.T @ (expit(columns @ b) - above)

    start = np.zeros(columns.shape[1])
    b = minimize(loss, start, jac=slope, method="BFGS", options={"gtol": 1e-10}).x
    mu = expit(columns @ b)
    bread = np.linalg.inv(columns.T @ (columns * (mu * (1 - mu))[:, None]))
    meat = np.zeros_like(bread)
    names = set(groups.tolist())
    for name in names:
        score = columns[groups == name].T @ (above - mu)[groups == name]
        meat += np.outer(score, score)
    n, k = columns.shape
    many = len(names)
    covariance = bread @ meat @ bread * many / (many - 1) * (n - 1) / (n - k)
    half = student.ppf((1 + level) / 2, many - 1) * math.sqrt(covariance[1, 1])
    return math.exp(b[1] - half), math.exp(b[1]), math.exp(b[1] + half)


def steps(logs: np.ndarray) -> np.ndarray:
    return (logs - logs.mean()) / logs.std(ddof=1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("held", [False, True])
def test_it_is_the_likelihoods_maximum_with_the_sandwich_of_groups(seed: int, held: bool) -> None:
    x, h, above, groups = drawn(np.random.default_rng(seed), 8 + 3 * seed, 0.7, 0.4, 0.4)
    names = np.array([f"seed {group}" for group in groups])
    found = odds_ratio(10**x, above, names, 10**h if held else None, level=0.99)
    columns = np.column_stack([np.ones(len(x)), steps(x), *([steps(h)] if held else [])])
    assert (found.low, found.value, found.high) == pytest.approx(by_hand(columns, above, groups, 0.99), rel=1e-6)
    assert (found.rows, found.groups, found.why) == (len(x), 8 + 3 * seed, "")
    assert found.spread == pytest.approx(x.std(ddof=1), rel=1e-12)


def test_of_two_values_it_is_the_cross_ratio_of_the_table() -> None:
    """9 and 4 above of 20 with the larger and of 15 with the smaller value."""
    large, small = [True] * 9 + [False] * 11, [True] * 4 + [False] * 11
    values, above = np.array([100.0] * 20 + [10.0] * 15), np.array(large + small)
    groups = np.random.default_rng(0).permutation(np.arange(35) % 10)
    found = odds_ratio(values, above, groups)
    decade = found.value ** (1 / found.spread)  # the two values are one decade apart
    assert decade == pytest.approx((9 * 11) / (11 * 4), rel=1e-9)
    turned = odds_ratio(1 / values, above, groups)
    assert (turned.low, turned.value, turned.high) == pytest.approx((1 / found.high, 1 / found.value, 1 / found.low))


@given(st.integers(0, 200), st.floats(0.01, 100), st.floats(0.2, 5))
@settings(max_examples=15, deadline=None)
def test_units_do_not_matter_and_the_other_outcome_turns_it_over(seed: int, factor: float, power: float) -> None:
    x, h, above, groups = drawn(np.random.default_rng(seed), 12, 0.5, 0.5, 0.3)
    found = odds_ratio(10**x, above, groups, 10**h)
    other = odds_ratio(factor * 10 ** (power * x), above, groups, 1 / 10**h)
    assert other.why == found.why
    if not found.why:
        assert (other.low, other.value, other.high) == pytest.approx((found.low, found.value, found.high), rel=1e-6)
        over = odds_ratio(10**x, ~above, groups, 10**h)
        assert (over.low, over.value, over.high) == pytest.approx((1 / found.high, 1 / found.value, 1 / found.low))


def plain(**changed: Any) -> OddsRatio:
    """A table that has an odds ratio, with columns changed."""
    x, h, above, groups = drawn(np.random.default_rng(1), 12, 0.5, 0.5, 0.3)
    columns = {"values": 10**x, "above": above, "groups": groups, "held": 10**h}
    columns |= {name: change(columns[name]) for name, change in changed.items()}
    return odds_ratio(**columns)


def with_first(value: float) -> Any:
    return lambda column: np.concatenate([[value], column[1:]])


def few(number: int) -> Any:
    return lambda column: np.isin(np.arange(len(column)), np.arange(0, 5 * number, 5))


X = drawn(np.random.default_rng(1), 12, 0.5, 0.5, 0.3)[0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"values": with_first(0.0)}, "value not above 0 in 1 of 60 rows: it has no logarithm"),
        ({"values": with_first(-1.0)}, "value not above 0 in 1 of 60"),
        ({"values": with_first(math.nan)}, "value not finite in 1 of 60"),
        ({"values": with_first(math.inf)}, "value not finite in 1 of 60"),
        ({"held": with_first(0.0)}, "what is held not above 0 in 1 of 60"),
        ({"above": lambda column: column | True}, "all 60 rows have one outcome"),
        ({"above": lambda column: column & False}, "all 60 rows have one outcome"),
        ({"values": lambda column: 0 * column + 0.3}, "the value is the same in every row"),
        ({"values": lambda column: 0.3 * (1 + 1e-15 * column)}, "the value is the same in every row"),
        (
            {"values": lambda column: 7 * (10 ** np.tile(np.linspace(-1, 1, 5), 12)) ** -2.5},
            "follows from what is held",
        ),
        ({"groups": lambda column: column % 7}, "too few groups: 7, it takes 8"),
        ({"above": few(4)}, "too few groups hold the rarer outcome: 4, it takes 5"),
        ({"above": lambda column: ~few(4)(column)}, "too few groups hold the rarer outcome: 4"),
        ({"above": lambda column: np.median(X) < X}, "a threshold tells the outcomes apart"),
        ({"above": lambda column: np.tile(np.arange(5), 12) > 2}, "a threshold tells the outcomes apart"),
    ],
)
def test_what_has_no_odds_ratio_has_a_reason_and_no_number(changed: dict[str, Any], why: str) -> None:
    assert plain().why == ""
    found = plain(**changed)
    assert why in found.why
    assert all(math.isnan(number) for number in (found.low, found.value, found.high))


def test_rows_on_the_threshold_do_not_hide_a_separation() -> None:
    """Quasi-complete: at one value both outcomes stand, and each side of it has only one."""
    values = np.array([1.0, 2.0, 2.0, 3.0] * 10)
    above = np.array([False, False, True, True] * 10)
    groups = np.arange(40) // 4
    assert "a threshold" in odds_ratio(values, above, groups).why
    one = np.append(values, 0.5), np.append(above, True), np.append(groups, 0)  # one row on the other side
    assert odds_ratio(*one).why == ""


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=4, max_size=12))
@settings(max_examples=100, deadline=None)
def test_separated_is_what_a_search_over_directions_finds(rows: list[tuple[int, int, bool]]) -> None:
    """Of small whole columns it is enough to try the directions that some rows make: those at right angles to two of them."""
    columns = np.array([[1, a, b] for a, b, _ in rows], dtype=float)
    above = np.array([outcome for *_, outcome in rows])
    if np.linalg.matrix_rank(columns) < 3:
        return
    turned = np.where(above[:, None], columns, -columns)
    tried = [sign * np.cross(one, other) for one in columns for other in columns for sign in (1, -1)]
    found = any((turned @ b >= 0).all() and (turned @ b > 0).any() for b in tried)
    # The cone of such directions, where there is one, has an edge: it lies at right angles to two rows that are no multiples.
    assert separated(columns, above) == found


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0, 1.0]])
def test_groups_that_all_say_the_same_have_no_interval(values: list[float]) -> None:
    """Whichever of the two values is the more frequent."""
    above = np.array([True, False, True, True, False] * 9)
    assert "all groups say the same" in odds_ratio(np.array(values * 9), above, np.arange(45) // 5).why


def test_what_does_not_converge_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from statsmodels.genmod.generalized_linear_model import GLM

    whole = GLM.fit
    monkeypatch.setattr(GLM, "fit", lambda self, **options: whole(self, **{**options, "maxiter": 1}))
    assert plain().why == "the fit did not converge"
    monkeypatch.undo()
    monkeypatch.setattr(logistic, "_LARGEST", 0.0)
    assert plain().why == "the interval has no end that a float holds"


def test_refuses() -> None:
    x = np.ones(3)
    with pytest.raises(InputError, match="level between 0 and 1"):
        odds_ratio(x, x > 0, np.arange(3), level=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [8, 16])
def test_the_interval_holds_the_true_factor_about_as_often_as_it_says(groups: int) -> None:
    """600 tables each, of which 95% would be 570; see `odds_ratio` for 2,000."""
    for share, slope, together in ((0.5, 1.0, 0.5), (0.3, 0.0, 0.5), (0.3, 1.0, 0.1)):
        rng = np.random.default_rng(groups)
        held = []
        for _ in range(600):
            x, h, above, names = drawn(rng, groups, slope, share, together)
            found = odds_ratio(10**x, above, names, 10**h)
            if not found.why:
                held.append(found.low <= math.exp(slope * found.spread) <= found.high)
        assert len(held) > 300
        assert 0.90 < np.mean(held) < 0.98
