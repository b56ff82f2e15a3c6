"""Norms from a few orthonormal rows: exact cases, and coverage over many repetitions, whatever the
spectrum.

A repetition is a position of the batch: thousands of sketches of the same matrix in one call.
"""

import pytest
import torch
from scipy.stats import beta
from torch import Tensor

from ostools.theory.statistics.estimates import Sketch, orthonormal_rows

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


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sketches(eigenvalues: Tensor, rows: int, repetitions: int = REPETITIONS) -> Sketch:
    """Of a matrix whose J J^T has these eigenvalues: in law what any such J gives, each repetition
    with rows of its own.
    """
    drawn = torch.randn(
        repetitions, len(eigenvalues), rows, generator=seeded(0), dtype=torch.float64
    )
    return Sketch.of((torch.linalg.qr(drawn).Q * eigenvalues.sqrt()[:, None]).permute(2, 0, 1))


def coverage(sketch: Sketch, level: float) -> float:
    trace = sketch.trace_interval(level)
    return float(((trace.lower <= 1 + 1e-12) & (trace.upper >= 1 - 1e-12)).double().mean())


def test_rows_are_orthonormal_beside_all_that_were_drawn_before() -> None:
    generator = seeded(1)
    drawn = [orthonormal_rows(4, 11, generator)]
    drawn.append(orthonormal_rows(5, 11, generator, drawn))
    drawn.append(orthonormal_rows(2, 11, generator, drawn))
    rows = torch.cat(drawn)
    torch.testing.assert_close(
        rows @ rows.T, torch.eye(11, dtype=torch.float64), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("batches", [[16], [4, 12], [1, 15]])
def test_all_rows_give_the_norm_itself(batches: list[int]) -> None:
    """An orthonormal basis loses nothing, in one batch or in several; the interval closes."""
    jacobians = torch.randn(6, 16, 16, generator=seeded(2), dtype=torch.float64)
    jacobians[1] = torch.outer(jacobians[1, 0], jacobians[1, 1])
    basis = orthonormal_rows(16, 16, seeded(3))
    parts = [
        Sketch.of(torch.einsum("kd,pde->kpe", rows, jacobians)) for rows in basis.split(batches)
    ]
    found = sum(parts[1:], parts[0]).trace_interval(0.05)
    for value in (found.lower, found.value, found.upper):
        torch.testing.assert_close(
            value, torch.linalg.matrix_norm(jacobians).square(), rtol=1e-13, atol=0
        )


def test_one_row_of_an_isometry_says_everything() -> None:
    flat = sketches(SPECTRA["flat"], 4, 20).trace_interval(0.05)
    for end in (flat.lower, flat.upper):
        torch.testing.assert_close(end, torch.ones_like(end), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rows", [8, 100])
def test_rank_one_has_the_beta_interval(rows: int) -> None:
    found = sketches(5.0 * _spike(1.0), rows, 20).trace_interval(0.1)
    share = beta(rows / 2, (D - rows) / 2)
    torch.testing.assert_close(found.lower, found.value * rows / D / float(share.ppf(0.95)))
    torch.testing.assert_close(found.upper, found.value * rows / D / float(share.ppf(0.05)))


def test_both_ends_are_of_one_variance() -> None:
    """The upper end is rank one's, drawn towards 1 by the root of a variance; the lower one the
    Beta's of that variance.
    """
    rows, spectrum = 64, SPECTRA["spike 0.3"]
    found = sketches(spectrum, rows, 100).trace_interval(0.1)
    above_of_rank_one = rows / D / float(beta(rows / 2, (D - rows) / 2).ppf(0.05)) - 1
    variance = (
        2 * (D - 1) / (D + 2) * ((found.upper / found.value - 1) / above_of_rank_one).square()
    )
    assert float(variance.mean()) == pytest.approx(
        2 / (D + 2) * (D * float(spectrum.square().sum()) - 1), rel=0.05
    )
    shape = ((D - 1) / variance - 1) / D
    share = torch.from_numpy(beta(shape * rows, shape * (D - rows)).ppf(0.95))
    torch.testing.assert_close(found.lower, found.value * rows / D / share)


def test_the_largest_singular_value_of_some_rows_is_a_lower_bound() -> None:
    for values in SPECTRA.values():
        assert bool((sketches(values, 16, 50).largest <= values.max() * (1 + 1e-12)).all())


@pytest.mark.parametrize("name", ["rank one", "spike 0.3", "power 1.0"])
def test_eight_rows_are_unbiased_and_their_intervals_hold(name: str) -> None:
    sketch = sketches(SPECTRA[name], 8)
    value = sketch.trace_interval(0.05).value
    assert float(value.mean()) == pytest.approx(1.0, abs=4 * float(value.std()) / REPETITIONS**0.5)
    assert coverage(sketch, 0.05) >= 0.94


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(
    ("rows", "level"),
    [(2, 0.05), (4, 0.05), (8, 0.05), (16, 0.05), (16, 0.01), (32, 0.05), (96, 0.05)],
)
def test_intervals_hold_whatever_the_spectrum(name: str, rows: int, level: float) -> None:
    assert coverage(sketches(SPECTRA[name], rows), level) >= 1.0 - level - 0.012
