"""The Pareto front: which of several choices no other one beats in everything at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools.ground.errors import InputError


def pareto_front(points: Float[Tensor, "point objective"]) -> Bool[Tensor, " point"]:
    """Which points are not dominated, every objective being better the larger it is.

    q dominates p if it is at least as large in every objective and larger in one. So points that are the same in every
    objective stand or fall together, and of those that share one only the best in the others stand. O(points^2).
    Raises `InputError` for numbers that are not finite: an unknown objective has no order.
    """
    if not bool(torch.isfinite(points).all()):
        raise InputError("Pareto front: expected finite objectives, found NaN or infinity among them")
    as_large = (points[:, None] >= points[None, :]).all(-1)
    larger = (points[:, None] > points[None, :]).any(-1)
    return ~(as_large & larger).any(0)
