"""Statistics of many profiles: profiles of many windows, of many texts, over relative position.

Windows of one text are alike, so that texts are what is drawn: every text counts once, by the mean of its windows, and every
interval is over texts. Profiles are shares of their sum (`profiles.shares`), as norms of different windows have different
sizes. Cost: a product with a windows x bins matrix, and resamples x texts numbers for the bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import whole_number
from ostools.theory.profiles import Shape, TestedValue, by_student, means_of_blocks, named_by_ends
from ostools.theory.statistics.bootstrap import FEWEST, bootstrap_mean, expanded

BINS = 32
"""Of relative position, unless asked for."""
LEVEL = 0.95
QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}
"""Of windows, by the names of their columns."""
FEWEST_TOKENS = 15
"""Fewest tokens whose ends are held against their middle: five in each third."""


@dataclass(frozen=True)
class Ends:
    """How the first and the last third of profiles stand to the middle one, in decades: means over texts."""

    start: TestedValue
    end: TestedValue

    @property
    def verdict(self) -> Shape:
        """Verdict as of one profile (`profiles.UShape`): a U needs both ends."""
        return named_by_ends(self.start, self.end)


def checked_bins(bins: int, lengths: Sequence[int]) -> int:
    """At most one bin a token of the shortest: finer ones would show what no token says. Raises `InputError` for more."""
    if whole_number("bins", bins, 1) > min(lengths):
        raise InputError(f"bins: expected at most {min(lengths)}, the tokens of the shortest, found {bins}")
    return int(bins)


def binned(shares: Float[np.ndarray, "window pos"], bins: int) -> Float[np.ndarray, "window bin"]:
    """The share of every bin of relative position over its even share, 1 / bins: 1 everywhere where all tokens are equal.

    Token i of n covers [i / n, (i + 1) / n) of a window, bin b of B [b / B, (b + 1) / B); a token on the border of two bins
    counts in each by the part of it that lies there, so that the mean over the bins is the sum of the shares.
    """
    pos, token, place = shares.shape[-1], np.arange(shares.shape[-1])[:, None], np.arange(bins)[None, :]
    # Whole numbers, in units of 1 / (n B): where B divides n every part is exactly 0 or 1.
    start, stop = np.maximum(token * bins, place * pos), np.minimum((token + 1) * bins, (place + 1) * pos)
    return bins * (shares @ (np.clip(stop - start, 0, None) / bins))


def text_means(
    values: Float[np.ndarray, " window *rest"], texts: Int[np.ndarray, " window"]
) -> Float[np.ndarray, " text *rest"]:
    """The mean of the windows of each text, in the order of the texts' numbers."""
    _, places, counts = np.unique(texts, return_inverse=True, return_counts=True)
    total = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(total, places, values)
    return total / counts.reshape(-1, *[1] * (values.ndim - 1))


def interval_of_mean(
    means: Float[np.ndarray, "text bin"], *, seed: int = 0
) -> tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]:
    """The 95% bootstrap interval of the mean over texts, of each bin; NaN for fewer than three texts, which show no spread.

    At the `expanded` level, as a percentile interval of few texts is too narrow."""
    if len(means) < FEWEST:
        unknown = np.full(means.shape[1], np.nan)
        return unknown, unknown
    interval = bootstrap_mean(torch.from_numpy(means), level=expanded(LEVEL, len(means)), seed=seed)
    return interval.low.numpy(), interval.high.numpy()


def end_contrasts(log10_values: Float[np.ndarray, "window pos"]) -> Float[np.ndarray, "window 2"]:
    """The mean log10 of the first, and of the last third, minus the middle one, of every window: the contrasts of
    `profiles.u_shape`, without its intervals. At least `FEWEST_TOKENS` tokens."""
    blocks = means_of_blocks(log10_values)
    start, middle, end = blocks.reshape(len(blocks), 3, -1).mean(2).T
    return np.stack([start - middle, end - middle], axis=1)


def ends_over_texts(contrasts: Float[np.ndarray, "text 2"]) -> Ends:
    """Whether the mean contrasts over texts are zero, by Student's t with a degree of freedom less than texts.

    Here texts are the draws, where `profiles.u_shape` has only the scatter of the tokens of one prompt. At least three texts.
    """
    texts = len(contrasts)
    errors = contrasts.std(0, ddof=1) / texts**0.5
    means = contrasts.mean(0)
    start, end = (by_student(float(m), float(e), float(texts - 1)) for m, e in zip(means, errors, strict=True))
    return Ends(start, end)
