"""Deletion curves: how much of an answer is lost as tokens are taken out, one after the other in a given order.

With f(S) what is measured while the tokens of S are out, and S_k the first k tokens of an order,

    AOPC = 1 / (K + 1) sum_{k = 0}^{K} f(S_0) - f(S_k)

the area over the curve: larger where an order takes out early what the answer needs. Of a sum f = sum of the weights that are
left the best order is by falling weight, and a random one has sum(weights) / 2 in expectation.

Source: Samek et al., Evaluating the visualization of what a deep neural network has learned (2017), arXiv 1509.06321.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def deletion_order(values: Float[np.ndarray, " token"]) -> Int[np.ndarray, " token"]:
    """The tokens from the largest value to the smallest; of equal ones the earlier first."""
    return np.argsort(-values, kind="stable")


def deletion_steps(tokens: int, steps: int) -> list[int]:
    """How many tokens are out at each point of a curve: from 0 to all, every number or `steps` + 1 of them evenly apart."""
    return (
        sorted({round(tokens * step / steps) for step in range(steps + 1)}) if steps < tokens else [*range(tokens + 1)]
    )


def aopc(drops: Float[np.ndarray, "*order step"]) -> Float[np.ndarray, "*order"]:
    """The mean of f(S_0) - f(S_k) over the points of a curve, the first among them, where it is 0."""
    return np.asarray(drops.mean(-1))
