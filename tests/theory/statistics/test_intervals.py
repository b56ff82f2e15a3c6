"""Intervals of a mean, a share and a rank correlation: how often they hold, exact cases, and where
there is none. Heaping: every permutation counted one by one, and a p-value that keeps its word.
"""

import math
from itertools import permutations, product
from math import prod
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from ostools.ground.errors import InputError
from ostools.theory.statistics.answers import heaping
from ostools.theory.statistics.intervals import (
    FEWEST,
    Interval,
    bootstrap_mean,
    bootstrap_share,
    expanded,
    fewest_at,
    sign_flip,
    spearman_interval,
    widened,
    wilson,
)
from tests.sets import quick

TRIALS = 3000


def coverage(samples: torch.Tensor, mean: float, level: float = 0.95) -> float:
    """In what share of the columns the interval holds the true mean."""
    low, high = bootstrap_mean(samples, level=level, resamples=1000)
    return float(((low <= mean) & (mean <= high)).double().mean())


@pytest.mark.parametrize(
    ("n", "level"), quick([(15, 0.95), (50, 0.95), (50, 0.8), (200, 0.95)], (15, 0.95), (200, 0.95))
)
def test_coverage_of_a_normals_mean(n: int, level: float) -> None:
    """Within binomial error of what theory says of n samples, and so near the level for many."""
    generator = torch.Generator().manual_seed(n)
    samples = 3 + 2 * torch.randn(n, TRIALS, generator=generator, dtype=torch.float64)
    z = float(scipy.stats.norm.ppf((1 + level) / 2))
    expected = 1 - 2 * float(scipy.stats.t.sf(z * math.sqrt((n - 1) / n), n - 1))
    error = math.sqrt(expected * (1 - expected) / TRIALS)
    # 0.01: a thousand shared resamples are themselves a sample of the quantiles.
    assert abs(coverage(samples, 3.0, level) - expected) < 3 * error + 0.01


def test_laws() -> None:
    samples = torch.randn(7, 4, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    low, high = bootstrap_mean(samples)
    narrower = bootstrap_mean(samples, level=0.5)
    ordered = torch.stack(
        [samples.amin(0), low, narrower.low, samples.mean(0), narrower.high, high, samples.amax(0)]
    )
    assert bool((ordered.diff(dim=0) >= 0).all())
    assert bool((low < narrower.low).all() and (narrower.high < high).all())
    torch.testing.assert_close(bootstrap_mean(3 * samples + 10).low, 3 * low + 10)
    assert torch.equal(bootstrap_mean(samples).low, low)
    assert not torch.equal(bootstrap_mean(samples, seed=1).low, low)
    torch.testing.assert_close(bootstrap_mean(samples[:, 0, 0]).low, low[0, 0])


@pytest.mark.parametrize(
    ("level", "fewest"), [(0.5, FEWEST), (0.75, 3), (0.875, 4), (0.9375, 5), (0.95, 6), (0.999, 11)]
)
def test_fewest_samples_for_a_verdict(level: float, fewest: int) -> None:
    """One sample fewer, and samples of one sign are too common; from there on they are rare enough."""
    assert fewest_at(level) == fewest
    assert 2.0 ** (1 - fewest) <= 1 - level + 1e-12
    assert fewest == FEWEST or 2.0 ** (2 - fewest) > 1 - level


def test_sign_flips_against_scipy_and_by_hand() -> None:
    assert sign_flip(torch.tensor([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip(torch.tensor([1.0, -1.0])) == 1
    assert sign_flip(torch.zeros(4)) == 1
    samples = np.random.default_rng(0).normal(0.6, 1, 10)
    theirs = scipy.stats.permutation_test(
        (samples,), np.mean, permutation_type="samples", n_resamples=2**11
    ).pvalue
    assert sign_flip(torch.tensor(samples)) == pytest.approx(theirs)
    many = torch.tensor(np.random.default_rng(1).normal(0.3, 1, 60))
    student: Any = scipy.stats.ttest_1samp(many.numpy(), 0)
    assert sign_flip(many) == pytest.approx(student.pvalue, rel=0.3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bootstrap_mean(torch.tensor([1.0, 2.0])), "at least 3 samples, found 2"),
        (lambda: bootstrap_mean(torch.tensor([1.0, 2.0, math.nan])), "expected finite samples"),
        (lambda: bootstrap_mean(torch.ones(3), level=95.0), "level between 0 and 1, found 95.0"),
        (lambda: wilson(0, 0), "at least one trial, found 0"),
        *(
            (lambda asked=asked: wilson(0, asked), f"at least one trial, found {asked}")
            for asked in (math.inf, math.nan)
        ),
        (lambda: wilson(3, 2), "from 0 to the 2 trials, found 3"),
        *((lambda right=right: wilson(right, 2), f"found {right}") for right in (-1, math.nan)),
        (lambda: wilson(1, 2, 1.0), "level between 0 and 1, found 1.0"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(("folds", "held"), [(1, 30), (3, 30), (3, 40), (10, 9)])
def test_folds_widen_both_halves_by_the_factor_of_nadeau_and_bengio(folds: int, held: int) -> None:
    """Against the variance as they write it: (1 / J + n_2 / n_1) S^2 in place of S^2 / J."""
    trained, found = 80, Interval(*torch.tensor([0.3, 0.75], dtype=torch.float64))
    factor = math.sqrt((1 / folds + held / trained) / (1 / folds))
    wide = widened(found, 0.5, tested=folds * held, trained=trained)
    assert float(wide.low) == pytest.approx(0.5 - 0.2 * factor, abs=1e-15)
    assert float(wide.high) == pytest.approx(0.5 + 0.25 * factor, abs=1e-15)
    for tested, of in ((0, 1), (1, 0)):
        with pytest.raises(
            InputError, match=f"tested and trained examples, found {tested} and {of}"
        ):
            widened(found, 0.5, tested=tested, trained=of)


def test_the_share_of_groups_of_one_size_is_their_mean_at_the_expanded_level() -> None:
    right = torch.tensor([1.0, 5.0, 8.0, 2.0, 3.0, 7.0], dtype=torch.float64)
    mean = bootstrap_mean((right / 8)[:, None], level=expanded(0.95, 6), seed=3)
    share = bootstrap_share(right, torch.full_like(right, 8), seed=3)
    assert [float(share.low), float(share.high)] == pytest.approx(
        [float(mean.low[0]), float(mean.high[0])]
    )


def test_groups_of_one_share_have_wilsons_interval_around_it() -> None:
    """Of a difference between -1 and 1, that of its place between them."""
    of = torch.tensor([4.0, 8.0, 12.0, 4.0, 4.0, 8.0], dtype=torch.float64)
    assert [float(end) for end in bootstrap_share(of / 4, of)] == pytest.approx(
        list(wilson(1.5, 6))
    )
    signed = [2 * end - 1 for end in wilson(6 * 0.375, 6)]
    assert [float(end) for end in bootstrap_share(-of / 4, of)] == pytest.approx(signed)
    for members in (of[:5], of * (of > 4)):
        with pytest.raises(InputError, match="expected at least 6 groups with members, found"):
            bootstrap_share(members / 4, members)


@pytest.mark.parametrize("asked", [1, 2, 30, 10**6])
def test_exact_ends(asked: int) -> None:
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert wilson(0, asked).low == 0.0
    assert wilson(0, asked).high == pytest.approx(z2 / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).low == pytest.approx(asked / (asked + z2), rel=1e-12)
    assert wilson(asked, asked).high == 1.0


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


def one_by_one(right: list[int], answered: list[int], base: int) -> tuple[float, float]:
    """The mean and the upper tail of the number of multiples, over all permutations of the errors
    within each stratum.
    """
    strata: dict[int, list[tuple[int, int]]] = {}
    for key, answer in zip(right, answered, strict=True):
        strata.setdefault((key - 1) // 10, []).append((key, answer - key))
    arranged = [
        [
            sum((key + error) % base == 0 for (key, _), error in zip(pairs, errors, strict=True))
            for errors in permutations([e for _, e in pairs])
        ]
        for pairs in strata.values()
    ]
    totals = [sum(hits) for hits in product(*arranged)]
    assert len(totals) == prod(map(len, arranged))
    least = sum(answer % base == 0 for answer in answered)
    return float(np.mean(totals)), sum(total >= least for total in totals) / len(totals)


def test_it_counts_every_permutation() -> None:
    rng = np.random.default_rng(0)
    for base in (5, 10):
        for _ in range(40):
            right = [*rng.integers(1, 11, 4).tolist(), *rng.integers(11, 21, 3).tolist()]
            wrong = [key + int(rng.choice([-3, -2, -1, 1, 2, 3])) for key in right]
            found = heaping(right, wrong, base)
            mean, tail = one_by_one(right, wrong, base)
            assert found.expected == pytest.approx(mean, abs=1e-12)
            assert found.p_value == pytest.approx(tail, abs=1e-12)
            assert (found.base, found.wrong) == (base, 7)
            assert found.multiples == sum(answer % base == 0 for answer in wrong)


@pytest.mark.parametrize(
    ("right", "answered", "base", "multiples", "p_value"),
    [
        (
            [11, 12, 13, 14],
            [15, 15, 15, 15],
            5,
            4,
            1 / 24,
        ),  # each error fits its own question alone
        ([11, 12, 13, 14], [15, 15, 15, 15], 10, 0, 1.0),
        ([1, 4], [5, 5], 5, 2, 1 / 2),
        ([1, 4, 11, 14], [5, 5, 15, 15], 5, 4, 1 / 4),  # two strata: 1/2 each
        ([8, 9], [10, 11], 5, 1, 1.0),  # the same error twice
        ([9, 12], [10, 10], 5, 2, 1.0),  # a stratum of one has one arrangement
        ([21, 22, 23, 24, 26, 27, 28, 29], [30] * 8, 10, 8, 1 / 40_320),
    ],
)
def test_known_p_values(
    right: list[int], answered: list[int], base: int, multiples: int, p_value: float
) -> None:
    found = heaping(right, answered, base)
    assert (found.multiples, found.p_value) == (multiples, pytest.approx(p_value, rel=1e-12))


def test_under_the_null_a_p_value_is_no_smaller_than_it_says() -> None:
    """All arrangements of one set of errors are as likely: their p-values have P(p <= a) <= a, and
    = a where a is reached.
    """
    keys, errors = [11, 12, 13, 14, 15, 16], [4, 3, 2, -1, 1, -6]
    values = [
        heaping(keys, [key + error for key, error in zip(keys, order, strict=True)], 5).p_value
        for order in permutations(errors)
    ]
    for level in set(values):
        assert np.mean(np.array(values) <= level + 1e-12) == pytest.approx(level, abs=1e-12)
    assert len(set(values)) > 3


@pytest.mark.parametrize(("right", "answered"), [([], []), ([3], [3]), ([3, 4], [5])])
def test_refuses_what_is_no_wrong_answer(right: list[int], answered: list[int]) -> None:
    with pytest.raises(
        InputError, match="expected wrong answers, one for each of at least one question"
    ):
        heaping(right, answered, 5)
