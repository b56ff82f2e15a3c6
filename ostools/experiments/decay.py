"""The law by which a quantity falls with length, over seeds (Figures 8 and 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ostools.results import Frame
from ostools.theory.statistics.fits import Law, fit_decay, over_seeds

SEEDS = tuple(range(5))


def spread_lengths(first: int, last: int, count: int) -> tuple[int, ...]:
    """About `count` lengths from `first` to `last`, both included, evenly spread on a log axis."""
    ratio = math.log(last / first) / (count - 1)
    return tuple(sorted({round(first * math.exp(ratio * step)) for step in range(count)}))


def fits(
    frame: Frame, quantities: Sequence[str], fitted_from: int, by: Sequence[str] = (), floor: float = 0.0
) -> pd.DataFrame:
    """Fit how the mean over seeds falls, a row for each quantity and each value of the columns `by`.

    Columns: those of `by`, quantity, fitted_from (only lengths from here on are fitted), verdict (of
    `ostools.theory.statistics.fits.VERDICTS`), law (its name, or "none"), rate (k of n^-k, r of e^(-r n); NaN without a
    law), low, high (its 95% interval: of noise along the mean curve, not of the spread between seeds), seeds_low, seeds_high
    (95%, Student, of the same plain law's rate over seeds; NaN for one seed, and for a law to a level, whose rate a plain law
    does not have), log_amplitude, level (of the same law), falls_to (the law at the last fitted length, as a part of the law at
    the first: a rate above 0 may still leave nearly all), used (how many lengths). A curve is fitted until it falls to `floor`.
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
    fitted = fit_decay(mean.index.to_numpy(), mean.to_numpy(), floor=floor)
    law, used = fitted.law, mean.index.to_numpy(float)[: fitted.used]
    seeds_low, seeds_high = _over_seeds(curve[curve["length"].isin(used)], quantity, law)
    values = {
        name: getattr(law, name) if law else math.nan for name in ("rate", "low", "high", "log_amplitude", "level")
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
    if not bool((curves > 0).to_numpy().all()):  # a zero has no log, a missing length no part in a common mean
        return unknown
    lengths = curves.index.to_numpy(dtype=float)
    x = np.log(lengths) if law.name == "power" else lengths
    _, low, high = over_seeds(list(-np.polyfit(x, np.log(curves.to_numpy()), 1)[0]))
    return low, high
