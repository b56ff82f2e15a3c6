"""Distances between two representations, and the units in which a dtype can tell them apart
(Theorem 4.2 / B.3); and how alike the tokens of one text are in a layer.

Pure tensor functions along the last axis. A distance is compared with the machine line, the same
norm of one representable step in every coordinate; a fixed threshold would mean something else at
every magnitude.

Lengths at which rounding hides a pair are named by a rule that was fixed before anything was
measured. `IN_A_ROW` tried lengths in a row at which the pair is hidden make a range. Two such rows
are one range where fewer than `IN_A_ROW` tried lengths lie between them: a single length apart by
chance does not end it. So at least half of a range's tried lengths are hidden, and `HiddenRange`
counts them. Fewer hidden lengths in a row are chance, and no range.

The likeness of tokens is in the spectrum of the matrix of their states, and in their cosines:

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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import InputError, checked_name

Vectors = Float[Tensor, "*batch d"]
Scalars = Float[Tensor, "*batch"]

_ORDERS = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}
DistanceNorm = Literal["l1", "l2", "linf"]
NORMS: tuple[DistanceNorm, ...] = get_args(DistanceNorm)
"""L1 is the theorem's distance, Linf Figure 5's."""

_NO_MANTISSA = -(1 << 52)
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}
"""The dtypes by name."""


def vector_norm(x: Vectors, norm: str) -> Scalars:
    """||x||_p along the last axis: p = 1, 2 or infinity for "l1", "l2", "linf"."""
    checked_name("norm", norm, _ORDERS)
    if norm == "linf":
        return torch.maximum(
            x.amax(-1), -x.amin(-1)
        )  # the same number as torch's own norm, five times as fast
    return torch.linalg.vector_norm(x, ord=_ORDERS[norm], dim=-1)


def distance(x: Vectors, y: Vectors, norm: str) -> Scalars:
    """||x - y||_p along the last axis."""
    return vector_norm(x - y, norm)


def spacing(magnitude: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The step from each |magnitude| to the next representable number of `dtype`, in float64 (one
    ULP).

    2^e eps for 2^e <= |magnitude| < 2^(e+1), and the subnormal step below the smallest normal
    number. Raises `InputError` for a magnitude that `dtype` cannot hold, and for one that is not
    finite.
    """
    info = torch.finfo(dtype)
    size = magnitude.double().abs()
    if size.numel() and not bool(size.amax() <= info.max):
        raise InputError(
            f"spacing of {dtype}: expected finite magnitudes up to {info.max:.4g}, found "
            f"{float(size.max())}"
        )
    # Without its mantissa a float64 is the power of two below it. Below the smallest normal number
    # the steps stay the same.
    bits = size.clamp_min(info.smallest_normal).view(torch.int64)
    return bits.bitwise_and_(_NO_MANTISSA).view(torch.float64).mul_(info.eps)


def steps_between(y: Vectors, y_star: Vectors, dtype: torch.dtype) -> Vectors:
    """u_k: the spacing of `dtype` at max(|y_k|, |y*_k|), in float64.

    Its norm is the machine line: the distance of vectors one step apart everywhere. A distance over
    it is in ULPs.
    """
    return spacing(torch.maximum(y.double().abs(), y_star.double().abs()), dtype)


def total_variation(p: Vectors, q: Vectors) -> Scalars:
    """The paper's delta = sum_k |p_k - q_k| of two distributions: the L1 norm, without the factor
    1/2; at most 2.
    """
    return (p - q).abs().sum(-1)


def proof_variation(
    alpha: Vectors, alpha_star: Vectors, last: Int[Tensor, "*batch"]
) -> tuple[Scalars, Scalars, Scalars]:
    """delta, the own weight and the KL divergence of two rows of attention, as the proof of Theorem
    B.3 pairs them.

    alpha: the row of token n, 0 after it. alpha_star: the row of the repeated token, which stands
        at `last`, 0 after it.

    delta = sum_(i<n) |alpha_(n,i) - alpha*_(n+1,i)| + |alpha_(n,n) - alpha*_(n+1,n)|, without the
    factor 1/2 (equation 2); own = alpha*_(n+1,n+1). The proof bounds the difference of two
    attention outputs by delta + own, for values of unit norm. That sum is the L1 distance of the
    two rows over all n + 1 tokens, alpha being 0 at the last. KL(alpha || alpha*) is over the same
    n + 1 tokens, in nats: finite wherever alpha* sees what alpha sees, and infinite where it does
    not (a sliding window that moved on). KL(alpha* || alpha) is always infinite. Pinsker: delta +
    own <= sqrt(2 KL).
    """
    at = last[..., None]
    self_weight = alpha_star.gather(-1, at)[..., 0]
    delta = (alpha - alpha_star).abs().scatter(-1, at, 0.0).sum(-1)
    divergence = torch.where(alpha > 0, alpha * (alpha.log() - alpha_star.log()), 0.0).sum(-1)
    return (
        delta,
        self_weight,
        divergence.clamp_min(0.0),
    )  # the sum of a row with itself may be rounded to below 0


def head_chunks(
    x: Float[Tensor, "*batch d_model"], n_heads: int
) -> Float[Tensor, "*batch head chunk"]:
    """A vector in `n_heads` pieces of d_model / n_heads: one reading of Figure 5's "over each
    head".

    Raises `InputError` where n_heads does not divide d_model.
    """
    if n_heads < 1 or x.shape[-1] % n_heads:
        raise InputError(
            f"head chunks: expected a number of heads that divides d_model = {x.shape[-1]}, found "
            f"{n_heads}"
        )
    return rearrange(x, "... (head chunk) -> ... head chunk", head=n_heads)


IN_A_ROW = 8
"""How many tried lengths in a row make a range, and how many have to follow one to end it."""


@dataclass(frozen=True)
class HiddenRange:
    """One range of lengths: `first` and `last`, `lengths_tried` from one to the other, and at how
    many of these the pair is `hidden` (at both ends it is). `open`: whether it goes on to
    the longest length tried."""

    first: int
    last: int
    lengths_tried: int
    hidden: int
    open: bool


def hidden_ranges(hidden: Sequence[bool], lengths: Sequence[int]) -> list[HiddenRange]:
    """The ranges of a curve, the shortest lengths first; `hidden[i]`: whether the pair is hidden at
    `lengths[i]`, ascending.
    """
    spans: list[tuple[int, int]] = []
    for is_hidden, run in groupby(range(len(lengths)), key=lambda index: bool(hidden[index])):
        indices = list(run)
        if not is_hidden or len(indices) < IN_A_ROW:
            continue
        start, end = indices[0], indices[-1]
        if spans and start - spans[-1][1] - 1 < IN_A_ROW:
            start = spans.pop()[0]
        spans.append((start, end))
    return [
        HiddenRange(
            first=lengths[start],
            last=lengths[end],
            lengths_tried=end - start + 1,
            hidden=sum(map(bool, hidden[start : end + 1])),
            open=end == len(lengths) - 1,
        )
        for start, end in spans
    ]


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
