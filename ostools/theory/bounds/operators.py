"""Norms of the operators on a path, from small cores.

A head's B = W_OV^h = L R has rank d_head: its norm needs d_head x d_head matrices, never d x d.
The gated MLP's Jacobian is W_down (diag(p) W_gate + diag(q) W_up) with p = act'(a) u, q = act(a): n of them, one a position.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.chunks import chunk

LeftFactor = Float[Tensor, "head d_model d_head"]
Right = Float[Tensor, "head d_head d_model"]
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
    """||M||_2 of each, from the largest eigenvalue of the smaller Gram matrix: exact to rounding, no power iteration.

    Every matrix is divided by its largest entry first: patterns hold numbers whose squares are 0 in floating point.
    """
    size = matrices.abs().amax((-2, -1))
    unit = matrices / torch.where(size > 0, size, 1.0)[..., None, None]
    gram = unit @ unit.mT if matrices.shape[-2] <= matrices.shape[-1] else unit.mT @ unit
    return size * torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0.0).sqrt()


def head_norms(left_factor: LeftFactor, right: Right) -> Float[Tensor, " head"]:
    """omega_h = ||L_h R_h||_2, exactly: the singular values of R_L R_R^T from two thin QR decompositions."""
    r_left = torch.linalg.qr(left_factor).R
    r_right = torch.linalg.qr(right.mT).R
    return torch.linalg.matrix_norm(r_left @ r_right.mT, ord=2)


def mlp_jacobian(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None
) -> Float[Tensor, "pos d_model d_model"]:
    """W_down (diag(p_j) W_gate + diag(q_j) W_up) for every position j; `up` is None for an MLP without a gate."""
    jacobian = down.new_empty(len(p), down.shape[0], gate.shape[1])
    # So few inner matrices at a time that a processor's cache holds them: from memory they cost more than the products.
    for part in chunks(
        len(p), gate.numel() * gate.element_size(), CACHE if gate.device.type == "cpu" else CHUNK_BUDGET
    ):
        inner = p[part, :, None] * gate
        if up is not None and q is not None:
            inner.addcmul_(q[part, :, None], up)
        torch.matmul(down, inner, out=jacobian[part])
    return jacobian


def mlp_norms(down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None) -> Float[Tensor, " pos"]:
    """||J_psi||_2 at every position, d x d matrices; O(n d^2 ff) to form them, an ff x d matrix of memory."""
    parts = chunks(len(p), 3 * gate.shape[1] ** 2 * gate.element_size(), SQUARES)
    formed = (mlp_jacobian(down, gate, up, p[part], None if q is None else q[part]) for part in parts)
    return torch.cat([spectral_norms(jacobians) for jacobians in formed])


def mlp_norm_products(down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None) -> Float[Tensor, " pos"]:
    """||W_down|| ( ||p_j||_inf ||W_gate|| + ||q_j||_inf ||W_up|| ) >= ||J_psi||_2: one norm a weight, not one a position."""
    inner = p.abs().amax(-1) * torch.linalg.matrix_norm(gate, ord=2)
    if up is not None and q is not None:
        inner = inner + q.abs().amax(-1) * torch.linalg.matrix_norm(up, ord=2)
    return torch.linalg.matrix_norm(down, ord=2) * inner
