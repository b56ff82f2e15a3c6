"""The path sum against enumeration, against autograd where it is exact; small-core shortcuts
against dense matrices.
"""

from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.ground.memory import smaller_chunks
from ostools.theory import path_sum as paths


def patterns(layers: int, n: int, seed: int = 0) -> list[Tensor]:
    """Random causal attention matrices: lower triangular, rows sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(layers, n, n, generator=generator, dtype=torch.float64)
    hidden = torch.ones(n, n).triu(1).bool()
    return list(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_row_of_the_product_is_the_sum_over_paths(layers: int, n: int, seed: int) -> None:
    """i <= k_1 <= ... <= k_{L-1} <= n: L - 1 inner indices, each path's edges multiplied, all paths
    added.
    """
    edges = [paths.with_skip(a) for a in patterns(layers, n, seed)]
    row = paths.path_row(edges)
    for i in range(n):
        total = 0.0
        for inner in combinations_with_replacement(range(i, n), layers - 1):
            weight = 1.0
            for layer, (key, query) in enumerate(pairwise((i, *inner, n - 1))):
                weight *= float(edges[layer][query, key])
            total += weight
        assert float(row[i]) == pytest.approx(total, rel=1e-12)


def as_printed(edges: list[Tensor], i: int) -> float:
    """Equations 1 and 4 term by term, without their constants: i <= k_1 <= ... <= k_L <= n, L
    indices for L matrices.
    """
    n, layers = len(edges[0]), len(edges)
    total = 0.0
    for inner in combinations_with_replacement(range(i, n), layers):
        k = (i, *inner)  # k[l] is the paper's k_l
        weight = float(edges[layers - 1][n - 1, k[layers]] * edges[0][k[1], i])
        for ell in range(2, layers):  # the printed product ends at L - 1
            weight *= float(edges[ell - 1][k[ell], k[ell - 1]])
        total += weight
    return total


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10_000))
def test_the_printed_sum_equals_its_enumeration(layers: int, n: int, seed: int) -> None:
    """Of any triangular matrices, entries of either sign among them; `layers` = 1 and 2 are the
    printed sum's border cases.
    """
    generator = torch.Generator().manual_seed(seed)
    edges = list(torch.randn(layers, n, n, generator=generator, dtype=torch.float64).tril())
    assert paths.printed_row(edges).tolist() == pytest.approx(
        [as_printed(edges, i) for i in range(n)], rel=1e-10, abs=1e-10
    )


def test_the_two_sums_differ_in_shape_as_the_theory_page_says() -> None:
    """Docs, section 3.1: uniform causal attention, n = 8, L = 3, beta = 1."""
    uniform = torch.tril(torch.ones(8, 8, dtype=torch.float64))
    edges = [paths.with_skip(uniform / uniform.sum(-1, keepdim=True))] * 3
    rows = {"the product": paths.path_row(edges), "literally": paths.printed_row(edges)}
    page = (Path(__file__).parents[3] / "docs" / "theory.md").read_text("utf-8")
    for name, row in rows.items():
        cells = [f"{value:.3f}" for value in row.tolist()]
        assert f"| {name} | {' | '.join(cells)} | {float(row.sum()):.0f} |" in page


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 10_000))
def test_bound_equals_the_measured_derivative_without_weights_norms_and_mlp(
    layers: int, n: int, seed: int
) -> None:
    """One head, W_OV = I: J_i = (product)_{n,i} I, from autograd."""
    attention = patterns(layers, n, seed)

    def network(x: Tensor) -> Tensor:
        for a in attention:
            x = x + a @ x
        return x[-1]

    jacobian = torch.autograd.functional.jacobian(network, torch.randn(n, 3, dtype=torch.float64))
    assert isinstance(jacobian, Tensor)
    row = paths.path_row([paths.with_skip(a) for a in attention])
    torch.testing.assert_close(
        jacobian, torch.einsum("i,od->oid", row, torch.eye(3, dtype=torch.float64))
    )


def test_constants_of_the_printed_forms() -> None:
    attention = patterns(1, 3)[0]
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(paths.theorem_51_edges(attention, 2.0), attention / 2 + eye)
    torch.testing.assert_close(paths.theorem_b5_edges(attention, 2.0), (attention + eye) / 2)
    torch.testing.assert_close(paths.proof_edges(attention, 4.0), attention / 4 + eye)
    assert paths.proof_constant(3.0, [1.0, 2.0], 0.5) == pytest.approx(
        2.0 * (3.0 + 1.0) * (1.5 + 1.0)
    )


CASES = st.tuples(
    st.integers(1, 3), st.integers(2, 9), st.integers(1, 6), st.integers(0, 10_000), st.booleans()
)


@given(CASES)
def test_head_norms(case: tuple[int, int, int, int, bool]) -> None:
    head, d_model, d_head, seed, _ = case
    left, right = torch.randn(
        2, head, d_model, d_head, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    dense = left @ right.mT
    torch.testing.assert_close(
        paths.head_norms(left, right.mT), torch.linalg.matrix_norm(dense, ord=2)
    )


@given(CASES)
def test_mlp_jacobian_is_the_derivative_of_the_mlp(case: tuple[int, int, int, int, bool]) -> None:
    positions, d_model, d_mlp, seed, gated = case
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(d_model, d_mlp, generator=generator, dtype=torch.float64)
    gate, up = (
        torch.randn(d_mlp, d_model, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    x = torch.randn(positions, d_model, generator=generator, dtype=torch.float64)

    def mlp(v: Tensor) -> Tensor:
        hidden = torch.nn.functional.silu(gate @ v)
        return down @ (hidden * (up @ v) if gated else hidden)

    a, u = (x @ gate.T).requires_grad_(True), x @ up.T
    value = torch.nn.functional.silu(a)
    (slope,) = torch.autograd.grad(value.sum(), a)
    p, q = (slope * u, value.detach()) if gated else (slope, None)
    arguments = (down, gate, up if gated else None, p, q)
    measured = torch.stack([torch.func.jacrev(mlp)(v) for v in x])

    torch.testing.assert_close(paths.mlp_jacobian(*arguments), measured)
    norms = torch.linalg.matrix_norm(measured, ord=2)
    with smaller_chunks(1e-9):  # one position at a time
        torch.testing.assert_close(paths.mlp_norms(*arguments), norms)
    assert bool((paths.mlp_norm_products(*arguments) >= norms * (1 - 1e-12)).all())


@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 8, 5), (1, 1, 1), (2, 3, 4, 4)])
@pytest.mark.parametrize("size", [1.0, 1e-250, 1e150])
def test_spectral_norms_are_the_largest_singular_values(
    shape: tuple[int, ...], size: float
) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.linalg.matrix_norm(matrices, ord=2)
    torch.testing.assert_close(
        paths.spectral_norms(size * matrices) / size, expected, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(
    "kind",
    ["random", "one neuron", "aligned", "equal entries", "ill-conditioned", "zero", "tiny", "huge"],
)
@pytest.mark.parametrize("gated", [True, False])
def test_the_product_of_norms_is_never_below_the_norm(kind: str, gated: bool) -> None:
    """Equal to it where one neuron, or the direction of every matrix's largest singular value, is
    all that acts.
    """
    generator = torch.Generator().manual_seed(7)
    d_mlp = 1 if kind == "one neuron" else 9
    down, gate, up = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((6, d_mlp), *2 * [(d_mlp, 6)])
    )
    p, q = torch.randn(2, 3, d_mlp, generator=generator, dtype=torch.float64)
    if kind == "aligned":
        gate = torch.diag(torch.arange(9.0, 0.0, -1.0, dtype=torch.float64))[:, :6]
        down, up, p, q = gate.mT, gate, torch.ones_like(p), torch.ones_like(q)
    elif kind in ("equal entries", "zero"):
        down, gate, up = (
            torch.full_like(matrix, kind == "equal entries") for matrix in (down, gate, up)
        )
    elif kind == "ill-conditioned":
        down, gate, up = (
            matrix * 10.0 ** -torch.arange(matrix.shape[1]) for matrix in (down, gate, up)
        )
    elif kind in ("tiny", "huge"):
        down, gate, up = (
            matrix * (1e-90 if kind == "tiny" else 1e90) for matrix in (down, gate, up)
        )
    arguments = (down, gate, up if gated else None, p, q if gated else None)
    norms = torch.linalg.matrix_norm(paths.mlp_jacobian(*arguments), ord=2)
    bound = paths.mlp_norm_products(*arguments)
    assert bool((bound >= norms * (1 - 1e-12)).all())
    if kind == "aligned" or (kind == "one neuron" and not gated):
        torch.testing.assert_close(bound, norms)
