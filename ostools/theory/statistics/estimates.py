"""Norms of matrices that are seen only through a few products: estimates with intervals, and bounds with a confidence.

Purpose: ||J||_F and ||J||_2 of a d x d Jacobian out of a few rows g^T J (a backward pass each) in place of all d of them.
J splits along an orthonormal basis Q of c output directions, J = Q Q^T J + R:

    ||J||_F^2 = ||Q^T J||_F^2 + ||R||_F^2                the first known exactly, the second estimated
    ||Q^T J||_2^2 <= ||J||_2^2 <= ||Q^T J||_2^2 + ||R||_2^2      the first known exactly, the last bounded with a confidence

R is seen through m rows g_k^T R with g_k Gaussian, drawn after Q and independent of it: only their Gram matrix
G_kl = g_k^T M g_l, M = R R^T, enters. Everything here takes one Gram matrix a position, batched over positions.
Cost: O(m^3) a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import chi2
from torch import Tensor

Gram = Float[Tensor, "pos row row"]
PerToken = Float[Tensor, " pos"]


@dataclass(frozen=True)
class TraceInterval:
    """An unbiased estimate and its two-sided confidence interval, one a position."""

    value: PerToken
    lower: PerToken
    upper: PerToken


def orthonormal_rows(sketch: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    """Q^T: orthonormal directions that span the rows of `sketch`, float64."""
    return torch.linalg.qr(sketch.double().T).Q.T


def complement(
    cotangents: Float[Tensor, "row d_model"], basis: Float[Tensor, "direction d_model"]
) -> Float[Tensor, "row d_model"]:
    """(I - Q Q^T) g for every row g: what of a Gaussian cotangent lies outside the basis."""
    return cotangents - (cotangents @ basis.T) @ basis


def gram(*parts: Float[Tensor, "_ pos d_model"]) -> Gram:
    """G_kl = <row k, row l> at every position, float64, of the rows of all parts together.

    A position at a time, so that neither a joint nor a float64 copy of all rows is made.
    """
    found = []
    for here in zip(*(part.unbind(1) for part in parts), strict=True):
        rows = torch.cat(here).double()
        found.append(rows @ rows.T)
    return torch.stack(found)


def effective_rank(rest: Gram) -> PerToken:
    """nu = tr(M)^2 / tr(M^2), from 1 (rank one) to d, both moments estimated without bias from pairs of different rows.

    E G_kk G_ll = tr(M)^2 and E G_kl^2 = tr(M^2) for k != l. G_kl^2 <= G_kk G_ll, so that the ratio is never below 1, and is
    1 exactly where M has rank one (or is zero).
    """
    diagonal = rest.diagonal(dim1=-2, dim2=-1)
    same = diagonal.square().sum(-1)
    traces = diagonal.sum(-1).square() - same
    squares = rest.square().sum((-1, -2)) - same
    return torch.where(squares > 0, traces / squares, 1.0).clamp_min(1.0)


def trace_interval(rest: Gram, level: float) -> TraceInterval:
    """tr M = ||R||_F^2 from m Gaussian rows: the mean of ||g_k^T R||^2, and an interval that misses with probability `level`.

    The mean is a weighted chi-square, tr(M) sum_i w_i chi2_m,i / m with sum_i w_i = 1 and sum_i w_i^2 = 1 / nu. Lower end:
    Satterthwaite's chi-square with m nu degrees of freedom. Upper end: that of rank one, m / chi2_m, shrunk towards 1 by
    sqrt(nu) (Graybill and Wang 1980): a spike among the weights that the sample happens to miss makes Satterthwaite's own
    upper end too low (coverage 86% to 90% with a spike of 30% and 8 to 16 rows). Exact for rank one; elsewhere nominal,
    because nu is estimated: coverage is measured by benchmarks/estimates.py.
    """
    m = rest.shape[-1]
    value = rest.diagonal(dim1=-2, dim2=-1).mean(-1)
    nu = effective_rank(rest)
    tail = torch.from_numpy(np.asarray(chi2.isf(level / 2, m * nu.numpy())))
    rank_one = m / float(chi2.ppf(level / 2, m)) - 1.0
    return TraceInterval(value, lower=value * m * nu / tail, upper=value * (1.0 + rank_one / nu.sqrt()))


def norm_limit(rest: Gram, level: float) -> PerToken:
    """A number below ||R||_2^2 with probability at most `level`, for EVERY matrix R: lambda_max(G) / chi2_m's quantile.

    With u the top left singular vector of R, lambda_max(G) = ||[g_1 ... g_m]^T R||_2^2 >= ||R||_2^2 sum_k (g_k . u)^2, and
    that sum is a chi-square with m degrees of freedom (u lies in the complement of Q, where g_k is standard Gaussian).
    It is at most the same limit of ||R||_F^2, sum_k G_kk in place of lambda_max(G), and up to m times smaller.
    """
    m = rest.shape[-1]
    return torch.linalg.eigvalsh(rest)[..., -1] / float(chi2.ppf(level, m))
