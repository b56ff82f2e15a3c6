"""Figure 8: one attention layer, a sequence of n tokens against the same with its last token copied (Theorem 4.2, one layer).

From appendix C.3: d = 64, sinusoidal positions, "key, query, and values from a Gaussian distribution" with variance 1 / d,
otherwise "the exact structure of the decoder-only Transformer presented in the original Transformer paper", one layer, log
axis. So the representation is that of the whole block of Vaswani et al. (`block="post-ln"`): skip connections, norms and MLP,

    z = LN(x_n + sum_h W_O^h sum_j alpha_nj^h v_j^h)        y = LN(z + W_2 relu(W_1 z))

with 8 heads and an inner width of 4 d, as theirs has, without their encoder. `block="pre-ln"` is the block of the paper's own
Section 2, before the final norm: z = x_n + attention(LN(x)), y = z + MLP(LN(z)). `block="attention"` is what attention returns.

The paper leaves open what is Gaussian, and both readings are drawn:

    "vectors"   q_i, k_i, v_i themselves are drawn for every token; positions are added to q and k. The stream x_i is v_i, as in
                Section 2, whose v is value and stream in one, and W_O is the identity
    "weights"   tokens are standard normal, positions are added to them, which is the stream x_i, and W_Q, W_K, W_V are drawn

"vectors" is the nearer to its words, "weights" to Vaswani et al., who add positions to the stream. It decides the outcome: what
is added to the stream keeps the two last tokens a constant apart, however long the sequence.

Chosen here, since the paper is silent: the other weights (Gaussian, variance 1 / fan-in; gains 1, biases 0; LN's epsilon 1e-5);
how far n goes (4,096); the norm (L1, the theorem's, beside L2 and Linf); whether each n has its own tokens (every n is a prefix
of one sequence per seed); and seeds and bars: C.3 names 5 seeds and bars from least to greatest for Figure 9 only. Float64.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 8 and appendix C.3; Vaswani et al. 2017 (arXiv 1706.03762), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ostools.experiments import decay
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.names import checked_names
from ostools.ground.whole_numbers import checked_lengths, checked_seeds, whole_number
from ostools.results import Provenance, Result
from ostools.theory.distances import distance, total_variation
from ostools.theory.positions import sinusoidal

Rows = Float[Tensor, "pos d"]

LENGTHS = decay.spread_lengths(2, 4096, 56)
READINGS = ("vectors", "weights")
BLOCKS = ("post-ln", "pre-ln", "attention")
QUANTITIES = ("l1", "relative", "total_variation")
"""What is fitted and drawn."""
_NORMS = ("l1", "l2", "linf")
_ROUNDING = 1e-12
"""Up to this share of the norm a distance is float64's rounding. Of n = 1 with "vectors" both representations are the one
value, and come out 1e-15 apart at most, by the order of adding; the scores, sums of d products, bring it to some 1e-14."""


@dataclass(frozen=True)
class Layer:
    """One layer's weights, and of every token at its place, and (`_copy`) of its copy one place later: the stream, query, key
    and value."""

    x: Rows
    q: Rows
    k: Rows
    v: Rows
    x_copy: Rows
    q_copy: Rows
    k_copy: Rows
    v_copy: Rows
    W_O: Float[Tensor, "d d"]
    W_1: Float[Tensor, "d inner"]
    W_2: Float[Tensor, "inner d"]

    def after(self, block: str, stream: Rows, attended: Rows) -> Rows:
        """What `block` makes of the stream and of what attention returns for it."""
        if block == "attention":
            return attended
        if block == "pre-ln":
            z = stream + attended
            return z + self._mlp(_normed(z))
        z = _normed(stream + attended)
        return _normed(z + self._mlp(z))

    def _mlp(self, z: Rows) -> Rows:
        return (z @ self.W_1).relu() @ self.W_2


@dataclass(frozen=True, eq=False)
class Figure8(Result):
    """`frame`, one row a reading, seed and length: length (n), l1, l2, linf (distance of the two last representations),
    relative (l2 / norm of the first), total_variation (of the attention weights of n and n + 1, mean over heads:
    sum_j |alpha_j - alpha*_j|, the copy's own weight against 0), rounding (where `relative` is up to it, the distances are
    rounding, and were not measured: "vectors" at n = 1, whose distance is 0).

    `fits`: how the mean over seeds falls, a row a reading and quantity, see `ostools.experiments.decay.fits`.
    """

    fits: pd.DataFrame


def figure_8(
    lengths: Sequence[int] = LENGTHS,
    seeds: Sequence[int] = decay.SEEDS,
    *,
    readings: Sequence[str] = READINGS,
    block: str = "post-ln",
    d: int = 64,
    n_heads: int = 8,
) -> Figure8:
    """Distances ||v_n - v*_(n+1)|| after one attention layer at every n of `lengths`, for each
    reading and seed (Figure 8).

    Args:
        lengths: numbers of tokens.
        seeds: seeds of the Gaussian numbers.
        readings: what is Gaussian: "vectors" (queries, keys, values) or "weights".
        block: what the layer is: "post-ln" (skip, norms and MLP of Vaswani et al.), "pre-ln" (the paper's Section 2), or
            "attention" (its output alone).
        d: width of the layer.
        n_heads: number of heads, of width d / n_heads.

    Attention is causal, so one pass over the longest sequence holds every n. Only the rows that are asked for are computed:
    O(lengths * longest * d) for each seed. Raises `InputError` for lengths below 1, seeds below 0, an odd or too small d,
    heads that do not divide it, and unknown readings and blocks.
    """
    length_list, chosen_seeds = checked_lengths(lengths), checked_seeds(seeds)
    if whole_number("d", d, 2) % 2:
        raise InputError(f"figure 8: expected an even d of at least 2 (sines and cosines), found {d}")
    whole_number("n_heads", n_heads, 1)
    if d % n_heads:
        raise InputError(f"figure 8: expected n_heads that divide d = {d}, found {n_heads}")
    if block not in BLOCKS:
        raise unknown_name("block", block, BLOCKS)
    readings = checked_names("reading", readings, READINGS)
    tables = []
    for reading in readings:
        for seed in chosen_seeds:
            layer = _layer(reading, block, length_list[-1], d, seed)
            tables.append(
                pd.DataFrame(_pairs(layer, block, n_heads, length_list)).assign(
                    reading=reading, seed=seed, rounding=_ROUNDING
                )
            )
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(
        lengths=length_list, seeds=chosen_seeds, readings=list(readings), block=block, d=d, n_heads=n_heads
    )
    return Figure8(frame, provenance, fits=decay.fits(frame, QUANTITIES, fitted_from=16, by=["reading"]))


def _layer(reading: str, block: str, n: int, d: int, seed: int) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V, W_O = torch.randn(4, d, d, generator=generator, dtype=torch.float64) / d**0.5
    W_1 = torch.randn(d, 4 * d, generator=generator, dtype=torch.float64) / d**0.5
    W_2 = torch.randn(4 * d, d, generator=generator, dtype=torch.float64) / (4 * d) ** 0.5
    before = _normed if block == "pre-ln" else _as_it_is
    places = sinusoidal(n + 1, d)
    own_place, next_place = places[:-1], places[1:]
    if reading == "vectors":
        q, k, x = (draws / d**0.5 for draws in _gaussian(n, 3 * d, generator).chunk(3, dim=-1))
        v, W_O = before(x), torch.eye(d, dtype=torch.float64)
        return Layer(x, q + own_place, k + own_place, v, x, q + next_place, k + next_place, v, W_O, W_1, W_2)
    tokens = _gaussian(n, d, generator)
    streams = tokens + own_place, tokens + next_place
    (q, k, v), (q_copy, k_copy, v_copy) = ([before(x) @ W for W in (W_Q, W_K, W_V)] for x in streams)
    return Layer(streams[0], q, k, v, streams[1], q_copy, k_copy, v_copy, W_O, W_1, W_2)


def _normed(x: Rows) -> Rows:
    """LN(x), gain 1 and bias 0."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def _as_it_is(x: Rows) -> Rows:
    return x


def _gaussian(n: int, width: int, generator: torch.Generator) -> Float[Tensor, "pos width"]:
    """Standard normals, a row a token. A longer table begins with a shorter one's rows: torch draws in whole chunks of 16."""
    rows = math.ceil(n / 16) * 16
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)[:n]


def _pairs(layer: Layer, block: str, n_heads: int, lengths: Sequence[int]) -> dict[str, list[Any]]:
    """The last tokens of every prefix, and of every prefix with its last token copied."""
    rows = torch.tensor(lengths) - 1
    q, k, v, q_copy, k_copy, v_copy = (
        rearrange(tensor, "pos (head d_head) -> head pos d_head", head=n_heads)
        for tensor in (
            *(layer.q[rows], layer.k, layer.v),
            *(layer.q_copy[rows], layer.k_copy[rows], layer.v_copy[rows]),
        )
    )
    scale, hidden = q.shape[-1] ** -0.5, torch.arange(len(layer.k)) > rows[:, None]
    scores = (scale * q @ k.mT).masked_fill(hidden, -torch.inf)
    # The copy sees all that the last token saw, and itself in one place more: the last column.
    before = (scale * q_copy @ k.mT).masked_fill(hidden, -torch.inf)
    itself = scale * (q_copy * k_copy).sum(-1, keepdim=True)
    alpha, alpha_star = scores.softmax(-1), torch.cat([before, itself], dim=-1).softmax(-1)
    heads, heads_star = alpha @ v, alpha_star[..., :-1] @ v + alpha_star[..., -1:] * v_copy
    attended, attended_star = (
        rearrange(tensor, "head length d_head -> length (head d_head)") @ layer.W_O for tensor in (heads, heads_star)
    )
    y = layer.after(block, layer.x[rows], attended)
    y_star = layer.after(block, layer.x_copy[rows], attended_star)
    weights = torch.cat([alpha, torch.zeros_like(itself)], dim=-1)
    return {
        "length": list(lengths),
        **{norm: distance(y, y_star, norm).tolist() for norm in _NORMS},
        "relative": (distance(y, y_star, "l2") / y.norm(dim=-1)).tolist(),
        "total_variation": total_variation(weights, alpha_star).mean(0).tolist(),
    }
