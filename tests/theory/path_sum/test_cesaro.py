"""Uniform causal attention: the closed form against the product of matrices, and in whole numbers against Fractions."""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial, log

import pytest
import torch

from ostools.theory import cesaro, paths


def product(weights: list[float], pos: int) -> torch.Tensor:
    """The last row of A^(L-1) ... A^(0), matrix by matrix."""
    mean = torch.ones(pos, pos, dtype=torch.float64).tril() / torch.arange(1, pos + 1)[:, None]
    eye = torch.eye(pos, dtype=torch.float64)
    return paths.path_row([weight * eye + (1 - weight) * mean for weight in weights])


@pytest.mark.parametrize("pos", [1, 2, 7, 300])
@pytest.mark.parametrize("weights", [[0.5], [0.0, 0.0, 0.0], [1.0, 1.0], [0.9, 0.2, 0.55, 0.0, 1.0, 0.3]])
def test_the_closed_form_is_the_product_of_matrices(weights: list[float], pos: int) -> None:
    found = cesaro.cesaro_row(weights, pos)
    torch.testing.assert_close(found, product(weights, pos), rtol=1e-13, atol=0.0)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-14)


def test_powers_are_hausdorffs_formula_in_fractions() -> None:
    """(C^k)_{n,i} = binom(n-1, i-1) sum_j (-1)^j binom(n-i, j) / (i + j)^k, exactly: another route, no matrix in it."""
    n, k = 12, 5
    exact = [
        comb(n - 1, i - 1) * sum((-1) ** j * comb(n - i, j) * Fraction(1, (i + j) ** k) for j in range(n - i + 1))
        for i in range(1, n + 1)
    ]
    assert cesaro.cesaro_row([0.0] * k, n).tolist() == pytest.approx([float(entry) for entry in exact], rel=1e-14)


def test_the_limit_is_the_papers_density() -> None:
    """n (C^k)_{n,xn} tends to (ln 1/x)^(k-1) / (k-1)!, with an error of order 1/n."""
    k, x = 4, 0.25
    errors = []
    for n in (1000, 10000):
        found = n * float(cesaro.cesaro_row([0.0] * k, n)[round(x * n) - 1])
        errors.append(abs(found - log(1 / x) ** (k - 1) / factorial(k - 1)))
    assert errors[1] < errors[0] / 9 < 1e-3


def test_the_ends_stand_above_the_middle() -> None:
    """A U: the first tokens by the mask, the last one by its skip."""
    row = cesaro.cesaro_row([0.8] * 6, 64)
    assert row[0] > row[20] > row[40]
    assert row[-1] > row[0]
    assert float(row[-1]) > 0.8**6


def test_the_residual_weight_of_known_maps() -> None:
    """Nothing attends: 1. The identity as value map, ||I||_F = sqrt(d): a half."""
    assert cesaro.residual_weight(0.0, 16) == 1.0
    assert cesaro.residual_weight(4.0, 16) == 0.5
