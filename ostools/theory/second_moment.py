"""The path sum that predicts: mean squares in place of worst cases.

If every step of a path meets a randomly rotated direction, ||G T||_F^2 = ||G||_F^2 ||T||_F^2 / d in mean. Weights are shared
between positions, so paths through different positions interfere; their inner products are kept in a positive
semidefinite kernel K, n x n, from the top of the network down:

    K^(L) = e_n e_n^T ||final norm||_F^2
    Kt    = K o M,   M_jj' = tr((I + D_j)(I + D_j')^T) / d                          through the MLP
    U     = sum_h t_h At_h^T Kt,   At_h = diag(1/rp1) A_h diag(1/r1),   t_h = tr(B_h) / d
    K    <- Kt + U + U^T + sum_hk G_hk At_h^T Kt At_k,   G_hk = <B_h, B_k> / d        through attention
    predicted ||d y_n / d v_i^(l)||_F = sqrt(K^(l)_ii)

No gradient, one forward pass; O(H n^3 + H^2 n^2) a layer, and O(ff^2 n) for M. It bounds nothing. With patterns and scales
held (`frozen`); B_h = diag(gp1) W_OV^h diag(g1), D_j the MLP's Jacobian with its norms.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Float[Tensor, "pos pos"]


def top_kernel(n: int, final_norm_squared: Float[Tensor, ""], last: int = -1) -> Kernel:
    """K^(L) = e_m e_m^T ||final norm||_F^2, m = `last` out of n positions."""
    kernel = torch.zeros(n, n, dtype=final_norm_squared.dtype, device=final_norm_squared.device)
    kernel[last, last] = final_norm_squared
    return kernel


def through_mlp(kernel: Kernel, overlap: Kernel) -> Kernel:
    """Kt = K o M."""
    return kernel * overlap


def mlp_overlap(
    trace: Float[Tensor, " pos"], inner: Float[Tensor, "pos pos"], d_model: int
) -> Float[Tensor, "pos pos"]:
    """M_jj' = tr((I + D_j)(I + D_j')^T) / d = (d + tr D_j + tr D_j' + <D_j, D_j'>) / d."""
    return 1.0 + (trace[:, None] + trace[None, :] + inner) / d_model


def through_attention(
    kernel: Kernel,
    pattern: Float[Tensor, "head query key"],
    norm1_scale: Float[Tensor, " key"],
    post_norm1_scale: Float[Tensor, " query"],
    traces: Float[Tensor, " head"],
    gram: Float[Tensor, "head head"],
) -> Kernel:
    """Kt + U + U^T + sum_hk G_hk At_h^T Kt At_k, with t_h = `traces` and G_hk = `gram`, both already divided by d."""
    weighted = pattern / post_norm1_scale[:, None] / norm1_scale
    once = torch.einsum("h,hqk,qp->kp", traces, weighted, kernel)
    mixed = torch.einsum("hg,gqk->hqk", gram, weighted)
    twice = torch.einsum("hqk,hqp->kp", weighted, kernel @ mixed)
    return kernel + once + once.T + twice


def frobenius_norms(kernel: Kernel) -> Float[Tensor, " pos"]:
    """sqrt(K_ii); rounding may leave a diagonal entry a little below 0."""
    return kernel.diagonal().clamp_min(0.0).sqrt()
