"""The prediction's step through a parallel block: one step is exact, so is the last token; scalar operators at any depth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory.path_sum import second_moment
from ostools.theory.path_sum.mlp_moments import Mlp
from ostools.theory.path_sum.parallel_moments import crossed_traces, squares, through_parallel
from ostools.theory.path_sum.second_moment import Heads
from tests.theory.path_sum.test_paths import patterns
from tests.theory.path_sum.test_second_moment import (
    EVERY,
    HEAD,
    WHOLE,
    D,
    block,
    carried,
    dense,
    generator,
    normal,
    some_moments,
)


def parallel(mlp: Mlp, heads: Heads) -> Tensor:
    """X_ij = T_ij + delta_ij D_i, [query, key, d, d]."""
    rows, edges = dense(mlp, heads)
    own = torch.eye(len(rows), dtype=torch.float64)[:, :, None, None]
    return edges + own * (rows - torch.eye(D, dtype=torch.float64))


def of_kind(mlp: Mlp, gated: bool) -> Mlp:
    return mlp if gated else replace(mlp, up=None, q=None)


@given(st.integers(1, 6), st.integers(0, 10_000), st.booleans())
def test_one_step_gives_the_exact_traces(n: int, seed: int, gated: bool) -> None:
    moments, (mlp, heads) = some_moments(n, seed), block(n, seed)
    mlp = of_kind(mlp, gated)
    edges = parallel(mlp, heads)
    exact = torch.einsum("ikba,ijbc,jlcd->klad", edges, carried(moments), edges)
    after = through_parallel(moments, mlp, heads, (WHOLE, WHOLE))
    size = torch.tensor(after.log_size, dtype=torch.float64).exp()
    torch.testing.assert_close(size * after.kernel, exact.diagonal(dim1=2, dim2=3).sum(-1))
    torch.testing.assert_close(size * after.own @ after.own.T, exact[-1, -1])
    by_pairs = torch.einsum("ijba,bp,cp,ijca->ij", edges, moments.own, moments.own, edges)
    torch.testing.assert_close(squares(mlp, heads, moments.own), by_pairs)


@given(st.integers(2, 6), st.integers(0, 10_000), st.booleans())
def test_the_direction_of_the_others_is_their_mean_where_their_mlps_are_alike(n: int, seed: int, gated: bool) -> None:
    """Weighted by their whole traces, without what paths through n and through others have in common."""
    moments, (mlp, heads) = some_moments(n, seed), block(n, seed)
    mlp = of_kind(replace(mlp, p=mlp.p[:1].expand(n, -1), q=None if mlp.q is None else mlp.q[:1].expand(n, -1)), gated)
    edges, whole = parallel(mlp, heads), carried(moments)
    apart = whole.clone()
    apart[-1, :-1] = apart[:-1, -1] = 0.0
    traces, exact = (torch.einsum("ijba,ikbc,kjcd->jad", edges, moved, edges)[:-1] for moved in (whole, apart))
    traces = traces.diagonal(dim1=1, dim2=2).sum(-1)
    assume(bool((traces > 1e-6).all()))
    after = through_parallel(moments, mlp, heads, (WHOLE, WHOLE))
    assert after.shared is not None
    expected = (exact / traces[:, None, None]).sum(0)
    torch.testing.assert_close(after.shared @ after.shared.T, expected / expected.trace())


@given(st.integers(1, 5), st.integers(0, 10_000), st.booleans())
def test_products_of_the_mlp_with_the_heads(n: int, seed: int, gated: bool) -> None:
    """Against d x d matrices."""
    mlp, heads = block(n, seed)
    mlp = of_kind(mlp, gated)
    rows, _ = dense(mlp, heads)
    inner, factor = rows - torch.eye(D, dtype=torch.float64), some_moments(n, seed).own
    matrices = heads.left.unflatten(1, (HEAD, -1)).transpose(0, 1) @ heads.right.unflatten(0, (HEAD, -1))
    (met,) = mlp.meet(factor)
    found = crossed_traces(mlp, met, heads.pulled(factor))
    torch.testing.assert_close(found, torch.einsum("jba,bp,cp,hca->hj", inner, factor, factor, matrices))


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
        heads = Heads(torch.cat([b[0] * eye, b[1] * eye], dim=1), torch.cat([eye, eye]), weighted)
        moments = through_parallel(
            moments, Mlp(eye, eye, None, c[:, None].expand(n, D), None, EVERY), heads, (WHOLE, WHOLE)
        )
        scalars = scalars @ (torch.einsum("h,hqk->qk", b, weighted) + torch.diag(1 + c))
    expected = D * scalars.square()
    torch.testing.assert_close(moments.squares(), expected, rtol=1e-6, atol=1e-9 * float(expected.max()))


def test_the_last_token_is_exact_at_any_depth() -> None:
    moments, chain = second_moment.top(5, torch.eye(D, dtype=torch.float64)), torch.eye(D, dtype=torch.float64)
    for seed in range(4):
        mlp, heads = block(5, seed)
        moments = through_parallel(moments, mlp, heads, (WHOLE, WHOLE))
        chain = chain @ parallel(mlp, heads)[-1, -1]
        assert float(moments.squares()[-1]) == pytest.approx(float(chain.square().sum()))
