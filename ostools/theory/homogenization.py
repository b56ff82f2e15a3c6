"""How alike the tokens of one text are in a layer: the spectrum of the matrix of their states, and
their cosines.

    sigma_k                         singular values of X, one row a token
    matrix entropy (nats)           H = - sum_k p_k log p_k,   p_k = sigma_k^2 / sum_j sigma_j^2
    effective rank                  exp(- sum_k q_k log q_k),  q_k = sigma_k / sum_j sigma_j
    mean cosine                     mean over pairs i < j of <x_i, x_j> / (|x_i| |x_j|)

Equal tokens have H = 0, rank 1 and cosine 1; n orthonormal ones H = log n, rank n and cosine 0. The
entropy weighs directions by their energy: one token of great norm, a massive activation, brings it
near 0 whatever the others do. The rank weighs them by their size, so that more of the others shows
in it.

Source: matrix entropy as in Queipo-de-Llano et al. 2025 (arXiv 2510.06477); effective rank: Roy and
Vetterli, The effective rank (2007), EUSIPCO; cosines of all pairs as in Yusupov et al. 2025 (arXiv
2508.17126).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError


class Likeness(NamedTuple):
    """How alike the rows of a matrix are; `normalised_entropy` is H / log min(n, d), 1 where no
    direction stands out.
    """

    entropy: float
    normalised_entropy: float
    effective_rank: float
    mean_cosine: float


def likeness(states: Float[Tensor, "pos d_model"]) -> Likeness:
    """Entropy, effective rank and mean cosine of the rows, in float64. Cost: the singular values of
    one matrix.

    Raises `InputError` for fewer than two rows, for a row of zeros, which has no direction, and for
    numbers that are not finite.
    """
    rows = states.double()
    norms = rows.norm(dim=1)
    if len(rows) < 2 or not bool(torch.isfinite(norms).all()) or not bool((norms > 0).all()):
        raise InputError(
            "likeness of tokens: expected at least two finite states that are not 0, found "
            f"{len(rows)} of norms from {float(norms.min()):.3g} to {float(norms.max()):.3g}"
        )
    values = torch.linalg.svdvals(rows / norms.max())
    # What rounding leaves of a direction that is not there: as for the rank of a matrix.
    values = values[values > max(rows.shape) * torch.finfo(rows.dtype).eps * values[0]]
    entropy = _entropy(values.square())
    directions = rows / norms[:, None]
    cosines = (directions @ directions.T).triu(1).sum() / (len(rows) * (len(rows) - 1) / 2)
    most = torch.tensor(float(min(rows.shape)), dtype=rows.dtype).log()
    return Likeness(
        float(entropy), float(entropy / most), float(_entropy(values).exp()), float(cosines)
    )


def _entropy(weights: Float[Tensor, " direction"]) -> Float[Tensor, ""]:
    return torch.special.entr(weights / weights.sum()).sum()
