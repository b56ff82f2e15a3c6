"""What Figures 8 and 9 share: a quantity that falls with length, over seeds, and the law by which it falls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ostools.errors import InputError
from ostools.reporting.frames import Frame
from ostools.theory.fits import fit_decay

SEEDS = tuple(range(5))


def spread_lengths(first: int, last: int, count: int) -> tuple[int, ...]:
    """About `count` lengths from `first` to `last`, both included, evenly spread on a log axis."""
    ratio = math.log(last / first) / (count - 1)
    return tuple(sorted({round(first * math.exp(ratio * step)) for step in range(count)}))


def checked(figure: str, lengths: Sequence[int], seeds: Sequence[int]) -> tuple[list[int], list[int]]:
    """The lengths, ascending, and the seeds, each once; refused if there are none, or lengths below 1."""
    if not len(lengths) or min(lengths) < 1:
        raise InputError(f"{figure}: expected lengths of at least 1, found {min(lengths) if len(lengths) else 'none'}")
    if not len(seeds) or min(seeds) < 0:
        raise InputError(f"{figure}: expected seeds of at least 0, found {min(seeds) if len(seeds) else 'none'}")
    return sorted(set(lengths)), list(dict.fromkeys(seeds))


def fits(
    frame: Frame, quantities: Sequence[str], fitted_from: int, by: Sequence[str] = (), floor: float = 0.0
) -> pd.DataFrame:
    """How the mean over seeds falls, a row for each quantity and each value of the columns `by`.

    Columns: those of `by`, quantity, fitted_from (only lengths from here on are fitted), verdict (of
    `ostools.theory.fits.VERDICTS`), law (its name, or "none"), rate (k of n^-k, r of e^(-r n); NaN without a law), low, high
    (its 95% interval: of noise along the mean curve, not of the spread between seeds), log_amplitude, level (of the same law),
    used (how many lengths). A curve is fitted until it falls to `floor`.
    """
    groups = frame.groupby(list(by), sort=False) if by else [((), frame)]
    return pd.DataFrame(
        [
            dict(zip(by, key, strict=True)) | {"quantity": quantity} | _fit(group, quantity, fitted_from, floor)
            for key, group in groups
            for quantity in quantities
        ]
    )


def _fit(curve: Frame, quantity: str, fitted_from: int, floor: float) -> dict[str, Any]:
    mean = curve[curve["length"] >= fitted_from].groupby("length")[quantity].mean()
    found = fit_decay(mean.index.to_numpy(), mean.to_numpy(), floor=floor)
    law, unknown = found.law, float("nan")
    return {
        "fitted_from": fitted_from,
        "verdict": found.verdict,
        "law": law.name if law else "none",
        "rate": law.rate if law else unknown,
        "low": law.low if law else unknown,
        "high": law.high if law else unknown,
        "log_amplitude": law.log_amplitude if law else unknown,
        "level": law.level if law else unknown,
        "used": found.used,
    }
