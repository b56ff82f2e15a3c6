"""Norms and inner products of the operators on a path, from small cores.

A head's B = W_OV^h = L R has rank d_head: its norm, trace and inner products need d_head x d_head matrices, never d x d.
The gated MLP's Jacobian is W_down (diag(p) W_gate + diag(q) W_up) with p = act'(a) u, q = act(a): n of them, one a position.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.chunks import chunk

Left = Float[Tensor, "head d_model d_head"]
Right = Float[Tensor, "head d_head d_model"]
Down = Float[Tensor, "d_model d_mlp"]
Up = Float[Tensor, "d_mlp d_model"]
Factor = Float[Tensor, "pos d_mlp"]


CHUNK_BUDGET = 1 << 26


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


def head_norms(left: Left, right: Right) -> Float[Tensor, " head"]:
    """omega_h = ||L_h R_h||_2, exactly: the singular values of R_L R_R^T from two thin QR decompositions."""
    r_left = torch.linalg.qr(left).R
    r_right = torch.linalg.qr(right.mT).R
    return torch.linalg.matrix_norm(r_left @ r_right.mT, ord=2)


def mlp_jacobian(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None
) -> Float[Tensor, "pos d_model d_model"]:
    """W_down (diag(p_j) W_gate + diag(q_j) W_up) for every position j; `up` is None for an MLP without a gate."""
    inner = p[:, :, None] * gate
    if up is not None and q is not None:
        inner = inner + q[:, :, None] * up
    return down @ inner


def mlp_norms(down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None) -> Float[Tensor, " pos"]:
    """||J_psi||_2 at every position, exactly; O(n d^2 (ff + d)), and memory for three ff x d matrices at least."""
    norms = []
    for part in chunks(len(p), 3 * gate.numel() * gate.element_size()):
        jacobian = mlp_jacobian(down, gate, up, p[part], None if q is None else q[part])
        norms.append(spectral_norms(jacobian))
    return torch.cat(norms)


def mlp_norm_products(down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None) -> Float[Tensor, " pos"]:
    """||W_down|| ( ||p_j||_inf ||W_gate|| + ||q_j||_inf ||W_up|| ) >= ||J_psi||_2: one norm a weight, not one a position."""
    inner = p.abs().amax(-1) * torch.linalg.matrix_norm(gate, ord=2)
    if up is not None and q is not None:
        inner = inner + q.abs().amax(-1) * torch.linalg.matrix_norm(up, ord=2)
    return torch.linalg.matrix_norm(down, ord=2) * inner


def mlp_mean_jacobian(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None, weights: Float[Tensor, " pos"]
) -> Float[Tensor, "d_model d_model"]:
    """sum_j w_j J_psi,j: linear in p and q, so one matrix product; at one position with w = e_j."""
    inner = (weights @ p)[:, None] * gate
    if up is not None and q is not None:
        inner = inner + (weights @ q)[:, None] * up
    return down @ inner


def mlp_traces(
    down: Down,
    gate: Up,
    up: Up | None,
    p: Factor,
    q: Factor | None,
    metric: Float[Tensor, "d_model d_model"] | None = None,
) -> Float[Tensor, " pos"]:
    """tr(metric J_psi) at every position; the identity without a metric."""
    left = down.T if metric is None else down.T @ metric.T
    trace = p @ (gate * left).sum(1)
    return trace if up is None or q is None else trace + q @ (up * left).sum(1)


def mlp_inner_products(
    down: Down,
    gate: Up,
    up: Up | None,
    p: Factor,
    q: Factor | None,
    metric: Float[Tensor, "d_model d_model"] | None = None,
    probes: Float[Tensor, "d_model probe"] | None = None,
) -> Float[Tensor, "pos pos"]:
    """tr(J_psi,j^T metric J_psi,j') for every pair of positions; `metric` symmetric, the identity if None.

    Exactly through three ff x ff Gram matrices, O(ff^2 (d + n)); or, unbiased, as the mean over k probes z with
    E[z z^T] = I of (J_psi,j z)^T metric (J_psi,j' z), O(k n ff d).
    """
    if probes is not None:
        return _probed_inner_products(down, gate, up, p, q, metric, probes)
    outer = down.T @ (down if metric is None else metric @ down)
    if up is None or q is None:
        return p @ (outer * (gate @ gate.T)) @ p.T
    # <., .> of gate with gate, of gate with up and of up with gate in one product, made symmetric afterwards.
    half = (p @ (outer * (gate @ gate.T)) + 2.0 * q @ (outer * (up @ gate.T))) @ p.T
    half = half + q @ (outer * (up @ up.T)) @ q.T
    return (half + half.T) / 2.0


def _probed_inner_products(
    down: Down,
    gate: Up,
    up: Up | None,
    p: Factor,
    q: Factor | None,
    metric: Float[Tensor, "d_model d_model"] | None,
    probes: Float[Tensor, "d_model probe"],
) -> Float[Tensor, "pos pos"]:
    """<D_j, D_j'> = <D, D_j> + <D, D_j'> - <D, D> + <D_j - D, D_j' - D> with D the mean: only the last term is estimated."""
    even = torch.full_like(p[:, 0], 1.0 / len(p))
    mean = mlp_mean_jacobian(down, gate, up, p, q, even)
    pulled = mean.T if metric is None else mean.T @ metric
    with_mean = mlp_traces(down, gate, up, p, q, metric=pulled)
    total = p.new_zeros(len(p), len(p))
    centred_p, centred_q = p - p.mean(0), None if q is None else q - q.mean(0)
    for probe in probes.T:
        hidden = centred_p * (gate @ probe)
        if up is not None and centred_q is not None:
            hidden.addcmul_(centred_q, (up @ probe)[None])
        moved = hidden @ down.T
        total.addmm_(moved if metric is None else moved @ metric, moved.T)
    return total / probes.shape[1] + with_mean[:, None] + with_mean[None, :] - (pulled * mean.T).sum()


def orthogonal_probes(d_model: int, count: int, seed: int, like: Tensor) -> Float[Tensor, "d_model probe"]:
    """`count` <= d random directions, orthogonal, of length sqrt(d): E[z z^T] = I, and no estimation error at count = d."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(d_model, min(count, d_model), generator=generator, dtype=torch.float64)
    directions, triangle = torch.linalg.qr(normal)
    return (directions * triangle.diagonal().sign() * d_model**0.5).to(like)
