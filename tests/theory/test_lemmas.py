"""The lemmas' functions against closed forms, brute force and each other; what they refuse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.theory import lemmas, spectra
from ostools.theory.decoder import Decoder
from ostools.theory.distances import total_variation

SEEDS = st.integers(0, 2**31 - 1)
SCORES = st.lists(st.floats(-30, 30), min_size=1, max_size=12)


SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 2, "d_mlp": 64, "vocabulary": 8}


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log_decrease(other_scores: Tensor, token: Tensor, last: Tensor) -> Tensor:
    """log softmax(x)_n - log softmax(x*)_{n+1} = log(1 + e^b / Z), Z = sum_k e^{x_k}: more than 0 for any b (Lemma B.1).

    In exact arithmetic. Where e^b / Z is less than half of the dtype's epsilon, the two weights round to one number.
    """
    total = torch.cat([other_scores, last[..., None]], dim=-1).logsumexp(-1)
    return torch.logaddexp(token - total, torch.zeros_like(total))


def total_variation_bound(x: Tensor, x_star: Tensor) -> Tensor:
    """delta <= 2 sum_i y_i |e^{e_i} - 1| / sum_i y_i e^{e_i}, with y = softmax(x) and e = x* - x: for any two sequences.

    The average of |e^{e_i} - 1| under y: it tends to 0 where e_i -> 0 and no place keeps its weight, as bounded scores see to.
    """
    y, noise = x.softmax(-1), x_star - x
    return 2.0 * (y * torch.expm1(noise).abs()).sum(-1) / (y * noise.exp()).sum(-1)


def with_diagonal(diagonal: Tensor, seed: int) -> Tensor:
    """A row-stochastic triangular matrix with this diagonal, the rest of each row spread at random over earlier keys.

    The first entry has to be 1, as the first row has no other.
    """
    n = len(diagonal)
    scores = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=diagonal.dtype)
    earlier = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -torch.inf).softmax(-1)
    earlier[0] = 0.0
    return (1.0 - diagonal)[:, None] * earlier + diagonal.diag()


def coupled() -> Tensor:
    """A pattern that has Proposition B.8's assumptions and is not diagonalizable, against its proof; float64, exact.

        Lambda = [[1, 0, 0], [1/2, 1/2, 0], [1/4, 1/4, 1/2]]

    Every weight up to the diagonal is positive, so that it is the softmax of finite scores. (Lambda + I) / 2 has the
    eigenvalue 3/4 twice, with one eigenvector: tokens 2 and 3 attend to themselves alike, and 3 attends to 2.
    """
    return torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def coupled_row(power: int) -> tuple[float, float, float]:
    """The last row of ((Lambda + I) / 2)^L for `coupled`, L = `power`, in closed form: what a Jordan block leaves.

        ( 1 - q^L - (L / 8) q^(L-1),  (L / 8) q^(L-1),  q^L ),  q = 3/4

    It tends to (1, 0, 0), as B.8 states, with a factor L that no sum of lambda_k^L has.
    """
    other_weights = power / 8 * 0.75 ** (power - 1), 0.75**power
    return 1.0 - sum(other_weights), *other_weights


def lazy_rate(matrix: Tensor) -> float:
    """max_{i>=2} (1 + Lambda_ii) / 2: the rate at which (Lambda + I) / 2 loses what is not on token 1 (Proposition 5.2)."""
    return float(spectra.second_eigenvalue(spectra.lazy(matrix)))


RELATIVE = ("none", "rope", "alibi")
"""The encodings that say nothing but how far apart two tokens are."""


# --- B.1


@given(st.lists(st.floats(-30, 30), max_size=8), st.floats(-30, 30), st.floats(-30, 30))
def test_the_decrease_has_its_closed_form_and_its_bound(others: list[float], b: float, c: float) -> None:
    """The paper's letters: x = [a c], x* = [a b c]."""
    x, x_star = lemmas.inserted(tensor(*others), tensor(b)[0], tensor(c)[0])
    assert x.tolist() == [*others, c]
    assert x_star.tolist() == [*others, b, c]
    weight, weight_star = float(x.softmax(0)[-1]), float(x_star.softmax(0)[-1])
    z = math.fsum(math.exp(score) for score in (*others, c))
    found = float(log_decrease(tensor(*others), tensor(b)[0], tensor(c)[0]))
    assert found == pytest.approx(math.log1p(math.exp(b) / z), rel=1e-9)
    assert found > 0
    assert weight_star == pytest.approx(weight * math.exp(-found), rel=1e-12)
    scores = [*others, b, c]
    bound = lemmas.decrease_bound(max(scores) - min(scores), len(others) + 1)
    assert weight - weight_star <= bound * (1 + 1e-12) + 1e-15


def test_without_bounded_scores_the_decrease_has_a_limit_above_0() -> None:
    """a_k = -k, b = c = 0: Z = 1 + q with q = (1 - e^-(n-1)) / (e - 1), so that the decrease is 1 / (1 + q) - 1 / (2 + q),
    which stays above 0.24; among bounded scores (all 0) it is 1 / n - 1 / (n + 1)."""
    for n in (1, 2, 10, 5_000):
        zero = tensor(0.0)[0]
        gaps = []
        for others in (-torch.arange(1, n, dtype=torch.float64), torch.zeros(n - 1, dtype=torch.float64)):
            x, x_star = lemmas.inserted(others, zero, zero)
            gaps.append(float(x.softmax(0)[-1] - x_star.softmax(0)[-1]))
        q = -math.expm1(1 - n) / math.expm1(1)
        assert gaps[0] == pytest.approx(1 / (1 + q) - 1 / (2 + q), rel=1e-12)
        assert gaps[1] == pytest.approx(1 / n - 1 / (n + 1), rel=1e-9)


# --- 4.1 / B.2


@given(SCORES, st.data())
def test_every_prefix_in_one_pass_is_a_softmax_each(scores: list[float], data: st.DataObject) -> None:
    noise = data.draw(
        st.lists(st.sampled_from([0.0, 0.0, -3.0, 0.1, 20.0]), min_size=len(scores), max_size=len(scores))
    )
    x, e = tensor(*scores), tensor(*noise)
    lengths = range(1, len(scores) + 1)
    found = lemmas.prefix_total_variation(x, x + e, lengths).tolist()
    for n, delta in zip(lengths, found, strict=True):
        y, y_star = x[:n].softmax(0), (x + e)[:n].softmax(0)
        assert delta == pytest.approx(float(total_variation(y, y_star)), abs=1e-13)
        assert delta <= float(total_variation_bound(x[:n], (x + e)[:n])) * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("lengths", [[], [0], [1, 4]])
def test_prefixes_that_are_not_there_are_refused(lengths: list[int]) -> None:
    with pytest.raises(InputError, match="expected lengths from 1 to 3"):
        lemmas.prefix_total_variation(tensor(1, 2, 3), tensor(1, 2, 3), lengths)


@given(st.integers(1, 40), st.floats(0.01, 2.0), st.floats(0.0, 3.0), st.integers(0, 1000))
def test_noise_on_the_first_places_stays_below_its_rate(places: int, noise: float, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.rand(80, generator=generator, dtype=torch.float64)
    x[: places // 2] = spread
    x_star = x.clone()
    x_star[:places] += noise * torch.rand(places, generator=generator, dtype=torch.float64)
    lengths = [1, 2, 20, 80]
    found = lemmas.prefix_total_variation(x, x_star, lengths).tolist()
    bounds = [lemmas.first_places_bound(places, noise, spread, n) for n in lengths]
    assert all(delta <= bound * (1 + 1e-12) + 1e-15 for delta, bound in zip(found, bounds, strict=True))


# --- B.4


@given(st.integers(1, 3000))
def test_alternating_sequences_stay_apart(half: int) -> None:
    x, other = lemmas.alternating(2 * half)
    assert x[:2].tolist() == [0.0, 1.0]
    assert torch.equal(x + other, torch.ones(2 * half, dtype=torch.float64))
    assert float(total_variation(x.softmax(0), other.softmax(0))) == pytest.approx(0.924234314520, abs=1e-11)
    assert pytest.approx(0.924234314520, abs=1e-11) == lemmas.ALTERNATING


@pytest.mark.parametrize("n", [-2, 0, 1, 7, 4095])
def test_odd_lengths_are_refused_in_one_line(n: int) -> None:
    with pytest.raises(InputError, match=f"Lemma B.4: expected an even length of at least 2, found {n}") as refused:
        lemmas.alternating(n)
    assert "\n" not in str(refused.value)


# --- B.6, B.7, 5.2


@given(SEEDS, st.integers(1, 7))
def test_powers_move_all_to_token_1_at_the_rate_of_the_lazy_diagonal_unless_a_token_is_stuck(
    seed: int, token: int
) -> None:
    matrix = with_diagonal(tensor(1.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4), seed)
    assert lemmas.first_token_distance(matrix, 4096) < 1e-9
    left = spectra.remainders(spectra.lazy(matrix), 501)
    assert float(left[500] / left[499]) == pytest.approx(lazy_rate(matrix), abs=1e-6)
    matrix[token] = torch.eye(8, dtype=torch.float64)[token]
    assert lemmas.first_token_distance(matrix, 4096) == pytest.approx(1.0)


def test_proposition_b8s_assumptions_do_not_make_a_matrix_diagonalizable_and_its_limit_holds() -> None:
    """sympy's exact Jordan test; the powers by fractions, by the closed form and by the code, equal to the last bit."""
    matrix = coupled()
    assert bool(((matrix > 0).sum(-1)[1:] >= 2).all())
    assert matrix.sum(-1).tolist() == [1.0, 1.0, 1.0]
    lazy = sympy.Matrix([[sympy.Rational(entry) for entry in row] for row in spectra.lazy(matrix).tolist()])
    assert not lazy.is_diagonalizable()
    assert lazy.eigenvals() == {sympy.Integer(1): 1, sympy.Rational(3, 4): 2}
    assert lemmas.eigenvectors(spectra.lazy(matrix), 0.75) == 1
    exact, row = sympy.eye(3), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    for power in range(1, 25):  # numerators stay below 2^53
        exact, row = exact * lazy, row @ spectra.lazy(matrix)
        assert row.tolist() == [float(entry) for entry in exact[2, :]] == list(coupled_row(power))
    assert coupled_row(4096) == (1.0, 0.0, 0.0)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_theorem_51_with_the_propositions_constants_is_the_lazy_power(seed: int, blocks: int) -> None:
    matrix = with_diagonal(tensor(1.0, 0.2, 0.7, 0.9), seed)
    power = torch.linalg.matrix_power(spectra.lazy(matrix), blocks)[-1]
    assert lemmas.theorem_51_row(matrix, blocks).tolist() == pytest.approx(power.tolist(), abs=1e-13)


# --- 6.1, 6.2


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


def test_what_is_told_apart() -> None:
    rows = tensor(1, 1, 2, 1, 1).reshape(5, 1)
    assert lemmas.identical_next(rows).tolist() == [True, False, False, True]
    assert lemmas.distinct(rows) == 2
    assert lemmas.second_answers(rows, 10 * rows) == 0
    assert lemmas.second_answers(rows, tensor(1, 2, 3, 1, 1).reshape(5, 1)) == 1
    assert lemmas.identical_next(tensor(0.0, -0.0).reshape(2, 1)).tolist() == [True]


@settings(max_examples=10)
@given(SEEDS, st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 4))
def test_sequences_with_one_ratio_have_one_representation_per_type_at_any_depth(
    seed: int, types: list[int], copies: int, layers: int
) -> None:
    """Proposition 6.1 / B.9 for a shuffled repetition, with ordinary and with sharp attention."""
    averaging = Decoder.random(seed, n_layers=layers, positions="none", causal=False, **SIZES)
    blocks = [dataclasses.replace(block, W_Q=4 * block.W_Q, W_K=4 * block.W_K) for block in averaging.blocks]
    one = torch.tensor(types)
    other = one.repeat(copies)[torch.randperm(copies * len(one), generator=torch.Generator().manual_seed(seed))]
    assert lemmas.same_ratio(one, other)
    for decoder in (averaging, dataclasses.replace(averaging, blocks=tuple(blocks))):
        passes = [decoder.forward(tokens[None]).residuals for tokens in (one, other)]
        for residuals in zip(*passes, strict=True):
            assert lemmas.type_spread([residual[0] for residual in residuals], [one, other]) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@settings(max_examples=3)
@given(seed=SEEDS)
def test_counts_with_one_representation_get_one_answer(dtype: torch.dtype, seed: int) -> None:
    """Corollary 6.2 / B.10, in a low precision; in float64 every count has a representation of its own."""
    exact = Decoder.random(seed, n_layers=2, positions="none", **SIZES)
    tokens = torch.tensor([[0, 1, *[2] * 1024]])
    y = exact.forward(tokens).y[0, 2:]
    cast = exact.to(dtype)
    for rows in (y.to(dtype), cast.forward(tokens).y[0, 2:]):
        # A product for each, as a kernel may depend on the size.
        answers = torch.stack([cast.logits(row[None, None])[0, 0] for row in rows])
        assert lemmas.second_answers(rows, answers) == 0
    assert lemmas.distinct(y) == 1024


# --- windows


@settings(max_examples=5)
@given(SEEDS, st.sampled_from(RELATIVE), st.integers(1, 4), st.sampled_from([2, 3, 6]))
def test_copies_have_stopped_changing_at_every_layer_from_the_stated_number_on_and_not_before(
    seed: int, positions: str, layers: int, window: int
) -> None:
    decoder = Decoder.random(seed, n_layers=layers, positions=positions, window=window, **SIZES)
    copies = layers * (window - 1) + 8
    prompt = torch.randint(4, 8, (5,), generator=torch.Generator().manual_seed(seed))
    passed = decoder.forward(torch.cat([prompt, torch.full((copies,), 2)])[None])
    for layer, residual in enumerate(passed.residuals):
        start = lemmas.exact_from(layer, window)
        steps = lemmas.steps(residual[0], copies)
        assert steps[start - 1 :].amax() <= 1e-12
        assert start == 1 or steps[start - 2] >= 1e-9
    assert lemmas.steps(passed.y[0], copies)[lemmas.exact_from(layers, window) - 1 :].amax() <= 1e-12
