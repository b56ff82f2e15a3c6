"""The shape of a sensitivity profile: shares of its total, and whether its two ends stand above its
middle.

Section 5 of the paper (arXiv 2406.04267) explains a U, "in part": the first tokens and the last
ones count for more than those between. A profile is one noisy series, and neighbouring tokens are
alike, so that tokens are not independent draws. Everything here is therefore computed from the
means of log10 norms over blocks of neighbours, which are nearly independent where tokens are not:
five in each third of the prompt, or three where it has fewer than 64 tokens. What scatters around a
straight line within a third counts as noise.

Simulated: where nothing is there, the 95% interval of a contrast lies above 0 in 1.6 to 4.5% of
cases (nominal 2.5%) at correlations of neighbours up to 0.5 and 64 tokens or more, in 8% at a
correlation of 0.7 and 64 tokens; both in 1% (3%). Of 12, 20, 38 and 60 tokens the 95% interval of a
contrast holds in 93% to 98% of cases at correlations up to 0.5, and in 90% to 96% at 0.7. It is
wide: +- 2 to 3 times the scatter of tokens. A parabola whose ends stand 2 decades above its middle
is seen in 27% of cases over 38 tokens (two steps of 2 decades, at the thirds, in 55%), one of 0.8
decades in 53% over 64 tokens and 83% over 128, where tokens scatter by 0.3 and are correlated by
0.3.

Of many profiles (the texts of a sweep, or a list of prompts): windows of one text are alike, so
that texts are what is drawn. Every text counts once, by the mean of its windows, and every interval
is over texts.
Cost: a product with a windows x bins matrix, and resamples x texts numbers for the bootstrap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float

from ostools.ground import InputError, whole_number
from ostools.theory.statistics.intervals import bootstrap_mean, expanded, fewest_at

ProfileShape = Literal[
    "U-shape", "inverted U", "rises at the start only", "rises at the end only", "no shape shown"
]
Profile = Float[np.ndarray, " pos"]

BLOCKS = 5
"""Blocks in each third of a long profile."""
SHORTEST = 12
"""Fewest tokens whose shape is tested: below, a block of which a third needs three is one token."""
_SHORT_BLOCKS, _LONG = 3, 64
# Means of equal numbers over unequal blocks differ by this much and less.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class TestedValue:
    """An estimate, its 95% interval, and the two-sided p-value of its being zero."""

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class EndContrasts:
    """First and last third of profiles beside the middle one, in decades (differences of log10
    norms).
    """

    start: TestedValue
    end: TestedValue

    @property
    def verdict(self) -> ProfileShape:
        """A shape is named only if its contrasts exclude zero; a U needs both, so it is no likelier
        by chance than either.
        """
        if self.start.low > 0 and self.end.low > 0:
            return "U-shape"
        if self.start.high < 0 and self.end.high < 0:
            return "inverted U"
        if self.end.low > 0:
            return "rises at the end only"
        return "rises at the start only" if self.start.low > 0 else "no shape shown"


@dataclass(frozen=True)
class UShape(EndContrasts):
    """Of one profile; `thirds`: the mean log10 norm of each third."""

    thirds: tuple[float, float, float]


def shares(values: Profile) -> Profile:
    """Share of the total of each value; zeros where the total is zero."""
    total = values.sum()
    return values / total if total > 0 else np.zeros_like(values)


def effective_tokens(share: Profile) -> float:
    """exp(entropy): over how many tokens the total is spread; 1 for one token, n for n equal ones,
    0 for none.
    """
    positive_share = share[share > 0]
    return (
        float(np.exp(-(positive_share * np.log(positive_share)).sum()))
        if len(positive_share)
        else 0.0
    )


def acting(first: Profile, second: Profile) -> Bool[np.ndarray, " pos"]:
    """Where one of two profiles is not 0. Both are exactly 0 where a token is out of every window's
    reach: nothing is predicted or measured there, and the tied ranks would count as agreement.
    """
    return (first != 0) | (second != 0)


def rank_correlation(first: Profile, second: Profile) -> float:
    """Spearman's; NaN where a profile is flat or has fewer than three tokens."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    from scipy.stats import spearmanr  # half a second, for this line alone

    return float(np.asarray(spearmanr(first, second))[0])


def u_shape(log10_norms: Profile) -> UShape:
    """Test a profile of at least `SHORTEST` tokens, all of them finite (a norm of zero has no
    logarithm).
    """
    blocks = means_of_blocks(log10_norms)
    start, middle, end = blocks.reshape(3, -1)
    thirds = (float(start.mean()), float(middle.mean()), float(end.mean()))
    return UShape(_contrast(start, middle), _contrast(end, middle), thirds)


def means_of_blocks(
    log10_norms: Float[np.ndarray, "*profile pos"],
) -> Float[np.ndarray, "*profile block"]:
    """The means of a profile's blocks, equally many in each third."""
    count = BLOCKS if log10_norms.shape[-1] >= _LONG else _SHORT_BLOCKS
    return np.stack(
        [block.mean(-1) for block in np.array_split(log10_norms, 3 * count, axis=-1)], axis=-1
    )


def _contrast(
    first: Float[np.ndarray, " block"], second: Float[np.ndarray, " block"]
) -> TestedValue:
    """Difference of two means of blocks, by Welch's t: one third may scatter more than
    the other.
    """
    freedom = len(first) - 2
    parts = np.array(
        [(_around_line(third) ** 2).sum() / freedom / len(first) for third in (first, second)]
    )
    variance = float(parts.sum())
    joint = freedom / float(((parts / variance) ** 2).sum()) if variance > 0 else 1.0
    return by_student(float(first.mean() - second.mean()), variance**0.5, joint)


def by_student(value: float, error: float, freedom: float) -> TestedValue:
    """A value with that standard error, by Student's t; a value within rounding of zero is zero."""
    from scipy.special import stdtr, stdtrit

    value = value if abs(value) > _ROUNDING else 0.0
    half = float(stdtrit(freedom, 0.975)) * error
    if error == 0:
        return TestedValue(value, value, value, 1.0 if value == 0 else 0.0)
    return TestedValue(
        value, value - half, value + half, float(2 * stdtr(freedom, -abs(value) / error))
    )


def _around_line(values: Float[np.ndarray, " place"]) -> Float[np.ndarray, " place"]:
    along = np.stack([np.ones(len(values)), np.arange(len(values))], axis=1)
    return values - along @ np.linalg.lstsq(along, values, rcond=None)[0]


BINS = 32
"""Of relative position, unless asked for."""
LEVEL = 0.95


def checked_bins(bins: int, lengths: Sequence[int]) -> int:
    """At most one bin a token of the shortest: finer ones would show what no token says. Raises
    `InputError` for more.
    """
    if whole_number("bins", bins, 1) > min(lengths):
        raise InputError(
            f"bins: expected at most {min(lengths)}, the tokens of the shortest, found {bins}"
        )
    return int(bins)


def binned(shares: Float[np.ndarray, "window pos"], bins: int) -> Float[np.ndarray, "window bin"]:
    """The share of every bin of relative position over its even share, 1 / bins: 1 everywhere where
    all tokens are equal.

    Token i of n covers [i / n, (i + 1) / n) of a window, bin b of B [b / B, (b + 1) / B); a token
    on the border of two bins counts in each by the part of it that lies there, so that the mean
    over the bins is the sum of the shares.
    """
    pos, token, place = (
        shares.shape[-1],
        np.arange(shares.shape[-1])[:, None],
        np.arange(bins)[None, :],
    )
    # Whole numbers, in units of 1 / (n B): where B divides n every part is exactly 0 or 1.
    start, stop = (
        np.maximum(token * bins, place * pos),
        np.minimum((token + 1) * bins, (place + 1) * pos),
    )
    return bins * (shares @ (np.clip(stop - start, 0, None) / bins))


def interval_of_mean(
    means: Float[np.ndarray, "text bin"],
) -> tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]:
    """The 95% bootstrap interval of the mean over texts, of each bin; NaN for fewer than six texts
    (`fewest_at`): no resampled mean is beyond their least and greatest, between which the mean lies
    in 75% of cases with three texts, in 94% with five.

    At the `expanded` level, as a percentile interval of few texts is too narrow."""
    if len(means) < fewest_at(LEVEL):
        unknown = np.full(means.shape[1], np.nan)
        return unknown, unknown
    interval = bootstrap_mean(torch.tensor(means), level=expanded(LEVEL, len(means)))
    return interval.low.numpy(), interval.high.numpy()


def ends_over_texts(contrasts: Float[np.ndarray, "text 2"]) -> EndContrasts:
    """Means over texts: whether the mean contrasts are zero, by Student's t with a degree of
    freedom less than texts.

    Here texts are the draws, where `profiles.u_shape` has only the scatter of the tokens of one
    prompt. At least three texts.
    """
    texts = len(contrasts)
    errors = contrasts.std(0, ddof=1) / texts**0.5
    means = contrasts.mean(0)
    start, end = (
        by_student(float(m), float(e), float(texts - 1)) for m, e in zip(means, errors, strict=True)
    )
    return EndContrasts(start, end)
