"""The area under the ROC curve against scikit-learn's, and the coverage of its interval."""

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.metrics import roc_auc_score

from ostools.ground.errors import InputError
from scripts.behaviour.separation import separation

RNG = np.random.default_rng


@pytest.mark.parametrize("seed", range(3))
def test_it_is_sklearns_area_ties_too(seed: int) -> None:
    rng = RNG(seed)
    scores, right = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
    found = separation(scores.tolist(), right.tolist())
    assert found.area == pytest.approx(roc_auc_score(right, scores), abs=1e-12)
    assert found.low < found.area < found.high
    turned = separation((-scores).tolist(), right.tolist())
    ours = (turned.area, turned.low, turned.high)
    assert ours == pytest.approx((1 - found.area, 1 - found.high, 1 - found.low), abs=1e-9)


def test_within_strata_what_differs_between_them_separates_nothing() -> None:
    """Within each of two lengths the scores say nothing. A stratum of right ones alone has no pair."""
    scores, right = [1.0, 1.0, 1.0, 9.0, 9.0, 9.0], [False, False, True, True, True, False]
    lengths = [4, 4, 4, 8, 8, 8]
    assert separation(scores, right).area == pytest.approx(6 / 9)
    within = separation(scores, right, lengths)
    assert (within.area, within.pairs) == (0.5, 4)
    assert separation([*scores, 5.0, 6.0], [*right, True, True], [*lengths, 12, 12]) == within


def test_a_perfect_separation_has_an_interval_that_narrows() -> None:
    found = [
        separation([float(k) for k in range(2 * count)], [False] * count + [True] * count)
        for count in (2, 10, 50)
    ]
    assert [(one.area, one.high) for one in found] == [(1.0, 1.0)] * 3
    assert 0 < found[0].low < found[1].low < found[2].low < 1


@pytest.mark.parametrize(("shift", "strata"), [(0.0, 1), (2.5, 4)])
def test_the_interval_holds_the_true_area(shift: float, strata: int) -> None:
    """Normals `shift` apart, in strata far from each other: the area is Phi(shift / sqrt 2)."""
    rng, true, trials = RNG(0), float(ndtr(shift / 2**0.5)), 200
    stratum = np.arange(48) % strata
    held = 0
    for _ in range(trials):
        right = rng.random(48) < 0.35
        scores = rng.normal(size=48) + shift * right + 50 * stratum
        found = separation(scores.tolist(), right.tolist(), stratum.tolist())
        held += found.low <= true <= found.high
    assert held / trials >= 0.92


@pytest.mark.parametrize(
    ("scores", "right", "strata", "message"),
    [
        ([1.0, 2.0], [True], None, "each of 1 answers, found 2 scores"),
        ([1.0, float("nan")], [True, False], None, "1 of them no number"),
        ([1.0, 2.0], [True, True], None, "a right and a wrong answer in one stratum, found none"),
        ([1.0, 2.0], [True, False], [1, 2], "in one stratum, found none"),
    ],
)
def test_what_has_no_area_is_refused(
    scores: list[float], right: list[bool], strata: list[int] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        separation(scores, right, strata)
