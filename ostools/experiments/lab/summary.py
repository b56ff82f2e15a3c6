"""The trained laboratory in one row a kind of model: how fast it collapses, what it answers, with intervals over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ostools.experiments.lab.trained import KEYS, TrainedLab
from ostools.results import Frame, frame_of
from ostools.theory.statistics.fits import over_seeds
from ostools.training.lab.prompts import TASKS

FIT_FROM = 32
"""Up to here the models were trained; the rate is of the lengths beyond."""
_FLOOR = (
    1e-6  # of a float64 distance of y, whose norm is some 8: rotary angles are float32, whatever the model is cast to
)
_KIND = [key for key in KEYS if key != "seed"]


def trained_summary(result: TrainedLab) -> Frame:
    """One row an encoding, depth, window (forced or trained in) and state of the weights.

    seeds (models); rate, rate_low, rate_high (k of the power law n^-k of the float64 distance at y, least squares in the log
    from `FIT_FROM` on; mean over seeds with its 95% Student interval; NaN where the distance of one is rounding);
    collapse_reached (models whose distance stays below bfloat16's noise), collapse_first and collapse_last (the least and the
    largest such length; NA: none); variation (total variation of the deepest layer's attention at the longest length, mean over
    seeds); and for each question of random bits in float32 the share of right answers, on trained lengths and beyond, each a
    mean over lengths, then over seeds, with its
    95% Student interval: first_seen, first_seen_low, first_seen_high, first_unseen, ... The lengths are those of
    `ANSWER_LENGTHS`. With fewer than two seeds an interval is NaN.
    """
    rows = []
    for keys, group in frame_of(result).groupby(_KIND, sort=False):
        row: dict[str, Any] = dict(zip(_KIND, keys, strict=True)) | {"seeds": group["seed"].nunique()}
        row |= _interval("rate", [_rate(one) for _, one in group.groupby("seed")])
        lengths = _of(group, "collapse_length", "bfloat16")["value"].dropna()
        row |= {"collapse_reached": len(lengths), "collapse_first": lengths.min(), "collapse_last": lengths.max()}
        variation = _of(group, "total_variation", "float64")
        deepest = variation[(variation["layer"] == variation["layer"].max())]
        row["variation"] = deepest[deepest["length"] == deepest["length"].max()]["value"].mean()
        accuracy = _of(group, "accuracy", "float32")
        for question in TASKS:
            for seen, word in ((True, "seen"), (False, "unseen")):
                chosen = accuracy[(accuracy["task"] == f"lab-{question}") & (accuracy["seen"] == seen)]
                row |= _interval(f"{question}_{word}", list(chosen.groupby("seed")["value"].mean()))
        rows.append(row)
    return pd.DataFrame(rows).astype({"collapse_first": "Int64", "collapse_last": "Int64"})


def _of(group: Frame, quantity: str, precision: str) -> Frame:
    return group[(group["quantity"] == quantity) & (group["precision"] == precision)]


def _rate(group: Frame) -> float:
    """k of d = a n^-k; NaN where the distance is rounding at one of the lengths."""
    curve = _of(group, "distance", "float64")
    curve = curve[curve["length"] >= FIT_FROM]
    if len(curve) < 3 or (curve["value"] <= _FLOOR).any():
        return np.nan
    return float(-np.polyfit(np.log(curve["length"]), np.log(curve["value"]), 1)[0])


def _interval(name: str, values: list[float]) -> dict[str, float]:
    middle, low, high = over_seeds(values) if values else (np.nan, np.nan, np.nan)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
