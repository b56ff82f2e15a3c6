"""Figures 8 and 9: collapse of one random attention layer, and noise on a long softmax. No model;
float64.

Figure 8 (appendix C.3): a sequence of n tokens against the same with its last token copied (Theorem
4.2, one layer). d = 64, sinusoidal positions, "key, query, and values from a Gaussian distribution"
with variance 1 / d, otherwise "the exact structure of the decoder-only Transformer presented in the
original Transformer paper", one layer, log axis. So the representation is that of the whole block
of Vaswani et al. (`block="post-ln"`): skip connections, norms and MLP,

    z = LN(x_n + sum_h W_O^h sum_j alpha_nj^h v_j^h)        y = LN(z + W_2 relu(W_1 z))

with 8 heads and an inner width of 4 d, as theirs has, without their encoder. `block="pre-ln"` is
the block of the paper's own Section 2, before the final norm: z = x_n + attention(LN(x)), y = z +
MLP(LN(z)). `block="attention"` is what attention returns.

The paper leaves open what is Gaussian, and both readings are drawn:

    "vectors"   q_i, k_i, v_i themselves are drawn for every token; positions are added to q and k. The stream x_i is v_i, as in
                Section 2, whose v is value and stream in one, and W_O is the identity
    "weights"   tokens are standard normal, positions are added to them, which is the stream x_i, and W_Q, W_K, W_V are drawn

"vectors" is the nearer to its words, "weights" to Vaswani et al., who add positions to the stream.
It decides the outcome: what is added to the stream keeps the two last tokens a constant apart,
however long the sequence. Chosen here, since the paper is
silent: the other weights (Gaussian, variance 1 / fan-in; gains 1, biases 0; LN's epsilon 1e-5); how
far n goes (4,096); the norm (L1, the theorem's, beside L2 and Linf); one sequence per seed, of
which every n is a prefix; seeds and bars, which C.3 names for Figure 9 only: 5 seeds, bars from
least to greatest.

Figure 9 (appendix C.3, Lemma 4.1 / B.2): x uniform in [0, 1]^n, noise uniform in [0, 0.1] added to
the first k = 200 entries, delta = sum |y - y*| of the two softmax vectors. The paper leaves open
how far n goes (here 100,000), and whether each n has its own x: here every n is a prefix of one
sequence per seed, the growing sequence of the lemma. For n <= k delta does not fall; then it tends
to 1 / n (delta is 2 (k / n) times the mean of e^noise - 1, to first order in k / n), with a local
rate below 1 by about k / n. So the law is fitted from 100 k on, and from 10 k, too slow and said to
be so, where fewer than 8 lengths reach that far.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figures 8 and 9, appendix C.3; Vaswani et al. 2017
(arXiv 1706.03762), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.names import distinct
from ostools.ground.whole_numbers import checked_lengths, checked_seeds, whole_number
from ostools.results import Chart, Frame, Provenance, Result
from ostools.theory.distances import distance, total_variation
from ostools.theory.lemmas import first_places_bound, prefix_total_variation
from ostools.theory.positions import sinusoidal
from ostools.theory.statistics.fits import FEWEST, Law, fit_decay, over_seeds

Rows = Float[Tensor, "pos d"]


def spread_lengths(first: int, last: int, count: int) -> tuple[int, ...]:
    """About `count` lengths from `first` to `last`, both included, evenly spread on a log axis."""
    ratio = math.log(last / first) / (count - 1)
    return tuple(sorted({round(first * math.exp(ratio * step)) for step in range(count)}))


LENGTHS_8, LENGTHS_9 = spread_lengths(2, 4096, 56), spread_lengths(10, 100_000, 61)
SEEDS = tuple(range(5))
Reading = Literal["vectors", "weights"]
READINGS: tuple[Reading, ...] = get_args(Reading)
QUANTITIES = ("l1", "relative", "total_variation")
"""Quantities of Figure 8 that are fitted and drawn."""
_NORMS = ("l1", "l2", "linf")
_ROUNDING = 1e-12
"""Share of the norm up to which a distance is float64's rounding. Of n = 1 with "vectors" both
representations are the one value, and come out 1e-15 apart at most, by the order of adding; the
scores, sums of d products, bring it to some 1e-14."""


@dataclass(frozen=True, eq=False)
class Figure8(Result):
    """`frame`, one row a reading, seed and length: length (n), l1, l2, linf (distance of the two
    last representations), relative (l2 / norm of the first), total_variation (of the attention
    weights of n and n + 1, mean over heads: sum_j |alpha_j - alpha*_j|, the copy's own weight
    against 0), rounding (where `relative` is up to it, the distances are rounding, and were not
    measured: "vectors" at n = 1, whose distance is 0).

    `fits`: how the mean over seeds falls, a row a reading and quantity, see `decay_fits`.
    """

    fits: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.paper.charts.decay import figure_8_chart

        return figure_8_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.decay import figure_8_findings

        return figure_8_findings(self)


@dataclass(frozen=True, eq=False)
class Figure9(Result):
    """`frame`, one row a seed and length: length (n), seed, delta (total variation, L1, at most 2),
    bound (certified, of Lemma B.2: 2 min(k, n) e (e^eps - 1) / n).

    `fits`: how the mean over seeds falls from n = 100 k on (or 10 k), see `decay_fits`.
    """

    fits: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.paper.charts.decay import figure_9_chart

        return figure_9_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.decay import figure_9_findings

        return figure_9_findings(self)


@checked_arguments(InputError)
def figure_8(
    lengths: Sequence[int] = LENGTHS_8,
    seeds: Sequence[int] = SEEDS,
    *,
    readings: Reading | Sequence[Reading] = READINGS,
    block: Literal["post-ln", "pre-ln", "attention"] = "post-ln",
    d: int = 64,
    n_heads: int = 8,
) -> Figure8:
    """Distances ||v_n - v*_(n+1)|| after one attention layer at every n of `lengths`, for each
    reading and seed (Figure 8).

    Args:
        lengths: numbers of tokens.
        seeds: seeds of the Gaussian numbers.
        readings: what is Gaussian: "vectors" (queries, keys, values) or "weights".
        block: what the layer is: "post-ln" (skip, norms and MLP of Vaswani et al.), "pre-ln" (the
            paper's Section 2), or "attention" (its output alone).
        d: width of the layer.
        n_heads: number of heads, of width d / n_heads.

    Attention is causal, so one pass over the longest sequence holds every n. Only the rows that are
    asked for are computed: O(lengths * longest * d) for each seed. Raises `InputError` for lengths
    below 1, seeds below 0, an odd or too small d, heads that do not divide it, and unknown readings
    and blocks.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    if whole_number("d", d, 2) % 2:
        raise InputError(
            f"figure 8: expected an even d of at least 2 (sines and cosines), found {d}"
        )
    if d % whole_number("n_heads", n_heads, 1):
        raise InputError(f"figure 8: expected n_heads that divide d = {d}, found {n_heads}")
    reading_list = distinct("readings", readings)
    tables = []
    for reading in reading_list:
        for seed in seed_list:
            layer = _layer(reading, block, length_list[-1], d, seed)
            pairs = pd.DataFrame(_pairs(layer, block, n_heads, length_list))
            tables.append(pairs.assign(reading=reading, seed=seed, rounding=_ROUNDING))
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(
        lengths=length_list,
        seeds=seed_list,
        readings=list(reading_list),
        block=block,
        d=d,
        n_heads=n_heads,
    )
    return Figure8(
        frame, provenance, fits=decay_fits(frame, QUANTITIES, fitted_from=16, by=["reading"])
    )


@dataclass(frozen=True)
class _Layer:
    """One layer's weights; the stream, query, key and value of every token at its place, and of its
    copy one place later.
    """

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
        """Output of `block`, given the stream and what attention returns for it."""
        if block == "attention":
            return attended
        if block == "pre-ln":
            z = stream + attended
            return z + self._mlp(_normed(z))
        z = _normed(stream + attended)
        return _normed(z + self._mlp(z))

    def _mlp(self, z: Rows) -> Rows:
        return (z @ self.W_1).relu() @ self.W_2


def _layer(reading: str, block: str, n: int, d: int, seed: int) -> _Layer:
    generator = torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V, W_O = torch.randn(4, d, d, generator=generator, dtype=torch.float64) / d**0.5
    W_1 = torch.randn(d, 4 * d, generator=generator, dtype=torch.float64) / d**0.5
    W_2 = torch.randn(4 * d, d, generator=generator, dtype=torch.float64) / (4 * d) ** 0.5
    places = sinusoidal(n + 1, d)
    place, next_place = places[:-1], places[1:]
    if reading == "vectors":
        q, k, x = (draws / d**0.5 for draws in _gaussian(n, 3 * d, generator).chunk(3, dim=-1))
        v, W_O = _normed(x) if block == "pre-ln" else x, torch.eye(d, dtype=torch.float64)
        return _Layer(
            x, q + place, k + place, v, x, q + next_place, k + next_place, v, W_O, W_1, W_2
        )
    tokens = _gaussian(n, d, generator)
    stream, stream_copy = tokens + place, tokens + next_place
    read, read_copy = (_normed(x) if block == "pre-ln" else x for x in (stream, stream_copy))
    (q, k, v), (q_copy, k_copy, v_copy) = (
        [x @ W for W in (W_Q, W_K, W_V)] for x in (read, read_copy)
    )
    return _Layer(stream, q, k, v, stream_copy, q_copy, k_copy, v_copy, W_O, W_1, W_2)


def _normed(x: Rows) -> Rows:
    """LN(x), gain 1 and bias 0."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def _gaussian(n: int, width: int, generator: torch.Generator) -> Float[Tensor, "pos width"]:
    """Standard normals, a row a token. A longer table begins with a shorter one's rows: torch draws
    in whole chunks of 16.
    """
    return torch.randn(-(-n // 16) * 16, width, generator=generator, dtype=torch.float64)[:n]


def _pairs(layer: _Layer, block: str, n_heads: int, lengths: Sequence[int]) -> dict[str, list[Any]]:
    """Distances of the last token of every prefix and of the prefix with that token copied."""
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
        rearrange(tensor, "head length d_head -> length (head d_head)") @ layer.W_O
        for tensor in (heads, heads_star)
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


@checked_arguments(InputError)
def figure_9(
    lengths: Sequence[int] = LENGTHS_9,
    seeds: Sequence[int] = SEEDS,
    *,
    noisy: int = 200,
    noise: float = 0.1,
) -> Figure9:
    """Total variation delta of softmax(x) and softmax(x + noise on the first `noisy` entries)
    at every n, for each seed (Figure 9).

    Args:
        lengths: numbers of entries.
        seeds: seeds of the uniform numbers.
        noisy: how many entries are moved.
        noise: how far they are moved at most.

    Cost: O(longest + lengths * noisy) for each seed. Raises `InputError` for lengths or `noisy`
    below 1, for seeds below 0, and for `noise` outside of 0 to 100.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    whole_number("noisy", noisy, 1)
    if not isinstance(noise, int | float) or not 0.0 < noise < 100.0:
        raise InputError(f"figure 9: expected 0 < noise < 100, found {noise!r}")
    bound = [first_places_bound(noisy, noise, 1.0, n) for n in length_list]
    tables = []
    for seed in seed_list:
        generator = torch.Generator().manual_seed(seed)
        # The noise first: a longer sequence then begins with the same numbers.
        added = noise * torch.rand(noisy, generator=generator, dtype=torch.float64)
        x = torch.rand(length_list[-1], generator=generator, dtype=torch.float64)
        x_star = x.clone()
        x_star[:noisy] += added[: len(x)]
        delta = prefix_total_variation(x, x_star, length_list).tolist()
        tables.append(
            pd.DataFrame({"length": length_list, "seed": seed, "delta": delta, "bound": bound})
        )
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(
        lengths=length_list, seeds=seed_list, noisy=noisy, noise=noise
    )
    reaches_100_times = sum(n >= 100 * noisy for n in length_list) >= FEWEST
    return Figure9(
        frame,
        provenance,
        fits=decay_fits(frame, ["delta"], (100 if reaches_100_times else 10) * noisy),
    )


def decay_fits(
    frame: Frame,
    quantities: Sequence[str],
    fitted_from: int,
    by: Sequence[str] = (),
    floor: float = 0.0,
) -> pd.DataFrame:
    """Fit how the mean over seeds falls, a row for each quantity and each value of the columns
    `by`.

    Columns: those of `by`, quantity, fitted_from (only lengths from here on are fitted), verdict
    (of `ostools.theory.statistics.fits.VERDICTS`), law (its name, or "none"), rate (k of n^-k, r of
    e^(-r n); NaN without a law), low, high (its 95% interval: of noise along the mean curve, not of
    the spread between seeds), seeds_low, seeds_high (95%, Student, of the same plain law's rate
    over seeds; NaN for one seed, and for a law to a level, whose rate a plain law does not have),
    log_amplitude, level (of the same law), falls_to (the law at the last fitted length, as a part
    of the law at the first: a rate above 0 may still leave nearly all), used (how many lengths). A
    curve is fitted until it falls to `floor`.
    """
    groups = frame.groupby(list(by), sort=False) if by else [((), frame)]
    return pd.DataFrame(
        [
            dict(zip(by, key, strict=True))
            | {"quantity": quantity}
            | _fit(group, quantity, fitted_from, floor)
            for key, group in groups
            for quantity in quantities
        ]
    )


def _fit(curve: Frame, quantity: str, fitted_from: int, floor: float) -> dict[str, Any]:
    mean = curve[curve["length"] >= fitted_from].groupby("length")[quantity].mean()
    fitted = fit_decay(mean.index.to_numpy(), mean.to_numpy(), floor=floor)
    law, used = fitted.law, mean.index.to_numpy(float)[: fitted.used]
    seeds_low, seeds_high = _over_seeds(curve[curve["length"].isin(used)], quantity, law)
    values = {
        name: getattr(law, name) if law else math.nan
        for name in ("rate", "low", "high", "log_amplitude", "level")
    }
    return {
        "fitted_from": fitted_from,
        "verdict": fitted.verdict,
        "law": law.name if law else "none",
        **{name: values[name] for name in ("rate", "low", "high")},
        "seeds_low": seeds_low,
        "seeds_high": seeds_high,
        **{name: values[name] for name in ("log_amplitude", "level")},
        "falls_to": float(np.divide(*law(used[[-1, 0]]))) if law else math.nan,
        "used": fitted.used,
    }


def _over_seeds(fitted: Frame, quantity: str, law: Law | None) -> tuple[float, float]:
    """Interval of a plain law's rate over seeds, each fitted at the lengths of the mean curve."""
    unknown = math.nan, math.nan
    if law is None or law.name not in ("power", "exponential") or "seed" not in fitted:
        return unknown
    curves = fitted.groupby(["length", "seed"])[quantity].mean().unstack()
    if not bool(
        (curves > 0).to_numpy().all()
    ):  # a zero has no log, a missing length no part in a common mean
        return unknown
    lengths = curves.index.to_numpy(dtype=float)
    x = np.log(lengths) if law.name == "power" else lengths
    _, low, high = over_seeds(list(-np.polyfit(x, np.log(curves.to_numpy()), 1)[0]))
    return low, high
