"""Figures 8 and 9: collapse of one random attention layer, and noise on a long softmax. No model;
float64.

Figure 8 (appendix C.3): a sequence of n tokens against the same with its last token copied (Theorem
4.2, one layer). d = 64, sinusoidal positions, "key, query, and values from a Gaussian distribution"
with variance 1 / d, otherwise "the exact structure of the decoder-only Transformer presented in the
original Transformer paper", one layer, log axis. So the representation is that of the whole block
of Vaswani et al.: skip connections, norms and MLP,

    z = LN(x_n + sum_h W_O^h sum_j alpha_nj^h v_j^h)        y = LN(z + W_2 relu(W_1 z))

with 8 heads and an inner width of 4 d, as theirs has, without their encoder.

The paper leaves open what is Gaussian, and both readings are drawn:

    "vectors"   q_i, k_i, v_i themselves are drawn for every token; positions are added to q and k.
                The stream x_i is v_i, as in Section 2, whose v is value and stream in one, and W_O
                is the identity
    "weights"   tokens are standard normal, positions are added to them, which is the stream x_i,
                and W_Q, W_K, W_V are drawn

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
rate below 1 by about k / n. So the law is fitted from 100 k on.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figures 8 and 9, appendix C.3; Vaswani et al. 2017
(arXiv 1706.03762), section 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError, checked_arguments, checked_lengths, checked_seeds
from ostools.paper.drawn_result import PaperResult
from ostools.results import Frame, Provenance
from ostools.theory.distances import distance, total_variation
from ostools.theory.lemmas import first_places_bound, prefix_total_variation
from ostools.theory.positions import normal_rows, sinusoidal
from ostools.theory.statistics.fits import Law, fit_decay, over_seeds


def spread_lengths(first: int, last: int, count: int) -> tuple[int, ...]:
    """About `count` lengths from `first` to `last`, both included, evenly spread on a log axis."""
    return tuple(sorted({*np.geomspace(first, last, count).round().astype(int).tolist()}))


LENGTHS_8, LENGTHS_9 = spread_lengths(2, 4096, 56), spread_lengths(10, 100_000, 61)
SEEDS = tuple(range(5))
READINGS = ("vectors", "weights")
D, N_HEADS = 64, 8
"""Width and heads of Figure 8's layer."""
NOISY, NOISE = 200, 0.1
"""How many entries of Figure 9 are moved, and how far at most."""
QUANTITIES = ("l1", "relative", "total_variation")
"""Quantities of Figure 8 that are fitted and drawn."""
_NORMS = ("l1", "l2", "linf")
_ROUNDING = 1e-12
"""Share of the norm up to which a distance is float64's rounding. Of n = 1 with "vectors" both
representations are the one value, and come out 1e-15 apart at most, by the order of adding; the
scores, sums of d products, bring it to some 1e-14."""


@dataclass(frozen=True, eq=False)
class Figure8(PaperResult):
    """`frame`, one row a reading, seed and length: length (n), l1, l2, linf (distance of the two
    last representations), relative (l2 / norm of the first), total_variation (of the attention
    weights of n and n + 1, mean over heads: sum_j |alpha_j - alpha*_j|, the copy's own weight
    against 0), rounding (where `relative` is up to it, the distances are rounding, and were not
    measured: "vectors" at n = 1, whose distance is 0).

    `fits`: how the mean over seeds falls, a row a reading and quantity, see `decay_fits`.
    """

    fits: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Figure9(PaperResult):
    """`frame`, one row a seed and length: length (n), seed, delta (total variation, L1, at most 2),
    bound (certified, of Lemma B.2: 2 min(k, n) e (e^eps - 1) / n).

    `fits`: how the mean over seeds falls from n = 100 k on, see `decay_fits`.
    """

    fits: pd.DataFrame


@checked_arguments(InputError)
def figure_8(lengths: Sequence[int] = LENGTHS_8, seeds: Sequence[int] = SEEDS) -> Figure8:
    """Distances ||v_n - v*_(n+1)|| after one attention layer at every n of `lengths`, for each
    reading and seed (Figure 8).

    Args:
        lengths: numbers of tokens.
        seeds: seeds of the Gaussian numbers.

    Attention is causal, so one pass over the longest sequence holds every n. Only the rows that are
    asked for are computed: O(lengths * longest * d) for each seed. Raises `InputError` for lengths
    below 1 and seeds below 0.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    tables = [
        pd.DataFrame(_pairs(reading, seed, length_list)).assign(
            reading=reading, seed=seed, rounding=_ROUNDING
        )
        for reading in READINGS
        for seed in seed_list
    ]
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(
        lengths=length_list, seeds=seed_list, readings=list(READINGS), d=D, n_heads=N_HEADS
    )
    return Figure8(frame, provenance, decay_fits(frame, QUANTITIES, 16, by=["reading"]))


def _pairs(reading: str, seed: int, lengths: Sequence[int]) -> dict[str, list[int] | list[float]]:
    """Distances of the last token of every prefix and of the prefix with that token copied, after
    one layer. Stream x, queries, keys and values are [copy, pos, d]: every token at its place, and
    its copy one place later.
    """
    n, generator = lengths[-1], torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V, W_O = torch.randn(4, D, D, generator=generator, dtype=torch.float64) / D**0.5
    W_1 = torch.randn(D, 4 * D, generator=generator, dtype=torch.float64) / D**0.5
    W_2 = torch.randn(4 * D, D, generator=generator, dtype=torch.float64) / (4 * D) ** 0.5
    places = sinusoidal(n + 1, D)
    places = torch.stack([places[:-1], places[1:]])
    if reading == "vectors":
        vectors = normal_rows(n, 3 * D, generator) / D**0.5
        q, k, x = (part.expand(2, n, D) for part in vectors.chunk(3, dim=-1))
        q, k, v, W_O = q + places, k + places, x, torch.eye(D, dtype=torch.float64)
    else:
        x = normal_rows(n, D, generator) + places
        q, k, v = (x @ W for W in (W_Q, W_K, W_V))
    rows = torch.tensor(lengths) - 1
    q, k, v = (
        rearrange(tensor, "copy pos (head d_head) -> copy head pos d_head", head=N_HEADS)
        for tensor in (q[:, rows], k, v)
    )
    scale, hidden = q.shape[-1] ** -0.5, torch.arange(n) > rows[:, None]
    scores = (scale * q @ k[:1].mT).masked_fill(hidden, -torch.inf)
    # The copy sees all that the last token saw, and itself in one place more: the last column.
    itself = scale * (q[1] * k[1][:, rows]).sum(-1, keepdim=True)
    alpha, alpha_star = scores[0].softmax(-1), torch.cat([scores[1], itself], -1).softmax(-1)
    heads = torch.stack(
        [alpha @ v[0], alpha_star[..., :-1] @ v[0] + alpha_star[..., -1:] * v[1][:, rows]]
    )
    attended = rearrange(heads, "copy head length d_head -> copy length (head d_head)") @ W_O
    z = _normed(x[:, rows] + attended)
    y, y_star = _normed(z + (z @ W_1).relu() @ W_2)
    weights = torch.cat([alpha, torch.zeros_like(itself)], dim=-1)
    return {
        "length": list(lengths),
        **{norm: distance(y, y_star, norm).tolist() for norm in _NORMS},
        "relative": (distance(y, y_star, "l2") / y.norm(dim=-1)).tolist(),
        "total_variation": total_variation(weights, alpha_star).mean(0).tolist(),
    }


def _normed(x: Float[Tensor, "*pos d"]) -> Float[Tensor, "*pos d"]:
    """LN(x), gain 1 and bias 0."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


@checked_arguments(InputError)
def figure_9(lengths: Sequence[int] = LENGTHS_9, seeds: Sequence[int] = SEEDS) -> Figure9:
    """Total variation delta of softmax(x) and softmax(x + noise on the first k = 200 entries) at
    every n, for each seed (Figure 9).

    Args:
        lengths: numbers of entries.
        seeds: seeds of the uniform numbers.

    Cost: O(longest + lengths * k) for each seed. Raises `InputError` for lengths below 1 and seeds
    below 0.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    bound = [first_places_bound(NOISY, NOISE, 1.0, n) for n in length_list]
    tables = []
    for seed in seed_list:
        generator = torch.Generator().manual_seed(seed)
        # The noise first: a longer sequence then begins with the same numbers.
        added = NOISE * torch.rand(NOISY, generator=generator, dtype=torch.float64)
        x = torch.rand(length_list[-1], generator=generator, dtype=torch.float64)
        x_star = x.clone()
        x_star[:NOISY] += added[: len(x)]
        delta = prefix_total_variation(x, x_star, length_list).tolist()
        columns = {"length": length_list, "seed": seed, "delta": delta, "bound": bound}
        tables.append(pd.DataFrame(columns))
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(
        lengths=length_list, seeds=seed_list, noisy=NOISY, noise=NOISE
    )
    return Figure9(frame, provenance, decay_fits(frame, ["delta"], 100 * NOISY))


def decay_fits(
    frame: Frame, quantities: Sequence[str], fitted_from: int, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Fit how the mean over seeds falls, a row for each quantity and each value of the columns
    `by`.

    Columns: those of `by`, quantity, fitted_from (only lengths from here on are fitted), verdict
    (of `ostools.theory.statistics.fits.VERDICTS`), law (its name, or "none"), rate (k of n^-k, r of
    e^(-r n); NaN without a law), low, high (its 95% interval: of noise along the mean curve, not of
    the spread between seeds), log_amplitude, level (of the same law), seeds_low, seeds_high (95%,
    Student, of the same plain law's rate over seeds; NaN for one seed, and for a law to a level,
    whose rate a plain law does not have), falls_to (the law at the last fitted length, as a part of
    the law at the first: a rate above 0 may still leave nearly all), used (how many lengths).
    """
    groups = frame.groupby(list(by), sort=False) if by else [((), frame)]
    rows = [
        dict(zip(by, key, strict=True))
        | {"quantity": quantity, "fitted_from": fitted_from}
        | _fit(group[group["length"] >= fitted_from], quantity)
        for key, group in groups
        for quantity in quantities
    ]
    return pd.DataFrame(rows)


def _fit(curve: Frame, quantity: str) -> dict[str, object]:
    mean = curve.groupby("length")[quantity].mean()
    lengths = mean.index.to_numpy(float)
    fitted = fit_decay(lengths, mean.to_numpy())
    law, used = fitted.law, lengths[: fitted.used]
    numbers = ("rate", "low", "high", "log_amplitude", "level")
    seeds_low, seeds_high = _over_seeds(curve[curve["length"].isin(used)], quantity, law)
    return {
        "verdict": fitted.verdict,
        "law": law.name if law else "none",
        **{name: getattr(law, name, math.nan) for name in numbers},
        "seeds_low": seeds_low,
        "seeds_high": seeds_high,
        "falls_to": float(np.divide(*law(used[[-1, 0]]))) if law else math.nan,
        "used": fitted.used,
    }


def _over_seeds(fitted: Frame, quantity: str, law: Law | None) -> tuple[float, float]:
    """Interval of a plain law's rate over seeds, each fitted at the lengths of the mean curve."""
    curves = fitted.groupby(["length", "seed"])[quantity].mean().unstack()
    name = "none" if law is None else law.name
    # A zero has no log, a missing length no part in a common mean.
    if name not in ("power", "exponential") or not (curves > 0).to_numpy().all():
        return math.nan, math.nan
    lengths = curves.index.to_numpy(dtype=float)
    x = np.log(lengths) if name == "power" else lengths
    return over_seeds(list(-np.polyfit(x, np.log(curves.to_numpy()), 1)[0]))[1:]
