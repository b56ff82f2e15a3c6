"""Norms of the edges of the path sum, patterns and scales held: how much one block moves from position j to position i.

    T_ij = delta_ij I + sum_h alpha_ij^h L_h R_h / (rp1_i r1_j),    B_h = L_h R_h of rank d_head

Every sum over heads is m x m' with m, m' <= d_model from one QR decomposition a block; only i = j needs the identity, d x d.
Source: docs/theory.md 3.2.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.bounds.operators import SQUARES, chunks, spectral_norms

LeftFactor = Float[Tensor, "head d_model d_head"]
Right = Float[Tensor, "head d_head d_model"]
Pattern = Float[Tensor, "head query key"]


def with_identity(matrices: Float[Tensor, "*batch d_model d_model"]) -> Float[Tensor, "*batch d_model d_model"]:
    """I + M."""
    return matrices + torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


def right_factors(right: Right) -> Float[Tensor, "head d_head rank"]:
    """R_h in an orthonormal basis of all heads' rows: heads that share a key/value head count once."""
    distinct, index = torch.unique_consecutive(right, dim=0, return_inverse=True)
    factor = torch.linalg.qr(distinct.flatten(0, 1).mT).R
    return factor.mT.unflatten(0, distinct.shape[:2])[index]


def combination_norms(
    weights: Float[Tensor, "head key"], cores: Float[Tensor, "head rows cols"]
) -> Float[Tensor, " key"]:
    """|| sum_h weights_hk core_h ||_2 for every k; keys without weight cost nothing."""
    largest = weights.abs().amax(0)
    norms, nonzero = torch.zeros_like(largest), largest.nonzero()[:, 0]
    for part in chunks(len(nonzero), 2 * cores[0].numel() * cores.element_size(), SQUARES):
        size = largest[nonzero[part]]
        # Weights of 1 at most: a pattern holds numbers whose squares are 0 in floating point.
        mixed = (weights[:, nonzero[part]] / size).mT @ cores.flatten(1)
        norms[nonzero[part]] = size * spectral_norms(mixed.unflatten(1, cores.shape[1:])).to(norms)
    return norms


def self_updates(
    pattern: Pattern, left_factor: LeftFactor, right: Right, scale: Float[Tensor, " pos"], part: slice
) -> Float[Tensor, "part d_model d_model"]:
    """sum_h alpha_ii^h L_h R_h / scale_i for the positions of `part`."""
    weights = pattern.diagonal(dim1=1, dim2=2)[:, part] / scale[part]
    return torch.einsum("hi,hde,hef->idf", weights, left_factor, right)
