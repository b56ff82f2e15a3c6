"""Figure 8: one attention layer, a sequence of n tokens against the same with its last token copied (Theorem 4.2, one layer).

As in appendix C.3: d = 64, sinusoidal positions, queries, keys and values Gaussian with variance 1 / d, 5 seeds, log axis. What
the paper leaves open, and is chosen here: the key dimension (d as well, one head); how far n goes (4,096); the norm (L1, the
theorem's, beside L2 and Linf); whether each n has its own tokens (here every n is a prefix of one sequence per seed). It also
leaves open what is Gaussian, and both readings are drawn:

    "vectors"   q_i, k_i, v_i themselves are drawn for every token, N(0, 1/d); positions are added to q and k
    "weights"   tokens are standard normal, positions are added to them, and W_Q, W_K, W_V are N(0, 1/d)

The representation is what attention returns, sum_j alpha_nj v_j, without the skip connection: added to the residual stream,
sinusoidal positions keep the two last tokens a constant apart, however long the sequence. Float64.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 8 and appendix C.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.experiments import decay
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.results import Provenance, Result
from ostools.theory.distances import distance, total_variation
from ostools.theory.positions import sinusoidal

Rows = Float[Tensor, "pos d_head"]

LENGTHS = decay.spread_lengths(2, 4096, 56)
READINGS = ("vectors", "weights")
QUANTITIES = ("l1", "relative", "total_variation")
"""What is fitted and drawn."""
_NORMS = ("l1", "l2", "linf")
_ROUNDING = 1e-12
"""Up to this share of the norm a distance is float64's rounding. Of n = 1 with "vectors" both representations are the one
value, and come out 1e-15 apart at most, by the order of adding; the scores, sums of d products, bring it to some 1e-14."""


@dataclass(frozen=True)
class Layer:
    """Queries, keys and values of every token at its place, and (`_copy`) of its copy one place later."""

    q: Rows
    k: Rows
    v: Rows
    q_copy: Rows
    k_copy: Rows
    v_copy: Rows


@dataclass(frozen=True, eq=False)
class Figure8(Result):
    """`frame`, one row a reading, seed and length: length (n), l1, l2, linf (distance of the two last representations),
    relative (l2 / norm of the first), total_variation (of the attention weights of n and n + 1: sum_j |alpha_j - alpha*_j|,
    the copy's own weight against 0), rounding (where `relative` is up to it, the distances are rounding, and were not measured:
    "vectors" at n = 1, whose distance is 0).

    `fits`: how the mean over seeds falls, a row a reading and quantity, see `ostools.experiments.decay.fits`.
    """

    fits: pd.DataFrame


def figure_8(
    lengths: Sequence[int] = LENGTHS,
    seeds: Sequence[int] = decay.SEEDS,
    *,
    readings: Sequence[str] = READINGS,
    d: int = 64,
) -> Figure8:
    """||v_n - v*_(n+1)|| after one attention layer at every n of `lengths`, for each reading and seed.

    Attention is causal, so that one pass over the longest sequence holds every n; only the rows asked for are computed:
    O(lengths * longest * d) a seed. Raises `InputError` for lengths below 1, seeds below 0, odd or small d, unknown readings.
    """
    wanted, chosen = checked_lengths(lengths), checked_seeds(seeds)
    if d < 2 or d % 2:
        raise InputError(f"figure 8: expected an even d of at least 2 (sines and cosines), found {d}")
    for reading in readings:
        if reading not in READINGS:
            raise unknown_name("reading", reading, READINGS)
    tables = []
    for reading in readings:
        for seed in chosen:
            layer = _layer(reading, wanted[-1], d, seed)
            tables.append(pd.DataFrame(_pairs(layer, wanted)).assign(reading=reading, seed=seed, rounding=_ROUNDING))
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(lengths=wanted, seeds=chosen, readings=list(readings), d=d)
    return Figure8(frame, provenance, fits=decay.fits(frame, QUANTITIES, fitted_from=16, by=["reading"]))


def _layer(reading: str, n: int, d: int, seed: int) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    places = sinusoidal(n + 1, d)
    here, next_place = places[:-1], places[1:]
    if reading == "vectors":
        q, k, v = (x / d**0.5 for x in _gaussian(n, 3 * d, generator).chunk(3, dim=-1))
        return Layer(q + here, k + here, v, q + next_place, k + next_place, v)
    W_Q, W_K, W_V = torch.randn(3, d, d, generator=generator, dtype=torch.float64) / d**0.5
    tokens = _gaussian(n, d, generator)
    x, copy = tokens + here, tokens + next_place
    return Layer(x @ W_Q, x @ W_K, x @ W_V, copy @ W_Q, copy @ W_K, copy @ W_V)


def _gaussian(n: int, width: int, generator: torch.Generator) -> Float[Tensor, "pos width"]:
    """Standard normals, a row a token. A longer table begins with a shorter one's rows: torch draws in whole chunks of 16."""
    rows = math.ceil(n / 16) * 16
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)[:n]


def _pairs(layer: Layer, lengths: Sequence[int]) -> dict[str, list[Any]]:
    """The last tokens of every prefix, and of every prefix with its last token copied."""
    rows, scale = torch.tensor(lengths) - 1, layer.q.shape[-1] ** -0.5
    hidden = torch.arange(len(layer.k)) > rows[:, None]
    scores = (scale * layer.q[rows] @ layer.k.T).masked_fill(hidden, -torch.inf)
    # The copy sees all that the last token saw, and itself in one place more: the last column.
    before = (scale * layer.q_copy[rows] @ layer.k.T).masked_fill(hidden, -torch.inf)
    itself = scale * (layer.q_copy[rows] * layer.k_copy[rows]).sum(-1, keepdim=True)
    alpha, alpha_star = scores.softmax(-1), torch.cat([before, itself], dim=-1).softmax(-1)
    z = alpha @ layer.v
    z_star = alpha_star[:, :-1] @ layer.v + alpha_star[:, -1:] * layer.v_copy[rows]
    weights = torch.cat([alpha, torch.zeros_like(itself)], dim=-1)
    return {
        "length": list(lengths),
        **{norm: distance(z, z_star, norm).tolist() for norm in _NORMS},
        "relative": (distance(z, z_star, "l2") / z.norm(dim=-1)).tolist(),
        "total_variation": total_variation(weights, alpha_star).tolist(),
    }
