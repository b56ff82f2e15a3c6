"""Lemmas B.1, 4.1 / B.2 and B.4 on random, tied and extreme scores. `softmax` is an argument: a wrong one has to be found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.experiments.lemmas.check import Check, Checked, curves, points
from ostools.theory.distances import total_variation
from ostools.theory.lemmas import softmax as lemmas

Softmax = Callable[[Tensor, int], Tensor]
Pair = Callable[[int], tuple[Tensor, Tensor]]

_SPREAD = 4.0
"""Scores of the ordinary cases lie within this of each other; the weight of a token then stays above rounding to n = 10^9."""
_FAR = 4096
"""The length at which sequences without one of the hypotheses are looked at."""


def _uniform(generator: torch.Generator, *shape: int) -> Float[Tensor, "*shape"]:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def last_weight(seed: int, lengths: Sequence[int], softmax: Softmax = torch.softmax) -> Checked:
    """Lemma B.1: one more token always takes weight from the last one; where scores are bounded, it takes less and less."""
    generator = torch.Generator().manual_seed(seed)
    least, worst, gaps = torch.inf, 0.0, []
    for n in lengths:
        scores = _SPREAD * _uniform(generator, 18, n + 1)
        # Ties, and the case in which the bound is tight: everything at the bottom, c and b at the top.
        scores = torch.cat([scores, torch.zeros(1, n + 1, dtype=torch.float64), scores.new_zeros(1, n + 1)])
        scores[-1, -2:] = _SPREAD
        x, x_star = lemmas.inserted(scores[:, :-2], scores[:, -2], scores[:, -1])
        weight, weight_star = softmax(x, -1)[:, -1], softmax(x_star, -1)[:, -1]
        gap = weight - weight_star
        least = min(least, float((gap / weight).amin()))
        worst = max(worst, float(gap.amax()) / lemmas.decrease_bound(_SPREAD, n))
        gaps.append(float(gap.amax()))
    unbounded = _decreasing_scores(lengths, softmax)
    rounding, extreme = _extreme(generator, softmax)
    checks = [
        Check("the least share of its weight that the last token loses, scores within 4", least, ">", 0.0),
        Check("decrease / its bound e^{2s} / (n (n + 1)), greatest over n", worst, "<=", 1.0, 1e-9),
        Check(
            "greatest error of log(1 + e^b / Z) as the log decrease, with scores to ±1000, ties, and n = 1 and 2",
            extreme,
            "<=",
            1e-12,
        ),
        Check("greatest relative increase of that weight, in the same cases", rounding, "<=", 1e-13),
        Check(f"decrease at n = {_FAR:,}, scores -k", unbounded[-1], ">=", 0.1, hypotheses="without bounded scores"),
    ]
    table = curves(
        points("scores within 4 (greatest of 20)", lengths, gaps),
        points(
            "scores within 4 (greatest of 20)",
            lengths,
            [lemmas.decrease_bound(_SPREAD, n) for n in lengths],
            "certified",
        ),
        points("unbounded scores -k", lengths, unbounded[:-1]),
    )
    return Checked(checks, table)


def _decreasing_scores(lengths: Sequence[int], softmax: Softmax) -> list[float]:
    """The decrease for a_k = -k and b = c = 0, at every length and at the far one: Z stays finite, and so does the decrease."""
    gaps = []
    for n in (*lengths, _FAR):
        zero = torch.zeros((), dtype=torch.float64)
        x, x_star = lemmas.inserted(-torch.arange(1, n, dtype=torch.float64), zero, zero)
        gaps.append(float(softmax(x, -1)[-1] - softmax(x_star, -1)[-1]))
    return gaps


def _extreme(generator: torch.Generator, softmax: Softmax) -> tuple[float, float]:
    """Scores of any size: the greatest relative increase, and the greatest error of the log decrease's closed form."""
    increase, error = 0.0, 0.0
    for n in (1, 2, 3, 50):
        for size in (0.0, 1.0, 30.0, 1000.0):
            scores = size * (2.0 * _uniform(generator, 50, n + 1) - 1.0)
            x, x_star = lemmas.inserted(scores[:, :-2], scores[:, -2], scores[:, -1])
            weight, weight_star = softmax(x, -1)[:, -1], softmax(x_star, -1)[:, -1]
            normal = weight > torch.finfo(weight.dtype).smallest_normal
            increase = max(
                increase, float(((weight_star - weight)[normal] / weight[normal]).clamp_min(0).sum(-1).amax())
            )
            found = x.log_softmax(-1)[:, -1] - x_star.log_softmax(-1)[:, -1]
            closed = lemmas.log_decrease(scores[:, :-2], scores[:, -2], scores[:, -1])
            error = max(error, float(((found - closed).abs() / (1.0 + closed + size)).amax()))
    return increase, error


def vanishing_noise(seed: int, lengths: Sequence[int], softmax: Softmax = torch.softmax) -> Checked:
    """Lemma 4.1: delta -> 0 where noise vanishes and scores are bounded; Figure 9's noise, and noise that falls as 1 / i.

    B.2 states both conditions (lim |x_n - x*_n| = 0, bounded); Lemma 4.1, its informal form, only the first."""
    generator = torch.Generator().manual_seed(seed)
    longest, places, noise = max(lengths), 200, 0.1
    x = _uniform(generator, longest)
    first = torch.cat([noise * _uniform(generator, places), x.new_zeros(longest)])[:longest]
    falling = _uniform(generator, longest) / torch.arange(1, longest + 1)
    delta = {
        "noise on the first 200": _deltas(x, x + first, lengths, softmax),
        "noise falling as 1 / i": _deltas(x, x + falling, lengths, softmax),
    }
    rate = [lemmas.first_places_bound(places, noise, 1.0, n) for n in lengths]
    average = [[float(lemmas.total_variation_bound(x[:n], (x + e)[:n])) for n in lengths] for e in (first, falling)]
    worst = max(_ratio(d, b) for d, b in zip(delta.values(), average, strict=True))
    far = _unbounded_delta([_FAR], softmax)[0]
    one_pass = lemmas.prefix_total_variation(x, x + first, lengths).tolist()
    disagreement = max(abs(a - b) for a, b in zip(one_pass, delta["noise on the first 200"], strict=True))
    checks = [
        Check("delta / 2 E|e^noise - 1| / E e^noise, greatest over n", worst, "<=", 1.0, 1e-9),
        Check(
            "delta / (2 k e (e^0.1 - 1) / n), noise on the first k = 200, greatest over n",
            _ratio(next(iter(delta.values())), rate),
            "<=",
            1.0,
            1e-9,
        ),
        Check(
            "greatest error of delta of every prefix in one pass, against a softmax for each", disagreement, "<=", 1e-12
        ),
        Check(
            f"delta at n = {_FAR:,}, scores -2 log i, noise on the first",
            far,
            ">=",
            0.3,
            hypotheses="without bounded scores",
        ),
    ]
    parts = [points(name, lengths, values) for name, values in delta.items()]
    parts.append(points("noise on the first 200", lengths, rate, "certified"))
    parts.append(points("unbounded scores -2 log i", lengths, _unbounded_delta(lengths, softmax)))
    return Checked(checks, curves(*parts))


def _deltas(x: Tensor, x_star: Tensor, lengths: Sequence[int], softmax: Softmax) -> list[float]:
    return [float(total_variation(softmax(x[:n], -1), softmax(x_star[:n], -1))) for n in lengths]


def _ratio(values: Sequence[float], bounds: Sequence[float]) -> float:
    """The greatest value / bound; 0 / 0 is no violation."""
    ratios = (value / bound if bound > 0 else torch.inf for value, bound in zip(values, bounds, strict=True) if value)
    return max(ratios, default=0.0)


def _unbounded_delta(lengths: Sequence[int], softmax: Softmax) -> list[float]:
    x = -2.0 * torch.arange(1, max(lengths) + 1, dtype=torch.float64).log()
    x_star = x + (torch.arange(len(x)) == 0)
    return _deltas(x, x_star, lengths, softmax)


def alternation(lengths: Sequence[int], softmax: Softmax = torch.softmax, pair: Pair = lemmas.alternating) -> Checked:
    """Lemma B.4: two bounded sequences whose softmax stays 2 (e - 1) / (e + 1) apart at every even length."""
    delta = [float(total_variation(*(softmax(x, -1) for x in pair(n)))) for n in lengths]
    furthest = max(delta, key=lambda value: abs(value - lemmas.ALTERNATING))
    brief = [_first_flipped(n, softmax) for n in (*lengths, _FAR)]
    checks = [
        Check(
            f"delta at {len(lengths)} even n to {max(lengths):,}: the furthest from 2 (e - 1) / (e + 1)",
            furthest,
            "=",
            lemmas.ALTERNATING,
            1e-12,
        ),
        Check(
            f"delta at n = {_FAR:,} if only the first 20 differ",
            brief[-1],
            "<=",
            0.01,
            hypotheses="without a difference that lasts",
        ),
    ]
    table = curves(
        points("0101... against 1010...", lengths, delta),
        points("0101... against 1010...", lengths, [lemmas.ALTERNATING] * len(lengths), "predicted"),
        points("the same from place 20 on", lengths, brief[:-1]),
    )
    return Checked(checks, table)


def _first_flipped(n: int, softmax: Softmax) -> float:
    x, other = lemmas.alternating(n)
    mixed = torch.where(torch.arange(n) < 20, other, x)
    return float(total_variation(softmax(x, -1), softmax(mixed, -1)))
