"""Intervals and limits from a few Gaussian rows: exact cases, coverage over many repetitions, any spectrum.

A repetition is a position of the batch: thousands of Gram matrices of the same matrix in one call.
"""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from ostools.theory.statistics.estimates import (
    complement,
    effective_rank,
    gram,
    norm_limit,
    orthonormal_rows,
    trace_interval,
)

D, REPETITIONS = 128, 2000


def _spike(share: float, count: int = 1) -> Tensor:
    """`count` eigenvalues with `share` of the trace, the others with the rest."""
    values = torch.full((D,), (1 - share) / (D - count), dtype=torch.float64)
    values[:count] = share / count
    return values


_K = torch.arange(1, D + 1, dtype=torch.float64)
SPECTRA: dict[str, Tensor] = {
    "rank one": _spike(1.0),
    "rank two, unequal": torch.cat([torch.tensor([0.9, 0.1]), torch.zeros(D - 2)]).double(),
    "flat": torch.ones(D, dtype=torch.float64) / D,
    **{f"power {power}": _K**-power / (_K**-power).sum() for power in (0.5, 1.0, 2.0)},
    **{f"spike {share}": _spike(share) for share in (0.05, 0.1, 0.2, 0.3, 0.6, 0.9)},
    "three spikes": _spike(0.5, 3),
}


def grams(eigenvalues: Tensor, rows: int, repetitions: int = REPETITIONS, seed: int = 0) -> Tensor:
    """G = Z diag(eigenvalues) Z^T for fresh Gaussian Z: in law, what any M with these eigenvalues gives."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(repetitions, rows, len(eigenvalues), generator=generator, dtype=torch.float64)
    return (z * eigenvalues) @ z.mT


def test_gram_is_that_of_the_rows_of_each_position() -> None:
    rows = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    found = gram(rows)
    assert found.shape == (5, 3, 3)
    for position in range(5):
        here = rows[:, position].double()
        torch.testing.assert_close(found[position], here @ here.T)
    torch.testing.assert_close(gram(rows[:1], rows[1:]), found)


def test_basis_is_orthonormal_and_spans_the_sketch_and_the_complement_is_orthogonal_to_it() -> None:
    generator = torch.Generator().manual_seed(1)
    sketch = torch.randn(4, 11, generator=generator)
    basis = orthonormal_rows(sketch)
    torch.testing.assert_close(basis @ basis.T, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close((sketch.double() @ basis.T) @ basis, sketch.double())
    vectors = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    outside = complement(vectors, basis)
    torch.testing.assert_close(outside @ basis.T, torch.zeros(6, 4, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(complement(outside, basis), outside)
    torch.testing.assert_close((vectors - outside) - (vectors @ basis.T) @ basis, torch.zeros_like(vectors))


def test_effective_rank_is_one_for_rank_one_and_zero_and_the_rank_of_a_flat_spectrum() -> None:
    torch.testing.assert_close(effective_rank(grams(3.0 * _spike(1.0), 8, 50)), torch.ones(50, dtype=torch.float64))
    assert effective_rank(torch.zeros(2, 4, 4, dtype=torch.float64)).tolist() == [1.0, 1.0]
    for values in SPECTRA.values():
        nu = float(1.0 / values.square().sum())
        assert bool((effective_rank(grams(values, 4)) >= 1.0).all())
        assert float(effective_rank(grams(values, 200, 50)).mean()) == pytest.approx(nu, rel=0.1)


@pytest.mark.parametrize("rows", [8, 32])
def test_rank_one_has_the_chi_square_interval(rows: int) -> None:
    found = trace_interval(grams(5.0 * _spike(1.0), rows, 20), 0.1)
    torch.testing.assert_close(found.lower, found.value * rows / float(chi2.ppf(0.95, rows)))
    torch.testing.assert_close(found.upper, found.value * rows / float(chi2.ppf(0.05, rows)))


def test_a_matrix_that_is_zero_has_norms_zero() -> None:
    nothing = torch.zeros(3, 8, 8, dtype=torch.float64)
    found = trace_interval(nothing, 0.05)
    for value in (found.value, found.lower, found.upper, norm_limit(nothing, 0.05)):
        assert value.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("rows", "level"), [(8, 0.05), (16, 0.05), (16, 0.01), (32, 0.05)])
def test_intervals_cover_the_trace_and_the_estimate_is_unbiased(name: str, rows: int, level: float) -> None:
    found = trace_interval(grams(SPECTRA[name], rows), level)
    noise = float(found.value.std()) / REPETITIONS**0.5
    assert float(found.value.mean()) == pytest.approx(1.0, abs=4 * noise)
    assert bool(((found.lower <= found.value) & (found.value <= found.upper)).all())
    covered = float(((found.lower <= 1.0) & (found.upper >= 1.0)).double().mean())
    assert covered >= 1.0 - level - 0.015


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("rows", "level"), [(4, 0.05), (16, 0.05), (16, 0.005)])
def test_norm_limit_is_a_limit_for_every_spectrum_and_attained_at_rank_one(name: str, rows: int, level: float) -> None:
    made = grams(SPECTRA[name], rows)
    limit = norm_limit(made, level)
    missed = float((limit < SPECTRA[name].max()).double().mean())
    noise = 3.5 * (level / REPETITIONS) ** 0.5
    assert missed <= level + noise
    if name == "rank one":
        assert missed >= level - noise
    frobenius = made.diagonal(dim1=-2, dim2=-1).sum(-1) / float(chi2.ppf(level, rows))
    assert bool((limit <= frobenius * (1 + 1e-12)).all())
    if name == "flat":
        assert float((frobenius / limit).median()) > 0.4 * rows
