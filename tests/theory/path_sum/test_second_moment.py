"""The predicting path sum: one step is exact, so is the last token; scalar operators; in mean under random rotations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory.path_sum import operators, paths, second_moment
from ostools.theory.path_sum.mlp_moments import Mlp
from ostools.theory.path_sum.parallel_moments import overlaps
from ostools.theory.path_sum.second_moment import Heads, Moments, Sketch
from tests.theory.path_sum.test_paths import patterns

D, HEAD, D_HEAD, D_MLP = 6, 2, 3, 7
EVERY = operators.orthogonal_probes(D, D, 0, torch.zeros(1, dtype=torch.float64))
WHOLE = Sketch(D, 0)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def block(n: int, seed: int) -> tuple[Mlp, Heads]:
    source = generator(seed)
    factors = (normal(source, *shape) / 3 for shape in ((D, D_MLP), (D_MLP, D), (D_MLP, D), (n, D_MLP), (n, D_MLP)))
    left, right = normal(source, D, HEAD * D_HEAD) / 3, normal(source, HEAD * D_HEAD, D) / 3
    scale = normal(source, n).abs() + 0.3
    return Mlp(*factors, probes=EVERY), Heads(left, right, torch.stack(patterns(HEAD, n, seed)) / scale)


def dense(mlp: Mlp, heads: Heads) -> tuple[Tensor, Tensor]:
    """I + D_j [pos, d, d] and T_ij [query, key, d, d]."""
    eye = torch.eye(D, dtype=torch.float64)
    rows = eye + operators.mlp_jacobian(mlp.down, mlp.gate, mlp.up, mlp.p, mlp.q)
    matrices = torch.stack([heads.left[:, part] @ heads.right[part] for part in torch.arange(6).reshape(HEAD, D_HEAD)])
    edges = torch.einsum("hij,hab->ijab", heads.weighted, matrices)
    return rows, edges + torch.eye(len(rows), dtype=torch.float64)[:, :, None, None] * eye


def carried(moments: Moments) -> Tensor:
    """S_jj' as the moments have it, [pos, pos, d, d]."""
    own = moments.own @ moments.own.T
    shared = torch.zeros_like(own) if moments.shared is None else moments.shared @ moments.shared.T
    whole = moments.kernel[:, :, None, None] * shared
    whole[-1] = moments.kernel[-1][:, None, None] * own
    whole[:, -1] = moments.kernel[-1][:, None, None] * own
    return whole


def some_moments(n: int, seed: int) -> Moments:
    """A positive semidefinite kernel and two directions of trace 1."""
    source = generator(seed + 1)
    features, own, shared = normal(source, n, n), normal(source, D, D), normal(source, D, D)
    kernel = features @ features.T
    return Moments(kernel / kernel[-1, -1], own / own.norm(), shared / shared.norm(), 0.0)


@given(st.integers(1, 6), st.integers(0, 10_000))
def test_one_step_gives_the_exact_traces(n: int, seed: int) -> None:
    moments, (mlp, heads) = some_moments(n, seed), block(n, seed)
    rows, edges = dense(mlp, heads)
    before = carried(moments)
    for after, exact in (
        (second_moment.through_mlp(moments, mlp, WHOLE), torch.einsum("iba,ijbc,jcd->ijad", rows, before, rows)),
        (
            second_moment.through_attention(moments, heads, WHOLE),
            torch.einsum("ikba,ijbc,jlcd->klad", edges, before, edges),
        ),
    ):
        size = torch.tensor(after.log_size, dtype=torch.float64).exp()
        torch.testing.assert_close(size * after.kernel, exact.diagonal(dim1=2, dim2=3).sum(-1))
        torch.testing.assert_close(size * after.own @ after.own.T, exact[-1, -1])
        assert float(after.own.norm()) == pytest.approx(1.0)
        assert after.shared is None or float(after.shared.norm()) == pytest.approx(1.0)


@given(st.integers(2, 6), st.integers(0, 10_000))
def test_attention_shares_the_mean_direction_of_the_other_tokens(n: int, seed: int) -> None:
    """Weighted by their whole traces; what paths through n and through others have in common is in these alone."""
    moments, (_, heads) = some_moments(n, seed), block(n, seed)
    _, edges = dense(*block(n, seed))
    whole = carried(moments)
    apart = whole.clone()
    apart[-1, :-1] = apart[:-1, -1] = 0.0
    traces, exact = (torch.einsum("ijab,ikac,kjcd->jbd", edges, moved, edges)[:-1] for moved in (whole, apart))
    traces = traces.diagonal(dim1=1, dim2=2).sum(-1)
    assume(bool((traces > 1e-6).all()))
    after = second_moment.through_attention(moments, heads, WHOLE)
    assert after.shared is not None
    expected = (exact / traces[:, None, None]).sum(0)
    torch.testing.assert_close(after.shared @ after.shared.T, expected / expected.trace())


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000))
def test_exact_where_every_operator_is_a_multiple_of_the_identity(layers: int, n: int, seed: int) -> None:
    """B_h = b_h I, D_j = c_j I, J_i = scalar_i I: predicted ||J_i||_F = sqrt(d) |scalar_i|, signs and all."""
    source, eye = generator(seed), torch.eye(D, dtype=torch.float64)
    moments = second_moment.top(n, eye)
    scalars = torch.eye(n, dtype=torch.float64)[-1]
    for layer in reversed(range(layers)):
        pattern = torch.stack(patterns(HEAD, n, seed + layer))
        b, c, scale = (normal(source, k) for k in (HEAD, n, n))
        weighted = pattern / (scale.abs() + 0.2)
        left = torch.cat([b[0] * eye, b[1] * eye], dim=1)
        mlp = Mlp(eye, eye, None, c[:, None].expand(n, D), None, EVERY)
        moments = second_moment.through_mlp(moments, mlp, WHOLE)
        moments = second_moment.through_attention(moments, Heads(left, torch.cat([eye, eye]), weighted), WHOLE)
        edge = (1 + c)[:, None] * paths.with_skip(torch.einsum("h,hqk->qk", b, weighted))
        scalars = scalars @ edge
    expected = D * scalars.square()
    torch.testing.assert_close(moments.squares(), expected, rtol=1e-6, atol=1e-9 * float(expected.max()))


def test_the_last_token_is_exact_at_any_depth_and_unreached_tokens_are_zero() -> None:
    n, moments = 5, second_moment.top(5, torch.eye(D, dtype=torch.float64))
    chain = torch.eye(D, dtype=torch.float64)
    for seed in range(4):
        mlp, heads = block(n, seed)
        heads = Heads(heads.left, heads.right, heads.weighted.tril().triu(-1))
        moments = second_moment.through_attention(second_moment.through_mlp(moments, mlp, WHOLE), heads, WHOLE)
        rows, edges = dense(mlp, heads)
        chain = chain @ rows[-1] @ edges[-1, -1]
        assert (moments.squares()[: max(0, n - 2 - seed)] == 0).all()
        assert (moments.squares()[max(0, n - 2 - seed) :] > 0).all()
        torch.testing.assert_close(moments.squares()[-1], chain.square().sum())


@pytest.mark.slow
def test_mean_over_random_rotations_is_the_measured_mean() -> None:
    """Two blocks, each seen through its own Haar rotation: prediction and ||J_j||_F^2 have the same mean."""
    n, draws, source = 4, 500, generator(0)
    blocks = [block(n, seed) for seed in (11, 12)]
    differences = []
    for _ in range(draws):
        moments = second_moment.top(n, torch.eye(D, dtype=torch.float64))
        jacobians = torch.zeros(n, D, D, dtype=torch.float64)
        jacobians[-1] = torch.eye(D, dtype=torch.float64)
        for mlp, heads in blocks:
            first, second = _haar(source), _haar(source)
            up = None if mlp.up is None else mlp.up @ first.T
            mlp = replace(mlp, down=first @ mlp.down, gate=mlp.gate @ first.T, up=up)
            heads = Heads(second @ heads.left, heads.right @ second.T, heads.weighted)
            moments = second_moment.through_attention(second_moment.through_mlp(moments, mlp, WHOLE), heads, WHOLE)
            rows, edges = dense(mlp, heads)
            jacobians = torch.einsum("iab,ijbc->jac", jacobians @ rows, edges)
        differences.append(moments.squares() - jacobians.square().sum((1, 2)))
    difference = torch.stack(differences)
    error = difference.std(0) / draws**0.5
    assert bool((difference.mean(0).abs() <= 4.5 * error + 1e-9).all())
    assert float(difference.std(0)[:-1].min()) > 1e-3


def _haar(source: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(normal(source, D, D))
    return q * r.diagonal().sign()


@given(st.integers(1, 5), st.integers(0, 10_000), st.booleans())
def test_overlaps_are_those_of_the_dense_jacobians(n: int, seed: int, gated: bool) -> None:
    """With d probes, whatever mean is taken off; traces and pulled factors beside them."""
    mlp, _ = block(n, seed)
    if not gated:
        mlp = replace(mlp, up=None, q=None)
    source = generator(seed)
    factor, other, weights = normal(source, D, 3), normal(source, D, 3), normal(source, n)
    jacobians = operators.mlp_jacobian(mlp.down, mlp.gate, mlp.up, mlp.p, mlp.q)
    rows = jacobians + torch.eye(D, dtype=torch.float64)
    expected = torch.einsum("iba,bc,jca->ij", rows, factor @ factor.T, rows)
    met, both = mlp.meet(factor, other)
    pulled, overlap = overlaps(mlp, met, weights)
    torch.testing.assert_close(overlap, expected)
    exact = torch.einsum("j,jab,ap->bp", weights, jacobians, factor)
    torch.testing.assert_close(pulled, exact)
    for found in (
        mlp.pulled([met, both], [weights, weights])[0],
        mlp.pulled([both, met], [weights.flip(0), weights])[1],
    ):
        torch.testing.assert_close(found, exact)
    for found in (mlp.read(other)[0], mlp.read(factor, mlp.probes, other)[2]):
        torch.testing.assert_close(mlp.traces(met, found), torch.einsum("ap,jab,bp->j", factor, jacobians, other))


def test_few_probes_are_unbiased_and_never_negative() -> None:
    """The overlaps of two probes, and a sketch of two columns: right in mean, positive semidefinite each time."""
    mlp, _ = block(5, 3)
    factor = normal(generator(4), D, D)
    (met,), weights = mlp.meet(factor), torch.full((5,), 0.2, dtype=torch.float64)
    draws = [
        overlaps(replace(mlp, probes=operators.orthogonal_probes(D, 2, seed, factor)), met, weights)[1]
        for seed in range(1000)
    ]
    _unbiased(torch.stack(draws), overlaps(mlp, met, weights)[1])
    squares = [_square(Sketch(2, seed).of(factor)) for seed in range(1000)]
    _unbiased(torch.stack(squares), _square(factor))
    _unbiased(torch.stack([_square(Sketch(2, seed).undirected(factor)) for seed in range(1000)]), torch.eye(D).double())


def test_a_sketch_of_d_columns_is_exact() -> None:
    wide = normal(generator(1), D, 3 * D)
    found = WHOLE.of(wide)
    assert found.shape == (D, D)
    torch.testing.assert_close(_square(found), _square(wide))
    torch.testing.assert_close(WHOLE.of(wide[:, :2]), wide[:, :2], rtol=0, atol=0)
    torch.testing.assert_close(_square(WHOLE.undirected(wide)), torch.eye(D, dtype=torch.float64))


def _square(factor: Tensor) -> Tensor:
    return factor @ factor.T


def _unbiased(found: Tensor, exact: Tensor) -> None:
    error = found.std(0) / len(found) ** 0.5
    assert bool(((found.mean(0) - exact).abs() <= 4.5 * error + 1e-9).all())
    assert float(found.std(0).max()) > 1e-3
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-9


@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 1.0, 0.0)])
def test_a_factor_moves_no_more_than_its_matrix(values: tuple[float, ...]) -> None:
    """Eigenvectors of equal values turn with rounding: so would a factor made of them alone, and all that is mixed of it."""
    turn = torch.linalg.qr(normal(generator(0), 3, 3)).Q
    before = turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.mT
    pulled = normal(generator(1), 3, D, 4)
    noise = normal(generator(2), 3, 3)
    after = before + 1e-12 * (noise @ noise.mT)
    found, moved = second_moment.sandwich(before, pulled), second_moment.sandwich(after, pulled)
    torch.testing.assert_close(found @ found.mT, torch.einsum("ab,adp,bep->de", before, pulled, pulled))
    assert float((moved - found).norm()) < 1e-5 * float(found.norm())
