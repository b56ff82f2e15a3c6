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


def remainder_bound(matrix: Tensor, power: int) -> float:
    """1 - (K^L)_{n,1} <= sum_{k<=n-2} binom(L, k) rho^{L-k} nu^k, rho = `lazy_rate`, nu the largest row sum below the diagonal.

    K without token 1 is D + N, D diagonal and N strictly triangular with N^{n-1} = 0; n tokens. Holds with ties on the diagonal
    too, where the rest falls as L^k rho^L; tends to 0 for rho < 1.
    """
    among_others = spectra.lazy(matrix)[1:, 1:]
    rho, nu = lazy_rate(matrix), float(among_others.tril(-1).sum(-1).amax())
    terms = [
        _log_binomial(power, k) + (power - k) * math.log(rho) + (k * math.log(nu) if k else 0.0)
        for k in range(min(power, len(matrix) - 2) + 1)
        if k == 0 or nu > 0.0
    ]
    return math.exp(min(float(torch.tensor(terms, dtype=torch.float64).logsumexp(0)), 700.0))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


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


def test_the_bound_is_tight_for_two_high_scores_among_many_low_ones() -> None:
    n = 10**6
    x, x_star = lemmas.inserted(torch.zeros(n - 1, dtype=torch.float64), tensor(1.0)[0], tensor(1.0)[0])
    gap = float(x.softmax(0)[-1] - x_star.softmax(0)[-1])
    assert gap / lemmas.decrease_bound(1.0, n) == pytest.approx(1.0, abs=1e-4)


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


@given(SEEDS, st.sampled_from([1, 2, 3, 50]), st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
def test_an_inserted_score_of_any_size_never_adds_weight(seed: int, n: int, size: float) -> None:
    """Ties, and scores so far apart that the decrease rounds to 0: the log decrease keeps its closed form."""
    scores = size * (2 * torch.rand(50, n + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)
    x, x_star = lemmas.inserted(scores[:, :-2], scores[:, -2], scores[:, -1])
    weight, weight_star = x.softmax(-1)[:, -1], x_star.softmax(-1)[:, -1]
    normal = weight > torch.finfo(weight.dtype).smallest_normal
    assert ((weight_star - weight)[normal] <= 1e-13 * weight[normal]).all()
    decrease = x.log_softmax(-1)[:, -1] - x_star.log_softmax(-1)[:, -1]
    closed = log_decrease(scores[:, :-2], scores[:, -2], scores[:, -1])
    assert ((decrease - closed).abs() <= 1e-12 * (1 + closed + size)).all()


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


def test_prefixes_may_skip_lengths_and_overflow_nothing() -> None:
    x = 700.0 * torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_star = x.clone()
    x_star[:20] += 0.1
    found = lemmas.prefix_total_variation(x, x_star, [7, 150, 300]).tolist()
    each = [float(total_variation(x[:n].softmax(0), x_star[:n].softmax(0))) for n in (7, 150, 300)]
    # log Z is near 700 here, and known to 1e-13.
    assert found == pytest.approx(each, abs=1e-12)
    assert lemmas.prefix_total_variation(x, x, [1, 300]).tolist() == [0.0, 0.0]


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


@pytest.mark.parametrize(("places", "noise", "spread"), [(1, 0.5, 1.0), (7, 0.5, 2.0), (40, 2.0, 0.0)])
def test_noise_on_top_scores_of_a_long_softmax_meets_its_rate(places: int, noise: float, spread: float) -> None:
    """k places at the top score, all with the whole noise, before very many of the least: delta / bound -> 1."""
    n = 100_000
    x = torch.zeros(n, dtype=torch.float64)
    x[:places] = spread
    x_star = x.clone()
    x_star[:places] += noise
    (delta,) = lemmas.prefix_total_variation(x, x_star, [n]).tolist()
    assert delta == pytest.approx(lemmas.first_places_bound(places, noise, spread, n), rel=1e-2)
    general = float(total_variation_bound(x, x_star))
    assert delta == pytest.approx(general, rel=1e-2)


@given(SEEDS)
def test_noise_that_falls_as_1_over_i_vanishes_and_noise_that_keeps_its_weight_does_not(seed: int) -> None:
    """Bounded scores, as Lemma B.2 has it; without them, x_i = -2 log i, the first token keeps its noise for ever."""
    n = 4096
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.rand(2, n, generator=generator, dtype=torch.float64)
    near, far = lemmas.prefix_total_variation(x, x + noise / torch.arange(1, n + 1), [64, n]).tolist()
    assert far < near / 8
    unbounded = -2.0 * torch.arange(1, n + 1, dtype=torch.float64).log()
    shifted = unbounded + (torch.arange(n) == 0)
    assert lemmas.prefix_total_variation(unbounded, shifted, [n]).tolist()[0] > 0.3


def test_there_are_no_more_first_places_than_tokens() -> None:
    assert lemmas.first_places_bound(9, 0.5, 1.0, 4) == lemmas.first_places_bound(4, 0.5, 1.0, 4)


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


@given(st.integers(0, 1000), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9))
def test_a_chosen_diagonal_is_kept_and_the_matrix_is_what_the_lemmas_are_about(seed: int, rest: list[float]) -> None:
    matrix = with_diagonal(tensor(1.0, *rest), seed)
    assert spectra.eigenvalues(matrix).tolist() == [1.0, *rest]
    assert spectra.defect(matrix) < 1e-14


def test_causal_softmax_of_hand_made_scores() -> None:
    found = lemmas.causal_softmax(tensor(5.0, 9.0, 0.0, math.log(3.0)).reshape(2, 2))
    assert found.flatten().tolist() == pytest.approx([1.0, 0.0, 0.25, 0.75])


DIAGONALS = st.lists(st.sampled_from([0.0, 0.3, 0.6, 0.6, 0.95]), min_size=1, max_size=7)


@given(st.integers(0, 1000), DIAGONALS, st.integers(1, 400))
def test_what_is_left_stays_below_its_bound_ties_or_not(seed: int, rest: list[float], power: int) -> None:
    matrix = with_diagonal(tensor(1.0, *rest), seed)
    left = float(spectra.remainders(spectra.lazy(matrix), power)[-1])
    assert left <= remainder_bound(matrix, power) * (1 + 1e-9)
    assert lemmas.first_token_distance(matrix, power) >= left * (1 - 1e-9)
    assert lazy_rate(matrix) == pytest.approx((1 + max(rest)) / 2)


@given(SEEDS)
def test_rounding_and_rows_that_do_not_sum_to_1_break_lemma_b6(seed: int) -> None:
    """Scores of thousands round weights to 0 and 1, and a token then attends to itself alone; rows of sum 1.1."""
    scores = torch.randn(24, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[-1, -1] = scores[-1].amax() + 1.0
    assert lemmas.eigenvectors(lemmas.causal_softmax(1000.0 * scores)) > 1
    leaky = 1.1 * lemmas.causal_softmax(scores)
    assert float(torch.linalg.eigvals(leaky).abs().amax()) == pytest.approx(1.1, rel=1e-6)


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


def test_two_non_zero_entries_a_row_are_enough_for_a_simple_one_and_not_needed() -> None:
    """Lemma B.6's condition: rows that attend to token 1 alone have one such entry, and 1 is simple all the same."""
    assert lemmas.eigenvectors(tensor(1.0, 0.0, 1.0, 0.0).reshape(2, 2)) == 1
    assert lemmas.eigenvectors(tensor(1.0, 0.0, 0.0, 1.0).reshape(2, 2)) == 2
    assert lemmas.eigenvectors(coupled()) == 1


def test_the_bound_of_three_tokens_is_its_binomial_sum() -> None:
    """K without token 1 is ((a, 0), (c, b)): rho = b, nu = c, and of L factors none or one may leave the diagonal."""
    matrix = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.125, 0.25, 0.625]], dtype=torch.float64)
    rho, nu = (1 + 0.625) / 2, 0.25 / 2
    assert remainder_bound(matrix, 1) == pytest.approx(rho + nu)
    assert remainder_bound(matrix, 4) == pytest.approx(rho**4 + 4 * rho**3 * nu)


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


def test_the_spread_is_within_types_and_across_sequences() -> None:
    rows = [tensor(3, 4, 30, 40).reshape(2, 2), tensor(3, 4, 30, 42).reshape(2, 2)]
    tokens = [torch.tensor([7, 5]), torch.tensor([7, 5])]
    assert lemmas.type_spread(rows, tokens) == pytest.approx(2 / 50)
    assert lemmas.type_spread(rows[:1], tokens[:1]) == 0.0


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


@pytest.mark.parametrize(("layers", "window"), [(-1, 3), (2, 0)])
def test_windows_that_cannot_be_are_refused(layers: int, window: int) -> None:
    with pytest.raises(InputError, match="expected layers >= 0 and window >= 1"):
        lemmas.exact_from(layers, window)


def test_steps_between_copies_are_relative() -> None:
    rows = tensor(9, 9, 3, 4, 3, 5, 3, 5).reshape(4, 2)
    assert lemmas.steps(rows, 3).tolist() == pytest.approx([1 / 5, 0.0])
