"""Heaping: every permutation counted one by one, exact p-values of made answers, and a p-value that
keeps its word.
"""

from itertools import permutations, product
from math import prod

import numpy as np
import pytest

from ostools.ground.errors import InputError
from ostools.theory.statistics.answers import heaping


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
