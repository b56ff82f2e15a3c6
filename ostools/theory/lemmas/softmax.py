"""Lemmas B.1, 4.1 / B.2 and B.4: what one more score, or a little noise on the first ones, does to a long softmax.

The paper's delta is the L1 distance of two distributions, without the factor 1/2. Its hypotheses are needed. B.1 and B.2 state
bounded scores (Lemma 4.1, the informal B.2, leaves that out): with x_i = -2 log i the first tokens keep their mass for ever,
and whatever noise is on them with it. B.4 states even n: at odd ones its sequences hold different numbers of ones. The bounds
here are not in the paper: they are what its proofs give when the constants are kept, so that a limit can be checked at every n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError

Scores = Float[Tensor, "*batch pos"]
Scalars = Float[Tensor, "*batch"]
OtherScores = Float[Tensor, "*batch other"]

ALTERNATING = 2.0 * (math.e - 1.0) / (math.e + 1.0)
"""Lemma B.4's delta at every even n: 0.924..."""


def inserted(
    other_scores: OtherScores, token: Scalars, last: Scalars
) -> tuple[Scores, Float[Tensor, "*batch pos_and_copy"]]:
    """x = (a_1, ..., a_{n-1}, c) and x* = (a_1, ..., a_{n-1}, b, c), with `other_scores` a, `token` b, `last` c (Lemma B.1)."""
    b, c = token[..., None], last[..., None]
    return torch.cat([other_scores, c], dim=-1), torch.cat([other_scores, b, c], dim=-1)


def log_decrease(other_scores: OtherScores, token: Scalars, last: Scalars) -> Scalars:
    """log softmax(x)_n - log softmax(x*)_{n+1} = log(1 + e^b / Z), Z = sum_k e^{x_k}: more than 0 for any b (Lemma B.1).

    In exact arithmetic. Where e^b / Z is less than half of the dtype's epsilon, the two weights round to one number.
    """
    total = torch.cat([other_scores, last[..., None]], dim=-1).logsumexp(-1)
    return torch.logaddexp(token - total, torch.zeros_like(total))


def decrease_bound(spread: float, n: int) -> float:
    """softmax(x)_n - softmax(x*)_{n+1} = e^b e^c / (Z (Z + e^b)) <= e^{2s} / (n (n + 1)), for scores within `spread` s.

    Lemma B.1's limit with its rate: each of the n (and n + 1) terms of Z (and Z + e^b) is at least e^{-s} times the largest.
    """
    return math.exp(2.0 * spread) / (n * (n + 1))


def prefix_total_variation(
    x: Float[Tensor, " pos"], x_star: Float[Tensor, " pos"], lengths: Sequence[int]
) -> Float[Tensor, " length"]:
    """delta_n = sum_{i<=n} |softmax(x_1..n)_i - softmax(x*_1..n)_i| for every n of `lengths`, in one pass (Lemma 4.1 / B.2).

    Past the last place where the two differ only the denominators do, so that those terms are one number. O(N + lengths * k)
    for k places up to there. Raises `InputError` for lengths out of 1..N.
    """
    if not lengths or min(lengths) < 1 or max(lengths) > len(x):
        raise InputError(f"total variation: expected lengths from 1 to {len(x)}, found {list(lengths)[:4]}")
    ends = torch.tensor(list(lengths), device=x.device)
    log_z, log_z_star = x.logcumsumexp(0)[ends - 1], x_star.logcumsumexp(0)[ends - 1]
    differ = torch.nonzero(x != x_star)
    k = int(differ[-1]) + 1 if len(differ) else 0
    y, y_star = (x[:k] - log_z[:, None]).exp(), (x_star[:k] - log_z_star[:, None]).exp()
    present = torch.arange(k, device=x.device) < ends[:, None]
    delta = ((y - y_star).abs() * present).sum(-1)
    # e^{x_i} / Z - e^{x_i} / Z* = -(e^{x_i} / Z) (e^{log Z - log Z*} - 1)
    log_rest = torch.cat([x.new_full((1,), -torch.inf), x[k:].logcumsumexp(0)])[(ends - k).clamp_min(0)]
    return delta + (log_rest - log_z).exp() * torch.expm1(log_z - log_z_star).abs()


def total_variation_bound(x: Scores, x_star: Scores) -> Scalars:
    """delta <= 2 sum_i y_i |e^{e_i} - 1| / sum_i y_i e^{e_i}, with y = softmax(x) and e = x* - x: for any two sequences.

    The average of |e^{e_i} - 1| under y: it tends to 0 where e_i -> 0 and no place keeps its weight, as bounded scores see to.
    """
    y, noise = x.softmax(-1), x_star - x
    return 2.0 * (y * torch.expm1(noise).abs()).sum(-1) / (y * noise.exp()).sum(-1)


def first_places_bound(places: int, noise: float, spread: float, n: int) -> float:
    """delta_n <= 2 k e^s (e^eps - 1) / n, for noise in [0, eps] on the first k places and scores within `spread` s.

    Lemma 4.1 / B.2 for Figure 9's noise, with its rate: y_i <= e^s / n in the bound above, whose denominator is at least 1.
    """
    return 2.0 * min(places, n) * math.exp(spread) * math.expm1(noise) / n


def alternating(n: int) -> tuple[Float[Tensor, " pos"], Float[Tensor, " pos"]]:
    """(0, 1, 0, 1, ...) and (1, 0, 1, 0, ...) of even length n, float64: sequences that never come closer (Lemma B.4).

    Raises `InputError` for odd n, where one has a 1 more than the other and delta is another number.
    """
    if n < 2 or n % 2:
        raise InputError(
            f"Lemma B.4: expected an even length of at least 2, found {n}: at odd lengths one of the two alternating "
            f"sequences holds one more 1, and delta is not {ALTERNATING:.3f}"
        )
    x = torch.arange(n, dtype=torch.float64) % 2
    return x, 1.0 - x
