"""Uniform causal attention in closed form: what the causal mask and the skip connections alone make of a profile.

In block l every token i takes a part lambda_l of itself and 1 - lambda_l of the mean of tokens 1 ... i:

    A^(l) = lambda_l I + (1 - lambda_l) C        C_ij = 1 / i for j <= i, else 0 (the Cesaro matrix)

    ( A^(L-1) ... A^(0) )_{n,i} = e_0 delta_{ni} + (1 / n) sum_{k=1}^{L} e_k h_{k-1}(1/i, 1/(i+1), ..., 1/n)

e_k is the coefficient of x^k in prod_l (lambda_l + (1 - lambda_l) x), the weight of k blocks that attend. h_k is the complete
homogeneous symmetric polynomial, the sum of all products of k of its arguments with repetition. All A^(l) are polynomials of
one matrix, so that their order is of no account. (C^k)_{n,i} is (1/n) h_{k-1}, because a path n >= m_1 >= ... >= m_{k-1} >= i
takes 1/n and then every 1/m. Every term is positive: nothing cancels.

For i = x n and n to infinity h_{k-1} tends to (ln 1/x)^{k-1} / (k-1)!: a tail at the first tokens, a single mass e_0 on the
last one. That is the picture of arXiv 2603.10123 (Chowdhury, "Lost in the Middle at Birth"), whose abstract has powers of the
Cesaro matrix with skip connections, in the continuous limit. The finite form was derived here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def cesaro_row(residual_weights: Sequence[float], pos: int) -> Float[Tensor, " key"]:
    """Row n = `pos` of A^(L-1) ... A^(0), lambda_l = `residual_weights`; float64, sums to 1. O(L n)."""
    steps = _coefficients(residual_weights)
    inverse = 1.0 / torch.arange(1, pos + 1, dtype=torch.float64)
    power = torch.ones(pos, dtype=torch.float64)  # h_0
    row = torch.zeros(pos, dtype=torch.float64)
    for weight in steps[1:]:
        row += weight * power
        # h_k(1/i .. 1/n) = sum_{m=i}^{n} (1/m) h_{k-1}(1/m .. 1/n)
        power = (power * inverse).flip(0).cumsum(0).flip(0)
    row /= pos
    row[-1] += steps[0]
    return row


def residual_weight(value_map: float, d_model: int) -> float:
    """lambda = 1 / (1 + omega), omega = ||B||_F / sqrt(d): the size of the skip beside that of what attention makes of a token.

    `value_map`: ||sum_h B_h||_F, norms and gains included. In mean over directions B makes a vector omega times as long.
    """
    return 1.0 / (1.0 + value_map / d_model**0.5)


def _coefficients(residual_weights: Sequence[float]) -> list[float]:
    """e_0 ... e_L of prod_l (lambda_l + (1 - lambda_l) x)."""
    found = [1.0]
    for weight in residual_weights:
        shifted = zip([*found, 0.0], [0.0, *found], strict=True)
        found = [weight * same + (1.0 - weight) * below for same, below in shifted]
    return found
