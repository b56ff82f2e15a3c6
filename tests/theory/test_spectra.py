"""Lemma B.6, B.7 and Proposition 5.2 on matrices made by hand and at random, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory import spectra


def random_pattern(seed: int, size: int, sharp: float = 1.0) -> Tensor:
    """Softmax over random scores with a causal mask: what attention makes; `sharp` brings it near one-hot."""
    scores = sharp * torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


PATTERNS = st.builds(
    random_pattern, seed=st.integers(0, 10_000), size=st.integers(2, 12), sharp=st.sampled_from([0.1, 1.0, 10.0])
)


def dense_eigenvalues(matrix: Tensor) -> np.ndarray:
    return np.sort(np.abs(np.linalg.eigvals(matrix.numpy())))


@given(PATTERNS)
def test_the_diagonal_is_the_spectrum_with_1_the_largest(pattern: Tensor) -> None:
    for matrix in (pattern, spectra.lazy(pattern)):
        found = np.sort(spectra.eigenvalues(matrix).numpy())
        assert found == pytest.approx(dense_eigenvalues(matrix), abs=1e-8)
        assert found[-1] == pytest.approx(1.0, abs=1e-12)
        assert float(spectra.second_eigenvalue(matrix)) == pytest.approx(found[-2], abs=1e-12)


@given(PATTERNS, st.data())
def test_1_is_simple_if_and_only_if_no_later_token_attends_to_itself_alone(
    pattern: Tensor, data: st.DataObject
) -> None:
    stuck = data.draw(st.sets(st.integers(1, len(pattern) - 1)))
    for row in stuck:
        pattern[row] = torch.eye(len(pattern), dtype=pattern.dtype)[row]
    assert float(spectra.multiplicity(pattern, rounding=0.0)) == pytest.approx(1 + len(stuck))
    if not stuck and float(spectra.second_eigenvalue(pattern)) < 0.9:
        # Simple: the powers have a limit of rank one, all of it in the first column.
        limit = torch.linalg.matrix_power(pattern, 400)
        assert limit[:, 0] == pytest.approx(np.ones(len(pattern)), abs=1e-6)


@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 5))
def test_products_stay_stochastic_and_triangular_and_their_eigenvalues_multiply(
    seed: int, size: int, depth: int
) -> None:
    layers = [random_pattern(seed + layer, size) for layer in range(depth)]
    products = list(spectra.upward(layers))
    assert len(products) == depth
    dense = np.eye(size)
    for layer, product in zip(layers, products, strict=True):
        dense = layer.numpy() @ dense
        assert product.numpy() == pytest.approx(dense, abs=1e-14)
        assert spectra.defect(product) < 1e-12
    diagonals = torch.stack([spectra.eigenvalues(layer) for layer in layers]).prod(0)
    assert spectra.eigenvalues(products[-1]).numpy() == pytest.approx(diagonals.numpy(), abs=1e-14)
    assert np.sort(diagonals.numpy()) == pytest.approx(dense_eigenvalues(products[-1]), abs=1e-8)
    rows = spectra.downward_row(layers)
    assert len(rows) == depth + 1
    assert rows[0].numpy() == pytest.approx(dense[-1], abs=1e-14)
    assert rows[-1].tolist() == [0.0] * (size - 1) + [1.0]
    assert rows[-2].numpy() == pytest.approx(layers[-1][-1].numpy(), abs=1e-15)


@given(PATTERNS)
def test_remainders_are_what_powers_leave(pattern: Tensor) -> None:
    found = spectra.remainders(pattern, 5)
    dense = [1 - float(torch.linalg.matrix_power(pattern, power)[-1, 0]) for power in range(1, 6)]
    assert found.tolist() == pytest.approx(dense, abs=1e-12)


@pytest.mark.parametrize(
    ("row", "expected"),
    [([0.5, 0.3, 0.0], 0.2), ([-0.25, 1.25, 0.0], 0.25), ([0.5, 0.1, 0.4], 0.4)],
    ids=["short of 1", "negative", "looks ahead"],
)
def test_defect_finds_what_the_lemmas_are_not_about(row: list[float], expected: float) -> None:
    matrix = torch.tensor([[1.0, 0.0, 0.0], row, [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert spectra.defect(matrix) == pytest.approx(expected)
