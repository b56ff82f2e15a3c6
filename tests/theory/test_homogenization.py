"""How alike rows are: exact where they are all the same, and where none has anything in common with
another.
"""

import math

import numpy as np
import pytest
import torch

from ostools.ground.errors import InputError
from ostools.theory.distances import likeness
from tests.sets import quick


def orthonormal(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(columns, rows, generator=generator, dtype=torch.float64)).Q.T


@pytest.mark.parametrize("rows", [2, 5, 64])
def test_equal_tokens_have_no_entropy_and_rank_one(rows: int) -> None:
    row = torch.randn(1, 24, generator=torch.Generator().manual_seed(rows))
    found = likeness(row.expand(rows, 24))
    assert (found.entropy, found.normalised_entropy, found.effective_rank) == (0, 0, 1)
    assert found.mean_cosine == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("rows", quick([2, 5, 24], 5))
def test_orthonormal_tokens_have_the_entropy_of_their_number(rows: int) -> None:
    alike = likeness(orthonormal(rows, 24))
    assert alike.entropy == pytest.approx(math.log(rows), rel=1e-12)
    assert alike.normalised_entropy == pytest.approx(1, rel=1e-12)
    assert alike.effective_rank == pytest.approx(rows, rel=1e-12)
    assert alike.mean_cosine == pytest.approx(0, abs=1e-14)


def test_a_rotation_and_a_factor_change_nothing() -> None:
    states = torch.randn(6, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert likeness(1e5 * states @ orthonormal(24, 24)) == pytest.approx(
        likeness(states), rel=1e-10
    )


def test_one_massive_token_is_a_valley_of_the_entropy_however_the_others_differ() -> None:
    """Orthogonal tokens, one c times as long: p = (c^2, 1, ..., 1) / (c^2 + n - 1), in closed form."""
    states, c, n = orthonormal(8, 24), 100.0, 8
    states[0] *= c
    total = c**2 + n - 1
    expected = -(c**2 / total) * math.log(c**2 / total) + (n - 1) / total * math.log(total)
    found = likeness(states)
    assert found.entropy == pytest.approx(expected, rel=1e-10)
    assert found.mean_cosine == pytest.approx(0, abs=1e-14)
    assert likeness(states[1:]).entropy == pytest.approx(math.log(n - 1), rel=1e-12)


def test_against_loops_over_pairs_and_numpy() -> None:
    states = torch.randn(5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = np.linalg.svd(states.numpy(), compute_uv=False)
    p, q = values**2 / (values**2).sum(), values / values.sum()
    cosines = [
        float(states[i] @ states[j] / (states[i].norm() * states[j].norm()))
        for i in range(5)
        for j in range(i)
    ]
    found = likeness(states)
    assert found.entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-12)
    assert found.normalised_entropy == pytest.approx(found.entropy / math.log(5), rel=1e-14)
    assert found.effective_rank == pytest.approx(np.exp(-(q * np.log(q)).sum()), rel=1e-12)
    assert found.mean_cosine == pytest.approx(np.mean(cosines), abs=1e-14)


@pytest.mark.parametrize(
    "states", [torch.ones(1, 3), torch.tensor([[1.0, 2], [0, 0]]), torch.full((2, 2), torch.nan)]
)
def test_what_has_no_likeness_is_refused(states: torch.Tensor) -> None:
    with pytest.raises(InputError, match="expected at least two finite states"):
        likeness(states)


def test_more_tokens_than_directions_have_the_entropy_of_the_directions() -> None:
    """Six tokens, each direction of two as often: H = log 2, the most that there can be."""
    alike = likeness(torch.eye(2, dtype=torch.float64).repeat(3, 1))
    assert alike.entropy == pytest.approx(math.log(2), rel=1e-12)
    assert alike.normalised_entropy == pytest.approx(1, rel=1e-12)
