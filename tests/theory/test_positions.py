"""The encodings of positions against published tables, Hugging Face's code and their own laws."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from ostools.theory import positions


def test_sinusoidal_is_vaswanis_formula() -> None:
    table = positions.sinusoidal(50, 16)
    for i in (0, 1, 7, 49):
        for k in range(8):
            angle = torch.tensor(i / 10_000.0 ** (2 * k / 16), dtype=torch.float64)
            torch.testing.assert_close(table[i, 2 * k], angle.sin(), rtol=0, atol=1e-13)
            torch.testing.assert_close(table[i, 2 * k + 1], angle.cos(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("d_model", [1, 3, 64])
def test_a_longer_learned_table_begins_with_a_shorter_one(d_model: int) -> None:
    long = positions.learned(200, d_model, seed=3)
    for n in (1, 5, 16, 17, 199):
        assert torch.equal(long[:n], positions.learned(n, d_model, seed=3))
    assert not torch.equal(long, positions.learned(200, d_model, seed=4))


@pytest.mark.parametrize("base", [100.0, 1e4, 1e6])
def test_rotated_scores_depend_on_the_difference_of_positions_only(base: float) -> None:
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    n = 300
    scores = positions.rotated(q.expand(n, 16), base) @ positions.rotated(k.expand(n, 16), base).T
    for back in (0, 1, 17):
        diagonal = scores.diagonal(-back)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal), rtol=0, atol=1e-11)
    torch.testing.assert_close(scores[0, 0], q @ k)
    assert (scores[1:, 0] - scores[0, 0]).abs().amax() > 0.1


def rotary_envelope(distance: int, width: int, base: float) -> float:
    """RoFormer's long-term decay (its section 3.4.3): mean_j |S_j(m)| / mean_j |S_j(0)| with
    S_j(m) = sum_(i<j) e^(i m base^(-2i / width)).
    """
    angles = distance * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    sums = torch.complex(angles.cos(), angles.sin()).cumsum(0)
    return float(sums.abs().mean()) / (1 + width // 2) * 2  # mean_j |S_j(0)| is (1 + width / 2) / 2


def test_ropes_envelope_falls_with_the_distance_and_a_scores_step_does_not() -> None:
    """Two readings of "decays to 0 with the distance". The step is the norm of R_(m+1) - R_m, from
    rotated unit vectors.
    """
    envelope = [rotary_envelope(m, 128, 1e4) for m in (0, 1, 16, 256, 1024)]
    assert [round(value, 2) for value in envelope[1:]] == [0.97, 0.49, 0.2, 0.12]
    turns = torch.stack(
        [
            positions.rotated(row.expand(1026, 128), 1e4)
            for row in torch.eye(128, dtype=torch.float64)
        ]
    )
    for m in (0, 1, 16, 256, 1024):
        step = torch.linalg.matrix_norm(turns[:, m + 1] - turns[:, m], ord=2)
        assert float(step) == pytest.approx(2 * math.sin(0.5), rel=1e-9)


def test_what_is_bounded_and_what_is_not() -> None:
    """Section 2: "the positional encodings are bounded". Exactly: pairs of sinusoids and rotations
    lie on a circle at every position, however far; ALiBi's bias is the distance itself times its
    slope, and passes every bound."""
    for n in (2, 300, 20_000):
        pairs = positions.sinusoidal(n, 16).unflatten(-1, (8, 2))
        torch.testing.assert_close(
            pairs.square().sum(-1), torch.ones(n, 8, dtype=torch.float64), rtol=0, atol=1e-14
        )
        turned = positions.rotated(torch.ones(n, 16, dtype=torch.float64), 1e4)
        size = turned[:, :8].square() + turned[:, 8:].square()
        torch.testing.assert_close(
            size, torch.full((n, 8), 2.0, dtype=torch.float64), rtol=0, atol=1e-13
        )
    for n in (2, 300):
        bias = positions.alibi(n, 8)
        assert torch.equal(bias.amin((-2, -1)), -positions.alibi_slopes(8) * (n - 1))


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 12, 16, 20])
def test_alibi_is_blooms_up_to_what_softmax_cannot_see(n_heads: int) -> None:
    n = 30
    theirs = build_alibi_tensor(
        torch.ones(1, n), n_heads, torch.float32
    )  # m_h j; ours is m_h (j - i) below the diagonal
    ours = positions.alibi(n, n_heads)
    expected = (
        theirs.double() - positions.alibi_slopes(n_heads)[:, None, None] * torch.arange(n)[:, None]
    )
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    torch.testing.assert_close(ours[:, lower], expected[:, lower], rtol=1e-5, atol=1e-5)
