"""The lemmas' functions against closed forms, brute force and each other; what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.theory import lemmas
from ostools.theory.decoder import Decoder
from ostools.theory.distances import total_variation

SEEDS = st.integers(0, 2**31 - 1)
SCORES = st.lists(st.floats(-30, 30), min_size=1, max_size=12)


SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 2, "d_mlp": 64, "vocabulary": 8}


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def with_diagonal(diagonal: Tensor, seed: int) -> Tensor:
    """A row-stochastic triangular matrix with this diagonal, the rest of each row spread at random
    over earlier keys.

    The first entry has to be 1, as the first row has no other.
    """
    n = len(diagonal)
    scores = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=diagonal.dtype)
    earlier = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -torch.inf).softmax(-1)
    earlier[0] = 0.0
    return (1.0 - diagonal)[:, None] * earlier + diagonal.diag()


@given(st.lists(st.floats(-30, 30), max_size=8), st.floats(-30, 30), st.floats(-30, 30))
def test_the_decrease_has_its_closed_form_and_its_bound(
    others: list[float], b: float, c: float
) -> None:
    """The paper's letters: x = [a c], x* = [a b c]; log softmax(x)_n - log softmax(x*)_{n+1} =
    log(1 + e^b / Z).
    """
    x, x_star = lemmas.inserted(tensor(*others), tensor(b)[0], tensor(c)[0])
    assert (x.tolist(), x_star.tolist()) == ([*others, c], [*others, b, c])
    weight, weight_star = float(x.softmax(0)[-1]), float(x_star.softmax(0)[-1])
    z = math.fsum(math.exp(score) for score in (*others, c))
    assert weight_star == pytest.approx(weight / (1 + math.exp(b) / z), rel=1e-12)
    scores = [*others, b, c]
    bound = lemmas.decrease_bound(max(scores) - min(scores), len(others) + 1)
    assert weight - weight_star <= bound * (1 + 1e-12) + 1e-15


def test_without_bounded_scores_the_decrease_has_a_limit_above_0() -> None:
    """a_k = -k, b = c = 0: Z = 1 + q with q = (1 - e^-(n-1)) / (e - 1), so that the decrease is 1 /
    (1 + q) - 1 / (2 + q), which stays above 0.24; among bounded scores (all 0) it is 1 / n - 1 / (n
    + 1)."""
    zero = tensor(0.0)[0]
    for n in (1, 2, 10, 5_000):
        q = -math.expm1(1 - n) / math.expm1(1)
        for others, gap in (
            (-torch.arange(1, n, dtype=torch.float64), 1 / (1 + q) - 1 / (2 + q)),
            (torch.zeros(n - 1, dtype=torch.float64), 1 / n - 1 / (n + 1)),
        ):
            x, x_star = lemmas.inserted(others, zero, zero)
            assert float(x.softmax(0)[-1] - x_star.softmax(0)[-1]) == pytest.approx(gap, rel=1e-9)


@given(SCORES, st.data())
def test_every_prefix_in_one_pass_is_a_softmax_each(
    scores: list[float], data: st.DataObject
) -> None:
    noise = data.draw(
        st.lists(
            st.sampled_from([0.0, 0.0, -3.0, 0.1, 20.0]), min_size=len(scores), max_size=len(scores)
        )
    )
    x, e = tensor(*scores), tensor(*noise)
    lengths = range(1, len(scores) + 1)
    expected = [float(total_variation(x[:n].softmax(0), (x + e)[:n].softmax(0))) for n in lengths]
    assert lemmas.prefix_total_variation(x, x + e, lengths).tolist() == pytest.approx(
        expected, abs=1e-13
    )


@pytest.mark.parametrize("lengths", [[], [0], [1, 4]])
def test_prefixes_that_are_not_there_are_refused(lengths: list[int]) -> None:
    with pytest.raises(InputError, match="expected lengths from 1 to 3"):
        lemmas.prefix_total_variation(tensor(1, 2, 3), tensor(1, 2, 3), lengths)


@given(st.integers(1, 40), st.floats(0.01, 2.0), st.floats(0.0, 3.0), st.integers(0, 1000))
def test_noise_on_the_first_places_stays_below_its_rate(
    places: int, noise: float, spread: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.rand(80, generator=generator, dtype=torch.float64)
    x[: places // 2] = spread
    x_star = x.clone()
    x_star[:places] += noise * torch.rand(places, generator=generator, dtype=torch.float64)
    lengths = [1, 2, 20, 80]
    found = lemmas.prefix_total_variation(x, x_star, lengths).tolist()
    bounds = [lemmas.first_places_bound(places, noise, spread, n) for n in lengths]
    assert all(
        delta <= bound * (1 + 1e-12) + 1e-15 for delta, bound in zip(found, bounds, strict=True)
    )


@given(st.integers(1, 3000))
def test_alternating_sequences_stay_apart(half: int) -> None:
    x, other = lemmas.alternating(2 * half)
    assert x[:2].tolist() == [0.0, 1.0]
    assert torch.equal(x + other, torch.ones(2 * half, dtype=torch.float64))
    assert float(total_variation(x.softmax(0), other.softmax(0))) == pytest.approx(
        0.924234314520, abs=1e-11
    )
    assert pytest.approx(0.924234314520, abs=1e-11) == lemmas.ALTERNATING


@pytest.mark.parametrize("n", [-2, 0, 7])
def test_odd_lengths_are_refused_in_one_line(n: int) -> None:
    with pytest.raises(
        InputError, match=f"^Lemma B.4: expected an even length of at least 2, found {n}:"
    ):
        lemmas.alternating(n)


@given(SEEDS, st.integers(1, 7))
def test_powers_move_all_to_token_1_at_the_rate_of_the_lazy_diagonal_unless_a_token_is_stuck(
    seed: int, token: int
) -> None:
    matrix = with_diagonal(tensor(1.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4), seed)
    assert lemmas.first_token_distance(matrix, 4096) < 1e-9
    left = lemmas.remainders(lemmas.lazy(matrix), 501)
    assert float(left[500] / left[499]) == pytest.approx(0.95, abs=1e-6)
    assert float(lemmas.second_eigenvalue(lemmas.lazy(matrix))) == pytest.approx(0.95, abs=1e-12)
    matrix[token] = torch.eye(8, dtype=torch.float64)[token]
    assert lemmas.first_token_distance(matrix, 4096) == pytest.approx(1.0)


def test_proposition_b8s_assumptions_do_not_make_a_matrix_diagonalizable_and_its_limit_holds() -> (
    None
):
    """Every weight up to the diagonal is positive, so that it is a softmax. (Lambda + I) / 2 has
    the eigenvalue q = 3/4 twice, with one eigenvector (sympy's exact Jordan test), and a last row
    that tends to (1, 0, 0) all the same: ( 1 - q^L - (L / 8) q^(L-1),  (L / 8) q^(L-1),  q^L ), by
    fractions, by this form and by the code, equal to the last bit."""
    matrix = torch.tensor(
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64
    )
    lazy = sympy.Matrix(
        [[sympy.Rational(entry) for entry in row] for row in lemmas.lazy(matrix).tolist()]
    )
    assert not lazy.is_diagonalizable()
    assert lazy.eigenvals() == {sympy.Integer(1): 1, sympy.Rational(3, 4): 2}
    assert lemmas.eigenvectors(lemmas.lazy(matrix), 0.75) == 1
    exact, row = sympy.eye(3), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    for power in range(1, 25):  # numerators stay below 2^53
        exact, row = exact * lazy, row @ lemmas.lazy(matrix)
        second, third = power / 8 * 0.75 ** (power - 1), 0.75**power
        assert (
            row.tolist()
            == [float(entry) for entry in exact[2, :]]
            == [1.0 - (second + third), second, third]
        )


@given(st.integers(0, 1000), st.integers(1, 40))
def test_theorem_51_with_the_propositions_constants_is_the_lazy_power(
    seed: int, blocks: int
) -> None:
    matrix = with_diagonal(tensor(1.0, 0.2, 0.7, 0.9), seed)
    power = torch.linalg.matrix_power(lemmas.lazy(matrix), blocks)[-1]
    assert lemmas.theorem_51_row(matrix, blocks).tolist() == pytest.approx(
        power.tolist(), abs=1e-13
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, 0], [1, 1, 0, 0], True),
        ([1], [1, 1], True),
        ([2, 1, 0], [0, 1, 2, 2, 0, 1], True),
        ([1, 0], [1, 1, 0], False),
        ([1, 0], [1, 0, 2], False),
        ([0], [1], False),
    ],
)
def test_ratios_are_of_all_tokens(one: list[int], other: list[int], same: bool) -> None:
    assert lemmas.same_ratio(torch.tensor(one), torch.tensor(other)) is same


def test_the_spread_of_a_type_is_relative_to_its_first_token() -> None:
    """Of type 5: (3, 4) of length 5, then 0.5 and 1 from it. Type 1 stands once, far from both."""
    sequences = [tensor(3.0, 4.0, 3.3, 4.4).reshape(2, 2), tensor(9.0, 9.0, 3.0, 3.0).reshape(2, 2)]
    assert lemmas.type_spread(
        sequences, [torch.tensor([5, 5]), torch.tensor([1, 5])]
    ) == pytest.approx(0.2)
    assert lemmas.type_spread(sequences[:1], [torch.tensor([5, 5])]) == pytest.approx(0.1)
    assert lemmas.type_spread(sequences[1:], [torch.tensor([1, 5])]) == 0.0


def test_what_is_told_apart() -> None:
    """Corollary 6.2 / B.10: of one representation there is one answer."""
    rows = tensor(1, 1, 2, 1, 1).reshape(5, 1)
    assert lemmas.identical_next(rows).tolist() == [True, False, False, True]
    assert (lemmas.distinct(rows), lemmas.second_answers(rows, 10 * rows)) == (2, 0)
    assert lemmas.second_answers(rows, tensor(1, 2, 3, 1, 1).reshape(5, 1)) == 1
    assert lemmas.identical_next(tensor(0.0, -0.0).reshape(2, 1)).tolist() == [True]


@settings(max_examples=5)
@given(
    SEEDS, st.sampled_from(["none", "rope", "alibi"]), st.integers(1, 4), st.sampled_from([2, 3, 6])
)
def test_copies_have_stopped_changing_at_every_layer_from_the_stated_number_on_and_not_before(
    seed: int, positions: str, layers: int, window: int
) -> None:
    """Theorem 4.2 under windows: exact from l (w - 1) + 1 copies on."""
    decoder = Decoder.random(seed, n_layers=layers, positions=positions, window=window, **SIZES)
    copies = layers * (window - 1) + 8
    prompt = torch.randint(4, 8, (5,), generator=torch.Generator().manual_seed(seed))
    residuals = decoder.forward(torch.cat([prompt, torch.full((copies,), 2)])[None]).residuals
    for layer, residual in enumerate(residuals):
        tail, unchanged_from = residual[0, -copies:], layer * (window - 1) + 1
        steps = (tail[1:] - tail[:-1]).norm(dim=-1) / tail[:-1].norm(dim=-1)
        assert steps[unchanged_from - 1 :].amax() <= 1e-12
        assert unchanged_from == 1 or steps[unchanged_from - 2] >= 1e-9


def random_pattern(seed: int, size: int, sharp: float = 1.0) -> Tensor:
    """Softmax over random scores with a causal mask: what attention makes; `sharp` brings it near
    one-hot.
    """
    scores = torch.randn(
        size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return lemmas.causal_softmax(sharp * scores)


PATTERNS = st.builds(
    random_pattern,
    seed=st.integers(0, 10_000),
    size=st.integers(2, 12),
    sharp=st.sampled_from([0.1, 1.0, 10.0]),
)


def dense_eigenvalues(matrix: Tensor) -> np.ndarray:
    return np.sort(np.abs(np.linalg.eigvals(matrix.numpy())))


@given(PATTERNS)
def test_the_diagonal_is_the_spectrum_with_1_the_largest(pattern: Tensor) -> None:
    for matrix in (pattern, lemmas.lazy(pattern)):
        spectrum = np.sort(lemmas.eigenvalues(matrix).numpy())
        assert spectrum == pytest.approx(dense_eigenvalues(matrix), abs=1e-8)
        assert spectrum[-1] == pytest.approx(1.0, abs=1e-12)
        assert float(lemmas.second_eigenvalue(matrix)) == pytest.approx(spectrum[-2], abs=1e-12)


@given(PATTERNS, st.data())
def test_1_is_simple_if_and_only_if_no_later_token_attends_to_itself_alone(
    pattern: Tensor, data: st.DataObject
) -> None:
    stuck = data.draw(st.sets(st.integers(1, len(pattern) - 1)))
    for row in stuck:
        pattern[row] = torch.eye(len(pattern), dtype=pattern.dtype)[row]
    assert float(lemmas.multiplicity(pattern, rounding=0.0)) == pytest.approx(1 + len(stuck))
    if not stuck and float(lemmas.second_eigenvalue(pattern)) < 0.9:
        # Simple: the powers have a limit of rank one, all of it in the first column.
        limit = torch.linalg.matrix_power(pattern, 400)
        assert limit[:, 0] == pytest.approx(np.ones(len(pattern)), abs=1e-6)


@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 5))
def test_products_stay_stochastic_and_triangular_and_their_eigenvalues_multiply(
    seed: int, size: int, depth: int
) -> None:
    layers = [random_pattern(seed + layer, size) for layer in range(depth)]
    products = list(lemmas.upward(layers))
    assert len(products) == depth
    dense = np.eye(size)
    for layer, product in zip(layers, products, strict=True):
        dense = layer.numpy() @ dense
        assert product.numpy() == pytest.approx(dense, abs=1e-14)
        assert lemmas.defect(product) < 1e-12
    diagonals = torch.stack([lemmas.eigenvalues(layer) for layer in layers]).prod(0)
    assert lemmas.eigenvalues(products[-1]).numpy() == pytest.approx(diagonals.numpy(), abs=1e-14)
    assert np.sort(diagonals.numpy()) == pytest.approx(dense_eigenvalues(products[-1]), abs=1e-8)


@pytest.mark.parametrize(
    ("row", "expected"),
    [([0.5, 0.3, 0.0], 0.2), ([-0.25, 1.25, 0.0], 0.25), ([0.5, 0.1, 0.4], 0.4)],
    ids=["short of 1", "negative", "looks ahead"],
)
def test_defect_finds_what_the_lemmas_are_not_about(row: list[float], expected: float) -> None:
    matrix = torch.tensor([[1.0, 0.0, 0.0], row, [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert lemmas.defect(matrix) == pytest.approx(expected)
