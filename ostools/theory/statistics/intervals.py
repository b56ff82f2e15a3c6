"""Intervals: of a share and of a rank correlation, in closed form; of a mean over few independent
samples, by the bootstrap.

The bootstrap costs resamples x samples numbers, and one product of that matrix with the data. With
five samples the interval is too narrow, as every bootstrap's is: at 95% it holds a normal's mean in
about 83% of cases (see `bootstrap_mean`).

It is not `scipy.stats.bootstrap` and `permutation_test`, which the tests hold this against. The
same method there draws by numpy's generator: the digits of every interval already reported would
change. The mean of samples that are all the same is rounded there. The exact test of 16 samples
takes five times as long, and rounds ties another way (in 10 of 1,800 trials).
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError


def require_level(caller: str, level: float) -> None:
    """Refuse a level that is not between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(
            f"{caller}: expected a level between 0 and 1, found {level}; for example 0.95"
        )


class Interval(NamedTuple):
    """The ends of an interval: numbers, or tensors with one pair a column."""

    low: Any
    high: Any


def wilson(successes: float | int, trials: float | int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a probability p, of which `successes` of `trials` independent
    trials came true.

    The p that a score test at this level does not reject: |p_hat - p| <= z sqrt(p (1 - p) / n). Its
    ends are

        (p_hat + z^2 / 2n  -+  z sqrt(p_hat (1 - p_hat) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    With none right it is [0, z^2 / (n + z^2)], with all right [n / (n + z^2), 1]: never empty,
    never beyond 0 and 1. Computed by statsmodels.

    `successes` need not be whole. A trial that is itself a share (several samples after one prompt)
    varies by at most p (1 - p), as much as a coin does, so that with prompts as trials the interval
    is no narrower than it should be.

    Raises `InputError` for no trials, successes outside 0..trials, and a level outside 0..1.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927), J.
    Amer. Stat. Assoc. 22.
    """
    if not trials > 0 or not math.isfinite(trials):
        raise InputError(f"wilson: expected at least one trial, found {trials}")
    if not 0 <= successes <= trials:
        raise InputError(
            f"wilson: expected successes from 0 to the {trials} trials, found {successes}"
        )
    require_level("wilson", level)
    from statsmodels.stats.proportion import (
        proportion_confint,
    )  # half a second, for this line alone

    ends: Any = proportion_confint(successes, trials, alpha=1 - level, method="wilson")
    low, high = map(float, ends)
    # Exact at the ends, where rounding leaves 1e-17 of them.
    return Interval(0.0 if successes == 0 else low, 1.0 if successes == trials else high)


def spearman_interval(correlation: float, pairs: int) -> Interval:
    """The 95% interval of Spearman's rank correlation r of so many independent pairs, on Fisher's
    scale:

        tanh( artanh r  -+  z sqrt((1 + r^2 / 2) / (n - 3)) )

    Of fewer than four pairs there is none, and both ends are NaN; so they are of a correlation that
    is NaN. At r = -1 and 1 the interval is that point. Neighbouring tokens are alike, so that n
    tokens are fewer than n independent pairs: of tokens the interval is too narrow.

    Source: Bonett and Wright, Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations (2000), Psychometrika 65.
    """
    if pairs < 4 or math.isnan(correlation):
        return Interval(math.nan, math.nan)
    if abs(correlation) >= 1:
        return Interval(correlation, correlation)
    half = NormalDist().inv_cdf(0.975) * math.sqrt((1 + correlation**2 / 2) / (pairs - 3))
    middle = math.atanh(correlation)
    return Interval(math.tanh(middle - half), math.tanh(middle + half))


_FLIPPED = 16  # 2^16 sign patterns
FEWEST = 3
"""Of fewer samples there is no interval: resampling two gives their least, their greatest and their
mean.
"""


def fewest_at(level: float) -> int:
    """Number of samples that it takes before an interval at that level may leave 0 out.

    Of n samples of no effect, as likely above 0 as below, all have the same sign in 2^(1 - n) of
    cases, and then every bootstrap interval of their mean leaves 0 out: with 2^(1 - n) > 1 - level
    it would claim more than there is to be known. It is also the least p-value that `sign_flip` can
    have.
    """
    require_level("bootstrap", level)
    # Within rounding: 1 - 0.9375 is 1/16 in floats, 1 - 0.99 a little more than 1/100.
    return max(FEWEST, math.ceil(1 - math.log2(1 - level) - 1e-9))


def sign_flip(samples: Float[Tensor, " sample"]) -> float:
    """The two-sided p-value of "as likely above 0 as below": in what share of all sign patterns
    |mean| is at least as large.

    Exact for up to 16 samples, whatever their distribution; of more, 2^16 patterns are drawn, the
    given one among them. Where few samples make an interval too narrow, this test still errs no
    more often than it says. Source: Fisher, The design of experiments (1935), section 21; Good,
    Permutation, parametric and bootstrap tests (2005).
    """
    n = len(samples)
    if n <= _FLIPPED:
        signs = 1 - 2 * (torch.arange(2**n)[:, None] >> torch.arange(n) & 1)
    else:
        generator = torch.Generator().manual_seed(0)
        signs = 1 - 2 * torch.randint(2, (2**_FLIPPED, n), generator=generator)
        signs[0] = 1
    sums = (signs.to(samples) @ samples).abs()
    return float((sums >= sums[0] * (1 - 1e-12)).double().mean())


def expanded(level: float, n: int) -> float:
    """The level to ask a percentile bootstrap of n samples for, so that it covers about `level`.

    Its interval is too narrow twice: a resampled mean has (n - 1) / n of the variance, and normal
    quantiles stand where Student's should. So its z is put at t_{n-1} sqrt(n / (n - 1)), which for
    a normal's mean makes both good. Source: Hesterberg, What teachers should know about the
    bootstrap (2015), The American Statistician 69, "expanded".
    """
    from scipy.special import ndtr, stdtrit

    require_level("bootstrap", level)
    if n < 2:
        raise InputError(f"bootstrap: expected at least two samples, found {n}")
    z = stdtrit(n - 1, (1 + level) / 2) * math.sqrt(n / (n - 1))
    return float(1 - 2 * ndtr(-z))


def bootstrap_mean(
    samples: Float[Tensor, " sample *rest"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of the mean over samples: the (1 -+ level) / 2 quantiles of
    resampled means.

    Every column is resampled alike, so that a curve keeps its shape. The variance of a resampled
    mean is (n - 1) / n of the unbiased estimate; for a normal's mean the coverage is about
    P(|t_{n-1}| < z sqrt((n - 1) / n)): at level 0.95 it is 0.84 for n = 5, 0.91 for 15 and 0.94 for
    50.

    Raises `InputError` for fewer than three samples, samples that are not finite, and a level
    outside 0..1.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    n = len(samples)
    if n < FEWEST:
        raise InputError(
            f"bootstrap: expected at least {FEWEST} samples, found {n}: so few show no spread of a "
            "mean"
        )
    require_level("bootstrap", level)
    if not bool(torch.isfinite(samples).all()):
        raise InputError("bootstrap: expected finite samples, found NaN or infinity among them")
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(n, (resamples, n), generator=generator)
    once = torch.ones(resamples, n)
    counts = torch.zeros_like(once).scatter_add_(1, indices, once).to(samples)
    # Around the first sample, so that samples that are all the same have an interval without
    # rounding.
    means = samples[0] + torch.tensordot(counts / n, samples - samples[0], dims=1)
    ends = torch.quantile(means, means.new_tensor([(1 - level) / 2, (1 + level) / 2]), dim=0)
    return Interval(ends[0], ends[1])


def bootstrap_share(
    right: Float[Tensor, " group"], of: Float[Tensor, " group"], *, seed: int = 0
) -> Interval:
    """The 95% interval of sum(right) / sum(of) over groups whose members are not independent of
    each other, such as the prompts of one sequence: groups are resampled whole. `right` may be a
    difference of two counts on the same members.

    The percentile bootstrap at the `expanded` level of that many groups. Where every group has the
    same share it would be empty: then it is Wilson's, with groups as trials, around that share (of
    a difference d between -1 and 1, around (1 + d) / 2).

    Raises `InputError` for fewer than six groups (`fewest_at`), and for an empty one.
    """
    n, fewest = len(right), fewest_at(0.95)
    if n < fewest or not bool((of > 0).all()):
        raise InputError(
            f"bootstrap: expected at least {fewest} groups with members, found {n}, "
            f"{int((of <= 0).sum())} empty"
        )
    shares = (right / of).double()
    if bool((shares == shares[0]).all()):
        share, signed = float(shares[0]), bool((right < 0).any()) or bool((right > of).any())
        low, high = wilson((1 + share) / 2 * n if signed else share * n, n)
        ends = torch.tensor([low, high], dtype=torch.float64)
        return Interval(*(2 * ends - 1 if signed else ends))
    indices = torch.randint(n, (2000, n), generator=torch.Generator().manual_seed(seed))
    values = right.double()[indices].sum(1) / of.double()[indices].sum(1)
    wide = expanded(0.95, n)
    ends = torch.quantile(values, values.new_tensor([(1 - wide) / 2, (1 + wide) / 2]))
    return Interval(ends[0], ends[1])


def widened(interval: Interval, around: float, *, tested: int, trained: int) -> Interval:
    """An interval around the mean over the tests of several probes, wider because they were trained
    on each other's examples.

    Of J probes, each trained on n_1 examples and tested on n_2 others, the variance of the mean is
    not S^2 / J but about (1 / J + n_2 / n_1) S^2: every half-width grows by sqrt(1 + J n_2 / n_1).
    `tested`: J n_2, the examples tested by all probes together; `trained`: n_1. Three folds give
    sqrt(1 + 3 / 2). The term n_2 / n_1 is an estimate, made for splits drawn at random; no estimate
    from one data set is unbiased.

    Raises `InputError` for numbers of examples that are not positive. Source: Nadeau and Bengio,
    Inference for the generalization error (2003), Machine Learning 52 (the corrected resampled
    t-test).
    """
    if tested < 1 or trained < 1:
        raise InputError(
            f"bootstrap: expected tested and trained examples, found {tested} and {trained}"
        )
    factor = math.sqrt(1 + tested / trained)
    below, above = (around - interval.low).clamp_min(0), (interval.high - around).clamp_min(0)
    return Interval(around - factor * below, around + factor * above)
