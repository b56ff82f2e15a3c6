"""The trained laboratory in tables: how fast models collapse, what they answer, what predicts it, and what bfloat16 costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ostools.experiments.lab.trained import KEYS, TrainedLab
from ostools.results import Frame, frame_of
from ostools.theory.profiles import rank_correlation
from ostools.theory.statistics.fits import over_seeds
from ostools.theory.statistics.intervals import spearman_interval
from ostools.training.lab.prompts import TASKS

FIT_FROM = 32
"""Up to here the models were trained; the rate is of the lengths beyond."""
PREDICTED_AT = (64, 128)
PREDICTORS = ("distance", "last_share", "effective_tokens")
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


def trained_prediction(result: TrainedLab) -> Frame:
    """Whether what is measured of a representation goes with what is answered beyond the trained lengths, from model to model.

    One row a question, length of `PREDICTED_AT` and quantity: `correlation` (Spearman's, over the trained models without a
    forced window, of the quantity at that length with the share of right answers in float32 at the same length), low, high
    (95%, Bonett and Wright), models, apart (how many different shares there are). The distance is of n ones without a question,
    the profile (`last_share`, `effective_tokens`) of a prompt that asks for a count. NaN where all models answer alike. Models
    of one cell differ in their seed alone, so that they are fewer than as many independent ones: the interval is too narrow.
    """
    frame = frame_of(result)
    frame = frame[(frame["weights"] == "trained") & ~frame["forced"]]
    kind = [*_KIND, "seed"]
    rows = []
    for question in TASKS:
        answers = _of(frame[frame["task"] == f"lab-{question}"], "accuracy", "float32")
        for length in PREDICTED_AT:
            right = answers[answers["length"] == length].set_index(kind)["value"]
            for quantity in PREDICTORS:
                chosen = frame[(frame["quantity"] == quantity) & (frame["length"] == length)].set_index(kind)["value"]
                both: Any = pd.concat({"right": right, "measured": chosen}, axis=1).dropna()
                apart = int(both["right"].nunique())
                found = rank_correlation(both["right"].to_numpy(), both["measured"].to_numpy()) if apart > 1 else np.nan
                low, high = spearman_interval(found, len(both))
                row = {"question": question, "length": length, "quantity": quantity, "correlation": found}
                rows.append(row | {"low": low, "high": high, "models": len(both), "apart": apart})
    return pd.DataFrame(rows)


def trained_precisions(result: TrainedLab) -> Frame:
    """What running in bfloat16 costs the trained models: one row a question, on trained lengths and beyond.

    float32, bfloat16 (share of right answers to random bits, mean over models and lengths), difference (bfloat16 minus float32,
    mean over seeds of the mean over that seed's models) with its 95% Student interval, low and high.
    """
    frame = frame_of(result)
    frame = frame[(frame["weights"] == "trained") & ~frame["forced"] & (frame["quantity"] == "accuracy")]
    rows = []
    for question in TASKS:
        for seen in (True, False):
            chosen = frame[(frame["task"] == f"lab-{question}") & (frame["seen"] == seen)]
            by_seed = chosen.pivot_table(index="seed", columns="precision", values="value")
            row = {"question": question, "seen": seen, "float32": by_seed["float32"].mean()}
            row |= {"bfloat16": by_seed["bfloat16"].mean()}
            middle, low, high = over_seeds(list(by_seed["bfloat16"] - by_seed["float32"]))
            rows.append(row | {"difference": middle, "low": low, "high": high})
    return pd.DataFrame(rows)


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
