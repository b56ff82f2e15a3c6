"""The percentile bootstrap of a mean over few independent samples, such as seeds.

Cost: resamples x samples numbers, and one product of that matrix with the data. With five samples the interval is too
narrow, as every bootstrap's is: at 95% it holds a normal's mean in about 83% of cases (see `bootstrap_mean`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.errors import InputError

FEWEST = 3
"""Of fewer samples there is no interval: resampling two gives their least, their greatest and their mean."""


class Interval(NamedTuple):
    """The ends of an interval, one pair a column."""

    low: Float[Tensor, "*rest"]
    high: Float[Tensor, "*rest"]


def bootstrap_mean(
    samples: Float[Tensor, " sample *rest"], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The percentile bootstrap interval of the mean over samples: the (1 -+ level) / 2 quantiles of resampled means.

    Every column is resampled alike, so that a curve keeps its shape. The variance of a resampled mean is (n - 1) / n of
    the unbiased estimate; for a normal's mean the coverage is about P(|t_{n-1}| < z sqrt((n - 1) / n)): at level 0.95 it is
    0.84 for n = 5, 0.91 for 15 and 0.94 for 50.

    Raises `InputError` for fewer than three samples, samples that are not finite, and a level outside 0..1.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    n = len(samples)
    if n < FEWEST:
        raise InputError(f"bootstrap: expected at least {FEWEST} samples, found {n}: so few show no spread of a mean")
    if not 0 < level < 1:
        raise InputError(f"bootstrap: expected a level between 0 and 1, found {level}; for example 0.95")
    if not bool(torch.isfinite(samples).all()):
        raise InputError("bootstrap: expected finite samples, found NaN or infinity among them")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator)
    counts = torch.nn.functional.one_hot(drawn, n).sum(1).to(samples)
    # Around the first sample, so that samples that are all the same have an interval without rounding.
    means = samples[0] + torch.tensordot(counts / n, samples - samples[0], dims=1)
    ends = torch.quantile(means, means.new_tensor([(1 - level) / 2, (1 + level) / 2]), dim=0)
    return Interval(ends[0], ends[1])
