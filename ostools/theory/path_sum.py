"""Theorem 5.1 / B.5: the sum over paths is one entry of a product of triangular matrices.

    sum over i <= k_1 <= ... <= k_{L-1} <= n of prod_l abar^(l)  =  ( Abar^(L-1) ... Abar^(1)
    Abar^(0) )_{n,i}

Paths are never enumerated: one row vector times L matrices, O(L n^2). The functions below build the
Abar of each form of the theorem from attention patterns and norm scales; none of them knows a
model. The chain rule gives L - 1 inner indices. Equations 1 and 4 print one more, k_L, and connect
it to nothing below: `printed_row` is the sum as printed (docs/fidelity.md).

The certified form follows from the block Jacobian with patterns and scales held (docs/theory.md
3.2):

    T_ij = delta_ij I + sum_h alpha_ij^h L_h R_h / (rp1_i r1_j),    B_h = L_h R_h of rank d_head

A head's norm needs d_head x d_head matrices, never d x d. The gated MLP's Jacobian is
W_down (diag(p) W_gate + diag(q) W_up) with p = act'(a) u, q = act(a): n of them, one a position.

Source: Barbero et al. 2024 (arXiv 2406.04267), theorem 5.1 and theorem B.5.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import chunk

Down = Float[Tensor, "d_model d_mlp"]
Up = Float[Tensor, "d_mlp d_model"]
Factor = Float[Tensor, "pos d_mlp"]


CHUNK_BUDGET, SQUARES, CACHE = 1 << 26, 1 << 23, 1 << 20


def chunks(total: int, bytes_each: int, budget: int = CHUNK_BUDGET) -> Iterator[slice]:
    """0..total in slices that fit `budget` bytes, one at least at a time."""
    step = max(1, chunk(budget) // max(1, bytes_each))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def spectral_norms(matrices: Float[Tensor, "*batch rows cols"]) -> Float[Tensor, "*batch"]:
    """||M||_2 of each, from the largest eigenvalue of the smaller Gram matrix: exact to rounding,
    no power iteration.

    Every matrix is divided by its largest entry first: patterns hold numbers whose squares are 0 in
    floating point.
    """
    size = matrices.abs().amax((-2, -1))
    unit = matrices / torch.where(size > 0, size, 1.0)[..., None, None]
    gram = unit @ unit.mT if matrices.shape[-2] <= matrices.shape[-1] else unit.mT @ unit
    return size * torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0.0).sqrt()


def head_norms(
    left_factor: Float[Tensor, "head d_model d_head"], right: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, " head"]:
    """omega_h = ||L_h R_h||_2, exactly: the singular values of R_L R_R^T from two thin QR
    decompositions.
    """
    r_left = torch.linalg.qr(left_factor).R
    r_right = torch.linalg.qr(right.mT).R
    return torch.linalg.matrix_norm(r_left @ r_right.mT, ord=2)


def mlp_jacobian(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None
) -> Float[Tensor, "pos d_model d_model"]:
    """W_down (diag(p_j) W_gate + diag(q_j) W_up) for every position j; `up` is None for an MLP
    without a gate.
    """
    jacobian = down.new_empty(len(p), down.shape[0], gate.shape[1])
    # So few inner matrices at a time that a processor's cache holds them: from memory they cost
    # more than the products.
    for part in chunks(
        len(p),
        gate.numel() * gate.element_size(),
        CACHE if gate.device.type == "cpu" else CHUNK_BUDGET,
    ):
        inner = p[part, :, None] * gate
        if up is not None and q is not None:
            inner.addcmul_(q[part, :, None], up)
        torch.matmul(down, inner, out=jacobian[part])
    return jacobian


def mlp_norms(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None
) -> Float[Tensor, " pos"]:
    """||J_psi||_2 at every position, d x d matrices; O(n d^2 ff) to form them, an ff x d matrix of
    memory.
    """
    parts = chunks(len(p), 3 * gate.shape[1] ** 2 * gate.element_size(), SQUARES)
    formed = (
        mlp_jacobian(down, gate, up, p[part], None if q is None else q[part]) for part in parts
    )
    return torch.cat([spectral_norms(jacobians) for jacobians in formed])


def mlp_norm_products(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None
) -> Float[Tensor, " pos"]:
    """||W_down|| ( ||p_j||_inf ||W_gate|| + ||q_j||_inf ||W_up|| ) >= ||J_psi||_2: one Gram matrix
    a weight.
    """
    inner = p.abs().amax(-1) * spectral_norms(gate)
    if up is not None and q is not None:
        inner = inner + q.abs().amax(-1) * spectral_norms(up)
    return spectral_norms(down) * inner


Pattern = Float[Tensor, "head query key"]


def with_identity(
    matrices: Float[Tensor, "*batch d_model d_model"],
) -> Float[Tensor, "*batch d_model d_model"]:
    """I + M."""
    return matrices + torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


Edges = Float[Tensor, "query key"]


def path_row(layers: Sequence[Edges]) -> Float[Tensor, " key"]:
    """( Abar^(L-1) ... Abar^(0) )_{n,i} for every i, n the last token; `layers` from the first
    block to the last.
    """
    row = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)[-1]
    for edges in reversed(layers):
        row = row @ edges
    return row


def printed_row(layers: Sequence[Edges]) -> Float[Tensor, " key"]:
    """Equations 1 and 4 as printed (docs/fidelity.md) but for their constants, for every i, first
    block first:

        sum_{k_1 >= i} ... sum_{k_L >= k_{L-1}} Abar^(L-1)_{n,k_L} prod_{l=2}^{L-1}
        Abar^(l-1)_{k_l,k_{l-1}} Abar^(0)_{k_1,i}

    k_L stands in the first factor and in its own range only, so that the first factor sums to a
    tail of its row: ( t Abar^(L-2) ... Abar^(0) )_i with t = `tail_sums` of row n. Never below
    `path_row` where no entry is negative, and for i = n equal to it. One block (L = 1) is read
    twice, ( Abar^(0) Abar^(0) )_{n,i}, because then k_L is k_1. Expects triangular matrices: the
    printed ranges ask for k_l >= k_{l-1}. O(L n^2).
    """
    top = layers[-1][-1]
    row, below = (tail_sums(top), layers[:-1]) if len(layers) > 1 else (top, layers)
    for edges in reversed(below):
        row = row @ edges
    return row


def tail_sums(rows: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
    """sum_{k >= m} row_k for every m: what the unconnected index k_L >= k_{L-1} = m of equations 1
    and 4 sums.
    """
    return rows.flip(-1).cumsum(-1).flip(-1)


def with_skip(update: Edges, skip: float | Float[Tensor, " #query"] = 1.0) -> Edges:
    """update_ij + delta_ij skip_i: every block adds to the residual stream, a parallel one its
    MLP's output too.
    """
    return update.diagonal_scatter(update.diagonal() + skip)


def theorem_51_edges(mean_pattern: Edges, beta_2: float) -> Edges:
    """abar_ij = alpha_ij / beta_2 + delta_ij: equation 1 of the main text; its constant C is left
    open.
    """
    return with_skip(mean_pattern / beta_2)


def theorem_b5_edges(mean_pattern: Edges, beta: float) -> Edges:
    """abar_ij = (alpha_ij + delta_ij) / beta: equation 4, which does not say which norm's beta; C =
    sigma_psi^L.
    """
    return with_skip(mean_pattern) / beta


def proof_edges(mean_pattern: Edges, beta_1: float) -> Edges:
    """abar_ij = alpha_ij / beta_1 + delta_ij: what the proof of B.5 derives; its constant is
    `proof_constant`.
    """
    return with_skip(mean_pattern / beta_1)


def proof_constant(sigma_psi: float, beta_2: Iterable[float], beta_3: float) -> float:
    """C = (1 / beta_3) prod_l (sigma_psi / beta_2^(l) + 1)."""
    constant = 1.0 / beta_3
    for beta in beta_2:
        constant *= sigma_psi / beta + 1.0
    return constant


def weighted_pattern(pattern: Pattern, omega: Float[Tensor, " head"]) -> Edges:
    """sum_h omega_h |alpha_ij^h|, with omega_h = ||W_OV^h||_2, gains folded in: how much a layer
    can move at most.

    Attention weights are not negative; what an edit puts in their place may be. In the dtype of
    `omega`, a head at a time, so that of a long prompt's patterns no second copy is made.
    """
    total = torch.zeros(pattern.shape[1:], dtype=omega.dtype, device=pattern.device)
    for alpha, size in zip(pattern, omega, strict=True):
        total.add_(alpha.abs(), alpha=float(size))
    return total


def local_edges(
    weighted: Edges,
    norm1_scale: Float[Tensor, " key"],
    post_norm1_scale: Float[Tensor, " query"],
    mlp_norm: Float[Tensor, " query"],
    parallel: bool = False,
) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij ): certified, each
    position with its own scales.

    Of a parallel block sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij (1 + ||D_i||).
    """
    attention_edges = weighted / post_norm1_scale[:, None] / norm1_scale
    return (
        with_skip(attention_edges, 1.0 + mlp_norm)
        if parallel
        else with_skip(attention_edges).mul_((1.0 + mlp_norm)[:, None])
    )
